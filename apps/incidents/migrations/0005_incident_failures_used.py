"""An incident keeps the job's count as it was then; the job's own goes on."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("incidents", "0004_incident_reopened_at")]

    operations = [
        migrations.AddField("incident", "failures_used", models.PositiveIntegerField(blank=True, null=True)),
    ]
