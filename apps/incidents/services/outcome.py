"""Decision -> rows, in the decision's own transaction. A decision writes only its own subject's rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import DateTimeField, F, PositiveIntegerField, Q, Subquery, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Greatest

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
from apps.incidents.services.many_rows import update_rows
from apps.incidents.services.progress import attempt_last_step
from apps.incidents.services.state import Loaded
from apps.jobs.models import Attempt, FailureCount, Incarnation, Job, Order, Run, Worker
from apps.nodes.models import Machine
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

# What decisions write of an incident; who acknowledged it is people's.
_INCIDENT_COLUMNS = [
    "title",
    "state",
    "state_since_at",
    "severity",
    "rung",
    "tries",
    "waiting_for",
    "waiting_until_at",
    "attempt",
    "verdict",
    "likeness",
    "considered",
    "failed_at",
    "watching_from_step",
    "resolved_at",
    "closed_at",
    "resolution",
    "reopened_count",
    "reopened_at",
    "failures_used",
    "timeline_n",
    "version",
]

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
    loaded: Loaded,
    now: datetime,
    seconds: float,
) -> list[int]:
    """Write everything that a decision wants, with the decision itself.

    Args:
        held: The locked subject.
        loaded: The rows that ``state`` was read from; they are brought to what is decided.
        policy: The row that keeps the values under which it was decided.
        seconds: What reading and deciding took, for the figure on the page.
    Returns:
        Row ids of the actions that are ready to be claimed now.
    """
    incident = _store_incident(held, loaded, decision, now)
    told_in = incident or _incident_of_counts(held, decision)
    if held.job is not None and decision.job is not None:
        _store_job(held.job, state, inbox, decision, incident, loaded.workers, now)
    if told_in is not None and decision.timeline:
        events = _store_timeline(told_in, decision, inbox, now)
        if settings.TIMELINE_LOG:
            lines = _log_lines(told_in, held.job, loaded.workers, events)
            transaction.on_commit(lambda: _write_lines(lines))
    due = _store_actions(held, incident, loaded, decision, now)
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
    changed = [("job", held.job_id), ("incident", incident.pk if incident is not None else None)]
    feed.publish_all(
        tenant_id=held.tenant_id,
        rows=[(topic, key) for topic, key in changed if key is not None],
        now=now,
        ordered=held.job_id if decision.orders or decision.directive else None,
    )
    return due


def _store_incident(held: Subject, loaded: Loaded, decision: core.Decision, now: datetime) -> Incident | None:
    """Open, reopen or advance the incident; without a change the one that is there."""
    present = loaded.incident
    change = decision.incident
    if change is None:
        if present is not None:
            _number_lines(present, decision)
        return present
    if change.closes_resolved and present is not None and present.state == IncidentState.RESOLVED:
        present.state = IncidentState.CLOSED
        present.state_since_at = present.closed_at = now
        present.timeline_n += 0 if change.opens else len(decision.timeline)
        present.save(update_fields=["state", "state_since_at", "closed_at", "timeline_n"])
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
        incident.likeness = str((change.verdict.get("diagnosis") or {}).get("likeness", ""))
    if decision.job is not None and any(not count.would for count in decision.counts):
        incident.failures_used = decision.job.recover_count
    if decision.considered:
        incident.considered = to_plain(decision.considered)
    tried = [wanted.kind for wanted in decision.actions if wanted.state is not ActionState.REFUSED]
    for kind in tried:
        incident.tries = {**incident.tries, str(kind): incident.tries.get(str(kind), 0) + 1}
    incident.title = incident.title[:300]
    incident.timeline_n += len(decision.timeline)
    incident.save(update_fields=None if change.opens else _INCIDENT_COLUMNS)
    _store_causes(incident, change, set() if change.opens else set(loaded.causes), now)
    return incident


def _store_causes(incident: Incident, change: core.IncidentChange, known: set[str], now: datetime) -> None:
    """Rename causes, count those that came again, and let new ones join. ``known``: categories so far."""
    for so_far, category, text in change.renamed_causes:
        if so_far in known and so_far != category:
            _rename_cause(incident, so_far, category, text[:1000], now, joins=category in known)
            known ^= {so_far}
            known |= {category}
    for category, text in change.causes:
        if category in known:
            Cause.objects.filter(incident=incident, category=category).update(
                count=F("count") + 1, last_seen_at=now
            )
            continue
        known.add(category)
        Cause.objects.create(
            tenant_id=incident.tenant_id,
            incident=incident,
            category=category,
            text=text,
            first_seen_at=now,
            last_seen_at=now,
        )
        if not change.opens:
            # People who follow it, also who acknowledged it, are told: it is not only what they know of.
            Notice.objects.create(
                tenant_id=incident.tenant_id,
                incident=incident,
                text=f"Another cause joined {incident}: {text}",
                created_at=now,
                delivered_at=now,
            )


def _rename_cause(
    incident: Incident, so_far: str, category: str, text: str, now: datetime, *, joins: bool
) -> None:
    """A cause is known by another name now: its row goes on under that, or ``joins`` the one that is there."""
    row = Cause.objects.filter(incident=incident, category=so_far)
    if joins:
        row.delete()
    else:
        row.update(category=category, text=text, last_seen_at=now)


def _incident_of_counts(held: Subject, decision: core.Decision) -> Incident | None:
    """The incident, closed since, of a count about which something became known."""
    attempts = [change.attempt for change in decision.count_changes]
    if not attempts:
        return None
    counts = FailureCount.objects.filter(job=held.job, attempt__in=attempts, incident_uid__isnull=False)
    incident = Incident.objects.filter(uid__in=counts.values("incident_uid")).first()
    if incident is not None:
        _number_lines(incident, decision)
    return incident


def _number_lines(incident: Incident, decision: core.Decision) -> None:
    """Let the incident's newest line be the decision's last, where nothing else of its row changes."""
    if decision.timeline:
        incident.timeline_n += len(decision.timeline)
        incident.save(update_fields=["timeline_n"])


def _store_timeline(
    incident: Incident, decision: core.Decision, inbox: tuple[CoreSignal, ...], now: datetime
) -> list[TimelineEvent]:
    """Write the decision's lines; the incident has numbered them already, up to its newest."""
    received = {signal.id: signal.received_at for signal in inbox}
    first = incident.timeline_n - len(decision.timeline) + 1
    return TimelineEvent.objects.bulk_create(
        TimelineEvent(
            tenant_id=incident.tenant_id,
            incident=incident,
            n=n,
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
        for n, entry in enumerate(decision.timeline, start=first)
    )


def _log_lines(
    incident: Incident, job: Job | None, workers: Mapping[WorkerKey, Worker], events: Sequence[TimelineEvent]
) -> list[str]:
    """The timeline's new events for any log collector (DESIGN 3, Logs)."""
    lives = []
    for event in events:
        worker = workers.get(WorkerKey(event.role, event.index)) if event.index is not None else None
        lives.append(worker.incarnation if worker is not None else None)
    machines: dict[int | None, list[dict[str, str]]] = dict(
        Machine.objects.filter(pk__in={life.machine_id for life in lives if life is not None}).values_list(
            "pk", "addresses"
        )
    )
    return [
        json.dumps(
            {
                "time": event.at.isoformat(),
                "incident": str(incident),
                "job": str(job) if job else "",
                "pod": life.pod_name if life else "",
                "pod_ip": life.ip if life else "",
                "node": life.node_name if life else "",
                "node_ip": _internal_ip(machines.get(life.machine_id, []) if life else []),
                "phase": job.phase if job else "",
                "event": event.kind,
                "message": event.text,
            }
        )
        for event, life in zip(events, lives, strict=True)
    ]


def _internal_ip(addresses: list[dict[str, str]]) -> str:
    return next((each.get("address", "") for each in addresses if each.get("type") == "InternalIP"), "")


def _write_lines(lines: list[str]) -> None:
    if settings.TIMELINE_LOG == "-":
        for line in lines:
            _timeline_log.info(line)
        return
    with Path(settings.TIMELINE_LOG).open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _store_actions(
    held: Subject, incident: Incident | None, loaded: Loaded, decision: core.Decision, now: datetime
) -> list[int]:
    """Change open actions, then write new ones. Returns the ids of those that may be claimed now."""
    due = []
    for change in decision.action_changes:
        action = loaded.actions[change.uid]
        is_end = change.state in ENDED_ACTION_STATES
        fields: dict[str, Any] = {"state": change.state, "end_reason": change.reason}
        if is_end:
            fields["ended_at"] = now
        else:
            fields |= {"not_before_at": change.not_before, "lease_until_at": None, "lease_owner": ""}
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
    told = [
        (str(uses[each.id].use), uses[each.id].reason) if each.id in uses else (str(Use.CONTEXT), "")
        for each in inbox
    ]
    update_rows(
        InboxEntry,
        key="signal",
        keys=[signal.id for signal in inbox],
        values={"use": [use for use, _ in told], "reason": [reason for _, reason in told]},
        same={"decision_n": decision.n},
        where={"subject": held.pk},
    )


def _store_job(
    job: Job,
    state: core.SubjectState,
    inbox: tuple[CoreSignal, ...],
    decision: core.Decision,
    incident: Incident | None,
    workers: Mapping[WorkerKey, Worker],
    now: datetime,
) -> None:
    before, after = state.job, decision.job
    if before is None or after is None:
        raise AssertionError(f"{job} was decided without its phase state")
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


def _store_attempts(
    job: Job,
    before: JobState,
    after: JobState,
    decision: core.Decision,
    inbox: tuple[CoreSignal, ...],
    incident: Incident | None,
    workers: Mapping[WorkerKey, Worker],
    now: datetime,
) -> None:
    for change in decision.attempts:
        if change.ends is not None:
            Attempt.objects.filter(job=job, n=change.ends, ended_at__isnull=True).update(
                ended_at=now,
                end_cause=change.end_cause[:64],
                is_counted=change.counted,
                last_step=_last_step(job, change.ends, _steps_told(inbox, change.ends, before)),
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


def _last_step(job: Job, attempt: int, told: list[int]) -> Combinable:
    """The highest of the steps that heartbeats and ends tell of, for the database to find."""
    beaten = attempt_last_step(job, attempt)
    return Greatest(beaten, Value(max(told))) if told else beaten


def _store_counts(
    job: Job,
    decision: core.Decision,
    incident: Incident | None,
    workers: Mapping[WorkerKey, Worker],
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
            # The stubs do not know that an expression may be inserted.
            signal_uid=Subquery(Signal.objects.filter(pk=count.signal).values("uid")),  # type: ignore[misc]
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
