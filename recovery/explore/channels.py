"""The model *channels*: agents answer orders by messages that may be lost, repeated, delayed and reordered.

An agent works on the newest order set that it was given and answers it once: it passes or finishes, or it
tells of an error, and says so again until it has a newer one. At most so many messages are in flight for a
worker; one more takes the place of any older one, which is lost then. What is in flight may be delivered at any
time, in any order, as often as it likes, also after its incarnation has ended. That is told by the watch, at
once or never: then the enrolment of the next one tells it.

Reduction (partial order), ``sealed``: what a message says matters to nobody before it is delivered, and an
agent that has sent nothing can do less than one whose message never comes. So the answer to a worker's newest
order set is always on its way, and its first delivery chooses what it says; of older ones only those to a
command stay in flight, and each delivery of these may say anything. ``sealed=False`` walks the plain model.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

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
    judge_state,
    judge_step,
    remember,
    words_of,
    workers_in_words,
)
from recovery.explore.processes import SETTLED, StepFunction, is_at_rest
from recovery.phase_moves import OrderKind
from recovery.phases import (
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    WorkerState,
    step,
)
from recovery.signals import EndCause, WorkerKey

IN_FLIGHT = 2
FIRST_SEQUENCE = 1
RISE = 4


Answer = tuple[MessageType, MessagePhase]

#: How an agent may answer an order set. The answer to a stop that nothing reads is left out.
ANSWERS: Mapping[OrderKind, tuple[Answer, ...]] = {
    OrderKind.CHECK: (
        (MessageType.ACK, MessagePhase.BOOTCHECK),
        (MessageType.ERROR, MessagePhase.BOOTCHECK),
    ),
    OrderKind.RUN: (
        (MessageType.FINISH, MessagePhase.COMMAND),
        (MessageType.ERROR, MessagePhase.COMMAND),
    ),
    OrderKind.STOP: ((MessageType.ERROR, MessagePhase.TROUBLESHOOT),),
}
_PASSES = frozenset({(MessageType.ACK, MessagePhase.BOOTCHECK)})


@dataclass(frozen=True, slots=True)
class Letter:
    """An answer in flight. ``answer`` None: sealed, it may say whatever answers such an order."""

    order: OrderKind
    sequence: int
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """What is out there for one worker: what is in flight, sorted.

    ``said``: how it answered its newest order set; only where letters are not sealed.
    """

    flight: tuple[Letter, ...] = ()
    said: Letter | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """A move: something out there, with the event that the desk gets by it, if any."""

    words: str
    event: ev.Event | None = None


def _rank(letter: Letter) -> tuple[int | str, ...]:
    return (letter.sequence, letter.order, *(letter.answer or ()))


class Channels:
    """The model. ``step`` is production's unless a mutant is walked."""

    name = "channels"
    liveness = LIVENESS
    properties: Mapping[str, str] = PROPERTIES

    def __init__(
        self,
        *,
        workers: int = 3,
        max_retry: int = 2,
        in_flight: int = IN_FLIGHT,
        rise: int = RISE,
        sealed: bool = True,
        step: StepFunction = step,
        judgement: Judgement = SOUND,
    ) -> None:
        self.keys = tuple(WorkerKey("worker", index) for index in range(workers))
        self.max_retry = max_retry
        self.in_flight = in_flight
        self.sealed = sealed
        self.last_sequence = FIRST_SEQUENCE + rise
        self.step = step
        self.judgement = judgement
        self.codec = Codec(self.keys, max_retry, lambda job: job, keeps_open=False, blank=Line())

    @property
    def bounds(self) -> Sequence[str]:
        """What is left out or cut."""
        return (
            f"{workers_in_words(len(self.keys))}, max retry {self.max_retry}",
            f"at most {self.in_flight} messages in flight a worker; one more takes the place of another",
            f"sequences up to first + {self.last_sequence - FIRST_SEQUENCE} = {self.last_sequence}",
            "a state with a higher one is judged, and not gone on from",
            "of the answer to a stop only the error: nothing in the machine reads the other",
        )

    def start(self) -> int:
        """A job that is just known; no agent is there."""
        job = JobState(
            phase=Phase.PENDING,
            workers=tuple(WorkerState(key) for key in self.keys),
            max_retry=self.max_retry,
        )
        record = Record((WorkerRecord(),) * len(self.keys))
        return self.codec.pack(job, record, (Line(),) * len(self.keys))

    def moves(self, state: int, *, reduced: bool) -> Iterable[Move[int]]:
        """What agents, containers, the network, the desk and people do."""
        job, record, lines = self.codec.job(state), self.codec.record(state), self.codec.extras(state)
        if job.phase in TERMINAL_PHASES:
            for event in self._late_events(job):
                yield from self._judged(job, record, (Line(),) * len(self.keys), Happening("", event))
            return
        places = self.codec.places(state)
        for place in range(len(self.keys)):
            if reduced and places.index(places[place]) < place:
                continue
            for happening, line, rests in self._at(place, job, record, lines):
                after = (*lines[:place], line, *lines[place + 1 :])
                if happening.event is None:
                    yield Move(happening, self.codec.pack(job, record, after), "", rests)
                else:
                    yield from self._judged(job, record, after, happening, at_rest=rests)
        if job.cause_open:
            known = ev.CauseKnown(self.keys[0], job.attempt, counts=True)
            yield from self._judged(job, record, lines, Happening("", known), at_rest=True)
        if job.phase is Phase.TROUBLESHOOTING:
            yield from self._judged(job, record, lines, Happening("", ev.RecoveryGo()), at_rest=True)
        has_left = job.phase is Phase.TROUBLESHOOTING and any(worker.departed for worker in job.workers)
        yield from self._judged(job, record, lines, Happening("", ev.Quit()), at_rest=has_left)

    def _at(
        self, place: int, job: JobState, record: Record, lines: Sequence[Line]
    ) -> Iterator[tuple[Happening, Line, bool]]:
        """What can happen at one place: the happening, the line after it, and whether it does at rest."""
        worker, known, line, key = job.workers[place], record.workers[place], lines[place], self.keys[place]
        for event in (
            ev.Enrolled(key),
            ev.IncarnationEnded(key, EndCause.CRASHED),
            ev.IncarnationEnded(key, EndCause.COMPLETED),
            ev.IncarnationEnded(key, EndCause.CRASHED, is_current=False),
        ):
            yield Happening("", event), replace(line, said=None), is_at_rest(job, record, event)
        if (order := known.order) is not None and order in ANSWERS and worker.enrolled:
            if self.sealed:
                yield from _answered(key, order, worker, line)
            else:
                yield from self._sent(key, order, worker.last_sequence, line)
        for letter in line.flight:
            for answer in (letter.answer,) if letter.answer else ANSWERS[letter.order]:
                message = ev.Message(key, answer[0], answer[1], letter.sequence)
                yield Happening("", message), line, True

    def _sent(
        self, key: WorkerKey, order: OrderKind, sequence: int, line: Line
    ) -> Iterator[tuple[Happening, Line, bool]]:
        """An agent answers its newest order set, or says again how it answered."""
        said = line.said
        if said is not None and said.sequence == sequence:
            if said not in line.flight:
                for again in self._with(line, said):
                    yield Happening(f"{key} sends its answer to {sequence} again"), again, True
            return
        for answer in ANSWERS[order]:
            letter = Letter(order, sequence, answer)
            words = f"{key} sends {' '.join(answer)} of sequence {sequence}"
            for sent in self._with(line, letter):
                yield Happening(words), replace(sent, said=letter), answer in _PASSES

    def _with(self, line: Line, letter: Letter) -> tuple[Line, ...]:
        """The lines with one more in flight. Where there is no room any older one may be lost."""
        others = tuple(other for other in line.flight if other != letter)
        room = self.in_flight - (1 if self.sealed else 0)  # the answer to the newest is always on its way
        if len(others) < room:
            return (replace(line, flight=_sorted((*others, letter))),)
        return tuple(
            replace(line, flight=_sorted((*others[:lost], *others[lost + 1 :], letter)))
            for lost in range(len(others))
        )

    def _judged(
        self,
        job: JobState,
        record: Record,
        lines: tuple[Line, ...],
        happening: Happening,
        *,
        at_rest: bool = False,
    ) -> Iterator[Move[int]]:
        """The moves that an event becomes: one for each way in which new letters displace older ones."""
        assert happening.event is not None
        result = self.step(job, happening.event)
        broken = judge_step(self.judgement, record, job, happening.event, result)
        after = remember(record, job, happening.event, result)
        broken = broken or judge_state(self.judgement, after, result.state)
        ways: list[tuple[Line, ...]] = [(line,) for line in lines]
        if self.sealed and not result.state.is_terminal:
            for place, (then, now) in enumerate(zip(job.workers, result.state.workers, strict=True)):
                is_newest = now.last_sequence == then.last_sequence and after.workers[place].order
                if record.workers[place].order is OrderKind.RUN and not is_newest:
                    ways[place] = self._with(lines[place], Letter(OrderKind.RUN, then.last_sequence))
        for chosen in product(*ways):
            yield Move(happening, self.codec.pack(result.state, after, chosen), broken, at_rest)

    def _late_events(self, job: JobState) -> Iterator[ev.Event]:
        """What may still come in when the run is over, whatever was in flight."""
        for worker in job.workers:
            key = worker.key
            yield ev.Enrolled(key)
            yield ev.IncarnationEnded(key, EndCause.CRASHED)
            for sequence in range(self.last_sequence + 1):
                yield ev.Message(key, MessageType.FINISH, MessagePhase.COMMAND, sequence)
                yield ev.Message(key, MessageType.ERROR, MessagePhase.COMMAND, sequence)

    def broken(self, state: int) -> str:
        """States are judged with the step that leads to them."""
        return ""

    def is_cut(self, state: int) -> bool:
        """Whether the sequence has risen over the bound."""
        job = self.codec.job(state)
        return job.sequence > self.last_sequence and job.phase not in TERMINAL_PHASES

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
        """A happening in words."""
        assert isinstance(label, Happening)
        return words_of(label.event) if label.event is not None else label.words

    def row(self, state: int) -> Mapping[str, str]:
        """The job, its workers, and what is in flight."""
        job, lines = self.codec.job(state), self.codec.extras(state)
        cells = describe(job, self.codec.record(state))
        cells["sequence"] = str(job.sequence)
        for place, line in enumerate(lines):
            cells[f"in flight {place}"] = ", ".join(map(_words, line.flight))
        return cells


def _answered(
    key: WorkerKey, order: OrderKind, worker: WorkerState, line: Line
) -> Iterator[tuple[Happening, Line, bool]]:
    """The answer to the newest order set comes, once more if it came before."""
    said = [answer for answer in ANSWERS[order] if worker.has_answered(*answer)]
    for answer in said or ANSWERS[order]:
        event = ev.Message(key, answer[0], answer[1], worker.last_sequence)
        yield Happening("", event), line, bool(said) or answer in _PASSES


def _words(letter: Letter) -> str:
    return f"{' '.join(letter.answer) if letter.answer else f'answer to {letter.order}'} {letter.sequence}"


def _sorted(flight: Iterable[Letter]) -> tuple[Letter, ...]:
    return tuple(sorted(set(flight), key=_rank))
