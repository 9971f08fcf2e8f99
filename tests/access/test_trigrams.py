"""Searches by a part of a text read an index and not every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet

from apps.access import trigrams
from apps.incidents.models import Incident
from apps.incidents.selectors import IncidentFilter, filter_incidents, visible_incidents
from apps.jobs.models import Job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        (lambda: Incident.objects.filter(title__icontains="fell off the bus"), "incident_title_trigrams"),
        (lambda: Job.objects.filter(name__icontains="pretrain"), "job_name_trigrams"),
        (lambda: Job.objects.filter(namespace__icontains="vision"), "job_namespace_trigrams"),
    ],
)
def test_search_can_be_answered_from_its_index(rows: Callable[[], QuerySet[Any]], index: str) -> None:
    """The expression of the index is the one that is asked for; with few rows it would not be chosen otherwise."""
    with connection.cursor() as cursor:
        for node in ("seqscan", "indexscan", "indexonlyscan", "hashjoin", "mergejoin"):
            cursor.execute(f"SET LOCAL enable_{node} = off")
    assert index in rows().order_by().explain()


def test_filter_of_the_list_names_no_other_table(django_assert_num_queries: Any) -> None:
    """A condition over two tables joined by OR would use no index at all."""
    with django_assert_num_queries(1):
        wanted = filter_incidents(visible_incidents(None), IncidentFilter(text="gpu-r12"))
    where = str(wanted.query).split(" WHERE ")[1]
    assert "jobs_job" not in where
    assert "UPPER" in where


def test_database_without_trigrams_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(trigrams, "_has_trigrams", lambda cursor: False)
    with connection.schema_editor() as editor:
        assert not trigrams.add_trigram_index(editor, table="jobs_job", column="name", name="never_made")
    assert "never_made" in caplog.text
