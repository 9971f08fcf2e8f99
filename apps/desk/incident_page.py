"""What the page of one incident shows, put together from selectors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from django.conf import settings

from apps.access.models import AuditEntry
from apps.desk.next_step import next_step
from apps.desk.silence import silences
from apps.desk.stages import concerned_nodes, stage_bar
from apps.desk.words import ACTOR_WORDS, Mark, mark_for
from apps.incidents import selectors
from apps.incidents.models import Action, Incident, TimelineEvent
from apps.jobs import selectors as jobs
from apps.jobs.models import Job
from recovery.lifecycle import OPEN_INCIDENT_STATES, ActionKind, ActionState, IncidentState

TABS = ("overview", "attempts", "audit")
SHOWS = ("all", "actions", "evidence", "people")
LATE_SECONDS = 5.0  # an event known later than that says so
_EVIDENCE_ACTORS = ("agent", "watch", "hook", "alertmanager", "prometheus")
_PEOPLE = ("person", "token")  # a program acts for people
#: A cited line as verdicts are stored: its text, the rule where one cites it, and its weight.
_CITED = re.compile(r"(?P<text>.*) \((?:(?P<rule>[^\s(),]+), )?weight (?P<weight>\d\.\d\d)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line: the event, its look, seconds since the one before to two places, and how late it was known."""

    event: TimelineEvent
    icon: str
    tone: str
    who: str
    delta_seconds: float | None
    late_seconds: float | None
    text: str
    others: tuple[TimelineEvent, ...] = ()  # neighbours that say the same of other workers, newest first


@dataclass(frozen=True, slots=True)
class ActionLine:
    """An action and what a person can do about it."""

    action: Action
    mark: Mark
    can_cancel: bool
    can_do_now: bool
    needs_yes: bool  # it begins when a person says so, and not by time
    waits_until: datetime | None
    price_until: datetime | None = None  # the choice that was made by price is made anew then

    @property
    def dialog(self) -> str:
        """Name of the dialog that asks before it is cancelled."""
        return f"cancel-{self.action.pk}"


@dataclass(frozen=True, slots=True)
class CitedLine:
    """What speaks for or against a verdict. ``weight`` is "" where none was stored; of several rules the largest."""

    text: str
    weight: str
    rules: tuple[str, ...]


def incident_page(
    incident: Incident,
    *,
    tenant_ids: Sequence[int] | None,
    tab: str,
    show: str,
    before: int | None,
    now: datetime,
    with_idle: bool = False,
) -> dict[str, Any]:
    """Context of ``incidents/incident_detail.html``. An unknown tab or filter is the first of its kind.

    ``with_idle``: the audit lists the decisions that changed nothing too.
    """
    tab = tab if tab in TABS else TABS[0]
    show = show if show in SHOWS else SHOWS[0]
    actions = selectors.actions_of(incident)
    open_actions = [action for action in reversed(actions) if action.state in selectors.OPEN_ACTION_WORDS]
    needs_person = incident.state == IncidentState.NEEDS_PERSON
    notices = selectors.notices_of(incident) if needs_person or tab == "overview" else []
    is_open = incident.state in OPEN_INCIDENT_STATES
    question = selectors.question_of(incident, notices)
    silent = (
        silences(jobs.silent_jobs(None, job_id=incident.job_id))
        if is_open and incident.job is not None
        else []
    )
    lines = [_action_line(action, now) for action in actions]
    context: dict[str, Any] = {
        "incident": incident,
        "tab": tab,
        "show": show,
        "is_open": is_open,
        "silences": silent,
        "next": next_step(
            incident,
            open_actions,
            now,
            asked=_sentence(question.text, incident.job) if question is not None else "",
            silent=silent[0].who if silent else "",
        ),
        "needed": next((line for line in lines if line.needs_yes), None) if is_open else None,
        "actions": lines,
        "running": next((action for action in open_actions if action.state == ActionState.RUNNING), None),
        "without_a_person": not is_open and not selectors.had_a_person(incident, actions),
    }
    if tab == "attempts":
        return context | _attempts(incident)
    if tab == "audit":
        return context | _audit(incident, actions, before, with_idle=with_idle)
    events, has_older = selectors.timeline_of(incident, before=before)
    return context | {
        "lines": timeline_lines([event for event in events if _is_shown(event, show)]),
        "older_before": events[-1].n if has_older else None,
        "shows": SHOWS,
        **stage_bar(incident, selectors.stage_events(incident), now),
        "touched_nodes": concerned_nodes(incident),
        "verdict": verdict_lines(incident.verdict),
        "decision": selectors.last_decision(incident),
        "causes": selectors.causes_of(incident),
        "notices": [notice for notice in notices if question is None or notice.text != question.text],
        "log_tails": selectors.log_tails_of(incident),
        "children": list(incident.children.only("id", "title", "state", "tenant_id")[:20]),
        "log_link": _log_link(incident),
    }


def _sentence(text: str, job: Job | None) -> str:
    """A text as a sentence begins; the job's name stays as it is."""
    return text if job is not None and text.startswith(job.name) else text[:1].upper() + text[1:]


def timeline_lines(events: Sequence[TimelineEvent]) -> list[TimelineLine]:
    """Lines of events given newest first; each delta reaches back to the event that happened before it."""
    by_time = sorted(events, key=lambda event: (event.at, event.n))
    previous: dict[int, datetime] = {}
    for earlier, later in pairwise(by_time):
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
                who=who(event),
                delta_seconds=round((event.at - before).total_seconds(), 2) if before is not None else None,
                late_seconds=late if late >= LATE_SECONDS else None,
                text=event.text,
            )
        )
    return collapse(lines)


def collapse(lines: Sequence[TimelineLine]) -> list[TimelineLine]:
    """Join lines that say the same of different workers. Workers take turns; anybody else's line keeps them apart."""
    joined: list[TimelineLine] = []
    places: dict[str, int] = {}  # of what workers said since somebody else spoke
    for line in lines:
        rest = "" if line.late_seconds else _without_worker(line.event)
        if not rest:
            places = {}
        elif rest in places:
            joined[places[rest]] = _together(joined[places[rest]], line, rest)
            continue
        else:
            places[rest] = len(joined)
        joined.append(line)
    return joined


def _together(newest: TimelineLine, older: TimelineLine, rest: str) -> TimelineLine:
    events = (newest.event, *newest.others, older.event)
    workers = {(event.role, event.index) for event in events}
    return replace(
        newest,
        text=f"{len(workers)} workers {_plural(rest)}" if len(workers) > 1 else newest.event.text,
        who=ACTOR_WORDS["agent"]
        + ("s" if len(workers) > 1 else f" of {newest.event.role} {newest.event.index}"),
        delta_seconds=older.delta_seconds,
        others=events[1:],
    )


def _plural(rest: str) -> str:
    """What one worker did, said of several: ``steps steadily`` becomes ``step steadily``."""
    said = rest.replace(" its ", " their ")
    return "step " + said.removeprefix("steps ") if said.startswith("steps ") else said


def _without_worker(event: TimelineEvent) -> str:
    """What an agent's line says without its worker's name; empty for other lines."""
    name = f"{event.role} {event.index} "
    if event.actor_kind != "agent" or event.index is None or not event.text.lower().startswith(name.lower()):
        return ""
    return event.text[len(name) :]


def verdict_lines(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The stored verdict (recovery.culprit.to_stored) as the page reads it; an empty one is not judged yet."""
    return {
        "category": verdict.get("category", ""),
        "culprit": verdict.get("culprit", ""),
        "confidence": verdict.get("confidence"),
        "rule": verdict.get("rule", ""),
        "reason": verdict.get("reason", ""),
        "evidence": cited_lines(verdict.get("evidence", ())),
        "contradicts": cited_lines(verdict.get("contradicts", ())),
        "checks_clean": verdict.get("checks_clean", 0),
        "checks_seen": verdict.get("checks_seen", 0),
        "diagnosis": verdict.get("diagnosis") or {},
    }


def cited_lines(stored: Iterable[str]) -> list[CitedLine]:
    """Cited lines, heaviest first; a line that several rules cite stands once, with all of them."""
    found: dict[str, CitedLine] = {}
    for line in stored:
        parts = _CITED.fullmatch(line)
        text, rule, weight = parts.group("text", "rule", "weight") if parts else (line, None, "")
        known = found.get(text) or CitedLine(text, "", ())
        rules = known.rules if rule is None or rule in known.rules else (*known.rules, rule)
        found[text] = CitedLine(text, max(known.weight, weight), rules)
    return sorted(found.values(), key=lambda each: each.weight, reverse=True)


def who(event: TimelineEvent) -> str:
    """Who stands behind an event, in words: ``agent of worker 3``, ``policy, ladder-l1``, ``mei.lin``."""
    if event.actor_kind == "person":
        return event.actor or "a person"
    if event.actor_kind == "token":
        return f"token {event.actor}"
    word = ACTOR_WORDS.get(event.actor_kind, event.actor_kind)
    actor = event.actor or (
        f"{event.role} {event.index}" if event.index is not None and event.actor_kind == "agent" else ""
    )
    if not actor or actor in (word, event.actor_kind):
        return word
    return f"{word} of {actor}" if event.actor_kind == "agent" else f"{word}, {actor}"


def _action_line(action: Action, now: datetime) -> ActionLine:
    waits = action.state in (ActionState.PLANNED, ActionState.READY)
    needs_yes = action.state == ActionState.PLANNED
    is_asked = action.kind == ActionKind.ASK_PERSON and action.state == ActionState.DONE
    in_future = not needs_yes and action.not_before_at is not None and action.not_before_at > now
    return ActionLine(
        action=action,
        # A question is done when it was delivered, which is no answer to it.
        mark=Mark("asked", "person", "held") if is_asked else mark_for("action", action.state),
        needs_yes=needs_yes and not action.is_cancel_asked,
        can_cancel=(waits or action.state == ActionState.AWAITING_APPROVAL) and not action.is_cancel_asked,
        can_do_now=needs_yes or (waits and in_future),
        waits_until=action.not_before_at if waits and in_future else None,
        price_until=_moment(action.price.get("deadline")),
    )


def _moment(text: object) -> datetime | None:
    """A stored moment, None where there is none."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _is_shown(event: TimelineEvent, show: str) -> bool:
    if show == "all":
        return True
    if show == "people":
        return event.actor_kind in _PEOPLE
    is_evidence = event.actor_kind in _EVIDENCE_ACTORS
    return is_evidence if show == "evidence" else not is_evidence and event.actor_kind not in _PEOPLE


def _look(event: TimelineEvent) -> tuple[str, str]:
    if event.actor_kind in _PEOPLE:
        return "person", "held"
    return _LOOKS.get(event.kind, ("dot", "quiet"))


# Icon and tone by the kind of an event; others are a quiet dot.
_LOOKS: dict[str, tuple[str, str]] = {
    "failure_seen": ("triangle", "critical"),
    "pod_gone": ("triangle", "critical"),
    "failure_counted": ("diamond", "warn"),
    "count_taken_back": ("diamond", "good"),
    "cause_known": ("diamond", "quiet"),
    "agent_silent": ("ring", "warn"),
    "agent_back": ("dot", "good"),
    "evidence": ("dot", "quiet"),
    "phase_changed": ("branch", "accent"),
    "state_changed": ("branch", "accent"),
    "decided": ("branch", "accent"),
    "action_refused": ("barred", "held"),
    "order_written": ("bolt", "busy"),
    "worker_stopped": ("square", "quiet"),
    "boot_checked": ("check", "quiet"),
    "enrolled": ("dot", "busy"),
    "process_started": ("play", "busy"),
    "restored": ("arc", "busy"),
    "rebuilt": ("arc", "busy"),
    "first_step": ("check", "good"),
    "stepping": ("check", "good"),
    "checkpoint": ("check", "quiet"),
    "worker_finished": ("check", "good"),
    "incident_resolved": ("check", "good"),
    "stop_asked": ("square", "held"),
    "restart_asked": ("play", "held"),
    "incident_opened": ("triangle", "critical"),
    "action_sent": ("bolt", "busy"),
    "action_ready": ("bolt", "busy"),
    "action_done": ("check", "good"),
    "action_failed": ("cross", "critical"),
    "action_unknown": ("ring", "warn"),
    "action_cancelled": ("square", "held"),
    "action_superseded": ("square", "quiet"),
    "waiting": ("pause", "warn"),
    "capacity_missing": ("pause", "warn"),
    "capacity_back": ("check", "good"),
    "barrier_expired": ("barred", "warn"),
    "world_running": ("play", "quiet"),
    "job_suspended": ("pause", "held"),
    "job_resumed": ("play", "busy"),
    "job_deleted": ("cross", "held"),
    "job_ended": ("square", "held"),
}


def _attempts(incident: Incident) -> dict[str, Any]:
    job: Job | None = incident.job
    rows = jobs.attempts_of_incident(job, incident.uid, around=incident.attempt) if job is not None else []
    return {
        "attempts": rows,
        "attempt_incidents": selectors.incidents_by_uid(row.attempt.incident_uid for row in rows),
    }


def _audit(
    incident: Incident, actions: Sequence[Action], before: int | None, *, with_idle: bool
) -> dict[str, Any]:
    decisions = selectors.decisions_of(incident, before=before, with_idle=with_idle)
    targets = [str(incident), *(f"{incident} {action}" for action in actions)]
    entries = AuditEntry.objects.filter(target_kind__in=["incident", "action"], target__in=targets)
    return {
        "decisions": decisions,
        "idle_count": selectors.idle_decisions(incident),
        "with_idle": with_idle,
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
