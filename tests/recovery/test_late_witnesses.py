"""Late witnesses never count: the same failure told by others, long after it happened. Issue 2, done when 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.lifecycle import IncidentState
from recovery.phases import Phase
from recovery.signals import EndCause, Signal, SignalKind, Source, Use
from tests.recovery.desk import Desk, started
from tests.recovery.jobs import W

TIMEOUT = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3389, OpType=ALLREDUCE)"

Witness = Callable[[Desk, object], Signal]


def hook(desk: Desk, failed_at: object) -> Signal:
    """The scheduler's hook tells of the end of a pod that lives on: only its process had died."""
    return desk.end_pod(0, EndCause.CRASHED, source=Source.HOOK, seen_at=failed_at)


def hook_without_row(desk: Desk, failed_at: object) -> Signal:
    data = {
        "pod_uid": desk.life(0).pod_uid,
        "container": "train",
        "restart": 0,
        "cause": "crashed",
        "exit_code": 137,
    }
    return desk.signal(SignalKind.INCARNATION_ENDED, Source.HOOK, data, worker=W[0], seen_at=failed_at)


def watch(desk: Desk, failed_at: object) -> Signal:
    life = desk.life(0)
    data = {"pod_uid": life.pod_uid, "restart": 0, "cause": "crashed", "exit_code": 137}
    return desk.signal(
        SignalKind.INCARNATION_ENDED, Source.WATCH, data, worker=W[0], incarnation=life.id, seen_at=failed_at,
        offset_uncertainty_seconds=1.0,
    )  # fmt: skip


def alert(desk: Desk, failed_at: object) -> Signal:
    data = {"labels": {"alertname": "TrainingPodRestart"}, "status": "firing"}
    return desk.signal(SignalKind.ALERT, Source.ALERTMANAGER, data, worker=W[0], seen_at=failed_at)


def survivor(desk: Desk, failed_at: object) -> Signal:
    return desk.fail(1, TIMEOUT, sequence=2, seen_at=failed_at)


def culprit(desk: Desk, failed_at: object) -> Signal:
    return desk.kill(0, sequence=2, seen_at=failed_at)


def hang(desk: Desk, failed_at: object) -> Signal:
    return desk.agent(2, SignalKind.HANG, {"confirmed": True}, sequence=2, seen_at=failed_at)


def log(desk: Desk, failed_at: object) -> Signal:
    return desk.signal(SignalKind.LOG, Source.API, {"lines": [TIMEOUT]}, seen_at=failed_at)


WITNESSES: list[Witness] = [hook, hook_without_row, watch, alert, survivor, culprit, hang, log]


def killed_and_stepping_again(desk: Desk) -> object:
    desk.now += timedelta(seconds=60)
    failed_at = desk.now
    desk.kill(0)
    desk.decide()
    desk.recover()
    assert desk.incident.state is IncidentState.WATCHING
    return failed_at


@pytest.mark.parametrize("later", [1, 10, 120], ids=lambda seconds: f"{seconds} s")
@pytest.mark.parametrize("witness", WITNESSES, ids=lambda witness: witness.__name__)
def test_witness_of_a_killed_process_that_comes_late_counts_nothing(witness: Witness, later: int) -> None:
    desk = started()
    failed_at = killed_and_stepping_again(desk)
    desk.keep_stepping(later, 3400)
    before = desk.job
    signal = witness(desk, failed_at)
    decision = desk.decide()
    assert desk.job == before
    assert desk.log[-1].use_of(signal) in {Use.LATE, Use.STALE}
    assert (decision.orders, decision.counts, decision.actions) == ((), (), ())
    assert (desk.retries, len(desk.counts), desk.incidents) == ("1:1:1", 1, 1)
    closed = later > desk.policy.reopen_seconds
    assert desk.state.incident is None if closed else desk.incident.state is not IncidentState.OPEN


@pytest.mark.parametrize("later", [1, 10, 120], ids=lambda seconds: f"{seconds} s")
@pytest.mark.parametrize("witness", WITNESSES, ids=lambda witness: witness.__name__)
def test_witness_of_a_deleted_pod_that_comes_late_counts_nothing(witness: Witness, later: int) -> None:
    desk = started()
    desk.now += timedelta(seconds=60)
    failed_at = desk.now
    old = desk.life(0)
    desk.end_pod(0)
    desk.decide()
    desk.enrol(0)
    desk.decide()
    desk.boot_check(0)
    desk.decide()
    desk.recover()
    desk.keep_stepping(later, 3400)
    before = desk.job
    signal = witness(desk, failed_at)
    if signal.kind is SignalKind.INCARNATION_ENDED:
        signal = replace(signal, incarnation=old.id)
        desk.inbox = [signal]
        desk.state = replace(
            desk.state,
            incarnations=tuple(
                replace(view, ended_at=None, is_running=True)
                if view.worker == W[0] and view.is_current
                else view
                for view in desk.state.incarnations
            ),
        )
    desk.decide()
    assert desk.job == before
    assert desk.log[-1].use_of(signal) in {Use.LATE, Use.STALE}
    assert (desk.retries, len(desk.counts)) == ("1:1:1", 1)


def test_second_report_of_the_same_end_is_a_duplicate_before_the_new_pod_is_there() -> None:
    desk = started()
    desk.end_pod(0)
    desk.decide()
    second = desk.end_pod(0, source=Source.HOOK)
    desk.decide()
    assert desk.log[-1].use_of(second) is Use.DUPLICATE
    assert (desk.retries, len(desk.counts)) == ("1:0:0", 1)


def test_hook_may_be_first_when_nothing_has_been_heard_of_the_worker_since() -> None:
    desk = started()
    desk.now += timedelta(seconds=10)
    told = desk.end_pod(0, source=Source.HOOK)
    desk.decide()
    assert desk.log[-1].use_of(told) is Use.USED
    assert (desk.job.phase, desk.retries) == (Phase.RESTARTING, "1:0:0")


def test_hook_about_a_worker_that_was_heard_since_is_outranked() -> None:
    desk = started()
    desk.now += timedelta(seconds=10)
    seen_at = desk.now
    desk.now += timedelta(seconds=5)
    desk.heartbeat(0, 1, 2, step=50)
    told = desk.end_pod(0, source=Source.HOOK, seen_at=seen_at)
    desk.decide()
    assert desk.log[-1].use_of(told) is Use.LATE
    assert desk.job.phase is Phase.RUN_COMMAND


def test_real_end_from_before_the_attempt_restarts_without_a_count() -> None:
    """The life ended while all were told to start: the job must not wait for it, and nobody is punished."""
    desk = started()
    desk.now += timedelta(seconds=60)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    died_at = desk.now
    desk.now += timedelta(seconds=5)
    desk.go()
    desk.decide()
    assert desk.job.attempt == 2
    told = desk.end_pod(1, EndCause.CRASHED, seen_at=died_at)
    desk.decide()
    assert desk.log[-1].use_of(told) is Use.USED
    assert (desk.job.phase, desk.retries, len(desk.counts)) == (Phase.RESTARTING, "1:1:1", 1)


def test_end_of_a_worker_that_answered_in_this_attempt_counts_whatever_its_clock_says() -> None:
    desk = started()
    desk.now += timedelta(seconds=1)
    desk.end_pod(1, EndCause.CRASHED, seen_at=desk.now - timedelta(seconds=30))
    desk.decide()
    assert desk.counts == [(1, 1, "crashed")]


def test_late_evidence_joins_the_incident_of_its_attempt_with_its_delay() -> None:
    desk = started()
    failed_at = killed_and_stepping_again(desk)
    desk.now += timedelta(seconds=2)
    survivor(desk, failed_at)
    alert(desk, failed_at)
    decision = desk.decide()
    lines = [entry for entry in decision.timeline if entry.kind == "evidence"]
    assert len(lines) == 2
    assert lines[0].data["received_after_seconds"] == pytest.approx(2 + 1.1)
    assert desk.incident.verdict["worker"] == "worker 0"
    assert any("lost contact with its peers" in line for line in desk.incident.verdict["evidence"])


@settings(max_examples=60, deadline=None)
@given(
    st.permutations(range(len(WITNESSES))),
    st.lists(st.integers(0, 40), min_size=8, max_size=8),
    st.booleans(),
)
def test_order_and_time_of_late_witnesses_never_change_a_counter(
    order: list[int], gaps: list[int], together: bool
) -> None:
    desk = started()
    failed_at = killed_and_stepping_again(desk)
    for n, gap in zip(order, gaps, strict=True):
        desk.keep_stepping(gap, 3400)
        WITNESSES[n](desk, failed_at)
        if not together:
            desk.decide()
    desk.decide()
    assert (desk.retries, len(desk.counts), desk.job.phase) == ("1:1:1", 1, Phase.RUN_COMMAND)
    assert desk.incidents == 1
