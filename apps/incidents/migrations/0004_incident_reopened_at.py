"""An incident says when it was opened again: its age counts from there."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("incidents", "0003_subject_failures")]

    operations = [
        migrations.AddField("incident", "reopened_at", models.DateTimeField(blank=True, null=True)),
    ]
