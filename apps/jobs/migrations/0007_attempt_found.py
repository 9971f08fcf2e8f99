"""What an attempt was found to have ended by stays with it. Attempts that ended before were judged in their incidents."""

import django.db.models.deletion
from django.db import migrations, models


def text(name: str, length: int) -> migrations.AddField:
    """A column that is empty in the rows that are there, and in those that a program writes that does not know it."""
    return migrations.AddField(
        "attempt", name, models.CharField(max_length=length, blank=True, default="", db_default="")
    )


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_attempt_by_end_index"), ("nodes", "0003_watchstate_calls")]

    operations = [
        text("found_rule", 100),
        text("found_category", 64),
        text("found_node", 253),
        migrations.AddField(
            "attempt",
            "found_machine",
            models.ForeignKey(
                to="nodes.machine",
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                null=True,
                blank=True,
                db_index=False,
            ),
        ),
        text("found_device", 64),
        migrations.AddField("attempt", "found_rank", models.PositiveIntegerField(null=True, blank=True)),
        migrations.AddField("attempt", "found_sequence", models.BigIntegerField(null=True, blank=True)),
        migrations.AddField(
            "attempt", "found_container_since", models.PositiveIntegerField(null=True, blank=True)
        ),
    ]
