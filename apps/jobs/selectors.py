"""Reads of jobs, workers, attempts and checkpoints, for pages and the API. Source: DOMAIN sections 2, 3, 11."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Case, Count, Exists, F, Max, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Least

from apps.jobs.models import Attempt, Checkpoint, FailureCount, Incarnation, Job, Pod, Worker
from recovery.errors import NotFound
from recovery.phases import LIVE_PHASES, TERMINAL_PHASES, WAITING_FOR_CAPACITY, Phase
from recovery.rules import ends
from recovery.signals import EndCause

LIVE_WORDS = sorted(str(phase) for phase in LIVE_PHASES)
ENDED_WORDS = sorted(str(phase) for phase in TERMINAL_PHASES)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What a list of jobs shows. ``tab`` is live, ended or all; empty fields do not narrow."""

    tab: str = "live"
    phases: tuple[str, ...] = ()
    protection: str = ""  # protected | unprotected
    text: str = ""
    cluster_id: int | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters sentence of a job (DOMAIN 3). ``would`` counts what an observing desk would count."""

    used: int
    limit: int
    rescheduled: int
    preempted: int
    evicted_slow: int
    waited_seconds: float
    would: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt beside what the next one tells about it: steps lost and seconds until it stepped again.

    ``ended_by`` is the category of its end, or how the process ended where nothing explains that.
    """

    attempt: Attempt
    steps_lost: int | None
    back_after_seconds: float | None
    ended_by: str


@dataclass(frozen=True, slots=True)
class EnvironmentValue:
    """One value that workers reported for one name: how many, and the lowest index among them."""

    value: str
    workers: int
    first_index: int


@dataclass(frozen=True, slots=True)
class EnvironmentLine:
    """One name of the environment report with its values, most frequent first."""

    name: str
    values: tuple[EnvironmentValue, ...]

    @property
    def is_mixed(self) -> bool:
        """Whether workers differ: several versions in one job."""
        return len(self.values) > 1


def visible_jobs(tenant_ids: Sequence[int] | None) -> QuerySet[Job]:
    """Jobs of these tenants, all for None, newest first."""
    jobs = Job.objects.select_related("cluster", "tenant").order_by("-id")
    return jobs if tenant_ids is None else jobs.filter(tenant__in=tenant_ids)


def get_job(tenant_ids: Sequence[int] | None, job_id: int) -> Job:
    """The job, or NotFound when there is none or it is another tenant's."""
    job = visible_jobs(tenant_ids).filter(id=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id} here.")
    return job


def filter_jobs(jobs: QuerySet[Job], wanted: JobFilter) -> QuerySet[Job]:
    """Narrow ``visible_jobs`` to what the filter wants."""
    if wanted.tab == "live":
        jobs = jobs.filter(phase__in=LIVE_WORDS, gone_at__isnull=True)
    elif wanted.tab == "ended":
        jobs = jobs.filter(Q(phase__in=ENDED_WORDS) | Q(gone_at__isnull=False))
    if wanted.phases:
        jobs = jobs.filter(phase__in=wanted.phases)
    if wanted.protection:
        jobs = jobs.filter(is_protected=wanted.protection == "protected")
    if wanted.cluster_id is not None:
        jobs = jobs.filter(cluster_id=wanted.cluster_id)
    if wanted.text:
        namespace, slash, name = wanted.text.partition("/")
        if slash:
            jobs = jobs.filter(namespace__icontains=namespace, name__icontains=name)
        else:
            jobs = jobs.filter(Q(name__icontains=wanted.text) | Q(namespace__icontains=wanted.text))
    return jobs


def with_rank_zero(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Add ``step`` and ``step_at`` of the first worker: steps of a job are read from its head."""
    first = Worker.objects.filter(job=OuterRef("pk")).order_by("role", "index")
    return jobs.annotate(
        step=Subquery(first.values("incarnation__step")[:1]),
        step_at=Subquery(first.values("incarnation__step_at")[:1]),
    )


def count_by_phase(jobs: QuerySet[Job]) -> dict[str, tuple[int, int]]:
    """Live jobs by phase: (all, protected)."""
    rows = (
        jobs.filter(phase__in=LIVE_WORDS, gone_at__isnull=True)
        .order_by()
        .values_list("phase")
        .annotate(n=Count("id"), protected=Count("id", filter=Q(is_protected=True)))
    )
    return {str(phase): (int(n), int(protected)) for phase, n, protected in rows}


def counters(job: Job) -> Counters:
    """The counters sentence. Counted failures stand on the job; the rest is counted from rows."""
    counted = FailureCount.objects.filter(job=job).aggregate(
        rescheduled=Count("id", filter=Q(ended_in_reschedule=True, would=False)),
        would=Count("id", filter=Q(would=True)),
    )
    return Counters(
        used=job.recover_count,
        limit=job.max_retry,
        rescheduled=counted["rescheduled"],
        preempted=job.preempted_count,
        evicted_slow=job.evicted_slow_count,
        waited_seconds=job.waiting_seconds,
        would=counted["would"],
    )


def attempt_rows(
    job: Job, *, before: int | None = None, limit: int = 20
) -> tuple[list[AttemptRow], int | None]:
    """The newest attempts (below number ``before``), newest first, and the number to go on from, or None."""
    attempts = Attempt.objects.filter(job=job)
    # One more at the younger end: it tells what the oldest-but-shown lost.
    younger = attempts.filter(n=before).first() if before is not None else None
    shown = attempts.filter(n__lt=before) if before is not None else attempts
    found = list(shown.order_by("-n")[: limit + 1])
    words = _unexplained_ends(job, found[:limit])
    rows = []
    for attempt in found[:limit]:
        rows.append(_attempt_row(attempt, younger, words))
        younger = attempt
    return rows, (found[limit - 1].n if len(found) > limit else None)


def attempts_of_incident(job: Job, incident_uid: Any, *, around: int) -> list[AttemptRow]:
    """Attempts that ended in this incident, with the one that it began in and the one after, newest first."""
    found = list(
        Attempt.objects.filter(job=job)
        .filter(Q(incident_uid=incident_uid) | Q(n__in=[around, around + 1]))
        .order_by("-n")[:50]
    )
    follows = {attempt.n: attempt for attempt in found}
    missing = [attempt.n + 1 for attempt in found if attempt.n + 1 not in follows]
    for attempt in Attempt.objects.filter(job=job, n__in=missing):
        follows[attempt.n] = attempt
    words = _unexplained_ends(job, found)
    return [_attempt_row(attempt, follows.get(attempt.n + 1), words) for attempt in found]


def _attempt_row(attempt: Attempt, following: Attempt | None, words: Mapping[int, str]) -> AttemptRow:
    return AttemptRow(
        attempt=attempt,
        steps_lost=_steps_lost(attempt, following),
        back_after_seconds=_back_after(attempt, following),
        ended_by=words.get(attempt.n, attempt.end_cause),
    )


def _unexplained_ends(job: Job, attempts: Sequence[Attempt]) -> dict[int, str]:
    """How those attempts ended that nothing explains, by number: what their failure was counted for."""
    numbers = [attempt.n for attempt in attempts if attempt.end_cause == ends.UNKNOWN.category]
    if not numbers:
        return {}
    return dict(FailureCount.objects.filter(job=job, attempt__in=numbers).values_list("attempt", "cause"))


def began_at(job: Job) -> datetime | None:
    """When the job's newest attempt began; None before the first."""
    return Attempt.objects.filter(job=job, n=job.attempt).values_list("started_at", flat=True).first()


def _steps_lost(attempt: Attempt, following: Attempt | None) -> int | None:
    if following is None or attempt.last_step is None or following.resumed_from_step is None:
        return None
    return max(0, attempt.last_step - following.resumed_from_step)


def _back_after(attempt: Attempt, following: Attempt | None) -> float | None:
    if following is None or attempt.ended_at is None or following.first_step_at is None:
        return None
    return (following.first_step_at - attempt.ended_at).total_seconds()


def worker_rows(job: Job) -> list[Worker]:
    """Workers by role and index, each with the newest incarnation and its node. Two joins, no blobs."""
    return list(
        Worker.objects.filter(job=job, is_retired=False)
        .select_related("incarnation", "incarnation__machine")
        .defer(
            "environment",
            "checks",
            "handled",
            "incarnation__machine__labels",
            "incarnation__machine__conditions",
        )
        .order_by("role", "index")
    )


def environment_report(job: Job) -> list[EnvironmentLine]:
    """Names and values of the newest boot checks, grouped in the database so that size does not matter.

    Lists and objects are compared as their JSON text; a list of words is given as words.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT e.key, e.value, count(*), min(w.index) FROM jobs_worker w"
            " CROSS JOIN LATERAL jsonb_each_text(w.environment) e"
            " WHERE w.job_id = %s AND NOT w.is_retired AND jsonb_typeof(w.environment) = 'object'"
            " AND e.key <> 'seconds'"  # how long the report took differs by nature
            " GROUP BY 1, 2 ORDER BY 1, 3 DESC, 4",
            [job.pk],
        )
        found: dict[str, list[EnvironmentValue]] = {}
        for name, value, workers, first_index in cursor.fetchall():
            found.setdefault(name, []).append(EnvironmentValue(_as_words(value or ""), workers, first_index))
    return [EnvironmentLine(name, tuple(values)) for name, values in found.items()]


def _as_words(value: str) -> str:
    if not value.startswith("["):
        return value
    try:
        return ", ".join(map(str, json.loads(value)))
    except ValueError:
        return value


def unclean_checks(job: Job) -> list[Worker]:
    """Workers whose last quick set holds a fail or a timeout, at most 50; "could not run" is no evidence."""
    return list(
        Worker.objects.filter(job=job, is_retired=False)
        .extra(where=['jsonb_path_exists(checks, \'$[*] ? (@.result == "fail" || @.result == "timeout")\')'])
        .only("role", "index", "checks", "checks_at")[:50]
    )


def newest_checkpoints(job: Job, limit: int = 8) -> list[Checkpoint]:
    """Checkpoints by step, newest first."""
    return list(Checkpoint.objects.filter(job=job).order_by("-step", "-id")[:limit])


def newest_attempts(job: Job, limit: int = 20) -> list[Attempt]:
    """Attempts by number, newest first."""
    return list(Attempt.objects.filter(job=job).order_by("-n")[:limit])


def failure_counts(job: Job, *, rescheduled: bool = False, limit: int = 100) -> list[FailureCount]:
    """Counted failures, newest first."""
    counts = FailureCount.objects.filter(job=job).select_related("worker").order_by("-id")
    if rescheduled:
        counts = counts.filter(ended_in_reschedule=True)
    return list(counts[:limit])


def incarnation_ends(job: Job, causes: Iterable[str], limit: int = 100) -> list[Incarnation]:
    """Lives of the job's workers that ended by one of these causes, newest first."""
    return list(
        Incarnation.objects.filter(worker__job=job, end_cause__in=list(causes), ended_at__isnull=False)
        .select_related("worker", "machine")
        .order_by("-ended_at")[:limit]
    )


PREEMPTED_CAUSES = (EndCause.PREEMPTED, EndCause.MAINTENANCE)
EVICTED_CAUSES = (EndCause.EVICTED_BY_DESK, EndCause.EVICTED_AS_SLOW)


_IS_POD_THERE = Exists(
    Pod.objects.filter(
        cluster=OuterRef("worker__job__cluster"), uid=OuterRef("pod_uid"), gone_at__isnull=True
    ).exclude(phase__in=["Succeeded", "Failed"])
)
#: When a life ended; NULL while it runs. Where nobody told its end, it runs no longer than its job and its node are
#: there, nor longer than its job where no pod of it is left.
_UNTIL = Case(
    When(ended_at__isnull=False, then=F("ended_at")),
    When(
        Q(worker__job__gone_at__isnull=False)
        | Q(machine__gone_at__isnull=False)
        | Q(worker__job__phase__in=ENDED_WORDS) & ~_IS_POD_THERE,
        then=Least("worker__job__ended_at", "worker__job__gone_at", "machine__gone_at"),
    ),
)


def lives_on_machine(
    machine_id: int, tenant_ids: Sequence[int] | None, limit: int = 100
) -> list[Incarnation]:
    """Workers' lives that run on a machine now, of these tenants (None: all)."""
    lives = _lives_of_machine(machine_id, tenant_ids).filter(ended_at__isnull=True)
    running = lives.annotate(until_at=_UNTIL).filter(until_at__isnull=True)
    return list(running.order_by("worker__job_id", "worker__index")[:limit])


def past_lives_on_machine(
    machine_id: int, tenant_ids: Sequence[int] | None, limit: int = 20
) -> list[Incarnation]:
    """Workers' lives that ran on a machine, of these tenants (None: all); each with ``until_at``, the last first."""
    past = _lives_of_machine(machine_id, tenant_ids).annotate(until_at=_UNTIL).filter(until_at__isnull=False)
    return list(past.order_by("-until_at", "-id")[:limit])


def _lives_of_machine(machine_id: int, tenant_ids: Sequence[int] | None) -> QuerySet[Incarnation]:
    lives = (
        Incarnation.objects.filter(machine_id=machine_id)
        .select_related("worker", "worker__job")
        .defer("worker__environment", "worker__checks", "worker__handled")
    )
    return lives if tenant_ids is None else lives.filter(tenant__in=tenant_ids)


def failures_on_machine(
    machine_id: int, tenant_ids: Sequence[int] | None, limit: int = 20
) -> list[FailureCount]:
    """Counted failures of workers that ran on this machine in that attempt, newest first."""
    counts = (
        FailureCount.objects.filter(
            Q(worker__incarnations__last_attempt__gte=F("attempt"))
            | Q(worker__incarnations__last_attempt__isnull=True),
            worker__incarnations__machine_id=machine_id,
            worker__incarnations__first_attempt__lte=F("attempt"),
        )
        .select_related("job", "worker")
        .order_by("-id")
        .distinct()
    )
    if tenant_ids is not None:
        counts = counts.filter(tenant__in=tenant_ids)
    return list(counts[:limit])


def jobs_per_machine(machine_ids: Iterable[int], tenant_ids: Sequence[int] | None) -> dict[int, list[Job]]:
    """Jobs with a worker that runs on each of these machines, of these tenants (None: all)."""
    lives = Incarnation.objects.filter(machine__in=list(machine_ids), ended_at__isnull=True)
    if tenant_ids is not None:
        lives = lives.filter(tenant__in=tenant_ids)
    running = lives.annotate(until_at=_UNTIL).filter(until_at__isnull=True)
    pairs = list(running.order_by().values_list("machine_id", "worker__job_id").distinct()[:1000])
    jobs = {job.pk: job for job in Job.objects.filter(id__in={job_id for _, job_id in pairs})}
    found: dict[int, list[Job]] = {}
    for machine_id, job_id in pairs:
        found.setdefault(machine_id, []).append(jobs[job_id])
    return found


@dataclass(frozen=True, slots=True)
class AgentsHeard:
    """Agents of live workers: how many there are, and how many are silent."""

    total: int
    silent: int

    @property
    def heard(self) -> int:
        """Agents that are not silent."""
        return self.total - self.silent


def agents_heard(tenant_ids: Sequence[int] | None, cluster_id: int | None = None) -> AgentsHeard:
    """Count the agents of these tenants that should be heard: enrolled, alive, of a live job; one cluster or all."""
    found = _listened_to(tenant_ids, cluster_id).aggregate(
        total=Count("id"), silent=Count("id", filter=Q(is_silent=True))
    )
    return AgentsHeard(total=found["total"], silent=found["silent"])


def _listened_to(tenant_ids: Sequence[int] | None, cluster_id: int | None) -> QuerySet[Incarnation]:
    """Lives whose agent should be heard."""
    alive = Incarnation.objects.filter(
        ended_at__isnull=True,
        last_seen_at__isnull=False,
        worker__job__gone_at__isnull=True,
        worker__job__phase__in=LIVE_WORDS,
    ).exclude(nonce="")
    if tenant_ids is not None:
        alive = alive.filter(tenant__in=tenant_ids)
    return alive if cluster_id is None else alive.filter(worker__job__cluster=cluster_id)


@dataclass(frozen=True, slots=True)
class SilentJob:
    """A live job and its silent lives, in order of worker.

    ``others_stepped_at``: the newest step of its workers that are heard; None where none of them told one.
    """

    job: Job
    lives: tuple[Incarnation, ...]
    others_stepped_at: datetime | None


def silent_jobs(
    tenant_ids: Sequence[int] | None,
    cluster_id: int | None = None,
    *,
    job_id: int | None = None,
    limit: int = 200,
) -> list[SilentJob]:
    """Live jobs with agents that should be heard and are not, of these tenants; the newest job first.

    At most ``limit`` lives are read.
    """
    stepped = (
        Incarnation.objects.filter(
            worker__job=OuterRef("worker__job"), ended_at__isnull=True, is_silent=False, step_at__isnull=False
        )
        .order_by()
        .values("worker__job")
        .values_list(Max("step_at"))
    )
    lives = _listened_to(tenant_ids, cluster_id).filter(is_silent=True)
    if job_id is not None:
        lives = lives.filter(worker__job=job_id)
    found: dict[int, tuple[Job, list[Incarnation], datetime | None]] = {}
    for life in (
        lives.annotate(others_stepped_at=Subquery(stepped))
        .select_related("worker", "worker__job")
        .defer("worker__environment", "worker__checks", "worker__handled")
        .order_by("-worker__job_id", "worker__role", "worker__index")[:limit]
    ):
        job = life.worker.job
        found.setdefault(job.pk, (job, [], life.others_stepped_at))[1].append(life)
    return [SilentJob(job, tuple(members), stepped_at) for job, members, stepped_at in found.values()]


def waiting_for_capacity(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Live jobs that cannot be placed; ``phase_reason`` says what is missing."""
    return jobs.filter(
        phase__in=[str(Phase.PENDING), str(Phase.RESTARTING)],
        phase_reason__startswith=WAITING_FOR_CAPACITY,
        gone_at__isnull=True,
    )
