"""Actions: claimed once, fenced by their try, cancelled before they begin, given back when a lease runs out."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connections

from adapters.fake import FakeCluster
from apps.access.clock import database_now
from apps.incidents.models import Action, Incident, Notice, Signal
from apps.incidents.services import acting, people, ticking
from apps.jobs.models import Job, Order, Pod
from recovery.errors import ClusterUnavailable, InvalidTransition
from recovery.ports import Cluster, JobStatus
from recovery.signals import SignalKind
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)


def no_cluster() -> Cluster:
    pytest.fail("this action needs no cluster")


def restart_of(job: PlayedJob) -> Action:
    return Incident.objects.get(job=job.job).actions.get(kind="restart_process")


@pytest.fixture
def stopped() -> PlayedJob:
    """A job whose workers have all stopped after a failure; its restart is ready."""
    job = PlayedJob(factories.make_job(workers=3, max_retry=2))
    job.start_training()
    job.kill(0)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    assert restart_of(job).state == "ready"
    return job


@pytest.fixture
def failed() -> PlayedJob:
    """A job over its budget; its stop is ready."""
    job = PlayedJob(factories.make_job(workers=3, max_retry=0))
    job.start_training()
    job.kill(0)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    assert job.fresh().phase == "Failed"
    return job


def stop_of(job: PlayedJob) -> Action:
    return Action.objects.get(incident__job=job.job, kind="stop_job")


def put_in_cluster(job: Job) -> FakeCluster:
    status = JobStatus(uid=job.owner_uid, resource_version="1", is_suspended=False, active=3)
    return FakeCluster(jobs={(job.namespace, job.name): status})


def let_lease_lapse(action: Action) -> None:
    Action.objects.filter(pk=action.pk).update(lease_until_at=database_now() - timedelta(seconds=1))


def test_restart_is_done_when_every_agent_reports_its_new_process(stopped: PlayedJob) -> None:
    action = restart_of(stopped)
    acting.run_action(action_id=action.pk, cluster=no_cluster)
    action.refresh_from_db()
    assert (action.state, action.try_n) == ("verifying", 1)
    assert stopped.fresh().phase == "RunCommand"
    for index in (0, 1):
        stopped.say(index, SignalKind.ACK, "command", {"pids": {"command": 200 + index}})
    stopped.decide()
    action.refresh_from_db()
    assert action.state == "verifying"
    stopped.say(2, SignalKind.ACK, "command", {"pids": {"command": 202}})
    stopped.decide()
    action.refresh_from_db()
    assert action.state == "done"
    assert stopped.retries() == (1, 1, 1)
    assert stopped.job.attempts.get(n=1).remedy == "restart_process"


def test_action_delivered_twice_runs_once(stopped: PlayedJob) -> None:
    action = restart_of(stopped)
    for _ in range(2):
        acting.run_action(action_id=action.pk, cluster=no_cluster)
    assert Signal.objects.filter(kind="action_go").count() == 1
    assert Order.objects.filter(job=stopped.job, phase="command").count() == 2


def test_two_executors_claim_it_once(stopped: PlayedJob) -> None:
    action = restart_of(stopped)
    barrier = threading.Barrier(2, timeout=10)

    def race() -> None:
        try:
            barrier.wait()
            acting.run_action(action_id=action.pk, cluster=no_cluster)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    action.refresh_from_db()
    assert action.tries.count() == 1
    assert Order.objects.filter(job=stopped.job, phase="command").count() == 2


def test_nothing_is_claimed_after_a_cancel(stopped: PlayedJob) -> None:
    """R9: re-check right before acting."""
    action = restart_of(stopped)
    people.cancel_action(action_id=action.pk, by=factories.make_user(), reason="wait for me")
    acting.run_action(action_id=action.pk, cluster=no_cluster)
    action.refresh_from_db()
    assert (action.state, action.try_n) == ("cancelled", 0)
    assert stopped.fresh().phase == "Troubleshooting"
    assert Incident.objects.get(job=stopped.job).state == "needs_person"


def test_running_action_cannot_be_cancelled(stopped: PlayedJob) -> None:
    action = restart_of(stopped)
    assert acting._claim(action.pk) is not None
    with pytest.raises(InvalidTransition, match="running"):
        people.cancel_action(action_id=action.pk, by=factories.make_user(), reason="too late")
    with pytest.raises(InvalidTransition, match="carried out right now"):
        people.resolve_incident(incident_id=action.incident_id, by=factories.make_user(), reason="too late")


def test_executor_dead_after_its_claim_is_replaced_when_the_lease_is_over(stopped: PlayedJob) -> None:
    """R36: killing the worker in the middle neither loses nor doubles an action."""
    action = restart_of(stopped)
    assert acting._claim(action.pk) is not None
    assert action.pk not in ticking.find_due().actions
    let_lease_lapse(action)
    assert action.pk in ticking.find_due().actions
    acting.run_action(action_id=action.pk, cluster=no_cluster)
    action.refresh_from_db()
    assert action.try_n == 2
    assert action.tries.get(n=1).outcome == "ambiguous"
    assert stopped.fresh().attempt == 2


def test_go_of_a_try_that_lost_its_lease_starts_nothing(stopped: PlayedJob) -> None:
    action = restart_of(stopped)
    sleeper = acting._claim(action.pk)
    assert sleeper is not None
    let_lease_lapse(action)
    ticking.find_due()
    acting.run_action(action_id=action.pk, cluster=no_cluster)
    stopped.begin_attempt()
    orders = Order.objects.filter(job=stopped.job).count()
    acting._send_restart(sleeper, no_cluster)  # it wakes up and goes on where it was
    assert Order.objects.filter(job=stopped.job).count() == orders
    assert stopped.fresh().attempt == 2
    go = Signal.objects.filter(kind="action_go").order_by("-id").first()
    assert go is not None
    assert go.inbox_entries.get().use == "stale"


def test_executor_dead_after_its_go_is_verified_and_not_sent_again(stopped: PlayedJob) -> None:
    action = restart_of(stopped)
    claimed = acting._claim(action.pk)
    assert claimed is not None
    acting._send_restart(claimed, no_cluster)
    let_lease_lapse(action)
    assert action.pk not in ticking.find_due().actions
    action.refresh_from_db()
    assert action.state == "verifying"
    assert Order.objects.filter(job=stopped.job, phase="command").count() == 2


def test_stop_stores_log_tails_then_suspends_and_waits_for_the_pods(failed: PlayedJob) -> None:
    """D25: success is said only when the effect was seen."""
    cluster = put_in_cluster(failed.job)
    action = stop_of(failed)
    acting.run_action(action_id=action.pk, cluster=lambda: cluster)
    action.refresh_from_db()
    assert action.state == "verifying"
    status = cluster.job_status(namespace=failed.job.namespace, name=failed.job.name)
    assert status is not None
    assert status.is_suspended
    assert action.incident.log_tails.count() == 3
    Job.objects.filter(pk=failed.job.pk).update(is_suspended=True)
    assert not acting.check_effect(action_id=action.pk)  # pods still run
    Pod.objects.filter(job=failed.job).update(gone_at=database_now())
    assert acting.check_effect(action_id=action.pk)
    action.refresh_from_db()
    assert action.state == "done"
    question = Action.objects.get(incident__job=failed.job, kind="ask_person")
    acting.run_action(action_id=question.pk, cluster=no_cluster)
    incident = Incident.objects.get(pk=action.incident_id)
    assert (incident.state, incident.resolution) == ("resolved", "job_ended")
    assert failed.job.attempts.get(n=1).remedy == "stop_job"


def test_job_that_somebody_else_suspended_is_found(failed: PlayedJob) -> None:
    cluster = put_in_cluster(failed.job)
    cluster.suspend_job(
        namespace=failed.job.namespace,
        name=failed.job.name,
        uid=failed.job.owner_uid,
        resource_version=None,
        annotations={},
    )
    action = stop_of(failed)
    acting.run_action(action_id=action.pk, cluster=lambda: cluster)
    action.refresh_from_db()
    assert action.state == "verifying"
    assert action.is_found


def test_cluster_without_answer_is_tried_again_later(failed: PlayedJob) -> None:
    action = stop_of(failed)
    away = FakeCluster(fails_next=ClusterUnavailable("connection refused"))
    # log tails are read first, so it is that call which fails
    acting.run_action(action_id=action.pk, cluster=lambda: away)
    action.refresh_from_db()
    assert action.state == "ready"
    assert action.not_before_at is not None
    assert action.tries.get(n=1).outcome == "retryable"
    assert "connection refused" in action.tries.get(n=1).detail


def test_stop_that_never_gets_through_ends_at_its_deadline_and_asks_a_person(failed: PlayedJob) -> None:
    """R19: a failed action must not look in progress for ever."""
    action = stop_of(failed)
    away = FakeCluster(fails_next=ClusterUnavailable("connection refused"))
    acting.run_action(action_id=action.pk, cluster=lambda: away)
    Action.objects.filter(pk=action.pk).update(deadline_at=database_now() - timedelta(seconds=1))
    due = ticking.find_due()
    assert failed.subject.pk in due.subjects
    failed.decide()
    action.refresh_from_db()
    assert action.state == "failed"
    assert "never got through" in action.end_reason
    incident = Incident.objects.get(pk=action.incident_id)
    assert incident.state == "needs_person"
    assert incident.actions.filter(kind="ask_person", state="ready").exists()


def test_people_are_told_why_the_job_was_stopped(failed: PlayedJob) -> None:
    question = Action.objects.get(incident__job=failed.job, kind="ask_person")
    acting.run_action(action_id=question.pk, cluster=no_cluster)
    question.refresh_from_db()
    assert question.state == "done"
    assert Notice.objects.get(action=question).delivered_at is not None


def test_silent_agent_is_evidence_and_counts_nothing(stopped: PlayedJob) -> None:
    job = PlayedJob(factories.make_job(workers=2))
    job.start_training()
    life = job.lives[0]
    life.last_seen_at = database_now() - timedelta(seconds=settings.TIMINGS["AGENT_LOST_SECONDS"] + 1)
    life.save()
    due = ticking.find_due()
    assert job.subject.pk in due.subjects
    job.decide()
    assert Signal.objects.filter(kind="agent_silent", incarnation_id=life.pk).count() == 1
    assert job.retries() == (0, 0)
    assert job.fresh().phase == "RunCommand"
    life.last_seen_at = database_now()
    life.save(update_fields=["last_seen_at"])
    ticking.find_due()
    assert Signal.objects.filter(kind="agent_back", incarnation_id=life.pk).count() == 1
