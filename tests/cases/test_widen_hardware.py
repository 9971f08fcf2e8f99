"""Failures of machines, their fabrics and what runs containers on them; see README.md for what the figures mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apps.incidents.diagnosing import prediction, verdict_on
from recovery.rules.builtin import builtin_rules
from recovery.rules.categories import CATEGORIES
from tests.cases.scoring import Score, score

HERE = Path(__file__).parent


def _cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


HARDWARE = _cases("widen_hardware.jsonl")


@pytest.fixture(scope="module")
def reached() -> Score:
    rules = builtin_rules()
    return score(
        HARDWARE,
        {case["id"]: prediction(case["id"], verdict_on(case["signals"], rules)) for case in HARDWARE},
    )


def test_actions_are_right_and_cheap(reached: Score) -> None:
    assert reached.cases == len(HARDWARE)
    assert reached.action >= 0.97
    assert reached.tricky >= 0.97
    assert reached.blame >= 0.97
    assert reached.category >= 0.95
    assert reached.cost <= 0.06


def test_no_healthy_node_is_isolated(reached: Score) -> None:
    assert reached.healthy_isolated == ()


def test_none_is_a_case_of_another_file() -> None:
    known = {
        json.dumps(case["signals"], sort_keys=True)
        for name in ("failures.jsonl", "further.jsonl")
        for case in _cases(name)
    }
    own = [json.dumps(case["signals"], sort_keys=True) for case in HARDWARE]
    assert len(set(own)) == len(own)
    assert known.isdisjoint(own)


def test_each_label_is_possible() -> None:
    ids = [case["id"] for case in HARDWARE]
    assert ids == sorted(set(ids))
    for case in HARDWARE:
        expect = case["expect"]
        assert expect["category"] in CATEGORIES, case["id"]
        assert not (expect["action"] == "fail_fast" and expect["retryable"]), case["id"]
        assert expect["blame"] == "node" or expect["action"] not in {"isolate_node", "evict_at_checkpoint"}, (
            case["id"]
        )
