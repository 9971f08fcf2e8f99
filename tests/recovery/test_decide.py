"""The way of one failure through ``decide``, situation by situation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from recovery.decide import Mode
from recovery.evidence import Fact, Role, ended_alike
from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution, Severity, WaitingFor
from recovery.phases import MessagePhase, Phase
from recovery.signals import EndCause, SignalKind, Source, Use
from tests.recovery.desk import Desk, committed
from tests.recovery.jobs import W

RESTART, STOP, ASK = ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB, ActionKind.ASK_PERSON


def started(**fields: object) -> Desk:
    desk = Desk(**fields)  # type: ignore[arg-type]
    desk.start()
    return desk


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


def test_pod_deleted_waits_for_the_new_pod_then_all_start_together() -> None:
    desk = started()
    desk.now += timedelta(seconds=30)
    desk.end_pod(0)
    first = desk.decide()
    assert [(order.phase, order.targets) for order in first.orders] == [
        (MessagePhase.TROUBLESHOOT, (W[1], W[2]))
    ]
    assert (desk.job.phase, desk.incident.state) == (Phase.RESTARTING, IncidentState.RECOVERING)
    desk.stopped(1, 2)
    desk.decide()
    desk.now += timedelta(seconds=5)
    desk.enrol(0)
    assert [order.targets for order in desk.decide().orders] == [(W[0],)]
    desk.boot_check(0)
    desk.decide()
    assert desk.job.phase is Phase.TROUBLESHOOTING
    desk.recover()
    desk.keep_stepping(3.0, 3320)
    assert desk.incident.state is IncidentState.RESOLVED
    assert (desk.counts, desk.retries) == ([(1, 0, "deleted")], "1:1:1")
    assert len(desk.wanted(RESTART)) == 1


def test_worked_example_through_decide_ends_failed_and_suspended() -> None:
    desk = started(max_retry=2)
    seen = []
    desk.now += timedelta(seconds=30)
    desk.kill(0)
    desk.decide()
    seen.append(desk.retries)
    desk.end_pod(1)
    desk.decide()
    seen.append(desk.retries)
    desk.enrol(1)
    desk.decide()
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    seen.append(desk.retries)
    desk.now += timedelta(seconds=30)
    desk.fail(1)
    desk.decide()
    seen.append(desk.retries)
    desk.recover()
    seen.append(desk.retries)
    desk.now += timedelta(seconds=30)
    desk.kill(2)
    failed = desk.decide()
    seen.append(desk.retries)
    assert seen == ["1:0:0", "1:0:0", "1:1:1", "1:2:1", "2:2:2", "2:2:3"]
    assert (desk.job.phase, desk.job.recover_count) == (Phase.FAILED, 3)
    assert failed.incident is not None
    assert failed.incident.title == "Failed: failures 3 of 2"
    assert failed.incident.severity is Severity.CRITICAL
    assert {action.kind for action in failed.actions} == {STOP, ASK}
    assert len(desk.counts) == 3
    assert desk.incidents == 1, "one incident, its causes joined"
    desk.do(ASK)
    desk.decide()
    assert desk.incident.state is IncidentState.OPEN
    desk.do(STOP, detail="suspended, no pod runs")
    desk.decide()
    assert (desk.incident.state, desk.incident.resolution) == (
        IncidentState.RESOLVED,
        Resolution.JOB_ENDED,
    )


def test_job_that_could_not_be_suspended_needs_a_person() -> None:
    desk = started(max_retry=0)
    desk.kill(0)
    desk.decide()
    desk.do(ASK)
    desk.do(STOP, ActionState.FAILED, "forbidden")
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert desk.wanted(ASK)[-1].why == "The job could not be suspended: suspend it by hand"
    desk.do(ASK)
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    desk.state = replace(desk.state, suspended=True)
    desk.signal(SignalKind.JOB_SUSPENDED, Source.WATCH, {"by": "mei"})
    desk.decide()
    assert desk.incident.state is IncidentState.RESOLVED


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


def test_restart_that_nobody_confirms_goes_to_the_next_rung_which_asks() -> None:
    """R19: a failed action ends at its deadline."""
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    desk.decide()
    desk.started(0, 1)
    desk.decide()
    desk.wait(16)
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert desk.incident.rung == "L2"
    refused = desk.wanted(ActionKind.RESTART_CONTAINER)
    assert [(action.state, action.refused_because, action.target) for action in refused] == [
        (ActionState.REFUSED, "remedy not installed", "worker 2")
    ]
    assert len(desk.wanted(ASK)) == 1
    desk.started(2)
    desk.first_step(0, 1, 2, step=3301)
    desk.decide()
    assert desk.incident.state is IncidentState.WATCHING, "it came after all"


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


def test_go_after_a_pod_died_is_stale_and_nothing_starts() -> None:
    """R17: an older order is not carried out on what has changed since."""
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    go = desk.go()
    desk.end_pod(1, seen_at=desk.now - timedelta(seconds=0.1))
    decision = desk.decide()
    assert desk.log[-1].use_of(go) is Use.STALE
    assert desk.job.phase is Phase.RESTARTING
    assert [change.state for change in decision.action_changes] == [ActionState.SUPERSEDED]
    assert not any(order.phase is MessagePhase.COMMAND for order in decision.orders)


def test_go_of_an_older_try_is_stale() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    first = desk.go()
    desk.inbox.clear()
    action = desk.state.actions[0]
    desk.state = replace(desk.state, actions=(replace(action, state=ActionState.READY),))
    desk.go()
    desk.inbox.append(first)
    desk.decide()
    assert desk.log[-1].use_of(first) is Use.STALE
    assert (desk.job.attempt, desk.job.phase) == (2, Phase.RUN_COMMAND)


def test_go_whose_lease_ran_out_before_it_was_decided_is_still_good() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    action = desk.state.actions[0]
    desk.state = replace(desk.state, actions=(replace(action, state=ActionState.VERIFYING),))
    desk.decide()
    assert desk.job.phase is Phase.RUN_COMMAND
    assert desk.state.actions[0].sequence == 4


def test_preempted_pod_is_not_counted_and_waits_for_capacity() -> None:
    """R37, D20: waiting for capacity and preemption are not charged."""
    desk = started()
    desk.end_pod(2, EndCause.PREEMPTED)
    desk.signal(
        SignalKind.POD_WAITING, Source.WATCH, {"reason": "Unschedulable", "message": "0/4 nodes free"}
    )
    desk.decide()
    assert desk.counts == []
    assert (desk.incident.state, desk.incident.waiting_for, desk.incident.severity) == (
        IncidentState.WAITING,
        WaitingFor.CAPACITY,
        Severity.LOW,
    )
    assert desk.job.reason == "waiting for capacity: 0/4 nodes free"
    desk.wait(21)
    assert desk.incident.severity is Severity.HIGH
    desk.signal(SignalKind.CAPACITY_BACK, Source.WATCH)
    desk.enrol(2)
    desk.decide()
    assert desk.incident.state is IncidentState.RECOVERING
    desk.boot_check(2)
    desk.decide()
    desk.stopped(1, 0, 2)
    desk.decide()
    desk.go()
    desk.decide()
    assert desk.retries == "0:0:0"


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


def test_approve_mode_plans_and_waits_for_a_persons_word() -> None:
    desk = started(mode=Mode.APPROVE)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    decision = desk.decide()
    assert [action.state for action in decision.actions] == [ActionState.PLANNED]
    assert desk.incident.waiting_for is WaitingFor.APPROVAL
    uid = desk.state.actions[0].uid
    desk.signal(SignalKind.PERSON_DO_NOW, Source.PERSON, {"by": "mei", "action_uid": uid})
    desk.decide()
    assert desk.state.actions[0].state is ActionState.READY
    desk.go()
    desk.decide()
    assert desk.job.phase is Phase.RUN_COMMAND


def test_one_agent_that_cannot_enrol_lets_all_run_unprotected_and_says_so() -> None:
    desk = Desk()
    desk.enrol(0, 1)
    desk.decide()
    desk.state = replace(desk.state, world_running_at=desk.now)
    desk.signal(SignalKind.WORLD_RUNNING, Source.WATCH)
    desk.decide()
    assert desk.last.next_look_at == desk.now + timedelta(seconds=5)
    desk.wait(6)
    assert desk.last.directive == "run_unprotected"
    assert (desk.job.protected, desk.job.protection_due, desk.job.phase) == (False, True, Phase.RUN_COMMAND)
    assert not any(seen.decision.orders for seen in desk.log)


def test_barrier_does_not_run_while_the_world_is_not_whole() -> None:
    desk = Desk()
    desk.enrol(0, 1)
    desk.decide()
    desk.wait(600)
    assert desk.job.protected
    assert desk.last.next_look_at is None


def test_agent_that_never_answers_the_boot_check_does_not_hold_training() -> None:
    desk = Desk()
    desk.state = replace(desk.state, world_running_at=desk.now)
    desk.enrol(0, 1, 2)
    desk.decide()
    desk.boot_check(0, 1)
    desk.decide()
    desk.wait(6)
    assert (desk.job.protected, desk.job.phase) == (False, Phase.RUN_COMMAND)


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


def test_controller_that_gives_up_ends_the_incident() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.signal(SignalKind.JOB_ENDED, Source.WATCH, {"condition": "Failed", "reason": "BackoffLimitExceeded"})
    decision = desk.decide()
    assert [change.state for change in decision.action_changes] == [ActionState.CANCELLED]
    assert (desk.job.phase, desk.incident.resolution) == (Phase.FAILED, Resolution.JOB_ENDED)


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


def test_person_resolves_what_waits_and_is_refused_while_it_runs() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    desk.decide()
    refused = desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "mei", "reason": "seen to it"})
    desk.decide()
    assert desk.log[-1].use_of(refused) is Use.REFUSED
    assert desk.incident.state is IncidentState.RECOVERING
    desk.started(0, 1, 2)
    desk.decide()
    desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "mei", "reason": "seen to it"})
    desk.decide()
    assert desk.incident.resolution is Resolution.BY_PERSON


def test_person_cancels_a_waiting_restart_and_gets_the_incident() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    uid = desk.state.actions[0].uid
    desk.signal(SignalKind.PERSON_CANCEL, Source.PERSON, {"by": "mei", "action_uid": uid, "reason": "wait"})
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    desk.wait(300)
    assert len(desk.wanted(RESTART)) == 1, "the machine does not want again what a person took back"


def test_suspended_job_resolves_its_incident_and_resumes_as_a_new_run() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.signal(SignalKind.JOB_SUSPENDED, Source.WATCH, {"by": "kueue"})
    desk.decide()
    assert (desk.job.phase, desk.incident.resolution) == (Phase.STOPPED, Resolution.JOB_ENDED)
    desk.signal(SignalKind.JOB_RESUMED, Source.WATCH, {"by": "kueue"})
    decision = desk.decide()
    assert decision.run_begins
    assert (desk.job.phase, desk.job.recover_count) == (Phase.PENDING, 1)


def test_silent_agent_changes_nothing() -> None:
    """R24: silence is evidence, not an end."""
    desk = started()
    before = desk.job
    desk.signal(SignalKind.AGENT_SILENT, Source.DESK, worker=W[1], incarnation=desk.life(1).id)
    desk.decide()
    assert desk.job == before
    assert desk.state.incident is None


def test_new_place_in_the_world_restarts_all_without_a_count() -> None:
    desk = started(workers=2)
    more = Desk(workers=3).job.workers
    assert desk.state.job is not None
    desk.state = replace(desk.state, job=replace(desk.job, workers=(*desk.job.workers, more[2])))
    desk.enrol(2)
    decision = desk.decide()
    assert decision.job is not None
    assert decision.job.phase is Phase.RESTARTING
    assert desk.counts == []
    assert [(order.phase, order.targets) for order in decision.orders] == [
        (MessagePhase.TROUBLESHOOT, (W[0], W[1])),
        (MessagePhase.BOOTCHECK, (W[2],)),
    ]
