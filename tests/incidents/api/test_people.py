"""What a person does over the REST API is decided inside the request."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from apps.access.models import AuditEntry, Role
from apps.access.services import create_token
from apps.incidents.models import Action, Incident
from tests.factories import PlayedJob, make_job, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def played(settings: Any) -> PlayedJob:
    """A job whose worker was killed; the restart waits a minute for its backoff."""
    settings.TIMINGS = {
        **settings.TIMINGS,
        "BACKOFF_BASE_SECONDS": 60.0,
        "BACKOFF_CAP_SECONDS": 600.0,
        "BACKOFF_FREE_RESTARTS": 0.0,
    }
    played = PlayedJob(make_job())
    played.start_training()
    played.kill(1)
    played.decide()
    checks = {"checks": [{"check": "disk", "result": "pass", "seconds": 0.01}], "stopped": {"killed": 1}}
    for index in played.lives:
        played.say(index, "ack", "troubleshoot", checks)  # type: ignore[arg-type]
    played.decide()
    return played


@pytest.fixture
def operator(played: PlayedJob) -> Client:
    client = Client()
    user = make_user(tenant=played.job.tenant, roles=(Role.OPERATOR,))
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    return client


def post(client: Client, path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = client.post(f"/api/v1/{path}/", body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def restart(played: PlayedJob) -> Action:
    return Action.objects.get(kind="restart_process", incident__job=played.job)


def test_waiting_restart_is_done_now(played: PlayedJob, operator: Client) -> None:
    before = restart(played)
    assert before.not_before_at is not None
    answer = post(operator, f"actions/{before.pk}/do-now", {})
    assert answer["id"] == before.pk
    after = restart(played)
    assert after.not_before_at is not None
    assert after.not_before_at < before.not_before_at
    assert AuditEntry.objects.get(verb="do_now").actor.startswith("person-")


def test_cancelled_action_is_cancelled_once(played: PlayedJob, operator: Client) -> None:
    action = restart(played)
    answer = post(operator, f"actions/{action.pk}/cancel", {"reason": "I look at it first"})
    assert answer["state"] == "cancelled"
    again = post(operator, f"actions/{action.pk}/cancel", {"reason": "again"}, status=409)
    assert again["present"]["state"] == "cancelled"
    assert AuditEntry.objects.filter(verb="cancel").count() == 1


def test_resolved_incident_is_resolved_once(played: PlayedJob, operator: Client) -> None:
    incident = Incident.objects.get(job=played.job)
    answer = post(operator, f"incidents/{incident.pk}/resolve", {"reason": "known maintenance"})
    assert (answer["state"], answer["resolution"]) == ("resolved", "by_person")
    again = post(operator, f"incidents/{incident.pk}/resolve", {"reason": "again"}, status=409)
    assert again["present"]["state"] == "resolved"


def test_token_resolves_an_incident_once_and_is_named(played: PlayedJob) -> None:
    incident = Incident.objects.get(job=played.job)
    _, plain = create_token(
        tenant_id=played.job.tenant_id,
        name="pager",
        scopes=["incidents:write"],
        actor_kind="command",
        actor="test",
    )
    client = Client(headers={"authorization": f"Bearer {plain}"})
    answer = post(client, f"incidents/{incident.pk}/resolve", {"reason": "closed by the pager"})
    assert (answer["state"], answer["resolution"]) == ("resolved", "by_person")
    again = post(client, f"incidents/{incident.pk}/resolve", {"reason": "again"}, status=409)
    assert again["present"]["state"] == "resolved"
    entry = AuditEntry.objects.get(verb="resolve")
    assert (entry.actor_kind, entry.reason) == ("token", "closed by the pager")
    assert incident.timeline.filter(actor=f"token {entry.actor}").exists()


def test_restart_in_place_is_asked_for_once_a_key(played: PlayedJob, operator: Client) -> None:
    incident = Incident.objects.get(job=played.job)
    path = f"/api/v1/incidents/{incident.pk}/restart/"
    post(operator, f"actions/{restart(played).pk}/cancel", {"reason": "I look at it first"})
    said = [
        operator.post(
            path, {"reason": "mended"}, content_type="application/json", headers={"Idempotency-Key": "r-1"}
        )
        for _ in range(2)
    ]
    assert [(answer.status_code, answer.json()["state"]) for answer in said] == [(202, "recovering")] * 2
    assert AuditEntry.objects.get(verb="restart").reason == "mended"
    assert Action.objects.filter(incident=incident, kind="restart_process", state="ready").count() == 1
    other = operator.post(path, {}, content_type="application/json", headers={"Idempotency-Key": "r-1"})
    assert other.status_code == 409


def test_restart_that_cannot_be_had_says_what_to_do_instead(played: PlayedJob, operator: Client) -> None:
    incident = Incident.objects.get(job=played.job)
    post(operator, f"jobs/{played.job.pk}/stop", {"reason": "wrong data"}, status=202)
    answer = post(operator, f"incidents/{incident.pk}/restart", {}, status=409)
    assert "resume it in the cluster" in answer["detail"]
    assert answer["present"]["id"] == incident.pk


def test_restart_is_a_persons_to_ask_for(played: PlayedJob) -> None:
    _, plain = create_token(
        tenant_id=played.job.tenant_id,
        name="pager",
        scopes=["incidents:write"],
        actor_kind="command",
        actor="test",
    )
    client = Client(headers={"authorization": f"Bearer {plain}"})
    post(client, f"incidents/{Incident.objects.get().pk}/restart", {}, status=403)


def test_reason_is_needed(played: PlayedJob, operator: Client) -> None:
    incident = Incident.objects.get(job=played.job)
    for body in ({}, {"reason": ""}, {"reason": " "}):
        assert "reason" in post(operator, f"incidents/{incident.pk}/resolve", body, status=400)["fields"]


def test_person_stops_a_job(played: PlayedJob, operator: Client) -> None:
    answer = post(operator, f"jobs/{played.job.pk}/stop", {"reason": "wrong data"}, status=202)
    assert answer["id"] == played.job.pk
    assert AuditEntry.objects.get(verb="stop").reason == "wrong data"
