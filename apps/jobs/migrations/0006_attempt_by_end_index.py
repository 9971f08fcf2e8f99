"""A tenant's newest attempts by their end, and those that go on, without reading the others."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobs", "0005_attempt_nodes")]

    operations = [
        AddIndexConcurrently("attempt", models.Index(name="attempt_by_end", fields=["tenant", "ended_at"])),
    ]
