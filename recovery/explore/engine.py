"""Walk every state that a model can reach, breadth first, and judge each step. Pure: no clock, no I/O.

Safety: the walk stops at the first broken property; because it goes breadth first, the way there is a
shortest one. Liveness: among the moves that an environment at rest still makes, every way from every state
that is not settled must lead to a settled one. That fails in a state without such a move, which ends the walk like a
broken property, and in a cycle of states that are not settled (a strongly connected component of more than one),
which is looked for when all states are known. Moves which change nothing do not go on for ever; beyond that
nothing is assumed to be fair, unless a model names who makes a move: who can move in every state of a cycle, and
never does in it, is not kept from it for ever (weak fairness).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Move[S: Hashable](NamedTuple):
    """One thing that can happen in a state.

    ``broken`` names a property that this very step breaks, "" when it breaks none. ``at_rest``: an
    environment at rest still does it, so that the promise of liveness may count on it. ``by``: who makes it, where
    whoever can always move at last does; "" where that is not assumed.
    """

    label: Hashable
    state: S
    broken: str = ""
    at_rest: bool = False
    by: str = ""


class Model[S: Hashable](Protocol):
    """What is walked. States are compact and hashable; what they mean stands in ``row``."""

    name: str

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that are judged: name -> sentence. The one of liveness is ``liveness``."""

    @property
    def bounds(self) -> Sequence[str]:
        """What the model leaves out or cuts, in sentences."""

    @property
    def liveness(self) -> str:
        """Name of the property that every way at rest leads to a settled state, "" for none."""

    def start(self) -> S:
        """The state in which everything begins."""

    def moves(self, state: S, *, reduced: bool) -> Iterable[Move[S]]:
        """All that can happen; ``reduced`` leaves out what differs from another move by a name only."""

    def broken(self, state: S) -> str:
        """A property that does not hold in the state, "" when all hold."""

    def is_cut(self, state: S) -> bool:
        """Whether the state is judged but not gone on from, because a bound is passed."""

    def is_settled(self, state: S) -> bool:
        """Whether the promise of liveness is kept here."""

    def canonical(self, state: S) -> S:
        """One state for all that differ by names only."""

    def weight(self, state: S) -> int:
        """How many states the canonical one stands for."""

    def says(self, label: Hashable) -> str:
        """A move's label in words."""

    def row(self, state: S) -> Mapping[str, str]:
        """A state as a row of a trace: column -> text, always the same columns."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a trace: what happened, and the state after it."""

    event: str
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that does not hold, and a shortest way that shows it.

    ``cycle_from``: from this row on the trace repeats for ever; None where it ends.
    """

    name: str
    sentence: str
    trace: tuple[Line, ...]
    cycle_from: int | None = None


@dataclass(frozen=True, slots=True)
class Walk:
    """What a walk met.

    ``states`` were stored, and stand for ``concrete`` states where names are not told apart (equal
    without reduction). ``depth`` is the longest shortest way. ``cut`` states were judged, not gone on from.
    """

    model: str
    reduced: bool
    states: int
    concrete: int
    transitions: int
    depth: int
    cut: int
    unsettled: int
    violation: Violation | None
    is_complete: bool = True


def walk[S: Hashable](
    model: Model[S],
    *,
    reduced: bool = True,
    most_states: int | None = None,
    on_layer: Callable[[int, int], None] | None = None,
) -> Walk:
    """Walk a model until everything is seen or a property is broken.

    Args:
        model: What to walk.
        reduced: Whether states that differ by names only are one.
        most_states: Stop when so many are stored, without having looked for cycles; the walk says so.
        on_layer: Told after each layer: its depth and the states stored so far.
    """
    return _Walker(model, reduced, most_states, on_layer).run()


class _Walker[S: Hashable]:
    """The stored part of a walk: states in order of discovery, and how each was first reached."""

    def __init__(
        self,
        model: Model[S],
        reduced: bool,
        most_states: int | None,
        on_layer: Callable[[int, int], None] | None,
    ) -> None:
        self.model = model
        self.reduced = reduced
        self.most_states = most_states
        self.on_layer = on_layer
        self.name: Callable[[S], S] = model.canonical if reduced else lambda state: state
        self.numbers: dict[S, int] = {}
        self.states: list[S] = []
        self.parents = array("q")
        self.transitions = 0
        self.depth = 0
        self.cut = 0
        self.unsettled = array("q")  # their numbers, ascending
        self.first_edge = array("q")  # where the edges of the n-th unsettled state begin
        self.edges = array("q")  # targets of moves at rest out of unsettled states
        self.movers = array("h")  # who makes the n-th of these: a number, 0 for nobody
        self.mover_numbers: dict[str, int] = {"": 0}

    def run(self) -> Walk:
        model = self.model
        start = self.name(model.start())
        if broken := model.broken(start):
            return self._broken(broken, (start,))
        self._add(start, -1)
        begin, end, complete = 0, 1, True
        while begin < end:
            for number in range(begin, end):
                if (violation := self._expand(number)) is not None:
                    return violation
            begin, end = end, len(self.states)
            if begin < end:
                self.depth += 1
                if self.on_layer:
                    self.on_layer(self.depth, end)
                if self.most_states is not None and end > self.most_states:
                    complete = False
                    break
        if complete and model.liveness and (found := self._never_settles()) is not None:
            return found
        return self._walk(None, complete)

    def _add(self, state: S, parent: int) -> int:
        number = len(self.states)
        self.numbers[state] = number
        self.states.append(state)
        self.parents.append(parent)
        return number

    def _expand(self, number: int) -> Walk | None:
        model, state = self.model, self.states[number]
        if model.is_cut(state):
            self.cut += 1
            return None
        is_unsettled = bool(model.liveness) and not model.is_settled(state)
        if is_unsettled:
            self.unsettled.append(number)
            self.first_edge.append(len(self.edges))
        for move in model.moves(state, reduced=self.reduced):
            self.transitions += 1
            if move.broken:
                return self._broken(move.broken, (*self._way(number), self.name(move.state)))
            if move.state == state:
                continue
            after = self.name(move.state)
            known = self.numbers.get(after)
            if known is None:
                if broken := model.broken(after):
                    return self._broken(broken, (*self._way(number), after))
                known = self._add(after, number)
            if is_unsettled and move.at_rest and known != number:
                self.edges.append(known)
                self.movers.append(self.mover_numbers.setdefault(move.by, len(self.mover_numbers)))
        if is_unsettled and len(self.edges) == self.first_edge[-1]:
            return self._broken(model.liveness, self._way(number))
        return None

    # Liveness.

    def _never_settles(self) -> Walk | None:
        """A cycle at rest that never settles: one that is entered nearest to the start."""
        place = {number: n for n, number in enumerate(self.unsettled)}

        def following(n: int) -> Iterator[int]:
            for edge in self._edges_of(n):
                if (target := place.get(self.edges[edge])) is not None:
                    yield target

        cyclic = [
            part
            for part in components(len(self.unsettled), following)
            if len(part) > 1 and self._can_last(part)
        ]
        if not cyclic:
            return None
        nearest = min(cyclic, key=min)
        entry = min(nearest)
        cycle = _cycle(entry, frozenset(nearest), following)
        way = self._way(self.unsettled[entry])
        around = tuple(self.states[self.unsettled[n]] for n in cycle)
        return self._broken(self.model.liveness, (*way, *around), cycle_from=len(way))

    def _edges_of(self, n: int) -> range:
        """The edges of the n-th unsettled state."""
        end = self.first_edge[n + 1] if n + 1 < len(self.first_edge) else len(self.edges)
        return range(self.first_edge[n], end)

    def _can_last(self, part: tuple[int, ...]) -> bool:
        """Whether a walk can stay in a component for ever although whoever can always move at last does."""
        members = {self.unsettled[n] for n in part}
        always = set(self.mover_numbers.values()) - {0}
        moving = set()
        for n in part:
            edges = self._edges_of(n)
            always &= {self.movers[edge] for edge in edges}
            moving |= {self.movers[edge] for edge in edges if self.edges[edge] in members}
        return always <= moving

    # Traces.

    def _way(self, number: int) -> tuple[S, ...]:
        way = []
        while number >= 0:
            way.append(self.states[number])
            number = self.parents[number]
        return tuple(reversed(way))

    def _broken(self, name: str, way: tuple[S, ...], cycle_from: int | None = None) -> Walk:
        trace = tuple(self._told(way, name))
        sentence = self.model.properties[name]
        return self._walk(Violation(name, sentence, trace, cycle_from), complete=True)

    def _told(self, way: tuple[S, ...], broken: str) -> Iterator[Line]:
        """The way as it would be told: every name stays with whom it belongs to.

        Canonical states change names from step to step, so the way is walked anew without reduction,
        taking at each step a move whose canonical result is the next state of the way.
        """
        model = self.model
        state = model.start()
        yield Line("", model.row(state))
        for n, wanted in enumerate(way[1:], start=2):
            matching = [move for move in model.moves(state, reduced=False) if self.name(move.state) == wanted]
            if n == len(way):
                matching = [move for move in matching if move.broken == broken] or matching
            move = matching[0]
            state = move.state
            yield Line(model.says(move.label), model.row(state))

    def _walk(self, violation: Violation | None, complete: bool) -> Walk:
        weight = self.model.weight
        return Walk(
            model=self.model.name,
            reduced=self.reduced,
            states=len(self.states),
            concrete=sum(weight(state) for state in self.states) if self.reduced else len(self.states),
            transitions=self.transitions,
            depth=self.depth,
            cut=self.cut,
            unsettled=len(self.unsettled),
            violation=violation,
            is_complete=complete,
        )


def components(size: int, following: Callable[[int], Iterable[int]]) -> Iterator[tuple[int, ...]]:
    """Strongly connected components of a graph over ``range(size)``. Source: Tarjan 1972, without recursion."""
    order = array("q", [-1]) * size
    low = array("q", [0]) * size
    on_stack = bytearray(size)
    stack: list[int] = []
    n = 0
    for root in range(size):
        if order[root] >= 0:
            continue
        order[root] = low[root] = n
        n += 1
        stack.append(root)
        on_stack[root] = 1
        calls = [(root, iter(following(root)))]
        while calls:
            node, rest = calls[-1]
            for target in rest:
                if order[target] < 0:
                    order[target] = low[target] = n
                    n += 1
                    stack.append(target)
                    on_stack[target] = 1
                    calls.append((target, iter(following(target))))
                    break
                if on_stack[target]:
                    low[node] = min(low[node], order[target])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[node])
                if low[node] == order[node]:
                    part = []
                    while True:
                        member = stack.pop()
                        on_stack[member] = 0
                        part.append(member)
                        if member == node:
                            break
                    yield tuple(part)


def _cycle(entry: int, part: frozenset[int], following: Callable[[int], Iterable[int]]) -> tuple[int, ...]:
    """A shortest way from ``entry`` back to it within a component, ``entry`` last."""
    parents: dict[int, int] = {}
    queue = deque([entry])
    while queue:
        node = queue.popleft()
        for target in following(node):
            if target == entry:
                way = [entry]
                while node != entry:
                    way.append(node)
                    node = parents[node]
                return tuple(reversed(way))
            if target in part and target not in parents:
                parents[target] = node
                queue.append(target)
    return ()
