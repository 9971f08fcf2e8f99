from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.lemons import (
    HealthChange,
    LemonPolicy,
    Offence,
    Return,
    blacklisted_until,
    flaps,
    probation,
    score,
)

START = datetime(2026, 11, 1, tzinfo=UTC)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def offences(*days: float, slot: str = "") -> list[Offence]:
    return [Offence(day(each), "Xid 79", slot) for each in days]


def returns(*days: float) -> list[Return]:
    return [Return(day(each)) for each in days]


def test_node_that_fails_over_and_over_is_a_lemon_with_reasons() -> None:
    """R45, in part: repeat offences over 7 and 30 days, per node and per slot, with the reason.

    The backtest asks for the score; no page and no live decision does yet.
    """
    once = score(offences(39), day(40))
    assert (once.short, once.long, once.is_lemon, once.reasons) == (1, 1, False, ())
    twice_lately = score(offences(35, 39), day(40))
    assert twice_lately.is_lemon
    assert twice_lately.reasons == ("2 failures in 7 days (limit 2)",)
    spread_out = score(offences(12, 22, 32), day(40))
    assert spread_out.reasons == ("3 failures in 30 days (limit 3)",)
    same_part = score([*offences(15, slot="GPU 3"), *offences(30, slot="GPU 3")], day(40))
    assert (same_part.worst_slot, same_part.worst_slot_weight) == ("GPU 3", 2)
    assert same_part.reasons == ("2 of them on GPU 3 (limit 2)",)
    different_parts = score([*offences(15, slot="GPU 3"), *offences(30, slot="GPU 4")], day(40))
    assert not different_parts.is_lemon


def test_old_offences_are_forgotten() -> None:
    assert score(offences(1, 2, 3), day(40)).score == 0
    assert score(offences(1, 2, 3), day(9)).is_lemon


def test_suspicion_weighs_less_than_proof() -> None:
    weak = [Offence(day(38), "slow once", weight=0.3), Offence(day(39), "slow once", weight=0.3)]
    assert not score(weak, day(40)).is_lemon
    assert score(weak, day(40)).score == pytest.approx(0.3)


def test_failing_different_jobs_is_counted() -> None:
    seen = [
        Offence(day(39), "Xid 79", job="a"),
        Offence(day(39.5), "Xid 79", job="b"),
        Offence(day(39.7), "Xid 79"),
    ]
    assert score(seen, day(40)).jobs == 2


def test_each_pool_has_thresholds_of_its_own() -> None:
    """R47, in part: one policy for all nodes does not fit. No setting holds one for a pool yet, and no mode."""
    strict, lenient = LemonPolicy(short_limit=1), LemonPolicy(short_limit=4, long_limit=6)
    assert score(offences(39), day(40), strict).is_lemon
    assert not score(offences(36, 37, 39), day(40), lenient).is_lemon


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=8), st.lists(st.integers(0, 60), max_size=8), st.integers(0, 60))
def test_future_changes_nothing(failed: list[int], back: list[int], now: int) -> None:
    seen = [each for each in failed if each <= now]
    seen_back = [each for each in back if each <= now]
    assert score(offences(*failed), day(now)) == score(offences(*seen), day(now))
    assert probation(offences(*failed), returns(*back), day(now)) == probation(
        offences(*seen), returns(*seen_back), day(now)
    )


def test_return_begins_a_probation_that_ends() -> None:
    """R21, in part: what passes idle checks may fail again under load. No live return begins a probation yet."""
    on = probation(offences(1), returns(2), day(5))
    assert (on.is_on, on.until, on.level, on.why) == (True, day(9), 0, "first return")
    assert not probation(offences(1), returns(2), day(9)).is_on
    assert not probation(offences(1), [], day(5)).is_on


def test_relapse_makes_the_next_probation_longer_up_to_a_bound() -> None:
    once = probation(offences(1, 4), returns(2, 5), day(6))
    assert (once.level, once.until) == (1, day(5 + 14))
    often = probation(offences(1, 3, 6, 9, 12), returns(2, 5, 8, 11, 14), day(15))
    assert (often.level, often.until) == (4, day(14 + 28))
    later = probation(offences(1, 20), returns(2, 21), day(22))
    assert later.level == 0, "a failure after the probation is no relapse"


def test_node_that_returns_again_and_again_needs_a_person() -> None:
    found = probation(offences(1, 2, 3), returns(1.5, 2.5, 3.5), day(4))
    assert found.needs_person
    assert found.why == "returned 3 times in 7 days"


def test_moment_of_health_is_no_recovery() -> None:
    """R22, in part: a node that flaps does not count as back, and repeated reports do not reset the clock.

    Nothing live asks for it yet.
    """
    policy = LemonPolicy(hold_down_seconds=600)

    def change(minute: float, is_healthy: bool) -> HealthChange:
        return HealthChange(START + timedelta(minutes=minute), is_healthy)

    flapping = [change(0, True), change(5, False), change(6, True), change(8, False), change(9, True)]
    now = START + timedelta(minutes=15)
    found = flaps(flapping, now, policy)
    assert (found.count, found.is_back) == (2, False)
    assert found.back_at == START + timedelta(minutes=19)
    repeated = [*flapping, change(12, True), change(14, True)]
    assert flaps(repeated, now, policy) == found
    assert flaps(repeated, START + timedelta(minutes=19), policy).is_back
    again = [*repeated, change(16, False), change(17, True)]
    third = flaps(again, START + timedelta(minutes=18), policy)
    assert (third.count, third.needs_person, third.back_at) == (3, True, START + timedelta(minutes=27))
    assert flaps([change(0, False)], now, policy).back_at is None


def test_blacklist_counts_from_the_newest_offence() -> None:
    assert blacklisted_until(offences(5, 1), 7) == day(12)
    assert blacklisted_until([], 7) is None
