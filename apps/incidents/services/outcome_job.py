"""Decision -> the job's row and its workers', and the orders for their agents."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from apps.incidents.models import Incident
from apps.incidents.services.many_rows import update_rows
from apps.incidents.services.outcome_attempts import (
    change_counts,
    store_attempts,
    store_counts,
    store_incarnation_ends,
    store_remedy,
)
from apps.jobs.models import Incarnation, Job, Order, Run, Worker
from apps.jobs.selectors import EVICTED_CAUSES
from recovery import decide as core
from recovery.phases import TERMINAL_PHASES, JobState
from recovery.serialize import to_plain
from recovery.signals import EndCause, SignalKind, WorkerKey
from recovery.signals import Signal as CoreSignal

# Seconds that an agent is told to wait on while the desk is deciding; it asks again long before.
DIRECTIVE_SECONDS = 60

_PHASE_COLUMNS = [
    "phase",
    "phase_reason",
    "phase_since_at",
    "run",
    "attempt",
    "attempt_sequence",
    "sequence",
    "recover_count",
    "max_retry",
    "is_protected",
    "protection_reason",
    "is_protection_due",
    "is_quit_due",
    "directive",
    "directive_until_at",
    "ended_at",
    "waiting_since_at",
    "waiting_seconds",
    "preempted_count",
    "evicted_slow_count",
]


def store_job(
    job: Job,
    state: core.SubjectState,
    inbox: tuple[CoreSignal, ...],
    decision: core.Decision,
    incident: Incident | None,
    workers: Mapping[WorkerKey, Worker],
    now: datetime,
) -> None:
    """Bring the job, its attempts, counts and ``workers`` to what is decided, and write its orders."""
    before, after = state.job, decision.job
    if before is None or after is None:
        raise AssertionError(f"{job} was decided without its phase state")
    store_incarnation_ends(decision, now)
    store_attempts(job, before, after, decision, inbox, incident, workers, now)
    store_remedy(job, state, decision, after)
    store_counts(job, decision, incident, workers, now)
    change_counts(job, decision)
    _store_phase_columns(job, before, after, decision, inbox, now)
    _store_workers(before, after, workers, inbox)
    _store_orders(job, decision, now)


def _store_phase_columns(
    job: Job,
    before: JobState,
    after: JobState,
    decision: core.Decision,
    inbox: tuple[CoreSignal, ...],
    now: datetime,
) -> None:
    so_far = {name: getattr(job, name) for name in _PHASE_COLUMNS}
    if after.run != before.run:
        Run.objects.create(
            tenant_id=job.tenant_id,
            job=job,
            r=after.run,
            recover_count_at_start=after.recover_count,
            started_at=now,
        )
        job.ended_at = None
    if after.phase != before.phase:
        job.phase_since_at = now
        if after.phase in TERMINAL_PHASES:
            job.ended_at = now
            Run.objects.filter(job=job, r=after.run).update(ended_at=now, end_phase=after.phase)
    for signal in inbox:
        if signal.kind is SignalKind.POD_WAITING and job.waiting_since_at is None:
            job.waiting_since_at = signal.seen_at
        elif signal.kind is SignalKind.CAPACITY_BACK and job.waiting_since_at is not None:
            job.waiting_seconds += max(0.0, (signal.seen_at - job.waiting_since_at).total_seconds())
            job.waiting_since_at = None
    if any(signal.data.get("cause") == EndCause.PREEMPTED for signal in inbox):
        job.preempted_count = Incarnation.objects.filter(
            worker__job=job, end_cause=EndCause.PREEMPTED
        ).count()
    if any(cause in EVICTED_CAUSES for _, cause in decision.ended_incarnations):
        job.evicted_slow_count = Incarnation.objects.filter(
            worker__job=job, end_cause__in=EVICTED_CAUSES
        ).count()
    job.phase = after.phase
    job.phase_reason = after.reason
    job.run = after.run
    job.attempt = after.attempt
    job.attempt_sequence = after.attempt_sequence
    job.sequence = after.sequence
    job.recover_count = after.recover_count
    job.max_retry = after.max_retry
    if after.protected:
        job.protection_reason = ""
    elif before.protected:
        job.protection_reason = decision.reason
    job.is_protected = after.protected
    job.is_protection_due = after.protection_due
    job.is_quit_due = after.quit_due
    job.directive = decision.directive
    job.directive_until_at = now + timedelta(seconds=DIRECTIVE_SECONDS) if decision.directive else None
    if changed := [name for name, value in so_far.items() if getattr(job, name) != value]:
        job.save(update_fields=changed)


def _store_workers(
    before: JobState,
    after: JobState,
    workers: Mapping[WorkerKey, Worker],
    inbox: tuple[CoreSignal, ...],
) -> None:
    old = {worker.key: worker for worker in before.workers}
    answers = {
        signal.worker: signal
        for signal in inbox
        if signal.kind in (SignalKind.ACK, SignalKind.ERROR) and signal.data.get("checks")
    }
    changed = [worker for worker in after.workers if old.get(worker.key) != worker or worker.key in answers]
    told = [answers.get(worker.key) for worker in changed]
    update_rows(
        Worker,
        key="id",
        keys=[workers[worker.key].pk for worker in changed],
        values={
            "inner_phase": [worker.inner_phase for worker in changed],
            "is_enrolled": [worker.enrolled for worker in changed],
            "is_finished": [worker.finished for worker in changed],
            "retries": [worker.retries for worker in changed],
            "is_restarted": [worker.restarted for worker in changed],
            "must_exit": [worker.must_exit for worker in changed],
            "is_retired": [worker.retired for worker in changed],
            "has_departed": [worker.departed for worker in changed],
            "last_sequence": [worker.last_sequence for worker in changed],
            "handled": [
                sorted([str(type_), str(phase)] for type_, phase in worker.handled) for worker in changed
            ],
            "last_failure_reason": [worker.last_failure_reason for worker in changed],
            "checks": [answer and answer.data["checks"] for answer in told],
            "checks_at": [answer and answer.seen_at for answer in told],
            "environment": [(answer and answer.data.get("environment")) or None for answer in told],
        },
        keeping={"checks", "checks_at", "environment"},
    )


def _store_orders(job: Job, decision: core.Decision, now: datetime) -> None:
    for order in decision.orders:
        Order.objects.create(
            tenant_id=job.tenant_id,
            job=job,
            sequence=order.sequence,
            phase=order.phase,
            targets=None if order.targets is None else [f"{key.role}/{key.index}" for key in order.targets],
            content=to_plain(order.data),
            written_at=now,
        )
