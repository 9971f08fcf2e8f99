"""The explorer itself, on graphs whose answer is known."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.explore.engine import Move, Walk, components, walk
from recovery.explore.small import SmallModel

Edges = Mapping[str, Sequence[str]]


class Graph(SmallModel[str]):
    """A model that is its graph. A state in capitals is settled; "bad" is broken."""

    name = "graph"
    liveness = "settles"
    properties: Mapping[str, str] = {"good": "nothing is bad", "settles": "every way at rest settles"}
    bounds: Sequence[str] = ()

    def __init__(self, edges: Edges, *, movers: Mapping[str, str] | None = None, restless: str = "") -> None:
        self.edges = edges
        self.movers = movers or {}
        self.restless = restless

    def start(self) -> str:
        return "a"

    def moves(self, state: str, *, reduced: bool) -> Iterator[Move[str]]:
        for to in self.edges.get(state, ()):
            way = f"{state}{to}"
            broken = "good" if to == "bad" else ""
            yield Move(way, to, broken, at_rest=way not in self.restless.split(), by=self.movers.get(way, ""))

    def is_settled(self, state: str) -> bool:
        return state.isupper()

    def row(self, state: str) -> Mapping[str, str]:
        return {"at": state}


class Pair(SmallModel[tuple[int, int]]):
    """Two counters to 2 that nothing tells apart."""

    name = "pair"
    liveness = ""
    properties: Mapping[str, str] = {}
    bounds: Sequence[str] = ()

    def start(self) -> tuple[int, int]:
        return (0, 0)

    def moves(self, state: tuple[int, int], *, reduced: bool) -> Iterator[Move[tuple[int, int]]]:
        first, second = state
        if first < 2:
            yield Move("first", (first + 1, second))
        if second < 2 and not (reduced and first == second):
            yield Move("second", (first, second + 1))

    def is_settled(self, state: tuple[int, int]) -> bool:
        return True

    def canonical(self, state: tuple[int, int]) -> tuple[int, int]:
        return (min(state), max(state))

    def weight(self, state: tuple[int, int]) -> int:
        return 1 if state[0] == state[1] else 2

    def row(self, state: tuple[int, int]) -> Mapping[str, str]:
        return {"counters": str(state)}

    def says(self, label: Hashable) -> str:
        return str(label)


def told(found: Walk) -> tuple[str, list[str], int | None]:
    assert found.violation is not None
    return (
        found.violation.name,
        [line.cells["at"] for line in found.violation.trace],
        found.violation.cycle_from,
    )


def test_sound_graph_is_walked_whole() -> None:
    found = walk(Graph({"a": "bc", "b": "D", "c": "D"}))
    assert (found.states, found.transitions, found.depth, found.unsettled) == (4, 4, 2, 3)
    assert found.violation is None


def test_shortest_way_to_what_is_bad_is_told() -> None:
    found = walk(Graph({"a": ["b", "c"], "b": ["d"], "d": ["bad"], "c": ["bad"]}))
    assert told(found) == ("good", ["a", "c", "bad"], None)


def test_state_without_a_way_on_never_settles() -> None:
    assert told(walk(Graph({"a": "bD", "b": ""}))) == ("settles", ["a", "b"], None)


def test_state_without_a_way_on_ends_the_walk() -> None:
    found = walk(Graph({"a": "bc", "b": "", "c": "d", "d": "E"}))
    assert told(found) == ("settles", ["a", "b"], None)
    assert found.states == 3, "what lies behind c is not walked"


def test_way_that_only_an_unquiet_environment_goes_is_no_way() -> None:
    assert told(walk(Graph({"a": "bD", "b": "D"}, restless="bD"))) == ("settles", ["a", "b"], None)


def test_cycle_beside_a_way_out_never_settles() -> None:
    found = walk(Graph({"a": "b", "b": "cD", "c": "b"}))
    assert told(found) == ("settles", ["a", "b", "c", "b"], 2)


def test_cycle_in_which_somebody_is_kept_from_moving_for_ever_is_not_one() -> None:
    always = {"bc": "x", "bD": "y", "cb": "x", "cD": "y"}
    assert walk(Graph({"a": "b", "b": "cD", "c": "bD"}, movers=always)).violation is None
    sometimes = {"bc": "x", "bD": "y", "cb": "x"}
    assert walk(Graph({"a": "b", "b": "cD", "c": "b"}, movers=sometimes)).violation is not None


def test_move_that_changes_nothing_is_no_cycle() -> None:
    assert walk(Graph({"a": "aD"})).violation is None


def test_reduced_states_stand_for_all() -> None:
    reduced, whole = walk(Pair()), walk(Pair(), reduced=False)
    assert (reduced.states, reduced.concrete, whole.states) == (6, 9, 9)


def test_walk_that_is_stopped_says_so() -> None:
    found = walk(Graph({"a": "b", "b": "c", "c": "D"}), most_states=2)
    assert (found.is_complete, found.violation) == (False, None)


@given(
    st.integers(1, 7).flatmap(
        lambda size: st.tuples(
            st.just(size), st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))
        )
    )
)
def test_components_are_those_who_reach_each_other(graph: tuple[int, set[tuple[int, int]]]) -> None:
    size, edges = graph
    following: dict[int, list[int]] = {n: sorted(to for at, to in edges if at == n) for n in range(size)}
    reach = {n: {n} for n in range(size)}
    for _ in range(size):
        for n in range(size):
            for to in list(reach[n]):
                reach[n].update(following[to])
    wanted = {frozenset(m for m in reach[n] if n in reach[m]) for n in range(size)}
    assert {frozenset(part) for part in components(size, lambda n: following[n])} == wanted


def test_deep_graph_needs_no_recursion() -> None:
    size = 50_000
    parts = components(size, lambda n: [(n + 1) % size])
    assert [len(part) for part in parts] == [size]


@pytest.mark.parametrize("label", ["first", 3])
def test_label_is_its_sentence(label: Hashable) -> None:
    assert Pair().says(label) == str(label)
