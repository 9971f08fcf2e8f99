"""A person's word, decided inside the request."""

from __future__ import annotations

import pytest

from apps.incidents.models import Action, Incident
from apps.incidents.services.acting import run_action
from apps.incidents.services.people import resolve_incident, stop_job
from recovery.errors import InvalidTransition
from recovery.signals import SignalKind
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)


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
