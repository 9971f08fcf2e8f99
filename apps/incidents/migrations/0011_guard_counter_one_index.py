"""Counters are found by cluster, dimension and group together, never by their cluster alone."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("access", "0004_idempotency_key"), ("incidents", "0010_guards")]

    operations = [
        migrations.AlterField(
            model_name="guardcounter",
            name="cluster",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="access.cluster",
            ),
        ),
    ]
