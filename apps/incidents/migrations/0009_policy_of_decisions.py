"""The values of the policy under which a decision was made are kept, once for each distinct policy."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("incidents", "0008_incident_title_trigrams")]

    operations = [
        migrations.CreateModel(
            "PolicyVersion",
            [
                ("version", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("content", models.JSONField()),
                ("first_used_at", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            "decision",
            "policy",
            models.ForeignKey(
                "incidents.policyversion",
                on_delete=django.db.models.deletion.PROTECT,
                related_name="decisions",
                null=True,
                blank=True,
            ),
        ),
    ]
