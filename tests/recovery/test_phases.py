"""Situations of DOMAIN section 3, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import phase_events as ev
from recovery.phases import (
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    OrderKind,
    Phase,
    step,
)
from recovery.signals import EndCause, Use, WorkerKey
from tests.recovery.jobs import Play, W, make_job, running
from tests.recovery.test_phase_walk import job_events, worker_events

ACK, ERROR, FINISH = MessageType.ACK, MessageType.ERROR, MessageType.FINISH
BOOTCHECK, COMMAND, TROUBLESHOOT = MessagePhase.BOOTCHECK, MessagePhase.COMMAND, MessagePhase.TROUBLESHOOT


def order_words(play: Play) -> list[str]:
    """The last step's orders: "stop 3 to 1,2"."""
    return [
        f"{order.kind} {order.sequence} to "
        + ("all" if order.targets is None else ",".join(str(key.index) for key in order.targets))
        for order in play.steps[-1].orders
    ]


def test_start_goes_by_boot_check_to_the_first_attempt() -> None:
    play = Play()
    play.enrol(0, 1)
    assert play.job.phase is Phase.PENDING
    play.enrol(2)
    assert (play.job.phase, order_words(play)) == (Phase.BOOT_CHECKING, ["check 1 to all"])
    play.boot_check(0, 1)
    assert play.job.phase is Phase.BOOT_CHECKING
    play.boot_check(2)
    assert (play.job.phase, order_words(play)) == (Phase.RUN_COMMAND, ["run 2 to all"])
    assert (play.job.attempt, play.job.attempt_sequence) == (1, 2)


def test_error_stops_all_workers_first_and_go_starts_all_together() -> None:
    play = running()
    failed = play.error(0)
    assert failed.row == "message.error"
    assert (play.job.phase, order_words(play)) == (Phase.TROUBLESHOOTING, ["stop 3 to all"])
    assert failed.count is not None
    assert (failed.count.attempt, failed.count.worker) == (1, W[0])
    play.stopped(0, 1, 2)
    assert play.job.phase is Phase.TROUBLESHOOTING
    assert play.go().row == "go"
    assert (play.job.phase, order_words(play)) == (Phase.RUN_COMMAND, ["run 4 to all"])
    assert (play.job.attempt, play.job.attempt_sequence, play.retries) == (2, 4, "1:1:1")


def test_pod_end_stops_survivors_waits_for_the_replacement_and_its_boot_check() -> None:
    play = running()
    play.end(0, EndCause.DELETED)
    assert (play.job.phase, order_words(play)) == (Phase.RESTARTING, ["stop 3 to 1,2"])
    play.stopped(1, 2)
    play.enrol(0)
    assert (play.job.phase, order_words(play)) == (Phase.RESTARTING, ["check 4 to 0"])
    play.boot_check(0)
    assert (play.job.phase, order_words(play)) == (Phase.TROUBLESHOOTING, ["stop 5 to all"])
    play.stopped(0, 1, 2)
    play.go()
    assert (play.job.phase, play.retries, play.job.recover_count) == (Phase.RUN_COMMAND, "1:1:1", 1)


def test_worked_example() -> None:
    """DOMAIN 3: 3 workers, max retry 2, from 0:0:0 to Failed with 2:2:3."""
    play = running(workers=3, max_retry=2)
    seen = []

    def note() -> None:
        seen.append((play.retries, play.job.recover_count, play.job.phase))

    play.end(0, EndCause.CRASHED)  # worker 0 killed
    note()
    play.end(1, EndCause.CRASHED)  # worker 1 dies meanwhile
    play.enrol(1, 0)
    play.boot_check(0, 1)
    play.end(2, EndCause.DELETED)  # worker 2 too
    note()
    play.enrol(2)
    play.boot_check(2)
    play.go()
    note()
    play.error(1)
    note()
    play.stopped(0, 1, 2)
    play.go()
    note()
    play.error(2)
    note()
    assert seen == [
        ("1:0:0", 1, Phase.RESTARTING),
        ("1:0:0", 1, Phase.RESTARTING),
        ("1:1:1", 1, Phase.RUN_COMMAND),
        ("1:2:1", 2, Phase.TROUBLESHOOTING),
        ("2:2:2", 2, Phase.RUN_COMMAND),
        ("2:2:3", 3, Phase.FAILED),
    ]
    assert play.counts == 3
    assert [move.row for move in play.steps[-1].moves] == ["message.error", "auto.over_budget"]


def test_pod_end_over_budget_fails_at_once_without_waiting_for_a_replacement() -> None:
    play = running(max_retry=0)
    play.end(1)
    assert [move.after for move in play.steps[-1].moves] == [
        Phase.RESTARTING,
        Phase.TROUBLESHOOTING,
        Phase.FAILED,
    ]
    assert play.job.recover_count == 1


@pytest.mark.parametrize(
    ("cause", "counted"),
    [
        (EndCause.CRASHED, True),
        (EndCause.DELETED, True),
        (EndCause.NODE_LOST, True),
        (EndCause.OUT_OF_MEMORY, True),
        (EndCause.REPLACED, True),
        (EndCause.PREEMPTED, False),
        (EndCause.MAINTENANCE, False),
        (EndCause.EVICTED_BY_DESK, False),
        (EndCause.ORDERED, False),
        (EndCause.STOPPED_BY_USER, False),
    ],
    ids=str,
)
def test_end_counts_by_cause_and_always_restarts(cause: EndCause, counted: bool) -> None:
    play = running()
    assert (play.end(1, cause).count is not None) is counted
    assert play.job.phase is Phase.RESTARTING
    assert play.retries == ("0:1:0" if counted else "0:0:0")


def test_end_that_we_ordered_never_counts_whatever_it_looks_like() -> None:
    play = running()
    assert play.end(1, EndCause.CRASHED, by_desk=True).count is None
    assert play.job.phase is Phase.RESTARTING


def test_newer_agent_of_a_worker_is_the_end_of_the_older_one() -> None:
    play = running()
    play.enrol(0)
    assert play.job.phase is Phase.RESTARTING
    assert order_words(play) == ["stop 3 to 1,2", "check 4 to 0"]
    assert (play.retries, play.counts) == ("1:0:0", 1)
    assert play.end(0, is_current=False).use is Use.LATE, "the watch's report of the same end"
    assert play.counts == 1


LATE_WITNESSES: list[tuple[str, Callable[[Play, int], ev.Event]]] = [
    ("error of a survivor", lambda _, s: ev.Message(W[1], ERROR, COMMAND, s)),
    ("error of the culprit again", lambda _, s: ev.Message(W[0], ERROR, COMMAND, s)),
    ("hang of a survivor", lambda _, s: ev.HangConfirmed(W[2], s)),
    ("finish of a survivor", lambda _, s: ev.Message(W[1], FINISH, COMMAND, s)),
    ("end of an older incarnation", lambda *_: ev.IncarnationEnded(W[0], EndCause.CRASHED, is_current=False)),
]


@pytest.mark.parametrize("when", ["stopping", "stepping again"])
@pytest.mark.parametrize(("name", "witness"), LATE_WITNESSES, ids=[name for name, _ in LATE_WITNESSES])
def test_late_witness_changes_nothing(name: str, witness: Callable[[Play, int], ev.Event], when: str) -> None:
    play = running()
    sequence = play.job.attempt_sequence
    play.error(0)
    if when == "stepping again":
        play.stopped(0, 1, 2)
        play.go()
        play.started(0, 1, 2)
    before = play.job
    result = play.event(witness(play, sequence))
    assert result.use is Use.LATE
    assert (play.job, result.orders, result.count) == (before, (), None)


def test_two_errors_of_one_failure_count_once() -> None:
    play = running()
    sequence = play.job.attempt_sequence
    play.error(0)
    play.error(1, sequence)
    play.error(2, sequence)
    assert (play.counts, play.retries) == (1, "1:0:0")


def test_sequence_from_the_future_is_refused() -> None:
    play = running()
    before = play.job
    assert play.error(0, play.job.sequence + 1).use is Use.REFUSED
    assert play.job == before


def test_order_set_that_went_to_others_is_no_sequence_of_this_worker() -> None:
    play = running()
    play.end(0)
    play.enrol(0)  # check 4 goes to worker 0 only
    assert play.send(1, ACK, BOOTCHECK, 4).use is Use.REFUSED
    assert play.send(1, ACK, TROUBLESHOOT, 3).use is Use.USED


def test_message_delivered_twice_is_handled_once() -> None:
    play = running(workers=1)
    play.error(0)
    assert play.stopped(0).use is Use.USED
    before = play.job
    assert play.stopped(0).use is Use.DUPLICATE
    assert play.job == before


def test_finish_repeated_is_handled_once_and_older_one_refused() -> None:
    play = running()
    assert play.finish(0).use is Use.USED
    assert play.finish(0).use is Use.DUPLICATE
    assert play.finish(1, 1).use is Use.LATE
    assert [worker.finished for worker in play.job.workers] == [True, False, False]


def test_late_finish_of_a_pending_worker_is_allowed() -> None:
    play = running()
    sequence = play.job.attempt_sequence
    play.end(0, EndCause.DELETED)
    assert play.finish(1, sequence).use is Use.LATE, "a survivor was told to stop"
    result = play.finish(0, sequence)
    assert (result.use, result.row) == (Use.USED, "message.finish_late")
    assert play.worker(0).finished
    assert play.counts == 1


def test_all_finished_lets_all_leave() -> None:
    play = running()
    play.finish(0)
    play.finish(1)
    play.finish(2)
    assert (play.job.phase, order_words(play)) == (Phase.SUCCEEDED, ["finish 3 to all"])


def test_exit_zero_seen_by_the_watch_first_is_a_finish() -> None:
    play = running()
    play.end(0, EndCause.COMPLETED)
    assert play.job.phase is Phase.RUN_COMMAND
    play.finish(1)
    play.finish(2)
    assert (play.job.phase, order_words(play)) == (Phase.SUCCEEDED, ["finish 3 to 1,2"])
    assert play.counts == 0


def test_restart_takes_a_finished_worker_along() -> None:
    play = running()
    play.finish(0)
    play.error(1)
    play.stopped(0, 1, 2)
    play.go()
    assert play.job.phase is Phase.RUN_COMMAND
    assert not play.worker(0).finished


def test_finished_worker_that_left_and_is_needed_holds_the_recovery() -> None:
    play = running()
    play.finish(0)
    play.end(0, EndCause.COMPLETED)
    play.error(1)
    play.stopped(1, 2)
    refused = play.go()
    assert (refused.use, refused.row) == (Use.REFUSED, "go.departed")
    assert play.job.phase is Phase.TROUBLESHOOTING


@pytest.mark.parametrize("phase", [BOOTCHECK, TROUBLESHOOT], ids=str)
def test_error_of_a_check_sends_the_worker_away_uncounted(phase: MessagePhase) -> None:
    play = Play()
    play.enrol(0, 1, 2)
    if phase is TROUBLESHOOT:
        play.boot_check(0, 1, 2)
        play.error(1)
    counts, sequence = play.counts, play.job.sequence
    play.send(0, ERROR, phase, reason="GPU lost")
    assert play.worker(0).must_exit
    assert order_words(play) == [f"exit {sequence + 1} to 0"]
    assert play.steps[-1].orders[0].reason == "GPU lost"
    play.stopped(1, 2)
    assert play.go().use in {Use.REFUSED, Use.STALE}
    play.end(0, EndCause.CRASHED)
    assert play.job.phase is Phase.RESTARTING
    assert play.counts == counts, "it left because we said so"


def test_failed_check_after_the_stop_sends_the_worker_away() -> None:
    play = running()
    play.error(0)
    play.send(0, ACK, TROUBLESHOOT, passed=False, reason="gpu: 7 of 8 devices")
    assert play.worker(0).must_exit
    assert play.steps[-1].orders[0].kind is OrderKind.EXIT


def test_death_in_boot_check_is_not_punished_and_the_others_check_on() -> None:
    play = Play()
    play.enrol(0, 1, 2)
    play.boot_check(1)
    play.end(0)
    assert (play.job.phase, play.counts, order_words(play)) == (Phase.RESTARTING, 0, [])
    play.enrol(0)
    play.boot_check(0)
    assert play.job.phase is Phase.RESTARTING, "worker 2 has not passed yet"
    play.boot_check(2)
    assert play.job.phase is Phase.TROUBLESHOOTING


def test_death_before_everybody_enrolled_is_not_punished_and_all_are_checked() -> None:
    play = Play()
    play.enrol(0, 1)
    play.end(0)
    assert (play.job.phase, order_words(play)) == (Phase.RESTARTING, ["check 1 to 1"])
    play.enrol(0, 2)
    play.boot_check(0, 1)
    assert play.job.phase is Phase.RESTARTING
    play.boot_check(2)
    assert play.job.phase is Phase.TROUBLESHOOTING


def test_suspected_hang_kills_and_counts_nothing_and_a_confirmed_one_counts_once() -> None:
    play = running()
    before = play.job
    assert play.event(ev.HangSuspected(W[1], 2)).row == "hang_suspected.flagged"
    assert play.job == before
    assert play.event(ev.HangConfirmed(W[1], 2)).count is not None
    assert play.event(ev.HangConfirmed(W[2], 2)).count is None
    assert play.retries == "0:1:0"


@pytest.mark.parametrize(
    ("end", "next_count"),
    [(ev.Suspended("kueue"), 1), (ev.Deleted(), 1), (ev.Quit(reason="enough"), 1)],
    ids=["suspended", "deleted", "quit"],
)
def test_resumed_after_a_stop_keeps_the_recover_count(end: ev.Event, next_count: int) -> None:
    play = running()
    play.error(0)
    play.go()
    play.event(end)
    assert play.job.phase is Phase.STOPPED
    play.event(ev.Resumed("mei"))
    job = play.job
    assert (job.phase, job.run, job.attempt, job.recover_count) == (Phase.PENDING, 2, 2, next_count)
    play.enrol(0, 1, 2)
    play.boot_check(0, 1, 2)
    assert (play.job.attempt, play.retries) == (3, "1:1:1")


def test_resumed_after_a_failure_starts_at_zero() -> None:
    play = running(max_retry=0)
    play.error(0)
    assert (play.job.phase, play.job.recover_count) == (Phase.FAILED, 1)
    play.event(ev.Suspended("incidentdesk"))
    assert play.job.phase is Phase.FAILED
    play.event(ev.Resumed("mei"))
    assert (play.job.phase, play.job.recover_count, play.retries) == (Phase.PENDING, 0, "0:0:0")


def test_created_suspended_is_pending_queued_until_admitted() -> None:
    play = Play()
    play.event(ev.JobKnown(suspended=True))
    play.event(ev.Suspended("kueue"))
    assert (play.job.phase, play.job.reason) == (Phase.PENDING, "queued")
    play.event(ev.Resumed("kueue"))
    assert (play.job.phase, play.job.reason, play.job.run) == (Phase.PENDING, "", 1)


def test_capacity_is_waited_for_and_said() -> None:
    play = running()
    play.end(0, EndCause.PREEMPTED)
    play.event(ev.CapacityMissing("0/4 nodes have a free GPU"))
    assert play.job.reason == "waiting for capacity: 0/4 nodes have a free GPU"
    assert play.job.phase is Phase.RESTARTING
    play.event(ev.CapacityBack())
    assert play.job.reason == ""
    assert play.counts == 0


def test_stop_at_the_safe_point_waits_for_a_checkpoint_or_a_failure() -> None:
    play = running()
    play.event(ev.Quit(at_safe_point=True))
    assert play.job.phase is Phase.RUN_COMMAND
    play.event(ev.SafePoint())
    assert (play.job.phase, order_words(play)) == (Phase.STOPPED, ["stop 3 to all"])
    play = running()
    play.event(ev.Quit(at_safe_point=True))
    play.error(0)
    assert play.job.phase is Phase.STOPPED


def test_one_agent_that_cannot_enrol_makes_all_run_unprotected_until_the_next_start() -> None:
    play = Play()
    play.enrol(0, 1)
    play.event(ev.BarrierExpired())
    job = play.job
    assert (job.phase, job.protected, job.attempt, job.sequence) == (Phase.RUN_COMMAND, False, 1, 0)
    would = play.error(0, 0).count
    assert would is not None
    assert would.would
    assert play.retries == "0:0:0"
    for index in range(3):
        play.end(index)
    play.enrol(0, 1)
    assert not play.job.protected
    play.enrol(2)
    assert (play.job.phase, play.job.protected) == (Phase.BOOT_CHECKING, True)


def test_unprotected_job_is_derived_from_what_is_seen_and_nothing_is_ordered() -> None:
    play = Play(protected=False)
    play.event(ev.SeenRunning())
    assert (play.job.phase, play.job.attempt) == (Phase.RUN_COMMAND, 1)
    would = play.end(1, EndCause.CRASHED).count
    assert would is not None
    assert would.would
    assert play.job.phase is Phase.RESTARTING
    play.event(ev.SeenRunning())
    for index in range(3):
        play.end(index, EndCause.COMPLETED)
    assert (play.job.phase, play.retries) == (Phase.SUCCEEDED, "0:0:0")
    assert not any(step.orders for step in play.steps)


def test_new_place_starts_at_the_recover_count_and_a_retired_one_is_out_of_max_and_every() -> None:
    play = running(workers=2, max_retry=3)
    play.error(0)
    play.go()
    play.error(1)
    play.go()
    assert play.retries == "2:2"
    play.event(ev.WorldChanged((W[0], W[2])))
    assert play.job.phase is Phase.RESTARTING
    assert [(worker.retries, worker.retired) for worker in play.job.workers] == [
        (2, False),
        (2, True),
        (2, False),
    ]
    assert play.error(1, 2).use is Use.LATE
    play.enrol(2)
    play.boot_check(2)
    play.go()
    play.finish(0)
    play.finish(2)
    assert play.job.phase is Phase.SUCCEEDED


def test_limit_lowered_while_recovering_fails_and_raised_again_keeps_what_was_used() -> None:
    play = running(max_retry=3)
    for _ in range(2):
        play.error(0)
        play.go()
    play.event(ev.MaxRetryChanged(0))
    assert (play.job.phase, play.job.recover_count, play.retries) == (Phase.RUN_COMMAND, 1, "2:2:2")
    play.event(ev.MaxRetryChanged(5))
    assert play.job.recover_count == 2
    play.error(1)
    play.event(ev.MaxRetryChanged(2))
    assert play.job.phase is Phase.FAILED


def test_controller_outranks_what_we_believe() -> None:
    play = running()
    play.event(ev.ControllerEnded(succeeded=False, reason="BackoffLimitExceeded"))
    assert play.job.phase is Phase.FAILED
    assert "BackoffLimitExceeded" in play.steps[-1].reason


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    return (
        draw(st.integers(1, 4)),
        draw(st.integers(0, 3)),
        draw(st.lists(st.integers(0, 10_000), max_size=60)),
    )


def play_random(workers: int, max_retry: int, choices: list[int]) -> list[JobState]:
    state = make_job(workers=workers, max_retry=max_retry)
    states = [state]
    for choice in choices:
        events = [event for worker in state.workers for event in worker_events(worker, state)]
        events += [*job_events(), ev.BarrierExpired(), ev.SeenRunning(), ev.MaxRetryChanged(choice % 4)]
        state = step(state, events[choice % len(events)]).state
        states.append(state)
    return states


@given(histories())
def test_random_histories_stay_in_bounds_and_repeat_exactly(history: tuple[int, int, list[int]]) -> None:
    states = play_random(*history)
    assert play_random(*history) == states
    for before, after in itertools.pairwise(states):
        assert after.sequence >= before.sequence
        assert after.attempt >= before.attempt
        assert 0 <= after.recover_count <= after.max_retry + 1
        assert all(w.retries <= 4 for w in after.workers), "highest limit here is 3"
        if before.phase in TERMINAL_PHASES and after.phase is not before.phase:
            assert after.run == before.run + 1


@given(
    st.permutations([("error", 1), ("error", 2), ("hang", 1), ("finish", 2), ("old end", 0)]),
    st.integers(0, 2),
)
def test_order_of_late_witnesses_never_changes_anything(witnesses: list[tuple[str, int]], gap: int) -> None:
    play = running()
    sequence = play.job.attempt_sequence
    play.error(0)
    if gap >= 1:
        play.stopped(0, 1, 2)
    if gap >= 2:
        play.go()
        play.started(0, 1, 2)
    before = play.job
    for kind, index in witnesses:
        if kind == "error":
            play.error(index, sequence)
        elif kind == "hang":
            play.event(ev.HangConfirmed(W[index], sequence))
        elif kind == "finish":
            play.finish(index, sequence)
        else:
            play.end(index, is_current=False)
    assert play.job == before
    assert play.counts == 1


def test_unknown_worker_is_refused() -> None:
    assert running().event(ev.Enrolled(WorkerKey("head", 0))).use is Use.REFUSED


def test_finish_told_late_by_a_worker_that_was_stopped_and_is_gone_is_taken() -> None:
    """It finished, was told to stop before that was heard, and its container went: found by the explorer."""
    play = running(workers=2)
    finished_in = play.job.attempt_sequence
    play.end(1, EndCause.PREEMPTED)  # the stop order goes to worker 0
    play.end(0)
    assert play.worker(0).inner_phase is Phase.PENDING
    late = play.finish(0, finished_in)
    assert (late.row, late.use) == ("message.finish_late", Use.USED)
    assert play.worker(0).finished
    assert play.finish(0, finished_in).use is not Use.USED, "once"


def test_run_resumed_after_a_stop_while_it_was_open_whether_the_last_failure_counts_is_not_over_budget() -> (
    None
):
    """Over budget it would have trained on, and failed at the next preemption: found by the explorer."""
    play = running(workers=2, max_retry=0)
    play.enrol(0)  # a successor: why the last life ended is open
    assert (play.job.recover_count, play.job.cause_open) == (1, True)
    play.event(ev.Quit())
    play.event(ev.Resumed("somebody"))
    assert (play.job.recover_count, play.retries, play.job.is_over_budget) == (0, "0:0", False)
    play.enrol(0, 1)
    play.boot_check(0, 1)
    play.end(1, EndCause.PREEMPTED)
    assert play.job.phase is Phase.RESTARTING
