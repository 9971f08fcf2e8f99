"""Evidence and history as named facts, over which the conditions of rules speak (names: recovery.rules.facts)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from recovery import announced
from recovery.conditions import hardware_verdict, inner_error
from recovery.evidence import signal_number
from recovery.observed import Evidence
from recovery.past import History
from recovery.rules.ends import SIGNAL_NAMES
from recovery.rules.rule import FactValue

#: So many nodes with the same at once are no matter of a node. Source: labelling rule 7 of the cases.
MANY_NODES = 3

#: A GPU that clocks below this share of its peers' median is slow. Source: DOMAIN section 8, clocks.
SLOW_CLOCK_RATIO = 0.85

#: A run that made progress within so many seconds goes on.
MOVES_SECONDS = 120.0

HARDWARE_CHECKS = ("gpu", "rdma")
#: Reasons of a pod whose container has not started.
WAITING_REASONS = frozenset({"pending", "containercreating", "podinitializing"})
_LIVE_REASONS = frozenset({"", "running", "terminating", *WAITING_REASONS})
_HISTORY = tuple(field.name for field in fields(History) if field.name not in {"told", "places", "said"})


def facts_of(evidence: Evidence, history: History) -> dict[str, FactValue]:
    """Every fact that is known. What is not known is absent; sightings (``seen.*``) are added by the judge."""
    facts: dict[str, FactValue] = {}
    _ends(evidence, facts)
    for name, value in evidence.metrics.items():
        facts[f"metric.{name}"] = value
    clock, median = evidence.metrics.get("sm_clock_mhz"), evidence.metrics.get("sm_clock_median_mhz")
    if isinstance(clock, float) and isinstance(median, float) and median > 0:
        facts["clock.below_median"] = clock / median < SLOW_CLOCK_RATIO
    _checks(evidence.checks, facts)
    _ranks(evidence, facts)
    _nodes(evidence, history, facts)
    part, is_bad = hardware_verdict(evidence.conditions)
    if part:
        facts["condition.bad" if is_bad else "condition.degraded"] = part
    if evidence.conditions:
        facts |= {f"condition.{name}": value for name, value in inner_error(evidence.conditions).items()}
    facts |= announced.facts_of(evidence)
    if history.told:
        facts["past.told"] = True
        for name in _HISTORY:
            value = getattr(history, name)
            if value:
                facts[f"past.{name}"] = value
        if history.repeated:
            facts["past.repeated"] = True
        if history.places and announced.ends_at(evidence, history.places):
            facts |= {"past.same_point": True, "past.repeated": True, "past.count": max(2, history.count)}
            facts.pop("past.changing_point", None)
        if evidence.metrics.get("nodes_affected") == 1.0:
            facts.pop("past.all_nodes", None)
    if evidence.phase:
        facts["phase"] = evidence.phase
    if not any(line.strip() for line in evidence.log) and not evidence.kernel:
        facts["log.empty"] = True
    return facts


def makes_progress(facts: Mapping[str, FactValue]) -> bool:
    """Whether the run goes on: nothing ended, and steps are made, by their time or by what the log tells."""
    if not facts.get("exit.running") or facts.get("checks.hardware_failed"):
        return False
    idle = facts.get("metric.seconds_since_progress")
    return idle < MOVES_SECONDS if isinstance(idle, float) else bool(facts.get("seen.log.training"))


def _ends(evidence: Evidence, facts: dict[str, FactValue]) -> None:
    code, number = evidence.exit_code, signal_number(evidence.signal)
    if code is not None:
        facts["exit.code"] = code
        if number is None and 128 < code < 128 + 65:
            number = code - 128
        if number is None and -65 < code < 0:
            number = -code
    if number is not None:
        facts["exit.signal"] = SIGNAL_NAMES.get(number, f"SIGNAL {number}")
    reason = evidence.pod_reason.lower()
    if reason:
        facts["pod.reason"] = reason
    ended = (code is not None and code != 0) or number is not None or reason not in _LIVE_REASONS
    facts["exit.ended"] = ended
    facts["exit.running"] = not ended


def _checks(checks: Mapping[str, str], facts: dict[str, FactValue]) -> None:
    for name, result in checks.items():
        facts[f"check.{name}"] = result
    if not checks:
        return
    facts["checks.run"] = len(checks)
    facts["checks.clean"] = all(result == "pass" for result in checks.values())
    facts["checks.hardware_failed"] = any(checks.get(name) == "fail" for name in HARDWARE_CHECKS)


def _ranks(evidence: Evidence, facts: dict[str, FactValue]) -> None:
    if evidence.ranks:
        facts["ranks.told"] = len(evidence.ranks)
        facts["ranks.nodes"] = len({rank.node for rank in evidence.ranks if rank.node})


def _nodes(evidence: Evidence, history: History, facts: dict[str, FactValue]) -> None:
    affected = evidence.metrics.get("nodes_affected")
    if isinstance(affected, float):
        facts["nodes.affected"] = affected
        facts["nodes.many"] = affected >= MANY_NODES
        facts["nodes.one"] = affected == 1
    if (history.all_nodes or history.at_once) and not facts.get("nodes.one"):
        facts["nodes.many"] = True
    if history.only_here and not facts.get("nodes.many"):
        facts["nodes.one"] = True
