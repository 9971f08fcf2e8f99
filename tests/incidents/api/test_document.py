"""The OpenAPI document, read as somebody does who writes a program against it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.incidents.models import Signal
from apps.jobs.models import Job
from tests.incidents.api.conftest import Team

pytestmark = pytest.mark.django_db

POSTS_WITH_EXAMPLES = {
    "/api/v1/signals/": 201,
    "/api/v1/signals/alertmanager/": 200,
    "/api/v1/hooks/pod-ends/": 200,
    "/api/v1/checkpoints/": 200,
    "/api/v1/jobs/": 201,
    "/api/v1/jobs/{job_id}/stop/": 202,
    "/api/v1/incidents/{incident_id}/acknowledge/": 200,
    "/api/v1/incidents/{incident_id}/resolve/": 200,
    "/api/v1/rules/try/": 200,
}


@pytest.fixture
def document(client: Client) -> Any:
    return client.get("/api/v1/schema/", {"format": "json"}).json()


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [(path, verb, found) for path, verbs in document["paths"].items() for verb, found in verbs.items()]


def example_of(operation: Any) -> dict[str, Any]:
    (example,) = operation["requestBody"]["content"]["application/json"]["examples"].values()
    value: dict[str, Any] = example["value"]
    return value


@pytest.mark.parametrize("path", POSTS_WITH_EXAMPLES)
def test_example_is_taken_as_it_stands(document: Any, team: Team, path: str) -> None:
    body = example_of(document["paths"][path]["post"])
    if "job_id" in body:
        body["job_id"] = team.job.pk
    Job.objects.filter(pk=team.job.pk).update(phase="RunCommand")
    answer = team.client().post(
        path.format(job_id=team.job.pk, incident_id=team.incident.pk), body, content_type="application/json"
    )
    assert answer.status_code == POSTS_WITH_EXAMPLES[path], answer.content


def test_body_that_a_program_sends_has_an_example_in_the_document(document: Any) -> None:
    for path, verb, operation in operations(document):
        if verb == "post" and "requestBody" in operation and {"token": []} in operation["security"]:
            assert path in POSTS_WITH_EXAMPLES


def test_offset_of_the_senders_clock_is_shown_by_the_example(document: Any, team: Team) -> None:
    """The example's ``sent_at`` is what makes its ``seen_at`` right on a clock that is wrong by years."""
    body = example_of(document["paths"]["/api/v1/signals/"]["post"])
    team.client().post("/api/v1/signals/", body, content_type="application/json")
    signal = Signal.objects.get(kind="log")
    assert datetime.now(UTC) - signal.seen_at < timedelta(minutes=5)


def test_every_operation_says_who_may_ask_and_what_it_answers_when_it_refuses(document: Any) -> None:
    for path, verb, operation in operations(document):
        where = f"{verb} {path}"
        is_for_people = {"token": []} not in operation["security"]
        assert ("no token may" if is_for_people else "Scope of a token: `") in operation["description"], where
        answers = operation["responses"]
        assert {"401", "403", "503"} <= set(answers), where
        assert all(answer["description"] for answer in answers.values()), where
        if "{" in path:
            assert "404" in answers, where
        if "requestBody" in operation:
            assert {"400", "409", "413", "415"} <= set(answers), where
        assert all(p.get("description") for p in operation.get("parameters", ()) if p["in"] != "query"), where


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/signals/", {"kind": "dance"}, 400),
        ("/api/v1/jobs/999999/stop/", {"reason": "x"}, 404),
        ("/api/v1/incidents/?limit=0", None, 400),
    ],
)
def test_refusal_has_the_form_of_the_document(
    document: Any, team: Team, path: str, body: Any, status: int
) -> None:
    error = document["components"]["schemas"]["Error"]
    client = team.client()
    answer = client.get(path) if body is None else client.post(path, body, content_type="application/json")
    assert answer.status_code == status
    assert set(error["required"]) <= set(answer.json()) <= set(error["properties"])


@pytest.mark.parametrize("scopes", [("incidents:read",), ()], ids=["without the scope", "with every scope"])
def test_no_token_does_what_is_a_persons_and_is_told_so_at_once(team: Team, scopes: tuple[str, ...]) -> None:
    client = team.client(*scopes)
    for path in (
        f"actions/{team.action.pk}/cancel/",
        f"actions/{team.action.pk}/do-now/",
        f"incidents/{team.incident.pk}/restart/",
    ):
        answer = client.post(f"/api/v1/{path}", {"reason": "x"}, content_type="application/json")
        assert answer.status_code == 403
        assert answer.json()["detail"].startswith(
            "This is a person's to do, whatever a token's scopes: log in"
        )


@pytest.mark.parametrize("verb", ["get", "post", "delete"])
@pytest.mark.parametrize(
    "path", ["/api", "/api/", "/api/v1/", "/api/v1/nope/", "/api/v1/signals/xyz/", "/api/v2/x\n"]
)
def test_address_that_no_view_has_is_told_as_every_error(document: Any, path: str, verb: str) -> None:
    client = Client(enforce_csrf_checks=True, headers={"accept": "text/html"})
    answer = getattr(client, verb)(path.replace("\n", "%0A"))
    assert answer.status_code == 404
    assert set(answer.json()) == {"code", "detail"}
    assert answer.json()["code"] == "not_found"
    assert answer.json()["detail"].startswith(f"There is nothing at {path.strip()}")


@pytest.mark.parametrize(
    ("verb", "path"),
    [("delete", "/api/v1/incidents/"), ("get", "/api/v1/hooks/pod-ends/"), ("post", "/api/v1/schema/")],
)
def test_method_that_an_address_has_not_is_told_as_every_error(team: Team, verb: str, path: str) -> None:
    answer = getattr(team.client(), verb)(path)
    assert answer.status_code == 405
    assert answer["Content-Type"] == "application/json"
    assert answer.json()["code"] == "method_not_allowed"
