from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from recovery.checkpoint_advice import CheckpointAdvice, SavedPoint, Start, advise, rests_on
from recovery.checkpointing import daly_seconds
from recovery.figures import Basis, measured
from recovery.reliability import Exposure, Failure, Mtbf, estimate, size_class, with_prior

START = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


#: Saves of 10, 12 and 40 s, each begun 600 s of compute after the last one was there; then a restart.
POINTS = (
    SavedPoint(100, 1, at(0), seconds=10),
    SavedPoint(200, 1, at(612), seconds=12),
    SavedPoint(300, 1, at(1224), seconds=40, size_bytes=10**12),
    SavedPoint(400, 2, at(9000)),
)
STARTS = (
    Start(3, None, at(9_300)),
    Start(2, at(9_000), at(5_200)),
    Start(1, at(5_000), at(10)),
)


def seen(failures: int, *, days: float = 40, nodes: int = 16) -> Mtbf:
    exposures = [Exposure("", START, START + days * DAY, nodes, nodes)]
    failed = [Failure(START + (n + 1) * days / (failures + 1) * DAY, "n") for n in range(failures)]
    return with_prior(failed, exposures)


def advice(
    mtbf: Mtbf | None = None, points: tuple[SavedPoint, ...] = POINTS, nodes: int = 16
) -> CheckpointAdvice | None:
    return advise(
        points=points, starts=STARTS, nodes=nodes, size=size_class(nodes), mtbf=mtbf or seen(12), days=40,
        step_seconds=measured(2.0),
    )  # fmt: skip


def test_job_is_advised_from_its_own_saves_and_failures_of_its_size() -> None:
    found = advice()
    assert found is not None
    plan = found.plan
    assert (plan.checkpoint_seconds.value, plan.checkpoint_seconds.source) == (12, "median of 3 saves")
    node_days = (540 + 640) / 14
    assert plan.mtbf_seconds.value == pytest.approx(node_days * 86_400 / 16)
    assert (plan.restart_seconds.value, plan.restart_seconds.source) == (250, "median of 2 restarts")
    assert plan.present is not None
    assert plan.present.interval_seconds == pytest.approx(600)
    assert plan.advised.interval_seconds == pytest.approx(daly_seconds(12, plan.mtbf_seconds.value))
    assert plan.interval_steps == round(plan.advised.interval_seconds / 2)
    assert plan.load is not None
    assert plan.basis is Basis.ESTIMATED
    assert found.rests_on == "12 failures in 40 days, prior weighs 46%"
    assert found.warnings == ()


def test_bounds_of_the_interval_follow_from_those_of_m() -> None:
    found = advice()
    assert found is not None
    assert found.high_seconds is not None
    assert found.low_seconds < found.plan.advised.interval_seconds < found.high_seconds
    assert found.low_seconds == pytest.approx(daly_seconds(12, found.low_mtbf_seconds))


def test_prior_alone_is_told_as_that_and_assumed() -> None:
    found = advice(with_prior([], []))
    assert found is not None
    assert found.rests_on == "prior: no failure seen yet"
    assert found.plan.basis is Basis.ASSUMED
    assert rests_on(seen(0), 40) == "prior: no failure seen yet in 640 node-days"
    assert rests_on(seen(1, days=0.5), 0.5) == "1 failure in 12 hours, prior weighs 99%"
    assert rests_on(seen(900, days=4_000), 4_000) == "900 failures in 4,000 days"


def test_nothing_is_advised_where_c_or_m_is_not_known() -> None:
    untold = tuple(SavedPoint(point.step, point.attempt, point.at, seconds=0.0) for point in POINTS)
    assert advice(points=untold) is None
    assert advice(points=()) is None
    assert advice(estimate([], [Exposure("n", START, START + DAY)])) is None


def test_intervals_are_of_one_attempt_and_longer_than_a_save() -> None:
    found = advice(
        points=(SavedPoint(1, 1, at(0), 10), SavedPoint(2, 1, at(5), 10), SavedPoint(3, 2, at(900), 10))
    )
    assert found is not None
    assert found.plan.present is None


def test_job_that_saves_too_seldom_is_warned() -> None:
    rare = (SavedPoint(1, 1, at(0), 40), SavedPoint(2, 1, at(10_840), 40))
    found = advice(with_prior([], []), points=rare, nodes=2_048)
    assert found is not None
    (warning,) = found.warnings
    assert "present setting: the interval is 0.95 of the time between failures" in warning


def test_clustered_failures_are_told_of() -> None:
    bursts = [Failure(START + (day + n / 100) * DAY, "n") for day in range(0, 40, 8) for n in range(4)]
    found = advice(with_prior(bursts, [Exposure("", START, START + 40 * DAY, 16, 16)]))
    assert found is not None
    assert "Failures come in clusters" in found.warnings[-1]


def test_times_that_are_no_measurement_are_passed_over() -> None:
    assert advice(points=(SavedPoint(1, 1, at(0), seconds=5e-324),)) is None
    found = advise(
        points=POINTS, starts=STARTS, nodes=16, size=size_class(16), mtbf=seen(12), days=40,
        step_seconds=measured(5e-324),
    )  # fmt: skip
    assert found is not None
    assert found.plan.interval_steps is None


@pytest.mark.parametrize("seconds", [0.001, 1e9])
@pytest.mark.parametrize("nodes", [1, 100_000])
def test_any_save_on_any_number_of_nodes_is_told(seconds: float, nodes: int) -> None:
    found = advice(
        points=(SavedPoint(1, 1, at(0), seconds, 2**62), SavedPoint(2, 1, at(2e9), seconds)), nodes=nodes
    )
    assert found is not None
    assert found.plan.gets_on == (seconds < 1 and nodes == 1), (
        "restarts of 250 s each 73 s leave nothing either"
    )
