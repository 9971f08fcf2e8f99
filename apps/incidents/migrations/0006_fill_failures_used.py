"""Incidents of before get their count from the last failure that their timeline counts."""

from typing import Any

from django.db import migrations

BATCH_ROWS = 1000


def fill(apps: Any, schema_editor: Any) -> None:
    """Read the workers' retries that the event kept; their highest is the job's recover count."""
    incident_model = apps.get_model("incidents", "Incident")
    event_model = apps.get_model("incidents", "TimelineEvent")
    last = 0
    while True:
        batch = list(
            incident_model.objects.filter(id__gt=last, failures_used=None).order_by("id")[:BATCH_ROWS]
        )
        if not batch:
            return
        last = batch[-1].pk
        counts: dict[int, int] = {}
        events = event_model.objects.filter(incident__in=batch, kind="failure_counted").order_by("n")
        for incident_id, body in events.values_list("incident_id", "body"):
            if not body.get("would") and body.get("retries"):
                counts[incident_id] = max(body["retries"])
        changed = [row for row in batch if row.pk in counts]
        for row in changed:
            row.failures_used = counts[row.pk]
        incident_model.objects.bulk_update(changed, ["failures_used"])


class Migration(migrations.Migration):
    dependencies = [("incidents", "0005_incident_failures_used")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
