"""A subject whose decision fails: it alone stands still, it is seen, and it is tried again ever more seldom."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse

from apps.access.clock import database_now
from apps.incidents import metrics
from apps.incidents.models import InboxEntry, Subject
from apps.incidents.services import deciding, people, reserving, ticking
from recovery import decide as core
from recovery.errors import SubjectBusy
from tests import factories
from tests.factories import PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedJob]:
    """A job with a waiting failure, whose decision raises."""
    job = PlayedJob(factories.make_job(workers=2))
    job.start_training()
    job.kill(0)
    real = core.decide

    def decide(state: Any, *rest: Any) -> Any:
        if state.subject.key == job.subject.key:
            raise ValueError("a value that nobody foresaw")
        return real(state, *rest)

    monkeypatch.setattr(reserving, "decide", decide)
    yield job
    monkeypatch.undo()


def undecided(job: PlayedJob) -> int:
    return InboxEntry.objects.filter(subject=job.subject, decision_n__isnull=True).count()


def test_failing_decision_is_put_off_and_seen(poisoned: PlayedJob, caplog: pytest.LogCaptureFixture) -> None:
    poisoned.decide()
    stuck = poisoned.subject
    assert stuck.failures == 1
    assert "a value that nobody foresaw" in stuck.failure
    assert stuck.put_off_until_at is not None
    assert "decision.failed" in caplog.text
    assert undecided(poisoned) == 1
    assert stuck.pk not in ticking.find_due().subjects
    poisoned.decide()
    assert poisoned.subject.failures == 1, "it was tried again before its time"
    (query,) = [query for name, _, _, query in metrics._GAUGES if name == "incidentdesk_stuck_subjects"]
    with connection.cursor() as cursor:
        cursor.execute(query)
        assert cursor.fetchone() == (1,)


def test_waits_grow_and_a_decision_that_works_clears_it(
    poisoned: PlayedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    for _ in range(12):
        Subject.objects.filter(pk=poisoned.subject.pk).update(put_off_until_at=database_now())
        assert poisoned.subject.pk in ticking.find_due().subjects
        before = database_now()
        poisoned.decide()
        until = poisoned.subject.put_off_until_at
        assert until is not None
        waits.append((until - before).total_seconds())
    assert waits[0] < 5 < waits[4] < waits[-1] <= deciding.PUT_OFF_MOST_SECONDS + 1
    monkeypatch.undo()
    Subject.objects.filter(pk=poisoned.subject.pk).update(put_off_until_at=database_now())
    poisoned.decide()
    assert undecided(poisoned) == 0
    assert poisoned.retries() == (1, 0)
    fresh = poisoned.subject
    assert (fresh.failures, fresh.failure, fresh.put_off_until_at) == (0, "", None)


def test_other_subjects_go_on(poisoned: PlayedJob) -> None:
    other = PlayedJob(factories.make_job(workers=2))
    other.start_training()
    other.kill(1)
    poisoned.decide()
    other.decide()
    assert other.retries() == (0, 1)


def test_tick_goes_on_when_one_part_of_it_fails(
    poisoned: PlayedJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*, now: object) -> list[int]:
        raise ValueError("lapsed in an odd way")

    monkeypatch.setattr(ticking, "recover_lapsed", fail)
    assert poisoned.subject.pk in ticking.find_due().subjects
    assert "lapsed in an odd way" in caplog.text


def test_database_that_is_away_is_no_fault_of_the_subject(
    poisoned: PlayedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(reserving, "decide", away)
    with pytest.raises(OperationalError):
        poisoned.decide()
    assert poisoned.subject.failures == 0


def test_person_is_told_that_it_cannot_be_decided(poisoned: PlayedJob) -> None:
    person = factories.make_user()
    with pytest.raises(SubjectBusy, match="nothing was changed"):
        people.stop_job(job_id=poisoned.job.pk, by=person, reason="enough")
    assert poisoned.subject.failures == 1
    assert undecided(poisoned) == 1


def test_put_off_subject_is_decided_for_a_person_at_once(
    poisoned: PlayedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned.decide()
    monkeypatch.undo()
    later = database_now() + timedelta(minutes=1)
    Subject.objects.filter(pk=poisoned.subject.pk).update(put_off_until_at=later)
    job = people.stop_job(job_id=poisoned.job.pk, by=factories.make_user(), reason="enough")
    assert job.phase == "Stopped"
    assert poisoned.subject.failures == 0


def test_page_says_that_nobody_looks_after_it(poisoned: PlayedJob, client: Client) -> None:
    client.force_login(factories.make_user(tenant=poisoned.job.tenant))
    address = reverse("desk:job_detail", args=[poisoned.job.pk])
    assert "not looked after" not in client.get(address).content.decode()
    poisoned.decide()
    page = client.get(address).content.decode()
    assert "not looked after: the last 1 decision about it failed" in page
    assert "a value that nobody foresaw" not in page
