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
from apps.jobs.elastic import TRUE_WORDS
from apps.jobs.limits import Wishes, nested_limits, read_wishes
from apps.jobs.models import Job, Run, Worker
from recovery.decide import Mode
from recovery.signals import SignalKind, WorkerKey

ROLE = "worker"
BATCH_ROWS = 500
MOST_WORKERS = 100_000  # a batch job with more places than this is no gang

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
    new = _NewJobs(cluster, [each.fact for each in changes if each.fact and each.uid not in rows])
    changed: dict[str, Job] = {}
    places: list[Worker] = []
    for change in changes:
        row, fact = rows.get(change.uid), change.fact
        if fact is not None and row is None and not change.is_gone:
            if not _is_known(fact, namespaces):
                outcome.ignored.add(change.uid)
                continue
            row = rows[change.uid] = new.add(fact, namespaces, now)
            outcome.news.append(_news(SignalKind.JOB_KNOWN, row, {"suspended": fact.is_suspended}, now))
            outcome.news.extend(_end_news(row, fact, now))
        elif row is not None and fact is not None and is_newer(fact.resource_version, row.resource_version):
            size = row.world_size
            outcome.news.extend(_update(cluster, row, fact, namespaces, now))
            changed[change.uid] = row
            if row.pk is not None:  # a new row gets all its workers when it is written
                places.extend(_workers(row, range(size, row.world_size)))
        if row is not None and change.is_gone and row.gone_at is None:
            row.gone_at = now
            changed[change.uid] = row
            outcome.news.append(_news(SignalKind.JOB_DELETED, row, {}, now))
    written = new.write(now)
    Worker.objects.bulk_create(places, batch_size=BATCH_ROWS, ignore_conflicts=True)
    present = [row for uid, row in changed.items() if uid not in written]
    Job.objects.bulk_update(present, _SEEN_FIELDS, batch_size=BATCH_ROWS)
    outcome.known = {uid: row.pk for uid, row in rows.items()}
    outcome.changed_ids = [row.pk for row in present] + list(written.values())
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


class _NewJobs:
    """Jobs seen for the first time, written together: a first import has thousands."""

    def __init__(self, cluster: Cluster, facts: Sequence[JobFact]) -> None:
        self.cluster = cluster
        self.rows: list[Job] = []
        self.ids: dict[str, int] = {}
        self.tenants: dict[str, int] = {}
        self.newest: dict[tuple[str, str], int] = {}
        namesakes = Job.objects.filter(
            cluster=cluster,
            namespace__in={fact.namespace for fact in facts},
            name__in={fact.name for fact in facts},
        )
        for namespace, name, pk in namesakes.order_by("id").values_list("namespace", "name", "id"):
            self.newest[namespace, name] = pk

    def add(self, fact: JobFact, namespaces: Mapping[str, Annotations], now: datetime) -> Job:
        """A row without its id yet."""
        if fact.namespace not in self.tenants:
            self.tenants[fact.namespace] = access.tenant_for(self.cluster.pk, fact.namespace).pk
        key = (fact.namespace, fact.name)
        if any((row.namespace, row.name) == key for row in self.rows):
            self.write(now)  # its forerunner came in the same batch, and must have an id
        wishes = _wishes(fact.annotations)
        row = Job(
            tenant_id=self.tenants[fact.namespace],
            cluster=self.cluster,
            owner_uid=fact.uid,
            owner_kind=fact.kind,
            namespace=fact.namespace,
            name=fact.name,
            lineage_id=self.newest.get(key),
            phase_since_at=now,
            max_retry=wishes.max_retry,
            created_at=fact.created_at or now,
            is_opted_in=_is_opted_in(fact.annotations, namespaces.get(fact.namespace, {})),
        )
        _show(row, fact, wishes, now)
        row.protection_reason = _why_unprotected(self.cluster, row)
        row.is_protected = not row.protection_reason
        self.rows.append(row)
        return row

    def write(self, now: datetime) -> dict[str, int]:
        """Write what was added, with first runs and workers. Returns uid -> id of everything written."""
        Job.objects.bulk_create(self.rows, batch_size=BATCH_ROWS)
        Run.objects.bulk_create(
            [Run(tenant_id=row.tenant_id, job=row, r=1, started_at=now) for row in self.rows],
            batch_size=BATCH_ROWS,
        )
        Worker.objects.bulk_create(
            [worker for row in self.rows for worker in _workers(row, range(row.world_size))],
            batch_size=BATCH_ROWS,
        )
        for row in self.rows:
            self.ids[row.owner_uid] = row.pk
            self.newest[row.namespace, row.name] = row.pk
        self.rows = []
        return self.ids


def _update(
    cluster: Cluster, row: Job, fact: JobFact, namespaces: Mapping[str, Annotations], now: datetime
) -> list[News]:
    news = []
    version = fact.resource_version
    before, wishes = _wishes(row.annotations), _wishes(fact.annotations)
    was_suspended = row.is_suspended
    _show(row, fact, wishes, now)
    if fact.is_suspended != was_suspended:
        kind = SignalKind.JOB_SUSPENDED if fact.is_suspended else SignalKind.JOB_RESUMED
        news.append(_news(kind, row, {"by": _suspend_actor(fact)}, now, version))
    if wishes.max_retry != before.max_retry:
        body = {"max_retry": wishes.max_retry}
        news.append(_news(SignalKind.MAX_RETRY_CHANGED, row, body, now, version))
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


def _workers(row: Job, indexes: range) -> list[Worker]:
    return [
        Worker(tenant_id=row.tenant_id, job=row, role=ROLE, index=index, retries=row.recover_count)
        for index in indexes
    ]
