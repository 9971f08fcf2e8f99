"""Failures of programs, settings, memory, numbers, checkpoints and stores; see README.md for what the figures mean."""

from __future__ import annotations

import json
from collections.abc import Callable
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


PROGRAM = _cases("widen_program.jsonl")


@pytest.fixture(scope="module")
def reached() -> Score:
    rules = builtin_rules()
    return score(
        PROGRAM,
        {case["id"]: prediction(case["id"], verdict_on(case["signals"], rules)) for case in PROGRAM},
    )


def test_actions_are_right_and_cheap(reached: Score) -> None:
    assert reached.cases == len(PROGRAM)
    assert reached.action >= 0.97
    assert reached.tricky >= 0.97
    assert reached.blame >= 0.96
    assert reached.category >= 0.85
    assert reached.cost <= 0.06


def test_no_healthy_node_is_isolated(reached: Score) -> None:
    assert reached.healthy_isolated == ()


def test_none_is_a_case_of_another_file() -> None:
    known = {
        json.dumps(case["signals"], sort_keys=True)
        for name in ("failures.jsonl", "further.jsonl", "widen_hardware.jsonl")
        for case in _cases(name)
    }
    own = [json.dumps(case["signals"], sort_keys=True) for case in PROGRAM]
    assert len(set(own)) == len(own)
    assert known.isdisjoint(own)


def test_each_label_is_possible() -> None:
    ids = [case["id"] for case in PROGRAM]
    assert ids == sorted(set(ids))
    for case in PROGRAM:
        expect = case["expect"]
        assert expect["category"] in CATEGORIES, case["id"]
        assert not (expect["action"] == "fail_fast" and expect["retryable"]), case["id"]


DRESSES: dict[str, Callable[[str], str]] = {
    "torchrun": lambda line: f"[default3]:[rank11]: {line}",
    "json": lambda line: json.dumps({"level": "error", "rank": 3, "msg": line}),
    "colour": lambda line: "\x1b[31m" + line.replace(": ", "\x1b[0m: ", 1),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_what_launchers_put_around_lines_changes_no_verdict(dress: str) -> None:
    rules = builtin_rules()
    for case in PROGRAM[::4]:
        signals = case["signals"]
        dressed = signals | {"log_tail": [DRESSES[dress](line) for line in signals["log_tail"]]}
        plain, other = verdict_on(signals, rules), verdict_on(dressed, rules)
        assert (other.remedy, other.blame) == (plain.remedy, plain.blame), case["id"]
