"""Evidence and history -> what failed, where, what would mend it, and how sure we are. Source: DOMAIN section 7.

Every rule is evaluated. The winner is the hit with the strongest evidence class, then the most specific, then
the order of rules; the others are kept as support or contradiction. Unknown is a category.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recovery import across_ranks, announced
from recovery.facts import facts_of, makes_progress
from recovery.hits import TAKES_OUT, Hit
from recovery.observed import Evidence
from recovery.past import History
from recovery.rules.rule import Blame, EvidenceClass, FactValue, Origin, Remedy, Rule, RuleSet, said
from recovery.scan import Line, Scan, scan
from recovery.verdict_words import (
    EXPLAINS_DEVICE,
    SHARED,
    Cited,
    Refused,
    cited,
    considered,
    contradictions,
    passed_checks,
)
from recovery.weighing import EXIT_OF_HOST, NOT_OVERRULED, weighed
from recovery.words import features_of

__all__ = ["Cited", "Refused", "Verdict", "all_hits", "judge"]

#: Two rules of one class whose specificities differ by no more are about as exact.
ABOUT_AS_EXACT = 8
_GOES_ON = frozenset(
    {Remedy.RESTART_PROCESS, Remedy.RESTART_CONTAINER, Remedy.BACKOFF_SHARED, Remedy.NEEDS_OPERATOR}
)
_CONTRADICTED = 0.15
_OF_SET_UP = frozenset({"bad_config", "container_env"})
#: What a platform does to pod after pod on all of its nodes.
_OF_PLATFORM = frozenset({"disk_full", *SHARED})
_CHECK_OF_LINK: Mapping[str, str] = {"gpu_fabric": "check.gpu", "rdma_nic": "check.rdma"}
#: The node has gone, or computes or stores wrongly.
_FINAL = frozenset({"gpu_mem_uncorrectable", "node_lost"})
_OF_LINKS = frozenset(_CHECK_OF_LINK)
#: What history says against this machine.
_POINTS_HERE = ("past.repeated", "past.only_here", "past.same_node", "past.fine_elsewhere", "nodes.one")
_SUPPORTED = 0.05


@dataclass(frozen=True, slots=True)
class Verdict:
    """What we conclude. ``culprit_rank`` and ``culprit_node`` are None and "" where nobody can be named.

    ``confidence`` in [0, 1]; ``evidence`` strongest first; ``unread_lines`` were left out or cut.
    """

    category: str
    remedy: Remedy
    blame: Blame
    reason: str
    rule: str
    confidence: float
    evidence_class: EvidenceClass = EvidenceClass.BENIGN
    culprit_rank: int | None = None
    culprit_node: str = ""
    exit: str = ""
    means: str = ""  # what the category means here, where its own words would mislead
    evidence: tuple[Cited, ...] = ()
    contradictions: tuple[Cited, ...] = ()
    considered: tuple[Refused, ...] = ()
    unread_lines: int = 0
    unread_steps: int = 0


def judge(evidence: Evidence, history: History, rules: RuleSet) -> Verdict:
    """Say what failed, where, what would mend it, and how sure we are.

    Args:
        evidence: What was seen of one failure.
        history: What earlier attempts and other machines say.
        rules: The rules in force.
    Returns:
        The verdict; unknown is a category, never an exception.
    """
    seen = scan(evidence, rules)
    facts = facts_of(evidence, history)
    told = dict(facts)
    ranks = across_ranks.read(evidence, seen, rules)
    facts |= ranks.facts
    hits = _hits(seen, facts, rules)
    culprit = ranks.culprit(hits)
    if hits:
        best = _best(hits, evidence, facts, ranks, culprit)
        verdict = _verdict(best, hits, facts, seen, culprit, rules)
    else:
        verdict = _unknown(evidence, history, facts, seen, culprit)
    if rules.precedents is None or verdict.rule in rules.own or verdict.evidence_class in NOT_OVERRULED:
        return verdict
    opinion = rules.precedents.opinion(features_of(evidence, history.said, told))
    return verdict if opinion is None else weighed(verdict, opinion, hits, facts, rules)


def _best(
    hits: list[Hit], evidence: Evidence, facts: Mapping[str, FactValue], ranks: across_ranks.Ranks,
    culprit: across_ranks.Culprit,
) -> Hit:  # fmt: skip
    """What the rules conclude together."""
    among = _of_culprit(hits, culprit, ranks) or hits
    among = _of_this_attempt(_without_soft(among, facts), evidence)
    best = max(among, key=lambda hit: hit.rank_key)
    best = _explained(_spared(best, among), among)
    best = _climbed(_measured(_refined(best, hits), hits, facts), facts)
    return _lasting(_mended_by(best, facts), facts)


def all_hits(evidence: Evidence, history: History, rules: RuleSet) -> tuple[list[Hit], Scan]:
    """Every rule that applies, strongest first, for trying rules; marks have no conclusion and are not among them."""
    seen = scan(evidence, rules)
    facts = facts_of(evidence, history)
    facts |= across_ranks.read(evidence, seen, rules).facts
    return sorted(_hits(seen, facts, rules), key=lambda hit: hit.rank_key, reverse=True), seen


def _hits(seen: Scan, facts: dict[str, FactValue], rules: RuleSet) -> list[Hit]:
    """The rules that apply. Sightings come first, so that conditions may speak of any line."""
    for n in seen.hits:
        rule = rules.rules[n]
        facts[f"seen.{rule.id}"] = True
        for tag in rule.tags:
            facts[f"seen.{tag}"] = True
    if facts.get("seen.log.training") and not any(_tells_of_trouble(rules.rules[n]) for n in seen.hits):
        facts["log.silent"] = True
    found = []
    tried = {*seen.hits, *rules.predicates.get("", ())}
    for name in facts:
        tried.update(rules.predicates.get(name, ()))
    for n in sorted(tried):
        rule = rules.rules[n]
        if rule.is_mark:
            continue
        lines = seen.hits.get(n, ())
        here = facts
        if lines:
            ranks = {line.rank for line in lines if line.rank is not None}
            nodes = {line.node for line in lines if line.node}
            if ranks:
                here = facts | {"here.ranks": len(ranks), "here.nodes": len(nodes)}
        if not rule.applies(here):
            continue
        found.append(_concluded(rule, here, lines))
    return found


def _tells_of_trouble(rule: Rule) -> bool:
    return not rule.is_mark and rule.evidence_class is not EvidenceClass.BENIGN


def _concluded(rule: Rule, facts: Mapping[str, FactValue], lines: tuple[Line, ...]) -> Hit:
    assert rule.remedy is not None  # only marks have none
    assert rule.blame is not None
    for case in rule.when:
        if case.holds(facts):
            return Hit(
                rule, case.category or rule.category, case.remedy or rule.remedy, case.blame or rule.blame,
                said(case.reason, facts), lines,
            )  # fmt: skip
    return Hit(rule, rule.category, rule.remedy, rule.blame, said(rule.reason, facts), lines)


def _without_soft(hits: list[Hit], facts: Mapping[str, FactValue]) -> list[Hit]:
    """Without soft conditions of a node, where the program's own error came back on other nodes too."""
    if not (facts.get("past.other_nodes") or facts.get("past.all_nodes")):
        return hits
    if not any(hit.blame is Blame.JOB and hit.rule.evidence_class >= EvidenceClass.HINT for hit in hits):
        return hits
    return [hit for hit in hits if "soft" not in hit.rule.tags]


def _of_this_attempt(hits: list[Hit], evidence: Evidence) -> list[Hit]:
    """Without what a log only tells of an attempt before this one, where anything newer explains the end."""
    begun = announced.began_at(evidence.log)
    if not begun:
        return hits
    present = [
        hit
        for hit in hits
        if not hit.lines or any(line.origin is not Origin.LOG or line.n >= begun for line in hit.lines)
    ]
    return present if any(hit.rule.evidence_class >= EvidenceClass.HINT for hit in present) else hits


def _mended_by(best: Hit, facts: Mapping[str, FactValue]) -> Hit:
    """Whoever can mend it is asked: what any image and any job lacks on any machine, the operator has to add.

    What came with the job's own image its owner takes back, also when it shows on all machines.
    """
    if best.category not in _OF_SET_UP or best.rule.evidence_class > EvidenceClass.COMPARED:
        return best
    tried = {Remedy.FAIL_FAST, Remedy.RESTART_CONTAINER, Remedy.RESTART_PROCESS}
    if best.remedy in tried and facts.get("past.any_image") and not facts.get("past.only_ours"):
        return replace(
            best,
            category="container_env",
            remedy=Remedy.NEEDS_OPERATOR,
            blame=Blame.SHARED,
            reason=f"{best.reason}; any job meets it on any node",
        )
    ours = facts.get("past.only_ours") or (
        facts.get("past.our_image")
        and not facts.get("past.any_image")
        and not facts.get("past.machine_change")
    )
    if not ours or facts.get("past.everybody"):
        return best
    everywhere = any(facts.get(name) for name in ("past.every", "past.all_nodes", "past.other_nodes"))
    futile = best.remedy is Remedy.RESTART_CONTAINER and facts.get("past.only_ours") and everywhere
    if best.remedy is Remedy.NEEDS_OPERATOR or futile:
        return replace(
            best,
            remedy=Remedy.FAIL_FAST,
            blame=Blame.JOB,
            reason=f"{best.reason}; others do not meet it: it is the job's own to mend",
        )
    return best


def _explained(best: Hit, hits: list[Hit]) -> Hit:
    """What the program did wrong before outranks the device errors that followed from it in its process."""
    if best.category not in {"gpu_app_fault", "transient_unknown", "unknown"} or best.blame is Blame.NODE:
        return best
    causes = [hit for hit in hits if EXPLAINS_DEVICE in hit.rule.tags]
    return max(causes, key=lambda hit: hit.rank_key, default=best)


def _lasting(best: Hit, facts: Mapping[str, FactValue]) -> Hit:
    """What never worked for anybody, or meets replacement after replacement for hours, no wait and no new pod mends."""
    waits = {Remedy.BACKOFF_SHARED, Remedy.RESTART_CONTAINER, Remedy.RESTART_PROCESS}
    if facts.get("past.first_time") or facts.get("past.only_ours") or facts.get("seen.outage-words"):
        return best
    if facts.get("past.never_worked") and best.category in SHARED and best.remedy in waits:
        return replace(
            best,
            remedy=Remedy.NEEDS_OPERATOR,
            blame=Blame.SHARED,
            reason=f"{best.reason}; it never worked since it was made: a set-up to mend, no outage to wait for",
        )
    alone = facts.get("past.same_node") or facts.get("past.only_here") or facts.get("nodes.one")
    platform = (best.category in _OF_PLATFORM or "disk-full" in best.rule.tags) and not facts.get(
        "seen.own-ephemeral"
    )
    if facts.get("past.group_for_long") and platform and not alone:
        of_disk = best.category == "disk_full" or "disk-full" in best.rule.tags
        if best.remedy in waits or (of_disk and best.remedy in {Remedy.FAIL_FAST, Remedy.ISOLATE_NODE}):
            return replace(
                best,
                category="disk_full" if of_disk else best.category,
                remedy=Remedy.NEEDS_OPERATOR,
                blame=Blame.SHARED,
                reason=f"{best.reason}; replacements meet it on all nodes of the group, for hours: the platform",
            )
    return best


def _measured(best: Hit, hits: list[Hit], facts: Mapping[str, FactValue]) -> Hit:
    """No machine is taken out at once for less than it takes.

    A link that still carries the run and only counts errors waits for the next save. A line of a program's output,
    met for the first time on a machine whose GPU check passes and that nothing else speaks against, is tried again.
    """
    if best.remedy is not Remedy.ISOLATE_NODE or best.rule.evidence_class is EvidenceClass.CHECK:
        return best
    if (_is_carried(best, facts) or not _is_final(best, facts)) and makes_progress(facts):
        return replace(
            best,
            remedy=Remedy.EVICT_AT_CHECKPOINT,
            reason=f"{best.reason}; the run goes on: after the next save",
        )
    if best.rule.evidence_class <= EvidenceClass.LOG and best.lines and _is_first_sight(best, hits, facts):
        return replace(
            best,
            remedy=Remedy.RESTART_PROCESS,
            blame=Blame.NONE,
            reason=f"{best.reason}; said once, by the program alone, while the checks pass: once more first",
        )
    return best


def _climbed(best: Hit, facts: Mapping[str, FactValue]) -> Hit:
    """What was tried in vain on this machine moves one step up: from the container to the machine."""
    here = any(facts.get(name) for name in ("past.same_node", "past.only_here", "past.fine_elsewhere"))
    elsewhere = facts.get("past.other_nodes") or facts.get("past.all_nodes") or facts.get("nodes.many")
    if best.remedy is not Remedy.RESTART_CONTAINER or not facts.get("past.in_vain") or not here or elsewhere:
        return best
    return replace(
        best,
        remedy=Remedy.ISOLATE_NODE,
        blame=Blame.NODE,
        reason=f"{best.reason}; new containers on this machine did not help, so it is the machine",
    )


def _is_carried(best: Hit, facts: Mapping[str, FactValue]) -> bool:
    """Whether what is bad still does its work: a link that counts errors, a part whose own check passes."""
    if best.category in _OF_LINKS and not facts.get("seen.link.fatal"):
        return bool(facts.get("seen.link.counters")) or facts.get(_CHECK_OF_LINK[best.category]) == "pass"
    return (
        best.category == "host_hw"
        and facts.get("seen.disk.degraded") is True
        and facts.get("check.io") == "pass"
    )


def _is_final(best: Hit, facts: Mapping[str, FactValue]) -> bool:
    """Whether a device has failed for good, or has lost data: then a run is not left on it, whatever it still does."""
    if best.category in _FINAL or facts.get("check.io") == "fail":
        return True
    if best.rule.evidence_class is not EvidenceClass.DEVICE:
        return False
    return not (facts.get("seen.disk.predicts") and not facts.get("seen.disk.lost-data"))


def _is_first_sight(best: Hit, hits: list[Hit], facts: Mapping[str, FactValue]) -> bool:
    """Whether one line says it for the first time, every check that ran passes, and the GPU check is among them."""
    if not facts.get("past.first_time") or any(facts.get(name) for name in _POINTS_HERE):
        return False
    if not facts.get("checks.clean") or facts.get("check.gpu") != "pass":
        return False
    return not any(
        hit.blame is Blame.NODE and hit.rule.evidence_class > EvidenceClass.LOG
        for hit in hits
        if hit is not best
    )


def _spared(best: Hit, hits: list[Hit]) -> Hit:
    """Where evidence of the same class speaks for and against giving up, and about as exactly, go on.

    Stopping a job that could go on is the dearest mistake of all. A symptom gives up only for its history, which
    another symptom of the same failure does not contradict.
    """
    if best.remedy is not Remedy.FAIL_FAST or best.rule.evidence_class <= EvidenceClass.SYMPTOM:
        return best
    others = [
        hit
        for hit in hits
        if hit.remedy in _GOES_ON
        and hit.rule.evidence_class is best.rule.evidence_class
        and hit.rule.specificity >= best.rule.specificity - ABOUT_AS_EXACT
    ]
    return max(others, key=lambda hit: hit.rank_key, default=best)


def _of_culprit(hits: list[Hit], culprit: across_ranks.Culprit, ranks: across_ranks.Ranks) -> list[Hit]:
    """Without what only other ranks wrote, where it is known by time who failed first: they met its consequence."""
    if culprit.rank is None or not ranks.came_first(culprit):
        return hits
    return [
        hit
        for hit in hits
        if hit.rule.evidence_class > EvidenceClass.LOG
        or not hit.lines
        or any(line.rank in (None, culprit.rank) for line in hit.lines)
    ]


def _refined(best: Hit, hits: list[Hit]) -> Hit:
    """A failed check says that the machine is bad; what names the failure better gives the category."""
    if not best.rule.refine:
        return best
    better = [
        hit
        for hit in hits
        if hit is not best
        and hit.category in best.rule.refine
        and hit.rule.evidence_class > EvidenceClass.SYMPTOM
    ]
    if not better:
        return best
    names = max(better, key=lambda hit: hit.rank_key)
    return replace(
        best, category=names.category, reason=f"{best.reason}; {names.reason[:1].lower()}{names.reason[1:]}"
    )


def _unknown(
    evidence: Evidence, history: History, facts: Mapping[str, FactValue], seen: Scan,
    culprit: across_ranks.Culprit,
) -> Verdict:  # fmt: skip
    clean = bool(facts.get("checks.clean"))
    reason = "Nothing that is known explains this"
    if evidence == Evidence() and history == History():
        remedy, reason, then = (
            Remedy.MARK_HANG,
            "Nothing was told of it",
            "nothing is done before something is",
        )
    elif facts.get("exit.running") and facts.get("phase") != "bootcheck":
        remedy, then = Remedy.MARK_HANG, "no end is told, so nothing is killed: look into it"
    else:
        remedy, then = Remedy.RESTART_PROCESS, "the cheapest restart"
    return Verdict(
        category="transient_unknown" if clean else "unknown",
        remedy=remedy,
        blame=Blame.NONE,
        reason=f"{reason}{', and every check is green' if clean else ''}: {then}",
        rule="none",
        confidence=0.2,
        culprit_rank=culprit.rank,
        culprit_node=culprit.node,
        considered=considered(remedy, None, (), facts),
        unread_lines=seen.unread_lines,
        unread_steps=seen.unread_steps,
    )


def _verdict(
    best: Hit, hits: list[Hit], facts: Mapping[str, FactValue], seen: Scan, culprit: across_ranks.Culprit,
    rules: RuleSet,
) -> Verdict:  # fmt: skip
    others = sorted(
        (hit for hit in hits if hit.rule is not best.rule), key=lambda hit: hit.rank_key, reverse=True
    )
    support = [hit for hit in others if hit.agrees(best)]
    against = [hit for hit in others if not hit.agrees(best) and not hit.is_last_resort]
    passes = passed_checks(best.category, best.remedy, best.blame, facts)
    confidence = best.weight
    if support:
        confidence += _SUPPORTED
    if any(hit.rule.evidence_class >= best.rule.evidence_class for hit in against):
        confidence -= _CONTRADICTED
    if passes:
        confidence -= _SUPPORTED
    return Verdict(
        category=best.category,
        remedy=best.remedy,
        blame=best.blame,
        reason=best.reason,
        rule=best.rule.id,
        confidence=round(min(0.99, max(0.05, confidence)), 2),
        evidence_class=best.rule.evidence_class,
        culprit_rank=culprit.rank,
        culprit_node=culprit.node,
        exit=rules.exits.get(best.rule.exit or EXIT_OF_HOST, "") if best.remedy in TAKES_OUT else "",
        means=best.rule.means if best.category == best.rule.category else "",
        evidence=cited([best, *(hit for hit in support if not hit.is_last_resort)]),
        contradictions=contradictions(against, passes),
        considered=considered(best.remedy, best, hits, facts, culprit.rank),
        unread_lines=seen.unread_lines,
        unread_steps=seen.unread_steps,
    )
