"""The restart queue: budgets, order, shares, predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.admission import (
    AdmissionPolicy,
    Bucket,
    Dependency,
    Queue,
    Restart,
    Why,
    admit,
    check,
    ended,
    join,
    not_before,
    predict,
)
from recovery.errors import BadInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GB = 1e9
POLICY = AdmissionPolicy(store_bytes_per_second=10 * GB)


def restart(job: str, **overrides: Any) -> Restart:
    """100 GB at 1 GB/s, so that it reads for 100 s."""
    fields: dict[str, Any] = {
        "tenant": "a", "bytes": 100 * GB, "bytes_per_second": 1 * GB, "waits_since": NOW, "not_before": NOW,
    }  # fmt: skip
    return Restart(job, **{**fields, **overrides})


def waiting(*restarts: Restart) -> Queue:
    queue = Queue()
    for each in restarts:
        queue = join(queue, each)
    return queue


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def run(
    queue: Queue, policy: AdmissionPolicy, speeds: Mapping[str, float] | None = None
) -> list[tuple[str, datetime, datetime, Why, Mapping[Dependency, float]]]:
    """Play the queue to its end: (job, begins, ends, why, spread), in order of begin."""
    now, starts, ends = NOW, [], {}
    for _ in range(10_000):
        done = [job for job, end in ends.items() if end <= now]
        for job in done:
            del ends[job]
        admission = admit(ended(queue, done), now, policy)
        queue = admission.queue
        for each in admission.admitted:
            speed = (speeds or {}).get(each.job, 1.0)
            ends[each.job] = now + (each.ends_at - now) / speed
            starts.append((each.job, now, ends[each.job], each.why, each.spread_seconds))
        looks = [*ends.values(), *([admission.next_look_at] if admission.next_look_at else [])]
        if not looks:
            break
        now = max(min(looks), now)
    assert not queue.waiting
    return starts


def test_lone_failure_passes_at_once_without_its_jitter() -> None:
    admission = admit(waiting(restart("only", not_before=at(200))), NOW, POLICY)
    assert [(each.job, each.why) for each in admission.admitted] == [("only", Why.LONE)]


def test_lone_failure_waits_for_its_time_when_half_is_in_use() -> None:
    busy = admit(waiting(restart("big", bytes_per_second=5 * GB)), NOW, POLICY).queue
    admission = admit(join(busy, restart("late", not_before=at(7))), NOW, POLICY)
    assert admission.admitted == ()
    assert admission.next_look_at == at(7)


def test_lone_failure_that_does_not_fit_waits_although_use_is_low() -> None:
    busy = admit(waiting(restart("first", bytes_per_second=4 * GB)), NOW, POLICY).queue
    admission = admit(join(busy, restart("wide", bytes_per_second=8 * GB)), NOW, POLICY)
    assert admission.admitted == ()
    assert admission.held is not None
    assert admission.held.reason == "8.0 GB/s of the store are needed, 6.0 GB/s are free"


def test_highest_priority_goes_first() -> None:
    queue = waiting(*(restart(f"p{n}", priority=n, bytes_per_second=10 * GB) for n in (1, 3, 0, 2)))
    assert [job for job, *_ in run(queue, POLICY)] == ["p3", "p2", "p1", "p0"]


def test_room_is_kept_for_a_wide_one_and_others_do_not_delay_it() -> None:
    """A wide restart of high priority is not passed for ever by narrow ones that fit."""
    queue = waiting(
        restart("a", priority=3, bytes_per_second=8 * GB, bytes=80 * GB),
        restart("wide", priority=2, bytes_per_second=9 * GB, bytes=900 * GB),
        restart("long", priority=1, bytes_per_second=2 * GB, bytes=120 * GB),
        restart("short", priority=1, bytes_per_second=2 * GB, bytes=10 * GB),
    )
    starts = {job: (begins, why) for job, begins, _, why, _ in run(queue, POLICY)}
    assert starts["a"][0] == NOW
    assert starts["short"] == (NOW, Why.BACKFILL)
    assert starts["wide"][0] == at(10)
    assert starts["long"][0] > starts["wide"][0]


def test_lower_priority_does_not_begin_while_one_of_its_tenant_that_fits_waits_for_the_room_that_is_kept() -> (
    None
):
    queue = waiting(
        restart("a", priority=4, bytes_per_second=8 * GB, bytes=80 * GB),
        restart("wide", priority=3, bytes_per_second=9 * GB, bytes=900 * GB),
        restart("fits", priority=2, bytes_per_second=2 * GB, bytes=120 * GB),
        restart("lower", priority=1, bytes_per_second=2 * GB, bytes=10 * GB),
        restart("other-tenant", tenant="b", priority=0, bytes_per_second=2 * GB, bytes=10 * GB),
    )
    queue = admit(queue, NOW, replace(POLICY, weights={"a": 1000.0})).queue
    assert {each.restart.job for each in queue.reading} == {"a", "other-tenant"}


def test_narrow_one_may_put_off_its_own_wide_one_only_where_its_tenant_reads_too_little() -> None:
    """Room is kept for tenant c; the wide one has it when b ends in 100 s, the narrow one reads for 120 s."""
    busy = admit(
        waiting(restart("b", tenant="b", bytes_per_second=5 * GB, bytes=500 * GB)), NOW, POLICY
    ).queue
    queue = join(busy, restart("first", tenant="c", bytes_per_second=6 * GB, bytes=60 * GB))
    queue = join(queue, restart("wide", tenant="d", priority=3, bytes_per_second=9 * GB, bytes=900 * GB))
    held = join(queue, restart("narrow", tenant="d", priority=1, bytes_per_second=2 * GB, bytes=240 * GB))
    hungry = replace(POLICY, weights={"c": 100.0})
    fed = replace(POLICY, weights={"c": 100.0}, hungry_share=0.0)
    assert [(each.job, each.why) for each in admit(held, NOW, hungry).admitted] == [("narrow", Why.BACKFILL)]
    assert [each.job for each in admit(held, NOW, fed).admitted] == []


@pytest.mark.parametrize(("amount", "begun"), [(60.0, []), (0.0, ["low"])])
def test_lower_priority_does_not_take_the_tokens_that_a_higher_one_waits_for(
    amount: float, begun: list[str]
) -> None:
    """Room is kept for tenant c; the higher one has its tokens in 50 s, or 60 s later."""
    api = Dependency.API_SERVER
    policy = replace(POLICY, buckets={api: Bucket(1, 200)}, weights={"c": 100.0}, hungry_share=0.0)
    busy = waiting(restart("b", tenant="b", bytes_per_second=5 * GB, bytes=500 * GB, tokens={api: 50.0}))
    queue = admit(busy, NOW, policy).queue
    queue = join(queue, restart("first", tenant="c", bytes_per_second=6 * GB, bytes=60 * GB))
    queue = join(queue, restart("high", tenant="d", priority=1, bytes=50 * GB, tokens={api: 200.0}))
    queue = join(queue, restart("low", tenant="d", bytes=50 * GB, tokens={api: amount}))
    assert [each.job for each in admit(queue, NOW, policy).admitted] == begun


def test_tenant_that_reads_too_little_goes_before_higher_priorities() -> None:
    big = [restart(f"big-{n:02d}", tenant="big", priority=9) for n in range(20)]
    small = [restart(f"small-{n}", tenant="small", priority=0) for n in range(5)]
    admission = admit(waiting(*big, *small), NOW, POLICY)
    begun = [each.job for each in admission.admitted]
    # Equal weights: the fair share of each is 5 of 10 GB/s, the floor a little less.
    assert sum(job.startswith("small") for job in begun) == 5
    assert sum(job.startswith("big") for job in begun) == 5


def test_weights_shift_the_floor() -> None:
    policy = replace(POLICY, weights={"big": 4.0, "small": 1.0})
    big = [restart(f"big-{n:02d}", tenant="big", priority=9) for n in range(20)]
    small = [restart(f"small-{n}", tenant="small", priority=0) for n in range(5)]
    begun = [each.job for each in admit(waiting(*big, *small), NOW, policy).admitted]
    assert sum(job.startswith("small") for job in begun) == 2


def test_restore_that_would_end_last_does_not_wait() -> None:
    queue = waiting(
        restart("endless", priority=0, bytes=1000 * GB),
        *(restart(f"urgent-{n}", priority=5, bytes_per_second=5 * GB, bytes=500 * GB) for n in range(6)),
    )
    starts = {job: (begins, why) for job, begins, _, why, _ in run(queue, POLICY)}
    assert starts["endless"] == (NOW, Why.LENGTH)


def test_cap_above_the_store_counts_as_the_whole_store() -> None:
    (start,) = run(waiting(restart("huge", bytes_per_second=50 * GB)), POLICY)
    assert start[2] - start[1] == timedelta(seconds=10)


def test_start_waits_for_tokens_and_says_so() -> None:
    policy = replace(POLICY, buckets={Dependency.API_SERVER: Bucket(per_second=10, burst=100)})
    tokens = {Dependency.API_SERVER: 80.0}
    queue = waiting(restart("one", tokens=tokens), restart("two", tokens=tokens))
    admission = admit(queue, NOW, policy)
    assert [each.job for each in admission.admitted] == ["one"]
    assert admission.held is not None
    assert admission.held.reason == "80 tokens of api_server are needed, 20 are there"
    assert admission.next_look_at == at(6)


def test_start_larger_than_a_bucket_waits_until_it_is_full_and_spreads_the_rest() -> None:
    policy = replace(POLICY, buckets={Dependency.RENDEZVOUS: Bucket(per_second=10, burst=100)})
    queue = waiting(restart("large", tokens={Dependency.RENDEZVOUS: 250.0}), restart("next", tokens={}))
    admission = admit(queue, NOW, policy)
    assert {each.job: each.spread_seconds for each in admission.admitted} == {
        "large": {Dependency.RENDEZVOUS: 15.0},
        "next": {},
    }


def test_restore_that_is_overdue_does_not_make_the_queue_look_for_ever() -> None:
    queue = admit(waiting(restart("late", bytes_per_second=10 * GB)), NOW, POLICY).queue
    queue = join(join(queue, restart("next")), restart("other"))
    admission = admit(queue, at(500), POLICY)
    assert admission.held is not None
    assert admission.held.starts_at > at(500)
    assert admission.next_look_at is None  # it waits for an end, which wakes it


def test_job_that_joins_again_replaces_what_was_known_of_it() -> None:
    queue = waiting(restart("one"), restart("one", priority=4))
    assert [each.priority for each in queue.waiting] == [4]


@pytest.mark.parametrize(
    "overrides", [{"bytes_per_second": 0.0}, {"bytes": math.inf}, {"bytes": -1.0}, {"bytes": math.nan}]
)
def test_restart_that_could_never_end_is_refused(overrides: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        join(Queue(), restart("bad", **overrides))


@pytest.mark.parametrize("amount", [math.inf, math.nan, -1.0])
def test_start_that_would_break_a_bucket_for_all_is_refused(amount: float) -> None:
    with pytest.raises(BadInput, match="tokens"):
        join(Queue(), restart("bad", tokens={Dependency.API_SERVER: amount}))


def test_restart_whose_end_no_calendar_has_is_refused_and_holds_up_nobody() -> None:
    with pytest.raises(BadInput, match="a year"):
        join(waiting(restart("good")), restart("bad", bytes=1e12, bytes_per_second=1e-3))


def test_job_that_dies_while_it_reads_waits_anew_and_gives_back_what_it_read_with() -> None:
    policy = replace(POLICY, store_bytes_per_second=1 * GB)
    reading = admit(waiting(restart("a")), NOW, policy).queue
    assert [each.restart.job for each in reading.reading] == ["a"]
    again = join(reading, restart("a", waits_since=at(5), not_before=at(5)))
    assert again.reading == ()
    admission = admit(again, at(5), policy)
    assert [each.job for each in admission.admitted] == ["a"], "it does not wait for itself"


@pytest.mark.parametrize(
    "policy",
    [
        AdmissionPolicy(store_bytes_per_second=0),
        replace(POLICY, buckets={Dependency.API_SERVER: Bucket(0, 10)}),
        replace(POLICY, weights={"a": 0.0}),
    ],
)
def test_budget_that_nothing_can_pass_is_refused(policy: AdmissionPolicy) -> None:
    with pytest.raises(BadInput):
        check(policy)


def test_backoff_grows_with_full_jitter_and_has_a_cap() -> None:
    seeds = [f"{n:016x}" for n in range(0, 2**64, 2**58)]
    for failures, ceiling in ((1, 5.0), (3, 20.0), (30, 300.0)):
        waits = [
            (not_before(NOW, failures=failures, seed=seed, policy=POLICY) - NOW).total_seconds()
            for seed in seeds
        ]
        assert min(waits) == 0.0
        assert 0.95 * ceiling < max(waits) < ceiling
    assert not_before(NOW, failures=2, seed=seeds[9], policy=POLICY) == not_before(
        NOW, failures=2, seed=seeds[9], policy=POLICY
    )


def test_prediction_is_what_happens_when_restores_take_as_long_as_their_caps_say() -> None:
    queue = waiting(
        *(restart(f"j{n}", priority=n % 3, tenant="ab"[n % 2], bytes=(n + 1) * 50 * GB) for n in range(30))
    )
    assert predict(queue, NOW, POLICY) == {job: begins for job, begins, *_ in run(queue, POLICY)}


@st.composite
def storms(draw: st.DrawFn) -> tuple[Queue, AdmissionPolicy, dict[str, float]]:
    jobs = draw(st.integers(1, 24))
    buckets = {
        name: Bucket(draw(st.floats(1, 100)), draw(st.floats(1, 300)))
        for name in draw(st.sets(st.sampled_from(list(Dependency)), max_size=2))
    }
    policy = AdmissionPolicy(10 * GB, buckets, weights={"a": draw(st.floats(0.5, 8)), "b": 1.0})
    queue, speeds = Queue(), {}
    for n in range(jobs):
        queue = join(
            queue,
            restart(
                f"job-{n}",
                tenant=draw(st.sampled_from("abc")),
                bytes=draw(st.floats(1, 2300)) * GB,
                bytes_per_second=draw(st.floats(0.1, 15)) * GB,
                priority=draw(st.integers(0, 3)),
                not_before=at(draw(st.floats(0, 20))),
                tokens={name: draw(st.floats(0, 400)) for name in buckets},
            ),
        )
        speeds[f"job-{n}"] = draw(st.floats(0.5, 1.0))
    return queue, policy, speeds


@settings(max_examples=40, deadline=None)
@given(storms())
def test_no_budget_is_ever_exceeded_and_everybody_gets_in(
    storm: tuple[Queue, AdmissionPolicy, dict[str, float]],
) -> None:
    queue, policy, speeds = storm
    restarts = {each.job: each for each in queue.waiting}
    starts = run(queue, policy, speeds)
    assert sorted(job for job, *_ in starts) == sorted(restarts)
    for _, moment, *_ in starts:
        load = math.fsum(
            min(restarts[job].bytes_per_second, policy.store_bytes_per_second)
            for job, begins, ends, *_ in starts
            if begins <= moment < ends
        )
        assert load <= policy.store_bytes_per_second * (1 + 1e-6)
    for name, bucket in policy.buckets.items():
        # What a start has more than the bucket holds, it spends at the bucket's own pace: what is spent at once is
        # the rest, so no window may have more of those than burst + pace * length.
        moments = [
            (begins, amount) for job, begins, *_ in starts if (amount := restarts[job].tokens[name]) > 0
        ]
        for first in range(len(moments)):
            total = 0.0
            for begins, amount in moments[first:]:
                length = (begins - moments[first][0]).total_seconds()
                total += min(amount, bucket.burst)
                assert total <= bucket.burst + bucket.per_second * length + 1e-3 * bucket.burst
                total += amount - min(amount, bucket.burst)


@settings(max_examples=40, deadline=None)
@given(storms())
def test_higher_priority_of_the_same_tenant_is_passed_only_by_backfill_or_length(
    storm: tuple[Queue, AdmissionPolicy, dict[str, float]],
) -> None:
    queue, policy, speeds = storm
    restarts = {each.job: each for each in queue.waiting}
    starts = run(queue, policy, speeds)
    begun = {job: begins for job, begins, *_ in starts}
    for job, begins, _, why, _ in starts:
        if why in {Why.BACKFILL, Why.LENGTH}:
            continue
        passed = [
            other.job
            for other in restarts.values()
            if other.tenant == restarts[job].tenant
            and other.priority > restarts[job].priority
            and other.not_before <= begins < begun[other.job]
        ]
        assert passed == []


@settings(max_examples=30, deadline=None)
@given(storms())
def test_store_never_idles_more_than_its_widest_restart_needs(
    storm: tuple[Queue, AdmissionPolicy, dict[str, float]],
) -> None:
    """Room is kept for one at a time, so the time to restore all has a bound for any storm without buckets."""
    queue, policy, _ = storm
    restarts = [replace(each, not_before=NOW, tokens={}) for each in queue.waiting]
    policy = replace(policy, buckets={})
    starts = run(waiting(*restarts), policy)
    store = policy.store_bytes_per_second
    rates = [min(each.bytes_per_second, store) for each in restarts]
    longest = max(each.bytes / rate for each, rate in zip(restarts, rates, strict=True))
    total = math.fsum(each.bytes for each in restarts)
    widest = max(rates)
    if widest < store / 2:
        last = max(begins for _, begins, *_ in starts)
        assert (last - NOW).total_seconds() <= total / (store - widest) + 1e-3
    end = max(ends for *_, ends, _, _ in starts)
    assert (end - NOW).total_seconds() <= math.fsum(
        e.bytes / r for e, r in zip(restarts, rates, strict=True)
    ) + 1e-3
    assert (end - NOW).total_seconds() >= max(total / store, longest) - 1e-3
