"""A person has all workers of a job start again: with rows, guards and orders as the desk's own restart."""

from __future__ import annotations

import pytest

from apps.access.models import AuditEntry, User
from apps.incidents.models import Action, Incident
from apps.incidents.selectors import restart_offer
from apps.incidents.services.acting import run_action
from apps.incidents.services.people import cancel_action, restart_in_place
from apps.jobs.models import Checkpoint, FailureCount, Worker
from recovery.errors import InvalidTransition
from recovery.signals import SignalKind
from tests.factories import CLEAN, PlayedJob, make_job, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def mei() -> User:
    return make_user()


@pytest.fixture
def still(mei: User) -> PlayedJob:
    """All workers stand still, and a person has cancelled the desk's restart."""
    job = PlayedJob(make_job(workers=2, max_retry=2))
    job.start_training()
    job.kill(1)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    restart = Action.objects.get(incident__job=job.job, kind="restart_process")
    cancel_action(action_id=restart.pk, by=mei, reason="I look first")
    return job


def incident_of(job: PlayedJob) -> Incident:
    return Incident.objects.select_related("job__cluster").get(job=job.job)


def offer_of(job: PlayedJob) -> str | None:
    incident = incident_of(job)
    offer = restart_offer(incident, list(incident.actions.all()))
    return offer.refused if offer is not None else None


def test_all_start_again_by_a_persons_word(still: PlayedJob, mei: User) -> None:
    Checkpoint.objects.create(
        tenant=still.job.tenant, job=still.job, step=300, path="/c/300", state="committed"
    )
    incident = incident_of(still)
    offer = restart_offer(incident, list(incident.actions.all()))
    assert offer is not None
    assert (offer.refused, offer.from_step) == ("", 300)
    counted = FailureCount.objects.count()

    restart_in_place(incident_id=incident.pk, by=mei, reason="the mount is back")
    wanted = Action.objects.get(incident=incident, kind="restart_process", state="ready")
    assert wanted.why == f"Restart in place, asked by {mei}: the mount is back"
    assert incident_of(still).state == "recovering"
    assert offer_of(still) is None, "it is no question any more"
    entry = AuditEntry.objects.get(verb="restart")
    assert (entry.actor, entry.reason, entry.target) == (str(mei), "the mount is back", str(incident))
    line = incident.timeline.get(kind="restart_asked")
    assert (line.actor_kind, line.actor) == ("person", str(mei))

    run_action(action_id=wanted.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    still.begin_attempt()
    job = still.fresh()
    assert (job.phase, job.attempt) == ("RunCommand", 2)
    order = still.order()
    assert order is not None
    assert order.content["resume"] == {"step": 300, "path": "/c/300"}
    assert FailureCount.objects.count() == counted == 1
    assert still.retries() == (1, 1)


def test_second_wish_finds_the_first(still: PlayedJob, mei: User) -> None:
    incident = incident_of(still)
    restart_in_place(incident_id=incident.pk, by=mei)
    restart_in_place(incident_id=incident.pk, by=mei)
    wanted = Action.objects.get(incident=incident, kind="restart_process", state="ready")
    run_action(action_id=wanted.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    with pytest.raises(InvalidTransition, match="being carried out"):
        restart_in_place(incident_id=incident.pk, by=mei)
    assert Action.objects.filter(incident=incident, kind="restart_process").count() == 2


def test_agent_that_is_gone_is_named_and_nothing_is_changed(still: PlayedJob, mei: User) -> None:
    Worker.objects.filter(job=still.job, index=1).update(is_enrolled=False)
    assert offer_of(still) == "worker 1 is gone or about to leave; look at its pod"
    with pytest.raises(InvalidTransition, match="worker 1 is gone"):
        restart_in_place(incident_id=incident_of(still).pk, by=mei)
    assert incident_of(still).state == "needs_person"
    assert not Action.objects.filter(incident__job=still.job, state="ready").exists()


def test_resolved_incident_restarts_nothing(still: PlayedJob, mei: User) -> None:
    incident = incident_of(still)
    Incident.objects.filter(pk=incident.pk).update(state="resolved", resolved_at=incident.opened_at)
    with pytest.raises(InvalidTransition, match="resolved already"):
        restart_in_place(incident_id=incident.pk, by=mei)


def test_observed_job_says_who_restarts_it(still: PlayedJob) -> None:
    still.job.cluster.mode = "observe"
    still.job.cluster.save()
    assert "in observe, so no agent obeys" in str(offer_of(still))
