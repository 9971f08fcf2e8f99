"""A job's life beyond the happy path: ends, stops, resumes, lowered limits, replaced workers, observe."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import transaction

from apps.incidents.models import Action, Decision, InboxEntry, Incident, Signal
from apps.incidents.policy import current_policy
from apps.incidents.services.acting import run_action
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.people import resolve_incident, stop_job
from apps.incidents.services.signals import UNHURRIED_SECONDS
from apps.incidents.services.ticking import find_due
from apps.jobs.models import Attempt, FailureCount, Incarnation, Job, Order, Run, Worker
from apps.jobs.services.checkpoints import record_checkpoint
from recovery.errors import InvalidTransition
from recovery.signals import SignalKind, Source
from tests import factories
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
