"""A breadth-first walk over what people, queues and barriers do, which the explorer leaves out; and the table."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from recovery import phase_events as ev
from recovery.phases import (
    TABLE,
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    Step,
    WorkerState,
    markdown,
    renumber,
    step,
)
from recovery.signals import EndCause, WorkerKey
from tests.recovery.explored import rows_met
from tests.recovery.jobs import Play, W, make_job, running

MAX_RETRY = 1
ALLOWED_BEHIND = {
    # inner phases that an unfinished worker may have in a phase of the job
    Phase.PENDING: {Phase.PENDING},
    Phase.BOOT_CHECKING: {Phase.BOOT_CHECKING},
    Phase.RUN_COMMAND: {Phase.RUN_COMMAND},
    Phase.RESTARTING: {
        Phase.PENDING,
        Phase.BOOT_CHECKING,
        Phase.RESTARTING,
        Phase.RUN_COMMAND,
        Phase.TROUBLESHOOTING,
    },
    Phase.TROUBLESHOOTING: {Phase.TROUBLESHOOTING},
}


def worker_events(worker: WorkerState, job: JobState) -> Iterator[ev.Event]:
    """What an environment of processes and messages can do to one worker."""
    key, last = worker.key, worker.last_sequence
    yield ev.Enrolled(key)
    yield ev.IncarnationEnded(key, EndCause.CRASHED)
    yield ev.IncarnationEnded(key, EndCause.PREEMPTED)
    yield ev.IncarnationEnded(key, EndCause.CRASHED, in_attempt=False)
    yield ev.IncarnationEnded(key, EndCause.CRASHED, is_current=False)
    yield ev.IncarnationEnded(key, EndCause.COMPLETED)
    yield ev.HangConfirmed(key, last)
    yield ev.HangConfirmed(key, last - 1)
    for phase in MessagePhase:
        yield ev.Message(key, MessageType.ACK, phase, last)
        yield ev.Message(key, MessageType.ERROR, phase, last)
    yield ev.Message(key, MessageType.ACK, MessagePhase.TROUBLESHOOT, last, passed=False)
    yield ev.Message(key, MessageType.ERROR, MessagePhase.COMMAND, last, is_symptom=True)
    yield ev.Message(key, MessageType.ERROR, MessagePhase.COMMAND, last - 1)
    yield ev.Message(key, MessageType.ERROR, MessagePhase.COMMAND, job.sequence + 1)
    yield ev.Message(key, MessageType.FINISH, MessagePhase.COMMAND, job.attempt_sequence)
    yield ev.Message(key, MessageType.FINISH, MessagePhase.COMMAND, last - 1)
    if job.cause_open:
        yield ev.CauseKnown(key, job.attempt, counts=True)
    if worker.retries:
        yield ev.CauseKnown(key, job.attempt, counts=False)
        yield ev.CauseKnown(key, job.attempt - 1, counts=False)


def job_events() -> Iterator[ev.Event]:
    yield ev.RecoveryGo()
    yield ev.Suspended("somebody")
    yield ev.Resumed("somebody")
    yield ev.Deleted()
    yield ev.ControllerEnded(succeeded=True)
    yield ev.ControllerEnded(succeeded=False)


def wilful_events(state: JobState) -> list[ev.Event]:
    """Fewer things that happen to workers; people, queues and barriers instead."""
    events: list[ev.Event] = [
        ev.Protection(wanted=False),
        ev.Protection(wanted=True),
        ev.BarrierExpired(),
        ev.SeenRunning(),
        ev.Quit(at_safe_point=True),
        ev.Quit(),
        ev.SafePoint(),
        ev.CapacityMissing("no GPU free"),
        ev.CapacityBack(),
        ev.JobKnown(suspended=True),
        *job_events(),
    ]
    for worker in state.workers:
        key, last = worker.key, worker.last_sequence
        events += [
            ev.Enrolled(key),
            ev.IncarnationEnded(key, EndCause.CRASHED),
            ev.HangSuspected(key, last),
            ev.Message(key, MessageType.ACK, MessagePhase.BOOTCHECK, last),
            ev.Message(key, MessageType.ERROR, MessagePhase.COMMAND, last),
        ]
    return events


def check(before: JobState, event: ev.Event, result: Step) -> None:
    after = result.state
    assert after.sequence >= before.sequence, "the number never goes down"
    assert 0 <= after.recover_count <= after.max_retry + 1
    assert after.attempt >= before.attempt
    assert len({order.sequence for order in result.orders}) == len(result.orders)
    assert after.sequence - before.sequence == len(result.orders)
    for worker in after.workers:
        assert worker.retries <= after.max_retry + 1
        assert worker.last_sequence <= after.sequence, "no worker's sequence is over the job's"
        if after.phase in TERMINAL_PHASES:
            assert worker.inner_phase is after.phase
        elif not worker.finished and not worker.departed:
            assert worker.inner_phase in ALLOWED_BEHIND[after.phase], (worker, after.phase)
    if before.phase in TERMINAL_PHASES and after.phase is not before.phase:
        assert isinstance(event, ev.Resumed)
        assert after.run == before.run + 1
    if result.count is not None:
        assert before.phase is Phase.RUN_COMMAND, "only a failure while training counts"
        assert after.phase is not Phase.RUN_COMMAND, "any count leaves RunCommand: one an attempt"
        assert result.count.would is not before.protected
    else:
        used = {worker.key: worker.retries for worker in before.workers}
        grown = [worker.key for worker in after.workers if worker.retries > used.get(worker.key, 9)]
        # without a count retries only rise by alignment, when all start together
        assert not grown or after.attempt > before.attempt or after.run > before.run
    if before.protected and after.attempt > before.attempt and after.phase is Phase.RUN_COMMAND:
        assert {worker.retries for worker in after.active} == {after.recover_count}
    if not before.protected and not after.protected:
        assert not result.orders, "nobody obeys: nothing is ordered"


@dataclass(frozen=True)
class Walk:
    """What a walk met. ``following`` holds the states that one event leads to."""

    following: dict[JobState, dict[ev.Event, JobState]]
    rows: frozenset[str]
    transitions: int


def canonical(state: JobState) -> JobState:
    """One state for all that differ by numbers that only rise, or by which worker is called first."""
    small = renumber(state)
    small = replace(small, cause_open=small.is_held)  # nothing else asks for it where the limit never moves
    first, second = sorted(small.workers, key=_likeness)
    return replace(small, workers=(replace(first, key=W[0]), replace(second, key=W[1])))


def _likeness(worker: WorkerState) -> tuple[object, ...]:
    return (
        worker.inner_phase,
        worker.enrolled,
        worker.finished,
        worker.retries,
        worker.restarted,
        worker.must_exit,
        worker.departed,
        worker.last_sequence,
        sorted(worker.handled),
    )


def walk(events_in: Callable[[JobState], list[ev.Event]]) -> Walk:
    start = canonical(make_job(workers=2, max_retry=MAX_RETRY))
    following: dict[JobState, dict[ev.Event, JobState]] = {}
    rows: set[str] = set()
    queue = deque([start])
    seen = {start}
    transitions = 0
    while queue:
        state = queue.popleft()
        following[state] = {}
        for event in events_in(state):
            result = step(state, event)
            check(state, event, result)
            rows.add(result.row)
            rows.update(move.row for move in result.moves)
            transitions += 1
            after = state if result.state is state else canonical(result.state)
            following[state][event] = after
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return Walk(following, frozenset(rows), transitions)


@pytest.fixture(scope="module")
def wilful() -> Walk:
    return walk(wilful_events)


def test_every_state_with_people_queues_and_barriers_is_sound(wilful: Walk) -> None:
    print(f"{len(wilful.following)} states, {wilful.transitions} transitions")
    assert len(wilful.following) > 1000


def test_rows_that_no_walk_reaches_are_reached_by_name(wilful: Walk) -> None:
    """Every row of the table is reached, by this walk, by the explorer's or by the situations listed here."""
    reached = set(wilful.rows | rows_met())
    unknown = WorkerKey("worker", 9)
    lone = make_job(workers=1, max_retry=0)
    situations: list[tuple[JobState, ev.Event]] = []
    for key in (unknown, W[1]):
        retired = step(make_job(workers=2), ev.WorldChanged(W[:1])).state
        situations += [
            (retired, ev.Enrolled(key)),
            (retired, ev.IncarnationEnded(key, EndCause.CRASHED)),
            (retired, ev.Message(key, MessageType.ACK, MessagePhase.BOOTCHECK, 1)),
            (retired, ev.HangSuspected(key, 1)),
            (retired, ev.HangConfirmed(key, 1)),
            (retired, ev.CauseKnown(key, 0, counts=False)),
        ]
    play = running(workers=2)
    situations += [
        (lone, ev.WorldChanged(())),
        (lone, ev.WorldChanged(W[:2])),
        (lone, ev.MaxRetryChanged(3)),
        (play.job, ev.WorldChanged(W[:3])),
        (play.job, ev.Enrolled(W[0], by_desk=True)),
        (play.job, ev.Message(W[0], MessageType.MARK, MessagePhase.COMMAND, 2)),
    ]
    play.started(0)
    checking = Play(workers=1)
    checking.enrol(0)
    failed = ev.Message(W[0], MessageType.ACK, MessagePhase.BOOTCHECK, 1, passed=False, reason="gpu")
    situations.append((checking.job, failed))
    for state, event in situations:
        result = step(state, event)
        check(state, event, result)
        reached.add(result.row)
        reached.update(move.row for move in result.moves)
    assert {row.id for row in TABLE} - reached == set()


def test_table_prints_every_row_once() -> None:
    text = markdown()
    ids = [line.split("|")[1].strip() for line in text.splitlines()[2:]]
    assert ids == [row.id for row in TABLE]
    assert len(set(ids)) == len(ids)
    assert (
        "| message.error | RunCommand | Message | Error command | Troubleshooting | that worker +1 |" in text
    )
