"""What the page of one incident shows, put together from selectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from apps.access.models import AuditEntry
from apps.desk.next_step import next_step
from apps.desk.stages import stage_bar
from apps.incidents import selectors
from apps.incidents.models import Action, Incident, TimelineEvent
from apps.jobs import selectors as jobs
from apps.jobs.models import Job
from recovery.lifecycle import OPEN_INCIDENT_STATES, ActionState

TABS = ("overview", "attempts", "audit")
SHOWS = ("all", "actions", "evidence", "people")
LATE_SECONDS = 5.0  # an event known later than that says so
_EVIDENCE_ACTORS = ("agent", "watch", "hook")


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line: the event, its icon and tone, seconds since the one before, and how late it was known."""

    event: TimelineEvent
    icon: str
    tone: str
    delta_seconds: float | None
    late_seconds: float | None


@dataclass(frozen=True, slots=True)
class ActionLine:
    """An action and what a person can do about it."""

    action: Action
    can_cancel: bool
    can_do_now: bool
    waits_until: datetime | None

    @property
    def dialog(self) -> str:
        """Name of the dialog that asks before it is cancelled."""
        return f"cancel-{self.action.pk}"


def incident_page(
    incident: Incident,
    *,
    tenant_ids: Sequence[int] | None,
    tab: str,
    show: str,
    before: int | None,
    now: datetime,
) -> dict[str, Any]:
    """Context of ``incidents/incident_detail.html``. An unknown tab or filter is the first of its kind."""
    tab = tab if tab in TABS else TABS[0]
    show = show if show in SHOWS else SHOWS[0]
    actions = selectors.actions_of(incident)
    open_actions = [action for action in reversed(actions) if action.state in selectors.OPEN_ACTION_WORDS]
    context: dict[str, Any] = {
        "incident": incident,
        "tab": tab,
        "show": show,
        "is_open": incident.state in OPEN_INCIDENT_STATES,
        "next": next_step(incident, open_actions, now),
        "actions": [_action_line(action, now) for action in actions],
        "running": next((action for action in open_actions if action.state == ActionState.RUNNING), None),
    }
    if tab == "attempts":
        return context | _attempts(incident)
    if tab == "audit":
        return context | _audit(incident, before)
    events, has_older = selectors.timeline_of(incident, before=before)
    first_events = events if not has_older and before is None else selectors.timeline_of(incident, limit=2000)[0]
    return context | {
        "lines": [line for line in timeline_lines(events) if _is_shown(line.event, show)],
        "older_before": events[-1].n if has_older else None,
        "shows": SHOWS,
        **stage_bar(incident, first_events, now),
        "verdict": verdict_lines(incident.verdict),
        "decision": selectors.last_decision(incident),
        "causes": selectors.causes_of(incident),
        "notices": selectors.notices_of(incident),
        "log_tails": selectors.log_tails_of(incident),
        "children": list(incident.children.only("id", "title", "state", "tenant_id")[:20]),
        "log_link": _log_link(incident),
    }


def timeline_lines(events: Sequence[TimelineEvent]) -> list[TimelineLine]:
    """Lines of events given newest first; each delta reaches back to the event that happened before it."""
    by_time = sorted(events, key=lambda event: (event.at, event.n))
    previous: dict[int, datetime] = {}
    for earlier, later in zip(by_time, by_time[1:], strict=False):
        previous[later.n] = earlier.at
    lines = []
    for event in reversed(by_time):
        icon, tone = _look(event)
        late = (event.received_at - event.at).total_seconds()
        before = previous.get(event.n)
        lines.append(
            TimelineLine(
                event=event,
                icon=icon,
                tone=tone,
                delta_seconds=(event.at - before).total_seconds() if before is not None else None,
                late_seconds=late if late >= LATE_SECONDS else None,
            )
        )
    return lines


def verdict_lines(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The stored verdict as the page reads it: category, culprit, confidence, rule and evidence lines."""
    evidence = verdict.get("evidence") or verdict.get("lines") or []
    return {
        "category": verdict.get("category", ""),
        "culprit": verdict.get("culprit") or verdict.get("worker") or "",
        "confidence": verdict.get("confidence"),
        "rule": verdict.get("rule", ""),
        "reason": verdict.get("reason") or verdict.get("text") or "",
        "evidence": [str(line) for line in evidence] if isinstance(evidence, list | tuple) else [str(evidence)],
    }


def _action_line(action: Action, now: datetime) -> ActionLine:
    waits = action.state in (ActionState.PLANNED, ActionState.READY)
    in_future = action.not_before_at is not None and action.not_before_at > now
    return ActionLine(
        action=action,
        can_cancel=(waits or action.state == ActionState.AWAITING_APPROVAL) and not action.is_cancel_asked,
        can_do_now=waits and in_future,
        waits_until=action.not_before_at if waits and in_future else None,
    )


def _is_shown(event: TimelineEvent, show: str) -> bool:
    if show == "all":
        return True
    if show == "people":
        return event.actor_kind == "person"
    is_evidence = event.actor_kind in _EVIDENCE_ACTORS
    return is_evidence if show == "evidence" else not is_evidence and event.actor_kind != "person"


def _look(event: TimelineEvent) -> tuple[str, str]:
    kind = event.kind
    for words, look in _LOOKS:
        if any(word in kind for word in words):
            return look
    return ("person", "held") if event.actor_kind == "person" else ("dot", "quiet")


# By parts of the kind's name, first hit wins.
_LOOKS: tuple[tuple[tuple[str, ...], tuple[str, str]], ...] = (
    (("acknowledged", "person", "asked"), ("person", "held")),
    (("refused", "cancelled"), ("barred", "held")),
    (("resolved", "steady", "recovered", "first_step", "finished", "done"), ("check", "good")),
    (("failed", "failure", "error", "ended", "lost", "counted"), ("triangle", "critical")),
    (("decided", "decision", "phase", "state"), ("branch", "accent")),
    (("action", "order", "sent", "stop"), ("bolt", "busy")),
    (("started", "restored", "rebuilt", "mark", "restart"), ("arc", "busy")),
    (("waiting", "backoff", "held"), ("pause", "warn")),
    (("notice",), ("note", "held")),
)


def _attempts(incident: Incident) -> dict[str, Any]:
    job: Job | None = incident.job
    rows = jobs.attempts_of_incident(job, incident.uid, around=incident.attempt) if job is not None else []
    return {
        "attempts": rows,
        "attempt_incidents": selectors.incidents_by_uid(row.attempt.incident_uid for row in rows),
    }


def _audit(incident: Incident, before: int | None) -> dict[str, Any]:
    decisions = selectors.decisions_of(incident, before=before)
    targets = [str(incident), *(f"{incident} {action}" for action in incident.actions.all()[:100])]
    entries = AuditEntry.objects.filter(target_kind__in=["incident", "action"], target__in=targets)
    return {
        "decisions": decisions,
        "decisions_before": decisions[-1].n if len(decisions) == 50 else None,
        "uses": selectors.uses_of_decisions(incident.subject, [decision.n for decision in decisions]),
        "entries": list(entries.order_by("-id")[:100]),
    }


def _log_link(incident: Incident) -> str:
    """The address of the logs in the log backend, from the template in the settings; empty without one."""
    if not settings.LOG_LINK_TEMPLATE or incident.job is None:
        return ""
    at = incident.failed_at or incident.opened_at
    try:
        return str(
            settings.LOG_LINK_TEMPLATE.format(
                namespace=incident.job.namespace,
                job=incident.job.name,
                cluster=incident.job.cluster.slug,
                start=int(at.timestamp()) - 300,
                end=int((incident.resolved_at or at).timestamp()) + 300,
            )
        )
    except (KeyError, IndexError, ValueError):
        return ""
