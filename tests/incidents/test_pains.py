"""What users of such systems suffered, played on rows. The letter and number name the complaint."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

import incidentdesk.celery  # noqa: F401 - the app that wakes workers
from adapters.fake import FakeCluster
from apps.access.clock import database_now
from apps.incidents.models import Action, InboxEntry, Incident, Signal, TimelineEvent
from apps.incidents.services import acting, deciding, people, ticking
from apps.incidents.services.deciding import decide_subject
from apps.jobs.models import FailureCount, Incarnation, Job, Order, Pod
from apps.nodes.models import Machine
from recovery.errors import ClusterUnavailable
from recovery.ports import Cluster, JobStatus
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


def no_cluster() -> Cluster:
    pytest.fail("this action needs no cluster")


def training(**job: object) -> PlayedJob:
    played = PlayedJob(factories.make_job(**{"workers": 3, "max_retry": 2, **job}))  # type: ignore[arg-type]
    played.start_training()
    return played


def fail_over_budget() -> PlayedJob:
    played = training(max_retry=0)
    played.kill(0)
    played.decide()
    played.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    assert played.fresh().phase == "Failed"
    return played


def put_in_cluster(job: Job) -> FakeCluster:
    status = JobStatus(uid=job.owner_uid, resource_version="1", is_suspended=False, active=3)
    return FakeCluster(jobs={(job.namespace, job.name): status})


def tick() -> None:
    """A tick, and the workers that it wakes."""
    for subject_id in ticking.find_due().subjects:
        decide_subject(subject_id=subject_id)


def test_stop_whose_effect_never_shows_ends_at_its_deadline_and_a_person_is_asked() -> None:
    """R19: an action that was sent and is never seen does not look in progress for ever."""
    played = fail_over_budget()
    cluster = put_in_cluster(played.job)
    action = Action.objects.get(incident__job=played.job, kind="stop_job")
    acting.run_action(action_id=action.pk, cluster=lambda: cluster)
    tick()
    action.refresh_from_db()
    assert action.state == "verifying"
    Action.objects.filter(pk=action.pk).update(deadline_at=database_now() - timedelta(seconds=1))
    tick()
    action.refresh_from_db()
    assert action.state == "failed"
    assert "deadline" in action.end_reason
    incident = Incident.objects.get(pk=action.incident_id)
    assert incident.state == "needs_person"
    assert incident.actions.filter(kind="ask_person").exists()


def test_suspend_whose_answer_was_lost_is_looked_for_and_not_repeated() -> None:
    """R20: an ambiguous outcome is settled by reading."""
    played = fail_over_budget()
    cluster = put_in_cluster(played.job)
    cluster.fails_after_next = ClusterUnavailable("connection reset", ambiguous=True)
    action = Action.objects.get(incident__job=played.job, kind="stop_job")
    acting.run_action(action_id=action.pk, cluster=lambda: cluster)
    action.refresh_from_db()
    assert (action.state, action.tries.get().outcome) == ("verifying", "ambiguous")
    tick()
    acting.run_action(action_id=action.pk, cluster=lambda: cluster)
    Job.objects.filter(pk=played.job.pk).update(is_suspended=True)
    Pod.objects.filter(job=played.job).update(gone_at=database_now())
    tick()
    action.refresh_from_db()
    assert action.state == "done"
    assert len(cluster.writes) == 1


def test_reboot_whose_executor_died_is_looked_for_and_never_sent_again() -> None:
    """R20: nobody knows whether it went out before the executor died."""
    played = fail_over_budget()
    stop = Action.objects.get(incident__job=played.job, kind="stop_job")
    past = database_now() - timedelta(seconds=1)
    for kind in ("reboot_node", "stop_job"):
        Action.objects.filter(pk=stop.pk).update(
            kind=kind, state="running", try_n=1, lease_until_at=past, lease_owner="gone"
        )
        again = acting.recover_lapsed(now=database_now())
        stop.refresh_from_db()
        assert (stop.state, again) == (("verifying", []) if kind == "reboot_node" else ("ready", [stop.pk]))


def test_node_that_is_not_ready_for_a_moment_opens_nothing_while_training_steps() -> None:
    """R24: a status of the node alone is no death of its workers."""
    played = training()
    life = played.lives[0]
    now = database_now()
    machine = Machine.objects.create(
        cluster=played.job.cluster,
        hardware_key="hw-0",
        name=life.node_name,
        is_ready=True,
        first_seen_at=now,
        last_seen_at=now,
    )
    Incarnation.objects.filter(pk=life.pk).update(
        machine=machine, last_seen_at=now - timedelta(hours=1), step=30, step_at=now
    )
    Machine.objects.filter(pk=machine.pk).update(is_ready=False)
    tick()
    assert Signal.objects.filter(kind="agent_silent", incarnation_id=life.pk).exists()
    assert not Incident.objects.filter(job=played.job).exists()
    assert played.fresh().phase == "RunCommand"
    assert played.retries() == (0, 0, 0)


def test_what_is_not_done_is_a_row_with_its_reason() -> None:
    """R25, R26: a cluster that only watches says what it would do, does nothing, and counts as would."""
    played = PlayedJob(factories.make_job(workers=3, cluster=factories.make_cluster(mode="observe")))
    for index in range(3):
        played.enrol(index)
    played.record(SignalKind.WORLD_RUNNING, Source.WATCH, "world", {})
    played.decide()
    assert played.fresh().phase == "RunCommand"
    played.end(played.lives[1])
    played.decide()
    action = Action.objects.get(incident__job=played.job)
    assert (action.kind, action.state) == ("restart_process", "refused")
    assert "observe" in action.refused_because
    assert not Order.objects.filter(job=played.job).exists()
    assert [count.would for count in FailureCount.objects.filter(job=played.job)] == [True]
    assert played.retries() == (0, 0, 0)
    refusals = TimelineEvent.objects.filter(incident=action.incident, kind="action_refused")
    assert "observe" in refusals.get().text


def test_resolved_by_a_person_then_failing_again_is_the_same_incident_counted() -> None:
    """D10: flapping is one incident with a counter."""
    played = training(max_retry=9)
    by = factories.make_user()
    for n in range(3):
        played.kill(0)
        played.decide()
        incident = Incident.objects.get(job=played.job)
        assert (incident.reopened_count, incident.resolved_at) == (n, None)
        played.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
        action = incident.actions.get(kind="restart_process", state="ready")
        acting_now(played, action)
        people.resolve_incident(incident_id=incident.pk, by=by, reason="seen")


def acting_now(played: PlayedJob, action: Action) -> None:
    """The restart is carried out and every agent tells of its new process."""
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    acting.run_action(action_id=action.pk, cluster=no_cluster)
    played.begin_attempt()
    action.refresh_from_db()
    assert action.state == "done"


def test_new_cause_in_an_acknowledged_incident_is_written_and_told_to_pages() -> None:
    """D9: a forgotten acknowledged incident swallows nothing."""
    played = training(max_retry=9)
    played.kill(0)
    played.decide()
    incident = Incident.objects.get(job=played.job)
    people.acknowledge_incident(incident_id=incident.pk, by=factories.make_user())
    played.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    acting_now(played, incident.actions.get(kind="restart_process"))
    incident.refresh_from_db()
    before = (incident.version, incident.timeline_n, incident.severity)
    played.end(played.lives[1])
    played.decide()
    incident.refresh_from_db()
    assert Incident.objects.filter(job=played.job).count() == 1
    assert [cause.category for cause in incident.causes.all()] == ["process_killed", "pod_deleted"]
    assert incident.version > before[0]
    assert incident.timeline_n > before[1]
    assert (before[2], incident.severity) == ("medium", "high")
    assert [notice.text for notice in incident.notices.all()] == [
        f"Another cause joined {incident}: {incident.causes.last().text}"
    ]


def test_long_backlog_is_drained_and_none_of_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: who falls behind loses no place: the inbox is read by what is undecided, in bounded parts."""
    monkeypatch.setattr(deciding, "MAX_INBOX", 20)
    played = training()
    for n in range(50):
        played.record(SignalKind.LOG, Source.API, f"line-{n}", {"lines": [str(n)]})
    played.kill(0)
    again = True
    while again:
        again = decide_subject(subject_id=played.subject.pk)
    assert not InboxEntry.objects.filter(subject=played.subject, decision_n__isnull=True).exists()
    assert played.retries() == (1, 0, 0)
    assert uses(played) <= {"used", "late", "context"}


def uses(played: PlayedJob) -> set[str]:
    return set(InboxEntry.objects.filter(subject=played.subject).values_list("use", flat=True))


def test_lost_wake_up_is_found_by_the_tick() -> None:
    """R4, R36: level and not edge: nobody was woken, and the next tick finds what is due."""
    played = training()
    played.kill(0)
    tick()
    assert played.retries() == (1, 0, 0)
    played.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    due: Iterable[int] = ticking.find_due().actions
    assert list(due) == [Action.objects.get(incident__job=played.job, kind="restart_process").pk]


@pytest.mark.parametrize("act", ["resolve", "cancel"])
def test_executor_that_comes_while_a_person_takes_it_back_sends_nothing(act: str) -> None:
    """R8, R9: whoever is first has it whole: nothing goes out behind a yes, and no yes is said for nothing."""
    played = training(max_retry=9)
    played.kill(0)
    played.decide()
    played.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    incident = Incident.objects.get(job=played.job)
    action = incident.actions.get(kind="restart_process")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    by = factories.make_user()
    executor = threading.Thread(target=run_and_close, args=(action.pk,))

    def meanwhile(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        if connection.in_atomic_block and "incidents_action" in sql and not executor.ident:
            executor.start()
            executor.join(0.5)  # it waits for us, or it is done
        return answer

    with connection.execute_wrapper(meanwhile):
        if act == "resolve":
            people.resolve_incident(incident_id=incident.pk, by=by, reason="I do it by hand")
        else:
            people.cancel_action(action_id=action.pk, by=by, reason="I do it by hand")
    executor.join(10)
    action.refresh_from_db()
    incident.refresh_from_db()
    assert (action.state, action.try_n) == ("cancelled", 0)
    assert incident.state == ("resolved" if act == "resolve" else "needs_person")
    assert not Order.objects.filter(job=played.job, sequence__gt=played.fresh().sequence).exists()
    assert played.fresh().attempt == 1


def run_and_close(action_id: int) -> None:
    try:
        acting.run_action(action_id=action_id, cluster=no_cluster)
    finally:
        connection.close()
