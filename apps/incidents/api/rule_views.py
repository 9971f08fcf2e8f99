"""Rules tried over the API: on a pasted log, with a rule file of one's own where one is given."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.api.views import DeskView
from apps.incidents.told_signals import problems_of
from apps.incidents.trying_rules import try_rules
from recovery.errors import BadInput
from recovery.rules.loading import RuleFileError

MAX_LINES = 2_000
MAX_RULES_TEXT = 100_000

TRY = OpenApiExample(
    "Lines of a failed rank",
    request_only=True,
    value={
        "lines": ["RuntimeError: CUDA error: uncorrectable ECC error encountered"],
        "signals": {"exit_code": 1, "checks": {"gpu": "fail"}},
    },
)


class TryRulesInput(serializers.Serializer[Any]):
    """A log, and what else is known about the failure. Nothing of it is stored."""

    lines = serializers.ListField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=100_000),
        max_length=MAX_LINES,
        help_text="Oldest first. Lines are cut to 4 KiB.",
    )
    signals = serializers.DictField(
        required=False,
        default=dict,
        help_text="exit_code, signal, pod_reason, node_conditions, kernel_log, metrics, checks, phase, ranks and "
        "recurrence, where they are known. Another key, or a value of another kind, is refused.",
    )
    rules = serializers.CharField(
        required=False, default="", allow_blank=True, trim_whitespace=False, max_length=MAX_RULES_TEXT,
        help_text="A rule file (TOML) over the rules in force.",
    )  # fmt: skip

    def validate_signals(self, signals: dict[str, Any]) -> dict[str, Any]:
        if wrong := problems_of(signals):
            raise serializers.ValidationError({path: [sentence] for path, sentence in wrong.items()})
        return signals


class HitOutput(serializers.Serializer[Any]):
    """A rule that applies, strongest first."""

    rule = serializers.CharField()
    file = serializers.CharField()
    specificity = serializers.IntegerField()
    category = serializers.CharField()
    remedy = serializers.CharField()
    blame = serializers.CharField()
    reason = serializers.CharField()
    lines = serializers.ListField(child=serializers.CharField())

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """With ``class``, which is no name in Python."""
        return {**super().get_fields(), "class": serializers.CharField()}


class TryRulesOutput(serializers.Serializer[Any]):
    """Hits, the verdict on all of it, and how much was not read."""

    hits = HitOutput(many=True)
    verdict = serializers.DictField()
    rules = serializers.DictField()
    read_lines = serializers.IntegerField(help_text="Lines of the log that were judged.")
    unread_lines = serializers.IntegerField()
    unread_steps = serializers.IntegerField()


class RulesTry(DeskView):
    """Rules on a pasted log."""

    scopes = {"POST": "incidents:read"}

    @extend_schema(
        operation_id="rules_try", request=TryRulesInput, responses={200: TryRulesOutput}, examples=[TRY]
    )
    def post(self, request: Request) -> Response:
        """Try the rules on a log: which hit which line, and what the verdict would be. Nothing is stored."""
        form = TryRulesInput(data=request.data)
        form.is_valid(raise_exception=True)
        said = form.validated_data
        try:
            tried = try_rules(said["lines"], said["signals"], said["rules"])
        except RuleFileError as error:
            raise BadInput(str(error)[:4000], field="rules") from error
        return Response(TryRulesOutput(tried).data)
