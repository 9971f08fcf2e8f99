"""What was found on a machine, and who has trained there since, is counted from indexes.

The index of lives by machine and time stands for the one by machine alone: a heartbeat writes every index of its row.
That one is dropped by its name: an altered field would make its foreign key anew, and check every row under a lock.
"""

import django.db.models.deletion
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q

_BY_MACHINE = "jobs_incarnation_machine_id_8972340d"  # as Django named it with the foreign key, in 0001


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobs", "0007_attempt_found")]

    operations = [
        AddIndexConcurrently(
            "attempt",
            models.Index(
                name="attempt_found_on_machine",
                fields=["found_machine", "-ended_at"],
                condition=Q(found_machine__isnull=False),
            ),
        ),
        AddIndexConcurrently(
            "attempt",
            models.Index(
                name="attempt_found_by_rule",
                fields=["found_rule", "-ended_at"],
                include=["found_machine", "job"],
                condition=Q(found_machine__isnull=False),
            ),
        ),
        AddIndexConcurrently(
            "incarnation", models.Index(name="incarnation_on_machine", fields=["machine", "enrolled_at"])
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    f"DROP INDEX CONCURRENTLY IF EXISTS {_BY_MACHINE}",
                    f"CREATE INDEX CONCURRENTLY {_BY_MACHINE} ON jobs_incarnation (machine_id)",
                )
            ],
            state_operations=[
                migrations.AlterField(
                    "incarnation",
                    "machine",
                    models.ForeignKey(
                        to="nodes.machine",
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="incarnations",
                        null=True,
                        blank=True,
                        db_index=False,
                    ),
                )
            ],
        ),
    ]
