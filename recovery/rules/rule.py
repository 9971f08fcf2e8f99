"""What a rule is: pattern or predicate, what it concludes, and in which context it concludes otherwise.

Rules are data (the TOML files beside this module, and an operator's own); recovery.rules.loading reads and
checks them. Source: DOMAIN section 7, docs/design/verdicts.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

from recovery.pattern import Pattern

if TYPE_CHECKING:
    from recovery.precedents import Precedents

type FactValue = bool | int | float | str
type Facts = Mapping[str, FactValue]

#: What a verdict names as its rule where labelled failures chose the remedy; no rule may be called so.
PRECEDENTS = "precedents"


class EvidenceClass(IntEnum):
    """What kind of evidence a rule rests on; the higher one wins."""

    BENIGN = 0  # looks like a failure and is none
    SYMPTOM = 1  # says that something else failed
    METRIC = 2  # the shape of numbers: suspicion
    HINT = 3  # a log line or error that names no cause by itself
    LOG = 4  # a log line that names its cause
    END = 5  # the container's end, the scheduler's or kubelet's word
    NODE = 6  # node conditions and out-of-band events
    DEVICE = 7  # kernel and device errors
    COMPARED = 8  # machines or releases compared: what fails here or with this one, and does not elsewhere
    CHECK = 9  # failed checks


class Remedy(StrEnum):
    """What would mend it, cheapest first; recovery.ladder turns it into actions."""

    RESTART_PROCESS = "restart_process"
    RESTART_CONTAINER = "restart_container"
    EVICT_AT_CHECKPOINT = "evict_at_checkpoint"
    ISOLATE_NODE = "isolate_node"
    MARK_HANG = "mark_hang"
    FAIL_FAST = "fail_fast"
    BACKOFF_SHARED = "backoff_shared"
    NEEDS_OPERATOR = "needs_operator"


class Blame(StrEnum):
    """Whose fault it is."""

    NODE = "node"
    JOB = "job"
    SHARED = "shared"
    NONE = "none"
    OTHER_RANK = "other_rank"


class Origin(StrEnum):
    """Where a line stands."""

    LOG = "log"  # the reporting worker's output
    KERNEL = "kernel"
    NODE = "node"  # node conditions and events
    RANK = "rank"  # what another rank wrote


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda fact, value: fact == value,
    "!=": lambda fact, value: fact != value,
    "<": lambda fact, value: fact < value,
    "<=": lambda fact, value: fact <= value,
    ">": lambda fact, value: fact > value,
    ">=": lambda fact, value: fact >= value,
    "in": lambda fact, value: fact in value,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One claim about the facts. A fact that is not known makes it false, and ``not NAME`` true."""

    text: str
    name: str
    operator: str = ""  # "" = the fact is there and true
    value: Any = None
    is_negated: bool = False

    def holds(self, facts: Facts) -> bool:
        """Whether it is so."""
        fact = facts.get(self.name)
        if not self.operator:
            return bool(fact) is not self.is_negated
        if fact is None:
            return False
        if isinstance(self.value, float) and (isinstance(fact, bool | str)):
            return False
        return _OPERATORS[self.operator](fact, self.value)


#: Facts that nearly every failure has.
_COMMON = ("exit.", "phase", "checks.")
#: A number that a reason says, e.g. {metric.jobs_failing_alike}.
SAID = re.compile(r"\{(metric\.[a-z0-9_.-]+)\}")


def said(reason: str, facts: Facts) -> str:
    """A reason with its numbers."""
    if "{" not in reason:
        return reason

    def number(match: re.Match[str]) -> str:
        fact = facts.get(match[1])
        return f"{fact:g}" if isinstance(fact, int | float) else str(fact or "?")

    return SAID.sub(number, reason)


@dataclass(frozen=True, slots=True)
class When:
    """In this context the rule concludes otherwise; None = as the rule says."""

    conditions: tuple[Condition, ...]
    reason: str
    category: str | None = None
    remedy: Remedy | None = None
    blame: Blame | None = None

    def holds(self, facts: Facts) -> bool:
        """Whether all its conditions do."""
        for condition in self.conditions:  # noqa: SIM110 (a loop: a verdict spends its time here)
            if not condition.holds(facts):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. A *mark* only lays down facts (``seen.<id>`` and its tags) for the conditions of others.

    ``order`` is its place over all files, an operator's after the built-in ones. ``exit`` tells how a machine
    comes back that it isolated. ``refine`` lists categories of weaker hits that name the failure better.
    ``means`` is what its category means here, where the category's own words would mislead.
    """

    id: str
    order: int
    reason: str
    source: str
    evidence_class: EvidenceClass
    specificity: int = 50
    is_mark: bool = False
    category: str = ""
    remedy: Remedy | None = None
    blame: Blame | None = None
    patterns: tuple[Pattern, ...] = ()
    exceptions: tuple[Pattern, ...] = ()  # a line that also matches one of these is no hit
    origins: frozenset[Origin] = frozenset(Origin)
    conditions: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()
    when: tuple[When, ...] = ()
    tags: tuple[str, ...] = ()
    refine: tuple[str, ...] = ()
    exit: str = ""
    means: str = ""
    examples: tuple[Any, ...] = ()
    counter_examples: tuple[Any, ...] = ()
    file: str = ""
    line: int = 0

    def applies(self, facts: Facts) -> bool:
        """Whether its conditions hold and none of ``unless`` does."""
        for condition in self.conditions:  # loops: a verdict spends its time here
            if not condition.holds(facts):
                return False
        for condition in self.unless:  # noqa: SIM110
            if condition.holds(facts):
                return False
        return True

    @property
    def needs(self) -> str:
        """A fact without which it never applies, the less common the better; "" where there is none."""
        positive = [condition.name for condition in self.conditions if not condition.is_negated]
        return next((name for name in positive if not name.startswith(_COMMON)), (*positive, "")[0])

    @property
    def isolates(self) -> bool:
        """Whether it may take a machine out."""
        takes_out = {Remedy.ISOLATE_NODE, Remedy.EVICT_AT_CHECKPOINT}
        return self.remedy in takes_out or any(case.remedy in takes_out for case in self.when)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in their order, and the index of literals by which lines are searched."""

    rules: tuple[Rule, ...]
    exits: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, tuple[When, ...]] = field(default_factory=dict)
    digest: str = ""
    literals: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)  # -> (rule, pattern)
    grams: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # three characters -> literals with them
    predicates: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # rules without a pattern, by a fact that each needs
    own: frozenset[str] = frozenset()  # ids of an operator's rules, which no precedent overrules
    precedents: Precedents | None = None

    @classmethod
    def of(
        cls,
        rules: Sequence[Rule],
        exits: Mapping[str, str],
        contexts: Mapping[str, tuple[When, ...]],
        digest: str = "",
    ) -> RuleSet:
        """Index the patterns: each by its rarest literal, so that few are tried where none can match."""
        shared: dict[str, int] = {}
        for rule in rules:
            for pattern in rule.patterns:
                for literal in set(pattern.literals):
                    shared[literal] = shared.get(literal, 0) + 1
        index: dict[str, list[tuple[int, int]]] = {}
        for n, rule in enumerate(rules):
            for m, pattern in enumerate(rule.patterns):
                best = min(pattern.literals, key=lambda literal: (shared[literal], -len(literal), literal))
                index.setdefault(best, []).append((n, m))
        return cls(
            tuple(rules),
            dict(exits),
            dict(contexts),
            digest,
            {literal: tuple(users) for literal, users in sorted(index.items())},
            _by_gram(index),
            _by_need(rules),
        )

    def named(self, rule_id: str) -> Rule | None:
        """The rule of this id, or None."""
        return next((rule for rule in self.rules if rule.id == rule_id), None)


def _by_need(rules: Sequence[Rule]) -> dict[str, tuple[int, ...]]:
    """The rules without a pattern under a fact without which they do not apply."""
    index: dict[str, tuple[int, ...]] = {}
    for n, rule in enumerate(rules):
        if not rule.patterns and not rule.is_mark:
            index[rule.needs] = (*index.get(rule.needs, ()), n)
    return index


def _by_gram(literals: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Each literal under that of its runs of three characters which the fewest literals share."""
    grams = {literal: {literal[n : n + 3] for n in range(len(literal) - 2)} for literal in literals}
    shared: dict[str, int] = {}
    for found in grams.values():
        for gram in found:
            shared[gram] = shared.get(gram, 0) + 1
    index: dict[str, list[str]] = {}
    for literal in sorted(grams):
        index.setdefault(min(grams[literal], key=lambda gram: (shared[gram], gram)), []).append(literal)
    return {gram: tuple(found) for gram, found in index.items()}
