"""The decide loop: no wake-up is lost. Lock with SKIP LOCKED, commit, look once more, tick.

Whoever reports writes a signal, commits, and wakes a worker. A worker that finds the subject held leaves:
the holder looks once more after its lock is gone. Two settings: a calm one without crashes and without the tick, in
which the loop alone must lose nothing; and one where wakes are lost and workers die, which the tick mends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from recovery.explore.engine import Move
from recovery.explore.small import SmallModel


class Report(StrEnum):
    """How far a report has come. Only a committed one can be seen by others."""

    NONE = "none"
    WRITTEN = "written"
    COMMITTED = "committed"
    WOKEN = "woken"
    UNDONE = "undone"


class Loop(StrEnum):
    """Where a worker is in ``decide_subject``."""

    IDLE = "idle"
    TRIES = "tries the lock"
    HOLDS = "holds the lock"
    DECIDED = "has decided, not committed"
    LOOKED = "has looked once more, not committed"
    SAW_MORE = "has seen more, not committed"
    LOOKS = "looks once more"


#: Where a worker has the subject's row locked.
HOLDING = frozenset({Loop.HOLDS, Loop.DECIDED, Loop.LOOKED, Loop.SAW_MORE})


class Desk(NamedTuple):
    """``taken``: for each worker the reports that it has read to decide them; ``decided``: committed decisions'."""

    reports: tuple[Report, ...]
    workers: tuple[Loop, ...]
    taken: tuple[frozenset[int], ...]
    wakes: int = 0
    decided: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """The seams: what a mutant replaces.

    ``looks_again``: after its commit, without the lock. ``looks_before_commit``: while it still holds it.
    ``insert_hides``: an open insert's KEY SHARE on the subject's row makes it look held (FOR UPDATE).
    ``locks``: whether a held subject is left alone. ``reads_under_lock``: what is undecided, not before it.
    """

    looks_again: bool = True
    looks_before_commit: bool = False
    insert_hides: bool = False
    has_tick: bool = True
    locks: bool = True
    reads_under_lock: bool = True


class Wakeups(SmallModel[Desk]):
    """The model."""

    name = "wakeups"
    liveness = "no_wake_lost"
    properties: Mapping[str, str] = {
        "one_writer": "at most one worker holds a subject",
        "decided_once": "no report is decided twice",
        "no_wake_lost": "every committed report is decided once the environment rests",
    }

    def __init__(
        self, *, rules: Rules | None = None, reports: int = 3, workers: int = 2, faults: bool = False
    ) -> None:
        self.rules = rules or Rules()
        self.reports = reports
        self.workers = workers
        self.faults = faults

    @property
    def bounds(self) -> Sequence[str]:
        """What is left out."""
        how = "wakes are lost and workers die, the tick runs" if self.faults else "no faults and no tick"
        return (f"one subject, {self.reports} reports, {self.workers} workers; {how}",)

    def start(self) -> Desk:
        """Nothing has happened."""
        nothing: frozenset[int] = frozenset()
        return Desk((Report.NONE,) * self.reports, (Loop.IDLE,) * self.workers, (nothing,) * self.workers)

    def is_settled(self, state: Desk) -> bool:
        """Whether all that was committed is decided."""
        return not self._undecided(state)

    def _undecided(self, state: Desk) -> frozenset[int]:
        seen = {n for n, report in enumerate(state.reports) if report in {Report.COMMITTED, Report.WOKEN}}
        return frozenset(seen) - state.decided

    def moves(self, state: Desk, *, reduced: bool) -> Iterator[Move[Desk]]:
        """What reporters, workers, queue and tick do."""
        for n, report in enumerate(state.reports):
            yield from self._of_report(state, n, report)
        for place, at in enumerate(state.workers):
            yield from self._of_worker(state, place, at)
        if self.faults:
            if state.wakes:
                yield Move("the queue is wiped", state._replace(wakes=0))
            if self.rules.has_tick and self._undecided(state) and not state.wakes:
                yield Move("the tick wakes a worker", state._replace(wakes=1), at_rest=True, by="tick")

    def _of_report(self, state: Desk, n: int, report: Report) -> Iterator[Move[Desk]]:
        def with_(to: Report, wakes: int = 0) -> Desk:
            reports = (*state.reports[:n], to, *state.reports[n + 1 :])
            return state._replace(reports=reports, wakes=min(state.wakes + wakes, self.reports))

        if report is Report.NONE:
            yield Move(f"report {n} is written", with_(Report.WRITTEN))
        elif report is Report.WRITTEN:
            yield Move(f"report {n} is committed", with_(Report.COMMITTED), at_rest=True, by=f"report {n}")
            yield Move(f"report {n} is undone", with_(Report.UNDONE))
        elif report is Report.COMMITTED:
            yield Move(
                f"report {n} wakes a worker", with_(Report.WOKEN, wakes=1), at_rest=True, by=f"report {n}"
            )
            if self.faults:
                yield Move(f"report {n} finds the queue away", with_(Report.WOKEN))

    def _of_worker(self, state: Desk, place: int, at: Loop) -> Iterator[Move[Desk]]:
        name = f"worker {place}"

        taken = state.taken[place]

        def with_(to: Loop, read: frozenset[int] = frozenset(), **fields: Any) -> Desk:
            return state._replace(
                workers=(*state.workers[:place], to, *state.workers[place + 1 :]),
                taken=(*state.taken[:place], read, *state.taken[place + 1 :]),
                **fields,
            )

        def tries(**fields: Any) -> Desk:
            early = frozenset[int]() if self.rules.reads_under_lock else self._undecided(state)
            return with_(Loop.TRIES, early, **fields)

        others = [other for n, other in enumerate(state.workers) if n != place]
        is_held = any(other in HOLDING for other in others)
        is_hidden = self.rules.insert_hides and Report.WRITTEN in state.reports
        match at:
            case Loop.IDLE:
                if state.wakes:
                    woken = tries(wakes=state.wakes - 1)
                    yield Move(f"{name} takes a wake-up", woken, at_rest=True, by=name)
                return
            case Loop.TRIES if (is_held and self.rules.locks) or is_hidden:
                yield Move(
                    f"{name} finds the subject held and leaves", with_(Loop.IDLE), at_rest=True, by=name
                )
            case Loop.TRIES:
                broken = "one_writer" if is_held else ""
                held = with_(Loop.HOLDS, taken)
                yield Move(f"{name} locks the subject", held, broken, at_rest=True, by=name)
            case Loop.HOLDS:
                read = self._undecided(state) if self.rules.reads_under_lock else taken
                decided = with_(Loop.DECIDED, read)
                yield Move(f"{name} decides {len(read)} reports", decided, at_rest=True, by=name)
            case Loop.DECIDED if self.rules.looks_before_commit:
                after = Loop.SAW_MORE if self._undecided(state) - taken else Loop.LOOKED
                yield Move(f"{name} looks once more, too early", with_(after, taken), at_rest=True, by=name)
            case Loop.DECIDED | Loop.LOOKED | Loop.SAW_MORE:
                after = Loop.LOOKS if at is Loop.DECIDED and self.rules.looks_again else Loop.IDLE
                after = Loop.TRIES if at is Loop.SAW_MORE else after
                broken = "decided_once" if taken & state.decided else ""
                committed = with_(after, decided=state.decided | taken)
                yield Move(f"{name} commits, its lock is gone", committed, broken, at_rest=True, by=name)
            case Loop.LOOKS:
                again = tries() if self._undecided(state) else with_(Loop.IDLE)
                label = f"{name} looks once more: {again.workers[place]}"
                yield Move(label, again, at_rest=True, by=name)
        if self.faults:
            yield Move(f"{name} dies, its transaction is undone", with_(Loop.IDLE))

    def row(self, state: Desk) -> Mapping[str, str]:
        """Reports, workers, queue."""
        cells = {
            f"report {n}": "decided" if n in state.decided else str(report)
            for n, report in enumerate(state.reports)
        }
        cells |= {f"worker {n}": str(at) for n, at in enumerate(state.workers)}
        return cells | {"wake-ups": str(state.wakes)}
