"""What people do to an incident or job; programs may acknowledge and resolve by their tokens.

What touches a recovery (resolve, cancel, do it now, restart, stop) is a signal, decided inside the request.
What only people change (acknowledge) is compare-and-set on ``version``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db import transaction

from apps.access.clock import database_now
from apps.access.models import Token, User
from apps.access.services import audit
from apps.incidents.models import Action, InboxEntry, Incident, Subject, TimelineEvent
from apps.incidents.services import feed
from apps.incidents.services.deciding import decide_with
from apps.incidents.services.signals import NewSignal, record_signals, subject_for_job
from apps.jobs.models import Job
from recovery.errors import Conflict, InvalidTransition, NotFound
from recovery.lifecycle import (
    ENDED_ACTION_STATES,
    OPEN_ACTION_STATES,
    OPEN_INCIDENT_STATES,
    ActionKind,
    ActionState,
)
from recovery.phases import TERMINAL_PHASES
from recovery.signals import SignalKind, Source, Use


def acknowledge_incident(*, incident_id: int, by: User | Token, version: int | None = None) -> Incident:
    """Say that somebody looks after it. Only an open, unacknowledged incident can be acknowledged.

    Raises:
        Conflict: It changed since ``version`` was read; the text tells the present state.
        InvalidTransition: It is resolved, closed or acknowledged already.
    """
    with transaction.atomic():
        incident = _locked(incident_id)
        if incident.state not in OPEN_INCIDENT_STATES:
            raise InvalidTransition(
                f"{incident} is {incident.state}; only an open incident can be acknowledged"
            )
        if incident.acknowledger:
            raise InvalidTransition(f"{incident} was acknowledged by {incident.acknowledger} already")
        if version is not None and incident.version != version:
            raise Conflict(f"{incident} changed meanwhile and is {incident.state} now; look again")
        now = database_now()
        if isinstance(by, Token):
            incident.acknowledged_by_token = _name(by)
        else:
            incident.acknowledged_by = by
        incident.acknowledged_at = now
        incident.version += 1
        incident.timeline_n += 1
        incident.save(
            update_fields=[
                "acknowledged_by",
                "acknowledged_by_token",
                "acknowledged_at",
                "version",
                "timeline_n",
            ]
        )
        TimelineEvent.objects.create(
            tenant_id=incident.tenant_id,
            incident=incident,
            n=incident.timeline_n,
            kind="acknowledged",
            at=now,
            received_at=now,
            text=f"Acknowledged by {incident.acknowledger}",
            actor_kind=_kind(by),
            actor=_name(by)[:200],
        )
        _audit(by, incident.tenant_id, "acknowledge", "incident", str(incident), now)
        feed.publish(tenant_id=incident.tenant_id, topic="incident", key=incident.pk, now=now)
    return incident


def resolve_incident(*, incident_id: int, by: User | Token, reason: str) -> Incident:
    """Resolve an open incident by somebody's word. What is queued for it is cancelled.

    Raises:
        InvalidTransition: It is not open, or an action is being carried out right now.
        SubjectBusy: Somebody else decides it right now; nothing was changed.
    """
    incident = _get(incident_id)

    def record(held: Subject, now: datetime) -> int:
        fresh = _get(incident_id)
        if fresh.state not in OPEN_INCIDENT_STATES:
            raise InvalidTransition(f"{fresh} is {fresh.state} already")
        # Locked: an executor that would claim one now waits, and then finds it cancelled.
        rows = fresh.actions.select_for_update(no_key=True).filter(state__in=OPEN_ACTION_STATES)
        busy = [each for each in rows if each.state in (ActionState.RUNNING, ActionState.VERIFYING)]
        running = next((each for each in busy if each.kind != ActionKind.ASK_PERSON), None)
        if running is not None:
            raise InvalidTransition(
                f"{running.kind} is being carried out right now; try again when its effect was seen"
            )
        asked = _signal(
            held,
            now,
            by,
            SignalKind.PERSON_RESOLVE,
            f"resolve/{fresh.pk}",
            {"by": _told(by), "reason": reason, "incident_uid": str(fresh.uid)},
        )
        _audit(by, fresh.tenant_id, "resolve", "incident", str(fresh), now, reason)
        return asked

    _decide(subject_id=incident.subject_id, record=record)
    return _get(incident_id)


def cancel_action(*, action_id: int, by: User, reason: str) -> Action:
    """Take back what has not begun. What is running cannot be taken back, and that is said.

    Raises:
        InvalidTransition: The action is running, verifying or at its end.
        SubjectBusy: Somebody else decides its subject right now.
    """
    action = _get_action(action_id)

    def record(held: Subject, now: datetime) -> int:
        fresh = Action.objects.select_for_update(no_key=True).get(pk=action_id)
        if fresh.state in ENDED_ACTION_STATES or fresh.state in (ActionState.RUNNING, ActionState.VERIFYING):
            raise InvalidTransition(
                f"{fresh.kind} is {fresh.state}; only what has not begun can be cancelled"
            )
        asked = _signal(
            held,
            now,
            by,
            SignalKind.PERSON_CANCEL,
            f"cancel/{fresh.uid}",
            {"by": by.get_username(), "action_uid": str(fresh.uid), "reason": reason},
        )
        _audit(by, fresh.tenant_id, "cancel", "action", f"{fresh.incident} {fresh}", now, reason)
        return asked

    _decide(subject_id=action.incident.subject_id, record=record)
    return _get_action(action_id)


def do_action_now(*, action_id: int, by: User) -> Action:
    """Let an action that waits for its time begin at once.

    Raises:
        InvalidTransition: It does not wait, or a guard holds it back: the text has the guard's numbers.
        SubjectBusy: Somebody else decides its subject right now.
    """
    action = _get_action(action_id)

    def record(held: Subject, now: datetime) -> int:
        fresh = Action.objects.select_for_update(no_key=True).get(pk=action_id)
        if fresh.state not in (ActionState.PLANNED, ActionState.READY):
            raise InvalidTransition(f"{fresh.kind} is {fresh.state}; it does not wait for its time")
        asked = _signal(
            held,
            now,
            by,
            SignalKind.PERSON_DO_NOW,
            f"now/{fresh.uid}",
            {"by": by.get_username(), "action_uid": str(fresh.uid)},
        )
        _audit(by, fresh.tenant_id, "do_now", "action", f"{fresh.incident} {fresh}", now)
        return asked

    _decide(subject_id=action.incident.subject_id, record=record)
    return _get_action(action_id)


def restart_in_place(*, incident_id: int, by: User, reason: str = "") -> Incident:
    """Let all workers of the incident's job start again in place now. It counts nothing by itself.

    A restart that waits for its time begins; else one is wanted, under the same guards as the desk's own.

    Raises:
        InvalidTransition: It cannot be had; the text says why, and what to do instead.
        SubjectBusy: Somebody else decides the job right now; nothing was changed.
    """
    incident = _get(incident_id)

    def record(held: Subject, now: datetime) -> int:
        fresh = _get(incident_id)
        if fresh.state not in OPEN_INCIDENT_STATES:
            raise InvalidTransition(f"{fresh} is {fresh.state} already")
        if fresh.job_id is None:
            raise InvalidTransition(f"{fresh} is about no job, so there is nothing to start again")
        asked = _signal(
            held,
            now,
            by,
            SignalKind.PERSON_DO_NOW,
            f"restart/{fresh.pk}",
            {"by": by.get_username(), "action": ActionKind.RESTART_PROCESS, "reason": reason},
        )
        _audit(by, fresh.tenant_id, "restart", "incident", str(fresh), now, reason)
        return asked

    _decide(subject_id=incident.subject_id, record=record)
    return _get(incident_id)


def stop_job(*, job_id: int, by: User, reason: str, at_safe_point: bool = False) -> Job:
    """Ask for Stopped. The job is suspended, not deleted.

    Raises:
        InvalidTransition: The job has ended.
        SubjectBusy: Somebody else decides it right now.
    """
    job = _get_job(job_id)
    subject = subject_for_job(job)

    def record(held: Subject, now: datetime) -> int:
        fresh = _get_job(job_id)
        if fresh.phase in TERMINAL_PHASES:
            raise InvalidTransition(f"{fresh} is {fresh.phase} already")
        asked = _signal(
            held,
            now,
            by,
            SignalKind.QUIT,
            f"quit/{fresh.pk}",
            {"by": by.get_username(), "reason": reason, "at_safe_point": at_safe_point},
        )
        _audit(by, fresh.tenant_id, "stop", "job", str(fresh), now, reason)
        return asked

    _decide(subject_id=subject.pk, record=record)
    return _get_job(job_id)


def _decide(*, subject_id: int, record: Callable[[Subject, datetime], int]) -> None:
    """Decide at once what somebody asks for, and say no where the decision does.

    ``record`` gives the signal that asks. Raises InvalidTransition with the decision's reason.
    """
    asked = decide_with(subject_id=subject_id, record=record)
    refused = InboxEntry.objects.filter(signal_id=asked, subject_id=subject_id, use=Use.REFUSED).first()
    if refused is not None:
        raise InvalidTransition(refused.reason)


def _signal(
    held: Subject, now: datetime, by: User | Token, kind: SignalKind, key: str, body: dict[str, object]
) -> int:
    """Record what somebody asks for. Gives the signal's id."""
    (recorded,) = record_signals(
        signals=[
            NewSignal(
                tenant_id=held.tenant_id,
                cluster_id=held.cluster_id,
                source=Source.PERSON,
                # The decision that is about to be made numbers the request: the same wish may come again.
                source_key=f"{key}/{'token-' if isinstance(by, Token) else ''}{by.pk}/{held.decision_n + 1}",
                kind=kind,
                body=body,
                seen_at=now,
                subject_ids=(held.pk,),
            )
        ],
        now=now,
    )
    return recorded.signal_id


def _audit(
    by: User | Token,
    tenant_id: int,
    verb: str,
    target_kind: str,
    target: str,
    now: datetime,
    reason: str = "",
) -> None:
    audit(
        at=now,
        tenant_id=tenant_id,
        actor_kind=_kind(by),
        actor=_name(by),
        verb=verb,
        target_kind=target_kind,
        target=target,
        reason=reason,
    )


def _kind(by: User | Token) -> str:
    return "token" if isinstance(by, Token) else "person"


def _name(by: User | Token) -> str:
    """As the audit writes it; a token as in ``Caller.machine``."""
    return f"{by.name} ({by.prefix})" if isinstance(by, Token) else by.get_username()


def _told(by: User | Token) -> str:
    """As a sentence of the timeline names it."""
    return f"token {_name(by)}" if isinstance(by, Token) else by.get_username()


def _get(incident_id: int) -> Incident:
    incident = Incident.objects.filter(pk=incident_id).first()
    if incident is None:
        raise NotFound(f"there is no incident INC-{incident_id}")
    return incident


def _locked(incident_id: int) -> Incident:
    incident = _get(incident_id)
    Subject.objects.select_for_update(no_key=True).get(
        pk=incident.subject_id
    )  # decisions number the timeline too
    return Incident.objects.select_related("acknowledged_by").get(pk=incident_id)


def _get_action(action_id: int) -> Action:
    action = Action.objects.select_related("incident").filter(pk=action_id).first()
    if action is None:
        raise NotFound(f"there is no action {action_id}")
    return action


def _get_job(job_id: int) -> Job:
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    return job
