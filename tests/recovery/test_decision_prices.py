from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from recovery.decision_prices import (
    ASSUMED_CONTAINER_SECONDS,
    ASSUMED_START_SECONDS,
    price_restart,
    price_standstill,
    start_seconds,
    step_seconds,
    steps_lost,
)
from recovery.figures import Basis, assumed, estimated, measured
from recovery.lifecycle import ActionKind
from recovery.records import AttemptView, CheckpointView, IncarnationView, PastAttempt
from recovery.serialize import decision_from_plain, to_plain
from recovery.signals import SignalKind, WorkerKey
from tests.recovery.desk import START, Desk, committed

ATTEMPT = AttemptView(3, 9, START, first_step_at=START + timedelta(seconds=4), step_seconds=0.2)


def past(n: int, start: float | None) -> PastAttempt:
    first = None if start is None else START + timedelta(seconds=start)
    return PastAttempt(
        n, START, START + timedelta(hours=1), "hang", True, None, "", 10, 0, first_step_at=first
    )


def life(index: int, seconds: float | None, *, is_current: bool = True) -> IncarnationView:
    return IncarnationView(
        index,
        WorkerKey("worker", index),
        f"pod-{index}",
        0,
        "n",
        START,
        is_current=is_current,
        step_seconds=seconds,
    )


def test_steps_since_the_newest_committed_checkpoint_are_lost() -> None:
    assert steps_lost(3388, committed(3300)).value == 88
    assert steps_lost(3388, committed(3300)).basis is Basis.MEASURED
    assert steps_lost(3300, committed(3388)).value == 0
    unknown = steps_lost(3388, None)
    assert (unknown.value, unknown.basis) == (3388, Basis.ASSUMED)


def test_step_time_is_the_attempts_else_what_its_workers_tell() -> None:
    assert step_seconds(ATTEMPT, ()) == measured(0.2, "this attempt")
    lives = (life(0, 0.1), life(1, 0.3), life(2, None), life(3, 9.0, is_current=False))
    found = step_seconds(None, lives)
    assert found is not None
    assert found.value == pytest.approx(0.2)
    assert step_seconds(None, (life(0, None),)) is None


def test_restart_is_as_long_as_this_jobs_starts_were_and_the_first_one_does_not_count() -> None:
    found = start_seconds(ATTEMPT, (past(1, 90), past(2, 6)))
    assert (found.value, found.basis) == (5, Basis.ESTIMATED)
    assert found.source == "median of 2 starts of this job"
    assert start_seconds(None, (past(1, 90),)).value == 90
    never = start_seconds(None, (past(1, None),))
    assert (never.value, never.basis) == (ASSUMED_START_SECONDS, Basis.ASSUMED)
    assert start_seconds(None, tuple(past(n, 10 * n) for n in range(2, 12))).value == 90, "the newest five"


def test_restart_in_place_stands_beside_a_new_container() -> None:
    choice = price_restart(
        gpus=24,
        lost=measured(88),
        step=measured(0.2),
        start=estimated(5),
        wait_seconds=2,
        why="checks are clean",
    )
    assert choice is not None
    assert choice.chosen == "restart_process"
    in_place, container = choice.prices
    assert in_place.gpu_seconds == pytest.approx(24 * (17.6 + 5 + 2))
    assert container.gpu_seconds == pytest.approx(in_place.gpu_seconds + 24 * ASSUMED_CONTAINER_SECONDS)
    assert (in_place.basis, container.basis) == (Basis.ESTIMATED, Basis.ASSUMED)
    assert choice.words == (
        "restart process 0.16 GPU-hours (estimated), restart container 0.5 GPU-hours (assumed)"
    )


@pytest.mark.parametrize("missing", ["gpus", "lost", "step"])
def test_no_price_where_it_is_not_known(missing: str) -> None:
    given = {"gpus": 8, "lost": measured(1), "step": measured(1), missing: 0 if missing == "gpus" else None}
    assert price_restart(**given, start=assumed(1), wait_seconds=0, why="") is None  # type: ignore[arg-type]


def test_suspected_hang_has_both_prices_and_says_what_it_was_judged_as() -> None:
    """R34: the stage of training that was judged is shown."""

    def priced(still: object, allowed: object) -> object:
        return price_standstill(
            gpus=8, lost=measured(100), step=measured(1), start=estimated(10), still_seconds=still,
            allowed_seconds=allowed, judged_as="evaluation", now=START,
        )  # fmt: skip

    choice = priced(1900, 1800)
    assert choice is not None
    assert "judged as evaluation" in choice.why  # type: ignore[attr-defined]
    assert [price.gpu_seconds for price in choice.prices] == [8 * 110, 8 * 0.5 * (1700 + 110)]  # type: ignore[attr-defined]
    for nonsense in ("soon", None, True, float("nan"), -1):
        assert priced(nonsense, 1800) is None
        assert priced(1900, nonsense) is None


def stepping(gpus: int) -> Desk:
    """A job that has reached step 3388, 88 steps of 0.2 s after its newest checkpoint."""
    desk = Desk()
    desk.start()
    desk.state = replace(desk.state, gpus=gpus, checkpoints=(committed(3300),))
    desk.now += timedelta(seconds=60)
    desk.heartbeat(0, 1, 2, step=3388)
    return desk


def test_decision_to_restart_carries_both_prices_and_its_timeline_says_them() -> None:
    desk = stepping(24)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    decision = desk.decide()
    (wanted,) = [action for action in decision.actions if action.kind is ActionKind.RESTART_PROCESS]
    in_place, container = wanted.price["options"]
    assert in_place["option"] == wanted.price["chosen"] == "restart_process"
    again, restart = in_place["parts"]
    assert (again["name"], again["seconds"], again["gpus"], again["basis"]) == (
        "computed again",
        17.6,
        24,
        "measured",
    )
    assert restart["basis"] == "estimated", "from this job's own start"
    assert container["option"] == "restart_container"
    assert container["gpu_seconds"] > in_place["gpu_seconds"]
    (line,) = [entry.text for entry in decision.timeline if entry.kind == "decided"]
    assert "Costs: restart process 0.1" in line
    assert "GPU-hours (estimated), restart container" in line
    assert decision_from_plain(to_plain(decision)) == decision, "what is stored replays alike"


def test_checkpoint_that_was_begun_and_never_committed_saves_no_step() -> None:
    """R33: a dangling checkpoint belongs to its attempt, and nothing is priced by it."""
    desk = stepping(24)
    dangling = CheckpointView(3380, "/checkpoints/step-00003380", "written", START)
    desk.state = replace(desk.state, checkpoints=(dangling, committed(3300)))
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    (wanted,) = desk.decide().actions
    assert wanted.price["options"][0]["parts"][0]["seconds"] == 17.6


def test_decision_says_no_price_where_the_size_of_the_job_is_not_known() -> None:
    desk = stepping(0)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    decision = desk.decide()
    assert [dict(action.price) for action in decision.actions] == [{}]
    assert not any("Costs" in entry.text for entry in decision.timeline)


def test_job_that_is_only_observed_is_told_what_a_restart_would_have_cost() -> None:
    desk = stepping(24)
    assert desk.state.job is not None
    desk.state = replace(desk.state, job=replace(desk.state.job, protected=False))
    desk.kill(0)
    decision = desk.decide()
    (refused,) = [action for action in decision.actions if action.kind is ActionKind.RESTART_PROCESS]
    assert refused.refused_because
    assert refused.price["chosen"] == "restart_process"


def test_suspected_hang_is_not_acted_on_and_the_decision_says_both_prices() -> None:
    desk = stepping(24)
    data = {"seconds_since_progress": 1900, "step": 3388, "judged_as": "evaluation", "allowed_seconds": 1800}
    desk.agent(1, SignalKind.HANG, {**data, "confirmed": False})
    decision = desk.decide()
    assert decision.actions == ()
    (considered,) = [each for each in decision.considered if each.remedy == "restart_process"]
    assert "nothing is killed on a suspicion" in considered.refused_because
    assert "judged as evaluation" in considered.refused_because
    assert "stop and restart now 0.1" in considered.refused_because
    assert "wait for confirmation 5.7 GPU-hours (assumed)" in considered.refused_because
