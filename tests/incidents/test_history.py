"""What earlier attempts and the machines involved say, on rows: kept beyond the incident, read by a decision."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.db.models import F

from apps.access.clock import database_now
from apps.incidents.models import Action, Decision, Incident, Subject
from apps.incidents.services import acting, people
from apps.incidents.services.replaying import replay_after
from apps.jobs.models import Attempt
from recovery.signals import SignalKind
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_app, "send_task", lambda *_, **__: None)


def fail(job: PlayedJob, *lines: str, index: int = 0, **body: Any) -> None:
    """A worker's process ends with these lines, and all workers stop."""
    told = {"exit_code": 1, "log_tail": list(lines), "step": 30, **body}
    job.say(index, SignalKind.ERROR, "command", told, sequence=job.fresh().attempt_sequence)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {}})


def restart(job: PlayedJob) -> None:
    action = Action.objects.get(incident__job=job.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    acting.run_action(action_id=action.pk, cluster=lambda: pytest.fail("no cluster"))
    job.begin_attempt()


def an_hour_passes(job: PlayedJob) -> None:
    """The job's incident is resolved, an hour goes by, and the incident closes."""
    incident = Incident.objects.get(job=job.job, resolved_at=None)
    people.resolve_incident(incident_id=incident.pk, by=factories.make_user(), reason="it trains")
    Incident.objects.filter(pk=incident.pk).update(resolved_at=F("resolved_at") - HOUR)
    rows = Attempt.objects.filter(job=job.job)
    rows.update(started_at=F("started_at") - HOUR, first_step_at=F("first_step_at") - HOUR)
    rows.filter(ended_at__isnull=False).update(ended_at=F("ended_at") - HOUR)
    Subject.objects.filter(job=job.job).update(next_look_at=database_now())
    job.decide()
    incident.refresh_from_db()
    assert incident.state == "closed"


def found_in(job: PlayedJob) -> dict[str, Any]:
    return dict(Incident.objects.filter(job=job.job).latest("id").verdict["diagnosis"])


def test_job_that_fails_alike_each_hour_is_stopped_though_its_incident_closed_between() -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=9))
    job.start_training()
    fail(job, "KeyError: 'lr_schedule'")
    assert (found_in(job)["remedy"], found_in(job)["times"]) == ("fail_fast", 1)
    restart(job)
    an_hour_passes(job)
    fail(job, "KeyError: 'lr_schedule'")
    assert Incident.objects.filter(job=job.job).count() == 2
    assert found_in(job)["times"] == 2
    stop = Action.objects.get(incident__job=job.job, kind="stop_job")
    assert "in 2 attempts in a row" in stop.why
    assert Decision.objects.filter(subject=job.subject).latest("n").rule == "ladder.fail_fast"
    rows = Attempt.objects.filter(job=job.job).order_by("n")
    assert (
        list(rows.values_list("found_rule", "found_node", "found_rank"))
        == [("program.plain", "node-0", 0)] * 2
    )
    assert replay_after(0)[1] == []


def test_another_error_an_hour_later_is_no_row() -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=9))
    job.start_training()
    fail(job, "KeyError: 'lr_schedule'")
    restart(job)
    an_hour_passes(job)
    fail(job, "OSError: [Errno 116] Stale file handle")
    assert found_in(job)["times"] == 1
    assert not Action.objects.filter(incident__job=job.job, kind="stop_job").exists()
