"""Labelled failures of a second collection, first measured and then told in principles only; see README.md."""

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


SECOND = _cases("second.jsonl")
#: Told in principles after their first measure.
TOLD = [case for case in SECOND if case["id"] < "k109"]
#: Never told, only measured: the nearest to a failure that nobody has described.
MEASURED_ONLY = [case for case in SECOND if case["id"] >= "k109"]


@pytest.fixture(scope="module")
def predictions() -> dict[str, dict[str, Any]]:
    rules = builtin_rules()
    return {case["id"]: prediction(case["id"], verdict_on(case["signals"], rules)) for case in SECOND}


def test_those_that_were_told_in_principles(predictions: dict[str, dict[str, Any]]) -> None:
    reached = score(TOLD, predictions)
    assert reached.cases == 108
    assert reached.action >= 0.92
    assert reached.tricky >= 0.90
    assert reached.blame >= 0.90
    assert reached.cost <= 0.15
    assert len(reached.healthy_isolated) <= 1


def test_those_that_were_only_measured(predictions: dict[str, dict[str, Any]]) -> None:
    reached = score(MEASURED_ONLY, predictions)
    assert reached.cases == 59
    assert reached.action >= 0.81
    assert reached.tricky >= 0.77
    assert reached.blame >= 0.89
    assert reached.cost <= 0.27
    assert len(reached.healthy_isolated) <= 1


def test_none_is_a_case_of_another_file() -> None:
    known = {
        json.dumps(case["signals"], sort_keys=True)
        for name in ("failures.jsonl", "further.jsonl", "widen_hardware.jsonl", "widen_program.jsonl")
        for case in _cases(name)
    }
    second = [json.dumps(case["signals"], sort_keys=True) for case in SECOND]
    assert len(set(second)) == len(second)
    assert known.isdisjoint(second)


def test_each_label_is_possible() -> None:
    """What no verdict could ever match would only lower the figures."""
    ids = [case["id"] for case in SECOND]
    assert ids == sorted(set(ids))
    for case in SECOND:
        expect = case["expect"]
        assert expect["category"] in CATEGORIES, case["id"]
        assert not (expect["action"] == "fail_fast" and expect["retryable"]), case["id"]
        assert expect["blame"] == "node" or expect["action"] not in {"isolate_node", "evict_at_checkpoint"}, (
            case["id"]
        )
