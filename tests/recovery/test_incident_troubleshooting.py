"""All workers stand still: what is chosen, and when it is not a restart in place at once."""

from __future__ import annotations

from datetime import timedelta

from recovery.lifecycle import ActionKind, IncidentState, Resolution, WaitingFor
from recovery.phases import Phase
from recovery.signals import EndCause, SignalKind, Source
from tests.recovery.desk import started
from tests.recovery.jobs import W

RESTART, STOP, ASK = ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB, ActionKind.ASK_PERSON


def test_agent_that_does_not_confirm_the_stop_holds_the_others_only_so_long() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1)
    desk.decide()
    assert not desk.wanted(RESTART)
    desk.wait(21)
    assert len(desk.wanted(RESTART)) == 1
    assert "worker 2 did not confirm the stop in time" in desk.wanted(RESTART)[0].why


def test_failed_gpu_check_sends_the_worker_away_and_says_what_is_not_installed() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(1, 2)
    desk.stopped(0, checks=[{"check": "gpu", "result": "fail", "detail": "7 of 8 devices"}])
    decision = desk.decide()
    exits = [order for order in decision.orders if order.data.get("exit")]
    assert [(order.targets, order.data["code"]) for order in exits] == [((W[0],), 81)]
    assert [(a.kind, a.target, a.refused_because) for a in decision.actions if a.refused_because] == [
        (ActionKind.HOLD_NODE, "gpu-r01-01", "remedy not installed")
    ]
    assert desk.wanted(ASK)
    assert not desk.wanted(RESTART)
    desk.end_pod(0, EndCause.CRASHED)
    desk.decide()
    assert desk.job.phase is Phase.RESTARTING
    desk.enrol(0)
    desk.decide()
    desk.boot_check(0)
    desk.decide()
    desk.recover()
    assert desk.incident.state is IncidentState.WATCHING
    assert len(desk.counts) == 1


def test_timeout_of_a_check_is_no_evidence_against_the_machine() -> None:
    """R13, R42: a check that could not run differs from one that failed."""
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(1, 2)
    desk.stopped(
        0, checks=[{"check": "gpu", "result": "timeout"}, {"check": "rdma", "result": "could_not_run"}]
    )
    desk.decide()
    assert len(desk.wanted(RESTART)) == 1
    assert not desk.wanted(ActionKind.HOLD_NODE)


def test_finished_worker_that_left_and_is_needed_asks_a_person() -> None:
    desk = started()
    desk.agent(0, SignalKind.FINISH, {"exit_code": 0}, phase="command")
    desk.decide()
    desk.end_pod(0, EndCause.COMPLETED)
    desk.decide()
    assert desk.state.incident is None
    desk.kill(1)
    desk.decide()
    desk.stopped(1, 2)
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert "worker 0 finished and has left its container" in desk.wanted(ASK)[0].why


def test_third_failure_in_the_window_waits_with_jitter_that_a_replay_repeats() -> None:
    desk = started(max_retry=9)
    waits = []
    for _ in range(4):
        desk.now += timedelta(seconds=10)
        desk.heartbeat(0, 1, 2, step=int(desk.now.timestamp()) % 100_000)
        desk.kill(1)
        desk.decide()
        desk.stopped(0, 1, 2)
        decision = desk.decide()
        not_before = decision.actions[0].not_before
        assert not_before is not None
        waits.append((not_before - desk.now).total_seconds())
        if waits[-1]:
            assert (desk.incident.state, desk.incident.waiting_for) == (
                IncidentState.WAITING,
                WaitingFor.BACKOFF,
            )
        desk.go()
        desk.decide()
        desk.started(0, 1, 2)
        desk.first_step(0, 1, 2, step=1)
        desk.decide()
    assert waits[:2] == [0, 0]
    assert 0 < waits[2] <= 2
    assert 0 < waits[3] <= 4


def test_same_step_after_three_restarts_is_no_progress_and_stops() -> None:
    """R39: a crash loop does not show Running for ever."""
    desk = started(max_retry=9)
    for n in range(4):
        desk.now += timedelta(seconds=10)
        desk.heartbeat(0, 1, 2, step=3388)
        desk.kill(1)
        desk.decide()
        desk.stopped(0, 1, 2)
        desk.decide()
        if n < 3:
            desk.go()
            desk.decide()
            desk.started(0, 1, 2)
            desk.first_step(0, 1, 2, step=3301)
            desk.decide()
    assert {action.kind for action in desk.last.actions} == {STOP, ASK}
    assert "No progress: 4 attempts in a row ended at step 3388" in desk.last.actions[0].why
    desk.do(ASK)
    desk.decide()
    desk.signal(SignalKind.JOB_SUSPENDED, Source.WATCH, {"by": "incidentdesk"})
    desk.decide()
    assert desk.job.phase is Phase.STOPPED
    desk.do(STOP)
    desk.decide()
    assert desk.incident.resolution is Resolution.JOB_ENDED
