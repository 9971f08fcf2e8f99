"""What limits mean, which are refused, and the words for people."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import guards
from recovery.errors import BadInput
from recovery.guards import KEPT_SLOTS, SLOTS, Dimension, Limit, Measure, check_limit, find_unreachable
from recovery.lifecycle import ActionKind

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
RACK = Limit("in-rack", Dimension.RACK, Measure.STANDING, (ActionKind.HOLD_NODE,), number=3, share=0.1)
RATE = Limit(
    "a-minute",
    Dimension.TENANT,
    Measure.WINDOW,
    (ActionKind.RESTART_PROCESS,),
    number=20,
    window_seconds=60.0,
)


@pytest.mark.parametrize(
    ("overrides", "members", "cap"),
    [
        ({}, 100, 3),
        ({}, 20, 2),
        ({"number": None}, 100, 10),
        ({"share": None}, 2, 3),
        ({"at_least": 1}, 4, 1),
        ({"at_least": 5}, 4, 3),
        ({"number": None, "share": 0.29}, 100, 29),
    ],
    ids=[
        "number binds",
        "share binds",
        "share",
        "number",
        "small rack",
        "number over at_least",
        "as written",
    ],
)
def test_smaller_of_number_and_share_binds(overrides: dict[str, Any], members: int, cap: int) -> None:
    assert replace(RACK, **overrides).cap(members) == cap


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (replace(RACK, number=0), "limit 0: no machine could ever be isolated; set at least 1"),
        (replace(RATE, number=0), "limit 0 a minute: no action could ever begin"),
        (
            replace(RACK, number=31, share=None),
            "the largest has 30 machines: it would never hold anything back; set at most 29",
        ),
        (replace(RACK, number=30, share=None), "limit 30 lets every rack be isolated whole"),
        (
            replace(RACK, dimension=Dimension.CLUSTER, number=31, share=None),
            "limit 31 lets the fleet be isolated whole, the largest has 30 machines",
        ),
        (replace(RACK, number=None, share=1.0), "limit 100 % lets every rack be isolated whole"),
        (
            replace(RACK, number=None, at_least=500),
            "limit 10 %, at least 500 lets every rack be isolated whole, the largest has 30 machines",
        ),
        (replace(RACK, number=500, at_least=500), "limit 10 %, at least 500 or 500 lets every rack"),
        (
            replace(RACK, dimension=Dimension.TENANT, number=100, share=None),
            "limit 100 lets every tenant be isolated whole, the largest has 100 machines",
        ),
        (
            replace(RATE, number=10**9),
            "limit 1000000000 a minute is not under the 660000 that 100 machines could ever take: it would never",
        ),
        (
            replace(RATE, number=10**9, actions=(ActionKind.HOLD_NODE,), dimension=Dimension.RACK),
            "is not under the 1800 that 30 machines could ever take",
        ),
        (replace(RATE, number=None, share=0.5, at_least=10**9), "is not under the 660000"),
        (replace(RATE, number=2**31), "2147483648 is no number of actions"),
        (replace(RACK, at_least=2**31), "at_least is a number of machines"),
        (replace(RATE, dimension=Dimension.RACK), "restart_process is of a job and not of one machine"),
        (
            replace(RACK, number=None, share=0.05),
            "5 % of rack r01 with 8 machines is 0.4: it can never admit one; set at_least 1, or a share of 13 %",
        ),
        (replace(RACK, actions=()), "guards nothing"),
        (replace(RACK, actions=(ActionKind.RELEASE_NODE,)), "release_node cannot be guarded"),
        (replace(RATE, actions=(ActionKind.ASK_PERSON,)), "ask_person cannot be guarded"),
        (replace(RACK, actions=(ActionKind.STOP_JOB,)), "stop_job leaves no machine out of service"),
        (replace(RACK, number=None, share=None), "give a number, a share, or both"),
        (replace(RACK, share=1.5), "a share of 1.5"),
        (replace(RACK, share=0.0), "a share of 0"),
        (replace(RACK, number=-1), "-1 is no number of machines"),
        (replace(RACK, share=None, at_least=1), "goes with a share"),
        (replace(RATE, window_seconds=0.0), "needs a window"),
        (replace(RACK, window_seconds=60.0), "has no window"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unreachable_limit_is_refused_with_its_reason(limit: Limit, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_limit(limit, {"r01": 8, "r02": 30}, fleet=100)
    assert says in str(caught.value)
    assert caught.value.field


@pytest.mark.parametrize("name", ["", "n" * 64, "in rack", "a/b", "räck"])
def test_name_that_a_command_line_or_a_label_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="is no name of a guard: give 1 to 63 letters"):
        guards.check_name(name)
    guards.check_name("n" * 63)


def test_limit_just_under_what_could_never_bind_is_taken() -> None:
    for limit in (
        replace(RACK, number=29, share=None),
        replace(RACK, dimension=Dimension.TENANT, number=99, share=None),
        replace(RACK, number=3, share=1.0),
        replace(RACK, number=None, share=0.99),
        replace(RATE, number=659_999),
    ):
        check_limit(limit, {"r01": 8, "r02": 30}, fleet=100)
    check_limit(replace(RACK, number=1, share=None), {"r01": 1})  # one machine is all or nothing
    check_limit(replace(RATE, number=10**9), {})  # a fleet that nobody has seen yet


@settings(max_examples=80, deadline=None)
@given(
    st.builds(
        Limit,
        name=st.just("x"),
        dimension=st.sampled_from([Dimension.RACK, Dimension.TENANT, Dimension.CLUSTER]),
        measure=st.just(Measure.STANDING),
        actions=st.just((ActionKind.HOLD_NODE,)),
        number=st.none() | st.integers(0, 40),
        share=st.none() | st.floats(0.001, 1.0),
        at_least=st.integers(0, 40),
    ).filter(lambda limit: limit.number is not None or limit.share is not None),
    st.sampled_from([0.0, 1.0, 60.0]),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 30)),
)
def test_limit_is_refused_exactly_where_it_can_never_bind_or_never_admit(
    limit: Limit, window: float, groups: dict[str, int]
) -> None:
    """Against every use of every group there is, played; and what is offered instead works."""
    if window:
        limit = replace(limit, measure=Measure.WINDOW, window_seconds=window)
    limit = replace(limit, at_least=limit.at_least if limit.share is not None else 0)
    found = find_unreachable(limit, groups)
    sizes = [size for size in groups.values() if size]
    if not sizes:
        assert (found is not None) == (limit.number == 0)
        return

    def most(size: int) -> int:
        return int(size * window) if window else size

    blocks = any(limit.cap(size) == 0 for size in sizes)
    binds = any(limit.cap(size) < most(size) for size in sizes)
    all_or_nothing = limit.cap(max(sizes)) == 1 and max(map(most, sizes)) == 1
    assert (found is None) == (not blocks and (binds or all_or_nothing))
    if found is not None:
        assert found.mended is not None
        assert find_unreachable(found.mended, groups) is None


def test_every_default_limit_can_be_set_on_any_fleet() -> None:
    for limit in guards.DEFAULT_LIMITS:
        for sizes in ({"x": 1}, {"x": 8, "y": 3}, {"x": 10_000}):
            check_limit(limit, sizes)
    assert len({limit.name for limit in guards.DEFAULT_LIMITS}) == len(guards.DEFAULT_LIMITS)


def test_defaults_limit_what_stands_and_what_a_window_sees() -> None:
    """R2: a rate alone would let a slow drip take the fleet; by cluster, pool and rack."""
    isolating = [limit for limit in guards.DEFAULT_LIMITS if ActionKind.HOLD_NODE in limit.actions]
    assert {limit.measure for limit in isolating} == set(Measure)
    standing = {limit.dimension for limit in isolating if limit.measure is Measure.STANDING}
    assert standing == set(Dimension)


def test_what_gives_back_is_in_no_guard() -> None:
    """R5: a release is never held back, because nothing counts it."""
    assert not {ActionKind.RELEASE_NODE, ActionKind.RESUME_JOB, ActionKind.ASK_PERSON} & guards.GUARDED_KINDS


@pytest.mark.parametrize(
    ("limit", "group", "used", "members", "says"),
    [
        (RACK, "r01", 3, 30, "3 of 3 machines of rack r01 are isolated now; limit 10 % of 30 or 3"),
        (
            replace(RACK, number=None, at_least=1), "r01", 1, 8,
            "1 of 1 machine of rack r01 is isolated now; limit 10 % of 8, at least 1",
        ),
        (RACK, "r01", 5, 30, "5 machines of rack r01 are isolated now; limit 10 % of 30 or 3"),
        (RATE, "llm", 20, 0, "20 of 20 actions of tenant llm began in the last minute; limit 20 a minute"),
        (
            replace(RATE, dimension=Dimension.CLUSTER, number=1, window_seconds=90.0), "*", 1, 0,
            "1 of 1 action of cluster west began in the last 90 s; limit 1 in 90 s",
        ),
    ],
)  # fmt: skip
def test_refusal_carries_its_numbers_in_words(
    limit: Limit, group: str, used: int, members: int, says: str
) -> None:
    assert guards.refusal(limit, group, used=used, members=members, cluster="west") == says


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 300), max_size=120).map(sorted),
    st.integers(1, 8),
    st.sampled_from([10.0, 60.0, 90.0]),
)
def test_no_window_ever_holds_more_than_its_limit(moments: list[float], cap: int, window: float) -> None:
    """Counted in slots, against a log of every moment: never above, and strict by at most one slot."""
    limit = replace(RATE, number=cap, window_seconds=window)
    totals, newest, let_in = [0] * (KEPT_SLOTS + 1), 0, []
    for moment in moments:
        at = NOW + timedelta(seconds=moment)
        slot = max(newest, guards.slot_of(at, window))
        live = guards.live_slots(totals, newest, slot)
        if sum(live.values()) < cap:
            totals, newest = guards.totals_of(live | {slot: live.get(slot, 0) + 1}, slot), slot
            let_in.append(at)
            assert sum(at - each < timedelta(seconds=window) for each in let_in) <= cap
        else:
            kept = timedelta(seconds=window * (1 + 1 / SLOTS))
            assert sum(at - each < kept for each in let_in) >= cap
            frees = guards.frees_at(limit, cap, totals, newest, at)
            assert frees is not None
            assert at <= frees <= at + kept
            later = guards.live_slots(
                totals, newest, guards.slot_of(frees + timedelta(microseconds=1), window)
            )
            assert sum(later.values()) < cap


def test_held_action_is_looked_at_again_when_there_is_room_and_not_all_in_one_second() -> None:
    frees = NOW + timedelta(seconds=20)
    first = guards.retry_at(frees, NOW, jitter=0.0)
    last = guards.retry_at(frees, NOW, jitter=0.999)
    assert frees < first < last < frees + timedelta(seconds=6)
    assert guards.retry_at(None, NOW, jitter=0.0) > NOW + timedelta(seconds=59)
