"""Phase machine of a job. Source: DOMAIN section 3.

``step`` is the one function that production, replay and the explorer run. It is total: every event in
every state has an answer, which names the row of the table that gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from recovery.phase_events import Event
from recovery.phase_moves import QUEUED, WAITING_FOR_CAPACITY, Count, Order, OrderKind
from recovery.phase_state import (
    LIVE_PHASES,
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    WorkerState,
    recover_count_of,
    renumber,
)
from recovery.phase_table import AUTOMATIC_ROWS, EVENT_ROWS, TABLE, Row, markdown
from recovery.signals import Use

__all__ = [
    "LIVE_PHASES",
    "QUEUED",
    "TABLE",
    "TERMINAL_PHASES",
    "WAITING_FOR_CAPACITY",
    "Count",
    "JobState",
    "MessagePhase",
    "MessageType",
    "Move",
    "Order",
    "OrderKind",
    "Phase",
    "Row",
    "Step",
    "WorkerState",
    "markdown",
    "recover_count_of",
    "renumber",
    "step",
    "step_over",
]

# A chain of automatic rows passes each phase at most once.
_LONGEST_CHAIN = len(Phase)


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the job's phase and the row that made it."""

    row: str
    before: Phase
    after: Phase
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one event did. ``row`` and ``reason`` are the event's own; ``moves`` has what followed, too."""

    state: JobState
    orders: tuple[Order, ...]
    count: Count | None
    use: Use
    row: str
    reason: str
    moves: tuple[Move, ...] = ()


def step(state: JobState, event: Event) -> Step:
    """What a job becomes by an event. Total and pure; may be called twice, the second changes nothing more.

    Orders come in ascending sequence. There is at most one count, because any count leaves RunCommand.
    """
    return _step(_ROWS_BY_EVENT, AUTOMATIC_ROWS, state, event)


def step_over(table: Iterable[Row]) -> Callable[[JobState, Event], Step]:
    """The step function of another table, so that the explorer can walk one with a fault in it."""
    rows = tuple(table)
    by_event = _by_event(rows)
    automatic = tuple(row for row in rows if row.event is None)
    return lambda state, event: _step(by_event, automatic, state, event)


def _by_event(rows: Iterable[Row]) -> Mapping[type[Event], tuple[Row, ...]]:
    found: dict[type[Event], tuple[Row, ...]] = {}
    for row in rows:
        if row.event is not None:
            found[row.event] = (*found.get(row.event, ()), row)
    return found


_ROWS_BY_EVENT = _by_event(EVENT_ROWS)


def _step(
    by_event: Mapping[type[Event], tuple[Row, ...]],
    automatic_rows: tuple[Row, ...],
    state: JobState,
    event: Event,
) -> Step:
    row = _fitting(by_event[type(event)], state, event)
    assert row is not None, (
        f"each type of event ends with a row that fits always; {type(event).__name__} does not"
    )
    effect = row.effect(state, event)
    reason = row.says.format(event=event, state=state)
    after = effect.state
    orders, moves = effect.orders, []
    if after.phase is not state.phase:
        moves.append(Move(row.id, state.phase, after.phase, reason))
    for _ in range(_LONGEST_CHAIN):
        following = _fitting(automatic_rows, after, None)
        if following is None:
            break
        automatic = following.effect(after, None)
        orders += automatic.orders
        if automatic.state.phase is not after.phase:
            says = following.says.format(state=after)
            moves.append(Move(following.id, after.phase, automatic.state.phase, says))
        after = automatic.state
    return Step(
        state=after,
        orders=orders,
        count=effect.count,
        use=row.use,
        row=row.id,
        reason=reason,
        moves=tuple(moves),
    )


def _fitting(rows: Iterable[Row], state: JobState, event: Event | None) -> Row | None:
    """The first row whose phases and guard fit."""
    phase = state.phase
    for row in rows:
        if phase in row.phases and row.when(state, event):
            return row
    return None
