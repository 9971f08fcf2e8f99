"""What was observed: one frozen record a report. Source: DOMAIN sections 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class SubjectKind(StrEnum):
    """What can have an incident and a lock of its own."""

    JOB = "job"
    NODE = "node"
    SHARED = "shared"
    CLUSTER = "cluster"
    DESK = "desk"


class Source(StrEnum):
    """Who saw it. ``(source, source key)`` is unique."""

    AGENT = "agent"
    WATCH = "watch"
    HOOK = "hook"
    ALERTMANAGER = "alertmanager"
    PROMETHEUS = "prometheus"
    DESK = "desk"
    PERSON = "person"
    API = "api"


class SignalKind(StrEnum):
    """What a signal tells. The comment names who may send it and what ``data`` holds."""

    ENROLLED = "enrolled"  # agent: an incarnation took up contact; {"replaces": incarnation id or null}
    ACK = "ack"  # agent: wire ACK
    ERROR = "error"  # agent: wire Error
    FINISH = "finish"  # agent: wire Finish
    MARK = "mark"  # agent: wire Mark (started, restored, rebuilt, first_step, steady)
    HANG = "hang"  # agent: wire Hang; {"confirmed": bool, …}
    QUIT = "quit"  # agent ctl, API or person: {"reason", "at_safe_point", "by"}
    CHECKPOINT = "checkpoint"  # agent or hook: {"step", "path", "state", …}
    AGENT_SILENT = "agent_silent"  # desk: no heartbeat for the bound; evidence, never an end
    AGENT_BACK = "agent_back"  # desk: heartbeats again
    JOB_KNOWN = "job_known"  # watch: the job was seen first; {"suspended": bool}
    # watch: the last pod of the world is Running (the barrier's clock starts); each time it is complete again
    WORLD_RUNNING = "world_running"
    # watch or hook: {"pod_uid", "container", "restart", "cause": EndCause, "exit_code", "signal", "reason"}
    INCARNATION_ENDED = "incarnation_ended"
    POD_WAITING = "pod_waiting"  # watch: a pod of the job cannot be placed; {"reason", "message"}
    CAPACITY_BACK = "capacity_back"  # watch: it is placed
    JOB_SUSPENDED = "job_suspended"  # watch: {"by"}
    JOB_RESUMED = "job_resumed"  # watch: {"by"}
    JOB_DELETED = "job_deleted"  # watch
    # watch: the controller says Complete or Failed; {"condition", "reason", "message"}
    JOB_ENDED = "job_ended"
    PROTECTION = "protection"  # watch or person: {"protected": bool, "reason"}
    BARRIER_EXPIRED = "barrier_expired"  # desk: not every agent enrolled in time
    MAX_RETRY_CHANGED = "max_retry_changed"  # watch or person: {"max_retry"}
    NODE_CONDITION = "node_condition"  # watch: {"type", "status", "reason", "message"}
    NODE_EVENT = "node_event"  # watch
    ALERT = "alert"  # alertmanager: {"labels", "annotations", "status"}
    LOG = "log"  # any: {"lines"}
    METRIC = "metric"  # prometheus: {"name", "value"}
    # desk: the executor claimed this action and sends it; {"action_uid", "try", "lease"}
    ACTION_GO = "action_go"
    ACTION_ENDED = "action_ended"  # desk: {"action_uid", "state", "detail"}
    LOOK = "look"  # desk: the time to look again has come
    PERSON_RESOLVE = "person_resolve"  # person: {"by", "reason"}
    PERSON_CANCEL = "person_cancel"  # person: {"by", "action_uid" or null, "reason"}
    # person: {"by", "action_uid"}, or without one what is wanted now, {"by", "action": "restart_process", "reason"}
    PERSON_DO_NOW = "person_do_now"


class EndCause(StrEnum):
    """Why an incarnation ended. Only the first group counts (DOMAIN 3, "by cause")."""

    CRASHED = "crashed"
    DELETED = "deleted"  # somebody deleted the pod
    NODE_LOST = "node_lost"
    OUT_OF_MEMORY = "out_of_memory"
    REPLACED = "replaced"  # a newer agent of the same worker enrolled
    PREEMPTED = "preempted"
    MAINTENANCE = "maintenance"
    EVICTED_BY_DESK = "evicted_by_desk"
    EVICTED_AS_SLOW = "evicted_as_slow"  # by somebody, from a machine that people were told is slow
    ORDERED = "ordered"
    STOPPED_BY_USER = "stopped_by_user"
    COMPLETED = "completed"  # exit 0

    @property
    def counts(self) -> bool:
        """Whether an end for this cause may count as a failure of the job."""
        return self in _COUNTING


_COUNTING = frozenset(
    {EndCause.CRASHED, EndCause.DELETED, EndCause.NODE_LOST, EndCause.OUT_OF_MEMORY, EndCause.REPLACED}
)


class OnlyWitness(StrEnum):
    """Who alone has told of a failure whose cause is therefore open: it may be one that never counts."""

    SYMPTOM = "symptom"  # a survivor lost contact with its peers: one of them is gone
    SUCCESSOR = "successor"  # the next incarnation is there: the last one is gone


class Use(StrEnum):
    """What became of a drained signal."""

    USED = "used"
    LATE = "late"  # of an attempt or phase that is over; kept as evidence, changes nothing
    STALE = "stale"  # of a fenced incarnation, or outranked by a newer fact
    DUPLICATE = "duplicate"
    CONTEXT = "context"  # evidence that joined an incident, counts nothing
    REFUSED = "refused"  # cannot be, e.g. a sequence from the future


@dataclass(frozen=True, slots=True, order=True)
class WorkerKey:
    """A place in a job."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


@dataclass(frozen=True, slots=True)
class Signal:
    """One report, as the decision sees it.

    ``seen_at`` is the source's time corrected by its measured offset, ``received_at`` the database's
    (both aware, UTC). ``sequence`` and ``phase`` are set on agents' messages, ``incarnation`` (row id)
    on everything that speaks of one life of a worker.
    """

    id: int
    source: Source
    kind: SignalKind
    seen_at: datetime
    received_at: datetime
    data: Mapping[str, Any] = field(default_factory=dict)
    worker: WorkerKey | None = None
    incarnation: int | None = None
    sequence: int | None = None
    phase: str | None = None  # wire phase: bootcheck | command | troubleshoot
    offset_uncertainty_seconds: float = 0.0

    @property
    def step(self) -> int | None:
        """The training step that it tells of."""
        return whole_number(self.data.get("step"))

    @property
    def by(self) -> str:
        """Who did it, where it tells of a person's or controller's deed."""
        return str(self.data.get("by") or "somebody")


def whole_number(value: object) -> int | None:
    """A whole number as told, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
