"""Who sees what over the REST API, in which pages, at what cost, and what an error looks like."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from apps.access.clock import database_now
from apps.access.models import AuditEntry, Role
from apps.incidents.models import Incident
from apps.jobs.models import Attempt, Checkpoint, Incarnation, Job
from tests.factories import make_user
from tests.incidents.api.conftest import Team

pytestmark = pytest.mark.django_db

JSON = "application/json"


def reads(team: Team) -> list[str]:
    """Addresses of one of everything that a tenant has."""
    return [
        f"/api/v1/incidents/{team.incident.pk}/",
        f"/api/v1/incidents/{team.incident.pk}/timeline/",
        f"/api/v1/jobs/{team.job.pk}/",
        f"/api/v1/jobs/{team.job.pk}/attempts/",
        f"/api/v1/jobs/{team.job.pk}/checkpoints/",
        f"/api/v1/nodes/{team.machine.pk}/",
    ]


def writes(team: Team) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"/api/v1/incidents/{team.incident.pk}/acknowledge/", {"version": 0}),
        (f"/api/v1/incidents/{team.incident.pk}/resolve/", {"reason": "x"}),
        (f"/api/v1/actions/{team.action.pk}/cancel/", {"reason": "x"}),
        (f"/api/v1/actions/{team.action.pk}/do-now/", {}),
        (f"/api/v1/jobs/{team.job.pk}/stop/", {"reason": "x"}),
        ("/api/v1/checkpoints/", {"job_id": team.job.pk, "step": 1, "path": "/c", "state": "written"}),
    ]


LISTS = ("/api/v1/incidents/", "/api/v1/jobs/", "/api/v1/nodes/")


def person(team: Team, *roles: Role) -> Client:
    client = Client()
    client.force_login(
        make_user(tenant=team.tenant, roles=roles), "django.contrib.auth.backends.ModelBackend"
    )
    return client


def test_everything_of_the_own_tenant_is_read(team: Team) -> None:
    for client, url in itertools.product((team.client(), person(team, Role.VIEWER)), reads(team)):
        assert client.get(url).status_code == 200, url


def test_everything_of_another_tenant_is_not_found(team: Team, others: Team) -> None:
    for client in (team.client(), person(team, *Role)):
        for url in reads(others):
            response = client.get(url)
            assert response.status_code == 404, url
            assert response.json()["code"] == "not_found"
        for url, body in writes(others):
            response = client.post(url, body, content_type=JSON)
            is_refused = (
                "/actions/" in url and "HTTP_AUTHORIZATION" in client.defaults
            )  # a token, whosever the action is
            assert response.status_code == (403 if is_refused else 404), url
    others.incident.refresh_from_db()
    assert others.incident.acknowledged_at is None


def test_not_found_reads_the_same_for_anothers_row_and_for_none(team: Team, others: Team) -> None:
    client = team.client()
    theirs = client.get(f"/api/v1/jobs/{others.job.pk}/").json()["detail"]
    none = client.get("/api/v1/jobs/987654/").json()["detail"]
    assert theirs.replace(str(others.job.pk), "N") == none.replace("987654", "N")


@pytest.mark.parametrize("url", LISTS)
def test_lists_show_the_own_tenant_only(team: Team, others: Team, url: str) -> None:
    (row,) = team.client().get(url).json()["results"]
    assert row["id"] in {team.incident.pk, team.job.pk, team.machine.pk}


def test_filter_by_anothers_job_shows_nothing(team: Team, others: Team) -> None:
    answer = team.client().get(f"/api/v1/incidents/?job_id={others.job.pk}")
    assert answer.json()["results"] == []


def test_token_of_one_job_sees_that_job_only(team: Team, cluster: Any) -> None:
    client = team.client(job_uid=team.job.owner_uid)
    second = Team(cluster, tenant=team.tenant)
    assert [row["id"] for row in client.get("/api/v1/jobs/").json()["results"]] == [team.job.pk]
    assert client.get(f"/api/v1/jobs/{second.job.pk}/").status_code == 404
    assert client.get(f"/api/v1/incidents/{second.incident.pk}/").status_code == 404
    assert client.get(f"/api/v1/nodes/{second.machine.pk}/").status_code == 404
    assert client.get(f"/api/v1/nodes/{team.machine.pk}/").status_code == 200
    body = {"namespace": "x", "name": "y", "world_size": 1}
    assert client.post("/api/v1/jobs/", body, content_type=JSON).status_code == 403


def test_token_of_another_cluster_sees_nothing(team: Team) -> None:
    from tests.factories import make_cluster

    client = team.client(cluster_id=make_cluster().pk)
    for url in LISTS:
        assert client.get(url).json()["results"] == []


def test_without_credential_is_401_with_the_scheme() -> None:
    for client in (Client(), Client(headers={"Authorization": "Bearer idk_a_b"})):
        response = client.get("/api/v1/incidents/")
        assert response.status_code == 401
        assert response["WWW-Authenticate"].startswith("Bearer")
        assert set(response.json()) == {"code", "detail"}
    assert "Authorization: Bearer TOKEN" in Client().get("/api/v1/incidents/").json()["detail"]


def test_token_needs_the_scope(team: Team) -> None:
    client = team.client("signals:write")
    for url in [*reads(team), *LISTS]:
        response = client.get(url)
        assert response.status_code == 403, url
        assert ":read" in response.json()["detail"]


def test_viewer_reads_and_does_nothing(team: Team) -> None:
    client = person(team, Role.VIEWER)
    for url, body in writes(team):
        response = client.post(url, body, content_type=JSON)
        assert response.status_code == 403, url
        assert "operator" in response.json()["detail"]


def test_token_acknowledges_the_version_that_it_has_seen(team: Team) -> None:
    url = f"/api/v1/incidents/{team.incident.pk}/acknowledge/"
    token = team.client("incidents:write")
    Incident.objects.update(version=4)
    stale = token.post(url, {"version": 3}, content_type=JSON)
    assert stale.status_code == 409
    assert stale.json()["present"]["version"] == 4
    answer = token.post(url, {"version": 4}, content_type=JSON)
    assert answer.status_code == 200, answer.content
    entry = AuditEntry.objects.get(verb="acknowledge")
    assert (entry.actor_kind, answer.json()["acknowledged_by"]) == ("token", f"token {entry.actor}")
    again = token.post(url, {"version": 5}, content_type=JSON)
    assert again.status_code == 409
    assert again.json()["present"]["acknowledged_by"] == f"token {entry.actor}"


def test_token_that_may_only_read_changes_no_incident(team: Team) -> None:
    for url, body in writes(team)[:2]:
        response = team.client("incidents:read").post(url, body, content_type=JSON)
        assert response.status_code == 403, url
        assert "incidents:write" in response.json()["detail"]


def test_token_touches_no_action(team: Team) -> None:
    """When a remedy runs is a person's to answer for."""
    for url, body in writes(team)[2:4]:
        response = team.client().post(url, body, content_type=JSON)
        assert response.status_code == 403, url
        assert "log in" in response.json()["detail"]


def test_person_without_csrf_token_changes_nothing(team: Team) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(
        make_user(tenant=team.tenant, roles=(Role.OPERATOR,)), "django.contrib.auth.backends.ModelBackend"
    )
    response = client.post(
        f"/api/v1/incidents/{team.incident.pk}/acknowledge/", {"version": 0}, content_type=JSON
    )
    assert response.status_code == 403


def test_acknowledging_what_changed_meanwhile_is_409_with_the_present_state(team: Team) -> None:
    url = f"/api/v1/incidents/{team.incident.pk}/acknowledge/"
    client = person(team, Role.OPERATOR)
    Incident.objects.update(version=4)
    stale = client.post(url, {"version": 3}, content_type=JSON)
    assert stale.status_code == 409
    assert stale.json()["present"]["version"] == 4
    done = client.post(url, {"version": 4}, content_type=JSON)
    assert done.status_code == 200
    assert done.json()["acknowledged_by"].startswith("person-")
    again = client.post(url, {"version": 5}, content_type=JSON)
    assert again.status_code == 409
    assert again.json()["present"]["acknowledged_at"] is not None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "version"),
        ({"version": -1}, "version"),
        ({"version": "x"}, "version"),
        ({"version": 2**40}, "version"),
    ],
)
def test_wrong_input_names_the_field(team: Team, body: dict[str, Any], field: str) -> None:
    response = person(team, Role.OPERATOR).post(
        f"/api/v1/incidents/{team.incident.pk}/acknowledge/", body, content_type=JSON
    )
    assert response.status_code == 400
    told = response.json()
    assert told["code"] == "bad_input"
    assert list(told["fields"]) == [field]
    assert told["detail"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    "query",
    [
        "after=nonsense",
        "after=W10",
        "after=é",
        "limit=0",
        "limit=201",
        "limit=x",
        "ordering=title",
        "ordering=--id",
        "state=burning",
        "job_id=x",
        "job_id=99999999999999999999",
        "opened_after=yesterday",
        "is_open=perhaps",
        "is_acknowledged=2",
    ],
)
def test_wrong_query_is_400_and_says_which(team: Team, query: str) -> None:
    response = team.client().get(f"/api/v1/incidents/?{query}")
    assert response.status_code == 400
    assert query.split("=", maxsplit=1)[0] in response.json()["fields"]


def test_word_that_is_no_choice_is_answered_with_the_choices(team: Team) -> None:
    response = team.client().post("/api/v1/signals/", {"key": "k", "kind": "log_line"}, content_type=JSON)
    assert response.status_code == 400
    assert response.json()["detail"].startswith('kind: "log_line" is none of ')
    assert " log," in response.json()["detail"]


def test_body_that_is_no_json_or_not_an_object_is_400(team: Team) -> None:
    client = team.client()
    for body in ("{", "[]", '"x"', "1", "null", ""):
        response = client.post("/api/v1/signals/", body, content_type=JSON)
        assert response.status_code == 400, body
        assert response.json()["code"] in {"bad_input", "parse_error"}


def test_too_large_body_is_413(team: Team) -> None:
    response = team.client().post("/api/v1/signals/", " " * (1024 * 1024 + 1), content_type=JSON)
    assert response.status_code == 413
    assert response.json()["code"] == "too_large"


def test_other_content_type_is_415(team: Team) -> None:
    assert team.client().post("/api/v1/signals/", "a=b", content_type="text/plain").status_code == 415


def test_pages_follow_each_other_without_gap_or_repeat_while_rows_come(team: Team) -> None:
    wanted = {team.incident.pk}
    for number in range(24):
        wanted.add(
            team.make_incident(state="closed", resolved_at=team.incident.opened_at, title=str(number)).pk
        )
    client = team.client()
    for ordering in ("-id", "opened_at", "-state_since_at"):
        seen: list[int] = []
        url = f"/api/v1/incidents/?limit=7&ordering={ordering}"
        while url:
            page = client.get(url).json()
            seen += [row["id"] for row in page["results"]]
            if ordering == "-id" and len(seen) == 7:
                team.make_incident(state="closed", resolved_at=team.incident.opened_at)
            url = page["next"]
        assert sorted(seen) == sorted(set(seen)), "no row twice"
        assert wanted <= set(seen)


def test_cursor_of_another_ordering_is_refused(team: Team) -> None:
    for _ in range(3):
        team.make_incident(state="closed", resolved_at=team.incident.opened_at)
    client = team.client()
    following = client.get("/api/v1/incidents/?limit=1").json()["next"]
    assert client.get(following.replace("limit=1", "limit=1&ordering=opened_at")).status_code == 400


def test_filters_narrow(team: Team) -> None:
    closed = team.make_incident(state="closed", resolved_at=team.incident.opened_at, severity="low")
    client = team.client()
    for query, found in [
        ("is_open=true", team.incident),
        ("is_open=false", closed),
        ("is_open=1", team.incident),
        ("is_open=False", closed),
        ("state=closed", closed),
        ("severity=high", team.incident),
    ]:
        rows = client.get(f"/api/v1/incidents/?{query}").json()["results"]
        assert [row["id"] for row in rows] == [found.pk], query
    assert len(client.get("/api/v1/incidents/?state=closed&state=open").json()["results"]) == 2


@pytest.mark.parametrize(
    ("url", "queries"),
    [
        ("/api/v1/incidents/", 2),
        ("/api/v1/jobs/", 2),
        ("/api/v1/nodes/", 2),
    ],
)
def test_list_costs_the_same_for_one_row_and_for_many(
    team: Team, cluster: Any, url: str, queries: int, django_assert_num_queries: Any
) -> None:
    client = team.client()
    client.get(url)  # the token's last use is written once a minute
    for _ in range(2):
        with django_assert_num_queries(queries + 1):  # token, its clock, the page
            assert client.get(url).status_code == 200
        Team(cluster, tenant=team.tenant)
        Team(cluster, tenant=team.tenant)


@pytest.mark.parametrize(("place", "queries"), [(0, 3), (1, 2), (2, 3), (3, 2), (4, 2), (5, 1)])
def test_detail_costs_few_queries(
    team: Team, place: int, queries: int, django_assert_num_queries: Any
) -> None:
    client, url = team.client(), reads(team)[place]
    client.get(url)
    with django_assert_num_queries(queries + 2):
        assert client.get(url).status_code == 200


def test_job_tells_how_often_it_should_save_once_a_save_told_its_time(
    team: Team, django_assert_num_queries: Any
) -> None:
    client, url = team.client(), f"/api/v1/jobs/{team.job.pk}/"
    assert client.get(url).json()["checkpoint_advice"] is None
    now = database_now()
    Job.objects.filter(pk=team.job.pk).update(gpus_per_worker=8)
    Checkpoint.objects.filter(job=team.job).update(seconds=30)
    Incarnation.objects.filter(pk=team.life.pk).update(step_seconds=2.0)
    Attempt.objects.filter(job=team.job).update(nodes=16, ended_at=None, started_at=now - timedelta(days=2))
    with django_assert_num_queries(2 + 5):  # token; job, workers, checkpoints, attempts, failures of its like
        advice = client.get(url).json()["checkpoint_advice"]
    assert advice["checkpoint_seconds"] == {"value": 30.0, "basis": "measured", "source": "median of 1 save"}
    assert (advice["nodes"], advice["nodes_of_like_jobs"], advice["gets_on"]) == (16, "9-64", True)
    assert advice["interval_steps"] == round(advice["advised"]["interval_seconds"] / 2)
    assert advice["mtbf_seconds"]["basis"] == "estimated"
    assert advice["rests_on"] == "prior: no failure seen yet in 32 node-days"
    assert advice["low_seconds"] < advice["advised"]["interval_seconds"] < advice["high_seconds"]
    assert [form["name"] for form in advice["forms"]] == ["Young", "Daly, higher order", "save-inclusive"]
    assert (advice["present"], advice["gaps"], advice["warnings"]) == (None, "too few gaps", [])


def test_last_slash_may_be_left_out(team: Team) -> None:
    assert team.client().get("/api/v1/incidents").status_code == 200
    body = {"kind": "alert", "key": "k"}
    assert team.client().post("/api/v1/signals", body, content_type=JSON).status_code == 201


def test_openapi_document_is_made_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    schema = SchemaGenerator().get_schema(request=None, public=True)
    said = capsys.readouterr()
    assert "arning" not in said.err
    assert "rror" not in said.err
    assert all(path.endswith("/") for path in schema["paths"]), "one address each"
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert all(operation["security"] for operation in operations)
    assert {o["operationId"] for o in operations if {"token": []} not in o["security"]} == {
        "actions_cancel", "actions_do_now", "incidents_restart",
    }, "what a person answers for"  # fmt: skip
