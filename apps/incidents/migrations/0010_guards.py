"""Guards: limits of the fleet, a counter for each group, and what they count."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


def _empty_slots() -> list[int]:
    return [0] * 13


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0004_idempotency_key"),
        ("incidents", "0009_policy_of_decisions"),
        ("nodes", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="GuardLimit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.SlugField(max_length=63)),
                (
                    "dimension",
                    models.CharField(
                        choices=[
                            ("cluster", "cluster"),
                            ("pool", "pool"),
                            ("rack", "rack"),
                            ("power_unit", "power_unit"),
                            ("switch", "switch"),
                            ("tenant", "tenant"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "measure",
                    models.CharField(choices=[("standing", "standing"), ("window", "window")], max_length=16),
                ),
                (
                    "actions",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32)),
                ),
                ("number", models.PositiveIntegerField(blank=True, null=True)),
                ("share", models.FloatField(blank=True, null=True)),
                ("at_least", models.PositiveIntegerField(default=0)),
                ("window_seconds", models.FloatField(default=0)),
                ("is_enabled", models.BooleanField(default=True)),
                ("changed_by", models.CharField(blank=True, max_length=200)),
                ("changed_at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="guard_limits",
                        to="access.cluster",
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "id"],
            },
        ),
        migrations.CreateModel(
            name="GuardCounter",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("dimension", models.CharField(max_length=16)),
                ("group", models.CharField(max_length=100)),
                (
                    "actions",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32)),
                ),
                ("members", models.PositiveIntegerField(default=0)),
                ("cap", models.PositiveIntegerField()),
                ("used", models.IntegerField(default=0)),
                ("slot_seconds", models.FloatField(blank=True, null=True)),
                (
                    "slots",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(),
                        default=_empty_slots,
                    ),
                ),
                ("newest_slot", models.BigIntegerField(default=0)),
                ("refusals", models.PositiveBigIntegerField(default=0)),
                ("refused_at", models.DateTimeField(blank=True, null=True)),
                ("drifts", models.PositiveIntegerField(default=0)),
                ("drift_at", models.DateTimeField(blank=True, null=True)),
                ("drift", models.CharField(blank=True, max_length=100)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="access.cluster"
                    ),
                ),
                (
                    "limit",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="counters",
                        to="incidents.guardlimit",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="GuardUse",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=32)),
                ("holder", models.CharField(max_length=200)),
                ("groups", models.JSONField(default=dict)),
                ("at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="access.cluster"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="GuardedMachine",
            fields=[
                (
                    "machine",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="guarded",
                        serialize=False,
                        to="nodes.machine",
                    ),
                ),
                ("groups", models.JSONField(default=dict)),
                ("holders", models.JSONField(default=dict)),
                ("since_at", models.DateTimeField(blank=True, null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="access.cluster"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("holders", {}), _negated=True),
                        fields=["cluster"],
                        name="guarded_now",
                    )
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="guardlimit",
            constraint=models.UniqueConstraint(fields=("cluster", "name"), name="guard_once_per_cluster"),
        ),
        migrations.AddConstraint(
            model_name="guardlimit",
            constraint=models.CheckConstraint(
                condition=models.Q(("number__isnull", False), ("share__isnull", False), _connector="OR"),
                name="guard_has_a_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardlimit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("measure", "standing"), ("window_seconds", 0)),
                    models.Q(("measure", "window"), ("window_seconds__gt", 0)),
                    _connector="OR",
                ),
                name="guard_window_if_it_counts_one",
            ),
        ),
        migrations.AddIndex(
            model_name="guardcounter",
            index=models.Index(fields=["cluster", "dimension", "group"], name="guard_counter_by_group"),
        ),
        migrations.AddConstraint(
            model_name="guardcounter",
            constraint=models.UniqueConstraint(fields=("limit", "group"), name="one_counter_per_group"),
        ),
        migrations.AddConstraint(
            model_name="guardcounter",
            constraint=models.CheckConstraint(
                condition=models.Q(("used__gte", 0)), name="guard_used_not_negative"
            ),
        ),
        migrations.AddIndex(
            model_name="guarduse",
            index=models.Index(fields=["cluster", "at"], name="guard_use_by_time"),
        ),
    ]
