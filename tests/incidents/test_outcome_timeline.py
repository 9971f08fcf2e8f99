"""Which lines an incident's timeline gets, and in which order."""

from __future__ import annotations

import pytest
from django.db import transaction

from apps.incidents.models import Incident
from apps.jobs.services.checkpoints import record_checkpoint
from recovery.signals import SignalKind
from tests.factories import PlayedJob
from tests.incidents.lives import recover_in_place

pytestmark = pytest.mark.django_db(transaction=True)


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
