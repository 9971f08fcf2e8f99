"""Predictions against labels: how often the action is right, and what the wrong ones cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: (due action, taken action) -> cost, where the label alone decides; see ``cost`` for the rest.
_RESTARTS = frozenset({"restart_process", "restart_container"})


@dataclass(frozen=True, slots=True)
class Score:
    """Shares in [0, 1], and the mean cost of a case (0 = every action right)."""

    cases: int
    action: float
    blame: float
    category: float
    tricky: float
    cost: float
    healthy_isolated: tuple[str, ...]


def cost(expect: Mapping[str, Any], taken: str) -> int:
    """What a wrong action costs: stopping a job that could go on is the dearest, then a wrong machine."""
    due = expect["action"]
    if taken == due:
        return 0
    if taken == "fail_fast" and expect["retryable"]:
        return 5
    if taken == "isolate_node" and expect["blame"] != "node":
        return 3
    if due == "isolate_node" and taken in _RESTARTS:
        return 3
    futile = due == "fail_fast" and taken in _RESTARTS
    too_late = due == "isolate_node" and taken == "evict_at_checkpoint"
    return 2 if futile or too_late else 1


def score(cases: Sequence[Mapping[str, Any]], predictions: Mapping[str, Mapping[str, Any]]) -> Score:
    """Compare; a case without prediction is wrong and costs 1."""
    pairs = [(case, predictions.get(case["id"], {})) for case in cases]

    def share(name: str, among: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float:
        return sum(told.get(name) == case["expect"][name] for case, told in among) / max(1, len(among))

    return Score(
        cases=len(pairs),
        action=share("action", pairs),
        blame=share("blame", pairs),
        category=share("category", pairs),
        tricky=share("action", [pair for pair in pairs if pair[0]["tricky"]]),
        cost=sum(cost(case["expect"], told.get("action", "")) for case, told in pairs) / max(1, len(pairs)),
        healthy_isolated=tuple(
            case["id"]
            for case, told in pairs
            if told.get("action") == "isolate_node" and case["expect"]["blame"] != "node"
        ),
    )
