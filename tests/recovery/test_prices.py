from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.errors import BadInput
from recovery.figures import Basis, assumed, estimated, hours_in_words, measured
from recovery.prices import (
    ElasticLoss,
    ElasticOption,
    GpuPrice,
    Hang,
    HangOption,
    SlowNode,
    SlowOption,
    confirmation_share,
    money,
    price_elastic,
    price_hang,
    price_slow_node,
    restart_price,
)

NOW = datetime(2026, 11, 29, 14, 0, tzinfo=UTC)

SLOW = SlowNode(
    gpus=64,
    slowdown_share=measured(0.2),
    since_checkpoint_seconds=measured(1500),
    to_checkpoint_seconds=estimated(300),
    restart_seconds=estimated(60),
    seen=3,
    looked=4,
)
HANG = Hang(
    gpus=64,
    since_checkpoint_seconds=measured(600),
    restart_seconds=estimated(60),
    still_seconds=measured(100),
    confirm_after_seconds=measured(400),
    hang_chance=assumed(0.5),
)
LOSS = ElasticLoss(
    replicas=3,
    gpus_per_replica=16,
    lost=1,
    replacement_seconds=measured(50),
    since_checkpoint_seconds=measured(14),
    restore_seconds=measured(18),
    full_restart_seconds=estimated(300),
    can_reshard=True,
    batch_per_replica=32,
)


def test_restart_costs_what_is_computed_again_and_the_restart_itself() -> None:
    price = restart_price(
        gpus=24,
        steps_lost=measured(88),
        step_seconds=measured(0.16),
        restart_seconds=estimated(10),
        wait_seconds=2,
    )
    assert [(part.name, part.gpu_seconds) for part in price.parts] == [
        ("computed again", pytest.approx(88 * 0.16 * 24)), ("restart", 240), ("wait before it", 48),
    ]  # fmt: skip
    assert price.gpu_hours == pytest.approx((88 * 0.16 + 12) * 24 / 3600)
    assert price.basis is Basis.ESTIMATED
    assert price.as_plain()["parts"][0] == {
        "name": "computed again", "seconds": 14.08, "gpus": 24, "basis": "measured",
    }  # fmt: skip


def test_price_is_as_weak_as_its_weakest_part() -> None:
    price = restart_price(
        gpus=1, steps_lost=measured(1), step_seconds=measured(1), restart_seconds=assumed(30)
    )
    assert price.basis is Basis.ASSUMED
    sure = restart_price(
        gpus=1, steps_lost=measured(1), step_seconds=measured(1), restart_seconds=measured(30)
    )
    assert sure.basis is Basis.ESTIMATED, "a forecast is never measured"


def test_slow_node_goes_at_the_next_safe_point_where_waiting_is_cheaper() -> None:
    choice = price_slow_node(SLOW, NOW)
    assert choice.chosen == SlowOption.EVICT_AT_CHECKPOINT
    assert choice.price(SlowOption.EVICT_AT_CHECKPOINT).gpu_seconds == pytest.approx(64 * (300 * 0.2 + 60))
    assert choice.price(SlowOption.EVICT_NOW).gpu_seconds == 64 * (1500 + 60)
    assert choice.deadline == NOW + timedelta(seconds=450)
    assert "confirmed: slow in 3 of the last 4" in choice.why


def test_slow_node_goes_now_where_little_is_lost_and_the_checkpoint_is_far() -> None:
    choice = price_slow_node(
        replace(SLOW, since_checkpoint_seconds=measured(30), to_checkpoint_seconds=estimated(1800)), NOW
    )
    assert choice.chosen == SlowOption.EVICT_NOW
    assert choice.deadline is None
    assert {price.option for price in choice.prices} == {SlowOption.EVICT_NOW, SlowOption.EVICT_AT_CHECKPOINT}


def test_slow_node_stays_until_it_is_confirmed_and_both_prices_are_shown_all_the_same() -> None:
    choice = price_slow_node(replace(SLOW, seen=2), NOW)
    assert choice.chosen == SlowOption.KEEP
    assert "slow in 2 of the last 4 comparisons, 3 are needed" in choice.why
    assert choice.price(SlowOption.EVICT_NOW).refused_because == choice.why
    assert choice.price(SlowOption.EVICT_NOW).gpu_seconds > choice.price(SlowOption.KEEP).gpu_seconds


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1e5), st.floats(0, 1e5))
def test_cheaper_moment_is_taken(slowdown: float, since: float, until: float) -> None:
    slow = replace(
        SLOW, slowdown_share=measured(slowdown), since_checkpoint_seconds=measured(since),
        to_checkpoint_seconds=measured(until),
    )  # fmt: skip
    choice = price_slow_node(slow, NOW)
    assert choice.price(choice.chosen).gpu_seconds == min(price.gpu_seconds for price in choice.prices)


def test_suspected_hang_waits_where_a_long_step_is_likely_enough() -> None:
    choice = price_hang(replace(HANG, judged_as="evaluation"), NOW)
    assert choice.chosen == HangOption.WAIT
    assert choice.deadline == NOW + timedelta(seconds=300), "the moment of confirmation, no later"
    assert choice.price(HangOption.ACT_NOW).gpu_seconds == 64 * 660
    assert choice.price(HangOption.WAIT).gpu_seconds == 64 * 0.5 * (300 + 660)
    assert choice.price(HangOption.WAIT).basis is Basis.ASSUMED


def test_standstill_in_a_legitimate_evaluation_is_judged_as_one() -> None:
    """R34: the phase of training that was judged is said, and its own allowance decides."""
    allowed = replace(
        HANG, judged_as="evaluation", confirm_after_seconds=measured(1800), hang_chance=assumed(0.05)
    )
    choice = price_hang(allowed, NOW)
    assert choice.chosen == HangOption.WAIT
    assert choice.deadline == NOW + timedelta(seconds=1700)
    assert "no progress for 100 s, judged as evaluation" in choice.why


def test_likely_hang_with_little_to_lose_is_acted_on() -> None:
    sure = replace(HANG, hang_chance=assumed(0.95), since_checkpoint_seconds=measured(10))
    choice = price_hang(sure, NOW)
    assert choice.chosen == HangOption.ACT_NOW
    share = confirmation_share(wait_seconds=300, act_seconds=70)
    assert price_hang(replace(sure, hang_chance=assumed(share + 0.01)), NOW).chosen == HangOption.ACT_NOW
    assert price_hang(replace(sure, hang_chance=assumed(share - 0.01)), NOW).chosen == HangOption.WAIT


def test_confirmed_hang_is_acted_on_whatever_is_lost_because_no_checkpoint_is_coming() -> None:
    choice = price_hang(replace(HANG, is_confirmed=True, since_checkpoint_seconds=measured(1e6)), NOW)
    assert choice.chosen == HangOption.ACT_NOW
    assert choice.price(HangOption.WAIT).gpu_seconds > choice.price(HangOption.ACT_NOW).gpu_seconds


def test_elastic_job_goes_on_smaller_where_the_replacement_is_slow() -> None:
    choice = price_elastic(LOSS, NOW)
    pause, resize = choice.price(ElasticOption.PAUSE_AND_RESUME), choice.price(ElasticOption.REPLICA_RESIZE)
    assert pause.gpu_seconds == 48 * (50 + 18 + 14)
    assert resize.gpu_seconds == 16 * 50 + 48 * (18 + 18 + 14)
    assert choice.chosen == ElasticOption.REPLICA_RESIZE
    assert (choice.batch_before, choice.batch_after) == (96, 64)
    assert choice.as_plain()["batch_after"] == 64
    assert len(choice.as_plain()["options"]) == 3


def test_elastic_job_waits_where_the_replacement_is_quick() -> None:
    choice = price_elastic(replace(LOSS, replacement_seconds=measured(20)), NOW)
    assert choice.chosen == ElasticOption.PAUSE_AND_RESUME
    assert (choice.batch_before, choice.batch_after) == (96, 96)
    assert choice.deadline == NOW + timedelta(seconds=300)


@pytest.mark.parametrize(
    ("changes", "chosen", "says"),
    [
        ({"can_reshard": False}, ElasticOption.PAUSE_AND_RESUME, "cannot be resharded"),
        ({"replacement_seconds": measured(301)}, ElasticOption.REPLICA_RESIZE, "the framework waits 300 s"),
        (
            {"replacement_seconds": measured(301), "can_reshard": False},
            ElasticOption.FULL_RESTART,
            "resharded",
        ),
        ({"tries": 10}, ElasticOption.FULL_RESTART, "10 of 10 retries are used"),
        ({"lost": 3}, ElasticOption.PAUSE_AND_RESUME, "no replica is left"),
        ({"is_head_lost": True, "lost": 0}, ElasticOption.FULL_RESTART, "the head is lost"),
    ],
    ids=["not-resharded", "beyond-timeout", "neither", "retries-used", "all-lost", "head-lost"],
)
def test_elastic_choice_keeps_inside_the_frameworks_own_limits(
    changes: dict[str, object], chosen: ElasticOption, says: str
) -> None:
    choice = price_elastic(replace(LOSS, **changes), NOW)  # type: ignore[arg-type]
    assert choice.chosen == chosen
    assert says in choice.why
    assert all(price.gpu_seconds > 0 for price in choice.prices), "what cannot be had is priced all the same"


def test_lost_head_is_priced_as_a_full_restart() -> None:
    choice = price_elastic(replace(LOSS, is_head_lost=True), NOW)
    assert choice.price(choice.chosen).gpu_seconds == 48 * (300 + 14)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: price_elastic(replace(LOSS, lost=4), NOW), "4 of 3 replicas"),
        (lambda: price_elastic(replace(LOSS, lost=0), NOW), "or a lost head"),
        (lambda: price_slow_node(replace(SLOW, slowdown_share=measured(1.5)), NOW), "lies between 0 and 1"),
        (lambda: price_slow_node(replace(SLOW, gpus=0), NOW), "gpus is 0"),
        (lambda: price_hang(replace(HANG, restart_seconds=measured(-1)), NOW), "restart_seconds is -1"),
        (lambda: price_hang(replace(HANG, hang_chance=assumed(2)), NOW), "chance of a hang"),
    ],
    ids=["too-many-lost", "none-lost", "slowdown", "no-gpu", "negative", "chance"],
)
def test_figures_that_cannot_be_are_refused_with_advice(call: object, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        call()  # type: ignore[operator]


def test_money_is_shown_with_its_price_or_not_at_all() -> None:
    price = GpuPrice("H100", 2.5, "EUR", date(2026, 11, 1), "framework contract")
    paid = money(12, "H100", {"H100": price})
    assert str(paid) == "30.00 EUR (H100 at 2.5 per GPU-hour, framework contract, 2026-11-01)"
    assert money(12, "A100", {"H100": price}) is None
    assert money(12, "H100", {}) is None


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        (0, "0"),
        (0.0002, "under 0.001"),
        (0.0171, "0.017"),
        (1.94, "1.9"),
        (9.96, "10"),
        (5_694_603, "5,694,603"),
    ],
)
def test_hours_are_said_without_an_exponent(hours: float, words: str) -> None:
    assert hours_in_words(hours) == words
