"""What programs tell over the REST API: alerts, other evidence, pod ends, checkpoints, jobs and stops."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from apps import crash_points
from apps.access import clock
from apps.access.models import Cluster, Tenant
from apps.access.services import audit
from apps.incidents.models import Signal
from apps.incidents.redact import clean_body, storable
from apps.incidents.services import feed
from apps.incidents.services.placing import subjects_named
from apps.incidents.services.reporting import InboxFullError, refuse_full_inbox
from apps.incidents.services.signals import NewSignal, Recorded, record_signals, subject_for_job
from apps.incidents.wake import wake_subjects
from apps.jobs.models import Checkpoint, Incarnation, Job, Pod
from apps.jobs.services import checkpoints
from apps.jobs.services.registering import Registered, register_job
from recovery.errors import InvalidTransition
from recovery.phases import TERMINAL_PHASES
from recovery.signals import EndCause, SignalKind, Source, WorkerKey

#: What a program may tell as evidence. None of these counts by itself (DOMAIN 2).
EVIDENCE_KINDS = (SignalKind.ALERT, SignalKind.LOG, SignalKind.METRIC)
EVIDENCE_SOURCES = (Source.API, Source.ALERTMANAGER, Source.PROMETHEUS)
MAX_UNPLACED = 10_000  # of one tenant
UNMEASURED_SECONDS = 1.0  # uncertainty of a clock that was not compared with ours
MAX_KEY = 250


@dataclass(frozen=True, slots=True)
class Evidence:
    """One report of a program. ``names`` says what it is about: pod_uid, namespace, pod, job, node."""

    key: str
    kind: SignalKind
    body: dict[str, Any]
    seen_at: datetime | None = None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodEnd:
    """The end of one life of a container, as the scheduler saw it."""

    pod_uid: str
    container: str
    restart: int
    cause: EndCause
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    message: str = ""
    ended_at: datetime | None = None
    namespace: str = ""
    pod: str = ""
    node: str = ""


def record_evidence(
    *,
    tenant_id: int,
    cluster_id: int | None,
    source: Source,
    reports: Sequence[Evidence],
    sent_at: datetime | None = None,
    job_uid: str = "",
) -> list[Recorded]:
    """Store reports as signals of the jobs that they are about; those about something unknown wait an hour.

    ``job_uid`` limits it to one job, as the caller's token is: what is about another stays unplaced.

    Raises:
        Conflict: A key was used before with another body.
        InboxFullError: Too much is undecided, or unplaced.
    """
    with transaction.atomic():
        now = clock.database_now()
        signals = []
        placed: dict[tuple[tuple[str, str], ...], tuple[int, ...]] = {}  # a storm is about few things
        for report in reports:
            about = tuple(sorted(report.names.items()))
            if about not in placed:
                placed[about] = _subjects(tenant_id, cluster_id, report.names, job_uid)
            seen_at, uncertainty = _seen(report.seen_at, sent_at, now)
            signals.append(
                NewSignal(
                    tenant_id=tenant_id,
                    cluster_id=cluster_id,
                    source=source,
                    source_key=_own_key(tenant_id, report.key),
                    told_key=storable(report.key),
                    kind=report.kind,
                    body=clean_body({**report.body, **{k: v for k, v in report.names.items() if v}}),
                    seen_at=seen_at,
                    source_at=report.seen_at,
                    uncertainty_seconds=uncertainty,
                    subject_ids=placed[about],
                    worker=_worker_of_pod(placed[about], report) if placed[about] else None,
                )
            )
        recorded = _record(tenant_id, signals, now)
    crash_points.reach("signal_committed")
    return recorded


def record_pod_ends(
    *,
    tenant_id: int,
    cluster_id: int | None,
    ends: Sequence[PodEnd],
    sent_at: datetime | None = None,
    job_uid: str = "",
) -> list[Recorded]:
    """Store ends of containers' lives, each once by pod uid, container and restart. Errors as above."""
    with transaction.atomic():
        now = clock.database_now()
        pods = Pod.objects.select_related("job").filter(
            tenant_id=tenant_id, uid__in={end.pod_uid for end in ends}
        )
        if cluster_id is not None:
            pods = pods.filter(cluster_id=cluster_id)
        if job_uid:
            pods = pods.filter(job__owner_uid=job_uid)
        known = {pod.uid: pod for pod in pods}
        subjects = {pod.job_id: subject_for_job(pod.job).pk for pod in {p.job_id: p for p in pods}.values()}
        lives = {
            (life.pod_uid, life.container, life.restart_count): life.pk
            for life in Incarnation.objects.filter(tenant_id=tenant_id, pod_uid__in=known).order_by("nonce")
        }
        signals = []
        for end in ends:
            pod = known.get(end.pod_uid)
            key = f"{storable(end.pod_uid)}/{storable(end.container)}/{end.restart}"
            seen_at, uncertainty = _seen(end.ended_at, sent_at, now)
            signals.append(
                NewSignal(
                    tenant_id=tenant_id,
                    cluster_id=pod.cluster_id if pod else cluster_id,
                    source=Source.HOOK,
                    # A pod that is not known as this tenant's must not take the key of another's.
                    source_key=key if pod else _own_key(tenant_id, key),
                    told_key=key,
                    kind=SignalKind.INCARNATION_ENDED,
                    body=_end_body(end),
                    seen_at=seen_at,
                    source_at=end.ended_at,
                    uncertainty_seconds=uncertainty,
                    subject_ids=(subjects[pod.job_id],) if pod else (),
                    worker=WorkerKey(pod.role, pod.index) if pod else None,
                    incarnation_id=lives.get((end.pod_uid, end.container, end.restart)),
                )
            )
        recorded = _record(tenant_id, signals, now)
    crash_points.reach("signal_committed")
    return recorded


def record_hook_checkpoint(
    *, job: Job, content: Mapping[str, Any], told_at: datetime | None = None
) -> tuple[Checkpoint, Recorded]:
    """Store a checkpoint that a program tells of. BadInput names the field that cannot be."""
    with transaction.atomic():
        now = clock.database_now()
        seen_at, uncertainty = _seen(told_at, None, now)
        body = clean_body(dict(content))
        row = checkpoints.record_checkpoint(job=job, content=body, at=seen_at)
        place = hashlib.sha256(body["path"].encode()).hexdigest()[:32]
        signal = NewSignal(
            tenant_id=job.tenant_id,
            cluster_id=job.cluster_id,
            source=Source.HOOK,
            source_key=f"checkpoint/{job.pk}/{body['step']}/{place}/{body['state']}",
            kind=SignalKind.CHECKPOINT,
            body=body,
            seen_at=seen_at,
            source_at=told_at,
            uncertainty_seconds=uncertainty,
            subject_ids=(subject_for_job(job).pk,),
        )
        recorded = _record(job.tenant_id, [signal], now)
        feed.publish(tenant_id=job.tenant_id, topic="job", key=job.pk, now=now)
    crash_points.reach("signal_committed")
    return row, recorded[0]


def register_bare_job(
    *, tenant: Tenant, cluster: Cluster, actor_kind: str, actor: str, **fields: Any
) -> Registered:
    """Register a job of bare machines or Slurm, tell its subject, and audit it. See ``register_job``."""
    with transaction.atomic():
        registered = register_job(tenant=tenant, cluster=cluster, **fields)
        job = registered.job
        signal = NewSignal(
            tenant_id=tenant.pk,
            cluster_id=cluster.pk,
            source=Source.API,
            source_key=f"known/{job.pk}",
            kind=SignalKind.JOB_KNOWN,
            body={"suspended": False},
            seen_at=registered.now,
            subject_ids=(subject_for_job(job).pk,),
        )
        _record(tenant.pk, [signal], registered.now)
        audit(
            at=registered.now,
            tenant_id=tenant.pk,
            actor_kind=actor_kind,
            actor=actor,
            verb="register_job",
            target_kind="job",
            target=str(job),
            after={"world_size": job.world_size, "cluster": cluster.slug},
        )
        feed.publish(tenant_id=tenant.pk, topic="job", key=job.pk, now=registered.now)
    crash_points.reach("signal_committed")
    return registered


def ask_stop(*, job: Job, reason: str, at_safe_point: bool, by: str) -> Recorded:
    """Ask for Stopped by a program's token; decided by whoever drains the job's inbox next.

    Raises InvalidTransition when the job has ended.
    """
    with transaction.atomic():
        now = clock.database_now()
        fresh = Job.objects.get(pk=job.pk)
        if fresh.phase in TERMINAL_PHASES:
            raise InvalidTransition(f"{fresh} is {fresh.phase} already.")
        words = {"by": storable(by), "reason": storable(reason), "at_safe_point": at_safe_point}
        digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]
        signal = NewSignal(
            tenant_id=job.tenant_id,
            cluster_id=job.cluster_id,
            source=Source.API,
            source_key=f"quit/{job.pk}/{fresh.run}/{digest}",
            kind=SignalKind.QUIT,
            body=words,
            seen_at=now,
            subject_ids=(subject_for_job(job).pk,),
        )
        recorded = _record(job.tenant_id, [signal], now)
        audit(
            at=now,
            tenant_id=job.tenant_id,
            actor_kind="token",
            actor=by,
            verb="stop",
            target_kind="job",
            target=str(job),
            reason=reason,
        )
    crash_points.reach("signal_committed")
    return recorded[0]


def _record(tenant_id: int, signals: Sequence[NewSignal], now: datetime) -> list[Recorded]:
    """Record, and wake after the commit; refused whole when too much waits already."""
    subjects = sorted({subject for signal in signals for subject in signal.subject_ids})
    for subject in subjects:
        refuse_full_inbox(subject)
    if any(not signal.subject_ids for signal in signals):
        waiting = Signal.objects.filter(is_unplaced=True, tenant_id=tenant_id).order_by()
        if waiting[MAX_UNPLACED : MAX_UNPLACED + 1].exists():
            raise InboxFullError(f"{MAX_UNPLACED} signals of this tenant are about nothing known already.")
    recorded = record_signals(signals=signals, now=now)
    transaction.on_commit(lambda: wake_subjects(subjects))
    return recorded


def _subjects(
    tenant_id: int, cluster_id: int | None, names: Mapping[str, str], job_uid: str
) -> tuple[int, ...]:
    found = subjects_named(tenant_id=tenant_id, cluster_id=cluster_id, names=names)
    if not job_uid or not found:
        return found
    own = Job.objects.filter(tenant_id=tenant_id, owner_uid=job_uid, subject__in=found)
    return tuple(own.values_list("subject", flat=True))


def _worker_of_pod(subjects: tuple[int, ...], report: Evidence) -> WorkerKey | None:
    """Whose number it is, where a pod is named: a decision knows pods by their uid and node only."""
    namespace, pod = report.names.get("namespace"), report.names.get("pod")
    if report.kind is not SignalKind.METRIC or report.names.get("pod_uid") or not (namespace and pod):
        return None
    found = (
        Pod.objects.filter(job__subject__in=subjects, namespace=namespace, name=pod).order_by("-id").first()
    )
    return WorkerKey(found.role, found.index) if found is not None else None


def _seen(told: datetime | None, sent_at: datetime | None, now: datetime) -> tuple[datetime, float]:
    """(when by our clock, uncertainty). ``sent_at`` of the same clock tells how far that clock is off."""
    if told is None:
        return now, 0.0
    offset = timedelta(0) if sent_at is None else sent_at - now
    return min(now, told - offset), UNMEASURED_SECONDS


def _own_key(tenant_id: int, key: str) -> str:
    """A key is its tenant's own: no other can take it, or learn from a conflict that it is taken."""
    key = storable(key)
    if len(key) > MAX_KEY:
        key = f"{key[:180]}…{hashlib.sha256(key.encode()).hexdigest()[:40]}"
    return f"{tenant_id}:{key}"


def _end_body(end: PodEnd) -> dict[str, Any]:
    """Only what was told: the same report again must be the same, whatever became known in between."""
    body: dict[str, Any] = clean_body(
        {
            "pod_uid": end.pod_uid,
            "namespace": end.namespace,
            "pod": end.pod,
            "container": end.container,
            "restart": end.restart,
            "cause": str(end.cause),
            "exit_code": end.exit_code,
            "signal": end.signal,
            "reason": end.reason,
            "message": end.message,
            "node": end.node,
        }
    )
    return body
