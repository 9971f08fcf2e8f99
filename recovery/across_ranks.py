"""Who is to blame among ranks: the first failure, the one who never joined, and pairs of nodes.

Source: DOMAIN section 7 ("most report a symptom; the culprit failed first or never joined").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from recovery.observed import Evidence, RankView
from recovery.rules.rule import EvidenceClass, FactValue, Rule, RuleSet
from recovery.scan import Line, Scan

#: A node of a pairwise check is slow beyond this many times the median of the round, and dead beyond the other.
SLOW_RATIO = 2.0
DEAD_RATIO = 30.0

_ROUND = re.compile(r"\{([0-9:., infa-]{3,4000})\}")
_PAIR = re.compile(r"(\d{1,6}): {0,2}(-?\d{1,9}(?:\.\d{1,9})?|inf|nan)")
#: Lines of a log that are read for results of pairs.
MAX_PAIRS = 400
_PAIR_TOLD = re.compile(
    r"\bpair\b[^a-z0-9]{0,4}([a-z0-9][\w.-]{0,60}) ?(?:,|<->|->|-|/|and|with|vs\.?|&"
    r"| ) ?([a-z0-9][\w.-]{0,60})[\])]?[^a-z0-9]{1,4}"
    r"(fail\w{0,4}|timeout|timed out|hang|error|ok|pass\w{0,3}|success|good)\b"
)
_PASSED = frozenset({"ok", "pass", "passed", "passes", "success", "good"})
_SEQUENCE = re.compile(r"seqnum=(\d{1,15})", re.IGNORECASE)
_OPERATION = re.compile(r"seqnum=(\d{1,15}), ?optype=([a-z_]{2,40})", re.IGNORECASE)
#: "rank 3 finished 410 batches": a rank that has come to the end of its data.
_TOTAL = re.compile(
    r"\brank (\d{1,6})\b[:,]? (?:has |is )?(?:finished|exhausted|completed|done with|ended"
    r"|ran out)(?: \w{1,12}){0,2}? (\d{1,9})"
    r" (?:of its )?(?:batches|steps|iterations|samples|microbatches)",
    re.IGNORECASE,
)
#: A line without one of these tells of no total.
_TOTAL_WORDS = ("batches", "steps", "iterations", "samples")
_NAMED = re.compile(
    r"(?:culprit rank|missing ranks?|faulty rank|rank that did not (?:join|arrive)|did not join"
    r"|waiting for rank"
    r"|slowest rank|straggler(?: rank)?|straggling rank|slow rank)"
    r"[ :=\[]{1,4}(\d{1,6})"
    r"|\brank (\d{1,6}) (?:did not (?:join|arrive|call|enter)|never (?:joined|arrived|called|entered)"
    r"|is missing)",
    re.IGNORECASE,
)
_SEVERE_SIGNALS = frozenset({4, 6, 7, 8, 11})


class RankedHit(Protocol):
    """What is needed of a hit."""

    @property
    def rule(self) -> Rule: ...
    @property
    def lines(self) -> tuple[Line, ...]: ...


@dataclass(frozen=True, slots=True)
class Culprit:
    """Rank (or node index of a pairwise check) and node; None and "" when nobody can be named."""

    rank: int | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the ranks say together."""

    facts: dict[str, FactValue] = field(default_factory=dict)
    named: Culprit = Culprit()
    missing: Culprit = Culprit()
    views: tuple[RankView, ...] = ()

    def came_first(self, culprit: Culprit) -> bool:
        """Whether the culprit is known by the time of its first error, and so outranks what others wrote later."""
        return any(view.rank == culprit.rank and view.first_error_seconds is not None for view in self.views)

    def culprit(self, hits: Sequence[RankedHit]) -> Culprit:
        """Who failed first with a cause of its own, else who was named, else who never joined."""
        if self.named.rank is not None:
            return self.named
        first = _first_cause(self.views, hits)
        return first if first.rank is not None else self.missing


def read(evidence: Evidence, seen: Scan, rules: RuleSet) -> Ranks:
    """Facts and suspects out of ranks and pairwise rounds."""
    facts: dict[str, FactValue] = {}
    named = _pairwise(evidence.log, facts)
    if named.rank is None:
        named = _named(evidence)
        if named.rank is not None:
            facts["rank.named"] = True
    missing = Culprit()
    if _totals_differ(evidence):
        facts["rank.totals_differ"] = True
    if len(evidence.ranks) > 1:
        missing = _missing(evidence, seen, rules, facts)
    return Ranks(facts, named, missing, evidence.ranks)


def _pairwise(log: Sequence[str], facts: dict[str, FactValue]) -> Culprit:
    """Elapsed times of a pairwise check in rounds with changed partners: who is bad in all of them is it."""
    rounds = []
    for line in log:
        small = line.lower()
        if "elapsed time" not in small and "round" not in small:
            continue
        block = _ROUND.search(small)
        times = {int(node): float(value) for node, value in _PAIR.findall(block[1])} if block else {}
        if len(times) >= 2:
            rounds.append(times)
    if len(rounds) < 2:
        if _named_in_pairs(log):
            facts["pair.dead"] = True
        return Culprit()
    dead, slow = [], []
    for node in sorted(set.intersection(*(set(times) for times in rounds))):
        ratios = [times[node] / _median(times) if times[node] >= 0 else DEAD_RATIO for times in rounds]
        if all(not ratio < DEAD_RATIO for ratio in ratios):
            dead.append(node)
        elif all(not ratio < SLOW_RATIO for ratio in ratios):
            slow.append(node)
    if dead or slow:
        facts["pair.dead" if dead else "pair.slow"] = True
        chosen = dead or slow
        return Culprit(chosen[0]) if len(chosen) == 1 else Culprit()
    return Culprit()


def _named_in_pairs(log: Sequence[str]) -> bool:
    """Whether pairs told by name fail with one machine and with no other, and another pair passes without it."""
    bad: list[set[str]] = []
    good: list[set[str]] = []
    for line in log[:MAX_PAIRS]:
        if match := _PAIR_TOLD.search(line[:200].lower()):
            (good if match[3] in _PASSED else bad).append({match[1], match[2]})
    if len(bad) < 2:
        return False
    suspects = set.intersection(*bad)
    return len(suspects) == 1 and any(not suspects & pair for pair in good)


def _median(times: dict[int, float]) -> float:
    values = sorted(value for value in times.values() if value >= 0)
    return max(values[(len(values) - 1) // 2], 1e-6) if values else 1.0


def _named(evidence: Evidence) -> Culprit:
    """A rank that a tool names as the one that was missing or wrong."""
    lines = [*evidence.log, *(line for rank in evidence.ranks for line in rank.log)]
    for line in lines:
        if "rank" not in line and "Rank" not in line and "join" not in line:
            continue
        if match := _NAMED.search(line):
            return _of(evidence.ranks, int(match[1] or match[2]))
    return Culprit()


def _of(ranks: Sequence[RankView], number: int) -> Culprit:
    node = next((view.node for view in ranks if view.rank == number), "")
    return Culprit(number, node)


def _missing(evidence: Evidence, seen: Scan, rules: RuleSet, facts: dict[str, FactValue]) -> Culprit:
    """The only rank that does not wait in the collective in which the others time out."""
    waiting: set[int] = set()
    for n, lines in seen.hits.items():
        if "collective-timeout" in rules.rules[n].tags:
            waiting |= {line.rank for line in lines if line.rank is not None}
    if not waiting:
        return Culprit()
    others = [view for view in evidence.ranks if view.rank not in waiting]
    if _stand_in_different_operations(evidence.ranks):
        facts["rank.operations_differ"] = True
    sequences = {found for view in evidence.ranks for line in view.log for found in _SEQUENCE.findall(line)}
    if len(sequences) > 1:
        facts["rank.sequences_differ"] = True
    if len(others) == 1:
        facts["rank.missing"] = True
        return Culprit(others[0].rank, others[0].node)
    return Culprit()


def _stand_in_different_operations(views: Sequence[RankView]) -> bool:
    """Whether ranks wait at one sequence number in collectives of different types."""
    types: dict[str, set[str]] = {}
    for view in views:
        for line in view.log:
            if found := _OPERATION.search(line):
                types.setdefault(found[1], set()).add(found[2].lower())
    return any(len(names) > 1 for names in types.values())


def _totals_differ(evidence: Evidence) -> bool:
    """Whether ranks tell that they finished different numbers of batches."""
    totals: dict[int, int] = {}
    for line in (*evidence.log, *(line for view in evidence.ranks for line in view.log)):
        if any(word in line for word in _TOTAL_WORDS):
            totals |= {int(rank): int(total) for rank, total in _TOTAL.findall(line)}
    return len(set(totals.values())) > 1


def _first_cause(views: Sequence[RankView], hits: Sequence[RankedHit]) -> Culprit:
    """The rank with the strongest cause of its own; among equals the one that failed first."""
    best: dict[int, int] = {}
    for hit in hits:
        if hit.rule.evidence_class < EvidenceClass.HINT:
            continue
        for line in hit.lines:
            if line.rank is not None:
                best[line.rank] = max(best.get(line.rank, 0), int(hit.rule.evidence_class))
    for view in views:
        code = view.exit_code
        if code is not None and (code - 128 in _SEVERE_SIGNALS or -code in _SEVERE_SIGNALS or code == 137):
            best[view.rank] = max(best.get(view.rank, 0), int(EvidenceClass.HINT))
    if not best:
        timed = [view for view in views if view.first_error_seconds is not None]
        if not timed:
            return Culprit()
        first = min(timed, key=lambda view: (view.first_error_seconds, view.rank))
        return Culprit(first.rank, first.node)
    by_rank = {view.rank: view for view in views}
    candidates = [by_rank[rank] for rank in best if rank in by_rank]
    timed = [view for view in candidates if view.first_error_seconds is not None]
    if timed:
        first = min(timed, key=lambda view: (view.first_error_seconds, view.rank))
        return Culprit(first.rank, first.node)
    top = max(best.values())
    strongest = [view for view in candidates if best[view.rank] == top]
    nodes = {view.node for view in strongest}
    if len(strongest) > 1 and len(nodes) > 1:
        return Culprit()  # the same on several machines: nobody in particular
    first = min(strongest, key=lambda view: view.rank)
    return Culprit(first.rank, first.node)
