"""Machines that are not Ready are counted from an index that holds only these."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("nodes", "0001_initial")]

    operations = [
        AddIndexConcurrently(
            "machine",
            models.Index(
                name="machine_not_ready",
                fields=["cluster"],
                condition=Q(gone_at__isnull=True)
                & (Q(is_ready=False) | (Q(is_ready=None) & ~Q(conditions=[]))),
            ),
        ),
    ]
