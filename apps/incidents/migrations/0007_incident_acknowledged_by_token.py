"""A program may take an incident by its token, which is no row of a person."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("incidents", "0006_fill_failures_used")]

    operations = [
        migrations.AddField(
            "incident",
            "acknowledged_by_token",
            models.CharField(blank=True, default="", max_length=230),
            False,
        ),
    ]
