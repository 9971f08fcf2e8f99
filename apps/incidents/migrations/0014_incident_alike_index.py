"""Failures of other jobs about the same time are counted from an index alone."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("incidents", "0013_incident_likeness")]

    operations = [
        AddIndexConcurrently(
            "incident",
            models.Index(
                name="incident_alike",
                fields=["cluster", "failed_at"],
                include=["likeness", "subject"],
                condition=~Q(likeness=""),
            ),
        ),
    ]
