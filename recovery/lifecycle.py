"""Life cycles of incidents, actions and requests as tables. Source: DOMAIN section 5."""

from __future__ import annotations

from enum import StrEnum


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
HARMFUL_ACTIONS = frozenset({ActionKind.FORCE_VACATE, ActionKind.REBOOT_NODE})


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
