"""The life cycle of one action: claimed, crashed, paused, retried, ambiguous, cancelled, fenced.

Two executors, a cluster, a person and the tick. A claim is a lease; an executor may sleep at any line while
its lease runs out, or die. A request that was sent may be applied at any later time, or never. States and their
ways are production's table, what may be repeated is production's rule of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from recovery.explore.engine import Move
from recovery.explore.small import SmallModel, advanced
from recovery.lifecycle import (
    ACTION_RULES,
    ENDED_ACTION_STATES,
    OPEN_ACTION_STATES,
    ActionKind,
    ActionRule,
    ActionState,
    advance_action,
)

A = ActionState


class At(StrEnum):
    """Where an executor is with its try."""

    IDLE = "idle"
    CLAIMED = "claimed"
    LOOKED = "looked"  # the effect was not there; what it read is the precondition of its send
    CHECKED = "checked"  # the lease held a moment ago
    SENT = "sent"


class Executor(NamedTuple):
    """``read``: the version of the target that it read."""

    at: At = At.IDLE
    try_n: int = 0
    read: int = 0


class Row(NamedTuple):
    """The action's row, as the database has it. ``lease``: whether the lease of the newest try still runs."""

    state: ActionState = A.PLANNED
    try_n: int = 0
    lease: bool = False
    is_cancel_asked: bool = False
    is_incident_open: bool = True


class World(NamedTuple):
    """Everything. ``flight``: versions named by requests that were sent and not applied yet, sorted."""

    row: Row = Row()
    executors: tuple[Executor, ...] = (Executor(), Executor())
    flight: tuple[int, ...] = ()
    version: int = 0
    effects: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """The seams: what a mutant replaces."""

    rule: ActionRule = ACTION_RULES[ActionKind.STOP_JOB]
    may_claim: Callable[[Row], bool] = lambda row: (
        row.state is A.READY and not row.is_cancel_asked and row.is_incident_open
    )
    is_still_ours: Callable[[Row, Executor], bool] = lambda row, executor: (
        row.state is A.RUNNING and row.try_n == executor.try_n and row.lease
    )
    may_finish: Callable[[Row, Executor], bool] = lambda row, executor: (
        row.state is A.RUNNING and row.try_n == executor.try_n
    )
    after_lapse: Callable[[ActionRule], ActionState] = lambda rule: (
        A.VERIFYING if rule.is_harmful else A.READY
    )
    after_deadline: Callable[[ActionRule], ActionState] = lambda rule: (
        A.UNKNOWN if rule.is_harmful else A.READY
    )
    may_close: Callable[[Row], bool] = lambda row: row.state not in {A.RUNNING, A.VERIFYING}
    finds_lapsed: bool = True
    has_precondition: bool = True


class Actions(SmallModel[World]):
    """The model. A harmful kind has no precondition that would stop its second application."""

    name = "actions"
    liveness = "ends"
    properties: Mapping[str, str] = {
        "harmful_once": "the effect of a harmful action is never made twice",
        "safe_once": "the effect of a safe action is made once: what comes late fails by its precondition",
        "no_claim_after_cancel": "nothing is claimed after a cancel, nor for an incident that is closed",
        "fenced": "a try that lost its lease writes nothing but its own record",
        "close_waits": "an incident never closes while an action runs",
        "table": "every change of state is a way of the table",
        "ends": "every action comes to an end once the environment rests",
    }

    def __init__(self, *, rules: Rules | None = None, harmful: bool = False, tries: int = 2) -> None:
        kind = ActionKind.FORCE_VACATE if harmful else ActionKind.STOP_JOB
        self.rules = rules or Rules()
        self.rule = ACTION_RULES[kind]
        self.tries = tries

    @property
    def bounds(self) -> Sequence[str]:
        """What is left out."""
        return (f"one action of kind {self.rule.kind}, two executors, at most {self.tries} tries",)

    def start(self) -> World:
        """A planned action."""
        return World()

    def is_settled(self, state: World) -> bool:
        """Whether the action has ended."""
        return state.row.state in ENDED_ACTION_STATES

    def moves(self, state: World, *, reduced: bool) -> Iterator[Move[World]]:
        """What executors, cluster, person and tick do."""
        yield from self._of_people(state)
        yield from self._of_tick(state)
        for place, executor in enumerate(state.executors):
            yield from self._of_executor(state, place, executor)
        for sent in sorted(set(state.flight)):
            flight = list(state.flight)
            flight.remove(sent)
            after = state._replace(flight=tuple(flight))
            yield Move("a request is lost", after)
            if self._has_precondition and sent != state.version:
                yield Move("a late request fails by its precondition", after, at_rest=True)
                continue
            made = state.effects + 1
            name = "harmful_once" if self.rule.is_harmful else "safe_once"
            yield Move(
                "the cluster applies a request",
                after._replace(version=state.version + 1, effects=made),
                name if made > 1 else "",
                at_rest=True,
            )

    @property
    def _has_precondition(self) -> bool:
        return self.rules.has_precondition and not self.rule.is_harmful

    def _to(
        self, state: World, to: ActionState, label: str, *, rests: bool = False, **fields: bool
    ) -> Move[World]:
        reached = advanced(advance_action, state.row.state, to)
        row = state.row._replace(state=to, **fields)
        return Move(label, state._replace(row=row), "" if reached else "table", rests)

    def _of_people(self, state: World) -> Iterator[Move[World]]:
        row = state.row
        if row.state is A.PLANNED:
            yield self._to(state, A.AWAITING_APPROVAL, "it needs a yes", rests=True)
            yield self._to(state, A.READY, "it is ready", rests=True)
        if row.state is A.AWAITING_APPROVAL:
            yield self._to(state, A.READY, "it gets its yes", rests=True)
            yield self._to(state, A.REFUSED, "it gets a no", rests=True)
        if row.state in {A.PLANNED, A.AWAITING_APPROVAL, A.READY}:
            yield self._to(state, A.CANCELLED, "a person cancels it", is_cancel_asked=True)
        elif row.state in OPEN_ACTION_STATES and not row.is_cancel_asked:
            yield Move(
                "a person asks to cancel what runs", state._replace(row=row._replace(is_cancel_asked=True))
            )
        if row.is_incident_open and self.rules.may_close(row):
            closed = state._replace(row=row._replace(is_incident_open=False))
            yield Move(
                "the incident closes", closed, "close_waits" if row.state in {A.RUNNING, A.VERIFYING} else ""
            )

    def _of_tick(self, state: World) -> Iterator[Move[World]]:
        row = state.row
        if row.state is A.READY and (row.is_cancel_asked or not row.is_incident_open):
            yield self._to(state, A.CANCELLED, "a decision cancels what nobody wants any more", rests=True)
        if row.state is A.READY and row.try_n >= self.tries:
            yield self._to(state, A.FAILED, "the deadline of all tries passes", rests=True)
        if row.state is A.RUNNING and row.lease:
            yield Move("the lease runs out", state._replace(row=row._replace(lease=False)), at_rest=True)
        if row.state is A.RUNNING and not row.lease and self.rules.finds_lapsed:
            after = self.rules.after_lapse(self.rule)
            yield self._to(state, after, f"the tick finds the lease run out: {after}", rests=True)
        if row.state is A.VERIFYING:
            if state.effects:
                yield self._to(state, A.DONE, "the effect is seen", rests=True)
            else:
                after = self.rules.after_deadline(self.rule)
                yield self._to(state, after, f"the deadline passes, nothing was seen: {after}", rests=True)

    def _of_executor(self, state: World, place: int, executor: Executor) -> Iterator[Move[World]]:
        row, name = state.row, f"executor {place}"

        def with_(new: Executor, **fields: Any) -> World:
            executors = (*state.executors[:place], new, *state.executors[place + 1 :])
            return state._replace(executors=executors, **fields)

        def finish(to: ActionState, label: str) -> Move[World]:
            if not self.rules.may_finish(row, executor):
                return Move(f"{label}; its lease is gone", with_(Executor()), at_rest=True)
            reached = advanced(advance_action, row.state, to)
            lost = row.state is not A.RUNNING or row.try_n != executor.try_n
            after = with_(Executor(), row=row._replace(state=to, lease=False))
            return Move(label, after, "fenced" if lost else "" if reached else "table", at_rest=True)

        if executor.at is At.IDLE:
            if row.try_n < self.tries and self.rules.may_claim(row):
                unwanted = row.is_cancel_asked or not row.is_incident_open
                claimed = row._replace(state=A.RUNNING, try_n=row.try_n + 1, lease=True)
                broken = "no_claim_after_cancel" if unwanted else ""
                if not broken and advanced(advance_action, row.state, A.RUNNING) is None:
                    broken = "table"
                yield Move(
                    f"{name} claims try {claimed.try_n}",
                    with_(Executor(At.CLAIMED, claimed.try_n), row=claimed),
                    broken,
                    at_rest=True,
                )
            return
        yield Move(f"{name} dies", with_(Executor()))
        match executor.at:
            case At.CLAIMED:
                if state.effects:
                    yield finish(A.VERIFYING, f"{name} finds the effect made")
                else:
                    looked = executor._replace(at=At.LOOKED, read=state.version)
                    yield Move(f"{name} looks: nothing is there yet", with_(looked), at_rest=True)
                yield finish(A.READY, f"{name} cannot reach the cluster, it will be tried again")
                yield finish(A.FAILED, f"{name} is refused for good")
            case At.LOOKED:
                if self.rules.is_still_ours(row, executor):
                    yield Move(
                        f"{name} sees that its lease holds",
                        with_(executor._replace(at=At.CHECKED)),
                        at_rest=True,
                    )
                else:
                    yield Move(f"{name} sees that its lease is gone", with_(Executor()), at_rest=True)
            case At.CHECKED:
                flight = tuple(sorted((*state.flight, executor.read)))
                yield Move(f"{name} sends", with_(executor._replace(at=At.SENT), flight=flight), at_rest=True)
            case At.SENT:
                yield finish(A.VERIFYING, f"{name} notes that it has sent, or does not know")

    def row(self, state: World) -> Mapping[str, str]:
        """Row, executors and what they did."""
        row = state.row
        words = [str(row.state), f"try {row.try_n}"]
        words += ["lease"] if row.lease else []
        words += ["cancel asked"] if row.is_cancel_asked else []
        cells = {"action": ", ".join(words), "incident": "open" if row.is_incident_open else "closed"}
        for place, executor in enumerate(state.executors):
            cells[f"executor {place}"] = (
                "idle" if executor.at is At.IDLE else f"{executor.at}, try {executor.try_n}"
            )
        cells["in flight"] = str(len(state.flight))
        cells["effects"] = str(state.effects)
        return cells
