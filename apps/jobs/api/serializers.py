"""Jobs, workers, attempts and checkpoints as the API shows and takes them."""

from __future__ import annotations

from django.db.models import Model
from rest_framework import serializers

from apps.jobs.models import Attempt, Checkpoint, Job, Worker
from recovery.phases import Phase

PHASES = [str(phase) for phase in Phase]
CHECKPOINT_STATES = ["written", "committed", "verified"]


class JobOutput(serializers.ModelSerializer[Job]):
    """A job as lists show it."""

    cluster = serializers.SlugRelatedField[Model](slug_field="slug", read_only=True)
    tenant = serializers.SlugRelatedField[Model](slug_field="slug", read_only=True)
    phase = serializers.ChoiceField(choices=PHASES, read_only=True)

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            "id",
            "owner_uid",
            "owner_kind",
            "cluster",
            "tenant",
            "namespace",
            "name",
            "world_size",
            "gpus_per_worker",
            "phase",
            "phase_since_at",
            "phase_reason",
            "run",
            "attempt",
            "recover_count",
            "max_retry",
            "is_protected",
            "protection_reason",
            "is_protection_due",
            "is_suspended",
            "created_at",
            "ended_at",
            "gone_at",
        )
        read_only_fields = fields


class WorkerOutput(serializers.ModelSerializer[Worker]):
    """One place of a job, with what its present incarnation tells."""

    inner_phase = serializers.ChoiceField(choices=PHASES, read_only=True)
    pod_name = serializers.CharField(source="incarnation.pod_name", default="", read_only=True)
    node_name = serializers.CharField(source="incarnation.node_name", default="", read_only=True)
    is_silent = serializers.BooleanField(source="incarnation.is_silent", default=False, read_only=True)
    step = serializers.IntegerField(source="incarnation.step", default=None, read_only=True, allow_null=True)
    step_at = serializers.DateTimeField(
        source="incarnation.step_at", default=None, read_only=True, allow_null=True
    )

    class Meta:
        model = Worker
        fields = (
            "role",
            "index",
            "inner_phase",
            "is_enrolled",
            "is_finished",
            "retries",
            "is_restarted",
            "must_exit",
            "last_sequence",
            "last_failure_reason",
            "pod_name",
            "node_name",
            "is_silent",
            "step",
            "step_at",
        )
        read_only_fields = fields


class JobDetailOutput(JobOutput):
    """A job with its workers."""

    workers = WorkerOutput(many=True, read_only=True)

    class Meta(JobOutput.Meta):
        fields = (
            *JobOutput.Meta.fields,
            "sequence",
            "attempt_sequence",
            "priority",
            "stop_grace_seconds",
            "waiting_seconds",
            "preempted_count",
            "evicted_slow_count",
            "limits",
            "workers",
        )
        read_only_fields = fields


class AttemptOutput(serializers.ModelSerializer[Attempt]):
    """One start of a job."""

    class Meta:
        model = Attempt
        fields = (
            "n",
            "run",
            "sequence",
            "is_protected",
            "started_at",
            "first_step_at",
            "resumed_from_step",
            "first_step",
            "last_step",
            "step_seconds",
            "ended_at",
            "end_cause",
            "is_counted",
            "remedy",
            "incident_uid",
        )
        read_only_fields = fields


class CheckpointOutput(serializers.ModelSerializer[Checkpoint]):
    """A checkpoint in the furthest state that was told."""

    state = serializers.ChoiceField(choices=CHECKPOINT_STATES, read_only=True)

    class Meta:
        model = Checkpoint
        fields = (
            "step",
            "path",
            "state",
            "tier",
            "bytes",
            "shards",
            "shards_expected",
            "attempt",
            "written_at",
            "committed_at",
            "verified_at",
            "seconds",
        )
        read_only_fields = fields
