"""Alerts about a node are found without reading every signal."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q
from django.db.models.fields.json import KeyTransform


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("incidents", "0014_incident_alike_index")]

    operations = [
        AddIndexConcurrently(
            "signal",
            models.Index(
                KeyTransform("node", "body"), name="signal_alert_of_node", condition=Q(kind="alert")
            ),
        ),
    ]
