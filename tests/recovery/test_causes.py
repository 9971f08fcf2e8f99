"""One failure, one count, the right cause at the end: in whatever order its witnesses are heard. DOMAIN 3, ADR 8."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import phase_events as ev
from recovery.decide import Mode
from recovery.lifecycle import ActionKind
from recovery.phases import Phase, step
from recovery.signals import EndCause, Signal, SignalKind, Source, Use
from tests.recovery.desk import SHORT, Desk, started
from tests.recovery.jobs import W, running

RESET = "[rank2]: RuntimeError: Connection reset by peer"
HOLD = SHORT.cause_hold_seconds
NEVER = [cause for cause in EndCause if not cause.counts and cause is not EndCause.COMPLETED]


class Failure:
    """Worker 1 is lost. Each witness tells of it once more, with the time at which it happened."""

    def __init__(self, desk: Desk, cause: EndCause) -> None:
        self.desk, self.cause = desk, cause
        desk.now += timedelta(seconds=60)
        self.at, self.life = desk.now, desk.life(1)
        self.sequence = desk.job.attempt_sequence
        desk.now += timedelta(seconds=0.2)
        self.has_successor = False

    def survivor(self) -> None:
        self.desk.fail(2, RESET, sequence=self.sequence, seen_at=self.at + timedelta(seconds=0.05))

    def other_survivor(self) -> None:
        self.desk.fail(0, RESET, sequence=self.sequence, seen_at=self.at + timedelta(seconds=0.1))

    def watch(self) -> None:
        self.desk.end_life(self.life, self.cause, seen_at=self.at, offset_uncertainty_seconds=1.0)

    def hook(self) -> None:
        self.desk.end_life(
            self.life, self.cause, source=Source.HOOK, seen_at=self.at, offset_uncertainty_seconds=1.0
        )

    def successor(self) -> None:
        if not self.has_successor:
            self.desk.enrol(1)
            self.has_successor = True

    def tell(self, names: Sequence[str], *, together: bool = False) -> None:
        for name in names:
            getattr(self, name)()
            if not together:
                self.desk.decide()
                self.desk.now += timedelta(seconds=0.05)
        if together:
            self.desk.decide()


WITNESSES = ("survivor", "other_survivor", "watch", "hook", "successor")
ORDERS = list(itertools.permutations(WITNESSES))


def check(failure: Failure, category: str, counted: bool) -> None:
    desk = failure.desk
    assert len(desk.counts) == int(counted), desk.counts
    assert max(worker.retries for worker in desk.job.workers) == desk.job.recover_count == int(counted)
    assert desk.incidents == 1
    assert desk.incident.verdict["category"] == category
    assert desk.incident.causes.count(category) == 1
    assert "agent_replaced" not in desk.incident.causes
    (past,) = desk.state.past_attempts
    assert (past.end_cause, past.counted) == (category, counted)
    assert (past.witness, desk.job.cause_open) == (None, False)


def test_every_order_of_a_preemptions_witnesses_counts_nothing() -> None:
    for order in ORDERS:
        failure = Failure(started(), EndCause.PREEMPTED)
        failure.tell(order)
        check(failure, "preempted", counted=False)


def test_every_order_of_a_deletions_witnesses_counts_once() -> None:
    for order in ORDERS:
        failure = Failure(started(), EndCause.DELETED)
        failure.tell(order)
        check(failure, "pod_deleted", counted=True)


@settings(max_examples=80, deadline=None)
@given(
    names=st.lists(st.sampled_from(WITNESSES), min_size=1, max_size=9),
    cuts=st.sets(st.integers(1, 8)),
    cause=st.sampled_from([*NEVER, EndCause.NODE_LOST, EndCause.OUT_OF_MEMORY]),
    pause=st.sampled_from([0.0, 0.4, 2.0]),
)
def test_repeated_and_bundled_witnesses_come_to_the_same(
    names: list[str], cuts: set[int], cause: EndCause, pause: float
) -> None:
    failure = Failure(started(), cause)
    told = [*names, "watch"]
    begin = 0
    for end in [*sorted(cut for cut in cuts if cut < len(told)), len(told)]:
        failure.tell(told[begin:end], together=True)
        failure.desk.wait(pause)
        begin = end
    desk = failure.desk
    assert len(desk.counts) == int(cause.counts)
    assert desk.job.recover_count == int(cause.counts)
    (past,) = desk.state.past_attempts
    assert past.counted is cause.counts
    assert desk.incident.verdict["category"] == past.end_cause == desk.incident.causes[0]
    assert "lost_peer" not in desk.incident.causes


@pytest.mark.parametrize("cause", NEVER)
@pytest.mark.parametrize("first", ["successor", "survivor"])
def test_end_that_never_counts_takes_back_what_was_counted_before_it(first: str, cause: EndCause) -> None:
    failure = Failure(started(), cause)
    failure.tell([first])
    assert len(failure.desk.counts) == 1
    failure.tell(["watch"])
    assert failure.desk.counts == []
    assert failure.desk.retries == "0:0:0"
    (line,) = failure.desk.timeline("count_taken_back")
    assert "does not count" in line


def test_counted_in_one_inbox_with_its_explanation_is_never_counted_at_all() -> None:
    """Told later than the survivors by the clocks, but in the same pass."""
    failure = Failure(started(), EndCause.MAINTENANCE)
    desk = failure.desk
    failure.survivor()
    desk.end_life(failure.life, EndCause.MAINTENANCE, seen_at=failure.at + timedelta(seconds=1))
    decision = desk.decide()
    assert (decision.counts, decision.count_changes, desk.retries) == ((), (), "0:0:0")
    assert [change.counted for change in decision.attempts] == [False]
    assert desk.incident.causes == ("maintenance",)


def test_end_told_with_its_successor_is_read_first_whatever_the_clocks_say() -> None:
    failure = Failure(started(), EndCause.PREEMPTED)
    desk = failure.desk
    failure.successor()
    desk.end_life(failure.life, EndCause.PREEMPTED, seen_at=desk.now + timedelta(seconds=20))
    decision = desk.decide()
    assert decision.rule != "none"
    assert (decision.counts, desk.job.phase) == ((), Phase.RESTARTING)
    assert "end.not_counted" in {entry.data.get("row") for entry in decision.timeline}


def test_death_of_its_own_is_no_open_cause() -> None:
    desk = started(max_retry=0)
    desk.now += timedelta(seconds=60)
    desk.kill(0)
    desk.decide()
    assert desk.job.phase is Phase.FAILED


@pytest.mark.parametrize("first", ["successor", "survivor"])
def test_job_over_budget_waits_for_the_cause_and_no_longer(first: str) -> None:
    failure = Failure(started(max_retry=0), EndCause.PREEMPTED)
    desk = failure.desk
    failure.tell([first])
    assert desk.job.is_held
    desk.wait(HOLD - 1)
    assert not desk.job.is_terminal
    assert not desk.wanted(ActionKind.STOP_JOB)
    desk.wait(1)
    assert desk.job.phase is Phase.FAILED
    assert len(desk.wanted(ActionKind.STOP_JOB)) == 1
    failure.tell(["watch"])
    assert (desk.job.phase, desk.job.recover_count, len(desk.counts)) == (Phase.FAILED, 1, 1)
    assert desk.incident.verdict["category"] == "preempted"
    assert any("given up before this was known" in line for line in desk.timeline("cause_known"))


def test_job_over_budget_goes_on_when_the_cause_never_counts() -> None:
    failure = Failure(started(max_retry=0), EndCause.PREEMPTED)
    desk = failure.desk
    failure.tell(["survivor"])
    desk.stopped(0, 1, 2)
    desk.decide()
    assert not desk.wanted(ActionKind.RESTART_PROCESS)
    failure.tell(["watch", "successor"])
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    assert (desk.job.phase, desk.retries) == (Phase.RUN_COMMAND, "0:0:0")


def test_culprit_heard_after_a_survivor_ends_the_wait() -> None:
    desk = started(max_retry=0)
    desk.now += timedelta(seconds=60)
    at, sequence = desk.now, desk.job.attempt_sequence
    desk.fail(2, RESET)
    desk.decide()
    assert desk.job.is_held
    desk.now += timedelta(seconds=0.3)
    desk.kill(0, sequence=sequence, seen_at=at - timedelta(seconds=0.1))
    desk.decide()
    assert desk.job.phase is Phase.FAILED
    assert desk.counts == [(1, 2, "lost_peer")]
    assert desk.state.past_attempts[-1].end_cause == "process_killed"


@pytest.mark.parametrize("later", [True, False], ids=["after a kill", "before a kill"])
def test_kill_and_preemption_in_one_attempt_go_by_which_was_first(later: bool) -> None:
    desk = started()
    desk.now += timedelta(seconds=60)
    at, sequence, life = desk.now, desk.job.attempt_sequence, desk.life(1)
    desk.fail(2, RESET, seen_at=at + timedelta(seconds=5))
    desk.kill(0, sequence=sequence, seen_at=at + timedelta(seconds=4.9))
    desk.decide()
    assert desk.counts == [(1, 0, "process_killed")]
    desk.end_life(life, EndCause.PREEMPTED, seen_at=at + timedelta(seconds=9 if later else 4))
    desk.decide()
    assert len(desk.counts) == 1, "a death of its own is counted for good"


def test_ends_by_our_own_order_explain_a_reset_only_if_they_were_before_it() -> None:
    for seconds, counts in ((0.0, 0), (3.0, 1)):
        failure = Failure(started(), EndCause.EVICTED_BY_DESK)
        failure.tell(["survivor"])
        desk = failure.desk
        desk.now += timedelta(seconds=seconds)
        desk.end_life(failure.life, EndCause.EVICTED_BY_DESK, seen_at=failure.at + timedelta(seconds=seconds))
        desk.decide()
        assert len(desk.counts) == counts


def test_taken_back_after_the_incident_has_closed() -> None:
    failure = Failure(started(), EndCause.PREEMPTED)
    desk = failure.desk
    failure.tell(["successor"])
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    assert desk.retries == "1:1:1"
    for n in range(30):
        desk.keep_stepping(5, 3400 + 20 * n)
    assert desk.state.incident is None
    phase, orders = desk.job.phase, desk.job.sequence
    failure.watch()
    decision = desk.decide()
    assert (desk.retries, desk.counts) == ("0:0:0", [])
    assert (desk.job.phase, desk.job.sequence) == (phase, orders)
    assert [entry.kind for entry in decision.timeline] == ["count_taken_back"]


def test_resolved_incident_learns_its_cause_and_still_closes() -> None:
    failure = Failure(started(), EndCause.PREEMPTED)
    desk = failure.desk
    failure.tell(["successor"])
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    desk.keep_stepping(5, 3400)
    assert desk.incident.state.value == "resolved"
    failure.watch()
    desk.decide()
    assert (desk.incident.causes, desk.incident.verdict["category"]) == (("preempted",), "preempted")
    desk.wait(SHORT.reopen_seconds + 10)
    assert desk.state.incident is None


def test_count_of_a_run_before_stands_when_a_failure_lay_between() -> None:
    failure = Failure(started(max_retry=0), EndCause.PREEMPTED)
    desk = failure.desk
    failure.tell(["successor"])
    desk.wait(HOLD + 1)
    assert desk.job.phase is Phase.FAILED
    desk.signal(SignalKind.JOB_RESUMED, Source.WATCH, {"by": "kubectl"})
    desk.decide()
    assert (desk.job.phase, desk.job.recover_count) == (Phase.PENDING, 0)
    failure.watch()
    desk.decide()
    assert (desk.job.phase, desk.job.recover_count, desk.retries) == (Phase.PENDING, 0, "0:0:0")


def test_observed_would_count_is_taken_back_too() -> None:
    desk = Desk(mode=Mode.OBSERVE, protected=True)
    desk.signal(SignalKind.JOB_KNOWN, Source.WATCH, {"suspended": False})
    desk.enrol(0, 1, 2)
    desk.signal(SignalKind.WORLD_RUNNING, Source.WATCH)
    desk.decide()
    assert desk.job.phase is Phase.RUN_COMMAND
    failure = Failure(desk, EndCause.PREEMPTED)
    failure.tell(["successor"])
    assert [count.would for seen in desk.log for count in seen.decision.counts] == [True]
    failure.watch()
    (change,) = desk.decide().count_changes
    assert change.taken_back
    assert desk.retries == "0:0:0"


# The table.


def test_hold_refuses_go_and_barrier_while_over_budget() -> None:
    play = running(max_retry=0)
    play.event(ev.Enrolled(W[1]))
    assert play.job.is_held
    assert play.event(ev.BarrierExpired()).row == "barrier.held"
    play.boot_check(1)
    assert play.job.phase is Phase.TROUBLESHOOTING
    assert play.event(ev.RecoveryGo()).row == "go.held"
    result = play.event(ev.CauseKnown(W[1], play.job.attempt, counts=True))
    assert (result.row, play.job.phase, play.job.recover_count) == ("cause.counts", Phase.FAILED, 1)
    assert play.event(ev.CauseKnown(W[1], play.job.attempt, counts=False)).row == "cause.given_up"


def test_raised_limit_ends_the_hold_and_lowered_one_begins_it() -> None:
    play = running(max_retry=1)
    play.event(ev.Enrolled(W[1]))
    assert not play.job.is_held
    play.event(ev.MaxRetryChanged(0))
    assert play.job.is_held
    play.event(ev.MaxRetryChanged(5))
    assert not play.job.is_held
    assert play.job.phase is Phase.RESTARTING


def test_nothing_is_taken_back_that_was_not_charged() -> None:
    play = running()
    for event in (ev.CauseKnown(W[0], 1, counts=False), ev.CauseKnown(W[0], 0, counts=False)):
        result = step(play.job, event)
        assert (result.row, result.state.recover_count) == ("cause.nothing", 0)
    play.error(0)
    assert step(play.job, ev.CauseKnown(W[1], 1, counts=False)).row == "cause.nothing"
    after = step(play.job, ev.CauseKnown(W[0], 1, counts=False)).state
    assert [worker.retries for worker in after.workers] == [0, 0, 0]


# The border between two attempts.


def second_attempt() -> tuple[Desk, Callable[[float], Signal]]:
    """Killed and started again; an alert that was seen so many seconds after the second start."""
    desk = started()
    desk.now += timedelta(seconds=60)
    desk.kill(0)
    desk.decide()
    desk.recover()
    attempt = desk.state.attempt
    assert attempt is not None
    begun = attempt.started_at
    desk.now += timedelta(seconds=30)

    def alert(seconds: float) -> Signal:
        data = {"labels": {"alertname": "TrainingPodRestart"}}
        at = begun + timedelta(seconds=seconds)
        return desk.signal(SignalKind.ALERT, Source.ALERTMANAGER, data, worker=W[0], seen_at=at)

    return desk, alert


@pytest.mark.parametrize(
    ("seconds", "uncertainty", "attempt"),
    [
        (-0.5, 0.0, 1),
        (0.0, 0.0, 1),
        (0.5, 0.0, 1),
        (0.501, 0.0, 2),
        (0.9, 1.0, 1),
        (1.0, 1.0, 1),
        (1.001, 1.0, 2),
    ],
)
def test_evidence_at_the_border_belongs_to_the_older_attempt(
    seconds: float, uncertainty: float, attempt: int
) -> None:
    desk, alert = second_attempt()
    told = alert(seconds)
    desk.inbox = [replace(told, offset_uncertainty_seconds=uncertainty)]
    decision = desk.decide()
    (use,) = decision.uses
    assert f"evidence for attempt {attempt}," in use.reason
    evidence = [entry.attempt for entry in decision.timeline if entry.kind == "evidence"]
    assert evidence == ([1] if attempt == 1 else []), "only the attempt that failed has an incident to join"


def test_old_evidence_belongs_to_the_attempt_of_its_time_and_not_to_the_last_but_one() -> None:
    desk, _ = second_attempt()
    desk.kill(1)
    desk.decide()
    desk.recover()
    first, second = desk.state.past_attempts
    for at, n in ((first.started_at, 0), (first.ended_at, 1), (second.started_at, 1), (second.ended_at, 2)):
        desk.signal(SignalKind.LOG, Source.API, {"lines": ["x"]}, seen_at=at)
        (use,) = desk.decide().uses
        assert f"evidence for attempt {n}," in use.reason


def test_late_end_of_a_life_belongs_to_its_attempt_whatever_the_clocks_say() -> None:
    failure = Failure(started(), EndCause.PREEMPTED)
    desk = failure.desk
    failure.tell(["survivor", "successor"])
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    attempt = desk.state.attempt
    assert attempt is not None
    desk.end_life(failure.life, EndCause.DELETED, seen_at=attempt.started_at + timedelta(seconds=2))
    decision = desk.decide()
    assert [entry.attempt for entry in decision.timeline if entry.kind == "evidence"] == [1]
    assert len(desk.counts) == 1


def test_late_message_belongs_to_the_attempt_of_its_sequence() -> None:
    desk, _ = second_attempt()
    first = desk.state.past_attempts[0].sequence
    attempt = desk.state.attempt
    assert attempt is not None
    late = desk.fail(1, RESET, sequence=first, seen_at=attempt.started_at + timedelta(seconds=20))
    decision = desk.decide()
    assert [entry.attempt for entry in decision.timeline if entry.kind == "evidence"] == [1]
    assert decision.uses[0].signal == late.id


def test_hook_that_tells_a_process_end_as_its_pods_end_moves_nothing() -> None:
    """The agent has told of it and lives; nothing was heard of it since, so its silence proves nothing."""
    desk = started()
    desk.now += timedelta(seconds=60)
    at = desk.now
    desk.kill(0)
    desk.decide()
    told = desk.end_pod(0, EndCause.CRASHED, source=Source.HOOK, seen_at=at, offset_uncertainty_seconds=1.0)
    desk.decide()
    assert desk.log[-1].use_of(told) is Use.LATE
    assert desk.job.phase is Phase.TROUBLESHOOTING
    desk.recover()
    assert desk.retries == "1:1:1"
