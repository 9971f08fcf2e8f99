"""The loop: one writer per subject, no wake-up lost, nothing recorded twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection, connections, transaction

from apps.incidents.models import Decision, InboxEntry, Incident, Signal, Subject
from apps.incidents.services import deciding, people
from apps.incidents.services.deciding import decide_subject
from apps.jobs.models import FailureCount
from recovery.errors import Conflict, InvalidTransition, SubjectBusy
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)


def in_thread(work: Callable[[], None]) -> threading.Thread:
    """Run ``work`` on a connection of its own."""

    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_job_starts_through_boot_check_and_steps(training: PlayedJob) -> None:
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 1, 0)
    assert list(job.orders.values_list("phase", flat=True)) == ["bootcheck", "command"]
    attempt = job.attempts.get(n=1)
    assert attempt.first_step_at is not None
    assert attempt.sequence == job.attempt_sequence == 2


def test_burst_of_worker_errors_is_one_decision_and_one_count(training: PlayedJob) -> None:
    """R35: failures at once are one incident and one plan."""
    before = training.subject.decision_n
    for index in range(3):
        training.kill(index)
    training.decide()
    assert training.subject.decision_n == before + 1
    assert FailureCount.objects.filter(job=training.job).count() == 1
    assert Incident.objects.filter(job=training.job).count() == 1
    assert sum(training.retries()) == 1


def test_report_sent_twice_is_recorded_once(training: PlayedJob) -> None:
    life = training.lives[0]
    first = training.record(SignalKind.LOG, Source.AGENT, f"{life.pk}:77", {"lines": ["a"]})
    second = training.record(SignalKind.LOG, Source.AGENT, f"{life.pk}:77", {"lines": ["a"]})
    assert (first.is_new, second.is_new) == (True, False)
    assert first.signal_id == second.signal_id
    assert InboxEntry.objects.filter(signal_id=first.signal_id).count() == 1


def test_key_used_again_with_another_body_is_a_conflict(training: PlayedJob) -> None:
    training.record(SignalKind.LOG, Source.HOOK, "key-1", {"lines": ["a"]})
    with pytest.raises(Conflict, match="told before with other contents; the first stays"):
        training.record(SignalKind.LOG, Source.HOOK, "key-1", {"lines": ["b"]})
    assert Signal.objects.get(source_key="key-1").body == {"lines": ["a"]}


def test_held_subject_is_left_to_its_holder(training: PlayedJob) -> None:
    training.kill(0)
    subject_id = training.subject.pk
    answers: list[bool] = []
    with transaction.atomic():
        Subject.objects.select_for_update(no_key=True).get(pk=subject_id)
        thread = in_thread(lambda: answers.append(decide_subject(subject_id=subject_id)))
        thread.join(10)
    assert answers == [False]
    assert training.retries() == (0, 0, 0)


def test_open_insert_into_the_inbox_does_not_hide_the_subject(training: PlayedJob) -> None:
    """An insert holds KEY SHARE on the subject; the decision must still get its lock."""
    training.kill(0)
    subject_id = training.subject.pk
    with transaction.atomic():
        training.record(SignalKind.LOG, Source.API, "open-insert", {"lines": ["a"]})
        thread = in_thread(lambda: decide_subject(subject_id=subject_id) and None)
        thread.join(10)
        assert not thread.is_alive()
        assert training.retries() == (1, 0, 0)


def test_signal_committed_while_the_holder_decides_is_decided_by_the_holder(
    training: PlayedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake-up that finds the subject held leaves; the holder looks once more after its lock is gone."""
    subject_id = training.subject.pk
    training.record(SignalKind.LOG, Source.API, "first", {"lines": ["a"]})
    real = deciding.store_decision
    answers: list[bool] = []

    def store_while_another_comes(*args: object, **fields: object) -> list[int]:
        if not answers:

            def another() -> None:
                training.record(SignalKind.LOG, Source.API, "second", {"lines": ["b"]})
                answers.append(decide_subject(subject_id=subject_id))

            in_thread(another).join(10)
        return real(*args, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(deciding, "store_decision", store_while_another_comes)
    assert decide_subject(subject_id=subject_id) is False
    assert answers == [False]
    assert not InboxEntry.objects.filter(subject_id=subject_id, decision_n__isnull=True).exists()


def test_two_workers_make_one_incident(training: PlayedJob) -> None:
    """D7: two workers create the same incident; there is one."""
    training.kill(0)
    training.kill(1)
    subject_id = training.subject.pk
    barrier = threading.Barrier(2, timeout=10)

    def race() -> None:
        barrier.wait()
        decide_subject(subject_id=subject_id)

    threads = [in_thread(race) for _ in range(2)]
    for thread in threads:
        thread.join(20)
    decide_subject(subject_id=subject_id)
    assert Incident.objects.filter(job=training.job).count() == 1
    assert FailureCount.objects.filter(job=training.job).count() == 1


def test_decision_that_dies_before_its_commit_leaves_everything_undecided(
    training: PlayedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.kill(0)
    real = deciding.store_decision

    def die(*args: object, **fields: object) -> list[int]:
        real(*args, **fields)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(deciding, "store_decision", die)
    with pytest.raises(KeyboardInterrupt):
        training.decide()
    monkeypatch.undo()
    assert training.retries() == (0, 0, 0)
    assert InboxEntry.objects.filter(subject=training.subject, decision_n__isnull=True).count() == 1
    training.decide()
    assert training.retries() == (1, 0, 0)


def test_every_drained_signal_is_marked_with_its_use(training: PlayedJob) -> None:
    training.kill(0)
    training.decide()
    entries = InboxEntry.objects.filter(subject=training.subject)
    assert all(entry.use for entry in entries)
    numbers = list(
        Decision.objects.filter(subject=training.subject).order_by("n").values_list("n", flat=True)
    )
    assert numbers == list(range(1, len(numbers) + 1))


def test_person_waits_at_most_two_seconds_for_a_decision(training: PlayedJob) -> None:
    training.kill(0)
    training.decide()
    incident = Incident.objects.get(job=training.job)
    by = factories.make_user()
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Subject.objects.select_for_update(no_key=True).get(pk=training.subject.pk)
            locked.set()
            done.wait(20)

    holder = in_thread(hold)
    assert locked.wait(10)
    try:
        with pytest.raises(SubjectBusy, match="nothing was changed"):
            people.resolve_incident(incident_id=incident.pk, by=by, reason="I fixed it")
    finally:
        done.set()
        holder.join(10)
    incident.refresh_from_db()
    assert incident.state != "resolved"


def test_person_resolves_and_the_queued_restart_is_cancelled(training: PlayedJob) -> None:
    """R8: cancelling an incident cancels every queued step."""
    training.kill(0)
    training.decide()
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    incident = Incident.objects.get(job=training.job)
    assert incident.actions.get(kind="restart_process").state == "ready"
    people.resolve_incident(incident_id=incident.pk, by=factories.make_user(), reason="I restart it by hand")
    incident.refresh_from_db()
    assert (incident.state, incident.resolution) == ("resolved", "by_person")
    assert incident.actions.get(kind="restart_process").state == "cancelled"


def test_acknowledge_after_resolve_is_refused_with_the_present_state(training: PlayedJob) -> None:
    """D8: an acknowledge that comes after resolve must not reopen the incident."""
    training.kill(0)
    training.decide()
    incident = Incident.objects.get(job=training.job)
    by = factories.make_user()
    people.resolve_incident(incident_id=incident.pk, by=by, reason="done")
    with pytest.raises(InvalidTransition, match="resolved"):
        people.acknowledge_incident(incident_id=incident.pk, by=by)
    incident.refresh_from_db()
    assert incident.state == "resolved"
    assert incident.acknowledged_by is None


def test_acknowledge_of_an_older_version_is_a_conflict(training: PlayedJob) -> None:
    training.kill(0)
    training.decide()
    incident = Incident.objects.get(job=training.job)
    with pytest.raises(Conflict, match="changed meanwhile"):
        people.acknowledge_incident(
            incident_id=incident.pk, by=factories.make_user(), version=incident.version + 1
        )


def test_decisions_use_few_queries(
    training: PlayedJob, django_assert_max_num_queries: Callable[..., object]
) -> None:
    training.kill(0)
    with django_assert_max_num_queries(60):  # type: ignore[attr-defined]
        training.decide()
    assert connection is not None
