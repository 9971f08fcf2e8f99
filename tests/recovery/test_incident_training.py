"""Training runs again: a first step is waited for, and an end may come before it is steady."""

from __future__ import annotations

from recovery.lifecycle import ActionKind, IncidentState, Resolution
from recovery.phases import Phase
from recovery.signals import SignalKind
from tests.recovery.desk import started

ASK = ActionKind.ASK_PERSON


def test_start_without_a_first_step_asks_a_person() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    desk.decide()
    desk.started(0, 1, 2)
    desk.decide()
    desk.wait(61)
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert "worker 0, worker 1, worker 2 did no step within 60 s" in desk.wanted(ASK)[0].why
    desk.wait(300)
    assert len(desk.wanted(ASK)) == 1


def test_all_finish_while_watching_is_a_recovery() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.recover()
    for index in range(3):
        desk.agent(index, SignalKind.FINISH, {"exit_code": 0}, phase="command")
    desk.decide()
    assert desk.job.phase is Phase.SUCCEEDED
    assert (desk.incident.state, desk.incident.resolution) == (
        IncidentState.RESOLVED,
        Resolution.RECOVERED,
    )
