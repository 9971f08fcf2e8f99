"""A job's life beyond the happy path: ends, stops, resumes, lowered limits, replaced workers, observe."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from adapters.facts import Change, JobFact
from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.models import Action, Decision, InboxEntry, Incident, Signal
from apps.incidents.policy import current_policy
from apps.incidents.services.acting import run_action
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.people import resolve_incident, stop_job
from apps.incidents.services.signals import UNHURRIED_SECONDS
from apps.incidents.services.ticking import find_due
from apps.jobs.models import Attempt, FailureCount, Incarnation, Job, Order, Run, Worker
from apps.jobs.services.checkpoints import record_checkpoint
from apps.jobs.services.importing import import_jobs, review_protection
from recovery.errors import InvalidTransition
from recovery.signals import SignalKind, Source
from tests import factories, facts
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def training() -> PlayedJob:
    job = PlayedJob(factories.make_job(workers=3, max_retry=2))
    job.start_training()
    return job


def watch(job: PlayedJob, kind: SignalKind, n: int, **body: object) -> None:
    job.record(kind, Source.WATCH, f"{job.job.owner_uid}@{n}:{kind}", {"by": "kubectl", **body})


def recover_in_place(job: PlayedJob, index: int = 0) -> None:
    """A process of ``index`` dies; all stop, start again and step."""
    job.kill(index)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    action = Action.objects.get(incident__job=job.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    job.begin_attempt()


def test_all_finish_and_leave_without_incident(training: PlayedJob) -> None:
    for index in range(3):
        training.say(index, SignalKind.FINISH, "command", {"code": 0, "step": 50})
        training.decide()
    job = training.fresh()
    assert job.phase == "Succeeded"
    order = training.order()
    assert order is not None
    assert order.content == {"finish": True}
    assert order.targets is None
    for life in training.lives.values():
        training.end(life, cause="completed", exit_code=0)
    watch(training, SignalKind.JOB_ENDED, 9, condition="Complete")
    training.decide()
    assert training.fresh().phase == "Succeeded"
    assert not Incident.objects.filter(job=job).exists()
    assert not FailureCount.objects.filter(job=job).exists()
    run = Run.objects.get(job=job)
    assert run.end_phase == "Succeeded"
    assert run.ended_at is not None
    attempt = Attempt.objects.get(job=job)
    assert attempt.ended_at is not None
    assert not attempt.is_counted
    assert attempt.last_step == 50


def test_suspended_with_an_open_restart_and_resumed(training: PlayedJob) -> None:
    training.kill(0)
    training.decide()
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    assert Action.objects.get(incident__job=training.job, kind="restart_process").state == "ready"
    watch(training, SignalKind.JOB_SUSPENDED, 5)
    training.decide()
    job = training.fresh()
    assert job.phase == "Stopped"
    assert Action.objects.get(incident__job=job, kind="restart_process").state == "cancelled"
    assert Incident.objects.get(job=job).resolution == "job_ended"
    for life in training.lives.values():
        training.end(life, cause="stopped_by_user")
    watch(training, SignalKind.JOB_RESUMED, 6)
    training.decide()
    job = training.fresh()
    assert (job.phase, job.run, job.recover_count, training.retries()) == ("Pending", 2, 1, (1, 1, 1))
    training.lives.clear()
    for index in range(3):
        training.enrol(index)
    training.decide()
    training.everyone(SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    training.begin_attempt()
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 2, 1)
    assert Incident.objects.filter(job=job).count() == 1


def test_end_of_the_run_before_comes_after_the_resume(training: PlayedJob) -> None:
    """Pods of a suspended job take their grace period to go; the user resumes before they are gone."""
    watch(training, SignalKind.JOB_SUSPENDED, 5)
    training.decide()
    watch(training, SignalKind.JOB_RESUMED, 6)
    training.decide()
    assert training.fresh().phase == "Pending"
    for life in list(training.lives.values()):
        training.end(life, cause="deleted")
        training.decide()
    assert training.fresh().phase == "Pending"
    assert not Incident.objects.filter(job=training.job).exists()
    training.lives.clear()
    for index in range(3):
        training.enrol(index)
    training.decide()
    training.everyone(SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    assert training.fresh().phase == "RunCommand"
    assert training.retries() == (0, 0, 0)


def test_resumed_after_failure_starts_at_zero(training: PlayedJob) -> None:
    recover_in_place(training, 0)
    recover_in_place(training, 1)
    training.kill(2)
    training.decide()
    job = training.fresh()
    assert (job.phase, job.recover_count) == ("Failed", 3)
    watch(training, SignalKind.JOB_SUSPENDED, 5)
    watch(training, SignalKind.JOB_RESUMED, 6)
    training.decide()
    job = training.fresh()
    assert (job.phase, job.run, job.recover_count, training.retries()) == ("Pending", 2, 0, (0, 0, 0))
    assert job.attempt == 3


@pytest.mark.parametrize("phase", ["Pending", "BootChecking", "RunCommand", "Restarting", "Troubleshooting"])
def test_deleted_in_each_phase(phase: str) -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=2))
    if phase in ("Pending", "BootChecking"):
        job.enrol(0)
        if phase == "BootChecking":
            job.enrol(1)
        job.decide()
    else:
        job.start_training()
        if phase == "Restarting":
            job.end(job.lives[0])
        if phase == "Troubleshooting":
            job.kill(0)
        job.decide()
    assert job.fresh().phase == phase
    watch(job, SignalKind.JOB_DELETED, 5)
    for life in Incarnation.objects.filter(worker__job=job.job, ended_at__isnull=True):
        job.end(life, cause="stopped_by_user")
    job.decide()
    fresh = job.fresh()
    assert fresh.phase == "Stopped"
    assert fresh.ended_at is not None
    assert not Incident.objects.filter(job=fresh).exclude(state="resolved").exists()
    assert not Action.objects.filter(incident__job=fresh, ended_at__isnull=True).exists()
    assert not Attempt.objects.filter(job=fresh, ended_at__isnull=True).exists()


def test_limit_lowered_below_the_present_count(training: PlayedJob) -> None:
    recover_in_place(training, 0)
    recover_in_place(training, 0)
    assert training.fresh().recover_count == 2
    watch(training, SignalKind.MAX_RETRY_CHANGED, 5, max_retry=0)
    training.decide()
    job = training.fresh()
    assert (job.phase, job.max_retry, job.recover_count) == ("RunCommand", 0, 1)
    training.kill(1)
    training.decide()
    job = training.fresh()
    assert (job.phase, job.recover_count) == ("Failed", 1)
    assert Action.objects.filter(incident__job=job, kind="stop_job").exists()


def test_drained_pod_is_not_counted_and_comes_back(training: PlayedJob) -> None:
    training.end(training.lives[1], cause="preempted", reason="EvictionByEvictionAPI")
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (0, 0, 0)
    training.say(0, SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    training.say(2, SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    training.enrol(1)
    training.decide()
    training.say(1, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    training.decide()
    assert training.fresh().phase == "Troubleshooting"
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    action = Action.objects.get(incident__job=training.job, kind="restart_process")
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    training.begin_attempt()
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 2, 0)
    assert not FailureCount.objects.filter(job=job).exists()


def test_killed_agent_counts_once_whoever_tells_first(training: PlayedJob) -> None:
    """The container restarts: its successor enrols before the watch tells of the end."""
    old = training.lives[0]
    training.enrol(0, pod_uid=old.pod_uid, restart_count=1)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (1, 0, 0)
    training.end(old, cause="exit_error", exit_code=137)
    training.decide()
    assert training.retries() == (1, 0, 0)
    assert FailureCount.objects.filter(job=training.job).count() == 1


def test_replacement_that_never_comes_is_said(training: PlayedJob) -> None:
    """An image that cannot be pulled: the pod is placed and never runs, so no barrier ends the wait."""
    training.end(training.lives[1])
    training.decide()
    incident = Incident.objects.get(job=training.job)
    assert incident.state == "recovering"
    subject = training.subject
    assert subject.next_look_at is not None
    Incident.objects.filter(pk=incident.pk).update(state_since_at=incident.state_since_at - timedelta(days=1))
    type(subject).objects.filter(pk=subject.pk).update(next_look_at=incident.state_since_at)
    decide_subject(subject_id=subject.pk)
    incident.refresh_from_db()
    assert incident.severity == "high"
    told = incident.timeline.filter(kind="waiting")
    assert told.count() == 1
    assert "worker 1" in told.get().text
    type(subject).objects.filter(pk=subject.pk).update(next_look_at=incident.state_since_at)
    decide_subject(subject_id=subject.pk)
    assert told.count() == 1


def test_observe_orders_nothing_acts_nothing_and_says_what_it_would_do() -> None:
    job = PlayedJob(factories.make_job(workers=2, cluster=factories.make_cluster(mode="observe")))
    for index in range(2):
        job.enrol(index)
    watch(job, SignalKind.WORLD_RUNNING, 1)
    job.decide()
    for index in range(2):
        job.say(index, SignalKind.MARK, "command", {"mark": "first_step", "step": 1}, sequence=0)
    job.decide()
    assert job.fresh().phase == "RunCommand"
    job.say(0, SignalKind.ERROR, "command", {"code": 1, "step": 9}, sequence=0)
    job.decide()
    job.end(job.lives[0], cause="exit_error", exit_code=1)
    job.decide()
    fresh = job.fresh()
    assert job.retries() == (0, 0)
    assert fresh.recover_count == 0
    count = FailureCount.objects.get(job=fresh)
    assert count.would
    assert not Order.objects.filter(job=fresh).exists()
    states = set(Action.objects.filter(incident__job=fresh).values_list("state", flat=True))
    assert states == {"refused"}
    assert "observe" in Action.objects.filter(incident__job=fresh)[0].refused_because


def test_mode_back_to_observe_takes_what_waits(training: PlayedJob) -> None:
    """Disarmed while a stop of the job is ready: it is refused, and the cluster is left alone."""
    recover_in_place(training, 0)
    recover_in_place(training, 1)
    training.kill(2)
    training.decide()
    stop = Action.objects.get(incident__job=training.job, kind="stop_job")
    assert stop.state == "ready"
    cluster = training.job.cluster
    cluster.mode = "observe"
    cluster.save(update_fields=["mode"])
    run_action(action_id=stop.pk, cluster=lambda: pytest.fail("the cluster was touched in observe"))
    stop.refresh_from_db()
    assert (stop.state, stop.try_n) == ("refused", 0)
    assert "observe" in stop.end_reason


def test_resolve_can_be_asked_for_again_after_a_refusal(training: PlayedJob) -> None:
    """While a restart is under way an incident does not close; when it is over, the same word works."""
    person = factories.make_user()
    training.kill(0)
    training.decide()
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    action = Action.objects.get(incident__job=training.job, kind="restart_process")
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    incident = Incident.objects.get(job=training.job)
    action.refresh_from_db()
    assert action.state == "verifying"
    with pytest.raises(InvalidTransition, match="restart_process"):
        resolve_incident(incident_id=incident.pk, by=person, reason="seen")
    training.everyone(SignalKind.ACK, "command", {"pids": {"agent": 1, "command": 100}})
    resolved = resolve_incident(incident_id=incident.pk, by=person, reason="seen")
    assert resolved.state == "resolved"
    assert resolved.resolution == "by_person"


def test_stop_at_the_safe_point_can_become_a_stop_now(training: PlayedJob) -> None:
    person = factories.make_user()
    job = stop_job(job_id=training.job.pk, by=person, reason="enough", at_safe_point=True)
    assert job.phase == "RunCommand"
    assert job.is_quit_due
    job = stop_job(job_id=training.job.pk, by=person, reason="enough")
    assert job.phase == "Stopped"


def test_lines_of_a_failure_stand_in_the_order_of_cause(training: PlayedJob) -> None:
    training.kill(0)
    training.decide()
    incident = Incident.objects.get(job=training.job)
    kinds = list(incident.timeline.order_by("n").values_list("kind", flat=True))
    assert kinds[:5] == [
        "failure_seen", "failure_counted", "incident_opened", "phase_changed", "order_written"
    ]  # fmt: skip


def test_start_is_told_once_a_worker_and_checkpoints_do_not_flood(training: PlayedJob) -> None:
    recover_in_place(training, 0)
    incident = Incident.objects.get(job=training.job)
    training.everyone(SignalKind.MARK, "command", {"mark": "started", "pids": {"agent": 1, "command": 100}})
    assert incident.timeline.filter(kind="process_started").count() == 3
    for step in (100, 200, 300):
        body = {"step": step, "path": f"/checkpoints/step-{step}", "state": "committed"}
        training.say(0, SignalKind.CHECKPOINT, "command", body)
        with transaction.atomic():
            record_checkpoint(job=training.fresh(), content=body, at=training.now())
        training.decide()
    assert incident.timeline.filter(kind="checkpoint").count() == 1


def test_worker_rows_of_a_stopped_job_hold_no_open_order(training: PlayedJob) -> None:
    watch(training, SignalKind.JOB_SUSPENDED, 5)
    training.decide()
    assert set(Worker.objects.filter(job=training.job).values_list("inner_phase", flat=True)) == {"Stopped"}
    assert Decision.objects.filter(subject=training.subject).latest("n").rule == "suspended"
    assert not Incarnation.objects.filter(worker__job=training.job, is_end_ordered=True).exists()


def test_checkpoints_of_daily_life_wait_for_the_next_decision(training: PlayedJob) -> None:
    body = {"step": 100, "path": "/checkpoints/step-100", "state": "committed"}
    told = training.say(0, SignalKind.CHECKPOINT, "command", body)
    subject = training.subject
    assert subject.pk not in find_due().subjects
    Signal.objects.filter(pk=told.signal_id).update(
        received_at=training.now() - timedelta(seconds=UNHURRIED_SECONDS + 1)
    )
    assert subject.pk in find_due().subjects
    Signal.objects.filter(pk=told.signal_id).update(received_at=training.now())
    type(training.job).objects.filter(pk=training.job.pk).update(is_quit_due=True)
    assert subject.pk in find_due().subjects
    type(training.job).objects.filter(pk=training.job.pk).update(is_quit_due=False)
    training.kill(0)
    assert subject.pk in find_due().subjects
    training.decide()
    entry = InboxEntry.objects.get(signal_id=told.signal_id)
    assert entry.decision_n == training.subject.decision_n
    assert entry.reason.startswith("checkpoint 100 committed")


def test_barrier_holds_also_when_all_of_it_is_decided_at_once(training: PlayedJob) -> None:
    """Nobody decided for a while: failure, ends and successors come in one inbox, with the world whole again.

    One successor had lost patience and runs unprotected: it answers no order, and is waited for only so long.
    """
    training.kill(1)
    for index in (1, 0, 2):
        training.end(training.lives[index], cause="crashed", exit_code=1)
        training.enrol(index)
    job = training.fresh()
    job.world_running_at = training.now()
    job.save(update_fields=["world_running_at"])
    training.decide()
    assert training.fresh().phase == "Restarting"
    for index in (0, 2):
        training.say(
            index, SignalKind.ACK, "bootcheck", {"checks": CLEAN}, sequence=last_sequence(job, index)
        )
    training.decide()
    subject = training.subject
    assert subject.next_look_at is not None
    type(subject).objects.filter(pk=subject.pk).update(next_look_at=training.now())
    decide_subject(subject_id=subject.pk, policy=replace(current_policy(), enrol_barrier_seconds=0.0))
    job = training.fresh()
    assert (job.phase, job.is_protected, job.is_protection_due) == ("RunCommand", False, True)
    assert FailureCount.objects.filter(job=job).count() == 1


def last_sequence(job: Job, index: int) -> int:
    return Worker.objects.get(job=job, index=index).last_sequence


def go_on(job: PlayedJob) -> Action:
    """The restart that the ladder chose is carried out, and every rank steps."""
    action = Action.objects.get(incident__job=job.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    job.begin_attempt()
    action.refresh_from_db()
    assert action.state == "done"
    return action


def come_back(job: PlayedJob, index: int) -> None:
    """The others have stopped; a successor enrols, passes its boot check, and all confirm the stop."""
    for other in job.lives:
        if other != index:
            job.say(other, SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    job.enrol(index)
    job.decide()
    job.say(index, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    job.decide()
    assert job.fresh().phase == "Troubleshooting"
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})


OUT_OF_MEMORY = {"cause": "out_of_memory", "exit_code": 137, "signal": 9, "reason": "OOMKilled"}


def test_container_out_of_memory_counts_once_and_promises_nothing(training: PlayedJob) -> None:
    old = training.lives[1]
    training.end(old, **OUT_OF_MEMORY)
    training.decide()
    training.end(old, source=Source.HOOK, **OUT_OF_MEMORY)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (0, 1, 0)
    assert FailureCount.objects.get(job=training.job).cause == "out_of_memory"
    incident = Incident.objects.get(job=training.job)
    assert incident.title == "Container of worker 1 ran out of memory on node-1"
    assert incident.verdict["category"] == "out_of_memory"
    come_back(training, 1)
    assert training.retries() == (0, 1, 0)
    why = Action.objects.get(incident=incident, kind="restart_process").why
    assert why.startswith("A container ran out of memory")
    assert "the same may come again" in why
    go_on(training)
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 2, 1)
    assert training.retries() == (1, 1, 1)


def test_out_of_memory_is_said_although_the_successor_came_first(training: PlayedJob) -> None:
    """The kubelet starts the container again before the watch tells why the last life of it ended."""
    Attempt.objects.filter(job=training.job).update(started_at=training.now() - timedelta(minutes=5))
    old = training.lives[1]
    ended_at = training.now()
    training.enrol(1, pod_uid=old.pod_uid, restart_count=1)
    training.decide()
    training.end(old, seen_at=ended_at, **OUT_OF_MEMORY)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (0, 1, 0)
    assert FailureCount.objects.filter(job=training.job).count() == 1
    incident = Incident.objects.get(job=training.job)
    assert incident.verdict["category"] == "out_of_memory"
    assert "ran out of memory" in incident.title


def test_process_killed_then_another_pod_ends_in_one_attempt(training: PlayedJob) -> None:
    training.kill(0)
    training.decide()
    assert training.fresh().phase == "Troubleshooting"
    training.end(training.lives[2], cause="crashed", exit_code=1)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (1, 0, 0)
    come_back(training, 2)
    assert training.retries() == (1, 0, 0)
    go_on(training)
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 2, 1)
    assert training.retries() == (1, 1, 1)
    assert FailureCount.objects.get(job=job).worker.index == 0
    incident = Incident.objects.get(job=job)
    assert (incident.verdict["category"], incident.verdict["worker"]) == ("process_killed", "worker 0")
    assert Attempt.objects.filter(job=job, is_counted=True).count() == 1


def test_error_of_a_boot_check_sends_the_worker_away_and_asks() -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=2))
    for index in range(2):
        job.enrol(index)
    job.decide()
    assert job.fresh().phase == "BootChecking"
    job.say(0, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    failed = {"check": "gpu", "result": "fail", "detail": "device 3 does not answer", "seconds": 0.2}
    job.say(1, SignalKind.ERROR, "bootcheck", {"exit_code": 1, "checks": [failed]})
    job.decide()
    assert job.fresh().phase == "BootChecking"
    assert Worker.objects.get(job=job.job, index=1).must_exit
    assert job.retries() == (0, 0)
    order = job.order()
    assert order is not None
    assert (order.targets, order.content["exit"]) == (["worker/1"], True)
    incident = Incident.objects.get(job=job.job)
    assert "device 3 does not answer" in incident.title
    assert incident.rung == "L3"
    hold = Action.objects.get(incident=incident, kind="hold_node")
    assert (hold.state, hold.refused_because, hold.target) == ("refused", "remedy not installed", "node-1")
    question = Action.objects.get(incident=incident, kind="ask_person")
    assert "isolation is not installed" in question.why
    job.end(job.lives[1], cause="crashed", exit_code=1)
    job.decide()
    assert job.fresh().phase == "Restarting"
    job.enrol(1)
    job.decide()
    assert not Worker.objects.get(job=job.job, index=1).must_exit
    job.say(1, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    job.decide()
    assert job.fresh().phase == "Troubleshooting"
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.0}})
    go_on(job)
    assert job.fresh().phase == "RunCommand"
    assert job.retries() == (0, 0)
    assert not FailureCount.objects.filter(job=job.job).exists()


def test_error_with_exit_code_zero_is_a_failure_of_unknown_cause(training: PlayedJob) -> None:
    """No agent of ours says so; whoever does has no process any more, and it said Error."""
    told = training.say(1, SignalKind.ERROR, "command", {"exit_code": 0, "pid": 101, "step": 30})
    training.decide()
    assert training.fresh().phase == "Troubleshooting"
    assert training.retries() == (0, 1, 0)
    assert InboxEntry.objects.get(signal_id=told.signal_id).use == "used"
    incident = Incident.objects.get(job=training.job)
    assert incident.verdict["category"] == "unknown"
    assert "exit code 0" in incident.title
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    assert "The cause is not known" in go_on(training).why
    assert training.fresh().phase == "RunCommand"


def test_all_agents_silent_then_back_moves_nothing(training: PlayedJob) -> None:
    long_ago = training.now() - timedelta(hours=1)
    Incarnation.objects.filter(worker__job=training.job).update(last_seen_at=long_ago)
    assert training.subject.pk in find_due().subjects
    training.decide()
    Incarnation.objects.filter(worker__job=training.job).update(last_seen_at=training.now())
    assert training.subject.pk in find_due().subjects
    training.decide()
    told = Signal.objects.filter(inbox_entries__subject=training.subject)
    assert told.filter(kind="agent_silent").count() == 3
    assert told.filter(kind="agent_back").count() == 3
    job = training.fresh()
    assert (job.phase, job.attempt, training.retries()) == ("RunCommand", 1, (0, 0, 0))
    assert not FailureCount.objects.filter(job=job).exists()
    assert not Incident.objects.filter(job=job).exists()
    assert not Incarnation.objects.filter(worker__job=job, is_silent=True).exists()


def take(cluster: Cluster, *changes: Change[JobFact]) -> None:
    """The watch sees jobs: rows, and their news as signals, decided."""
    for news in import_jobs(cluster=cluster, changes=changes, namespaces={}, now=database_now()).news:
        played = PlayedJob(news.job)
        played.record(news.kind, Source.WATCH, news.source_key, news.body, seen_at=news.seen_at)
        played.decide()


def test_same_name_with_a_new_uid_is_a_new_job() -> None:
    cluster = factories.make_cluster()
    take(cluster, facts.added(facts.make_job_fact(uid="uid-one")))
    old = PlayedJob(Job.objects.get(owner_uid="uid-one"))
    for index in range(3):
        old.enrol(index)
    old.decide()
    old.everyone(SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    old.begin_attempt()
    old.kill(0)
    old.decide()
    assert old.retries() == (1, 0, 0)
    again = facts.make_job_fact(uid="uid-two", resource_version="50")
    take(cluster, facts.deleted(facts.make_job_fact(uid="uid-one")), facts.added(again))
    new = PlayedJob(Job.objects.get(owner_uid="uid-two"))
    assert new.job.lineage_id == old.job.pk
    assert (new.job.phase, new.job.attempt, new.retries()) == ("Pending", 0, (0, 0, 0))
    gone = old.fresh()
    assert gone.phase == "Stopped"
    assert gone.gone_at is not None
    assert not Incident.objects.filter(job=gone).exclude(state="resolved").exists()
    assert not Incident.objects.filter(job=new.job).exists()
    for life in old.lives.values():
        old.end(life, cause="deleted")
        old.decide()
    assert old.retries() == (1, 0, 0)
    for index in range(3):
        new.enrol(index)
    new.decide()
    new.everyone(SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    new.begin_attempt()
    assert (new.fresh().phase, new.fresh().attempt) == ("RunCommand", 1)


def test_armed_while_it_trains_without_all_agents(client: Client) -> None:
    """One agent never came: it is protected from the next start on, and its page says so."""
    cluster = factories.make_cluster(mode="observe")
    fields = {
        "annotations": {"protect": "true"},
        "protection_reason": f"cluster {cluster.slug} is in observe",
    }
    job = PlayedJob(factories.make_job(workers=2, cluster=cluster, is_protected=False, **fields))
    job.enrol(0)
    watch(job, SignalKind.WORLD_RUNNING, 1)
    job.decide()
    assert job.fresh().phase == "RunCommand"
    cluster.mode = "auto"
    cluster.save(update_fields=["mode"])
    for news in review_protection(cluster=cluster, namespaces={}, now=database_now()):
        job.record(news.kind, Source.WATCH, news.source_key, news.body, seen_at=news.seen_at)
    job.decide()
    fresh = job.fresh()
    assert (fresh.is_protected, fresh.is_protection_due, fresh.phase) == (False, True, "RunCommand")
    client.force_login(factories.make_user(tenant=fresh.tenant))
    address = reverse("desk:job_detail", args=[fresh.pk])
    assert "protected from its next start on" in client.get(address).content.decode()
    job.end(job.lives[0], cause="crashed", exit_code=1)
    job.decide()
    assert job.retries() == (0, 0)
    action = Action.objects.get(incident__job=fresh)
    assert (action.state, action.refused_because) == (
        "refused",
        "the job runs unprotected until its next start",
    )
    for index in range(2):
        job.enrol(index)
    job.decide()
    assert job.fresh().phase == "BootChecking"
    job.everyone(SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    job.begin_attempt()
    fresh = job.fresh()
    assert (fresh.phase, fresh.is_protected, fresh.is_protection_due) == ("RunCommand", True, False)
    assert "protected from its next start on" not in client.get(address).content.decode()
    job.kill(1)
    job.decide()
    assert (job.fresh().phase, job.retries()) == ("Troubleshooting", (0, 1))


def test_disarmed_while_all_stand_still(training: PlayedJob) -> None:
    """The restart that waits is refused with the reason, and agents are told to run by themselves."""
    training.kill(0)
    training.decide()
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    action = Action.objects.get(incident__job=training.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    cluster = training.job.cluster
    cluster.mode = "observe"
    cluster.save(update_fields=["mode"])
    before = training.order()
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("the cluster was touched in observe"))
    action.refresh_from_db()
    assert (action.state, action.try_n, action.end_reason) == ("refused", 0, "cluster is in observe")
    assert training.order() == before
    job = training.fresh()
    assert job.directive == "run_unprotected"
    for index in range(3):
        training.say(index, SignalKind.MARK, "command", {"mark": "first_step", "step": 31})
    training.decide()
    assert training.fresh().phase == "RunCommand"
    assert training.retries() == (1, 1, 1)


def test_limit_lowered_then_raised_again(training: PlayedJob) -> None:
    recover_in_place(training, 0)
    recover_in_place(training, 1)
    watch(training, SignalKind.MAX_RETRY_CHANGED, 5, max_retry=0)
    training.decide()
    assert (training.fresh().phase, training.fresh().recover_count) == ("RunCommand", 1)
    watch(training, SignalKind.MAX_RETRY_CHANGED, 6, max_retry=5)
    training.decide()
    job = training.fresh()
    assert (job.max_retry, job.recover_count, training.retries()) == (5, 2, (2, 2, 2))
    training.kill(2)
    training.decide()
    job = training.fresh()
    assert (job.phase, training.retries()) == ("Troubleshooting", (2, 2, 3))
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    go_on(training)
    job = training.fresh()
    assert (job.phase, job.recover_count, training.retries()) == ("RunCommand", 3, (3, 3, 3))
