"""State of a job as the phase machine sees it. Source: DOMAIN section 3.

Everything here is finite but the numbers that only rise (run, attempt, sequences); ``renumber`` maps those
to the smallest ones that compare alike, so that an explorer meets finitely many states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from recovery.signals import WorkerKey


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
    MARK = "Mark"  # only the mark first_step comes here: whose training steps in this attempt


class MessagePhase(StrEnum):
    """Phases of messages and orders; the words of the wire."""

    BOOTCHECK = "bootcheck"
    COMMAND = "command"
    TROUBLESHOOT = "troubleshoot"


Answer = tuple[MessageType, MessagePhase]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker.

    ``last_sequence`` is the newest order set that it was given, ``handled`` the (type, phase) pairs with
    which it has answered that set: an older sequence is over, a newer one was never given to it.
    """

    key: WorkerKey
    inner_phase: Phase = Phase.PENDING
    enrolled: bool = False
    finished: bool = False
    retries: int = 0
    restarted: bool = False  # its incarnation ended; the new one is not back, or not boot-checked, yet
    must_exit: bool = False
    retired: bool = False
    departed: bool = False  # finished and has left its container
    last_sequence: int = 0
    handled: frozenset[Answer] = frozenset()
    last_failure_reason: str = ""

    @property
    def is_present(self) -> bool:
        """Whether it belongs to the present world and has not finished and left."""
        return not self.retired and not self.departed

    @property
    def is_reachable(self) -> bool:
        """Whether an order can be given to it."""
        return self.is_present and self.enrolled

    def has_answered(self, type_: MessageType, phase: MessagePhase) -> bool:
        """Whether it has answered its newest order set so."""
        return (type_, phase) in self.handled


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as the phase machine sees it; ``workers`` are sorted by key.

    ``attempt`` rises with each entry into RunCommand and ``attempt_sequence`` is the sequence of the
    command order that began it. ``protected`` false means that nobody obeys: the phase is derived.
    ``cause_open``: the present attempt ended and was counted, but why is not known yet.
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
    protection_due: bool = False  # protected again from the next start on
    quit_due: bool = False  # a stop was asked for and waits for the safe point
    cause_open: bool = False

    @property
    def active(self) -> tuple[WorkerState, ...]:
        """Workers of the present world: what "max" and "every" mean."""
        return tuple([worker for worker in self.workers if not worker.retired])

    @property
    def present(self) -> tuple[WorkerState, ...]:
        """Active workers that have not finished and left."""
        return tuple([worker for worker in self.workers if not (worker.retired or worker.departed)])

    @property
    def is_terminal(self) -> bool:
        """Whether this run is over."""
        return self.phase in TERMINAL_PHASES

    @property
    def is_over_budget(self) -> bool:
        """Whether a worker has more retries than the user allows. Reads the workers, not the job's count."""
        most = self.max_retry  # asked after each message of each worker: no tuple is made for it
        return any(worker.retries > most and not worker.retired for worker in self.workers)

    @property
    def is_held(self) -> bool:
        """Whether it is over budget by a failure that may still turn out to be one that never counts."""
        return self.cause_open and self.is_over_budget

    def worker(self, key: WorkerKey) -> WorkerState | None:
        """The worker at a place, or None."""
        place = place_of(self.workers, key)
        return None if place is None else self.workers[place]


def place_of(workers: tuple[WorkerState, ...], key: WorkerKey) -> int | None:
    """Where a worker stands among workers sorted by key: a gang has thousands, and each of them reports."""
    place = key.index  # where it stands in a gang of one role without gaps
    if place < len(workers) and workers[place].key == key:
        return place
    place = bisect_left(workers, key, key=attrgetter("key"))
    return place if place < len(workers) and workers[place].key == key else None


def update(state: JobState, key: WorkerKey, **changes: Any) -> JobState:
    """The state with one worker's fields changed."""
    place = place_of(state.workers, key)
    if place is None:
        return state
    changed = replace(state.workers[place], **changes)
    return replace(state, workers=(*state.workers[:place], changed, *state.workers[place + 1 :]))


def update_each(state: JobState, which: Callable[[WorkerState], bool], **changes: Any) -> JobState:
    """The state with the fields of every worker that ``which`` picks changed."""
    return replace(
        state,
        workers=tuple(replace(worker, **changes) if which(worker) else worker for worker in state.workers),
    )


def recover_count_of(state: JobState) -> int:
    """Max of the active workers' retries, never above max retry + 1."""
    return min(max((worker.retries for worker in state.active), default=0), state.max_retry + 1)


def renumber(state: JobState) -> JobState:
    """The state with the numbers that only rise replaced by the smallest that compare alike.

    Two states with the same renumbered form have the same future: a sequence matters only as older than,
    equal to or newer than the attempt's, and in a terminal phase nothing of a worker but its retries does.
    """
    if state.is_terminal:
        workers = tuple(
            WorkerState(worker.key, worker.inner_phase, retries=worker.retries, retired=worker.retired)
            for worker in state.workers
        )
        return replace(state, workers=workers, run=1, attempt=0, sequence=0, attempt_sequence=0)

    started = state.attempt_sequence > 0

    def small(sequence: int) -> int:
        if sequence == state.attempt_sequence:
            return int(started)
        return 2 if sequence > state.attempt_sequence else 0

    return replace(
        state,
        run=1,
        attempt=0,
        sequence=2,
        attempt_sequence=small(state.attempt_sequence),
        workers=tuple(
            worker
            if worker.last_sequence == small(worker.last_sequence) and not worker.last_failure_reason
            else replace(worker, last_sequence=small(worker.last_sequence), last_failure_reason="")
            for worker in state.workers
        ),
    )
