"""Signals, subjects, decisions, incidents, actions, timeline, notices and the live feed.

Source: DOMAIN sections 2, 4 and 5; DESIGN section 1.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from django.db import models
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.db.models.fields.json import KeyTransform

from apps.access.models import Cluster, Tenant, User
from apps.incidents.guard_models import GuardCounter, GuardedMachine, GuardLimit, GuardUse  # noqa: F401 - tables
from apps.jobs.models import Job
from apps.nodes.models import Machine
from recovery.lifecycle import (
    OPEN_INCIDENT_STATES,
    ActionKind,
    ActionState,
    IncidentState,
    Resolution,
    Severity,
    TryOutcome,
    WaitingFor,
)
from recovery.signals import SignalKind, Source, SubjectKind, Use

_OPEN_WORDS = sorted(str(s) for s in OPEN_INCIDENT_STATES)


class Subject(models.Model):
    """A job, node, shared dependency, cluster or the desk itself: the row whose lock makes one writer."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    kind = models.CharField(max_length=16, choices=[(k, k) for k in SubjectKind])
    key = models.CharField(max_length=300)  # job: its row id; node: machine row id; …
    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="subject", null=True, blank=True)
    machine = models.OneToOneField(
        Machine, on_delete=models.CASCADE, related_name="subject", null=True, blank=True
    )
    decision_n = models.BigIntegerField(default=0)
    next_look_at = models.DateTimeField(null=True, blank=True)
    # A decision that raised: how often in a row, with what, and until when it is not tried again.
    failures = models.PositiveIntegerField(default=0)
    failure = models.TextField(blank=True)
    put_off_until_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(name="one_subject", fields=["kind", "key"])]
        indexes = [
            models.Index(name="subject_due", fields=["next_look_at"], condition=Q(next_look_at__isnull=False))
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class Signal(models.Model):
    """One report of something that happened. ``(source, source_key)`` is unique: a repeat changes nothing."""

    id = models.BigAutoField(primary_key=True)
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    source = models.CharField(max_length=16, choices=[(s, s) for s in Source])
    source_key = models.CharField(max_length=300)
    kind = models.CharField(max_length=32, choices=[(k, k) for k in SignalKind])
    body = models.JSONField(default=dict)
    body_sha256 = models.CharField(max_length=64)
    seen_at = models.DateTimeField()  # source's time, corrected by its measured offset
    source_at = models.DateTimeField(null=True, blank=True)  # as the source wrote it
    uncertainty_seconds = models.FloatField(default=0)
    received_at = models.DateTimeField()  # database's clock
    role = models.CharField(max_length=63, blank=True)
    index = models.PositiveIntegerField(null=True, blank=True)
    incarnation_id = models.BigIntegerField(null=True, blank=True)
    sequence = models.PositiveIntegerField(null=True, blank=True)
    phase = models.CharField(max_length=16, blank=True)
    is_unplaced = models.BooleanField(default=False)  # about something unknown yet

    class Meta:
        constraints = [
            models.UniqueConstraint(name="signal_once_per_source_key", fields=["source", "source_key"])
        ]
        indexes = [
            models.Index(name="signal_unplaced", fields=["received_at"], condition=Q(is_unplaced=True)),
            models.Index(name="signal_by_time", fields=["tenant", "-id"]),
            models.Index(
                KeyTransform("node", "body"), name="signal_alert_of_node", condition=Q(kind="alert")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} from {self.source}"


class InboxEntry(models.Model):
    """(signal, subject), undecided until a decision drained it."""

    id = models.BigAutoField(primary_key=True)
    signal = models.ForeignKey(Signal, on_delete=models.CASCADE, related_name="inbox_entries")
    subject = models.ForeignKey(Subject, on_delete=models.CASCADE, related_name="inbox_entries")
    decision_n = models.BigIntegerField(null=True, blank=True)
    use = models.CharField(max_length=16, choices=[(u, u) for u in Use], blank=True)
    reason = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(name="signal_once_per_subject", fields=["signal", "subject"])]
        indexes = [
            models.Index(name="inbox_undecided", fields=["subject"], condition=Q(decision_n__isnull=True)),
            models.Index(name="inbox_by_decision", fields=["subject", "decision_n"]),
        ]

    def __str__(self) -> str:
        return f"{self.signal_id} for {self.subject_id}"


class Incident(models.Model):
    """What people follow. One open per subject."""

    id = models.BigAutoField(primary_key=True)  # shown as INC-<id>
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="incidents")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    subject = models.ForeignKey(Subject, on_delete=models.PROTECT, related_name="incidents")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="incidents", null=True, blank=True)
    machine = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="incidents", null=True, blank=True
    )  # culprit, where one is known
    parent = models.ForeignKey(
        "self", on_delete=models.SET_NULL, related_name="children", null=True, blank=True
    )
    title = models.CharField(max_length=300)
    state = models.CharField(max_length=16, choices=[(s, s) for s in IncidentState])
    state_since_at = models.DateTimeField()
    severity = models.CharField(max_length=16, choices=[(s, s) for s in Severity])
    rung = models.CharField(max_length=2, blank=True)
    tries = models.JSONField(default=dict)  # tries by action kind
    waiting_for = models.CharField(max_length=16, choices=[(w, w) for w in WaitingFor], blank=True)
    waiting_until_at = models.DateTimeField(null=True, blank=True)
    attempt = models.PositiveIntegerField(default=0)
    verdict = models.JSONField(default=dict)
    # What other jobs' failures are compared by (recovery.around.likeness); empty: like no other's.
    likeness = models.CharField(max_length=64, blank=True)
    considered = models.JSONField(default=list)  # [{"remedy", "refused_because"}] of the last choice
    failed_at = models.DateTimeField(null=True, blank=True)  # when it happened, by the source
    watching_from_step = models.BigIntegerField(null=True, blank=True)
    opened_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    resolution = models.CharField(max_length=16, choices=[(r, r) for r in Resolution], blank=True)
    reopened_count = models.PositiveIntegerField(default=0)
    reopened_at = models.DateTimeField(null=True, blank=True)  # the last time
    # Recover count of the job after the last failure that this incident counted; None while it has counted none.
    failures_used = models.PositiveIntegerField(null=True, blank=True)
    timeline_n = models.PositiveIntegerField(default=0)

    # Columns of people, changed by compare-and-set on ``version``.
    version = models.PositiveIntegerField(default=0)
    acknowledged_by = models.ForeignKey(
        User, on_delete=models.SET_NULL, related_name="acknowledged_incidents", null=True, blank=True
    )
    acknowledged_by_token = models.CharField(
        max_length=230, blank=True
    )  # a program's, by its name and prefix
    acknowledged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                name="one_open_incident_per_subject", fields=["subject"], condition=Q(state__in=_OPEN_WORDS)
            ),
            models.CheckConstraint(
                name="incident_state_known", condition=Q(state__in=[str(s) for s in IncidentState])
            ),
            models.CheckConstraint(
                name="incident_resolved_with_time",
                condition=~Q(state__in=["resolved", "closed"]) | Q(resolved_at__isnull=False),
            ),
        ]
        indexes = [
            models.Index(name="incident_by_state", fields=["tenant", "state", "-id"]),
            models.Index(name="incident_by_job", fields=["job", "-id"]),
            models.Index(
                name="incident_alike",
                fields=["cluster", "failed_at"],
                include=["likeness", "subject"],
                condition=~Q(likeness=""),
            ),
        ]

    def __str__(self) -> str:
        return f"INC-{self.id}"

    @property
    def acknowledger(self) -> str:
        """Name of the person or token that took it; empty while nobody has."""
        if self.acknowledged_by is not None:
            return self.acknowledged_by.get_username()
        return f"token {self.acknowledged_by_token}" if self.acknowledged_by_token else ""

    @property
    def present_since_at(self) -> datetime:
        """When the failure that people look at began: the last reopening, else the opening."""
        return self.reopened_at or self.opened_at


class Cause(models.Model):
    """A cause of an incident. A second one joins, raises severity and is noticed again."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="causes")
    category = models.CharField(max_length=64)
    text = models.TextField()
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(name="cause_once", fields=["incident", "category"])]

    def __str__(self) -> str:
        return self.category


class PolicyVersion(models.Model):
    """A policy as decisions were made under it; ``version`` is the fingerprint of its values. Never changed."""

    version = models.CharField(max_length=32, primary_key=True)
    content = models.JSONField()
    first_used_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.version


class Decision(models.Model):
    """One pass over a subject's inbox, with all that went in and came out. (subject, n) is dense."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    subject = models.ForeignKey(Subject, on_delete=models.CASCADE, related_name="decisions")
    incident = models.ForeignKey(
        Incident, on_delete=models.SET_NULL, related_name="decisions", null=True, blank=True
    )
    n = models.BigIntegerField()
    at = models.DateTimeField()
    policy_version = models.CharField(max_length=32)
    # Its values, for replay; None for decisions made before they were kept.
    policy = models.ForeignKey(
        PolicyVersion, on_delete=models.PROTECT, related_name="decisions", null=True, blank=True
    )
    rule = models.CharField(max_length=100)
    reason = models.TextField()
    state_before = models.JSONField()
    inbox = models.JSONField()
    outcome = models.JSONField()
    seconds = models.FloatField()

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(name="decision_dense", fields=["subject", "n"])]

    def __str__(self) -> str:
        return f"decision {self.n}"


class TimelineEvent(models.Model):
    """One typed line of an incident, numbered under its subject's lock."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="timeline")
    n = models.PositiveIntegerField()
    kind = models.CharField(max_length=32)
    at = models.DateTimeField()  # when it happened
    received_at = models.DateTimeField()  # when the desk knew
    text = models.TextField()
    actor_kind = models.CharField(max_length=16)
    actor = models.CharField(max_length=200, blank=True)
    role = models.CharField(max_length=63, blank=True)
    index = models.PositiveIntegerField(null=True, blank=True)
    attempt = models.PositiveIntegerField(null=True, blank=True)
    body = models.JSONField(default=dict)
    decision_n = models.BigIntegerField(null=True, blank=True)
    signal_id = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["incident_id", "n"]
        constraints = [models.UniqueConstraint(name="timeline_dense", fields=["incident", "n"])]

    def __str__(self) -> str:
        return f"{self.n} {self.kind}"


class Action(models.Model):
    """One thing to do: a row written with its decision, run after the commit, done when its effect was seen."""

    id = models.BigAutoField(primary_key=True)
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="actions")
    kind = models.CharField(max_length=32, choices=[(k, k) for k in ActionKind])
    target = models.CharField(max_length=300)
    generation = models.PositiveIntegerField()
    state = models.CharField(max_length=20, choices=[(s, s) for s in ActionState])
    why = models.TextField()
    refused_because = models.TextField(blank=True)
    price = models.JSONField(default=dict)
    content = models.JSONField(default=dict)
    decision_n = models.BigIntegerField()
    not_before_at = models.DateTimeField(null=True, blank=True)
    deadline_seconds = models.FloatField()
    deadline_at = models.DateTimeField(null=True, blank=True)  # set at the claim
    lease_owner = models.CharField(max_length=100, blank=True)
    lease_until_at = models.DateTimeField(null=True, blank=True)
    try_n = models.PositiveIntegerField(default=0)
    is_cancel_asked = models.BooleanField(default=False)
    is_found = models.BooleanField(default=False)  # somebody else had made the effect already
    end_reason = models.TextField(blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(name="action_key", fields=["incident", "kind", "target", "generation"]),
            models.CheckConstraint(
                name="action_state_known", condition=Q(state__in=[str(s) for s in ActionState])
            ),
            models.CheckConstraint(
                name="action_running_has_lease",
                condition=~Q(state="running") | Q(lease_until_at__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                name="action_due",
                fields=["state", "not_before_at"],
                condition=Q(state__in=["ready", "running", "verifying"]),
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target} #{self.generation}"


class ActionTry(models.Model):
    """One try of an action and how it ended."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    action = models.ForeignKey(Action, on_delete=models.CASCADE, related_name="tries")
    n = models.PositiveIntegerField()
    worker_name = models.CharField(max_length=100)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=16, choices=[(o, o) for o in TryOutcome], blank=True)
    detail = models.TextField(blank=True)

    class Meta:
        ordering = ["n"]
        constraints = [models.UniqueConstraint(name="try_once", fields=["action", "n"])]

    def __str__(self) -> str:
        return f"try {self.n}"


class LogTail(models.Model):
    """Last lines of a worker, stored before its pod goes."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="log_tails")
    worker = models.CharField(max_length=80)
    pod_name = models.CharField(max_length=253)
    lines = models.TextField()
    stored_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="log_tail_once", fields=["incident", "worker", "pod_name"])
        ]

    def __str__(self) -> str:
        return self.worker


class Notice(models.Model):
    """A question or message to people about an incident; delivered when it can be read on the desk."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="notices")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="notices")
    action = models.OneToOneField(
        Action, on_delete=models.CASCADE, related_name="notice", null=True, blank=True
    )
    text = models.TextField()
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.text[:60]


class FeedRow(models.Model):
    """What changed, for the live pages. Read by (transaction, id) below the snapshot, kept an hour."""

    id = models.BigAutoField(primary_key=True)
    transaction = models.BigIntegerField(
        db_default=RawSQL("pg_current_xact_id()::text::bigint", ()), editable=False
    )
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    topic = models.CharField(max_length=32)  # incident | job | node | fleet_node
    key = models.CharField(max_length=64)  # row id
    created_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(name="feed_order", fields=["transaction", "id"])]

    def __str__(self) -> str:
        return f"{self.topic} {self.key}"
