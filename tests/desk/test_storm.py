"""The mass outage: the desk is needed most when most is broken."""

from __future__ import annotations

import gzip

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.clock import database_now
from apps.access.models import Role, User
from apps.incidents.models import Incident, Subject, TimelineEvent
from tests import factories
from tests.incidents.api.conftest import Team

pytestmark = pytest.mark.django_db

STORM = 5000
PAGES = ("/", "/incidents/", "/incidents/?tab=all", "/incidents/?severity=high&q=killed", "/jobs/", "/nodes/")
LOAD = "a line of evidence that no list shows "


@pytest.fixture
def team() -> Team:
    return Team(factories.make_cluster())


def reader(user: User) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def storm(team: Team, count: int, *, first: int = 0) -> None:
    """As many open incidents, each with a heavy verdict."""
    now = database_now()
    subjects = Subject.objects.bulk_create(
        [
            Subject(tenant=team.tenant, cluster=team.cluster, kind="job", key=f"storm-{n}")
            for n in range(first, first + count)
        ]
    )
    Incident.objects.bulk_create(
        [
            Incident(
                tenant=team.tenant, cluster=team.cluster, subject=subject, job=team.job,
                title=f"Process of worker {n} killed (SIGKILL)", state="open", state_since_at=now,
                severity="high", opened_at=now, verdict={"evidence": [LOAD * 20]},
            )
            for n, subject in enumerate(subjects)
        ],
        batch_size=1000,
    )  # fmt: skip


def measured(client: Client) -> dict[str, tuple[int, int]]:
    """Queries and compressed bytes of each page."""
    found = {}
    for page in PAGES:
        with CaptureQueriesContext(connection) as queries:
            response = client.get(page)
        assert response.status_code == 200
        assert LOAD not in response.content.decode()
        found[page] = (len(queries), len(gzip.compress(response.content, 9)))
    return found


def test_five_thousand_open_incidents_keep_every_page_in_its_budget(team: Team) -> None:
    """D1, D2, D3: the page does not die in the mass outage, and lists carry only what they show."""
    client = reader(factories.make_user(tenant=team.tenant, roles=(Role.OPERATOR,)))
    storm(team, 60)  # more than a page holds, so that both have the same parts
    few = measured(client)
    storm(team, STORM - 60, first=60)
    many = measured(client)
    assert {page: queries for page, (queries, _) in many.items()} == {
        page: queries for page, (queries, _) in few.items()
    }
    assert all(size < 30_000 for _, size in many.values()), many


def test_list_of_the_api_carries_what_it_shows(team: Team) -> None:
    """D3: history and raw payload do not ride along; the detail has them."""
    storm(team, 50)
    TimelineEvent.objects.filter(incident=team.incident).update(body={"raw": LOAD})
    listed = team.client().get("/api/v1/incidents/")
    assert len(listed.json()["results"]) == 50
    assert LOAD not in listed.content.decode()
    assert len(listed.content) < 50 * 1200
    newest = Incident.objects.order_by("-id")[0]
    assert LOAD in team.client().get(f"/api/v1/incidents/{newest.pk}/").content.decode()
