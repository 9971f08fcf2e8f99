"""Jobs and pods of a cluster become rows, and what happened to them becomes news.

The news is recorded as signals by the caller, in the same transaction as the rows: an edge is told
exactly when the row that remembers it is written. The phase machine's columns of a job or worker are a
decision's; here only those are written that say what the cluster shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from adapters.facts import Change, JobFact
from apps.access import services as access
from apps.access.models import Cluster
from apps.jobs.limits import Wishes, nested_limits, read_wishes
from apps.jobs.models import Job, Run, Worker
from recovery.decide import Mode
from recovery.signals import SignalKind, WorkerKey

ROLE = "worker"
BATCH_ROWS = 500
MOST_WORKERS = 100_000  # a batch job with more places than this is no gang
TRUE_WORDS = frozenset({"true", "yes", "1", "on"})

Annotations = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened to a job, worth a signal. ``source_key`` is unique and stable."""

    kind: SignalKind
    job: Job
    source_key: str
    body: dict[str, Any]
    seen_at: datetime
    worker: WorkerKey | None = None
    incarnation_id: int | None = None
    uncertainty_seconds: float = 0.0


@dataclass
class JobsImported:
    """What an import of jobs did. ``ignored`` are uids of batch jobs that train nothing."""

    news: list[News] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    changed_ids: list[int] = field(default_factory=list)


def import_jobs(
    *,
    cluster: Cluster,
    changes: Sequence[Change[JobFact]],
    namespaces: Mapping[str, Annotations],
    now: datetime,
) -> JobsImported:
    """Write what changed of these jobs, in the caller's transaction.

    Args:
        changes: In the order in which they were seen. An older version than the row's changes nothing.
        namespaces: Annotations of each namespace, names without our prefix.
    """
    outcome = JobsImported()
    rows = {
        row.owner_uid: row
        for row in Job.objects.filter(cluster=cluster, owner_uid__in={each.uid for each in changes})
    }
    tenants: dict[str, int] = {}
    changed: dict[int, Job] = {}
    for change in changes:
        row, fact = rows.get(change.uid), change.fact
        if fact is not None and row is None and not change.is_gone:
            if not _is_known(fact, namespaces):
                outcome.ignored.add(change.uid)
                continue
            row = _create(cluster, fact, namespaces, tenants, now)
            rows[change.uid] = row
            outcome.news.append(_news(SignalKind.JOB_KNOWN, row, {"suspended": fact.is_suspended}, now))
            outcome.news.extend(_end_news(row, fact, now))
            outcome.changed_ids.append(row.pk)
        elif row is not None and fact is not None and is_newer(fact.resource_version, row.resource_version):
            outcome.news.extend(_update(cluster, row, fact, namespaces, now))
            changed[row.pk] = row
        if row is None:
            continue
        if change.is_gone and row.gone_at is None:
            row.gone_at = now
            changed[row.pk] = row
            outcome.news.append(_news(SignalKind.JOB_DELETED, row, {}, now))
        outcome.known[change.uid] = row.pk
    Job.objects.bulk_update(list(changed.values()), _SEEN_FIELDS, batch_size=BATCH_ROWS)
    outcome.changed_ids.extend(changed)
    return outcome


def review_protection(
    *, cluster: Cluster, namespaces: Mapping[str, Annotations], now: datetime
) -> list[News]:
    """Compare what live jobs may expect with what they were told, after a namespace or the mode changed."""
    news, changed = [], []
    for row in Job.objects.filter(cluster=cluster, gone_at__isnull=True, ended_at__isnull=True).order_by(
        "id"
    ):
        told = _review(cluster, row, namespaces, now)
        if told is not None:
            changed.append(row)
            news.extend(told)
    Job.objects.bulk_update(changed, ["is_opted_in", "protection_reason"], batch_size=BATCH_ROWS)
    return news


def known_jobs(cluster: Cluster) -> tuple[dict[str, str], dict[str, int]]:
    """uid -> resource version of the jobs that are present, and uid -> row id of those that have rows."""
    present, ids = {}, {}
    rows = Job.objects.filter(cluster=cluster).exclude(owner_uid="")
    for uid, version, pk, gone_at in rows.values_list("owner_uid", "resource_version", "id", "gone_at"):
        ids[uid] = pk
        if gone_at is None and version:  # bare machines' jobs have no version: no watch speaks of them
            present[uid] = version
    return present, ids


def is_newer(version: str, than: str) -> bool:
    """Whether one resource version is later than another of the same object."""
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than


# What the watch writes of a job; everything else is a decision's.
_SEEN_FIELDS = [
    "world_size",
    "gpus_per_worker",
    "is_opted_in",
    "protection_reason",
    "mode",
    "is_suspended",
    "resource_version",
    "annotations",
    "limits",
    "restart_policy",
    "stop_grace_seconds",
    "seen_at",
    "gone_at",
]


def _is_known(fact: JobFact, namespaces: Mapping[str, Annotations]) -> bool:
    asked_for = fact.is_training or _is_opted_in(fact.annotations, namespaces.get(fact.namespace, {}))
    return asked_for and 1 <= fact.world_size <= MOST_WORKERS


def _is_opted_in(own: Annotations, namespaces: Annotations) -> bool:
    """The job's own word goes before its namespace's."""
    return own.get("protect", namespaces.get("protect", "")).strip().lower() in TRUE_WORDS


def _why_unprotected(cluster: Cluster, row: Job) -> str:
    """Why agents of the job may not obey, in words; "" when they may."""
    if not row.is_opted_in:
        return "neither the job nor its namespace has the annotation incidentdesk.io/protect: true"
    if cluster.mode == Mode.OBSERVE:
        return f"cluster {cluster.slug} is in observe"
    if row.mode == Mode.OBSERVE:
        return "the job asks to be observed only (annotation incidentdesk.io/mode)"
    return ""


def _wishes(annotations: Annotations) -> Wishes:
    return read_wishes(
        annotations,
        default_max_retry=settings.DEFAULT_MAX_RETRY,
        default_grace_seconds=settings.TIMINGS["STOP_GRACE_SECONDS"],
    )


def _create(
    cluster: Cluster,
    fact: JobFact,
    namespaces: Mapping[str, Annotations],
    tenants: dict[str, int],
    now: datetime,
) -> Job:
    if fact.namespace not in tenants:
        tenants[fact.namespace] = access.tenant_for(cluster.pk, fact.namespace).pk
    wishes = _wishes(fact.annotations)
    row = Job(
        tenant_id=tenants[fact.namespace],
        cluster=cluster,
        owner_uid=fact.uid,
        owner_kind=fact.kind,
        namespace=fact.namespace,
        name=fact.name,
        lineage=Job.objects.filter(cluster=cluster, namespace=fact.namespace, name=fact.name)
        .order_by("-id")
        .first(),
        phase_since_at=now,
        max_retry=wishes.max_retry,
        created_at=fact.created_at or now,
        is_opted_in=_is_opted_in(fact.annotations, namespaces.get(fact.namespace, {})),
    )
    _show(row, fact, wishes, now)
    row.protection_reason = _why_unprotected(cluster, row)
    row.is_protected = not row.protection_reason
    row.save(force_insert=True)
    Run.objects.create(tenant_id=row.tenant_id, job=row, r=1, started_at=now)
    _add_workers(row, range(fact.world_size))
    return row


def _update(
    cluster: Cluster, row: Job, fact: JobFact, namespaces: Mapping[str, Annotations], now: datetime
) -> list[News]:
    news = []
    version = fact.resource_version
    before, wishes = _wishes(row.annotations), _wishes(fact.annotations)
    was_suspended, old_size = row.is_suspended, row.world_size
    _show(row, fact, wishes, now)
    if fact.is_suspended != was_suspended:
        kind = SignalKind.JOB_SUSPENDED if fact.is_suspended else SignalKind.JOB_RESUMED
        news.append(_news(kind, row, {"by": _suspend_actor(fact)}, now, version))
    if wishes.max_retry != before.max_retry:
        body = {"max_retry": wishes.max_retry}
        news.append(_news(SignalKind.MAX_RETRY_CHANGED, row, body, now, version))
    if fact.world_size > old_size:
        _add_workers(row, range(old_size, fact.world_size))
    news.extend(_review(cluster, row, namespaces, now) or ())
    news.extend(_end_news(row, fact, now))
    return news


def _show(row: Job, fact: JobFact, wishes: Wishes, now: datetime) -> None:
    """Write what the object says into the row's own columns."""
    row.world_size = fact.world_size
    row.gpus_per_worker = fact.gpus_per_worker
    row.mode = wishes.mode
    row.is_suspended = fact.is_suspended
    row.resource_version = fact.resource_version
    row.annotations = dict(fact.annotations)
    row.limits = nested_limits(fact, wishes)
    row.restart_policy = fact.restart_policy
    row.stop_grace_seconds = wishes.stop_grace_seconds
    row.seen_at = now


def _review(
    cluster: Cluster, row: Job, namespaces: Mapping[str, Annotations], now: datetime
) -> list[News] | None:
    """Set opt-in and reason anew. None when nothing differs; news when agents may (not) obey from now on."""
    opted_in = _is_opted_in(row.annotations, namespaces.get(row.namespace, {}))
    old_reason, old_opted_in = row.protection_reason, row.is_opted_in
    row.is_opted_in = opted_in
    row.protection_reason = reason = _why_unprotected(cluster, row)
    if (old_reason, old_opted_in) == (reason, opted_in):
        return None
    if bool(old_reason) == bool(reason):
        return []
    body = {"protected": not reason, "reason": reason or "the job is opted in and its cluster is armed"}
    # Neither a namespace nor the mode changes the job's version, so the moment makes the key.
    return [_news(SignalKind.PROTECTION, row, body, now, now.isoformat())]


def _end_news(row: Job, fact: JobFact, now: datetime) -> list[News]:
    """The controller's last word. Told again with each later version under one key, which records it once."""
    for type_ in ("Complete", "Failed"):
        if (condition := fact.condition(type_)) is not None:
            body = {"condition": type_, "reason": condition.reason, "message": condition.message[:1000]}
            seen_at = condition.at or fact.ended_at or now
            return [_news(SignalKind.JOB_ENDED, row, body, min(seen_at, now), type_)]
    return []


def _news(kind: SignalKind, row: Job, body: dict[str, Any], seen_at: datetime, version: str = "") -> News:
    key = f"{row.owner_uid}@{version or row.resource_version}:{kind}"
    return News(kind=kind, job=row, source_key=key, body=body, seen_at=seen_at)


def _suspend_actor(fact: JobFact) -> str:
    """Who set spec.suspend: the field manager, and for the desk itself what it noted on the job."""
    if fact.suspend_set_by == "incidentdesk" and fact.is_suspended:
        return fact.annotations.get("stopped-by", "incidentdesk")
    return fact.suspend_set_by


def _add_workers(row: Job, indexes: range) -> None:
    Worker.objects.bulk_create(
        [
            Worker(tenant_id=row.tenant_id, job=row, role=ROLE, index=index, retries=row.recover_count)
            for index in indexes
        ],
        batch_size=BATCH_ROWS,
        ignore_conflicts=True,
    )
