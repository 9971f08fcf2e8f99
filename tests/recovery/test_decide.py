"""The way of one failure through ``decide``, from its signals to a resolved incident."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from recovery.decide import Mode
from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution
from recovery.phases import MessagePhase, Phase
from recovery.signals import EndCause, SignalKind, Source, Use
from tests.recovery.desk import Desk, committed, started
from tests.recovery.jobs import W

RESTART = ActionKind.RESTART_PROCESS


def test_start_orders_boot_check_then_command_and_opens_nothing() -> None:
    desk = started()
    orders = [order for seen in desk.log for order in seen.decision.orders]
    assert [(order.sequence, order.phase, order.targets) for order in orders] == [
        (1, MessagePhase.BOOTCHECK, None),
        (2, MessagePhase.COMMAND, None),
    ]
    assert orders[1].data == {"attempt": 1, "resume": None}
    assert desk.state.incident is None
    first = [change for seen in desk.log for change in seen.decision.attempts if change.first_step_at]
    assert [(change.n, change.first_step) for change in first] == [(1, 1)]


def test_killed_process_comes_back_in_place_and_its_incident_resolves() -> None:
    desk = started()
    desk.state = replace(desk.state, checkpoints=(committed(3300),))
    desk.now += timedelta(seconds=60)
    desk.kill(0)
    opened = desk.decide()
    assert opened.incident is not None
    assert opened.incident.opens
    assert opened.incident.title == "Process of worker 0 killed (SIGKILL) on gpu-r01-01"
    assert [(order.sequence, dict(order.data)) for order in opened.orders] == [
        (3, {"stop": True, "checks": ["quick"], "grace_seconds": 5.0})
    ]
    assert (desk.job.phase, desk.retries, desk.counts) == (
        Phase.TROUBLESHOOTING,
        "1:0:0",
        [(1, 0, "process_killed")],
    )
    assert desk.incident.state is IncidentState.OPEN
    assert opened.directive == "extend_wait"

    desk.now += timedelta(seconds=0.2)
    desk.stopped(0, 1)
    assert not desk.decide().actions, "worker 2 has not stopped yet"
    desk.stopped(2)
    chosen = desk.decide()
    assert [(action.kind, action.state) for action in chosen.actions] == [(RESTART, ActionState.READY)]
    assert chosen.actions[0].not_before == desk.now
    assert chosen.actions[0].why == (
        "Process is gone and quick checks are clean on 3 of 3 workers: restart in place (not fully checked)"
    )
    assert {line.remedy for line in chosen.considered} >= {"restart_container", "hold_node"}
    assert chosen.verdict["category"] == "process_killed"
    assert (desk.incident.state, desk.incident.rung) == (IncidentState.RECOVERING, "L1")

    desk.go()
    gone = desk.decide()
    assert [(order.phase, dict(order.data)) for order in gone.orders] == [
        (MessagePhase.COMMAND, {"attempt": 2, "resume": {"step": 3300, "path": "/checkpoints/step-00003300"}})
    ]
    assert (desk.job.phase, desk.retries, desk.job.attempt) == (Phase.RUN_COMMAND, "1:1:1", 2)
    assert desk.state.actions[0].state is ActionState.VERIFYING
    assert desk.state.actions[0].sequence == 4

    desk.started(0, 1)
    desk.decide()
    assert desk.state.actions
    desk.started(2)
    desk.decide()
    assert not desk.state.actions
    assert desk.incident.state is IncidentState.RECOVERING

    desk.first_step(0, 1, 2, step=3301)
    desk.decide()
    assert desk.incident.state is IncidentState.WATCHING
    desk.keep_stepping(3.0, 3320)
    assert (desk.incident.state, desk.incident.resolution) == (
        IncidentState.RESOLVED,
        Resolution.RECOVERED,
    )
    assert len(desk.counts) == 1
    assert [action.kind for action in desk.ended_actions.values()] == [RESTART]


def test_many_errors_of_one_failure_are_one_decision_one_count_and_one_incident() -> None:
    desk = started()
    at = desk.now + timedelta(seconds=30)
    desk.now = at + timedelta(seconds=0.4)
    desk.fail(1, "RuntimeError: Connection closed by peer [10.0.0.3]", seen_at=at)
    desk.fail(2, "RuntimeError: Connection reset by peer", seen_at=at + timedelta(seconds=0.1))
    desk.kill(0, seen_at=at + timedelta(seconds=0.2))
    desk.decide()
    assert desk.counts == [(1, 0, "process_killed")], "the death by signal is the cause"
    assert desk.retries == "1:0:0"
    assert desk.incident.verdict["worker"] == "worker 0"
    assert "Connection reset" in "\n".join(desk.incident.verdict["evidence"])


def test_failure_that_nothing_explains_is_counted_for_how_it_ended() -> None:
    desk = started(max_retry=5)
    desk.fail(1, exit_code=3)
    decision = desk.decide()
    assert [count.cause for count in decision.counts] == ["exit code 3"]
    failed = desk.job.worker(W[1])
    assert failed is not None
    assert failed.last_failure_reason == "exit code 3"
    assert desk.state.past_attempts[-1].end_cause == "unknown", "the category stays"


def test_survivors_time_out_alone_is_said_to_be_unknown() -> None:
    desk = started()
    desk.fail(1, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3389)")
    desk.decide()
    assert desk.incident.verdict["category"] == "unknown"
    assert desk.incident.verdict["confidence"] <= 0.3
    assert desk.counts == [(1, 1, "lost_peer")]
    desk.recover()
    assert desk.wanted(RESTART)[0].why.startswith(
        "The cause is not known and quick checks are clean on 3 of 3"
    )


def test_culprit_that_reports_later_but_failed_first_becomes_the_verdict() -> None:
    desk = started()
    at = desk.now + timedelta(seconds=30)
    desk.now = at + timedelta(seconds=10)
    desk.fail(1, "Watchdog caught collective operation timeout", seen_at=at + timedelta(seconds=10))
    desk.decide()
    desk.now += timedelta(seconds=1)
    late = desk.kill(0, seen_at=at, sequence=2)
    desk.decide()
    assert desk.log[-1].use_of(late) is Use.LATE
    assert (desk.incident.verdict["worker"], desk.incident.verdict["category"]) == (
        "worker 0",
        "process_killed",
    )
    assert len(desk.counts) == 1


def test_silent_agent_changes_nothing() -> None:
    """R24: silence is evidence, not an end."""
    desk = started()
    before = desk.job
    desk.signal(SignalKind.AGENT_SILENT, Source.DESK, worker=W[1], incarnation=desk.life(1).id)
    desk.decide()
    assert desk.job == before
    assert desk.state.incident is None


def test_observing_cluster_says_what_would_count_and_refuses() -> None:
    desk = Desk(mode=Mode.OBSERVE)
    desk.enrol(0, 1, 2)
    desk.signal(SignalKind.WORLD_RUNNING, Source.WATCH)
    desk.decide()
    assert (desk.job.phase, desk.job.protected) == (Phase.RUN_COMMAND, True)
    desk.kill(0)
    decision = desk.decide()
    assert [(count.would, count.worker) for count in decision.counts] == [(True, W[0])]
    assert [(a.kind, a.state, a.refused_because) for a in decision.actions] == [
        (RESTART, ActionState.REFUSED, "cluster is in observe")
    ]
    assert (desk.retries, desk.counts) == ("0:0:0", [])
    desk.end_pod(0, EndCause.CRASHED)
    desk.decide()
    desk.enrol(0)
    desk.signal(SignalKind.WORLD_RUNNING, Source.WATCH)
    desk.decide()
    assert (desk.job.phase, desk.job.attempt) == (Phase.RUN_COMMAND, 2)
    desk.wait(10)
    assert desk.incident.state is IncidentState.RESOLVED
    assert not any(seen.decision.orders for seen in desk.log)
