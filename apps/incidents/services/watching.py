"""The watch's writes: who leads, what was seen, and how fresh it is.

One process leads the watch of a cluster, by a lease with an epoch. Each write transaction holds the
leader's row by a key-share lock, which its own renewals pass and a take-over waits for; so a process
that was stopped for longer than its lease can write nothing any more, not even the rest of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.utils import OperationalError

from adapters.facts import Change, JobFact, NodeFact, PodFact
from apps import crash_points
from apps.access import clock
from apps.access.models import Cluster
from apps.incidents.models import FeedRow, Signal, Subject
from apps.incidents.services import feed
from apps.incidents.services.signals import NewSignal, record_signals
from apps.incidents.wake import wake_subjects
from apps.jobs.models import Job
from apps.jobs.services import credentials, importing, pods, token_reviews
from apps.jobs.services.importing import Annotations, News
from apps.jobs.services.token_reviews import Question
from apps.nodes.models import WatchState
from apps.nodes.services import import_nodes
from recovery.errors import DeskError
from recovery.ports import TokenReview
from recovery.signals import Source, SubjectKind

LEADER = "leader"
MOST_WAKE_UPS = 100
RESOURCES = ("namespaces", "nodes", "jobs", "pods")


class LeadershipLost(DeskError):
    """Another process leads the watch, or our lease ran out: write nothing more, start again."""

    code = "leadership_lost"


@dataclass(frozen=True, slots=True)
class Lead:
    """The right to write what the watch of a cluster sees, as long as its lease holds."""

    row_id: int
    cluster_id: int
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Changes to be written together, each in the order in which it was seen.

    ``jobs_now`` are jobs read after the changes of pods were seen; they are part of ``jobs`` too.
    """

    nodes: tuple[Change[NodeFact], ...] = ()
    jobs: tuple[Change[JobFact], ...] = ()
    pods: tuple[Change[PodFact], ...] = ()
    namespaces: Mapping[str, Annotations] = field(default_factory=dict)
    review_protection: bool = False
    jobs_now: Mapping[str, JobFact | None] = field(default_factory=dict)


@dataclass
class Imported:
    """What became of it. ``pending`` are pods whose job is not known, ``ignored`` uids of other jobs."""

    at: datetime
    nodes_written: int = 0
    pods_written: int = 0
    signals: int = 0
    known: dict[str, int] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    pending: list[Change[PodFact]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Freshness:
    """How far the watch of one resource is; None and "" leave what stands there."""

    resource: str
    state: str
    detail: str = ""
    resource_version: str = ""
    last_list_at: datetime | None = None
    last_event_at: datetime | None = None
    last_heard_at: datetime | None = None
    lag_seconds: float | None = None


# Who leads


def take_lead(*, cluster: Cluster, owner: str) -> Lead | None:
    """Become the leader if nobody's lease holds. The epoch rises, whoever led before."""
    row, _ = WatchState.objects.get_or_create(cluster=cluster, resource=LEADER)
    try:
        return _take_lead(row.pk, cluster, owner)
    except OperationalError as error:
        if "lock timeout" not in str(error):
            raise
        return None


@transaction.atomic
def _take_lead(row_id: int, cluster: Cluster, owner: str) -> Lead | None:
    lease = settings.TIMINGS["WATCH_LEASE_SECONDS"]
    with connection.cursor() as cursor:
        # A leader that was stopped in the middle of a write holds its row until the server ends that
        # session (see hold_lead). Not to wait for ever keeps this process able to end.
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{int(lease * 1000)}ms"])
    row = WatchState.objects.select_for_update().get(pk=row_id)
    now = clock.database_now()
    if row.lease_until is not None and row.lease_until > now:
        return None
    row.epoch += 1
    row.leader = owner
    row.lease_until = now + timedelta(seconds=lease)
    row.state, row.detail = "watching", ""
    row.last_heard_at = now
    row.save(update_fields=["epoch", "leader", "lease_until", "state", "detail", "last_heard_at"])
    return Lead(row.pk, cluster.pk, owner, row.epoch)


def renew_lead(lead: Lead) -> bool:
    """Prolong the lease. False when it is another's or has run out: it must then be taken anew."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE nodes_watchstate
            SET lease_until = clock_timestamp() + make_interval(secs => %s), last_heard_at = clock_timestamp()
            WHERE id = %s AND epoch = %s AND leader = %s AND lease_until > clock_timestamp()
            """,
            [settings.TIMINGS["WATCH_LEASE_SECONDS"], lead.row_id, lead.epoch, lead.owner],
        )
        return bool(cursor.rowcount)


def give_up_lead(lead: Lead, *, state: str = "starting", detail: str = "") -> None:
    """End the lease now, so that another process need not wait for it. Harmless when it is lost."""
    WatchState.objects.filter(pk=lead.row_id, epoch=lead.epoch, leader=lead.owner).update(
        lease_until=clock.database_now(), state=state, detail=detail
    )


def hold_lead(lead: Lead) -> None:
    """Make sure, until the end of this transaction, that nobody else leads. Raises LeadershipLost.

    A key-share lock, because it lets our own renewals pass (they change no key) and holds up a take-over,
    which asks for the whole row. Should this process be stopped meanwhile, the server ends the
    transaction after one lease.
    """
    lease = settings.TIMINGS["WATCH_LEASE_SECONDS"]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [f"{int(lease * 1000)}ms"]
        )
        cursor.execute(
            """
            SELECT 1 FROM nodes_watchstate
            WHERE id = %s AND epoch = %s AND leader = %s AND lease_until > clock_timestamp()
            FOR KEY SHARE
            """,
            [lead.row_id, lead.epoch, lead.owner],
        )
        if cursor.fetchone() is None:
            raise LeadershipLost(f"{lead.owner} leads this watch no more (epoch {lead.epoch})")


# What was seen


def import_seen(lead: Lead, seen: Seen) -> Imported:
    """Write rows and record their signals in one transaction; wake the subjects after it.

    Raises:
        LeadershipLost: Nothing was written.
    """
    with transaction.atomic():
        hold_lead(lead)
        now = clock.database_now()
        cluster = Cluster.objects.get(pk=lead.cluster_id)
        imported = Imported(at=now)
        if seen.nodes:
            nodes = import_nodes(cluster=cluster, changes=seen.nodes, now=now)
            imported.nodes_written = nodes.written
            feed.publish_nodes(machine_ids=nodes.changed_ids, now=now)
        news: list[News] = []
        changed_jobs: set[int] = set()
        if seen.jobs:
            jobs = importing.import_jobs(
                cluster=cluster, changes=seen.jobs, namespaces=seen.namespaces, now=now
            )
            news += jobs.news
            imported.known, imported.ignored = jobs.known, jobs.ignored
            changed_jobs |= set(jobs.changed_ids)
        if seen.review_protection:
            news += importing.review_protection(cluster=cluster, namespaces=seen.namespaces, now=now)
        if seen.pods:
            result = pods.import_pods(cluster=cluster, changes=seen.pods, jobs_now=seen.jobs_now, now=now)
            news += result.news
            imported.pending, imported.pods_written = result.pending, result.written
            changed_jobs |= result.job_ids
        subject_ids, imported.signals = _record(news, now)
        _publish(changed_jobs | {each.job.pk for each in news}, now)
        # A wake-up costs a millisecond: of a first import's thousands the tick takes the rest.
        transaction.on_commit(lambda: wake_subjects(subject_ids[:MOST_WAKE_UPS]))
    if imported.signals:
        crash_points.reach("signal_committed")
    return imported


def _record(news: Sequence[News], now: datetime) -> tuple[list[int], int]:
    """Record news as signals to their jobs' subjects. Returns the subjects to wake, and how many were new.

    What was told under a key before is not told again, even if the cluster words it otherwise by now:
    the first word stands.
    """
    if not news:
        return [], 0
    keys = [each.source_key for each in news]
    told = set(
        Signal.objects.filter(source=Source.WATCH, source_key__in=keys).values_list("source_key", flat=True)
    )
    fresh: dict[str, News] = {}
    for each in news:
        if each.source_key not in told:
            fresh.setdefault(each.source_key, each)
    subjects = _subjects({each.job.pk: each for each in fresh.values()})
    record_signals(
        signals=[
            NewSignal(
                tenant_id=each.job.tenant_id,
                cluster_id=each.job.cluster_id,
                source=Source.WATCH,
                source_key=key,
                kind=each.kind,
                body=each.body,
                seen_at=each.seen_at,
                subject_ids=(subjects[each.job.pk],),
                source_at=each.seen_at,
                uncertainty_seconds=each.uncertainty_seconds,
                worker=each.worker,
                incarnation_id=each.incarnation_id,
            )
            for key, each in fresh.items()
        ],
        now=now,
    )
    return sorted({subjects[each.job.pk] for each in fresh.values()}), len(fresh)


def _subjects(news_by_job: Mapping[int, News]) -> dict[int, int]:
    """Subject ids of jobs, made where there are none, without a query for each job."""

    def present() -> dict[int, int]:
        rows = Subject.objects.filter(kind=SubjectKind.JOB, job__in=news_by_job)
        return {job_id: pk for job_id, pk in rows.values_list("job_id", "id") if job_id is not None}

    found = present()
    missing = [news.job for job_id, news in sorted(news_by_job.items()) if job_id not in found]
    if missing:
        Subject.objects.bulk_create(
            [
                Subject(
                    kind=SubjectKind.JOB,
                    key=str(job.pk),
                    job=job,
                    tenant_id=job.tenant_id,
                    cluster_id=job.cluster_id,
                )
                for job in missing
            ],
            ignore_conflicts=True,
            batch_size=500,
        )
        found = present()
    return found


def _publish(job_ids: set[int], now: datetime) -> None:
    """Tell the live pages, as ``feed.publish`` does, for many jobs at once."""
    tenants = Job.objects.filter(pk__in=job_ids).order_by("id").values_list("id", "tenant_id")
    rows = [
        FeedRow(tenant_id=tenant_id, topic="job", key=str(job_id), created_at=now)
        for job_id, tenant_id in tenants
    ]
    if rows:
        FeedRow.objects.bulk_create(rows, batch_size=500)
        feed.notify(feed.LIVE_CHANNEL, "")


# How fresh it is


def write_freshness(lead: Lead, states: Sequence[Freshness]) -> None:
    """Write how far the watch of these resources is. Raises LeadershipLost."""
    with transaction.atomic():
        hold_lead(lead)
        for state in states:
            values: dict[str, Any] = {"state": state.state, "detail": state.detail, "epoch": lead.epoch}
            for name in ("resource_version", "last_list_at", "last_event_at", "last_heard_at", "lag_seconds"):
                value = getattr(state, name)
                if value not in (None, ""):
                    values[name] = value
            WatchState.objects.update_or_create(
                cluster_id=lead.cluster_id, resource=state.resource, defaults=values
            )


def write_call(lead: Lead, *, seconds: float) -> None:
    """Write how long our own call to the cluster took that has just ended. Raises LeadershipLost."""
    with transaction.atomic():
        hold_lead(lead)
        WatchState.objects.filter(pk=lead.row_id).update(call_seconds=seconds, called_at=clock.database_now())


def store_token_keys(lead: Lead, *, issuer: str, keys: Mapping[str, Any]) -> None:
    """Keep the keys that sign the cluster's service-account tokens. Raises LeadershipLost."""
    with transaction.atomic():
        hold_lead(lead)
        Cluster.objects.filter(pk=lead.cluster_id).update(
            token_issuer=issuer, token_keys=dict(keys), token_keys_read_at=clock.database_now()
        )


def store_review(lead: Lead, *, question: Question, review: TokenReview) -> str:
    """See ``token_reviews.store_review``. Raises LeadershipLost."""
    with transaction.atomic():
        hold_lead(lead)
        return token_reviews.store_review(
            question=question, review=review, audience=credentials.AUDIENCE, now=clock.database_now()
        )


def fill_restart_counts(lead: Lead) -> int:
    """See ``pods.fill_restart_counts``. Raises LeadershipLost."""
    with transaction.atomic():
        hold_lead(lead)
        return pods.fill_restart_counts(Cluster.objects.get(pk=lead.cluster_id))
