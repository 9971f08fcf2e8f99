from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.backtest import (
    Fault,
    FaultTrace,
    JobModel,
    Placement,
    ReplacePolicy,
    Replay,
    compare,
    read_history,
    replay,
    spread,
)
from recovery.errors import BadInput
from recovery.guards import Dimension, Limit, Measure
from recovery.lifecycle import ActionKind

START = datetime(2026, 11, 1, tzinfo=UTC)
WAIT = ReplacePolicy("wait", is_swapped=False)
SWAP = ReplacePolicy("swap")
POLICIES = [
    WAIT,
    SWAP,
    ReplacePolicy("history", is_history_used=True),
    ReplacePolicy("blacklist", blacklist_days=5),
    ReplacePolicy("spares", spare_share=0.2),
    ReplacePolicy(
        "guarded",
        blacklist_days=5,
        guard=Limit("two", Dimension.CLUSTER, Measure.STANDING, (ActionKind.HOLD_NODE,), number=2),
    ),
]
HOUR = 1 / 24


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def fault(node: str, start: float, end: float | None) -> Fault:
    return Fault(node, day(start), None if end is None else day(end), "GPU")


def trace_of(*faults: Fault, nodes: str = "abcd", days: float = 20) -> FaultTrace:
    return FaultTrace(tuple(nodes), faults, START, day(days))


def job(nodes: int = 2, **overrides: float) -> JobModel:
    given = {
        "gpus_per_node": 8,
        "interval_seconds": 3600.0,
        "checkpoint_seconds": 0.0,
        "restart_seconds": 0.0,
    }
    return JobModel(nodes, **{**given, **overrides})  # type: ignore[arg-type]


def play(
    trace: FaultTrace,
    policy: ReplacePolicy = SWAP,
    model: JobModel | None = None,
    draws: tuple[float, ...] = (0.0,),
) -> Replay:
    return replay(read_history(trace, policy), Placement(trace.nodes, draws), model or job())


def taken(found: Replay) -> list[str]:
    return [decision.taken for decision in found.decisions]


def test_job_that_waits_counts_every_fault_that_starts_on_a_member() -> None:
    trace = trace_of(fault("a", 1, 3), fault("b", 2, 4), fault("c", 2, 3), fault("b", 6, 7))
    found = play(trace, WAIT)
    assert found.interruptions == 3
    assert found.waiting_seconds == (3 + 1) * 86_400, (
        "from day 1 until both are back on day 4, and day 6 to 7"
    )
    assert found.decisions == ()


def test_member_is_replaced_at_once_and_returns_to_the_pool_when_its_fault_ends() -> None:
    trace = trace_of(fault("a", 1, 3), fault("c", 2, 9), fault("d", 4, 5), fault("b", 6, 7))
    found = play(trace)
    # a is out, c takes over; c fails, d takes over; d fails, a (back since day 3) takes over; b fails, d takes over
    assert taken(found) == ["c", "d", "a", "d"]
    assert (found.interruptions, found.waiting_seconds) == (4, 0)


def test_node_that_is_down_is_never_taken_and_the_job_waits_for_the_first_to_return() -> None:
    trace = trace_of(fault("c", 1, 9), fault("d", 1, 5), fault("a", 2, 7))
    found = play(trace)
    assert [(each.failed, each.taken) for each in found.decisions] == [("a", ""), ("a", "d")]
    assert found.waiting_seconds == 3 * 86_400


def test_overlapping_faults_keep_a_node_away_until_the_last_ends() -> None:
    trace = trace_of(fault("c", 1, 3), fault("c", 2, 9), fault("d", 1, None), fault("a", 4, None))
    found = play(trace)
    assert found.decisions[-1].at == day(9)
    assert found.waiting_seconds == 5 * 86_400


def test_fault_that_takes_no_time_interrupts_all_the_same() -> None:
    assert play(trace_of(fault("a", 1, 1)), WAIT).interruptions == 1
    assert taken(play(trace_of(fault("a", 1, 1)))) == ["c"]


def test_open_end_lasts_until_the_trace_ends() -> None:
    found = play(trace_of(fault("a", 5, None)), WAIT)
    assert found.waiting_seconds == 15 * 86_400


def test_time_since_the_last_save_is_computed_again_and_the_restart_is_paid() -> None:
    model = job(interval_seconds=3600, checkpoint_seconds=600, restart_seconds=900)
    cycle = 4200
    found = play(trace_of(fault("a", 1, 2)), SWAP, model)
    assert found.again_seconds == pytest.approx(86_400 % cycle)
    assert found.restart_seconds == 900
    assert found.lost_gpu_hours == pytest.approx((86_400 % cycle + 900) * 16 / 3600)


def test_failure_during_a_restart_loses_what_of_it_was_done() -> None:
    model = job(restart_seconds=7200)
    trace = trace_of(fault("a", 1, 2), Fault("b", day(1 + HOUR), day(3)))
    found = play(trace, SWAP, model)
    assert found.restart_seconds == pytest.approx(3600 + 7200)
    assert found.again_seconds == pytest.approx(0, abs=1e-6)


def test_blacklist_keeps_a_healthy_node_away_and_says_how_long() -> None:
    trace = trace_of(fault("c", 1, 2), fault("d", 1, None), fault("a", 4, None))
    swap, kept = play(trace), play(trace, ReplacePolicy("blacklist", blacklist_days=5))
    assert taken(swap) == ["c"]
    assert [(each.at, each.taken) for each in kept.decisions] == [(day(4), ""), (day(6), "c")]
    assert kept.blocked_node_days == 4, "c, healthy from day 2 until day 6"
    assert kept.withheld_gpu_hours == 4 * 24 * 8


def test_new_fault_renews_the_blacklist() -> None:
    trace = trace_of(fault("c", 1, 2), fault("c", 4, 5), fault("d", 1, None), fault("a", 7, None))
    kept = play(trace, ReplacePolicy("blacklist", blacklist_days=5))
    assert kept.decisions[-1].at == day(9)


def test_guard_bounds_how_many_are_kept_away() -> None:
    """R2: a rate alone lets a slow drip take the whole fleet; a standing limit does not."""
    limit = Limit("one", Dimension.CLUSTER, Measure.STANDING, (ActionKind.HOLD_NODE,), number=1)
    trace = trace_of(fault("c", 1, 2), fault("d", 1, 3), fault("a", 4, None))
    free = play(trace, ReplacePolicy("blacklist", blacklist_days=9))
    guarded = play(trace, ReplacePolicy("guarded", blacklist_days=9, guard=limit))
    assert taken(free) == ["", "c"]
    assert taken(guarded) == ["d"], "c is kept away, d is one too many"
    assert guarded.blocked_node_days == 8


def test_record_decides_who_stands_in_and_a_lemon_is_better_than_waiting() -> None:
    """R45, in part: few nodes fail over and over; they come last, in a replay of faults."""
    lemon = [fault("c", 1, 2), fault("c", 3, 4)]
    history = ReplacePolicy("history", is_history_used=True)
    trace = trace_of(*lemon, fault("a", 5, 19))
    assert taken(play(trace)) == ["c"]
    assert taken(play(trace, history)) == ["d"]
    assert play(trace, history).avoided_node_days == pytest.approx(1 + 16)
    assert taken(play(trace_of(*lemon, fault("d", 4, None), fault("a", 5, 19)), history)) == ["c"]


def test_only_the_spares_stand_in_and_idle_ones_have_a_price() -> None:
    trace = trace_of(fault("a", 5, 10), fault("b", 6, 8), nodes="abcde", days=20)
    found = play(trace, ReplacePolicy("spares", spare_share=0.2))  # one: c
    assert taken(found) == ["c", "", "b"]
    assert found.waiting_seconds == 2 * 86_400
    assert found.idle_spare_node_days == 5 + 10, "c until day 5, a from day 10 on"


@st.composite
def traces(draw: st.DrawFn) -> FaultTrace:
    faults = []
    for _ in range(draw(st.integers(1, 25))):
        start = draw(st.integers(0, 190)) / 10
        length = draw(st.one_of(st.none(), st.integers(0, 60)))
        faults.append(
            fault(draw(st.sampled_from("abcdefgh")), start, None if length is None else start + length / 10)
        )
    return trace_of(*sorted(faults, key=lambda each: each.start), nodes="abcdefghij", days=20)


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(0, 200), st.randoms(use_true_random=False), st.sampled_from(POLICIES))
def test_shuffling_the_future_changes_no_decision(
    trace: FaultTrace, tenths: int, rng: random.Random, policy: ReplacePolicy
) -> None:
    """No look ahead: what begins later, and when what is open will end, is not known."""
    now = day(tenths / 10)
    past = [each for each in trace.faults if each.start <= now]
    future = [each for each in trace.faults if each.start > now]
    begins = [each.start for each in future]
    rng.shuffle(begins)
    shuffled = [
        replace(
            each, node=rng.choice(trace.nodes), start=start, end=start + timedelta(hours=rng.randrange(1, 99))
        )
        for each, start in zip(future, begins, strict=True)
    ]
    open_ = [
        replace(each, end=now + timedelta(hours=rng.randrange(1, 99)))
        if each.end is None or each.end > now
        else each
        for each in past
    ]
    other = replace(trace, faults=tuple(sorted([*open_, *shuffled], key=lambda each: each.start)))
    placement = Placement(
        tuple(rng.sample(trace.nodes, len(trace.nodes))), tuple(rng.random() for _ in range(60))
    )

    def decided(of: FaultTrace) -> list[object]:
        found = replay(read_history(of, policy), placement, job(4))
        return [each for each in found.decisions if each.at <= now]

    def known(of: FaultTrace) -> list[object]:
        return [each for each in read_history(of, policy).moments if each.at <= now]

    assert known(trace) == known(other)
    assert decided(trace) == decided(other)


@settings(max_examples=40, deadline=None)
@given(traces(), st.randoms(use_true_random=False), st.sampled_from(POLICIES))
def test_job_never_loses_more_time_than_there_is(
    trace: FaultTrace, rng: random.Random, policy: ReplacePolicy
) -> None:
    placement = Placement(
        tuple(rng.sample(trace.nodes, len(trace.nodes))), tuple(rng.random() for _ in range(60))
    )
    history = read_history(trace, policy)
    found = replay(history, placement, job(4, restart_seconds=7200))
    assert 0 <= found.lost_seconds <= 20 * 86_400 + 1e-6
    assert replay(history, placement, job(4, restart_seconds=7200)) == found, "same input, same output"
    down = {each.failed for each in found.decisions}
    assert down <= {each.node for each in trace.faults}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="job of 5 nodes does not fit on 4"):
        play(trace_of(), model=job(5))
    with pytest.raises(BadInput, match="z has a fault but is no node"):
        trace_of(fault("z", 1, 2))
    with pytest.raises(BadInput, match="does not fit into the trace"):
        trace_of(fault("a", 21, None))
    with pytest.raises(BadInput, match="does not fit into the trace"):
        trace_of(fault("a", 5, 4))
    with pytest.raises(BadInput, match="interval_seconds is 0"):
        job(interval_seconds=0)


def test_difference_is_only_called_one_where_it_stands_out_of_the_spread() -> None:
    def replays(*seconds: float) -> list[Replay]:
        return [Replay(1, each, 0, 0, 0, 0, 0, 3600, 8) for each in seconds]

    clear = compare(replays(10, 11, 12), replays(20, 22, 21))
    assert (clear.job_verdict, clear.job_gpu_hours.mean) == ("pays", -10)
    assert compare(replays(20, 22, 21), replays(10, 11, 12)).job_verdict == "does not pay"
    assert compare(replays(10, 30, 10), replays(20, 10, 21)).job_verdict == "no difference"
    assert compare(replays(5, 6), replays(5, 6)).job_verdict == "no difference"
    withheld = [replace(each, blocked_node_days=1) for each in replays(10, 11, 12)]
    assert compare(withheld, replays(20, 22, 21)).net_gpu_hours.mean == -10 + 24 * 8
    assert compare(withheld, replays(20, 22, 21)).net_verdict == "does not pay"


def test_spread_tells_mean_tails_and_error() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.p10, found.p90) == (3, 1.4, 4.6)
    assert found.error == pytest.approx((2.5 / 5) ** 0.5)
    with pytest.raises(BadInput, match="no placement"):
        spread([])
