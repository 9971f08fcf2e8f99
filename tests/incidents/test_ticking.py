"""What the tick finds due."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.incidents.models import InboxEntry, Incident, Signal
from apps.incidents.services.signals import UNHURRIED_SECONDS
from apps.incidents.services.ticking import find_due
from apps.jobs.models import FailureCount, Incarnation
from recovery.signals import SignalKind
from tests.factories import PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)


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
