"""Jobs, runs, attempts, workers, incarnations, pods, orders and checkpoints. Source: DOMAIN 2, 3, 11."""

from __future__ import annotations

import uuid
from enum import StrEnum

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.access.models import Cluster, Tenant
from apps.nodes.models import Machine
from recovery.phases import MessagePhase, Phase
from recovery.signals import OnlyWitness


class ReviewState(StrEnum):
    """How far a cluster's review of a token is."""

    ASKED = "asked"
    PROVEN = "proven"
    REFUSED = "refused"


_PHASES = [(p, p) for p in Phase]
_PHASE_WORDS = [str(p) for p in Phase]


class Job(models.Model):
    """One training job: (cluster, uid of the root owner). The phase machine's state stands in its columns."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    owner_uid = models.CharField(max_length=64)
    owner_kind = models.CharField(max_length=32)  # Job, …; "" for a bare machine's
    namespace = models.CharField(max_length=253)
    name = models.CharField(max_length=253)
    lineage = models.ForeignKey(
        "self", on_delete=models.SET_NULL, related_name="successors", null=True, blank=True
    )
    world_size = models.PositiveIntegerField()
    gpus_per_worker = models.PositiveIntegerField(default=0)
    priority = models.IntegerField(default=0)

    phase = models.CharField(max_length=20, choices=_PHASES, default=Phase.PENDING)
    phase_since_at = models.DateTimeField()
    phase_reason = models.TextField(blank=True)  # why it waits
    run = models.PositiveIntegerField(default=1)
    attempt = models.PositiveIntegerField(default=0)
    attempt_sequence = models.PositiveIntegerField(default=0)
    sequence = models.PositiveIntegerField(default=0)
    recover_count = models.PositiveIntegerField(default=0)
    max_retry = models.PositiveIntegerField(default=10)
    is_protected = models.BooleanField(default=False)  # the machine's: agents obey, now
    is_opted_in = models.BooleanField(default=False)  # annotation of the job or its namespace
    is_protection_due = models.BooleanField(default=False)  # protected again from the next start on
    is_quit_due = models.BooleanField(default=False)  # a stop waits for the safe point
    protection_reason = models.TextField(blank=True)  # why it is not, in words
    directive = models.CharField(
        max_length=20, blank=True
    )  # what polls tell: "" | run_unprotected | extend_wait
    directive_until_at = models.DateTimeField(null=True, blank=True)
    mode = models.CharField(max_length=16, blank=True)  # annotation; "" = the cluster's

    is_suspended = models.BooleanField(default=False)
    resource_version = models.CharField(max_length=32, blank=True)
    annotations = models.JSONField(default=dict)
    limits = models.JSONField(default=list)  # nested limits: [{"name", "used", "limit", "warning"}]
    restart_policy = models.CharField(max_length=16, blank=True)
    stop_grace_seconds = models.FloatField(default=5)
    world_running_at = models.DateTimeField(null=True, blank=True)
    waiting_since_at = models.DateTimeField(null=True, blank=True)
    waiting_seconds = models.FloatField(default=0)  # for capacity, in all
    preempted_count = models.PositiveIntegerField(default=0)
    evicted_slow_count = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    seen_at = models.DateTimeField()  # by the watch, last
    ended_at = models.DateTimeField(null=True, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)  # the object is deleted

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(name="one_job_per_owner", fields=["cluster", "owner_uid"]),
            models.CheckConstraint(name="job_phase_known", condition=Q(phase__in=_PHASE_WORDS)),
            models.CheckConstraint(
                name="job_recover_count_bounded", condition=Q(recover_count__lte=models.F("max_retry") + 1)
            ),
            models.CheckConstraint(
                name="job_attempt_sequence_behind", condition=Q(attempt_sequence__lte=models.F("sequence"))
            ),
        ]
        indexes = [
            models.Index(name="job_by_name", fields=["cluster", "namespace", "name"]),
            models.Index(name="job_by_phase", fields=["tenant", "phase", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Run(models.Model):
    """From Pending to a terminal phase. A resumed job begins a new one."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="runs")
    r = models.PositiveIntegerField()
    recover_count_at_start = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    end_phase = models.CharField(max_length=20, blank=True)

    class Meta:
        ordering = ["r"]
        constraints = [models.UniqueConstraint(name="run_once", fields=["job", "r"])]

    def __str__(self) -> str:
        return f"run {self.r}"


class Attempt(models.Model):
    """One start of a job: each entry into RunCommand."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    n = models.PositiveIntegerField()
    run = models.PositiveIntegerField(default=1)
    sequence = models.PositiveIntegerField()
    is_protected = models.BooleanField(default=True)
    nodes = models.PositiveIntegerField(null=True, blank=True)  # different ones; None: not all were known
    started_at = models.DateTimeField()
    first_step_at = models.DateTimeField(null=True, blank=True)
    resumed_from_step = models.BigIntegerField(null=True, blank=True)
    first_step = models.BigIntegerField(null=True, blank=True)
    last_step = models.BigIntegerField(null=True, blank=True)
    step_seconds = models.FloatField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    end_cause = models.CharField(max_length=64, blank=True)
    is_counted = models.BooleanField(default=False)
    remedy = models.CharField(max_length=32, blank=True)
    incident_uid = models.UUIDField(null=True, blank=True)
    # What it was found to have ended by (recovery.records.Finding); an empty rule: nobody has judged it.
    found_rule = models.CharField(max_length=100, blank=True, default="", db_default="")
    found_category = models.CharField(max_length=64, blank=True, default="", db_default="")
    found_node = models.CharField(max_length=253, blank=True, default="", db_default="")
    found_machine = models.ForeignKey(
        Machine, on_delete=models.SET_NULL, related_name="+", null=True, blank=True, db_index=False
    )
    found_device = models.CharField(max_length=64, blank=True, default="", db_default="")
    found_rank = models.PositiveIntegerField(null=True, blank=True)
    found_sequence = models.BigIntegerField(null=True, blank=True)
    found_container_since = models.PositiveIntegerField(null=True, blank=True)  # attempt

    class Meta:
        ordering = ["n"]
        constraints = [models.UniqueConstraint(name="attempt_once", fields=["job", "n"])]
        indexes = [
            models.Index(name="attempt_by_end", fields=["tenant", "ended_at"]),
            models.Index(
                name="attempt_found_on_machine",
                fields=["found_machine", "-ended_at"],
                condition=Q(found_machine__isnull=False),
            ),
            models.Index(
                name="attempt_found_by_rule",
                fields=["found_rule", "-ended_at"],
                include=["found_machine", "job"],
                condition=Q(found_machine__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.n}"


class Worker(models.Model):
    """One place in a job (role, index), with its columns of the phase machine."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="workers")
    role = models.CharField(max_length=63)
    index = models.PositiveIntegerField()
    inner_phase = models.CharField(max_length=20, choices=_PHASES, default=Phase.PENDING)
    is_enrolled = models.BooleanField(default=False)
    is_finished = models.BooleanField(default=False)
    retries = models.PositiveIntegerField(default=0)
    is_restarted = models.BooleanField(default=False)
    must_exit = models.BooleanField(default=False)
    is_retired = models.BooleanField(default=False)
    has_departed = models.BooleanField(default=False)
    last_sequence = models.PositiveIntegerField(default=0)
    handled = models.JSONField(default=list)  # [[type, phase], …] at last_sequence
    last_failure_reason = models.TextField(blank=True)
    ip = models.GenericIPAddressField(null=True, blank=True)
    incarnation = models.ForeignKey(
        "Incarnation", on_delete=models.SET_NULL, related_name="+", null=True, blank=True
    )  # the newest
    environment = models.JSONField(default=dict)  # report of the last boot check
    checks = models.JSONField(default=list)  # last quick set, [CheckResult]
    checks_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["role", "index"]
        constraints = [
            models.UniqueConstraint(name="one_worker_per_place", fields=["job", "role", "index"]),
            models.CheckConstraint(name="worker_phase_known", condition=Q(inner_phase__in=_PHASE_WORDS)),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


class Incarnation(models.Model):
    """One life of a worker: pod uid, container restart count, agent nonce. A newer one fences the older.

    A life without agent (an unprotected job's pod) has an empty nonce. The heartbeat columns are written by
    the poll endpoint only.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="incarnations")
    pod_uid = models.CharField(max_length=64)
    pod_name = models.CharField(max_length=253)
    container = models.CharField(max_length=63)
    restart_count = models.PositiveIntegerField(null=True, blank=True)  # None until the watch tells
    nonce = models.CharField(max_length=64, blank=True)
    node_name = models.CharField(max_length=253, blank=True)
    machine = models.ForeignKey(
        Machine, on_delete=models.SET_NULL, related_name="incarnations", null=True, blank=True, db_index=False
    )  # incarnation_on_machine begins with it
    ip = models.GenericIPAddressField(null=True, blank=True)
    agent_version = models.CharField(max_length=32, blank=True)
    enrolled_at = models.DateTimeField(null=True, blank=True)
    first_attempt = models.PositiveIntegerField(null=True, blank=True)  # attempts it was part of: from …
    last_attempt = models.PositiveIntegerField(null=True, blank=True)  # … to
    ended_at = models.DateTimeField(null=True, blank=True)
    end_cause = models.CharField(max_length=32, blank=True)
    is_end_ordered = models.BooleanField(default=False)
    exit_code = models.IntegerField(null=True, blank=True)
    last_message_n = models.BigIntegerField(default=0)

    last_seen_at = models.DateTimeField(null=True, blank=True)
    is_silent = models.BooleanField(default=False)
    clock_offset_seconds = models.FloatField(default=0)  # the agent's clock minus ours
    clock_uncertainty_seconds = models.FloatField(default=0)
    cursor = models.PositiveIntegerField(default=0)  # highest order sequence that it read
    agent_phase = models.CharField(max_length=20, blank=True)
    agent_sequence = models.PositiveIntegerField(default=0)
    agent_pid = models.PositiveIntegerField(null=True, blank=True)
    command_pid = models.PositiveIntegerField(null=True, blank=True)
    process_state = models.CharField(max_length=16, blank=True)
    step = models.BigIntegerField(null=True, blank=True)
    step_at = models.DateTimeField(null=True, blank=True)
    step_seconds = models.FloatField(null=True, blank=True)
    checkpoint_step = models.BigIntegerField(null=True, blank=True)
    skipped_bytes = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                name="incarnation_once",
                fields=["pod_uid", "container", "nonce", "restart_count"],
                nulls_distinct=False,
            ),
        ]
        indexes = [
            models.Index(name="incarnation_by_pod", fields=["pod_uid", "container"]),
            models.Index(name="incarnation_by_worker", fields=["worker", "-id"]),
            models.Index(name="incarnation_on_machine", fields=["machine", "enrolled_at"]),
            models.Index(
                name="incarnation_heartbeat", fields=["last_seen_at"], condition=Q(ended_at__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pod_name} ({self.restart_count})"


class Pod(models.Model):
    """A pod of a job as the watch last saw it."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pods")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="pods")
    role = models.CharField(max_length=63)
    index = models.PositiveIntegerField()
    uid = models.CharField(max_length=64)
    namespace = models.CharField(max_length=253)
    name = models.CharField(max_length=253)
    node_name = models.CharField(max_length=253, blank=True)
    ip = models.GenericIPAddressField(null=True, blank=True)
    phase = models.CharField(max_length=16)  # Pending, Running, Succeeded, Failed, Unknown
    reason = models.CharField(max_length=200, blank=True)
    message = models.TextField(blank=True)
    restart_count = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True, blank=True)  # of the container that runs
    containers = models.JSONField(default=list)
    service_account = models.CharField(max_length=253, blank=True)
    is_waiting_for_capacity = models.BooleanField(default=False)
    resource_version = models.CharField(max_length=32, blank=True)
    created_at = models.DateTimeField()
    deleting_at = models.DateTimeField(null=True, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(name="one_row_per_pod", fields=["cluster", "uid"])]
        indexes = [models.Index(name="pod_by_job", fields=["job", "gone_at"])]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class FailureCount(models.Model):
    """A counted failure: at most one an attempt, the worker as a column."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="failure_counts")
    attempt = models.PositiveIntegerField()
    run = models.PositiveIntegerField(default=1)
    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="failure_counts")
    node_name = models.CharField(max_length=253, blank=True)
    cause = models.CharField(max_length=64)
    would = models.BooleanField(default=False)  # observed only: "would count"
    # Who alone told of it, while its cause is open: it may still be one that never counts.
    only_witness = models.CharField(max_length=16, choices=[(w, w) for w in OnlyWitness], blank=True)
    ended_in_reschedule = models.BooleanField(default=False)
    signal_uid = models.UUIDField(null=True, blank=True)
    incident_uid = models.UUIDField(null=True, blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(name="one_count_per_attempt", fields=["job", "attempt"])]

    def __str__(self) -> str:
        return f"attempt {self.attempt}: {self.cause}"


class Order(models.Model):
    """One order set of a job, durable. ``targets`` None = every worker; else ["role/index", …]."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="orders")
    sequence = models.PositiveIntegerField()
    phase = models.CharField(max_length=16, choices=[(p, p) for p in MessagePhase])
    targets = ArrayField(models.CharField(max_length=80), null=True, blank=True)
    content = models.JSONField(default=dict)  # wire's data of an Order
    action_uid = models.UUIDField(null=True, blank=True)
    written_at = models.DateTimeField()
    first_read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["sequence"]
        constraints = [models.UniqueConstraint(name="one_order_set_per_sequence", fields=["job", "sequence"])]

    def __str__(self) -> str:
        return f"{self.phase} {self.sequence}"


class Checkpoint(models.Model):
    """A checkpoint of a job by step and path, in the newest state seen."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.BigIntegerField()
    path = models.CharField(max_length=1000)
    state = models.CharField(
        max_length=16,
        choices=[("written", "written"), ("committed", "committed"), ("verified", "verified")],
        default="written",
    )
    tier = models.CharField(max_length=16, default="remote")
    bytes = models.BigIntegerField(null=True, blank=True)
    shards = models.PositiveIntegerField(null=True, blank=True)
    shards_expected = models.PositiveIntegerField(null=True, blank=True)
    attempt = models.PositiveIntegerField(default=0)
    written_at = models.DateTimeField(null=True, blank=True)
    committed_at = models.DateTimeField(null=True, blank=True)
    verified_at = models.DateTimeField(null=True, blank=True)
    seconds = models.FloatField(null=True, blank=True)

    class Meta:
        ordering = ["-step"]
        constraints = [models.UniqueConstraint(name="one_row_per_checkpoint", fields=["job", "path", "step"])]

    def __str__(self) -> str:
        return f"step {self.step} {self.state}"


class EnrolmentSecret(models.Model):
    """Secret of a job on bare machines or Slurm: good for enrolling workers of that job only."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="enrolment_secrets")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return str(self.uid)


class ReviewedToken(models.Model):
    """A service-account token that its cluster is asked about, by hash; the token itself is kept nowhere."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    sha256 = models.CharField(max_length=64)
    claimed_pod_uid = models.CharField(max_length=64)  # what the token says, unproven
    state = models.CharField(max_length=16, choices=[(s, s) for s in ReviewState])
    reason = models.TextField(blank=True)  # why it is refused, or why the cluster could not be asked
    namespace = models.CharField(max_length=253, blank=True)
    service_account = models.CharField(max_length=253, blank=True)
    pod_name = models.CharField(max_length=253, blank=True)
    pod_uid = models.CharField(max_length=64, blank=True)
    asked_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_review_per_token", fields=["cluster", "sha256"]),
            models.CheckConstraint(
                name="reviewed_token_state_known", condition=Q(state__in=[str(s) for s in ReviewState])
            ),
            models.CheckConstraint(
                name="proven_token_names_its_pod",
                condition=~Q(state=ReviewState.PROVEN) | ~Q(pod_uid=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sha256[:12]} {self.state}"
