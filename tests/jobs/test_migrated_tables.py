"""Tables of jobs as migrations leave them, where the models do not tell."""

from __future__ import annotations

import pytest
from django.db import connection

from apps.jobs.models import Attempt
from tests import factories
from tests.factories import PlayedJob

pytestmark = pytest.mark.django_db


def test_program_that_does_not_know_what_was_found_can_write_an_attempt() -> None:
    job = PlayedJob(factories.make_job(workers=1))
    job.start_training()
    names = [field.column for field in Attempt._meta.concrete_fields]
    known = ", ".join(name for name in names if not name.startswith("found_") and name not in {"id", "n"})
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO jobs_attempt (n, {known}) SELECT n + 7, {known} FROM jobs_attempt")
    written = Attempt.objects.get(job=job.job, n=8)
    assert (written.found_rule, written.found_category, written.found_node, written.found_device) == ("",) * 4


def test_lives_of_a_machine_have_one_index_and_one_foreign_key() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname FROM pg_indexes WHERE tablename = 'jobs_incarnation' AND indexdef LIKE '%(machine_id%'"
        )
        assert cursor.fetchall() == [("incarnation_on_machine",)]
        cursor.execute(
            "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid = 'jobs_incarnation'::regclass"
            " AND pg_get_constraintdef(oid) LIKE 'FOREIGN KEY (machine_id)%'"
        )
        assert cursor.fetchone() == (1,)
