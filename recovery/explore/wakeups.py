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


class Desk(NamedTuple):
    """``taken``: reports that the present holder's decision has read; ``decided``: committed decisions'."""

    reports: tuple[Report, ...]
    workers: tuple[Loop, ...]
    wakes: int = 0
    taken: frozenset[int] = frozenset()
    decided: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """The seams: what a mutant replaces.

    ``looks_again``: after its commit, without the lock. ``looks_before_commit``: while it still holds it.
    ``insert_hides``: an open insert's KEY SHARE on the subject's row makes it look held (FOR UPDATE).
    """

    looks_again: bool = True
    looks_before_commit: bool = False
    insert_hides: bool = False
    has_tick: bool = True


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
        return Desk((Report.NONE,) * self.reports, (Loop.IDLE,) * self.workers)

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

        def with_(to: Loop, **fields: Any) -> Desk:
            return state._replace(workers=(*state.workers[:place], to, *state.workers[place + 1 :]), **fields)

        holding = {Loop.HOLDS, Loop.DECIDED, Loop.LOOKED, Loop.SAW_MORE}
        is_held = any(other in holding for n, other in enumerate(state.workers) if n != place)
        is_hidden = self.rules.insert_hides and Report.WRITTEN in state.reports
        match at:
            case Loop.IDLE:
                if state.wakes:
                    woken = with_(Loop.TRIES, wakes=state.wakes - 1)
                    yield Move(f"{name} takes a wake-up", woken, at_rest=True, by=name)
                return
            case Loop.TRIES if is_held or is_hidden:
                yield Move(
                    f"{name} finds the subject held and leaves", with_(Loop.IDLE), at_rest=True, by=name
                )
            case Loop.TRIES:
                broken = "one_writer" if is_held else ""
                yield Move(f"{name} locks the subject", with_(Loop.HOLDS), broken, at_rest=True, by=name)
            case Loop.HOLDS:
                taken = self._undecided(state)
                broken = "decided_once" if taken & state.decided else ""
                yield Move(
                    f"{name} reads {len(taken)} reports and decides",
                    with_(Loop.DECIDED, taken=taken),
                    broken,
                    at_rest=True,
                    by=name,
                )
            case Loop.DECIDED if self.rules.looks_before_commit:
                after = Loop.SAW_MORE if self._undecided(state) - state.taken else Loop.LOOKED
                yield Move(f"{name} looks once more, too early", with_(after), at_rest=True, by=name)
            case Loop.DECIDED | Loop.LOOKED | Loop.SAW_MORE:
                after = Loop.LOOKS if at is Loop.DECIDED and self.rules.looks_again else Loop.IDLE
                after = Loop.TRIES if at is Loop.SAW_MORE else after
                committed = with_(after, taken=frozenset(), decided=state.decided | state.taken)
                yield Move(f"{name} commits, its lock is gone", committed, at_rest=True, by=name)
            case Loop.LOOKS:
                to = Loop.TRIES if self._undecided(state) else Loop.IDLE
                yield Move(f"{name} looks once more: {to}", with_(to), at_rest=True, by=name)
        if self.faults:
            lost: dict[str, Any] = {"taken": frozenset()} if at in holding else {}
            yield Move(f"{name} dies, its transaction is undone", with_(Loop.IDLE, **lost))

    def row(self, state: Desk) -> Mapping[str, str]:
        """Reports, workers, queue."""
        cells = {
            f"report {n}": "decided" if n in state.decided else str(report)
            for n, report in enumerate(state.reports)
        }
        cells |= {f"worker {n}": str(at) for n, at in enumerate(state.workers)}
        return cells | {"wake-ups": str(state.wakes)}
