"""The leader of a watch keeps how fast the cluster answers its calls."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0002_machine_not_ready_index")]

    operations = [
        migrations.AddField("watchstate", "call_seconds", models.FloatField(blank=True, null=True)),
        migrations.AddField("watchstate", "called_at", models.DateTimeField(blank=True, null=True)),
    ]
