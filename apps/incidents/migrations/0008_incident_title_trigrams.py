"""Incidents are found by a part of their title without reading all of them."""

from typing import Any

from django.db import migrations

from apps.access.trigrams import add_trigram_index, drop_trigram_index

NAME = "incident_title_trigrams"


def add(apps: Any, schema_editor: Any) -> None:
    """Where PostgreSQL has trigrams."""
    add_trigram_index(schema_editor, table="incidents_incident", column="title", name=NAME)


def drop(apps: Any, schema_editor: Any) -> None:
    """Its reverse."""
    drop_trigram_index(schema_editor, name=NAME)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("incidents", "0007_incident_acknowledged_by_token")]

    operations = [migrations.RunPython(add, drop)]
