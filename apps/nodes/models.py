"""Machines by hardware identity and the state of the watch. Source: DOMAIN section 2."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.access.models import Cluster

#: A machine whose node is not Ready; one without conditions has not reported yet.
NOT_READY = Q(is_ready=False) | (Q(is_ready=None) & ~Q(conditions=[]))


class Machine(models.Model):
    """A node by hardware identity. Name, node uid and boot id are attributes that may change."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="machines")
    hardware_key = models.CharField(max_length=300)
    is_key_weak = models.BooleanField(default=False)  # only a name: the next bearer may be another machine
    name = models.CharField(max_length=253)
    node_uid = models.CharField(max_length=64, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    pool = models.CharField(max_length=100, blank=True)
    rack = models.CharField(max_length=100, blank=True)
    zone = models.CharField(max_length=100, blank=True)
    gpu_type = models.CharField(max_length=100, blank=True)
    gpu_count = models.PositiveIntegerField(default=0)
    is_ready = models.BooleanField(null=True)  # None: Unknown, the kubelet is silent
    is_cordoned = models.BooleanField(default=False)
    ready_since_at = models.DateTimeField(null=True, blank=True)
    taints = models.JSONField(default=list)  # [{"key", "value", "effect"}]
    conditions = models.JSONField(default=list)  # [{"type", "status", "reason", "message", "since"}]
    labels = models.JSONField(default=dict)
    addresses = models.JSONField(default=list)
    kubelet_version = models.CharField(max_length=64, blank=True)
    resource_version = models.CharField(max_length=32, blank=True)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(name="one_row_per_machine", fields=["cluster", "hardware_key"]),
            models.UniqueConstraint(
                name="one_present_machine_per_name",
                fields=["cluster", "name"],
                condition=Q(gone_at__isnull=True),
            ),
        ]
        indexes = [
            models.Index(name="machine_by_rack", fields=["cluster", "rack", "name"]),
            models.Index(name="machine_by_state", fields=["cluster", "is_ready", "is_cordoned"]),
            models.Index(
                name="machine_not_ready", fields=["cluster"], condition=Q(gone_at__isnull=True) & NOT_READY
            ),
        ]

    def __str__(self) -> str:
        return self.name


class WatchState(models.Model):
    """How far the watch of one resource is, who leads it, and how fresh it is.

    The row of resource ``leader`` carries the lease: ``epoch`` rises with each new leader, and every
    write that the watch makes is fenced by it.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="watch_states")
    resource = models.CharField(max_length=32)  # leader | nodes | pods | jobs | events
    resource_version = models.CharField(max_length=32, blank=True)
    leader = models.CharField(max_length=100, blank=True)
    epoch = models.BigIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)
    last_list_at = models.DateTimeField(null=True, blank=True)
    last_event_at = models.DateTimeField(null=True, blank=True)
    last_heard_at = models.DateTimeField(null=True, blank=True)  # event or bookmark
    lag_seconds = models.FloatField(null=True, blank=True)
    # Row ``leader``: how long our own last call to the API took, and when it ended.
    call_seconds = models.FloatField(null=True, blank=True)
    called_at = models.DateTimeField(null=True, blank=True)
    state = models.CharField(max_length=16, default="starting")  # starting | listing | watching | broken
    detail = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(name="one_watch_per_resource", fields=["cluster", "resource"])]

    def __str__(self) -> str:
        return f"{self.cluster_id} {self.resource}"
