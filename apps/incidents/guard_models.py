"""Guards: limits of the fleet, their counters, and what is counted. Source: DOMAIN section 8.

A counter is what a decision reserves in: one row per guard and group, changed by one statement. What it was
reserved for stands in ``GuardedMachine`` (now) and ``GuardUse`` (in the window), from which it is recounted.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.access.models import Cluster
from apps.nodes.models import Machine
from recovery import guards
from recovery.guards import Dimension, Measure
from recovery.lifecycle import ActionKind


class GuardLimit(models.Model):
    """One guard of a cluster, as people set it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="guard_limits")
    name = models.SlugField(max_length=63)
    dimension = models.CharField(max_length=16, choices=[(str(d), str(d)) for d in Dimension])
    measure = models.CharField(max_length=16, choices=[(str(m), str(m)) for m in Measure])
    actions = ArrayField(models.CharField(max_length=32))
    number = models.PositiveIntegerField(null=True, blank=True)
    share = models.FloatField(null=True, blank=True)
    at_least = models.PositiveIntegerField(default=0)
    window_seconds = models.FloatField(default=0)
    is_enabled = models.BooleanField(default=True)
    changed_by = models.CharField(max_length=200, blank=True)
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ["cluster", "id"]
        constraints = [
            models.UniqueConstraint(name="guard_once_per_cluster", fields=["cluster", "name"]),
            models.CheckConstraint(
                name="guard_has_a_limit", condition=Q(number__isnull=False) | Q(share__isnull=False)
            ),
            models.CheckConstraint(
                name="guard_window_if_it_counts_one",
                condition=Q(measure="standing", window_seconds=0) | Q(measure="window", window_seconds__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def as_limit(self) -> guards.Limit:
        """What the core takes."""
        return guards.Limit(
            name=self.name,
            dimension=Dimension(self.dimension),
            measure=Measure(self.measure),
            actions=tuple(ActionKind(kind) for kind in self.actions),
            number=self.number,
            share=self.share,
            at_least=self.at_least,
            window_seconds=self.window_seconds,
        )


class GuardCounter(models.Model):
    """How much of a guard is used in one group. ``members`` is its machines, ``cap`` the limit they make.

    The columns of the limit stand here too, so that a reservation is one statement over this table.
    """

    id = models.BigAutoField(primary_key=True)
    limit = models.ForeignKey(GuardLimit, on_delete=models.CASCADE, related_name="counters")
    # No index of its own: it would invite a plan that reads all counters of the cluster for each reservation.
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+", db_index=False)
    dimension = models.CharField(max_length=16)
    group = models.CharField(max_length=100)
    actions = ArrayField(models.CharField(max_length=32))
    members = models.PositiveIntegerField(default=0)
    cap = models.PositiveIntegerField()
    used = models.IntegerField(default=0)  # of a window: as of its newest slot
    slot_seconds = models.FloatField(null=True, blank=True)  # None: standing
    newest_slot = models.BigIntegerField(default=0)
    # What has ever begun by the end of the newest slot, of the one before it, and so on: a window is a difference.
    # KEPT_SLOTS + 1 numbers, also where nothing has begun.
    totals = ArrayField(models.PositiveBigIntegerField())
    refusals = models.PositiveBigIntegerField(default=0)
    refused_at = models.DateTimeField(null=True, blank=True)
    drifts = models.PositiveIntegerField(default=0)  # how often a recount found another number
    drift_at = models.DateTimeField(null=True, blank=True)
    drift = models.CharField(max_length=100, blank=True)  # "counted 6, there are 2"

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(name="one_counter_per_group", fields=["limit", "group"]),
            models.CheckConstraint(name="guard_used_not_negative", condition=Q(used__gte=0)),
        ]
        indexes = [models.Index(name="guard_counter_by_group", fields=["cluster", "dimension", "group"])]

    def __str__(self) -> str:
        return f"{self.limit_id} {self.group}"


class GuardedMachine(models.Model):
    """A machine that is out of service by our hand, once, however many hold it."""

    machine = models.OneToOneField(
        Machine, on_delete=models.CASCADE, related_name="guarded", primary_key=True
    )
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    groups = models.JSONField(default=dict)  # {dimension: group} when it went out
    holders = models.JSONField(default=dict)  # {holder: kind of action}
    since_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(name="guarded_now", fields=["cluster"], condition=~Q(holders={})),
        ]

    def __str__(self) -> str:
        return f"{self.machine_id}"


class GuardUse(models.Model):
    """One action that was reserved. Kept until the longest window is over."""

    id = models.BigAutoField(primary_key=True)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+", db_index=False)
    kind = models.CharField(max_length=32)
    holder = models.CharField(max_length=200)
    groups = models.JSONField(default=dict)  # {dimension: group}
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(name="guard_use_by_time", fields=["cluster", "at"])]

    def __str__(self) -> str:
        return f"{self.kind} {self.holder}"
