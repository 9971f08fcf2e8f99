"""How a run of a job ends, and how the next one begins: finish, suspend, resume, delete, the name again."""

from __future__ import annotations

import pytest

from adapters.facts import Change, JobFact
from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.models import Action, Decision, Incident
from apps.jobs.models import Attempt, FailureCount, Incarnation, Job, Run, Worker
from apps.jobs.services.importing import import_jobs
from recovery.signals import SignalKind, Source
from tests import factories, facts
from tests.factories import CLEAN, PlayedJob
from tests.incidents.lives import recover_in_place, watch

pytestmark = pytest.mark.django_db(transaction=True)


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


def test_worker_rows_of_a_stopped_job_hold_no_open_order(training: PlayedJob) -> None:
    watch(training, SignalKind.JOB_SUSPENDED, 5)
    training.decide()
    assert set(Worker.objects.filter(job=training.job).values_list("inner_phase", flat=True)) == {"Stopped"}
    assert Decision.objects.filter(subject=training.subject).latest("n").rule == "suspended"
    assert not Incarnation.objects.filter(worker__job=training.job, is_end_ordered=True).exists()


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
