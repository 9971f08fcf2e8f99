"""Jobs, and the incidents of a job, are found by a part of the job's name without reading all of them."""

from typing import Any

from django.db import migrations

from apps.access.trigrams import add_trigram_index, drop_trigram_index

COLUMNS = {"name": "job_name_trigrams", "namespace": "job_namespace_trigrams"}


def add(apps: Any, schema_editor: Any) -> None:
    """Where PostgreSQL has trigrams."""
    for column, name in COLUMNS.items():
        add_trigram_index(schema_editor, table="jobs_job", column=column, name=name)


def drop(apps: Any, schema_editor: Any) -> None:
    """Its reverse."""
    for name in COLUMNS.values():
        drop_trigram_index(schema_editor, name=name)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobs", "0001_initial")]

    operations = [migrations.RunPython(add, drop)]
