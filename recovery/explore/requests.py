"""The life cycle of a request: who may say yes, until when, and what a machine may do with it.

States and their ways are production's table. The services that give yeses are of a later version; here are
the rules that DOMAIN section 5 sets them, as seams that a mutant replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from recovery.explore.engine import Move
from recovery.explore.small import SmallModel, advanced
from recovery.lifecycle import RequestState, advance_request

R = RequestState
REQUESTER = 0
ENDS = frozenset({R.EXECUTED, R.DENIED, R.EXPIRED, R.LAPSED, R.WITHDRAWN, R.VOID, R.FAILED})


class Case(NamedTuple):
    """A request and its world. ``yeses``: (person, evidence that they saw). ``evidence``: its version now.

    ``is_late``: the time of its present state has passed, to decide or to execute. ``holds``: whether the
    re-check before the execution would still find what the request says.
    """

    state: RequestState = R.PENDING
    yeses: frozenset[tuple[int, int]] = frozenset()
    evidence: int = 0
    is_late: bool = False
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """The seams: what a mutant replaces."""

    may_vote: Callable[[int], bool] = lambda person: person != REQUESTER
    takes_late: bool = (
        False  # whether a yes or a claim is taken before the tick has noted that its time is over
    )
    after_change: Callable[[Case], Case] = lambda case: case._replace(
        state=R.PENDING, yeses=frozenset(), is_late=False
    )
    rechecks: bool = True
    has_tick: bool = True


class Requests(SmallModel[Case]):
    """The model."""

    name = "requests"
    liveness = "ends"
    properties: Mapping[str, str] = {
        "needed_yeses": "nothing is executed without the needed yeses of others, on the evidence as it is now",
        "none_after_expiry": "nothing is approved or executed after its time has passed",
        "rechecked": "nothing is executed that is no longer so",
        "table": "every change of state is a way of the table",
        "ends": "every request comes to an end once the environment rests; no answer means no",
    }

    def __init__(self, *, rules: Rules | None = None, people: int = 4, needed: int = 2) -> None:
        self.rules = rules or Rules()
        self.people = people
        self.needed = needed

    @property
    def bounds(self) -> Sequence[str]:
        """What is left out."""
        return (
            f"{self.people} people, the first of them asks; {self.needed} yeses needed; evidence changes once",
        )

    def start(self) -> Case:
        """A request was made."""
        return Case()

    def is_settled(self, state: Case) -> bool:
        """Whether it has ended."""
        return state.state in ENDS

    def moves(self, state: Case, *, reduced: bool) -> Iterator[Move[Case]]:
        """What people, time, the cluster and the executor do."""
        if state.state in ENDS:
            return
        yield from self._of_people(state)
        yield from self._of_time(state)
        if state.holds:
            yield Move("the fault is gone", state._replace(holds=False))
        if state.evidence == 0 and state.state in {R.PENDING, R.APPROVED}:
            changed = self.rules.after_change(state)._replace(evidence=1)
            to = changed.state
            is_way = to is state.state or advanced(advance_request, state.state, to) is not None
            yield Move("its evidence changes materially", changed, "" if is_way else "table")
        yield from self._of_executor(state)

    def _to(
        self, state: Case, to: RequestState, label: str, broken: str = "", *, rests: bool = False
    ) -> Move[Case]:
        if not broken and advanced(advance_request, state.state, to) is None:
            broken = "table"
        late = state.is_late and to is not R.APPROVED
        return Move(label, state._replace(state=to, is_late=late), broken, rests)

    def _of_people(self, state: Case) -> Iterator[Move[Case]]:
        if state.state is R.PENDING:
            for person in range(self.people):
                who = "who asked" if person == REQUESTER else f"person {person}"
                if not self.rules.may_vote(person) or (state.is_late and not self.rules.takes_late):
                    continue
                said = state.yeses | {(person, state.evidence)}
                if len({person for person, _ in said}) >= self.needed:
                    broken = "none_after_expiry" if state.is_late else ""
                    yield self._to(
                        state._replace(yeses=said), R.APPROVED, f"{who} says yes, the last one needed", broken
                    )
                else:
                    yield Move(f"{who} says yes", state._replace(yeses=said))
            yield self._to(state, R.DENIED, "a person says no")
        if state.state in {R.PENDING, R.APPROVED}:
            yield self._to(state, R.WITHDRAWN, "who asked withdraws it")

    def _of_time(self, state: Case) -> Iterator[Move[Case]]:
        if state.state not in {R.PENDING, R.APPROVED}:
            return
        if not state.is_late:
            yield Move("its time passes", state._replace(is_late=True), at_rest=True)
        elif self.rules.has_tick:
            to = R.EXPIRED if state.state is R.PENDING else R.LAPSED
            yield self._to(state, to, f"the tick notes that its time is over: {to}", rests=True)

    def _of_executor(self, state: Case) -> Iterator[Move[Case]]:
        if state.state is R.APPROVED and (not state.is_late or self.rules.takes_late):
            if self.rules.rechecks and not state.holds:
                yield self._to(state, R.VOID, "the re-check finds it no longer so", rests=True)
            else:
                yield self._to(state, R.EXECUTING, "it is carried out", self._unfit(state), rests=True)
        if state.state is R.EXECUTING:
            yield self._to(state, R.EXECUTED, "its effect is seen", rests=True)
            yield self._to(state, R.FAILED, "it fails", rests=True)

    def _unfit(self, state: Case) -> str:
        """What speaks against carrying it out now, judged by its yeses themselves."""
        others = {person for person, seen in state.yeses if person != REQUESTER and seen == state.evidence}
        if len(others) < self.needed:
            return "needed_yeses"
        if state.is_late:
            return "none_after_expiry"
        return "" if state.holds else "rechecked"

    def row(self, state: Case) -> Mapping[str, str]:
        """The request and its world."""
        return {
            "request": str(state.state),
            "yeses": ", ".join(f"person {who} on evidence {seen}" for who, seen in sorted(state.yeses)),
            "evidence": str(state.evidence),
            "time": "over" if state.is_late else "runs",
            "still so": "yes" if state.holds else "no",
        }
