"""A verdict of the rules beside what labelled failures say: the louder one chooses. Source: docs/design/verdicts.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from recovery.hits import TAKES_OUT, Hit
from recovery.precedents import Opinion, choose
from recovery.rules.rule import PRECEDENTS, Blame, EvidenceClass, FactValue, Remedy, RuleSet
from recovery.verdict_words import MAX_SHOWN, Cited, Refused, cited, considered, contradictions, passed_checks
from recovery.words import in_words

if TYPE_CHECKING:
    from recovery.verdict import Verdict

#: What a check, a comparison or a device shows no likeness overrules: hardly ever wrong, and no job writes it.
NOT_OVERRULED = frozenset({EvidenceClass.CHECK, EvidenceClass.COMPARED, EvidenceClass.DEVICE})
#: How a machine comes back where no rule that asks for it names a way.
EXIT_OF_HOST = "host-service"
#: Most labelled failures with such words say so.
_MOST = 0.5
#: No surer than this without a cause.
_SURE_OF_PRECEDENTS = 0.7
_OF_NODES = frozenset(
    {"gpu_mem_uncorrectable", "gpu_lost", "gpu_fabric", "host_hw", "rdma_nic", "node_lost", "straggler"}
)
_OF_SITES = frozenset({"disk_full", "image_registry", "shared_storage", "shared_network", "numeric"})
_OF_JOBS = frozenset({"user_code", "bad_config", "gpu_oom", "host_oom", "numeric", "ckpt_corrupt"})
#: Remedy -> the category of most labelled failures that it mended, whom it blames, and what else goes with it.
_KIND_OF: Mapping[Remedy, tuple[str, Blame, frozenset[str]]] = {
    Remedy.RESTART_PROCESS: (
        "transient_unknown", Blame.NONE, frozenset({"peer_cascade", "ckpt_corrupt", "gpu_app_fault"}),
    ),
    Remedy.RESTART_CONTAINER: (
        "container_env", Blame.NONE, frozenset({"preempted", "host_oom", "node_lost", "disk_full"}),
    ),
    Remedy.EVICT_AT_CHECKPOINT: ("straggler", Blame.NODE, _OF_NODES),
    Remedy.ISOLATE_NODE: ("host_hw", Blame.NODE, _OF_NODES | {"container_env"}),
    Remedy.MARK_HANG: ("hang", Blame.NONE, frozenset()),
    Remedy.FAIL_FAST: ("bad_config", Blame.JOB, _OF_JOBS),
    Remedy.BACKOFF_SHARED: (
        "shared_network", Blame.SHARED, frozenset({"shared_storage", "image_registry", "preempted"}),
    ),
    Remedy.NEEDS_OPERATOR: ("container_env", Blame.SHARED, _OF_SITES),
}  # fmt: skip
_WHAT_THEY_CALL_FOR: Mapping[Remedy, str] = {
    Remedy.RESTART_PROCESS: "A new process mends it",
    Remedy.RESTART_CONTAINER: "A new container mends it",
    Remedy.EVICT_AT_CHECKPOINT: "The machine is slow or wears out: it leaves at the next save",
    Remedy.ISOLATE_NODE: "It is the machine",
    Remedy.MARK_HANG: "It stands still and is looked into",
    Remedy.FAIL_FAST: "It comes again at each try: the job has to change",
    Remedy.BACKOFF_SHARED: "Something shared is in trouble: wait for it",
    Remedy.NEEDS_OPERATOR: "A person has to mend it",
}


def weighed(
    verdict: Verdict,
    opinion: Opinion,
    hits: Sequence[Hit],
    facts: Mapping[str, FactValue],
    rules: RuleSet,
) -> Verdict:
    """The verdict of the rules, or what labelled failures with such words call for where they speak louder.

    Precedents name no cause, so such a verdict is a hint: it explains, and by itself stops no job and takes no machine.
    """
    assert rules.precedents is not None
    choice = choose(opinion, verdict.remedy, verdict.evidence_class)
    if choice.remedy is verdict.remedy:
        return _doubted(verdict, opinion)
    asked = max(
        (hit for hit in hits if hit.remedy is choice.remedy), key=lambda hit: hit.rank_key, default=None
    )
    category, blame = _named(verdict, choice.remedy, asked)
    why_chosen = f"labelled failures with such words speak for it ({choice.share:.0%})"
    outweighs = "labelled failures with such words speak louder"
    if choice.share < choice.share_of_rules:
        named = verdict.remedy.replace("_", " ")
        why_chosen = (
            f"less harm if it is wrong, where labelled failures speak for it too "
            f"({choice.share:.0%}, {named} {choice.share_of_rules:.0%})"
        )
        outweighs = "it would do more harm if it is wrong, and labelled failures make that likely enough"
    words = in_words(rules.precedents.words_for(opinion, choice.remedy, verdict.remedy))
    asked_by = {
        hit.remedy: f"rule {hit.rule.id} asks for it" for hit in sorted(hits, key=lambda hit: hit.rank_key)
    }
    asked_by[verdict.remedy] = (
        f"rule {verdict.rule} asks for it" if hits else "it is what is done where nothing is known"
    )
    others = considered(choice.remedy, asked, hits, facts, verdict.culprit_rank)
    agreeing = [hit for hit in hits if hit is not asked and _agrees(hit, asked, choice.remedy)]
    against = [hit for hit in hits if not _agrees(hit, asked, choice.remedy) and not hit.is_last_resort]
    against.sort(key=lambda hit: hit.rank_key, reverse=True)
    passes = passed_checks(category, choice.remedy, blame, facts)
    way_back = asked.rule.exit if asked and asked.rule.exit else EXIT_OF_HOST
    return replace(
        verdict,
        category=category,
        remedy=choice.remedy,
        blame=blame,
        reason=f"{_WHAT_THEY_CALL_FOR[choice.remedy]}: {why_chosen}",
        rule=PRECEDENTS,
        confidence=round(min(_SURE_OF_PRECEDENTS, choice.share), 2),
        evidence_class=EvidenceClass.HINT,
        exit=rules.exits.get(way_back, "") if choice.remedy in TAKES_OUT else "",
        means="",
        evidence=(
            Cited(words or "many words, each a little", PRECEDENTS, round(choice.share, 2)),
            *cited([*([asked] if asked else []), *(hit for hit in agreeing if not hit.is_last_resort)]),
        )[:MAX_SHOWN],
        contradictions=contradictions(against, passes),
        considered=tuple(
            Refused(each.remedy, f"{why}; {outweighs}") if (why := asked_by.get(each.remedy)) else each
            for each in others
        ),
    )


def _agrees(hit: Hit, asked: Hit | None, remedy: Remedy) -> bool:
    return hit is asked or hit.remedy is remedy or (asked is not None and hit.agrees(asked))


def _doubted(verdict: Verdict, opinion: Opinion) -> Verdict:
    """The verdict with what labelled failures say against it, where most of them call for something else."""
    other = max(opinion.shares, key=opinion.shares.__getitem__)
    share = opinion.shares[other]
    if other is verdict.remedy or share < _MOST:
        return verdict
    says = f"labelled failures with such words speak for {other.replace('_', ' ')} ({share:.0%})"
    said = [*verdict.contradictions, Cited(says, PRECEDENTS, round(share / 2, 2))]
    said.sort(key=lambda each: -each.weight)
    return replace(verdict, contradictions=tuple(said[:MAX_SHOWN]))


def _named(verdict: Verdict, remedy: Remedy, asked: Hit | None) -> tuple[str, Blame]:
    """Category and blame that go with a remedy: of a rule that asks for it, else of its kind."""
    if asked is not None:
        return asked.category, asked.blame
    category, blame, others = _KIND_OF[remedy]
    return (verdict.category if verdict.category in others else category), blame
