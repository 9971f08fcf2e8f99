"""What programs tell: POST /api/v1/signals/, /hooks/, /checkpoints/, and how they read a signal again."""

from __future__ import annotations

import uuid
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.api.errors import InboxFull
from apps.access.api.views import DeskView
from apps.access.models import Cluster, Role
from apps.access.permissions import Caller, PermissionMissing
from apps.incidents.api import examples
from apps.incidents.api.serializers import (
    AlertmanagerInput,
    CheckpointInput,
    PodEndsInput,
    RecordedListOutput,
    RecordedOutput,
    SignalInput,
    SignalOutput,
    note_on,
)
from apps.incidents.models import Signal
from apps.incidents.services import intake
from apps.incidents.services.intake import Evidence, PodEnd
from apps.incidents.services.reporting import InboxFullError
from apps.incidents.services.signals import Recorded
from apps.jobs.api.serializers import CheckpointOutput
from apps.jobs.api.views import get_job
from recovery.errors import BadInput, NotFound
from recovery.signals import EndCause, SignalKind, Source

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The same request under the same key has the same answer; another body is a 409.",
)
_CLUSTER = OpenApiParameter("cluster", OpenApiTypes.STR, description="Slug of the cluster of the alerts.")


class TellingView(DeskView):
    """An endpoint where a program tells something; it answers 429 when too much waits already."""

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, InboxFullError):
            exc = InboxFull(wait=2, detail=str(exc))
        return super().handle_exception(exc)

    def telling_tenant(self) -> int:
        """The tenant that the caller tells for. Only tokens have one of their own."""
        token = self.caller.token
        if token is None:
            raise PermissionMissing("Signals come from programs: use a token with the scope signals:write.")
        return token.tenant_id


def cluster_of(caller: Caller, slug: str | None) -> int | None:
    """The cluster that a report speaks of: the token's, the named one, or the only one that there is."""
    if caller.cluster_id is not None:
        if slug and not Cluster.objects.filter(pk=caller.cluster_id, slug=slug).exists():
            raise BadInput("This token is for another cluster.", field="cluster")
        return caller.cluster_id
    if slug:
        found = Cluster.objects.filter(slug=slug).first()
        if found is None:
            raise BadInput(f"There is no cluster {slug}.", field="cluster")
        return found.pk
    some = list(Cluster.objects.values_list("pk", flat=True)[:2])
    return some[0] if len(some) == 1 else None


def told(recorded: list[Recorded], keys: list[str]) -> list[dict[str, Any]]:
    """What became of reports, under the keys that the sender knows."""
    rows = Signal.objects.in_bulk([item.signal_id for item in recorded])
    return [
        {
            "key": key,
            "uid": str(rows[item.signal_id].uid),
            "is_new": item.is_new,
            "is_unplaced": rows[item.signal_id].is_unplaced,
            "note": note_on(rows[item.signal_id]),
        }
        for item, key in zip(recorded, keys, strict=True)
    ]


class SignalsView(TellingView):
    """Evidence of a program."""

    scopes = {"POST": "signals:write"}

    @extend_schema(
        operation_id="signals_create",
        request=SignalInput,
        responses={201: RecordedOutput, 200: RecordedOutput},
        parameters=[IDEMPOTENCY_KEY],
        examples=[examples.SIGNAL],
    )
    def post(self, request: Request) -> Response:
        """Store one report. Answered once it is committed; 200 when it was known already."""
        form = SignalInput(data=request.data)
        form.is_valid(raise_exception=True)
        said = form.validated_data
        key = said.get("key") or request.headers.get("Idempotency-Key", "")
        if not key:
            raise BadInput("Give a key, or the header Idempotency-Key.", field="key")
        report = Evidence(
            key=key,
            kind=SignalKind(said["kind"]),
            body=said["body"],
            seen_at=said.get("seen_at"),
            names=said.get("about", {}),
        )
        recorded = intake.record_evidence(
            tenant_id=self.telling_tenant(),
            cluster_id=cluster_of(self.caller, said.get("cluster")),
            source=Source(said["source"]),
            reports=[report],
            sent_at=said.get("sent_at"),
            job_uid=self.caller.job_uid,
        )
        (answer,) = told(recorded, [key])
        return Response(answer, status.HTTP_201_CREATED if answer["is_new"] else status.HTTP_200_OK)


class AlertmanagerView(TellingView):
    """Alertmanager's webhook."""

    scopes = {"POST": "signals:write"}

    @extend_schema(
        operation_id="signals_alertmanager",
        request=AlertmanagerInput,
        responses=RecordedListOutput,
        parameters=[_CLUSTER],
        examples=[examples.ALERTS],
    )
    def post(self, request: Request) -> Response:
        """Store the alerts of one notification, each once by fingerprint, start and status."""
        form = AlertmanagerInput(data=request.data)
        form.is_valid(raise_exception=True)
        reports = [_alert(alert) for alert in form.validated_data["alerts"]]
        unique = {report.key: report for report in reports}  # Alertmanager groups may overlap
        recorded = intake.record_evidence(
            tenant_id=self.telling_tenant(),
            cluster_id=cluster_of(self.caller, request.query_params.get("cluster")),
            source=Source.ALERTMANAGER,
            reports=list(unique.values()),
            job_uid=self.caller.job_uid,
        )
        return Response({"results": told(recorded, list(unique))})


def _alert(alert: dict[str, Any]) -> Evidence:
    labels = alert["labels"]
    # In Prometheus ``job`` is the scrape's name; kube-state-metrics tells the Kubernetes job as job_name.
    names = {
        "namespace": labels.get("namespace", ""),
        "pod": labels.get("pod", ""),
        "job": labels.get("job_name") or labels.get("job", ""),
        "node": labels.get("node", ""),
    }
    body = {
        "status": alert["status"],
        "labels": labels,
        "annotations": alert["annotations"],
        "fingerprint": alert["fingerprint"],
        "generator_url": alert.get("generatorURL", ""),
    }
    return Evidence(
        key=f"{alert['fingerprint']}/{alert['startsAt'].isoformat()}/{alert['status']}",
        kind=SignalKind.ALERT,
        body=body,
        seen_at=alert["startsAt"],
        names=names,
    )


class SignalView(DeskView):
    """One signal."""

    scopes = {"GET": "signals:read"}

    @extend_schema(operation_id="signals_retrieve", responses=SignalOutput)
    def get(self, request: Request, uid: uuid.UUID) -> Response:
        """A signal and what became of it in each inbox."""
        signals = self.caller.limit(Signal.objects.all(), job="inbox_entries__subject__job")
        signal = signals.filter(uid=uid).prefetch_related("inbox_entries__subject").first()
        if signal is None:
            raise NotFound(f"There is no signal {uid}.")
        return Response(SignalOutput(signal).data)


class PodEndsView(TellingView):
    """The scheduler's hook for pod ends."""

    scopes = {"POST": "signals:write"}

    @extend_schema(
        operation_id="hooks_pod_ends",
        request=PodEndsInput,
        responses=RecordedListOutput,
        parameters=[IDEMPOTENCY_KEY],
        examples=[examples.POD_ENDS],
    )
    def post(self, request: Request) -> Response:
        """Store ends of containers' lives, each once by pod uid, container and restart."""
        form = PodEndsInput(data=request.data)
        form.is_valid(raise_exception=True)
        said = form.validated_data
        tenant_id = self.telling_tenant()
        cluster_id = cluster_of(self.caller, said.get("cluster"))
        ends = [_pod_end(item) for item in said["ends"]]

        def record() -> tuple[int, dict[str, Any]]:
            recorded = intake.record_pod_ends(
                tenant_id=tenant_id,
                cluster_id=cluster_id,
                ends=ends,
                sent_at=said.get("sent_at"),
                job_uid=self.caller.job_uid,
            )
            keys = [f"{end.pod_uid}/{end.container}/{end.restart}" for end in ends]
            return 200, {"results": told(recorded, keys)}

        return self.once(tenant_id=tenant_id, endpoint="pod-ends", answer=record)


def _pod_end(item: dict[str, Any]) -> PodEnd:
    cause = item.pop("cause", None)
    if cause is None:
        if item.get("reason") == "OOMKilled":
            cause = EndCause.OUT_OF_MEMORY
        elif item.get("exit_code") == 0:
            cause = EndCause.COMPLETED
        else:
            cause = EndCause.CRASHED
    return PodEnd(**item, cause=EndCause(cause))


class CheckpointsView(TellingView):
    """Checkpoints that a program tells of."""

    scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="checkpoints_create",
        request=CheckpointInput,
        responses=CheckpointOutput,
        parameters=[IDEMPOTENCY_KEY],
        examples=[examples.CHECKPOINT],
    )
    def post(self, request: Request) -> Response:
        """Store a checkpoint in the state that is told; committed never goes back to written."""
        form = CheckpointInput(data=request.data)
        form.is_valid(raise_exception=True)
        said = dict(form.validated_data)
        job = get_job(self.caller, said.pop("job_id"))
        self.caller.require_role(job.tenant_id, Role.OPERATOR)
        at = said.pop("at", None)

        def record() -> tuple[int, dict[str, Any]]:
            row, _ = intake.record_hook_checkpoint(job=job, content=said, told_at=at)
            return 200, dict(CheckpointOutput(row).data)

        return self.once(tenant_id=job.tenant_id, endpoint="checkpoints", answer=record)
