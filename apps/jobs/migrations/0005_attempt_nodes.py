"""An attempt notes on how many nodes it began: that is what its time counts as. Attempts from before do not say it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0004_reviewed_token")]

    operations = [
        migrations.AddField("attempt", "nodes", models.PositiveIntegerField(null=True, blank=True)),
    ]
