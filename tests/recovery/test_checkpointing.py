from __future__ import annotations

import math

import pytest

from recovery.checkpointing import (
    DALY,
    SAVE_INCLUSIVE,
    YOUNG,
    Store,
    daly_seconds,
    plan_checkpoints,
    save_inclusive_seconds,
    waste_share,
    write_load,
    young_seconds,
)
from recovery.errors import BadInput
from recovery.figures import Basis, assumed, estimated, measured

WEEK = 604_800.0


def test_forms_at_five_minutes_and_a_week() -> None:
    assert round(young_seconds(300, WEEK)) == 19_049
    assert round(daly_seconds(300, WEEK)) == 18_850
    assert round(save_inclusive_seconds(300, WEEK)) == 19_052
    assert round(waste_share(young_seconds(300, WEEK), 300, WEEK), 4) == 0.0315


def test_sixteen_thousand_gpus_save_each_quarter_of_an_hour_or_lose_half_their_time() -> None:
    mtbf = 3.09 * 3600
    interval = young_seconds(40, mtbf)
    assert round(interval / 60, 1) == 15.7
    assert round(waste_share(interval, 40, mtbf), 3) == 0.085
    assert round(waste_share(3 * 3600, 40, mtbf), 3) == 0.489


def test_restart_is_part_of_the_waste() -> None:
    without = waste_share(1000, 40, 10_000)
    assert waste_share(1000, 40, 10_000, 500) == pytest.approx(without + 0.05)


@pytest.mark.parametrize("mtbf", [3600.0, WEEK])
def test_each_form_is_the_best_of_what_it_says_that_it_minimizes(mtbf: float) -> None:
    best = young_seconds(300, mtbf)
    assert all(waste_share(best, 300, mtbf) < waste_share(best * f, 300, mtbf) for f in (0.9, 1.1))

    def inclusive(t: float) -> float:
        return (t + 300) / t * (1 + (t + 300) / (2 * mtbf))

    best = save_inclusive_seconds(300, mtbf)
    assert all(inclusive(best) < inclusive(best * f) for f in (0.9, 1.1))


def test_daly_gives_up_where_a_save_takes_longer_than_a_job_lives() -> None:
    assert daly_seconds(200, 100) == 100
    assert daly_seconds(199.9, 100) == pytest.approx(100, rel=0.15)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["checkpoint_seconds", "mtbf_seconds", "interval_seconds", "restart_seconds"]
)
def test_time_that_is_none_is_refused_by_name(name: str, bad: float) -> None:
    if name == "restart_seconds" and bad == 0:
        bad = -0.5
    times = {
        "interval_seconds": 100.0,
        "checkpoint_seconds": 1.0,
        "mtbf_seconds": 1000.0,
        "restart_seconds": 1.0,
    }
    with pytest.raises(BadInput, match=f"{name} is .*: give|leave") as error:
        waste_share(**{**times, name: bad})
    assert error.value.field == name


@pytest.mark.parametrize("form", [young_seconds, daly_seconds, save_inclusive_seconds])
def test_no_form_answers_without_a_time_of_a_save(form: object) -> None:
    with pytest.raises(BadInput, match="checkpoint_seconds is 0"):
        form(0, WEEK)  # type: ignore[operator]


def test_plan_says_seconds_steps_and_how_it_knows() -> None:
    plan = plan_checkpoints(measured(300), estimated(WEEK), measured(600), step_seconds=measured(5))
    assert [form.name for form in plan.forms] == [YOUNG, DALY, SAVE_INCLUSIVE]
    assert plan.advised == plan.form(DALY)
    assert plan.interval_steps == round(daly_seconds(300, WEEK) / 5) == 3770
    assert plan.basis is Basis.ESTIMATED
    assert plan.warnings == ()
    assert plan_checkpoints(measured(300), assumed(WEEK), measured(600)).basis is Basis.ASSUMED
    assert plan_checkpoints(measured(300), measured(WEEK), assumed(0)).basis is Basis.ESTIMATED
    assert (
        plan_checkpoints(measured(300), measured(WEEK), assumed(0), step_seconds=measured(1e9)).interval_steps
        == 1
    )


def test_warns_where_the_forms_no_longer_hold() -> None:
    long = plan_checkpoints(
        measured(40), measured(11_124), measured(0), present_interval_seconds=measured(10_800)
    )
    (warning,) = long.warnings
    assert "present setting: the interval is 0.97 of the time between failures" in warning
    assert "Save more often" in warning
    short_lived = plan_checkpoints(measured(900), measured(1000), measured(0))
    assert "Daly, higher order: the interval is 0.81" in short_lived.warnings[0]
    assert "does not get on" in short_lived.warnings[1]
    at_border = plan_checkpoints(
        measured(1), measured(1000), measured(0), present_interval_seconds=measured(200)
    )
    assert at_border.warnings == ()


def test_writes_a_day_share_of_the_store_and_wear_of_drives() -> None:
    store = Store(
        write_bytes_per_second=1e9, capacity_bytes=1e13, kept=5, drives=10, drive_bytes=1e12, endurance_bytes=1e15,
        write_amplification=2,
    )  # fmt: skip
    load = write_load(800, 64, 1e11, store)
    assert load.saves_a_day == 100
    assert load.bytes_a_day == 1e13
    assert load.bandwidth_share == pytest.approx(1e13 / 86_400 / 1e9)
    assert load.capacity_share == 0.05
    assert load.drive_writes_per_day == 2
    assert load.endurance_share_a_year == pytest.approx(2e12 * 365.25 / 1e15)
    assert load.endurance_years == pytest.approx(1 / 0.7305)


def test_what_is_not_known_of_a_store_is_left_out() -> None:
    load = write_load(800, 64, 1e11)
    assert (load.bandwidth_share, load.capacity_share, load.drive_writes_per_day, load.endurance_years) == (
        None,
    ) * 4
    with pytest.raises(BadInput, match="drives is 0"):
        write_load(800, 64, 1e11, Store(drives=0))


def test_store_that_cannot_take_it_is_said() -> None:
    plan = plan_checkpoints(
        measured(40), measured(11_124), measured(0), checkpoint_bytes=measured(2.3e12),
        store=Store(write_bytes_per_second=1e9, capacity_bytes=1e12, drives=8, endurance_bytes=1e15),
    )  # fmt: skip
    assert [warning.split(" ")[0] for warning in plan.warnings] == ["The", "The", "The"]
    assert "2.3 times the store's room" in plan.warnings[1]
