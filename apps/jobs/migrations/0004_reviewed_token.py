"""Tokens of clusters that publish no keys are proven by the cluster itself; its answer is kept by the token's hash."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0004_idempotency_key"),
        ("jobs", "0003_failurecount_only_witness"),
    ]

    operations = [
        migrations.CreateModel(
            "ReviewedToken",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sha256", models.CharField(max_length=64)),
                ("claimed_pod_uid", models.CharField(max_length=64)),
                (
                    "state",
                    models.CharField(
                        max_length=16,
                        choices=[("asked", "asked"), ("proven", "proven"), ("refused", "refused")],
                    ),
                ),
                ("reason", models.TextField(blank=True)),
                ("namespace", models.CharField(max_length=253, blank=True)),
                ("service_account", models.CharField(max_length=253, blank=True)),
                ("pod_name", models.CharField(max_length=253, blank=True)),
                ("pod_uid", models.CharField(max_length=64, blank=True)),
                ("asked_at", models.DateTimeField()),
                ("answered_at", models.DateTimeField(null=True, blank=True)),
                ("expires_at", models.DateTimeField(db_index=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        to="access.cluster",
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(name="one_review_per_token", fields=["cluster", "sha256"]),
                    models.CheckConstraint(
                        name="reviewed_token_state_known",
                        condition=models.Q(state__in=["asked", "proven", "refused"]),
                    ),
                    models.CheckConstraint(
                        name="proven_token_names_its_pod",
                        condition=~models.Q(state="proven") | ~models.Q(pod_uid=""),
                    ),
                ]
            },
        )
    ]
