"""Real failures on real processes through the whole desk (`./desk drill NAME` runs the same)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.drills.conftest import EVERY_RUN, LONG_RUN, PRODUCTION_RUN

pytestmark = [pytest.mark.drill, pytest.mark.timeout(3000)]


@pytest.mark.parametrize("name", EVERY_RUN)
def test_drill_ends_well(name: str, drill_results: dict[str, Any]) -> None:
    assert name in drill_results, f"the drill did not run:\n{drill_results['_output']}"
    assert drill_results[name]["ok"], f"{drill_results[name].get('failure')}\n{drill_results['_output']}"


@pytest.mark.long
@pytest.mark.parametrize("name", LONG_RUN)
def test_long_drill_ends_well(name: str, drill_results: dict[str, Any]) -> None:
    assert drill_results[name]["ok"], f"{drill_results[name].get('failure')}\n{drill_results['_output']}"


@pytest.mark.long
@pytest.mark.parametrize("name", PRODUCTION_RUN)
def test_drill_with_production_times_ends_well(name: str, production_results: dict[str, Any]) -> None:
    assert name in production_results, production_results["_output"]
    assert production_results[name]["ok"], (
        f"{production_results[name].get('failure')}\n{production_results['_output']}"
    )


@pytest.mark.parametrize("name", ["kill-process", "pod-deleted"])
def test_one_failure_is_counted_and_levelled_at_the_restart(name: str, drill_results: dict[str, Any]) -> None:
    assert drill_results[name]["history"] == "1:0:0 → 1:1:1"


def test_counters_go_as_in_the_worked_example(drill_results: dict[str, Any]) -> None:
    expected = "0:0:0 → 1:0:0 → 1:1:1 → 1:2:1 → 2:2:2 → 2:2:3"
    assert drill_results["max-retry"]["history"] == expected


def test_whoever_reached_a_named_point_was_killed_there(drill_results: dict[str, Any]) -> None:
    victims = {cell["point"]: cell["victim"] for cell in drill_results["crash-points"]["cells"]}
    assert victims["signal_committed"] == "web"
    assert victims["signal_committed (watch)"] == "watch"
    assert victims["action_claimed"] == "worker"
    assert victims["decision_before_commit"] in ("decide", "worker")
    assert len(victims) == 9


def test_run_of_all_drills_exits_with_success(drill_results: dict[str, Any]) -> None:
    assert drill_results["_code"] == 0, drill_results["_output"]
