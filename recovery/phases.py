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
    row = next(row for row in by_event[type(event)] if state.phase in row.phases and row.when(state, event))
    effect = row.effect(state, event)
    reason = row.says.format(event=event, state=state)
    moves = [Move(row.id, state.phase, effect.state.phase, reason)]
    orders = list(effect.orders)
    after = effect.state
    for _ in range(_LONGEST_CHAIN):
        following = next(
            (row for row in automatic_rows if after.phase in row.phases and row.when(after, None)), None
        )
        if following is None:
            break
        automatic = following.effect(after, None)
        orders.extend(automatic.orders)
        moves.append(
            Move(following.id, after.phase, automatic.state.phase, following.says.format(state=after))
        )
        after = automatic.state
    return Step(
        state=after,
        orders=tuple(orders),
        count=effect.count,
        use=row.use,
        row=row.id,
        reason=reason,
        moves=tuple(move for move in moves if move.before is not move.after),
    )
