"""How often a job should save, as the API shows it."""

from __future__ import annotations

from rest_framework import serializers

from apps.jobs.api.serializers import JobDetailOutput
from recovery.checkpoint_advice import CheckpointAdvice
from recovery.checkpointing import IntervalForm
from recovery.figures import Basis, Figure

_BASES = [str(basis) for basis in Basis]


class FigureOutput(serializers.Serializer[Figure]):
    """A number and how it is known."""

    value = serializers.FloatField()
    basis = serializers.ChoiceField(choices=_BASES)
    source = serializers.CharField()  # type: ignore[assignment]  # declared fields are no attributes


class IntervalOutput(serializers.Serializer[IntervalForm]):
    """Compute time between two saves, and what it wastes over useful time: 0.03 = 3 %."""

    name = serializers.CharField()
    interval_seconds = serializers.FloatField()
    waste_share = serializers.FloatField()


class CheckpointAdviceOutput(serializers.Serializer[CheckpointAdvice]):
    """How often the job should save, with the bounds that follow from those of the time between failures.

    `advised` is Daly's higher-order form; `present` is null while no two checkpoints of one attempt are known.
    `gets_on` is false where no interval helps: then `advised` is none to follow.
    """

    advised = IntervalOutput(source="plan.advised")
    low_seconds = serializers.FloatField()
    high_seconds = serializers.FloatField(allow_null=True)
    confidence = serializers.FloatField()
    interval_steps = serializers.IntegerField(source="plan.interval_steps", allow_null=True)
    basis = serializers.ChoiceField(source="plan.basis", choices=_BASES)
    gets_on = serializers.BooleanField(source="plan.gets_on")
    forms = IntervalOutput(source="plan.forms", many=True)
    present = IntervalOutput(source="plan.present", allow_null=True)
    checkpoint_seconds = FigureOutput(source="plan.checkpoint_seconds")
    mtbf_seconds = FigureOutput(source="plan.mtbf_seconds")
    low_mtbf_seconds = serializers.FloatField()
    high_mtbf_seconds = serializers.FloatField(allow_null=True)
    restart_seconds = FigureOutput(source="plan.restart_seconds")
    nodes = serializers.IntegerField()
    nodes_of_like_jobs = serializers.CharField(source="size", help_text="Whose failures were counted: 9-64.")
    failures = serializers.IntegerField(source="mtbf.failures")
    exposure_node_days = serializers.FloatField(source="mtbf.exposure_node_days")
    prior_share = serializers.FloatField(source="mtbf.prior_share")
    rests_on = serializers.CharField()
    gaps = serializers.CharField(source="mtbf.gaps.flag", help_text="clustered, poor fit, constant rate, …")
    warnings = serializers.ListField(child=serializers.CharField())


class AdvisedJobOutput(JobDetailOutput):
    """A job with its workers, and how often it should save; null where that cannot be said."""

    checkpoint_advice = CheckpointAdviceOutput(read_only=True, allow_null=True)

    class Meta(JobDetailOutput.Meta):
        fields = (*JobDetailOutput.Meta.fields, "checkpoint_advice")
        read_only_fields = fields
