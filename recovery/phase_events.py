"""Events that move a job through its phases. Source: DOMAIN section 3.

They are facts, already placed: which incarnation or attempt a report belongs to is decided before
(recovery.fold), because that needs clocks; what follows from it is decided by the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.phase_state import MessagePhase, MessageType
from recovery.signals import EndCause, WorkerKey


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class WorkerEvent(Event):
    """Base of events about one worker."""

    worker: WorkerKey


@dataclass(frozen=True, slots=True)
class Enrolled(WorkerEvent):
    """A new incarnation took up contact. If the last one was still enrolled, it is replaced by this.

    ``by_desk``: we had ordered the end of the last one.
    """

    by_desk: bool = False


@dataclass(frozen=True, slots=True)
class IncarnationEnded(WorkerEvent):
    """An incarnation (pod, container or agent) has ended.

    ``in_attempt``: it was part of the present attempt and ended in it. ``is_current``: it is the
    worker's newest one; false for a late report of one that was replaced.
    """

    cause: EndCause
    in_attempt: bool = True
    by_desk: bool = False
    is_current: bool = True


@dataclass(frozen=True, slots=True)
class Message(WorkerEvent):
    """An agent's message. ``passed`` false: a check failed that speaks against the hardware.

    ``reason`` of an Error while training: the category, or how the process ended where nothing explains it.
    ``is_symptom``: an Error that tells only of lost peers, so that why the attempt ended is open.
    """

    type: MessageType
    phase: MessagePhase
    sequence: int
    passed: bool = True
    reason: str = ""
    is_symptom: bool = False


@dataclass(frozen=True, slots=True)
class CauseKnown(WorkerEvent):
    """Why ``attempt`` ended is known, or is not waited for any longer; ``worker`` was charged for it.

    ``counts`` false: by its cause it never counts, so the charge is taken back.
    """

    attempt: int
    counts: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HangSuspected(WorkerEvent):
    """No progress for too long; the agent is not sure."""

    sequence: int


@dataclass(frozen=True, slots=True)
class HangConfirmed(WorkerEvent):
    """No progress, confirmed."""

    sequence: int


@dataclass(frozen=True, slots=True)
class RecoveryGo(Event):
    """The recovery that the ladder chose is carried out now: start all together."""


@dataclass(frozen=True, slots=True)
class CapacityMissing(Event):
    """A pod of the job cannot be placed."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CapacityBack(Event):
    """All pods of the job are placed."""


@dataclass(frozen=True, slots=True)
class Quit(Event):
    """A request for Stopped: now, or at the next safe point."""

    at_safe_point: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SafePoint(Event):
    """A checkpoint was committed a moment ago: stopping now loses least."""


@dataclass(frozen=True, slots=True)
class JobKnown(Event):
    """The job was seen for the first time."""

    suspended: bool = False


@dataclass(frozen=True, slots=True)
class Suspended(Event):
    """The job was suspended, by a user, a queue or us."""

    by: str = ""


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """The job is no longer suspended."""

    by: str = ""


@dataclass(frozen=True, slots=True)
class Deleted(Event):
    """The job object was deleted."""


@dataclass(frozen=True, slots=True)
class ControllerEnded(Event):
    """The controller says that the job is Complete or Failed."""

    succeeded: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorldChanged(Event):
    """The places of the job are now these (sorted, not empty)."""

    workers: tuple[WorkerKey, ...]


@dataclass(frozen=True, slots=True)
class MaxRetryChanged(Event):
    """The user's limit is now this."""

    max_retry: int


@dataclass(frozen=True, slots=True)
class Protection(Event):
    """Protection is wanted, or no longer."""

    wanted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BarrierExpired(Event):
    """Not every agent came in time: all run unprotected until the next start."""


@dataclass(frozen=True, slots=True)
class SeenRunning(Event):
    """Every pod of the job runs, or training steps: what an unprotected job's phase is derived from."""
