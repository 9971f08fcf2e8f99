"""Rules tried over the REST API."""

from __future__ import annotations

import pytest

from apps.incidents.api.rule_views import TRY
from apps.incidents.models import Signal
from tests.incidents.api.conftest import Team

pytestmark = pytest.mark.django_db

URL = "/api/v1/rules/try/"
JSON = "application/json"


def test_example_of_the_document_is_answered_and_nothing_is_stored(team: Team) -> None:
    signals = Signal.objects.count()
    answer = team.client().post(URL, TRY.value, content_type=JSON)
    assert answer.status_code == 200
    said = answer.json()
    assert said["verdict"]["remedy"] == "isolate_node"
    assert {hit["rule"] for hit in said["hits"]} >= {"check.gpu", "ecc.program"}
    assert said["hits"][0]["class"] == "check"
    assert said["read_lines"] == 1
    assert Signal.objects.count() == signals


def test_wrong_rule_file_is_told_with_line_and_field(team: Team) -> None:
    body = {"lines": ["x"], "rules": '[[rule]]\nid = "a.b"\nmatch = ["abc"]\n'}
    answer = team.client().post(URL, body, content_type=JSON)
    assert answer.status_code == 400
    assert "line 1, rule a.b, reason: missing" in answer.json()["detail"]


def test_signals_that_would_be_passed_over_are_refused_by_field(team: Team) -> None:
    body = {"lines": ["x"], "signals": {"exitcode": 1, "checks": {"gpu": "bad"}}}
    answer = team.client().post(URL, body, content_type=JSON)
    assert answer.status_code == 400
    fields = answer.json()["fields"]
    assert set(fields) == {"signals.exitcode", "signals.checks.gpu"}
    assert "Was exit_code meant?" in answer.json()["detail"]


def test_too_many_lines_are_refused(team: Team) -> None:
    assert team.client().post(URL, {"lines": ["x"] * 2001}, content_type=JSON).status_code == 400


def test_nobody_tries_without_logging_in(team: Team, client: object) -> None:
    from django.test import Client

    assert Client().post(URL, TRY.value, content_type=JSON).status_code in {401, 403}
