"""Further labelled failures, from other threads and documents; see README.md for what their figures mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apps.incidents.diagnosing import prediction, verdict_on
from recovery.rules.builtin import builtin_rules
from recovery.rules.categories import CATEGORIES
from tests.cases.scoring import score

HERE = Path(__file__).parent


def _cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


FURTHER = _cases("further.jsonl")
#: The cases that were only measured: the nearest to a failure that nobody has described.
MEASURED_ONLY = [case for case in FURTHER if case["id"] > "h220"]


@pytest.fixture(scope="module")
def predictions() -> dict[str, dict[str, Any]]:
    rules = builtin_rules()
    return {case["id"]: prediction(case["id"], verdict_on(case["signals"], rules)) for case in FURTHER}


def test_all_together(predictions: dict[str, dict[str, Any]]) -> None:
    reached = score(FURTHER, predictions)
    assert reached.cases == 271
    assert reached.action >= 0.90
    assert reached.tricky >= 0.89
    assert reached.blame >= 0.91
    assert reached.cost <= 0.22
    assert len(reached.healthy_isolated) <= 1


def test_those_that_were_only_measured(predictions: dict[str, dict[str, Any]]) -> None:
    reached = score(MEASURED_ONLY, predictions)
    assert reached.cases == 62
    assert reached.action >= 0.78
    assert reached.cost <= 0.58
    assert len(reached.healthy_isolated) <= 1


def test_none_is_a_sample_case_again() -> None:
    known = {json.dumps(case["signals"], sort_keys=True) for case in _cases("failures.jsonl")}
    further = [json.dumps(case["signals"], sort_keys=True) for case in FURTHER]
    assert len(set(further)) == len(further)
    assert known.isdisjoint(further)


def test_each_label_is_possible() -> None:
    """What no verdict could ever match would only lower the figures."""
    ids = [case["id"] for case in FURTHER]
    assert ids == sorted(set(ids))
    for case in FURTHER:
        expect = case["expect"]
        assert expect["category"] in CATEGORIES, case["id"]
        assert not (expect["action"] == "fail_fast" and expect["retryable"]), case["id"]
        assert expect["blame"] == "node" or expect["action"] not in {"isolate_node", "evict_at_checkpoint"}, (
            case["id"]
        )
