"""What agents say: an enrolment or a batch of messages becomes signals in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest

from agent import wire
from apps import crash_points
from apps.access import clock
from apps.incidents.models import InboxEntry, Subject
from apps.incidents.redact import clean_body
from apps.incidents.services.signals import (
    UNHURRIED_KINDS,
    NewSignal,
    record_signals,
    subject_for_job,
)
from apps.incidents.wake import wake_subjects
from apps.jobs.clock_offset import MOST_UNIX_SECONDS
from apps.jobs.models import Incarnation, Job
from apps.jobs.services import checkpoints
from apps.jobs.services.enrolment import AgentStart, Enrolled, Fenced, NotEnrolled, enrol
from recovery.errors import BadInput, Conflict, NotFound
from recovery.signals import SignalKind, Source, WorkerKey

#: Undecided signals of one subject from which on more are refused: 429, never a trimmed inbox.
MAX_WAITING_SIGNALS = 20_000
_KINDS = {
    wire.ACK: SignalKind.ACK,
    wire.ERROR: SignalKind.ERROR,
    wire.FINISH: SignalKind.FINISH,
    wire.MARK: SignalKind.MARK,
    wire.HANG: SignalKind.HANG,
    wire.QUIT: SignalKind.QUIT,
    wire.CHECKPOINT: SignalKind.CHECKPOINT,
}
#: Types that answer an order or happen in a phase: without phase they mean nothing.
_WITH_PHASE = frozenset({wire.ACK, wire.ERROR, wire.FINISH})
_MOST_SEQUENCE = 2**31 - 1
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


class InboxFullError(Conflict):
    """Too much waits for a decision about this subject already; nothing was stored."""

    code = "inbox_full"


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """What became of a report. ``accepted`` holds numbers that are committed now or were before."""

    accepted: tuple[int, ...]
    rejected: tuple[wire.Rejected, ...]
    now: datetime


def enrol_agent(*, bearer: str, start: AgentStart) -> Enrolled | NotEnrolled:
    """Take an agent in and tell its job's subject, in one transaction. See ``enrolment.enrol`` for errors."""
    with transaction.atomic():
        answer = enrol(bearer=bearer, start=start)
        if isinstance(answer, NotEnrolled):
            return answer
        subject = subject_for_job(answer.job)
        if answer.is_new:
            record_signals(signals=_enrolment(answer, subject), now=answer.now)
        transaction.on_commit(lambda: wake_subjects([subject.pk]))
    crash_points.reach("signal_committed")
    return answer


def _enrolment(answer: Enrolled, subject: Subject) -> list[NewSignal]:
    life, job = answer.incarnation, answer.job
    signals = [
        NewSignal(
            tenant_id=job.tenant_id,
            cluster_id=job.cluster_id,
            source=Source.AGENT,
            source_key=f"{life.pk}:enrolled",
            kind=SignalKind.ENROLLED,
            body={"replaces": answer.replaces, "pod_uid": life.pod_uid, "node": life.node_name},
            seen_at=answer.now,
            subject_ids=(subject.pk,),
            worker=WorkerKey(answer.worker.role, answer.worker.index),
            incarnation_id=life.pk,
        )
    ]
    if not job.owner_kind and job.world_running_at is None:
        # No watch sees a bare machine's workers: the barrier's clock starts with the first that comes.
        Job.objects.filter(pk=job.pk, world_running_at__isnull=True).update(world_running_at=answer.now)
        signals.append(
            NewSignal(
                tenant_id=job.tenant_id,
                cluster_id=job.cluster_id,
                source=Source.DESK,
                source_key=f"world-running/{job.pk}/{job.run}",
                kind=SignalKind.WORLD_RUNNING,
                body={},
                seen_at=answer.now,
                subject_ids=(subject.pk,),
            )
        )
    return signals


def record_report(
    *,
    job_id: int,
    incarnation_id: int,
    messages: Sequence[dict[str, Any]],
    sent_at: float | None = None,
) -> ReportOutcome:
    """Store an agent's messages, each once by its number; a message that cannot be one is rejected alone.

    Raises:
        NotFound: There is no such incarnation of the job.
        Fenced: A newer incarnation of the worker exists.
        InboxFullError: Too much of this job is undecided.
    """
    with transaction.atomic():
        life = (
            Incarnation.objects.select_related("worker__job")
            .filter(pk=incarnation_id, worker__job_id=job_id)
            .first()
        )
        if life is None:
            raise NotFound(f"There is no incarnation {incarnation_id} of this job.")
        if Incarnation.objects.filter(worker_id=life.worker_id, pk__gt=life.pk).exclude(nonce="").exists():
            raise Fenced(f"Incarnation {life.pk} is not the newest of its worker any more.")
        now = clock.database_now()
        job = life.worker.job
        subject = subject_for_job(job)
        refuse_full_inbox(subject.pk)
        rejected: list[wire.Rejected] = []
        signals: dict[int, NewSignal] = {}
        for message in messages:
            try:
                signal = _signal(message, life, subject, now, sent_at)
            except BadInput as error:
                rejected.append(_rejected(message, "bad_input", f"{error.field}: {error}"))
                continue
            number = message["n"]
            if number in signals and signals[number].body != signal.body:
                rejected.append(
                    _rejected(message, "conflict", "This number came twice, with other contents.")
                )
                continue
            signals.setdefault(number, signal)
        accepted, conflicting = _record(signals, now)
        rejected.extend(conflicting)
        _apply(life, {number: signals[number] for number in accepted}, now)
        if job.is_quit_due or any(signal.kind not in UNHURRIED_KINDS for signal in signals.values()):
            transaction.on_commit(lambda: wake_subjects([subject.pk]))
    crash_points.reach("signal_committed")
    return ReportOutcome(tuple(accepted), tuple(rejected), now)


def refuse_full_inbox(subject_id: int) -> None:
    """Raise InboxFullError when too much of a subject is undecided."""
    waiting = InboxEntry.objects.filter(subject_id=subject_id, decision_n__isnull=True)
    if waiting.order_by()[MAX_WAITING_SIGNALS : MAX_WAITING_SIGNALS + 1].exists():
        raise InboxFullError(
            f"{MAX_WAITING_SIGNALS} signals wait for a decision already; send this again later."
        )


def _record(signals: dict[int, NewSignal], now: datetime) -> tuple[list[int], list[wire.Rejected]]:
    """All at once; only when a number was used before with other contents, one by one."""
    try:
        record_signals(signals=list(signals.values()), now=now)
        return sorted(signals), []
    except Conflict:
        accepted, rejected = [], []
        for number, signal in sorted(signals.items()):
            try:
                record_signals(signals=[signal], now=now)
                accepted.append(number)
            except Conflict:
                detail = "This number was used before with other contents."
                rejected.append(wire.Rejected(n=number, code="conflict", detail=detail))
        return accepted, rejected


def _signal(
    message: dict[str, Any], life: Incarnation, subject: Subject, now: datetime, sent_at: float | None
) -> NewSignal:
    """One message as a signal; BadInput names the field that cannot be."""
    job, worker = life.worker.job, life.worker
    number = _whole(message, "n", least=1, most=2**62)
    told_type = message.get("type")
    kind = _KINDS.get(told_type) if isinstance(told_type, str) else None
    if kind is None:
        raise BadInput(f"One of {', '.join(_KINDS)}.", field="type")
    phase = message.get("phase") or ""
    if phase not in wire.PHASES and (phase or told_type in _WITH_PHASE):
        raise BadInput(f"One of {', '.join(wire.PHASES)}.", field="phase")
    for field, own in (("job", job.name), ("namespace", job.namespace)):
        told = message.get(field)
        if told and told not in (own, str(job)):
            raise BadInput(f"This token is for {job} only.", field=field)
    content = message.get("data", {})
    if not isinstance(content, dict):
        raise BadInput("An object.", field="data")
    if kind == SignalKind.CHECKPOINT:
        checkpoints.check(content)
    seen_at, source_at, uncertainty = _times(message.get("time"), life, now, sent_at)
    return NewSignal(
        tenant_id=job.tenant_id,
        cluster_id=job.cluster_id,
        source=Source.AGENT,
        source_key=f"{life.pk}:{number}",
        kind=kind,
        body=clean_body(content),
        seen_at=seen_at,
        source_at=source_at,
        uncertainty_seconds=uncertainty,
        subject_ids=(subject.pk,),
        worker=WorkerKey(worker.role, worker.index),
        incarnation_id=life.pk,
        sequence=_whole(message, "sequence", least=0, most=_MOST_SEQUENCE),
        phase=phase,
    )


def _times(
    at: Any, life: Incarnation, now: datetime, sent_at: float | None
) -> tuple[datetime, datetime, float]:
    """(when by our clock, when as the agent wrote it, uncertainty in seconds). Never later than now."""
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at <= MOST_UNIX_SECONDS:
        raise BadInput("Unix seconds.", field="time")
    offset, uncertainty = life.clock_offset_seconds, life.clock_uncertainty_seconds
    if sent_at is not None and sent_at - now.timestamp() > offset + uncertainty:
        offset = sent_at - now.timestamp()  # it cannot have been sent after it came: the clock was set anew
    source_at = datetime.fromtimestamp(at, UTC)
    seen_at = min(now, source_at - timedelta(seconds=offset))
    return max(_EARLIEST, seen_at), source_at, uncertainty


def _whole(message: dict[str, Any], field: str, *, least: int, most: int) -> int:
    value = message.get(field, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(f"A whole number from {least} to {most}.", field=field)
    return value


def _rejected(message: dict[str, Any], code: str, detail: str) -> wire.Rejected:
    number = message.get("n")
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return wire.Rejected(n=number if is_number else 0, code=code, detail=detail)  # type: ignore[typeddict-item]


def _apply(life: Incarnation, signals: dict[int, NewSignal], now: datetime) -> None:
    """Columns that show what the messages told: pids, the newest number, checkpoints."""
    if not signals:
        return
    changes: dict[str, Any] = {"last_message_n": Greatest(F("last_message_n"), max(signals))}
    newest_first = sorted(signals.items(), reverse=True)
    for _, signal in newest_first:
        pids = signal.body.get("pids")
        if isinstance(pids, dict):
            for name, column in (("agent", "agent_pid"), ("command", "command_pid")):
                pid = pids.get(name)
                if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 2**31:
                    changes.setdefault(column, pid)
    Incarnation.objects.filter(Q(pk=life.pk)).update(**changes)
    for _, signal in sorted(signals.items()):
        if signal.kind == SignalKind.CHECKPOINT:
            checkpoints.record_checkpoint(
                job=life.worker.job, content=signal.body, at=signal.seen_at, sequence=signal.sequence
            )
