from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.errors import BadInput
from recovery.figures import Basis
from recovery.reliability import (
    PRIOR_NODE_DAYS,
    Exposure,
    Failure,
    by_class,
    by_job_size,
    by_node,
    estimate,
    judge_gaps,
    size_class,
    with_prior,
    without_down,
    worst_share,
)

START = datetime(2026, 11, 1, tzinfo=UTC)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def watched(nodes: int, days: float, **overrides: int) -> list[Exposure]:
    return [Exposure(f"n{n}", START, day(days), **overrides) for n in range(nodes)]


def failed(count: int, *, node: str = "n0") -> list[Failure]:
    return [Failure(day(1 + n), node) for n in range(count)]


def test_mtbf_is_exposure_over_failures_with_the_exact_interval() -> None:
    found = estimate(failed(10), watched(10, 100))
    assert found.exposure_node_days == 1000
    assert found.node_days == 100
    # Exact Poisson limits for 10 events, as printed: 4.795 and 18.390.
    assert found.low_node_days == pytest.approx(1000 / 18.390, rel=1e-4)
    assert found.high_node_days == pytest.approx(1000 / 4.795, rel=1e-4)
    assert found.basis is Basis.MEASURED


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(7)
    hits = 0
    for _ in range(400):
        times, at = [], rng.expovariate(1 / 50)
        while at < 400:
            times.append(Failure(day(at), "n0"))
            at += rng.expovariate(1 / 50)
        found = estimate(times, watched(1, 400), confidence=0.9)
        hits += found.low_node_days <= 50 <= (found.high_node_days or float("inf"))
    assert 0.9 <= hits / 400 <= 0.96, "exact intervals of a discrete count hold at least what they say"


def test_no_failure_gives_a_lower_bound_only() -> None:
    found = estimate([], watched(10, 100))
    assert (found.node_days, found.high_node_days) == (None, None)
    assert found.low_node_days == pytest.approx(1000 / 3.6889, rel=1e-4)
    with pytest.raises(BadInput, match="use with_prior"):
        found.job_seconds(10)


def test_nothing_watched_is_refused() -> None:
    with pytest.raises(BadInput, match="since when and until when"):
        estimate(failed(1), [])
    with pytest.raises(BadInput, match="swap the two"):
        estimate([], [Exposure("n0", day(2), day(1))])
    with pytest.raises(BadInput, match="confidence is 1"):
        estimate([], watched(1, 1), confidence=1)


def test_failures_that_jobs_made_are_left_out_and_counted() -> None:
    bug = Failure(day(3), "n0", by_machine=False)
    found = estimate([*failed(2), bug], watched(1, 100))
    assert (found.failures, found.left_out, found.node_days) == (2, 1, 50)


def test_prior_is_all_there_is_at_first_and_shrinks_as_history_comes() -> None:
    new = with_prior([], [])
    assert (new.node_days, new.prior_share, new.basis) == (PRIOR_NODE_DAYS, 1, Basis.ASSUMED)
    assert with_prior([], watched(1, 5)).basis is Basis.ASSUMED
    assert with_prior([], watched(1, 6)).basis is Basis.ESTIMATED
    assert with_prior(failed(1), watched(1, 2)).basis is Basis.ESTIMATED
    weights, means = [], []
    for days in (27, 270, 2700):  # a cluster of 10 nodes that fails each 100 node-days
        found = with_prior(failed(days // 10), watched(10, days))
        weights.append(round(found.prior_share, 3))
        means.append(found.node_days)
        assert found.basis is Basis.ESTIMATED
        assert found.low_node_days < (found.node_days or 0) < (found.high_node_days or 0)
    assert weights == [0.667, 0.167, 0.02]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(100, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.integers(1, 5000))
def test_prior_lies_between_itself_and_what_was_measured(count: int, days: int) -> None:
    plain = estimate(failed(count), watched(1, days))
    blended = with_prior(failed(count), watched(1, days))
    assert blended.node_days is not None
    bounds = sorted((PRIOR_NODE_DAYS, plain.node_days if plain.node_days is not None else float("inf")))
    assert bounds[0] * 0.999999 <= blended.node_days <= bounds[1] * 1.000001


def test_job_lives_as_long_as_a_node_divided_by_their_number() -> None:
    figure = estimate(failed(10), watched(10, 100)).job_seconds(50)
    assert figure.value == 2 * 86_400
    assert "10 failures in 1000 node-days" in figure.source
    assert "prior of 270 node-days weighs 100%" in with_prior([], []).job_seconds(8).source
    with pytest.raises(BadInput, match="nodes is 0"):
        with_prior([], []).job_seconds(0)


def test_each_node_is_judged_with_the_prior_and_quiet_ones_too() -> None:
    found = by_node(failed(4, node="n1"), watched(3, 100))
    assert list(found) == ["n0", "n1", "n2"]
    assert found["n1"].node_days == pytest.approx(640 / 6)
    assert found["n0"].node_days == pytest.approx(640 / 2)


def test_classes_share_the_exposure_and_the_most_frequent_comes_first() -> None:
    failures = [Failure(day(n), "n0", "GPU") for n in range(3)] + [Failure(day(9), "n1", "NIC")]
    found = by_class(failures, watched(2, 50))
    assert [(name, each.node_days) for name, each in found.items()] == [
        ("GPU", pytest.approx(100 / 3)),
        ("NIC", 100),
    ]


def test_job_sizes_are_judged_by_the_node_time_that_they_used() -> None:
    exposures = [
        *watched(4, 10, job_nodes=4),
        *watched(100, 10, job_nodes=100),
        Exposure("n0", day(10), day(20)),
    ]
    failures = [
        Failure(day(1), "n0", job_nodes=4),
        *[Failure(day(n), "n1", job_nodes=100) for n in range(1, 11)],
    ]
    found = by_job_size(failures, exposures)
    assert {name: each.node_days for name, each in found.items()} == {
        "1-8": 40,
        "65-512": 100,
        "no job": None,
    }


def test_down_time_is_taken_off() -> None:
    exposure = Exposure("n0", day(0), day(10), 4)
    down = [("n0", day(1), day(3)), ("n0", day(2), day(4)), ("n1", day(0), day(9)), ("n0", day(9), day(12))]
    left = without_down([exposure], down)
    assert left == (Exposure("n0", day(0), day(1), 4), Exposure("n0", day(4), day(9), 4))
    assert without_down([exposure], [("n0", day(-1), day(11))]) == ()


def test_worst_nodes_have_their_share() -> None:
    failures = [*failed(6, node="a"), *failed(3, node="b"), *failed(1, node="c")]
    assert worst_share(failures, 1) == 0.6
    assert worst_share(failures, 2) == 0.9
    assert worst_share([], 2) == 0


@pytest.mark.parametrize("count", [8, 40, 400])
def test_gaps_of_a_constant_rate_are_rarely_called_clustered(count: int) -> None:
    rng = random.Random(count)
    found = [judge_gaps([rng.expovariate(1) for _ in range(count)]) for _ in range(300)]
    assert sum(bool(each.is_clustered) for each in found) <= 12, "about 1 % each, 4 % at most"
    assert sum(bool(each.is_fit_poor) for each in found) <= 12


def test_gaps_of_bursts_are_called_clustered_and_even_ones_only_a_poor_fit() -> None:
    bursts = judge_gaps([1, 1, 1, 1, 60] * 10)
    assert (bursts.is_clustered, bursts.is_fit_poor) == (True, True)
    assert "too narrow" in bursts.sentence
    even = judge_gaps([10.0] * 50)
    assert (even.is_clustered, even.is_fit_poor, even.spread) == (False, True, pytest.approx(0, abs=1e-6))
    assert even.sentence == "exponential fit is poor"


def test_few_gaps_say_nothing() -> None:
    found = judge_gaps([1, 100, 1, 100])
    assert (found.is_clustered, found.is_fit_poor) == (None, None)
    assert "too few to say" in found.sentence


def test_each_estimate_carries_its_flag() -> None:
    assert judge_gaps([1, 100, 1, 100]).flag == "too few gaps"
    assert judge_gaps([1, 1, 1, 1, 60] * 10).flag == "clustered, poor fit"
    assert judge_gaps([10.0] * 50).flag == "poor fit"
    regular = random.Random(3)
    assert judge_gaps([regular.expovariate(1) for _ in range(100)]).flag == "constant rate"


def test_interval_of_a_job_is_its_nodes_share_of_the_interval_of_a_node() -> None:
    found = estimate(failed(10), watched(10, 100))
    low, high = found.job_bounds_seconds(50)
    assert low == pytest.approx(1000 / 18.390 * 86_400 / 50, rel=1e-4)
    assert high == pytest.approx(1000 / 4.795 * 86_400 / 50, rel=1e-4)
    assert estimate([], watched(10, 100)).job_bounds_seconds(50)[1] is None
    with pytest.raises(BadInput, match="nodes is 0"):
        found.job_bounds_seconds(0)


def test_nodes_that_were_watched_together_count_each() -> None:
    attempt = Exposure("", day(0), day(2), job_nodes=16, nodes=16)
    assert attempt.node_days == 32
    assert by_job_size([], [attempt, Exposure("", day(0), day(1), 4, 4)]) == {
        "1-8": estimate([], watched(4, 1)),
        "9-64": estimate([], watched(16, 2)),
    }


@pytest.mark.parametrize(
    ("nodes", "name"), [(1, "1-8"), (8, "1-8"), (9, "9-64"), (512, "65-512"), (513, "513 and more")]
)
def test_sizes_of_jobs_have_borders(nodes: int, name: str) -> None:
    assert str(size_class(nodes)) == name
