"""Signals, incidents, actions and nodes as the API shows and takes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import models
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.access.api.filters import OneOfField
from apps.incidents.models import Action, Cause, Incident, Signal, TimelineEvent
from apps.incidents.rules import note_on_metric
from apps.incidents.services.intake import EVIDENCE_KINDS, EVIDENCE_SOURCES
from apps.jobs.services.registering import MAX_WORKERS
from apps.nodes.models import Machine
from apps.nodes.selectors import NodeState
from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution, Severity, WaitingFor
from recovery.signals import EndCause, SignalKind, Source, Use

MAX_BATCH = 500
MAX_METRIC_NAME = 100


def _words(kind: Any) -> list[str]:
    return [str(word) for word in kind]


TOLD_CHECKPOINT_STATES = ["written", "committed"]
INCIDENT_STATES = _words(IncidentState)
ACTION_STATES = _words(ActionState)
NODE_STATES = _words(NodeState)


class NameField(serializers.CharField):
    """A name out of Kubernetes or a job: bounded, and empty when it is not told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{"max_length": 253, "required": False, "allow_blank": True, "default": "", **options}
        )


class MomentField(serializers.DateTimeField):
    """A moment that a clock can show; years beyond are mistakes, and no arithmetic of ours survives them."""

    def to_internal_value(self, value: Any) -> datetime:
        moment = super().to_internal_value(value)
        if not 2000 <= moment.year < 2200:
            raise serializers.ValidationError("A moment between the years 2000 and 2200.")
        return moment


# Signals


class AboutInput(serializers.Serializer[Any]):
    """What a report is about. The most exact name that is there decides: pod, then job, then node."""

    pod_uid = NameField(max_length=64)
    namespace = NameField()
    pod = NameField()
    job = NameField()
    node = NameField()


class SignalInput(serializers.Serializer[Any]):
    """One report of a program: evidence, which never counts by itself."""

    key = serializers.CharField(
        max_length=250, required=False, help_text="The report's own key; else the header Idempotency-Key."
    )
    source = OneOfField(  # type: ignore[assignment]
        choices=_words(EVIDENCE_SOURCES), default=str(Source.API)
    )
    kind = OneOfField(choices=_words(EVIDENCE_KINDS))
    cluster = serializers.SlugField(required=False, help_text="Needed where the desk has several clusters.")
    seen_at = MomentField(required=False, help_text="When it happened, by the sender's clock.")
    sent_at = MomentField(
        required=False, help_text="Now, by the sender's clock: its offset from the desk's is taken off."
    )
    about = AboutInput(required=False)
    body = serializers.DictField(
        default=dict, help_text="For kind metric: name, and value as a number. For kind log: lines."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["kind"] == SignalKind.METRIC and (wrong := wrong_metric(attrs["body"])):
            raise serializers.ValidationError({"body": wrong})
        return attrs


def wrong_metric(body: Mapping[str, Any]) -> dict[str, list[str]]:
    """What is wrong with the body of a metric, by field; empty when nothing is."""
    name, value = body.get("name"), body.get("value")
    wrong: dict[str, list[str]] = {}
    if not isinstance(name, str) or not 0 < len(name) <= MAX_METRIC_NAME:
        wrong["name"] = [f"The metric's name, a text of 1 to {MAX_METRIC_NAME} characters."]
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
        wrong["value"] = ["The metric's value, a number such as 1.4; a log line or an alert may tell words."]
    return wrong


def note_on(signal: Signal) -> str:
    """What its sender has to know of a stored signal, "" for nothing."""
    return note_on_metric(str(signal.body.get("name", ""))) if signal.kind == SignalKind.METRIC else ""


class RecordedOutput(serializers.Serializer[Any]):
    """What became of a report."""

    key = serializers.CharField(help_text="The report's key.")
    uid = serializers.UUIDField(
        help_text="Of the stored signal: GET /api/v1/signals/{uid}/ tells what became of it."
    )
    is_new = serializers.BooleanField(help_text="False: the same report was stored before.")
    is_unplaced = serializers.BooleanField(
        help_text="It is about nothing that is known yet. It is stored, and tried again for an hour."
    )
    note = serializers.CharField(
        allow_blank=True, help_text="What the sender has to know: that no rule reads a metric of this name."
    )


class RecordedListOutput(serializers.Serializer[Any]):
    """What became of a batch, in its order."""

    results = RecordedOutput(many=True)


class AlertInput(serializers.Serializer[Any]):
    """One alert of Alertmanager's webhook."""

    status = OneOfField(choices=["firing", "resolved"])
    labels = serializers.DictField(child=serializers.CharField(allow_blank=True, trim_whitespace=False))
    annotations = serializers.DictField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False), default=dict
    )
    startsAt = MomentField()  # noqa: N815 - Alertmanager's names
    endsAt = serializers.CharField(required=False, allow_blank=True, max_length=64)  # noqa: N815
    generatorURL = serializers.CharField(required=False, allow_blank=True, max_length=2000)  # noqa: N815
    fingerprint = serializers.CharField(max_length=64)


class AlertmanagerInput(serializers.Serializer[Any]):
    """Body of Alertmanager's webhook, version 4."""

    version = OneOfField(choices=["4"])
    alerts = AlertInput(many=True, allow_empty=False, max_length=MAX_BATCH)  # type: ignore[call-arg]


class SignalUseOutput(serializers.Serializer[Any]):
    """What a subject's decision made of a signal."""

    subject = serializers.CharField(source="subject.kind")
    job_id = serializers.IntegerField(source="subject.job_id", allow_null=True)
    decision_n = serializers.IntegerField(allow_null=True)
    use = serializers.ChoiceField(choices=_words(Use), allow_blank=True)
    reason = serializers.CharField(allow_blank=True)


class SignalOutput(serializers.ModelSerializer[Signal]):
    """A signal, and what became of it."""

    source = serializers.ChoiceField(choices=_words(Source), read_only=True)  # type: ignore[assignment]
    kind = serializers.ChoiceField(choices=_words(SignalKind), read_only=True)
    uses = SignalUseOutput(many=True, source="inbox_entries", read_only=True)
    note = serializers.SerializerMethodField()

    class Meta:
        model = Signal
        fields = (
            "uid",
            "source",
            "source_key",
            "kind",
            "body",
            "seen_at",
            "source_at",
            "uncertainty_seconds",
            "received_at",
            "role",
            "index",
            "sequence",
            "phase",
            "is_unplaced",
            "note",
            "uses",
        )
        read_only_fields = fields

    def get_note(self, signal: Signal) -> str:
        """What its sender has to know: that no rule reads a metric of this name; else empty."""
        return note_on(signal)


class PodEndInput(serializers.Serializer[Any]):
    """The end of one life of a container, as a scheduler saw it. The first three are its key."""

    pod_uid = serializers.CharField(max_length=64)
    container = serializers.CharField(max_length=63)
    restart = serializers.IntegerField(
        min_value=0,
        max_value=2**31 - 1,
        help_text="How often the container had been restarted before this life: restartCount of its status then.",
    )
    cause = OneOfField(
        choices=sorted(
            _words(
                set(EndCause)
                - {EndCause.REPLACED, EndCause.EVICTED_BY_DESK, EndCause.EVICTED_AS_SLOW, EndCause.ORDERED}
            )
        ),
        required=False,
        help_text="Without it: completed for exit code 0, out_of_memory for OOMKilled, else crashed.",
    )
    exit_code = serializers.IntegerField(min_value=0, max_value=255, required=False, allow_null=True)
    signal = serializers.IntegerField(min_value=1, max_value=64, required=False, allow_null=True)
    reason = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")
    message = serializers.CharField(max_length=4096, required=False, allow_blank=True, default="")
    ended_at = MomentField(required=False)
    namespace = NameField()
    pod = NameField()
    node = NameField()


class PodEndsInput(serializers.Serializer[Any]):
    """Ends of containers' lives, in any order; one that was told before changes nothing."""

    cluster = serializers.SlugField(required=False)
    sent_at = MomentField(required=False)
    ends = PodEndInput(many=True, allow_empty=False, max_length=MAX_BATCH)  # type: ignore[call-arg]


# Jobs, written


class RegisterJobInput(serializers.Serializer[Any]):
    """A job on bare machines or Slurm."""

    cluster = serializers.SlugField(required=False)
    namespace = serializers.RegexField(r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z", max_length=253)
    name = serializers.RegexField(r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z", max_length=200)
    world_size = serializers.IntegerField(min_value=1, max_value=MAX_WORKERS)
    uid = serializers.CharField(
        max_length=64,
        required=False,
        default="",
        allow_blank=True,
        help_text="The scheduler's own name of this one run of the job, never used again; made here when empty.",
    )
    gpus_per_worker = serializers.IntegerField(min_value=0, max_value=1024, default=0)
    max_retry = serializers.IntegerField(min_value=0, max_value=10_000, required=False)
    stop_grace_seconds = serializers.FloatField(min_value=0, max_value=3600, required=False)
    protect = serializers.BooleanField(
        default=True, help_text="Whether the desk may restart it, where the cluster's mode lets it."
    )
    secret_expires_at = MomentField(required=False, allow_null=True, default=None)


class RegisteredJobOutput(serializers.Serializer[Any]):
    """The new job. ``enrolment_secret`` is told this once; when a key is used again it is null."""

    id = serializers.IntegerField()
    uid = serializers.CharField()
    job = serializers.CharField()
    worker_names = serializers.CharField(help_text="How INCIDENTDESK_POD_NAME must read on each machine.")
    enrolment_secret = serializers.CharField(allow_null=True)


class StopInput(serializers.Serializer[Any]):
    """Why, and whether to wait for the next checkpoint."""

    reason = serializers.CharField(max_length=1000)
    at_safe_point = serializers.BooleanField(
        default=False, help_text="Stop after the next checkpoint, so that no step is lost, instead of now."
    )


class StopOutput(serializers.Serializer[Any]):
    """The job's phase when the request was stored. It stops once the request is decided."""

    id = serializers.IntegerField()
    phase = serializers.CharField()


class CheckpointInput(serializers.Serializer[Any]):
    """A checkpoint that a program tells of. ``verified`` comes from the desk's own restore drills."""

    job_id = serializers.IntegerField(min_value=1)
    step = serializers.IntegerField(min_value=0, max_value=2**62)
    path = serializers.CharField(max_length=1000)
    state = OneOfField(choices=TOLD_CHECKPOINT_STATES)
    bytes = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    shards = serializers.IntegerField(min_value=0, max_value=2**31 - 1, required=False)
    shards_expected = serializers.IntegerField(min_value=0, max_value=2**31 - 1, required=False)
    seconds = serializers.FloatField(min_value=0, max_value=1e8, required=False)
    at = MomentField(required=False)


# Incidents


class ActionOutput(serializers.ModelSerializer[Action]):
    """One thing that the desk does, or would do."""

    kind = serializers.ChoiceField(choices=_words(ActionKind), read_only=True)
    state = serializers.ChoiceField(choices=ACTION_STATES, read_only=True)
    price = serializers.DictField(
        read_only=True,
        help_text="What it costs beside the other options: chosen, why, deadline, and options with their parts; "
        "empty where that is not known.",
    )

    class Meta:
        model = Action
        fields = (
            "id",
            "uid",
            "kind",
            "target",
            "generation",
            "state",
            "why",
            "refused_because",
            "price",
            "not_before_at",
            "deadline_at",
            "try_n",
            "is_found",
            "end_reason",
            "created_at",
            "ended_at",
        )
        read_only_fields = fields


class CauseOutput(serializers.ModelSerializer[Cause]):
    """A cause that joined an incident."""

    class Meta:
        model = Cause
        fields = ("category", "text", "first_seen_at", "last_seen_at", "count")
        read_only_fields = fields


class IncidentOutput(serializers.ModelSerializer[Incident]):
    """An incident as lists show it."""

    name = serializers.SerializerMethodField()
    job = serializers.SerializerMethodField()
    cluster = serializers.CharField(source="cluster.slug", default=None, read_only=True, allow_null=True)
    node = serializers.CharField(source="machine.name", default=None, read_only=True, allow_null=True)
    state = serializers.ChoiceField(choices=INCIDENT_STATES, read_only=True)
    severity = serializers.ChoiceField(choices=_words(Severity), read_only=True)
    waiting_for = serializers.ChoiceField(choices=_words(WaitingFor), read_only=True, allow_blank=True)
    resolution = serializers.ChoiceField(choices=_words(Resolution), read_only=True, allow_blank=True)
    acknowledged_by = serializers.SerializerMethodField()

    class Meta:
        model = Incident
        fields: tuple[str, ...] = (
            "id",
            "uid",
            "name",
            "title",
            "job_id",
            "job",
            "cluster",
            "node",
            "state",
            "state_since_at",
            "severity",
            "rung",
            "waiting_for",
            "waiting_until_at",
            "attempt",
            "failed_at",
            "opened_at",
            "resolved_at",
            "closed_at",
            "resolution",
            "reopened_count",
            "reopened_at",
            "failures_used",
            "version",
            "acknowledged_by",
            "acknowledged_at",
        )
        read_only_fields = fields

    def get_name(self, incident: Incident) -> str:
        """What people call it."""
        return str(incident)

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_acknowledged_by(self, incident: Incident) -> str | None:
        """Username, or ``token NAME (PREFIX)``; null while nobody has taken it."""
        return incident.acknowledger or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_job(self, incident: Incident) -> str | None:
        """The job's namespace and name."""
        return None if incident.job is None else str(incident.job)


class IncidentDetailOutput(IncidentOutput):
    """An incident with what explains it."""

    causes = CauseOutput(many=True, read_only=True)
    actions = ActionOutput(many=True, read_only=True)

    class Meta(IncidentOutput.Meta):
        fields = (*IncidentOutput.Meta.fields, "verdict", "considered", "tries", "causes", "actions")
        read_only_fields = fields


class TimelineEventOutput(serializers.ModelSerializer[TimelineEvent]):
    """One line of an incident's timeline."""

    class Meta:
        model = TimelineEvent
        fields = (
            "n",
            "kind",
            "at",
            "received_at",
            "text",
            "actor_kind",
            "actor",
            "role",
            "index",
            "attempt",
            "body",
            "decision_n",
        )
        read_only_fields = fields


class AcknowledgeInput(serializers.Serializer[Any]):
    """The version that was seen; another one by now is a conflict."""

    version = serializers.IntegerField(min_value=0, max_value=2**31 - 1)


class ReasonInput(serializers.Serializer[Any]):
    """Why; the audit keeps it."""

    reason = serializers.CharField(max_length=1000)


class RestartInput(serializers.Serializer[Any]):
    """What was done meanwhile; the timeline keeps it."""

    reason = serializers.CharField(max_length=1000, required=False, default="", allow_blank=True)


# Nodes


class NodeOutput(serializers.ModelSerializer[Machine]):
    """A machine as lists show it."""

    cluster = serializers.SlugRelatedField[models.Model](slug_field="slug", read_only=True)
    state = serializers.ChoiceField(choices=NODE_STATES, read_only=True)

    class Meta:
        model = Machine
        fields: tuple[str, ...] = (
            "id",
            "cluster",
            "name",
            "state",
            "is_ready",
            "is_cordoned",
            "pool",
            "rack",
            "zone",
            "gpu_type",
            "gpu_count",
            "first_seen_at",
            "last_seen_at",
            "gone_at",
        )
        read_only_fields = fields


class NodeDetailOutput(NodeOutput):
    """A machine with what the watch saw of it."""

    class Meta(NodeOutput.Meta):
        fields = (
            *NodeOutput.Meta.fields,
            "hardware_key",
            "is_key_weak",
            "node_uid",
            "boot_id",
            "taints",
            "conditions",
            "kubelet_version",
        )
        read_only_fields = fields
