"""The checks over a storm's log see what is wrong, and the queue keeps them in storms of every kind."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from incidentdesk.bench.storm_checks import STORE, passed, use_of_budgets
from incidentdesk.bench.storm_play import BEGIN, Job, Play, Start, play_queue, storm, storm_policy
from recovery.admission import AdmissionPolicy, Bucket, Dependency, Restart

GB = 1e9
POLICY = AdmissionPolicy(10 * GB)
API = Dependency.API_SERVER


def begin(
    job: str, at: float, *, rate: float = 4.0, seconds: float = 100.0, priority: int = 0, **overrides: object
) -> Start:
    """A restore at ``rate`` GB/s, of a tenant that reads enough unless told otherwise."""
    fields = {"tenant": "a", "tokens": {}, "not_before": BEGIN, **overrides}
    restart = Restart(
        job, bytes=rate * seconds * GB, bytes_per_second=rate * GB, waits_since=BEGIN, priority=priority, **fields,
    )  # type: ignore[arg-type]  # fmt: skip
    return Start(Job(restart, 1.0), at, at + seconds)


def test_start_before_one_of_higher_priority_that_could_have_begun_is_found() -> None:
    starts = [begin("low", 1.0), begin("high", 2.0, priority=1)]
    (found,) = passed(starts, replace(POLICY, length_margin=0.1))
    assert (found.job, found.other, found.could_begin) == ("low", "high", True)
    assert not found.is_harmless
    assert not found.is_excused, "hunger is no excuse where the higher one could begin"


@pytest.mark.parametrize(
    ("higher", "what"),
    [
        ({"priority": 0}, "an equal priority"),
        ({"tenant": "b"}, "another tenant"),
        ({"not_before": BEGIN + timedelta(seconds=1.5)}, "still in its jitter"),
    ],
)
def test_start_before_one_that_did_not_wait_for_its_turn_in_the_same_tenant_is_no_matter(
    higher: dict[str, object], what: str
) -> None:
    starts = [begin("low", 1.0), begin("high", 2.0, **{"priority": 1, **higher})]  # type: ignore[arg-type]
    assert passed(starts, POLICY) == [], what


def test_start_beside_one_that_does_not_fit_is_harmless_only_if_that_has_room_no_later() -> None:
    big = begin("big", 0.0, rate=8.0, seconds=100.0, priority=9)
    high = begin("high", 150.0, rate=9.0, priority=1)
    policy = replace(POLICY, length_margin=0.1, hungry_share=0.0)
    (short,) = passed([big, begin("short", 1.0, rate=2.0, seconds=99.0), high], policy)
    assert (short.could_begin, short.put_off_seconds, short.is_harmless) == (False, 0.0, True)
    (late,) = passed([big, begin("late", 1.0, rate=2.0, seconds=120.0), high], policy)
    assert (late.could_begin, round(late.put_off_seconds, 3)) == (False, 21.0)
    assert not late.is_harmless
    assert not late.is_excused


def test_start_that_takes_the_tokens_of_a_higher_one_puts_it_off() -> None:
    policy = AdmissionPolicy(10 * GB, {API: Bucket(1.0, 100.0)}, length_margin=0.1, hungry_share=0.0)
    first = begin("first", 0.0, rate=1.0, priority=9, tokens={API: 60.0})
    high = begin("high", 50.0, rate=1.0, priority=1, tokens={API: 50.0})
    (found,) = passed([first, begin("low", 1.0, rate=1.0, tokens={API: 30.0}), high], policy)
    assert (found.could_begin, round(found.put_off_seconds, 3)) == (False, 30.0)


def test_longest_restore_and_a_hungry_tenant_are_the_exceptions() -> None:
    big = begin("big", 0.0, rate=8.0, seconds=100.0, priority=9)
    high = begin("high", 150.0, rate=9.0, priority=1)
    long = begin("long", 1.0, rate=2.0, seconds=900.0)
    assert [each.is_longest for each in passed([big, long, high], POLICY)] == [True]
    of_other = replace(big, job=replace(big.job, restart=replace(big.job.restart, tenant="b")))
    low = begin("low", 1.0, rate=2.0, seconds=120.0)
    (found,) = passed([of_other, low, high], POLICY)
    assert (found.is_longest, found.is_hungry, found.is_excused) == (False, True, True)
    (found,) = passed([big, low, high], POLICY)
    assert (found.is_hungry, found.is_excused) == (False, False)


def test_use_of_a_bucket_is_what_was_spent_in_any_time_over_what_it_allows() -> None:
    policy = AdmissionPolicy(10 * GB, {API: Bucket(1.0, 100.0)})
    three = [begin(f"j{n}", at, rate=1.0, tokens={API: 50.0}) for n, at in enumerate((0.0, 10.0, 20.0))]
    used = use_of_budgets(Play(begun=three), policy)
    assert used == {STORE: pytest.approx(0.3), "api_server": pytest.approx(1.3)}
    spread = [replace(begin("j", 0.0, tokens={API: 250.0}), spread={API: 150.0})]
    assert use_of_budgets(Play(begun=spread), policy)["api_server"] == pytest.approx(1.0)


def test_storms_of_every_kind_keep_all_budgets_and_the_order_of_priority() -> None:
    """Wide beside narrow, buckets smaller than a start, restores that take twice as long as predicted."""
    pairs = 0
    for seed in range(120):
        draw = random.Random(seed)
        jobs, policy = _odd_storm(draw, lasts=60.0 * (seed % 2))
        played = play_queue(jobs, policy, predicts=False)
        assert len(played.starts) == len(jobs)
        over = {name: used for name, used in use_of_budgets(played, policy).items() if used > 1 + 1e-6}
        assert over == {}, seed
        found = passed(played.starts, policy)
        assert [each for each in found if not (each.is_harmless or each.is_excused)] == [], seed
        pairs += len(found)
    assert pairs > 500, "lower priorities did begin while higher ones waited"


def _odd_storm(draw: random.Random, *, lasts: float) -> tuple[list[Job], AdmissionPolicy]:
    names = draw.sample(list(Dependency), draw.randint(0, 2))
    policy = AdmissionPolicy(
        10 * GB,
        {name: Bucket(draw.uniform(1, 100), draw.uniform(1, 300)) for name in names},
        weights={"a": draw.uniform(0.5, 8)},
    )
    jobs = []
    for n in range(draw.randint(2, 40)):
        died_at = BEGIN + timedelta(seconds=draw.uniform(0, lasts))
        restart = Restart(
            f"job-{n}",
            draw.choice("abc"),
            bytes=draw.uniform(1, 2300) * GB,
            bytes_per_second=draw.uniform(0.1, 15) * GB,
            waits_since=died_at,
            not_before=died_at + timedelta(seconds=draw.uniform(0, 20)),
            priority=draw.randint(0, 3),
            tokens={name: draw.choice([0.0, draw.uniform(0, 400)]) for name in names},
        )
        jobs.append(Job(restart, draw.uniform(0.5, 1.0)))
    return jobs, policy


@pytest.mark.parametrize("seed", range(1, 4))
def test_small_storm_keeps_all_budgets_and_the_order_of_priority(seed: int) -> None:
    """The shares and the total time are promised for a thousand jobs only."""
    policy = storm_policy()
    played = play_queue(storm(250, seed), policy, predicts=False)
    assert max(use_of_budgets(played, policy).values()) <= 1 + 1e-6
    assert [each for each in passed(played.starts, policy) if not (each.is_harmless or each.is_excused)] == []
