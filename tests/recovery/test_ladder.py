from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decide import PastAttempt, Policy
from recovery.ladder import (
    Situation,
    backoff_seconds,
    choose,
    failures_in_window,
    fraction,
    isolate,
    jitter_seed,
    stuck,
)
from recovery.lifecycle import ActionKind
from tests.recovery.desk import START
from tests.recovery.jobs import W

POLICY = Policy()
GONE = Situation("process_killed", "Process of worker 0 killed (SIGKILL)", workers=3, checks_clean=3)


def attempt(n: int, last_step: int | None, *, counted: bool = True, seconds: float = 60) -> PastAttempt:
    begin = START + timedelta(minutes=n)
    return PastAttempt(
        n, begin, begin + timedelta(seconds=seconds), "process_killed", counted, W[0], "", last_step, None
    )


def test_process_gone_and_checks_clean_restarts_in_place() -> None:
    choice = choose(GONE, POLICY, "00")
    assert (choice.rung, [remedy.kind for remedy in choice.remedies]) == ("L1", [ActionKind.RESTART_PROCESS])
    assert choice.why == (
        "Process is gone and quick checks are clean on 3 of 3 workers: restart in place (not fully checked)"
    )


def test_unknown_gets_the_cheapest_safe_remedy_and_is_said_to_be_unknown() -> None:
    choice = choose(replace(GONE, category="unknown"), POLICY, "00")
    assert choice.why.startswith("The cause is not known")
    assert choice.remedies[0].kind is ActionKind.RESTART_PROCESS


@pytest.mark.parametrize(
    ("situation", "kinds"),
    [
        (replace(GONE, over_budget="failures 3 of 2"), ["stop_job", "ask_person"]),
        (replace(GONE, stuck_restarts=4, stuck_step=3388), ["stop_job", "ask_person"]),
        (replace(GONE, departed=("worker 1",)), ["ask_person"]),
        (replace(GONE, restart_failed="worker 2 did not tell"), ["restart_container", "ask_person"]),
    ],
    ids=["over budget", "no progress", "a worker has left", "restart failed"],
)
def test_other_situations(situation: Situation, kinds: list[str]) -> None:
    choice = choose(situation, POLICY, "00")
    assert [remedy.kind for remedy in choice.remedies] == kinds
    refused = [remedy.refused_because for remedy in choice.remedies if remedy.kind == "restart_container"]
    assert refused in ([], ["remedy not installed"])


def test_failed_hardware_check_wants_the_machine_isolated_and_asks() -> None:
    choice = isolate("worker 0", "gpu-r01-01", "gpu: 7 of 8 devices")
    assert [(remedy.kind, remedy.refused_because) for remedy in choice.remedies] == [
        (ActionKind.HOLD_NODE, "remedy not installed"),
        (ActionKind.ASK_PERSON, ""),
    ]


SITUATIONS = st.builds(
    Situation,
    category=st.sampled_from(["unknown", "hang", "process_killed"]),
    reason=st.just("something"),
    workers=st.integers(1, 9),
    checks_clean=st.integers(0, 9),
    checks_failed=st.sampled_from([(), ("io failed",)]),
    silent=st.sampled_from([(), ("worker 1",)]),
    departed=st.sampled_from([(), ("worker 2",)]),
    restart_failed=st.sampled_from(["", "late"]),
    over_budget=st.sampled_from(["", "failures 1 of 0"]),
    failures_in_window=st.integers(0, 50),
    stuck_restarts=st.integers(0, 9),
)


@given(SITUATIONS)
def test_there_is_always_a_remedy_and_a_rung_that_was_refused_with_its_reason(situation: Situation) -> None:
    choice = choose(situation, POLICY, "0f")
    assert choice.remedies
    assert choice.considered
    assert all(line.refused_because for line in choice.considered)
    taken = {remedy.kind for remedy in choice.remedies if not remedy.refused_because}
    assert not taken & {line.remedy for line in choice.considered}
    assert 0 <= choice.wait_seconds <= POLICY.backoff_cap_seconds


def test_backoff_is_free_at_first_then_grows_to_its_cap_with_full_jitter() -> None:
    policy = Policy(
        backoff_base_seconds=10, backoff_factor=2, backoff_cap_seconds=60, backoff_free_restarts=2
    )
    half = "8000000000000000"
    assert fraction(half) == 0.5
    assert [backoff_seconds(n, policy, half) for n in range(8)] == [0, 0, 0, 5, 10, 20, 30, 30]
    assert backoff_seconds(10_000, policy, half) == 30
    assert backoff_seconds(9, replace(policy, backoff_base_seconds=0), half) == 0


@given(st.text(max_size=9), st.integers(1, 10_000))
def test_jitter_comes_from_subject_and_number_only(key: str, n: int) -> None:
    assert jitter_seed(key, n) == jitter_seed(key, n)
    assert 0 <= fraction(jitter_seed(key, n)) < 1


def test_failures_outside_the_window_and_uncounted_ones_do_not_slow_a_restart() -> None:
    attempts = [attempt(0, 1), attempt(100, 2), attempt(101, 3, counted=False), attempt(102, 4)]
    now = START + timedelta(minutes=104)
    assert failures_in_window(attempts, now, POLICY) == 2


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([], (0, None)),
        ([attempt(1, 7), attempt(2, 7), attempt(3, 7)], (3, 7)),
        ([attempt(1, 7), attempt(2, 8), attempt(3, 8)], (2, 8)),
        ([attempt(1, 7), attempt(2, 9, counted=False), attempt(3, 7)], (2, 7)),
        ([attempt(1, None), attempt(2, None)], (2, None)),
        ([attempt(1, None, seconds=1e6), attempt(2, None)], (1, None)),
    ],
    ids=["none", "same", "progress", "uncounted between", "never stepped", "progress cannot be read"],
)
def test_row_of_attempts_at_one_step(attempts: list[PastAttempt], expected: tuple[int, int | None]) -> None:
    assert stuck(attempts, POLICY) == expected
