"""Lines against patterns: first which runs of three characters there are at all, then each literal that has
one of them, and only then each rule on the lines that can match.

Untrusted input: what is read is bounded by lines, characters and steps; what was not read is counted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from recovery.observed import MAX_LINE, MAX_LINES, Evidence, is_well
from recovery.rules.rule import EvidenceClass, Origin, Remedy, Rule, RuleSet

#: Characters read of one failure; head and tail of what is longer.
MAX_CHARACTERS = 1_000_000
#: Characters of lines tried against patterns, over all rules.
MAX_STEPS = 4_000_000
MAX_LINES_OF_HIT = 20

#: A line that only warns: the program went on after it. CUDA tells of its start-up errors so, which count.
_WARNS = re.compile(r"(?:user|future|deprecation|resource|runtime|import)warning\b|\[warning\]")
_WARNS_IN_EARNEST = "cuda initialization"
_OF_THE_PROGRAM = frozenset({"user_code", "bad_config"})

#: Terminal colours, which stand in the middle of words. Source: ECMA-48, control sequences.
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")

#: A library's advice: it names what might be wrong on a machine, which is no evidence that it is.
_ADVISES = re.compile(
    r"\bhints?:|\b(?:possible|potential|likely|common|probable) (?:causes?|reasons?)\b"
    r"|\b(?:may|might|could|can) (?:also )?(?:be|have been) (?:due to|caused by|because|a result|the result|that)\b"
    r"|\b(?:this|it|which) (?:usually|often|typically|probably|generally) (?:means|is|happens|indicates|comes)\b"
    r"|\b(?:this|it|which) (?:may|might|could|can) (?:mean|indicate|happen|occur|suggest)\b"
    r"|\bplease (?:check|make sure|ensure|verify|see|confirm)\b|\bmake sure (?:that|the|your|it)\b"
    r"|\b(?:check|verify|ensure) (?:that|if|whether) \b"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line and where it stands; ``rank`` is set where a rank's own output holds it."""

    text: str
    origin: Origin
    n: int = 0
    rank: int | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """Which lines each rule hit (by place of the rule), and how much was not read."""

    hits: Mapping[int, tuple[Line, ...]] = field(default_factory=dict)
    unread_lines: int = 0
    unread_steps: int = 0


def lines_of(evidence: Evidence) -> tuple[list[Line], int]:
    """All lines of a failure in one order, and how many were left out."""
    lines = [Line(text, Origin.LOG, n) for n, text in enumerate(evidence.log)]
    lines += [Line(text, Origin.KERNEL, n) for n, text in enumerate(evidence.kernel)]
    lines += [Line(text, Origin.NODE, n) for n, text in enumerate(evidence.conditions) if not is_well(text)]
    if evidence.pod_reason:
        lines.append(Line(evidence.pod_reason, Origin.NODE, len(evidence.conditions)))
    for rank in evidence.ranks:
        lines += [Line(text, Origin.RANK, n, rank.rank, rank.node) for n, text in enumerate(rank.log)]
        if rank.pod_reason:
            lines.append(Line(rank.pod_reason, Origin.RANK, len(rank.log), rank.rank, rank.node))
    unread = evidence.unread_lines
    if len(lines) > MAX_LINES:
        unread += len(lines) - MAX_LINES
        lines = [*lines[: MAX_LINES // 2], *lines[-(MAX_LINES - MAX_LINES // 2) :]]
    total = sum(len(line.text) for line in lines)
    while total > MAX_CHARACTERS:
        gone = lines.pop(len(lines) // 2)
        total -= len(gone.text)
        unread += 1
    return lines, unread


def scan(evidence: Evidence, rules: RuleSet) -> Scan:
    """Every rule's lines. Bounded: when the budget of steps is used up, the rest is counted and not tried."""
    lines, unread = lines_of(evidence)
    if not lines:
        return Scan(unread_lines=unread)
    small, starts, place = ["\n"], [], 0
    for line in lines:
        starts.append(place)
        text = line.text[:MAX_LINE]
        if "\x1b" in text:
            text = _COLOURS.sub("", text)
        text = text.lower().replace("\n", " ").replace("\r", " ")
        small.append(text + "\n")
        place += len(text) + 1
    joined = "".join(small)
    hits: dict[int, list[Line]] = {}
    steps, untried = 0, 0
    grams = {joined[n : n + 3] for n in range(len(joined) - 2)} & rules.grams.keys()
    for literal in sorted(literal for gram in grams for literal in rules.grams[gram]):
        found = joined.find(literal)
        if found < 0:
            continue
        users = rules.literals[literal]
        tried: set[int] = set()
        while found >= 0:
            n = bisect_right(starts, found - 1) - 1 if found else 0
            begin = starts[n]
            end = starts[n + 1] + 1 if n + 1 < len(starts) else len(joined)
            if n not in tried:
                tried.add(n)
                cost = (end - begin) * len(users)
                if steps + cost > MAX_STEPS:
                    untried += len(users)
                else:
                    steps += cost
                    _try(rules, users, joined, begin, end, lines[n], hits)
            found = joined.find(literal, end - 1)
    return Scan({n: tuple(found) for n, found in hits.items()}, unread, untried)


def _try(
    rules: RuleSet, users: tuple[tuple[int, int], ...], joined: str, begin: int, end: int, line: Line,
    hits: dict[int, list[Line]],
) -> None:  # fmt: skip
    warns = _only_warns(joined, begin, end, line)
    said = _before_advice(joined, begin, end, line)
    for n, m in users:
        rule = rules.rules[n]
        if line.origin not in rule.origins and not (
            line.origin is Origin.RANK and Origin.LOG in rule.origins
        ):
            continue
        if warns and _ends_program(rule):
            continue
        known = hits.get(n)
        if known is not None and (len(known) >= MAX_LINES_OF_HIT or known[-1] is line):
            continue
        told = said if rule.remedy is Remedy.ISOLATE_NODE else end
        if rule.patterns[m].matches(joined, begin, told) and not any(
            exception.matches(joined, begin, end) for exception in rule.exceptions
        ):
            hits.setdefault(n, []).append(line)


def _only_warns(joined: str, begin: int, end: int, line: Line) -> bool:
    """Whether a line of a program's output is a warning of Python or of a logger."""
    return (
        line.origin in {Origin.LOG, Origin.RANK}
        and _WARNS.search(joined, begin, end) is not None
        and joined.find(_WARNS_IN_EARNEST, begin, end) < 0
    )


def _before_advice(joined: str, begin: int, end: int, line: Line) -> int:
    """Where a line of a program's output stops to tell what it met and begins to guess at causes."""
    if line.origin in {Origin.LOG, Origin.RANK} and (advice := _ADVISES.search(joined, begin, end)):
        return advice.start()
    return end


def _ends_program(rule: Rule) -> bool:
    """Whether the rule would give up for what the program or its settings did."""
    return (
        rule.remedy is Remedy.FAIL_FAST
        and rule.category in _OF_THE_PROGRAM
        and EvidenceClass.HINT <= rule.evidence_class <= EvidenceClass.LOG
    )
