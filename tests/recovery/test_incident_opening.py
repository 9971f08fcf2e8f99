"""What opens an incident, reopens it or joins it: failures, suspected hangs, a stop on request."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from recovery.evidence import Fact, Role, ended_alike
from recovery.lifecycle import ActionKind, IncidentState, Resolution
from recovery.phases import Phase
from recovery.signals import SignalKind, Source
from tests.recovery.desk import started

STOP = ActionKind.STOP_JOB


def test_relapse_while_watching_goes_on_in_the_same_incident() -> None:
    desk = started(max_retry=5)
    desk.kill(0)
    desk.decide()
    desk.recover()
    assert desk.incident.state is IncidentState.WATCHING
    desk.now += timedelta(seconds=1)
    desk.fail(1)
    desk.decide()
    assert (desk.incident.state, desk.incidents) == (IncidentState.OPEN, 1)
    assert set(desk.incident.causes) == {"process_killed", "unknown"}
    desk.recover()
    desk.keep_stepping(4, 3400)
    assert desk.incident.state is IncidentState.RESOLVED


@pytest.mark.parametrize(
    ("seconds", "signal", "incidents", "state"),
    [(30, 9, 1, "reopened"), (30, 11, 2, "another"), (120, 9, 2, "closed before")],
    ids=["same cause within the window", "another cause", "same cause after the window"],
)
def test_failure_after_the_resolution_reopens_only_for_the_same_cause_in_time(
    seconds: int, signal: int, incidents: int, state: str
) -> None:
    desk = started(max_retry=5)
    desk.kill(0)
    desk.decide()
    desk.recover()
    desk.keep_stepping(4, 3400)
    assert desk.incident.state is IncidentState.RESOLVED
    desk.wait(seconds)
    desk.kill(0, signal)
    desk.decide()
    assert desk.incidents == incidents, state
    assert desk.incident.state is IncidentState.OPEN


@pytest.mark.parametrize(
    ("index", "exit_code", "incidents"),
    [(0, 3, 1), (0, 4, 2), (1, 3, 2)],
    ids=["same worker, same exit code", "another exit code", "another worker on another node"],
)
def test_two_causes_that_are_not_known_are_the_same_only_where_they_ended_alike(
    index: int, exit_code: int, incidents: int
) -> None:
    desk = started(max_retry=5)
    desk.fail(0, exit_code=3)
    desk.decide()
    desk.recover()
    desk.keep_stepping(4, 3400)
    assert (desk.incident.state, desk.incident.causes) == (IncidentState.RESOLVED, ("unknown",))
    desk.wait(30)
    desk.fail(index, exit_code=exit_code)
    decision = desk.decide()
    assert decision.incident is not None
    is_another = incidents == 2
    assert (decision.incident.opens, decision.incident.closes_resolved) == (is_another, is_another)
    assert decision.incident.reopens is not is_another
    assert (desk.incidents, desk.incident.state) == (incidents, IncidentState.OPEN)


def test_cause_that_is_not_known_reopens_on_the_same_node_whichever_worker_runs_there() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    says = "Process of worker 1 ended in error (exit code 3) on gpu-4"
    one = Fact(1, at, 1, Role.CAUSE, "end.unknown", "unknown", says, 0.2, worker="worker 1", node="gpu-4")
    other = replace(
        one, text="Process of worker 12 ended in error (exit code 3) on gpu-4", worker="worker 12"
    )
    assert ended_alike(one, other)
    assert not ended_alike(one, replace(other, text=other.text.replace("gpu-4", "gpu-5"), node="gpu-5"))
    assert not ended_alike(one, replace(other, text=other.text.replace("code 3", "code 4")))
    assert not ended_alike(replace(one, node=""), replace(other, node=""))


def test_suspected_hang_kills_nothing_and_is_cleared_by_a_step() -> None:
    desk = started()
    desk.now += timedelta(seconds=30)
    desk.agent(1, SignalKind.HANG, {"confirmed": False, "step": 9, "seconds_since_progress": 30})
    decision = desk.decide()
    assert (desk.job.phase, decision.orders, desk.counts) == (Phase.RUN_COMMAND, (), [])
    assert desk.incident.state is IncidentState.SUSPECTED
    desk.now += timedelta(seconds=1)
    desk.keep_stepping(3.0, 10)
    assert (desk.incident.state, desk.incident.resolution) == (
        IncidentState.RESOLVED,
        Resolution.FALSE_ALARM,
    )


def test_confirmed_hang_counts_once_and_recovers_in_place() -> None:
    desk = started()
    desk.agent(1, SignalKind.HANG, {"confirmed": False})
    desk.decide()
    desk.agent(1, SignalKind.HANG, {"confirmed": True, "step": 9, "seconds_since_progress": 60})
    desk.agent(2, SignalKind.HANG, {"confirmed": True, "step": 9, "seconds_since_progress": 60})
    desk.decide()
    assert desk.counts == [(1, 1, "hang")]
    assert desk.incident.state is IncidentState.OPEN
    desk.recover()
    assert desk.incident.state is IncidentState.WATCHING
    assert desk.incidents == 1


def test_stop_on_request_is_an_action_whose_effect_is_seen() -> None:
    desk = started()
    desk.signal(SignalKind.QUIT, Source.PERSON, {"by": "mei", "reason": "wrong data"})
    decision = desk.decide()
    assert desk.job.phase is Phase.STOPPED
    assert [order.data.get("stop") for order in decision.orders] == [True]
    assert [action.kind for action in decision.actions] == [STOP]
    assert decision.incident is not None
    assert decision.incident.title == "Stop asked for by mei: wrong data"
    desk.do(STOP)
    desk.decide()
    assert desk.incident.resolution is Resolution.JOB_ENDED


def test_stop_at_the_safe_point_waits_for_the_next_committed_checkpoint() -> None:
    desk = started()
    desk.agent(1, SignalKind.QUIT, {"reason": "maintenance", "at_safe_point": True})
    desk.decide()
    assert (desk.job.phase, desk.job.quit_due) == (Phase.RUN_COMMAND, True)
    desk.agent(0, SignalKind.CHECKPOINT, {"step": 100, "state": "written"})
    desk.decide()
    assert desk.job.phase is Phase.RUN_COMMAND
    desk.agent(0, SignalKind.CHECKPOINT, {"step": 100, "state": "committed"})
    desk.decide()
    assert desk.job.phase is Phase.STOPPED
    assert len(desk.wanted(STOP)) == 1
