from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from recovery.errors import BadInput
from recovery.lemons import DEFAULT_POLICY, Offence, Return
from recovery.spares import Candidate, SparePool, best_of, rank, repair_times, size_pool

START = datetime(2026, 11, 1, tzinfo=UTC)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def pool(**overrides: float) -> SparePool:
    given = {
        "nodes": 400, "failures_per_node_day": 1 / 250, "gpus_per_node": 8, "job_nodes": 128, "target_share": 0.95,
    }  # fmt: skip
    repair = repair_times([20.0] * 60 + [40.0] * 29 + [1000.0] * 11)
    return size_pool(repair=repair, **{**given, **overrides})  # type: ignore[arg-type]


def test_repairs_are_told_by_median_mean_and_tail() -> None:
    found = repair_times([3, 1, 2], open_hours=[100])
    assert (found.count, found.median_hours, found.mean_hours, found.open_repairs) == (4, 2.5, 26.5, 1)
    assert found.p90_hours == pytest.approx(3 + 0.7 * 97)
    with pytest.raises(BadInput, match="no repair has been seen"):
        repair_times([])
    with pytest.raises(BadInput, match="end after its begin"):
        repair_times([-1])


def test_long_tail_asks_for_more_spares_than_the_median_tells() -> None:
    found = pool()
    assert found.by_median < found.by_mean < found.by_p90
    assert found.advised == found.by_mean
    assert found.advised_share == found.advised / 400


def test_mean_that_one_endless_repair_spoils_does_not_decide_alone() -> None:
    spoiled = size_pool(
        nodes=400, failures_per_node_day=1 / 250, repair=repair_times([20.0] * 99 + [1e6]), gpus_per_node=8,
        job_nodes=128, target_share=0.95,
    )  # fmt: skip
    assert spoiled.by_mean > 500
    assert spoiled.advised == spoiled.by_p90 == spoiled.by_median


def test_pool_of_that_size_is_there_as_often_as_promised() -> None:
    """Against a simulation: failures at a constant rate, repairs as they come, no waiting."""
    found = pool()
    rng = random.Random(3)
    repairs = [20.0] * 60 + [40.0] * 29 + [1000.0] * 11
    away: list[float] = []
    at, ready, count = 0.0, 0, 0
    for _ in range(20_000):
        at += rng.expovariate(found.failures_a_day / 24)
        away = [end for end in away if end > at]
        if at > 3000:
            count += 1
            ready += len(away) < found.by_mean
        away.append(at + rng.choice(repairs))
    assert ready / count == pytest.approx(found.row(found.by_mean).ready_share, abs=0.015)
    assert ready / count >= 0.94


def test_each_size_has_its_price_and_what_it_saves() -> None:
    found = pool()
    nothing = found.row(0)
    assert (nothing.ready_share, nothing.idle_gpu_hours_a_day, nothing.saved_gpu_hours_a_day) == (0, 0, 0)
    idle = [row.idle_gpu_hours_a_day for row in found.rows]
    saved = [row.saved_gpu_hours_a_day for row in found.rows]
    assert idle == sorted(idle)
    assert saved == sorted(saved)
    assert idle[-1] <= len(found.rows) * 8 * 24
    assert saved[-1] <= 1.6 * 128 * 8 * 20 * 1.0001, "never more than every job waiting for the median repair"
    best = found.best_by_price
    assert all(best.net_gpu_hours_a_day >= row.net_gpu_hours_a_day for row in found.rows)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", 0),
        ("failures_per_node_day", 0),
        ("gpus_per_node", -8),
        ("job_nodes", 0),
        ("target_share", 1),
    ],
)
def test_pool_of_what_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{name} is"):
        pool(**{name: value})


def test_stand_in_is_the_one_with_the_best_record() -> None:
    """R45, R21, in part: clean before probation before lemon, and other hardware last; in the backtest alone."""
    fails = tuple(Offence(day(n), "Xid 79") for n in (8, 9))
    found = rank(
        [
            Candidate("lemon", fails, (Return(day(9.5)),)),
            Candidate("returned", (Offence(day(3), "fan"),), (Return(day(5)),)),
            Candidate("other-hardware", is_match=False),
            Candidate("clean-b"),
            Candidate("clean-a"),
        ],
        day(10),
        DEFAULT_POLICY,
    )
    assert [(each.node, each.tier) for each in found] == [
        ("clean-a", 0), ("clean-b", 0), ("returned", 1), ("lemon", 2), ("other-hardware", 3),
    ]  # fmt: skip
    assert found[3].lemon.reasons == ("2 failures in 7 days (limit 2)",)


def test_lowest_tier_is_taken_and_nobody_is_kept_away() -> None:
    assert best_of(["a", "b", "c"], {"a": 1}) == ["b", "c"]
    assert best_of(["a", "b"], {"a": 2, "b": 1}) == ["b"]
    assert best_of(["a"], {"a": 2}) == ["a"]
    assert best_of([], {"a": 2}) == []
    assert best_of(["a", "b"], {}) == ["a", "b"]
