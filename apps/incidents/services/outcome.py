"""Decision -> rows, in the decision's own transaction. A decision writes only its own subject's rows."""

from __future__ import annotations

import json
import logging
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Case, DateTimeField, PositiveIntegerField, Q, Value, When
from django.db.models.functions import Coalesce

from apps.incidents.models import (
    Action,
    Cause,
    Decision,
    InboxEntry,
    Incident,
    Notice,
    PolicyVersion,
    Signal,
    Subject,
    TimelineEvent,
)
from apps.incidents.services import feed
from apps.incidents.services.progress import attempt_last_step
from apps.incidents.services.state import present_incident
from apps.jobs.models import Attempt, FailureCount, Incarnation, Job, Order, Run, Worker
from recovery import decide as core
from recovery.lifecycle import (
    ENDED_ACTION_STATES,
    OPEN_ACTION_STATES,
    ActionKind,
    ActionState,
    IncidentState,
)
from recovery.phases import TERMINAL_PHASES, JobState
from recovery.serialize import to_plain
from recovery.signals import EndCause, SignalKind, Use, WorkerKey
from recovery.signals import Signal as CoreSignal

_timeline_log = logging.getLogger("incidentdesk.timeline")

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
]


def store_decision(
    held: Subject,
    state: core.SubjectState,
    inbox: tuple[CoreSignal, ...],
    decision: core.Decision,
    policy: PolicyVersion,
    *,
    now: datetime,
    seconds: float,
) -> list[int]:
    """Write everything that a decision wants, with the decision itself.

    Args:
        held: The locked subject.
        policy: The row that keeps the values under which it was decided.
        seconds: What reading and deciding took, for the figure on the page.
    Returns:
        Row ids of the actions that are ready to be claimed now.
    """
    incident = _store_incident(held, decision, now)
    told_in = incident or _incident_of_counts(held, decision)
    if held.job is not None and decision.job is not None:
        _store_job(held.job, state, inbox, decision, incident, now)
    if told_in is not None:
        _store_timeline(told_in, decision, inbox, now)
    due = _store_actions(held, incident, decision, now)
    _store_uses(held, decision, inbox)
    Decision.objects.create(
        tenant_id=held.tenant_id,
        subject=held,
        incident=incident,
        n=decision.n,
        at=now,
        policy_version=decision.policy_version,
        policy=policy,
        rule=decision.rule[:100],
        reason=decision.reason,
        state_before=to_plain(state),
        inbox=to_plain(inbox),
        outcome=to_plain(decision),
        seconds=seconds,
    )
    held.decision_n = decision.n
    held.next_look_at = decision.next_look_at
    held.failures, held.failure, held.put_off_until_at = 0, "", None
    held.save(update_fields=["decision_n", "next_look_at", "failures", "failure", "put_off_until_at"])
    if held.job is not None:
        feed.publish(tenant_id=held.tenant_id, topic="job", key=held.job.pk, now=now)
    if incident is not None:
        feed.publish(tenant_id=held.tenant_id, topic="incident", key=incident.pk, now=now)
    return due


def _store_incident(held: Subject, decision: core.Decision, now: datetime) -> Incident | None:
    """Open, reopen or advance the incident; without a change the one that is there."""
    present = present_incident(held)
    change = decision.incident
    if change is None:
        return present
    if change.closes_resolved and present is not None and present.state == IncidentState.RESOLVED:
        present.state = IncidentState.CLOSED
        present.state_since_at = present.closed_at = now
        present.save(update_fields=["state", "state_since_at", "closed_at"])
        feed.publish(tenant_id=held.tenant_id, topic="incident", key=present.pk, now=now)
        if not change.opens:
            return present
    if change.opens:
        incident = Incident(
            tenant_id=held.tenant_id,
            cluster_id=held.cluster_id,
            subject=held,
            job=held.job,
            opened_at=now,
            state_since_at=now,
        )
    elif present is not None:
        incident = present
    else:
        raise AssertionError(f"decision {decision.n} of {held} changes an incident that is not there")
    if change.reopens:
        incident.resolved_at = None
        incident.resolution = ""
        incident.reopened_count += 1
        incident.reopened_at = now
    if change.state is not None and change.state != incident.state:
        incident.state = change.state
        incident.state_since_at = now
        incident.waiting_for = ""
        incident.waiting_until_at = None
        incident.version += 1
        if change.state is IncidentState.RESOLVED:
            incident.resolved_at = now
        if change.state is IncidentState.CLOSED:
            incident.closed_at = now
    for name in ("title", "severity", "rung", "attempt", "watching_from_step", "resolution"):
        value = getattr(change, name)
        if value is not None:
            setattr(incident, name, value)
    if change.waiting_for is not None:
        incident.waiting_for = change.waiting_for
        incident.waiting_until_at = change.waiting_until
    if change.seen_failed_at is not None:
        incident.failed_at = change.seen_failed_at
    if change.verdict is not None:
        incident.verdict = to_plain(change.verdict)
    if decision.job is not None and any(not count.would for count in decision.counts):
        incident.failures_used = decision.job.recover_count
    if decision.considered:
        incident.considered = to_plain(decision.considered)
    tried = [wanted.kind for wanted in decision.actions if wanted.state is not ActionState.REFUSED]
    for kind in tried:
        incident.tries = {**incident.tries, str(kind): incident.tries.get(str(kind), 0) + 1}
    incident.title = incident.title[:300]
    incident.save()
    for so_far, category, text in change.renamed_causes:
        _rename_cause(incident, so_far, category, text[:1000], now)
    for category, text in change.causes:
        cause, is_new = Cause.objects.get_or_create(
            incident=incident,
            category=category,
            defaults={"tenant_id": held.tenant_id, "text": text, "first_seen_at": now, "last_seen_at": now},
        )
        if not is_new:
            cause.count += 1
            cause.last_seen_at = now
            cause.save(update_fields=["count", "last_seen_at"])
        elif not change.opens:
            # People who follow it, also who acknowledged it, are told: it is not only what they know of.
            Notice.objects.create(
                tenant_id=held.tenant_id,
                incident=incident,
                text=f"Another cause joined {incident}: {text}",
                created_at=now,
                delivered_at=now,
            )
    return incident


def _rename_cause(incident: Incident, so_far: str, category: str, text: str, now: datetime) -> None:
    """A cause is known by another name now: its row goes on under that, or joins the one that is there."""
    old = Cause.objects.filter(incident=incident, category=so_far).first()
    if old is None or so_far == category:
        return
    present = Cause.objects.filter(incident=incident, category=category).first()
    if present is not None:
        old.delete()
        return
    old.category, old.text, old.last_seen_at = category, text, now
    old.save(update_fields=["category", "text", "last_seen_at"])


def _incident_of_counts(held: Subject, decision: core.Decision) -> Incident | None:
    """The incident, closed since, of a count about which something became known."""
    attempts = [change.attempt for change in decision.count_changes]
    counts = FailureCount.objects.filter(job=held.job, attempt__in=attempts, incident_uid__isnull=False)
    return Incident.objects.filter(uid__in=counts.values("incident_uid")).first() if attempts else None


def _store_timeline(
    incident: Incident, decision: core.Decision, inbox: tuple[CoreSignal, ...], now: datetime
) -> None:
    received = {signal.id: signal.received_at for signal in inbox}
    events = []
    for entry in decision.timeline:
        incident.timeline_n += 1
        events.append(
            TimelineEvent(
                tenant_id=incident.tenant_id,
                incident=incident,
                n=incident.timeline_n,
                kind=entry.kind,
                at=entry.at,
                received_at=received.get(entry.signal or 0, now),
                text=entry.text,
                actor_kind=entry.actor_kind,
                actor=entry.actor[:200],
                role=entry.worker.role if entry.worker else "",
                index=entry.worker.index if entry.worker else None,
                attempt=entry.attempt,
                body=to_plain(entry.data),
                decision_n=decision.n,
                signal_id=entry.signal,
            )
        )
    if events:
        TimelineEvent.objects.bulk_create(events)
        incident.save(update_fields=["timeline_n"])
        if settings.TIMELINE_LOG:
            lines = [_log_line(incident, event) for event in events]
            transaction.on_commit(lambda: _write_lines(lines))


def _log_line(incident: Incident, event: TimelineEvent) -> str:
    """One timeline event for any log collector (DESIGN 3, Logs)."""
    worker = None
    if event.index is not None and incident.job_id:
        worker = (
            Worker.objects.filter(job_id=incident.job_id, role=event.role, index=event.index)
            .select_related("incarnation__machine")
            .first()
        )
    life = worker.incarnation if worker else None
    addresses = life.machine.addresses if life and life.machine else []
    return json.dumps(
        {
            "time": event.at.isoformat(),
            "incident": str(incident),
            "job": str(incident.job) if incident.job else "",
            "pod": life.pod_name if life else "",
            "pod_ip": life.ip if life else "",
            "node": life.node_name if life else "",
            "node_ip": next((a.get("address", "") for a in addresses if a.get("type") == "InternalIP"), ""),
            "phase": incident.job.phase if incident.job else "",
            "event": event.kind,
            "message": event.text,
        }
    )


def _write_lines(lines: list[str]) -> None:
    if settings.TIMELINE_LOG == "-":
        for line in lines:
            _timeline_log.info(line)
        return
    with Path(settings.TIMELINE_LOG).open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _store_actions(
    held: Subject, incident: Incident | None, decision: core.Decision, now: datetime
) -> list[int]:
    """Change open actions, then write new ones. Returns the ids of those that may be claimed now."""
    due = []
    for change in decision.action_changes:
        is_end = change.state in ENDED_ACTION_STATES
        fields: dict[str, Any] = {"state": change.state, "end_reason": change.reason}
        if is_end:
            fields["ended_at"] = now
        else:
            fields |= {"not_before_at": change.not_before, "lease_until_at": None, "lease_owner": ""}
        action = Action.objects.get(uid=change.uid)
        if change.sequence is not None:
            fields["content"] = {**action.content, "sequence": change.sequence}
        Action.objects.filter(pk=action.pk).update(**fields)
        if change.state is ActionState.READY and (change.not_before is None or change.not_before <= now):
            due.append(action.pk)
    for wanted in decision.actions:
        if incident is None:
            raise AssertionError(f"decision {decision.n} of {held} wants an action without an incident")
        action = Action.objects.create(
            tenant_id=held.tenant_id,
            incident=incident,
            kind=wanted.kind,
            target=wanted.target,
            generation=wanted.generation,
            state=wanted.state,
            why=wanted.why,
            refused_because=wanted.refused_because,
            price=to_plain(wanted.price),
            content=to_plain(wanted.data),
            decision_n=decision.n,
            not_before_at=wanted.not_before,
            deadline_seconds=wanted.deadline_seconds,
            created_at=now,
            ended_at=now if wanted.state in ENDED_ACTION_STATES else None,
        )
        if wanted.state is ActionState.READY and (wanted.not_before is None or wanted.not_before <= now):
            due.append(action.pk)
    return due


def _store_uses(held: Subject, decision: core.Decision, inbox: tuple[CoreSignal, ...]) -> None:
    uses = {use.signal: use for use in decision.uses}
    ids = [signal.id for signal in inbox]
    InboxEntry.objects.filter(subject=held, signal_id__in=ids).update(
        decision_n=decision.n,
        use=Case(
            *[When(signal_id=i, then=Value(str(uses[i].use if i in uses else Use.CONTEXT))) for i in ids]
        ),
        reason=Case(*[When(signal_id=i, then=Value(uses[i].reason if i in uses else "")) for i in ids]),
    )


def _store_job(
    job: Job,
    state: core.SubjectState,
    inbox: tuple[CoreSignal, ...],
    decision: core.Decision,
    incident: Incident | None,
    now: datetime,
) -> None:
    before, after = state.job, decision.job
    if before is None or after is None:
        raise AssertionError(f"{job} was decided without its phase state")
    workers = {WorkerKey(row.role, row.index): row for row in job.workers.select_related("incarnation")}
    _store_incarnation_ends(decision, now)
    _store_attempts(job, before, after, decision, inbox, incident, workers, now)
    _store_remedy(job, state, decision, after)
    _store_counts(job, decision, incident, workers, now)
    _change_counts(job, decision)
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
    job.save(update_fields=_PHASE_COLUMNS)
    if decision.directive:
        feed.notify(feed.ORDERS_CHANNEL, str(job.pk))


def _store_workers(
    before: JobState,
    after: JobState,
    workers: dict[WorkerKey, Worker],
    inbox: tuple[CoreSignal, ...],
) -> None:
    old = {worker.key: worker for worker in before.workers}
    answers = {
        signal.worker: signal
        for signal in inbox
        if signal.kind in (SignalKind.ACK, SignalKind.ERROR) and signal.data.get("checks")
    }
    changed = []
    for worker in after.workers:
        row = workers[worker.key]
        answer = answers.get(worker.key)
        if old.get(worker.key) == worker and answer is None:
            continue
        row.inner_phase = worker.inner_phase
        row.is_enrolled = worker.enrolled
        row.is_finished = worker.finished
        row.retries = worker.retries
        row.is_restarted = worker.restarted
        row.must_exit = worker.must_exit
        row.is_retired = worker.retired
        row.has_departed = worker.departed
        row.last_sequence = worker.last_sequence
        row.handled = sorted([str(type_), str(phase)] for type_, phase in worker.handled)
        row.last_failure_reason = worker.last_failure_reason
        if answer is not None:
            row.checks = answer.data["checks"]
            row.checks_at = answer.seen_at
            if answer.data.get("environment"):
                row.environment = answer.data["environment"]
        changed.append(row)
    Worker.objects.bulk_update(
        changed,
        [
            "inner_phase", "is_enrolled", "is_finished", "retries", "is_restarted", "must_exit", "is_retired",
            "has_departed", "last_sequence", "handled", "last_failure_reason", "checks", "checks_at",
            "environment",
        ],
        batch_size=200,
    )  # fmt: skip


def _store_attempts(
    job: Job,
    before: JobState,
    after: JobState,
    decision: core.Decision,
    inbox: tuple[CoreSignal, ...],
    incident: Incident | None,
    workers: dict[WorkerKey, Worker],
    now: datetime,
) -> None:
    for change in decision.attempts:
        if change.ends is not None:
            Attempt.objects.filter(job=job, n=change.ends, ended_at__isnull=True).update(
                ended_at=now,
                end_cause=change.end_cause[:64],
                is_counted=change.counted,
                last_step=_highest(
                    attempt_last_step(job, change.ends), *_steps_told(inbox, change.ends, before)
                ),
                incident_uid=incident.uid if incident else None,
            )
        if change.begins is not None:
            Attempt.objects.create(
                tenant_id=job.tenant_id,
                job=job,
                n=change.begins,
                run=after.run,
                sequence=change.sequence or after.sequence,
                is_protected=after.protected,
                started_at=now,
                resumed_from_step=change.resumed_from_step,
            )
            live = [
                row.incarnation_id for row in workers.values() if row.incarnation_id and not row.is_retired
            ]
            Incarnation.objects.filter(pk__in=live, ended_at__isnull=True).update(
                first_attempt=Coalesce(
                    "first_attempt", Value(change.begins), output_field=PositiveIntegerField()
                ),
                last_attempt=change.begins,
            )
        if change.n is not None:
            known = {
                name: value
                for name, value in (
                    ("first_step", change.first_step),
                    ("first_step_at", change.first_step_at),
                    ("resumed_from_step", change.resumed_from_step),
                )
                if value is not None
            }
            if known:
                Attempt.objects.filter(job=job, n=change.n).update(**known)


def _store_remedy(job: Job, state: core.SubjectState, decision: core.Decision, after: JobState) -> None:
    """What was done about the attempt that ended: the restart that began the next one, or the stop."""
    begun = [change.begins for change in decision.attempts if change.begins is not None]
    if begun:
        remedies = [action.kind for action in state.actions if action.state in OPEN_ACTION_STATES]
        ended = begun[0] - 1
    else:
        remedies = [wanted.kind for wanted in decision.actions if wanted.state is not ActionState.REFUSED]
        ended = after.attempt
    remedy = next((kind for kind in remedies if kind is not ActionKind.ASK_PERSON), None)
    if remedy is not None:
        Attempt.objects.filter(job=job, n=ended, ended_at__isnull=False).update(remedy=remedy)


def _steps_told(inbox: tuple[CoreSignal, ...], attempt: int, before: JobState) -> list[int]:
    """Steps that ends in this inbox tell of the attempt: a heartbeat is up to an interval older."""
    if attempt != before.attempt:
        return []
    return [
        signal.data["step"]
        for signal in inbox
        if signal.kind in (SignalKind.ERROR, SignalKind.FINISH)
        and signal.sequence == before.attempt_sequence
        and isinstance(signal.data.get("step"), int)
    ]


def _highest(*steps: int | None) -> int | None:
    return max((step for step in steps if step is not None), default=None)


def _store_counts(
    job: Job,
    decision: core.Decision,
    incident: Incident | None,
    workers: dict[WorkerKey, Worker],
    now: datetime,
) -> None:
    for count in decision.counts:
        worker = workers[count.worker]
        FailureCount.objects.create(
            tenant_id=job.tenant_id,
            job=job,
            attempt=count.attempt,
            run=job.run,
            worker=worker,
            node_name=worker.incarnation.node_name if worker.incarnation else "",
            cause=count.cause[:64],
            would=count.would,
            only_witness=count.witness or "",
            signal_uid=_signal_uid(count.signal),
            incident_uid=incident.uid if incident else None,
            at=now,
        )


def _change_counts(job: Job, decision: core.Decision) -> None:
    """What became known of earlier counts: another word for the cause, or that they never were any."""
    for change in decision.count_changes:
        rows = FailureCount.objects.filter(job=job, attempt=change.attempt)
        if change.taken_back:
            incidents = [uid for uid in rows.values_list("incident_uid", flat=True) if uid is not None]
            rows.delete()
            for uid in incidents:
                is_left = FailureCount.objects.filter(job=job, incident_uid=uid, would=False).exists()
                used = decision.job.recover_count if is_left and decision.job is not None else None
                Incident.objects.filter(uid=uid).update(failures_used=used)
        else:
            rows.update(only_witness="", **({"cause": change.cause[:64]} if change.cause else {}))
        attempt = {"end_cause": change.end_cause[:64]} | ({"is_counted": False} if change.taken_back else {})
        Attempt.objects.filter(job=job, n=change.attempt).update(**attempt)


def _signal_uid(signal_id: int) -> uuid.UUID | None:
    return Signal.objects.filter(pk=signal_id).values_list("uid", flat=True).first()


def _store_incarnation_ends(decision: core.Decision, now: datetime) -> None:
    for row_id, cause in decision.ended_incarnations:
        is_ordered = cause in (EndCause.ORDERED, EndCause.EVICTED_BY_DESK)
        Incarnation.objects.filter(pk=row_id).filter(
            Q(ended_at__isnull=True) | Q(end_cause=EndCause.REPLACED)
        ).update(
            ended_at=Coalesce("ended_at", Value(now), output_field=DateTimeField()),
            end_cause=cause,
            is_end_ordered=is_ordered,
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
    if decision.orders:
        feed.notify(feed.ORDERS_CHANNEL, str(job.pk))
