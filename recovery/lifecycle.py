"""Life cycles of incidents, actions and requests as tables. Source: DOMAIN section 5."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from recovery.errors import InvalidTransition


class IncidentState(StrEnum):
    """States of an incident. Open for the unique index = neither resolved nor closed."""

    SUSPECTED = "suspected"
    OPEN = "open"
    WAITING = "waiting"
    RECOVERING = "recovering"
    WATCHING = "watching"
    NEEDS_PERSON = "needs_person"
    RESOLVED = "resolved"
    CLOSED = "closed"


OPEN_INCIDENT_STATES = frozenset(set(IncidentState) - {IncidentState.RESOLVED, IncidentState.CLOSED})


class WaitingFor(StrEnum):
    """What a waiting incident waits for."""

    APPROVAL = "approval"
    GUARD = "guard"
    CAPACITY = "capacity"
    QUEUE = "queue"
    SAFE_POINT = "safe_point"
    BACKOFF = "backoff"


class Resolution(StrEnum):
    """Why an incident is resolved."""

    RECOVERED = "recovered"
    JOB_ENDED = "job_ended"
    FALSE_ALARM = "false_alarm"
    BY_PERSON = "by_person"
    MERGED = "merged"
    EXPIRED = "expired"


class Severity(StrEnum):
    """How bad it is, highest first."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class ActionKind(StrEnum):
    """One thing to do. INSTALLED_ACTIONS says which of them this version can carry out."""

    RESTART_PROCESS = "restart_process"
    RESTART_CONTAINER = "restart_container"
    RUN_CHECK = "run_check"
    COLLECT_STACKS = "collect_stacks"
    MARK_SLOW = "mark_slow"
    MARK_HANG = "mark_hang"
    EVICT_WORKER = "evict_worker"
    HOLD_NODE = "hold_node"
    RELEASE_NODE = "release_node"
    FORCE_VACATE = "force_vacate"
    REBOOT_NODE = "reboot_node"
    RESIZE_JOB = "resize_job"
    RESUME_JOB = "resume_job"
    STOP_JOB = "stop_job"
    WAIT_SHARED = "wait_shared"
    ASK_PERSON = "ask_person"


INSTALLED_ACTIONS = frozenset({ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB, ActionKind.ASK_PERSON})


class ActionState(StrEnum):
    """States of an action; the last six are ends."""

    PLANNED = "planned"
    AWAITING_APPROVAL = "awaiting_approval"
    READY = "ready"
    RUNNING = "running"
    VERIFYING = "verifying"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


ENDED_ACTION_STATES = frozenset(
    {
        ActionState.DONE,
        ActionState.FAILED,
        ActionState.UNKNOWN,
        ActionState.REFUSED,
        ActionState.CANCELLED,
        ActionState.SUPERSEDED,
    }
)
OPEN_ACTION_STATES = frozenset(set(ActionState) - ENDED_ACTION_STATES)


class TryOutcome(StrEnum):
    """How one try of an action ended."""

    SENT = "sent"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    AMBIGUOUS = "ambiguous"


class RequestState(StrEnum):
    """States of a request (approval)."""

    PENDING = "pending"
    APPROVED = "approved"
    EXECUTING = "executing"
    EXECUTED = "executed"
    DENIED = "denied"
    EXPIRED = "expired"
    LAPSED = "lapsed"
    WITHDRAWN = "withdrawn"
    VOID = "void"
    FAILED = "failed"


# Tables. A state that is missing as a key has no way out.

INCIDENT_TABLE: Mapping[IncidentState, frozenset[IncidentState]] = {
    IncidentState.SUSPECTED: frozenset({IncidentState.OPEN, IncidentState.RESOLVED}),
    IncidentState.OPEN: frozenset(
        {
            IncidentState.WAITING,
            IncidentState.RECOVERING,
            IncidentState.NEEDS_PERSON,
            IncidentState.RESOLVED,
        }
    ),
    IncidentState.WAITING: frozenset(
        {
            IncidentState.RECOVERING,
            IncidentState.OPEN,
            IncidentState.NEEDS_PERSON,
            IncidentState.RESOLVED,
        }
    ),
    IncidentState.RECOVERING: frozenset(
        {
            IncidentState.WATCHING,
            IncidentState.OPEN,
            IncidentState.WAITING,
            IncidentState.NEEDS_PERSON,
            IncidentState.RESOLVED,
        }
    ),
    IncidentState.WATCHING: frozenset({IncidentState.RESOLVED, IncidentState.OPEN}),
    IncidentState.NEEDS_PERSON: frozenset({IncidentState.OPEN, IncidentState.RESOLVED}),
    IncidentState.RESOLVED: frozenset({IncidentState.OPEN, IncidentState.CLOSED}),
}

ACTION_TABLE: Mapping[ActionState, frozenset[ActionState]] = {
    ActionState.PLANNED: frozenset(
        {
            ActionState.AWAITING_APPROVAL,
            ActionState.READY,
            ActionState.REFUSED,
            ActionState.CANCELLED,
            ActionState.SUPERSEDED,
        }
    ),
    ActionState.AWAITING_APPROVAL: frozenset(
        {ActionState.READY, ActionState.REFUSED, ActionState.CANCELLED, ActionState.SUPERSEDED}
    ),
    ActionState.READY: frozenset(
        {
            ActionState.RUNNING,
            ActionState.READY,  # another time
            ActionState.FAILED,  # its deadline passed before anybody could try
            ActionState.REFUSED,
            ActionState.CANCELLED,
            ActionState.SUPERSEDED,
        }
    ),
    ActionState.RUNNING: frozenset(
        {
            ActionState.VERIFYING,
            ActionState.READY,  # the try was retryable, or its lease ran out
            ActionState.DONE,  # found: somebody else had made the effect
            ActionState.FAILED,
            ActionState.UNKNOWN,
            ActionState.REFUSED,  # the cluster says no, for good
            ActionState.SUPERSEDED,  # outranked before anything was sent
        }
    ),
    ActionState.VERIFYING: frozenset(
        {
            ActionState.VERIFYING,  # the order set that it began is known now
            ActionState.DONE,
            ActionState.READY,  # not seen by the deadline, safe to repeat
            ActionState.FAILED,
            ActionState.UNKNOWN,  # not seen by the deadline, harmful
            ActionState.SUPERSEDED,
        }
    ),
}

REQUEST_TABLE: Mapping[RequestState, frozenset[RequestState]] = {
    RequestState.PENDING: frozenset(
        {
            RequestState.APPROVED,
            RequestState.DENIED,
            RequestState.EXPIRED,
            RequestState.WITHDRAWN,
            RequestState.VOID,
        }
    ),
    RequestState.APPROVED: frozenset(
        {
            RequestState.PENDING,  # evidence changed materially: the yeses are reset
            RequestState.EXECUTING,
            RequestState.LAPSED,
            RequestState.WITHDRAWN,
            RequestState.VOID,
        }
    ),
    RequestState.EXECUTING: frozenset({RequestState.EXECUTED, RequestState.FAILED}),
}


def advance_incident(state: IncidentState, to: IncidentState) -> IncidentState:
    """The new state of an incident. Raises InvalidTransition when its table has no such way."""
    return _advance("incident", INCIDENT_TABLE, state, to)


def advance_action(state: ActionState, to: ActionState) -> ActionState:
    """The new state of an action. Raises InvalidTransition when its table has no such way."""
    return _advance("action", ACTION_TABLE, state, to)


def advance_request(state: RequestState, to: RequestState) -> RequestState:
    """The new state of a request. Raises InvalidTransition when its table has no such way."""
    return _advance("request", REQUEST_TABLE, state, to)


def _advance[S: StrEnum](what: str, table: Mapping[S, frozenset[S]], state: S, to: S) -> S:
    ways = table.get(state, frozenset())
    if to in ways:
        return to
    if not ways:
        raise InvalidTransition(f"this {what} is {state}, which is final; it cannot become {to}")
    choices = ", ".join(sorted(ways))
    raise InvalidTransition(f"this {what} is {state} and cannot become {to}, only {choices}")


def incident_path(state: IncidentState, to: IncidentState) -> tuple[IncidentState, ...]:
    """The shortest way through the table, without the state it begins in; empty when it is there already.

    Only through open states: an incident is never resolved on the way to something else, except that a
    resolved one reopens first. Raises InvalidTransition when there is no way.
    """
    if state == to:
        return ()
    ways: deque[tuple[IncidentState, ...]] = deque([(state,)])
    seen = {state}
    while ways:
        way = ways.popleft()
        for following in sorted(INCIDENT_TABLE.get(way[-1], frozenset()), key=list(IncidentState).index):
            if following == to:
                return (*way[1:], to)
            if following in OPEN_INCIDENT_STATES and following not in seen:
                seen.add(following)
                ways.append((*way, following))
    raise InvalidTransition(f"this incident is {state} and cannot become {to}")


@dataclass(frozen=True, slots=True)
class ActionRule:
    """What is known about a kind of action: its witness, its deadline in words, and who may repeat it."""

    kind: ActionKind
    done_when_seen: str
    deadline: str
    is_harmful: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether this version can carry it out."""
        return self.kind in INSTALLED_ACTIONS

    @property
    def repeat(self) -> str:
        """Whether a machine may try it again when the outcome is not known."""
        return "harmful: never by machine" if self.is_harmful else "safe"


ACTION_RULES: Mapping[ActionKind, ActionRule] = {
    rule.kind: rule
    for rule in (
        ActionRule(
            ActionKind.RESTART_PROCESS,
            "every agent reports its new process in that sequence",
            "30 s + start",
        ),
        ActionRule(
            ActionKind.RESTART_CONTAINER, "new incarnation enrolled", "5 min + pull + kubelet's back-off"
        ),
        ActionRule(ActionKind.RUN_CHECK, "result stored", "budget + 10 s"),
        ActionRule(ActionKind.COLLECT_STACKS, "result stored", "budget + 10 s"),
        ActionRule(ActionKind.MARK_SLOW, "row and annotation read back", "30 s"),
        ActionRule(ActionKind.MARK_HANG, "row and annotation read back", "30 s"),
        ActionRule(ActionKind.EVICT_WORKER, "pod gone or another uid", 'grace + 60 s, then "blocked by"'),
        ActionRule(ActionKind.HOLD_NODE, "cordon, taint and annotation in the watch", "30 s"),
        ActionRule(ActionKind.RELEASE_NODE, "our taint gone; cordon gone if ours alone", "30 s"),
        ActionRule(ActionKind.FORCE_VACATE, "pods gone", "15 min", is_harmful=True),
        ActionRule(ActionKind.REBOOT_NODE, "boot id changed", "15 min", is_harmful=True),
        ActionRule(ActionKind.RESIZE_JOB, "controller's status", "10 min"),
        ActionRule(ActionKind.RESUME_JOB, "controller's status", "10 min"),
        ActionRule(ActionKind.STOP_JOB, "log tails stored, then suspended, no pod running", "5 min"),
        ActionRule(ActionKind.WAIT_SHARED, "queue opened (looked at each minute)", "none"),
        ActionRule(ActionKind.ASK_PERSON, "notice delivered", "1 h"),
    )
}


HARMFUL_ACTIONS = frozenset(kind for kind, rule in ACTION_RULES.items() if rule.is_harmful)


def markdown() -> str:
    """The tables as Markdown, for the docs."""
    lines = []
    for title, table in (
        ("Incident", INCIDENT_TABLE),
        ("Action", ACTION_TABLE),
        ("Request", REQUEST_TABLE),
    ):
        lines += [f"### {title}", "", "| from | to |", "|---|---|"]
        lines += [f"| {state} | {', '.join(sorted(ways))} |" for state, ways in table.items()]
        lines.append("")
    lines += ["### Kinds of action", "", "| kind | done when seen | deadline | repeat |", "|---|---|---|---|"]
    lines += [
        f"| {rule.kind} | {rule.done_when_seen} | {rule.deadline} | {rule.repeat} |"
        for rule in ACTION_RULES.values()
    ]
    return "\n".join(lines) + "\n"
