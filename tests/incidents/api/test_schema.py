"""Every operation of the OpenAPI document, asked with what the document allows and a little beyond."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings

from apps.access import services
from incidentdesk.wsgi import application
from tests.incidents.api.conftest import Team

pytestmark = pytest.mark.django_db

EXAMPLES = 3


@pytest.fixture(autouse=True)
def one_connection() -> Iterator[None]:
    """Requests run in the test's transaction, as with Django's own test client."""
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(close_old_connections)
    yield
    request_started.connect(close_old_connections)
    request_finished.connect(close_old_connections)


def test_no_request_is_a_server_error(team: Team) -> None:
    schema = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", application)
    _, plain = services.create_token(
        tenant_id=team.tenant.pk,
        name="explorer",
        scopes=sorted(services.SCOPES),
        actor_kind="command",
        actor="test",
    )
    asked = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @hypothesis_settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        def ask(case: schemathesis.Case) -> None:
            response = case.call(headers={"Authorization": f"Bearer {plain}"})
            assert response.status_code < 500, response.text[:1000]
            assert response.status_code != 401

        ask()
        asked.add(operation.label)
    assert "POST /api/v1/hooks/pod-ends/" in asked
    assert len(asked) >= 19
