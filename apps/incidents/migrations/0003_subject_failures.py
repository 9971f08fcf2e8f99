"""A subject whose decision raised is put off, and says so."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("incidents", "0002_relations_of_incidents")]

    operations = [
        migrations.AddField("subject", "failures", models.PositiveIntegerField(default=0)),
        migrations.AddField("subject", "failure", models.TextField(blank=True, default=""), False),
        migrations.AddField("subject", "put_off_until_at", models.DateTimeField(blank=True, null=True)),
    ]
