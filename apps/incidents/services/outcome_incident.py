"""Decision -> the incident's row and its causes."""

from __future__ import annotations

from datetime import datetime

from django.db.models import F

from apps.incidents.models import Cause, Incident, Notice, Subject
from apps.incidents.services import feed
from apps.incidents.services.state import Loaded
from apps.jobs.models import FailureCount
from recovery import decide as core
from recovery.lifecycle import ActionState, IncidentState
from recovery.serialize import to_plain

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


def store_incident(held: Subject, loaded: Loaded, decision: core.Decision, now: datetime) -> Incident | None:
    """Open, reopen or advance the incident; without a change the one that is there."""
    present = loaded.incident
    change = decision.incident
    if change is None:
        if present is not None:
            _number_lines(present, decision)
        return present
    if change.closes_resolved and present is not None and present.state == IncidentState.RESOLVED:
        _close_resolved(present, now, lines=0 if change.opens else len(decision.timeline))
        if not change.opens:
            return present
    incident = _new(held, now) if change.opens else present
    if incident is None:
        raise AssertionError(f"decision {decision.n} of {held} changes an incident that is not there")
    _advance(incident, change, now)
    _describe(incident, change, decision)
    incident.timeline_n += len(decision.timeline)
    incident.save(update_fields=None if change.opens else _INCIDENT_COLUMNS)
    _store_causes(incident, change, set() if change.opens else set(loaded.causes), now)
    return incident


def _close_resolved(incident: Incident, now: datetime, *, lines: int) -> None:
    """``lines``: how many of the decision's lines are this incident's."""
    incident.state = IncidentState.CLOSED
    incident.state_since_at = incident.closed_at = now
    incident.timeline_n += lines
    incident.save(update_fields=["state", "state_since_at", "closed_at", "timeline_n"])
    feed.publish(tenant_id=incident.tenant_id, topic="incident", key=incident.pk, now=now)


def _new(held: Subject, now: datetime) -> Incident:
    return Incident(
        tenant_id=held.tenant_id,
        cluster_id=held.cluster_id,
        subject=held,
        job=held.job,
        opened_at=now,
        state_since_at=now,
    )


def _advance(incident: Incident, change: core.IncidentChange, now: datetime) -> None:
    """Into the state that the change ends in, and back among the open ones where it reopens."""
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


def _describe(incident: Incident, change: core.IncidentChange, decision: core.Decision) -> None:
    """What is known of it by now, and what was tried."""
    for name in ("title", "severity", "rung", "attempt", "watching_from_step", "resolution"):
        value = getattr(change, name)
        if value is not None:
            setattr(incident, name, value)
    incident.title = incident.title[:300]
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


def incident_of_counts(held: Subject, decision: core.Decision) -> Incident | None:
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
