"""The verdicts on labelled failures, judged by their signals alone. The bars are those of the issue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apps.incidents.diagnosing import prediction, verdict_on
from recovery.rules.builtin import builtin_rules
from tests.cases.scoring import Score, cost, score

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "failures.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def predictions() -> dict[str, dict[str, Any]]:
    rules = builtin_rules()
    return {case["id"]: prediction(case["id"], verdict_on(case["signals"], rules)) for case in CASES}


@pytest.fixture(scope="module")
def reached(predictions: dict[str, dict[str, Any]]) -> Score:
    return score(CASES, predictions)


def test_actions_are_right_and_cheap(reached: Score) -> None:
    assert (reached.cases, sum(case["tricky"] for case in CASES)) == (160, 76)
    assert reached.action >= 0.95
    assert reached.tricky >= 0.92
    assert reached.cost <= 0.15


def test_no_healthy_node_is_isolated(reached: Score) -> None:
    assert reached.healthy_isolated == ()


def test_blame_and_culprit_are_right(predictions: dict[str, dict[str, Any]], reached: Score) -> None:
    assert reached.blame >= 0.95
    named = {
        case["id"]: case["expect"]["culprit_rank"]
        for case in CASES
        if case["expect"].get("culprit_rank") is not None
    }
    wrong = {case_id for case_id, rank in named.items() if predictions[case_id]["culprit_rank"] != rank}
    assert wrong == set()


def test_only_the_signals_are_read() -> None:
    case = CASES[0]
    other = {"id": "x", "signals": case["signals"], "expect": {"action": "fail_fast"}, "tricky": True}
    rules = builtin_rules()
    assert prediction("x", verdict_on(other["signals"], rules)) | {"id": case["id"]} == prediction(
        case["id"], verdict_on(case["signals"], rules)
    )


@pytest.mark.parametrize(
    ("due", "blame", "retryable", "taken", "price"),
    [
        ("restart_process", "none", True, "fail_fast", 5),
        ("fail_fast", "job", False, "isolate_node", 3),
        ("isolate_node", "node", True, "restart_container", 3),
        ("fail_fast", "job", False, "restart_process", 2),
        ("isolate_node", "node", True, "evict_at_checkpoint", 2),
        ("mark_hang", "none", True, "", 1),
        ("mark_hang", "none", True, "mark_hang", 0),
    ],
)
def test_price_of_a_wrong_action(due: str, blame: str, retryable: bool, taken: str, price: int) -> None:
    assert cost({"action": due, "blame": blame, "retryable": retryable}, taken) == price
