"""Labelled failures beyond the sample, collection by collection; see README.md for what their figures mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from apps.incidents.diagnosing import prediction, verdict_on
from recovery.rules.builtin import builtin_rules
from recovery.rules.categories import CATEGORIES
from tests.cases.judged import FILES, cases, verdicts
from tests.cases.scoring import score


@dataclass(frozen=True)
class Bar:
    """What the cases from ``first`` up to ``last`` of a file reach at least, and cost a case at most."""

    file: str
    first: str
    last: str
    cases: int
    action: float
    cost: float
    tricky: float = 0.0
    blame: float = 0.0
    category: float = 0.0
    healthy_isolated: int = 0


BARS = {
    "blind-told-in-principles": Bar("blind.jsonl", "m001", "t090", 330, 0.98, 0.03, 0.97, 0.95, 0.84),
    "blind-learned-from": Bar("blind.jsonl", "u001", "u080", 80, 0.93, 0.10, 0.92, 0.90, 0.70, 1),
    "blind-second": Bar("blind_second.jsonl", "a001", "z110", 619, 0.95, 0.09, 0.94, 0.92, 0.78, 6),
    "further": Bar("further.jsonl", "h001", "h282", 271, 0.98, 0.04, 0.98, 0.96),
    "further-first-measured": Bar("further.jsonl", "h221", "h282", 62, 0.96, 0.06),
    "second-told-in-principles": Bar("second.jsonl", "k001", "k108", 108, 0.98, 0.04, 0.98, 0.92),
    "second-first-measured": Bar("second.jsonl", "k109", "k167", 59, 0.98, 0.04, 0.98, 0.96),
    "machines": Bar("machines.jsonl", "w001", "w470", 279, 0.98, 0.03, 0.98, 0.98, 0.96),
    "principles": Bar("principles.jsonl", "r001", "s082", 1081, 0.98, 0.03, 0.98, 0.97, 0.93),
    "programs": Bar("programs.jsonl", "p001", "p424", 275, 0.98, 0.03, 0.98, 0.96, 0.88),
}


@cache
def predictions(name: str) -> dict[str, dict[str, Any]]:
    judged = zip(cases(name), verdicts(name), strict=True)
    return {case["id"]: prediction(case["id"], verdict) for case, verdict in judged}


@pytest.mark.parametrize("bar", BARS.values(), ids=BARS)
def test_collection_reaches_its_bar(bar: Bar) -> None:
    chosen = [case for case in cases(bar.file) if bar.first <= case["id"] <= bar.last]
    reached = score(chosen, predictions(bar.file))
    assert reached.cases == bar.cases
    assert reached.action >= bar.action
    assert reached.tricky >= bar.tricky
    assert reached.blame >= bar.blame
    assert reached.category >= bar.category
    assert reached.cost <= bar.cost
    assert len(reached.healthy_isolated) <= bar.healthy_isolated


def test_rules_by_themselves_reach_their_bar_on_failures_that_none_was_written_for() -> None:
    """Precedents have learned from these, so with them the figure is memory; this one is not."""
    alone = replace(builtin_rules(), precedents=None)
    second = cases("blind_second.jsonl")
    told = {case["id"]: prediction(case["id"], verdict_on(case["signals"], alone)) for case in second}
    reached = score(second, told)
    assert reached.action >= 0.77
    assert reached.cost <= 0.51


def test_no_case_stands_twice() -> None:
    signals = [json.dumps(case["signals"], sort_keys=True) for name in FILES for case in cases(name)]
    assert len(set(signals)) == len(signals)


@pytest.mark.parametrize("name", FILES)
def test_each_label_is_possible(name: str) -> None:
    """What no verdict could ever match would only lower the figures."""
    ids = [case["id"] for case in cases(name)]
    assert ids == sorted(set(ids))
    for case in cases(name):
        expect = case["expect"]
        assert case["why"], case["id"]
        assert expect["category"] in CATEGORIES, case["id"]
        assert not (expect["action"] == "fail_fast" and expect["retryable"]), case["id"]
        takes_node_out = expect["action"] in {"isolate_node", "evict_at_checkpoint"}
        assert expect["blame"] == "node" or not takes_node_out, case["id"]


DRESSES: dict[str, Callable[[str], str]] = {
    "torchrun": lambda line: f"[default3]:[rank11]: {line}",
    "json": lambda line: json.dumps({"level": "error", "rank": 3, "msg": line}),
    "color": lambda line: "\x1b[31m" + line.replace(": ", "\x1b[0m: ", 1),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_what_launchers_put_around_lines_changes_no_verdict(dress: str) -> None:
    rules = builtin_rules()
    name = "programs.jsonl"
    for case, plain in [*zip(cases(name), verdicts(name), strict=True)][::4]:
        signals = case["signals"]
        dressed = signals | {"log_tail": [DRESSES[dress](line) for line in signals["log_tail"]]}
        other = verdict_on(dressed, rules)
        assert (other.remedy, other.blame) == (plain.remedy, plain.blame), case["id"]
