"""An incident keeps what its failure is compared by with those of other jobs; empty for those that there are."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("incidents", "0012_guard_take")]

    operations = [
        migrations.AddField(
            "incident",
            "likeness",
            models.CharField(blank=True, default="", max_length=64),
            preserve_default=False,
        ),
    ]
