"""Phase machine of a job: states, events, the table and ``step``. Source: DOMAIN section 3.

``step`` is the one function that production, replay and the explorer run. It is total: every event in
every state has an answer, which names the row of the table that gave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recovery.signals import EndCause, Use, WorkerKey


class Phase(StrEnum):
    """Phase of a job and inner phase of a worker."""

    PENDING = "Pending"
    BOOT_CHECKING = "BootChecking"
    RUN_COMMAND = "RunCommand"
    RESTARTING = "Restarting"
    TROUBLESHOOTING = "Troubleshooting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


TERMINAL_PHASES = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})
LIVE_PHASES = frozenset(set(Phase) - TERMINAL_PHASES)


class MessageType(StrEnum):
    """Types of agents' messages that the phase machine reads; the words of the wire."""

    ACK = "ACK"
    ERROR = "Error"
    FINISH = "Finish"


class MessagePhase(StrEnum):
    """Phases of messages and orders; the words of the wire."""

    BOOTCHECK = "bootcheck"
    COMMAND = "command"
    TROUBLESHOOT = "troubleshoot"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker. ``handled`` holds the (type, phase) pairs handled at ``last_sequence``."""

    key: WorkerKey
    inner_phase: Phase = Phase.PENDING
    enrolled: bool = False
    finished: bool = False
    retries: int = 0
    restarted: bool = False  # its incarnation ended, the new one is not back yet
    must_exit: bool = False
    retired: bool = False
    departed: bool = False  # finished and has left its container
    last_sequence: int = 0
    handled: frozenset[tuple[MessageType, MessagePhase]] = frozenset()
    last_failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as the phase machine sees it; ``workers`` are sorted by key.

    ``attempt`` rises with each entry into RunCommand and ``attempt_sequence`` is the sequence of the
    command order that began it. ``protected`` false means that nobody obeys: the phase is derived.
    """

    phase: Phase
    workers: tuple[WorkerState, ...]
    max_retry: int
    recover_count: int = 0
    sequence: int = 0
    run: int = 1
    attempt: int = 0
    attempt_sequence: int = 0
    protected: bool = True
    reason: str = ""  # why it waits: queued, waiting for capacity, …
