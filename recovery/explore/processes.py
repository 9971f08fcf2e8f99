"""The model *processes*: what happens to workers is told at once, in any order, as often as it likes.

Everything that can happen may happen in every state, also what no cluster would do: what holds here holds
for every environment. The step is production's, the normal form is ``renumber``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from recovery import phase_events as ev
from recovery.explore.encoding import Codec
from recovery.explore.engine import Move
from recovery.explore.jobs import (
    LIVENESS,
    PROPERTIES,
    SOUND,
    Judgement,
    Record,
    WorkerRecord,
    describe,
    is_judged_alike,
    judge_job,
    judge_kept,
    judge_step,
    remember,
    words_of,
    workers_in_words,
)
from recovery.phase_moves import OrderKind
from recovery.phase_state import place_of
from recovery.phases import (
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    Step,
    WorkerState,
    renumber,
    step,
)
from recovery.signals import EndCause, WorkerKey

StepFunction = Callable[[JobState, ev.Event], Step]

JOB_EVENTS: tuple[ev.Event, ...] = (
    ev.RecoveryGo(),
    ev.CapacityMissing(),
    ev.CapacityBack(),
    ev.Quit(),
    ev.Quit(at_safe_point=True),
    ev.SafePoint(),
    ev.Suspended(),
    ev.Resumed(),
    ev.ControllerEnded(succeeded=True),
    ev.ControllerEnded(succeeded=False),
)
#: The place of what happens to the job as a whole.
NO_PLACE = -1
SETTLED = TERMINAL_PHASES | {Phase.RUN_COMMAND}


@cache
def worker_events(key: WorkerKey, last: int, attempt: int) -> tuple[ev.Event, ...]:
    """All that can happen to one worker whose newest order set is ``last``, in the attempt that ``attempt`` began."""

    def end(cause: EndCause, **fields: bool) -> ev.Event:
        return ev.IncarnationEnded(key, cause, **fields)

    def message(type_: MessageType, phase: MessagePhase, sequence: int, *, passed: bool = True) -> ev.Event:
        return ev.Message(key, type_, phase, sequence, passed)

    ack, error, finish = MessageType.ACK, MessageType.ERROR, MessageType.FINISH
    bootcheck, command, troubleshoot = MessagePhase.BOOTCHECK, MessagePhase.COMMAND, MessagePhase.TROUBLESHOOT
    events = [
        ev.Enrolled(key),
        ev.Enrolled(key, by_desk=True),
        end(EndCause.CRASHED),
        end(EndCause.CRASHED, by_desk=True),
        end(EndCause.CRASHED, in_attempt=False),
        end(EndCause.CRASHED, is_current=False),
        end(EndCause.PREEMPTED),
        end(EndCause.COMPLETED),
        ev.HangSuspected(key, last),
        ev.HangConfirmed(key, last),
        ev.HangConfirmed(key, last - 1),
        message(ack, bootcheck, last),
        message(ack, bootcheck, last, passed=False),
        message(ack, bootcheck, last - 1),
        message(ack, command, last),
        message(ack, troubleshoot, last),
        message(ack, troubleshoot, last, passed=False),
        message(error, bootcheck, last),
        message(error, bootcheck, last - 1),
        message(error, command, last),
        message(error, command, last - 1),
        message(error, command, last + 1),
        ev.Message(key, error, command, last, is_symptom=True),
        message(error, troubleshoot, last),
    ]
    events += [message(finish, command, sequence) for sequence in sorted({last, last - 1, attempt})]
    return tuple(events)


class _Answer(NamedTuple):
    """What production answers to an event in a job. ``broken``: a property of the job after it that does not hold."""

    event: ev.Event
    result: Step
    job_part: int
    broken: str


class _Answers(NamedTuple):
    """What production answers to all events at one place of a job, whatever the record says.

    ``alike``: events that change nothing, with the property that is broken by that, for all records.
    """

    alike: tuple[tuple[ev.Event, str], ...]
    by_record: tuple[_Answer, ...]


class Processes:
    """The model. ``step`` is production's unless a mutant is walked."""

    name = "processes"
    liveness = LIVENESS
    properties: Mapping[str, str] = PROPERTIES

    def __init__(
        self,
        *,
        workers: int = 3,
        max_retry: int = 2,
        late_causes: bool = True,
        exact: bool = False,
        step: StepFunction = step,
        judgement: Judgement = SOUND,
    ) -> None:
        self.keys = tuple(WorkerKey("worker", index) for index in range(workers))
        self.max_retry = max_retry
        self.late_causes = late_causes
        self.step = step
        self.judgement = judgement
        self.rows: set[str] = set()  # of the table, that a walk has met
        self._answers: dict[tuple[int, int], _Answers] = {}  # by the job's part of a state, and place
        self.codec = Codec(self.keys, max_retry, renumber, keeps_open=late_causes, blank=None, exact=exact)

    @property
    def bounds(self) -> Sequence[str]:
        """What is left out."""
        return (
            f"{workers_in_words(len(self.keys))}, max retry {self.max_retry}",
            "numbers that only rise are compared, not kept",
            "protected jobs; the places of the job and the user's limit do not change",
            *([] if self.late_causes else ["no cause is told later than the hold"]),
        )

    def start(self) -> int:
        """A job that is just known."""
        job = JobState(
            phase=Phase.PENDING,
            workers=tuple(WorkerState(key) for key in self.keys),
            max_retry=self.max_retry,
        )
        return self.codec.pack(job, Record((WorkerRecord(),) * len(self.keys)))

    def moves(self, state: int, *, reduced: bool) -> Iterable[Move[int]]:
        """Every event; ``reduced``: of workers that are alike only the first one's."""
        codec = self.codec
        job, record, job_part = codec.job(state), codec.record(state), codec.job_part(state)
        places = codec.places(state)
        for place in (*range(len(places)), NO_PLACE):
            if reduced and place != NO_PLACE and places.index(places[place]) < place:
                continue
            answers = self._answers.get((job_part, place))
            if answers is None:
                answers = self._answers[job_part, place] = self._answered(job, record, place)
            for event, broken in answers.alike:
                yield Move(event, state, broken)
            for answer in answers.by_record:
                yield self._judged(job, record, answer)
        for event in self._causes(record, job):
            yield self._judged(job, record, self._answer(event, self._step(job, event)))

    def _answered(self, job: JobState, record: Record, place: int) -> _Answers:
        """What production answers in a job to all that can happen at a place, or to the job itself."""
        if place == NO_PLACE:
            events = JOB_EVENTS
        else:
            worker = job.workers[place]
            events = worker_events(worker.key, worker.last_sequence, job.attempt_sequence)
        alike, by_record = [], []
        for event in events:
            result = self._step(job, event)
            if is_judged_alike(job, event, result):
                alike.append((event, judge_step(self.judgement, record, job, event, result)))
            else:
                by_record.append(self._answer(event, result))
        return _Answers(tuple(alike), tuple(by_record))

    def _step(self, job: JobState, event: ev.Event) -> Step:
        """Production's answer, without the words: what nobody reads is not kept."""
        result = self.step(job, event)
        self.rows.add(result.row)
        if result.moves:
            self.rows.update([move.row for move in result.moves])
        return Step(result.state, result.orders, result.count, result.use, row="", reason="")

    def _answer(self, event: ev.Event, result: Step) -> _Answer:
        after = result.state
        return _Answer(event, result, self.codec.pack_job(after), judge_job(self.judgement, after))

    def _judged(self, job: JobState, record: Record, answer: _Answer) -> Move[int]:
        event, result = answer.event, answer.result
        after = remember(record, job, event, result)
        return Move(
            event,
            answer.job_part | self.codec.pack_record(after, is_over=result.state.is_terminal),
            judge_step(self.judgement, record, job, event, result)
            or answer.broken
            or judge_kept(self.judgement, after, result.state),
            is_at_rest(job, record, event),
        )

    def _causes(self, record: Record, job: JobState) -> Iterator[ev.Event]:
        """Causes that may be told; the record knows what is open."""
        if job.cause_open:
            yield ev.CauseKnown(self.keys[0], job.attempt, counts=True)
        if self.late_causes:
            for known, key in zip(record.workers, self.keys, strict=True):
                if known.is_open:
                    yield ev.CauseKnown(key, job.attempt, counts=False)
            if record.open_before:
                yield ev.CauseKnown(self.keys[0], job.attempt - 1, counts=False)

    def broken(self, state: int) -> str:
        """States are judged with the step that leads to them, before their numbers are made small."""
        return ""

    def is_cut(self, state: int) -> bool:
        """Nothing is cut."""
        return False

    def is_settled(self, state: int) -> bool:
        """Whether the job trains or its run is over."""
        return self.codec.phase(state) in SETTLED

    def canonical(self, state: int) -> int:
        """Workers in one order."""
        return self.codec.canonical(state)

    def weight(self, state: int) -> int:
        """How many namings of the workers."""
        return self.codec.weight(state)

    def says(self, label: Hashable) -> str:
        """An event in words."""
        assert isinstance(label, ev.Event)
        return words_of(label)

    def row(self, state: int) -> Mapping[str, str]:
        """The job and its workers."""
        return describe(self.codec.job(state), self.codec.record(state))


def is_at_rest(job: JobState, record: Record, event: ev.Event) -> bool:
    """Whether an environment at rest does this, which gives capacity and in which nothing fails any more.

    Agents answer the boot check that they were told, leave when told to, come back when they are away. The desk
    lets all start, and waits no longer for a cause. A person who is asked about a finished worker that has left
    brings it back or stops the job.
    """
    has_left = job.phase is Phase.TROUBLESHOOTING and any(worker.departed for worker in job.workers)
    match event:
        case ev.RecoveryGo():
            return job.phase is Phase.TROUBLESHOOTING
        case ev.Quit():
            return has_left and not event.at_safe_point
        case ev.CapacityBack() | ev.CauseKnown(counts=True):
            return True
        case ev.Enrolled(by_desk=False):
            worker = job.worker(event.worker)
            return worker is not None and not worker.enrolled and (has_left or not worker.departed)
        case ev.IncarnationEnded(cause=EndCause.CRASHED, in_attempt=True, by_desk=False, is_current=True):
            place = place_of(job.workers, event.worker)
            return place is not None and record.workers[place].order is OrderKind.EXIT
        case ev.Message(type=MessageType.ACK, phase=MessagePhase.BOOTCHECK, passed=True):
            return True
    return False
