"""Smallest jobs for the phase machine, and a driver that plays events on them."""

from __future__ import annotations

from recovery import phase_events as ev
from recovery.phases import (
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    Step,
    WorkerState,
    step,
)
from recovery.signals import EndCause, WorkerKey

W = tuple(WorkerKey("worker", index) for index in range(6))
CRASHED = EndCause.CRASHED


def make_job(workers: int = 3, max_retry: int = 2, **overrides: object) -> JobState:
    """A job that is just known: Pending, nobody enrolled."""
    fields: dict[str, object] = {
        "phase": Phase.PENDING,
        "workers": tuple(WorkerState(key) for key in W[:workers]),
        "max_retry": max_retry,
    }
    return JobState(**(fields | overrides))  # type: ignore[arg-type]


class Play:
    """A job under play: each call is one event; ``steps`` keeps what they gave."""

    def __init__(self, job: JobState | None = None, **overrides: object) -> None:
        self.job = job or make_job(**overrides)  # type: ignore[arg-type]
        self.steps: list[Step] = []

    def event(self, event: ev.Event) -> Step:
        result = step(self.job, event)
        self.job = result.state
        self.steps.append(result)
        return result

    def enrol(self, *indexes: int) -> Step:
        for index in indexes:
            result = self.event(ev.Enrolled(W[index]))
        return result

    def end(self, index: int, cause: EndCause = CRASHED, **fields: bool) -> Step:
        return self.event(ev.IncarnationEnded(W[index], cause, **fields))

    def send(
        self,
        index: int,
        type_: MessageType,
        phase: MessagePhase,
        sequence: int | None = None,
        *,
        passed: bool = True,
        reason: str = "",
    ) -> Step:
        if sequence is None:
            sequence = self.worker(index).last_sequence
        return self.event(ev.Message(W[index], type_, phase, sequence, passed, reason))

    def boot_check(self, *indexes: int) -> Step:
        for index in indexes:
            result = self.send(index, MessageType.ACK, MessagePhase.BOOTCHECK)
        return result

    def stopped(self, *indexes: int) -> Step:
        for index in indexes:
            result = self.send(index, MessageType.ACK, MessagePhase.TROUBLESHOOT)
        return result

    def started(self, *indexes: int) -> Step:
        for index in indexes:
            result = self.send(index, MessageType.ACK, MessagePhase.COMMAND)
        return result

    def error(self, index: int, sequence: int | None = None) -> Step:
        return self.send(index, MessageType.ERROR, MessagePhase.COMMAND, sequence, reason="exit_code")

    def finish(self, index: int, sequence: int | None = None) -> Step:
        return self.send(index, MessageType.FINISH, MessagePhase.COMMAND, sequence)

    def go(self) -> Step:
        return self.event(ev.RecoveryGo())

    def worker(self, index: int) -> WorkerState:
        worker = self.job.worker(W[index])
        assert worker is not None
        return worker

    @property
    def retries(self) -> str:
        return ":".join(str(worker.retries) for worker in self.job.workers)

    @property
    def counts(self) -> int:
        return sum(step.count is not None for step in self.steps)


def running(workers: int = 3, max_retry: int = 2) -> Play:
    """A protected job in its first attempt, all workers started."""
    play = Play(workers=workers, max_retry=max_retry)
    everyone = range(workers)
    play.enrol(*everyone)
    play.boot_check(*everyone)
    play.started(*everyone)
    assert play.job.phase is Phase.RUN_COMMAND
    return play
