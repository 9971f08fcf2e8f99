"""Holds and guards under concurrent subjects, and the workers that run on the machines.

Each machine is a subject of its own; their decisions run at once. A decision reserves one guard after the other
(an UPDATE with the limit in its WHERE, the row locked until commit), then commits, then the action isolates the
machine. The limits are production's guards; which moment is the cheaper one for a slow machine is production's
price. What isolates and evicts machines is of a later version: here are the rules of DOMAIN sections 8 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from recovery.explore.engine import Move
from recovery.explore.small import SmallModel
from recovery.figures import assumed
from recovery.guards import Dimension, Limit, Measure
from recovery.lifecycle import ActionKind
from recovery.prices import SlowNode, SlowOption, price_slow_node

#: Guards in the order of their keys.
LIMITS = (
    Limit("isolated-of-cluster", Dimension.CLUSTER, Measure.STANDING, (ActionKind.HOLD_NODE,), share=0.67),
    Limit("isolated-of-rack", Dimension.RACK, Measure.STANDING, (ActionKind.HOLD_NODE,), number=1),
)
#: The rack of each machine.
RACKS = (0, 0, 1)
#: A checkpoint interval in ticks; the safe point is the tick of the commit.
INTERVAL = 4
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Hold(StrEnum):
    """How far the desk's hold of a machine has come."""

    NONE = "none"
    DECIDING = "deciding"
    RESERVED = "reserved"  # committed, the action is to come
    ISOLATED = "isolated"


class Machine(NamedTuple):
    """``got``: guards that its open decision has reserved. ``others``: somebody else's cordon stands."""

    hold: Hold = Hold.NONE
    got: int = 0
    others: bool = False
    has_worker: bool = False
    is_slow: bool = False


class Fleet(NamedTuple):
    """``used``: counters of the guards as committed or locked, (guard, group) -> number, sorted by key.

    ``since``: ticks since the last checkpoint of the job whose workers run here.
    """

    machines: tuple[Machine, ...]
    used: tuple[tuple[tuple[int, int], int], ...]
    since: int = 0


@cache
def cheaper_now(since: int) -> bool:
    """Whether evicting a slow machine now costs less than waiting, by production's price."""
    slow = SlowNode(
        gpus=8,
        slowdown_share=assumed(0.5),
        since_checkpoint_seconds=assumed(float(since)),
        to_checkpoint_seconds=assumed(float(INTERVAL - since)),
        restart_seconds=assumed(1.0),
        seen=3,
        looked=3,
    )
    return price_slow_node(slow, _EPOCH).chosen == SlowOption.EVICT_NOW


def guards_of(place: int) -> Sequence[tuple[int, int]]:
    """The guards, with their groups, that a hold of a machine counts in, in the order of their keys."""
    return ((0, 0), (1, RACKS[place]))


@dataclass(frozen=True, slots=True)
class Rules:
    """The seams: what a mutant replaces.

    ``guards_of``: the guards that a machine's decision reserves, in its order. ``may_evict``: of a slow machine,
    ticks since the checkpoint.
    """

    guards_of: Callable[[int], Sequence[tuple[int, int]]] = guards_of
    checks_while_locked: bool = True
    release_waits: bool = False  # for room in the guard
    release_uncordons_others: bool = False
    may_place: Callable[[Machine], bool] = lambda machine: (
        machine.hold is not Hold.ISOLATED and not machine.others
    )
    may_evict: Callable[[int], bool] = lambda since: since == 0 or cheaper_now(since)
    gives_back: bool = True


class Holds(SmallModel[Fleet]):
    """The model."""

    name = "holds"
    liveness = "decisions_end"
    properties: Mapping[str, str] = {
        "limit": "no guard's limit is ever exceeded by machines that are reserved or isolated",
        "release_never_blocked": "a release is never held back by a guard",
        "none_on_isolated": "no isolated machine receives a worker, whoever isolated it",
        "slow_leaves_cheaply": "a slow machine is left only at a safe point, or where acting now costs less",
        "counters_true": "the counters are what the machines say",
        "decisions_end": "no decision about a machine waits for ever",
    }

    def __init__(self, *, rules: Rules | None = None, machines: int = 3) -> None:
        self.rules = rules or Rules()
        self.machines = machines
        groups = {key for place in range(machines) for key in guards_of(place)}
        self.caps = {
            (guard, group): LIMITS[guard].cap(machines if guard == 0 else RACKS[:machines].count(group))
            for guard, group in groups
        }

    @property
    def bounds(self) -> Sequence[str]:
        """What is left out."""
        racks = ", ".join(str(rack) for rack in RACKS[: self.machines])
        return (
            f"{self.machines} machines in racks {racks}, {len(LIMITS)} standing guards",
            f"one job, with a checkpoint each {INTERVAL} ticks",
        )

    def start(self) -> Fleet:
        """All machines are in service, each with a worker."""
        used = tuple((key, 0) for key in sorted(self.caps))
        return Fleet((Machine(has_worker=True),) * self.machines, used)

    def is_settled(self, state: Fleet) -> bool:
        """Whether no decision is open."""
        return all(machine.hold is not Hold.DECIDING for machine in state.machines)

    def moves(self, state: Fleet, *, reduced: bool) -> Iterator[Move[Fleet]]:
        """What decisions, actions, people, the scheduler and time do."""
        since = (state.since + 1) % INTERVAL
        yield Move("a tick of training passes", state._replace(since=since))
        for place, machine in enumerate(state.machines):
            yield from self._of_hold(state, place, machine)
            yield from self._of_worker(state, place, machine)

    def _with(
        self, state: Fleet, place: int, machine: Machine, used: Mapping[tuple[int, int], int] | None = None
    ) -> Fleet:
        machines = (*state.machines[:place], machine, *state.machines[place + 1 :])
        counters = state.used if used is None else tuple(sorted(used.items()))
        return state._replace(machines=machines, used=counters)

    def _locked_by_others(self, state: Fleet, place: int) -> frozenset[tuple[int, int]]:
        """Counter rows that other open decisions have locked."""
        return frozenset(
            key
            for other, machine in enumerate(state.machines)
            if other != place and machine.hold is Hold.DECIDING
            for key in list(self.rules.guards_of(other))[: machine.got]
        )

    def _of_hold(self, state: Fleet, place: int, machine: Machine) -> Iterator[Move[Fleet]]:
        name, used = f"machine {place}", dict(state.used)
        guards = list(self.rules.guards_of(place))
        locked = self._locked_by_others(state, place)
        if machine.hold is Hold.NONE:
            deciding = self._with(state, place, machine._replace(hold=Hold.DECIDING))
            yield Move(f"a decision about {name} begins", deciding)
        elif machine.hold is Hold.DECIDING and machine.got < len(guards):
            key = guards[machine.got]
            limit = f"{LIMITS[key[0]].name} {key[1]}"
            if key in locked and self.rules.checks_while_locked:
                return  # its UPDATE waits for the row, and reads it again then
            if used[key] >= self.caps[key] and self.rules.checks_while_locked:
                for given in guards[: machine.got]:
                    used[given] -= 1
                refused = machine._replace(hold=Hold.NONE, got=0)
                yield Move(
                    f"{name} is refused by {limit}", self._with(state, place, refused, used), at_rest=True
                )
                return
            used[key] += 1
            yield self._judged(
                f"{name} reserves {limit}",
                self._with(state, place, machine._replace(got=machine.got + 1), used),
            )
        elif machine.hold is Hold.DECIDING:
            reserved = machine._replace(hold=Hold.RESERVED, got=0)
            yield self._judged(f"the decision about {name} commits", self._with(state, place, reserved))
        elif machine.hold is Hold.RESERVED:
            isolated = machine._replace(hold=Hold.ISOLATED, has_worker=False)
            yield Move(f"{name} is isolated, its worker evicted", self._with(state, place, isolated))
        if machine.hold in {Hold.RESERVED, Hold.ISOLATED}:
            yield from self._of_release(state, place, machine, guards, locked)
        yield Move(
            f"somebody else {'uncordons' if machine.others else 'cordons'} {name}",
            self._with(state, place, machine._replace(others=not machine.others)),
        )

    def _of_release(
        self,
        state: Fleet,
        place: int,
        machine: Machine,
        guards: Sequence[tuple[int, int]],
        locked: frozenset[tuple[int, int]],
    ) -> Iterator[Move[Fleet]]:
        if locked & set(guards):
            return  # for the moment of another's commit, not for room
        used = dict(state.used)
        if self.rules.release_waits and any(used[key] >= self.caps[key] for key in guards):
            yield Move(f"the release of machine {place} finds no room", state, "release_never_blocked")
            return
        if self.rules.gives_back:
            for key in guards:
                used[key] -= 1
        others = machine.others and not self.rules.release_uncordons_others
        released = machine._replace(hold=Hold.NONE, others=others)
        move = self._judged(f"machine {place} is released", self._with(state, place, released, used))
        if machine.others and not others and not move.broken:
            move = move._replace(broken="none_on_isolated")
        yield move

    def _judged(self, label: str, after: Fleet) -> Move[Fleet]:
        """A move that may change who holds what, with what it breaks."""
        broken = ""
        told = dict.fromkeys(self.caps, 0)
        for place, machine in enumerate(after.machines):
            for key in guards_of(place):
                is_standing = machine.hold in {Hold.RESERVED, Hold.ISOLATED}
                told[key] += is_standing
                if machine.hold is Hold.DECIDING and key in list(self.rules.guards_of(place))[: machine.got]:
                    told[key] += 1
        if any(told[key] > self.caps[key] for key in self.caps):
            broken = "limit"
        elif told != dict(after.used):
            broken = "counters_true"
        return Move(label, after, broken, at_rest=True)

    def _of_worker(self, state: Fleet, place: int, machine: Machine) -> Iterator[Move[Fleet]]:
        name = f"machine {place}"
        if not machine.has_worker:
            if self.rules.may_place(machine):
                is_held = machine.hold is Hold.ISOLATED or machine.others
                placed = self._with(state, place, machine._replace(has_worker=True))
                yield Move(f"a worker is placed on {name}", placed, "none_on_isolated" if is_held else "")
            return
        if not machine.is_slow:
            slow = self._with(state, place, machine._replace(is_slow=True))
            yield Move(f"{name} is found slow, and marked", slow)
        elif self.rules.may_evict(state.since):
            is_cheap = state.since == 0 or cheaper_now(state.since)
            left = self._with(state, place, machine._replace(has_worker=False, is_slow=False))
            yield Move(f"the worker leaves the slow {name}", left, "" if is_cheap else "slow_leaves_cheaply")

    def row(self, state: Fleet) -> Mapping[str, str]:
        """Machines, counters, time."""
        cells = {}
        for place, machine in enumerate(state.machines):
            words = [str(machine.hold)]
            words += [f"{machine.got} reserved"] if machine.got else []
            words += ["cordon of others"] if machine.others else []
            words += ["worker"] if machine.has_worker else []
            words += ["slow"] if machine.is_slow else []
            cells[f"machine {place}"] = ", ".join(words)
        for (guard, group), number in state.used:
            name = f"{LIMITS[guard].dimension} {group}" if guard else str(LIMITS[guard].dimension)
            cells[name] = f"{number} of {self.caps[guard, group]}"
        return cells | {"ticks since checkpoint": str(state.since)}
