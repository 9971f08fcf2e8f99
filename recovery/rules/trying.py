"""Rules against their own examples: the linter's second half. Pure: it reads nothing but what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recovery import across_ranks
from recovery.facts import facts_of
from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.loading import Problem
from recovery.rules.rule import Origin, Rule, RuleSet
from recovery.scan import scan


def example_problems(rules: RuleSet, *, only: frozenset[str] | None = None) -> list[Problem]:
    """Examples that their rule does not hit, and counter-examples that it does. Empty = all is well."""
    problems = []
    for rule in rules.rules:
        if only is not None and rule.id not in only:
            continue
        for n, example in enumerate(rule.examples):
            if not _hits(rule, example, rules):
                problems.append(_problem(rule, f"examples[{n}]", "the rule does not hit it", example))
        for n, example in enumerate(rule.counter_examples):
            if _hits(rule, example, rules):
                problems.append(_problem(rule, f"counter_examples[{n}]", "the rule hits it", example))
    return problems


def _problem(rule: Rule, field: str, detail: str, example: Any) -> Problem:
    return Problem(rule.file, rule.line, rule.id, field, f"{detail}: {str(example)[:120]!r}")


def _hits(rule: Rule, example: Any, rules: RuleSet) -> bool:
    signals: Mapping[str, Any] = example if isinstance(example, Mapping) else {_home(rule): [example]}
    evidence = evidence_from_plain(signals)
    history = read_recurrence(str(signals.get("recurrence") or ""))
    seen = scan(evidence, rules)
    facts = facts_of(evidence, history)
    facts |= across_ranks.read(evidence, seen, rules).facts
    for n in seen.hits:
        for name in (rules.rules[n].id, *rules.rules[n].tags):
            facts[f"seen.{name}"] = True
    if facts.get("seen.log.training"):
        facts["log.silent"] = True
    has_lines = bool(seen.hits.get(rules.rules.index(rule))) if rule.patterns else True
    return has_lines and rule.applies(facts)


def _home(rule: Rule) -> str:
    """Where a bare line stands: in the log where the rule looks there, else where it does."""
    if Origin.LOG in rule.origins:
        return "log_tail"
    return "kernel_log" if Origin.KERNEL in rule.origins else "node_conditions"
