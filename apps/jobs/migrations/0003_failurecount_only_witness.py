"""A count whose cause is open says who alone has told of the failure. Counts made before have their cause."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_job_name_trigrams")]

    operations = [
        migrations.AddField(
            "failurecount",
            "only_witness",
            models.CharField(
                max_length=16,
                choices=[("symptom", "symptom"), ("successor", "successor")],
                blank=True,
                default="",
            ),
            preserve_default=False,
        )
    ]
