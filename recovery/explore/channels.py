"""The model *channels*: agents answer orders by messages that may be lost, repeated, delayed and reordered.

An agent works on the newest order set that it was given and answers it once: it passes or finishes, or it
tells of an error, and says so again until it has a newer one. At most so many messages are in flight for a
worker; one more takes the place of any older one, which is lost then. What is in flight may be delivered at any time,
in any order, as often as it likes. Ends of incarnations travel likewise, told by the watch; an enrolment is a
call and comes at once.

Reduction (partial order): what a letter says matters to nobody before it is opened, so an answer is put in
flight *sealed* with the order, and only its first delivery chooses what it says. An agent that has sent
nothing can do less than one whose letter is never delivered. ``sealed=False`` walks the plain model.
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
)
from recovery.explore.processes import SETTLED, StepFunction
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
class Obituary:
    """The watch's report of an end, in flight. Not ``in_attempt``: an attempt began since it happened."""

    cause: EndCause
    in_attempt: bool = True
    is_current: bool = True


Token = Letter | Obituary


@dataclass(frozen=True, slots=True)
class Line:
    """What is out there for one worker.

    ``is_up``: its present life has not ended, whatever the desk knows. ``flight``: what is in flight, sorted.
    ``said``: how it answered its newest order set; only where letters are not sealed.
    """

    is_up: bool = False
    flight: tuple[Token, ...] = ()
    said: Letter | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """A move: something out there, with the event that the desk gets by it, if any."""

    words: str
    event: ev.Event | None = None


def _rank(token: Token) -> tuple[int | str, ...]:
    if isinstance(token, Letter):
        return (0, token.order, token.sequence, *(token.answer or ()))
    return (1, token.cause, token.in_attempt, token.is_current)


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
        in_flight: int | None = IN_FLIGHT,
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
        self.codec = Codec(self.keys, max_retry, lambda job: job)

    @property
    def bounds(self) -> Sequence[str]:
        """What is left out or cut."""
        return (
            f"{len(self.keys)} workers, max retry {self.max_retry}",
            f"at most {self.in_flight} messages in flight a worker; one more takes the place of another",
            f"states whose sequence is over {self.last_sequence} (first {FIRST_SEQUENCE} +"
            f" {self.last_sequence - FIRST_SEQUENCE}) are judged, not gone on from",
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
        job, record, lines = self.codec.unpack(state)
        if job.phase in TERMINAL_PHASES:
            for event in self._late_events(job):
                yield from self._judged(job, record, (Line(),) * len(self.keys), Happening("", event))
            return
        _, ids = self.codec.parts(state)
        for place in range(len(self.keys)):
            if reduced and ids.index(ids[place]) < place:
                continue
            for happening, line, rests in self._at(place, job, record, lines):
                after = (*lines[:place], line, *lines[place + 1 :])
                if happening.event is None:
                    yield Move(happening, self.codec.pack(job, record, after), "", rests)
                else:
                    yield from self._judged(job, record, after, happening, at_rest=rests)
        if job.phase is Phase.TROUBLESHOOTING:
            yield from self._judged(job, record, lines, Happening("", ev.RecoveryGo()), at_rest=True)
        has_left = job.phase is Phase.TROUBLESHOOTING and any(worker.departed for worker in job.workers)
        yield from self._judged(job, record, lines, Happening("", ev.Quit()), at_rest=has_left)

    def _at(
        self, place: int, job: JobState, record: Record, lines: Sequence[Line]
    ) -> Iterator[tuple[Happening, Line, bool]]:
        """What can happen at one place: the happening, the line after it, and whether it does at rest."""
        worker, known, line, key = job.workers[place], record.workers[place], lines[place], self.keys[place]
        if line.is_up:
            yield from self._of_agent(key, worker, known, line)
        else:
            old = (
                Obituary(EndCause.CRASHED, in_attempt=False, is_current=False) if isinstance(token, Obituary) else token
                for token in line.flight
            )
            yield Happening("", ev.Enrolled(key)), Line(is_up=True, flight=_sorted(old)), True
            if worker.enrolled and not any(isinstance(t, Obituary) and t.is_current for t in line.flight):
                # Level, not edge: the watch looks again and tells of an end whose report was lost.
                for again in self._with(line, Obituary(EndCause.CRASHED)):
                    yield Happening(f"the watch tells again of the end of {key}"), again, True
        for token in line.flight:
            yield from _delivered(key, token, line)

    def _of_agent(
        self, key: WorkerKey, worker: WorkerState, known: WorkerRecord, line: Line
    ) -> Iterator[tuple[Happening, Line, bool]]:
        """What an agent does by itself: it answers, where letters are not sealed, and it dies."""
        said = line.said
        is_answered = said is not None and said.sequence == worker.last_sequence
        if not self.sealed and said is not None and is_answered and said not in line.flight:
            for again in self._with(line, said):
                yield Happening(f"{key} sends its answer to {said.sequence} again"), again, True
        if not self.sealed and not is_answered and known.order in ANSWERS:
            for answer in ANSWERS[known.order]:
                letter = Letter(known.order, worker.last_sequence, answer)
                words = f"{key} sends {' '.join(answer)} of sequence {letter.sequence}"
                for sent in self._with(line, letter):
                    yield Happening(words), replace(sent, said=letter), answer in _PASSES
        is_leaving = known.order is OrderKind.EXIT
        for cause in (EndCause.CRASHED, EndCause.COMPLETED):
            if cause is EndCause.COMPLETED and not worker.finished:
                continue
            for dead in self._with(replace(line, is_up=False, said=None), Obituary(cause)):
                yield Happening(f"{key} dies: {cause}"), dead, is_leaving and cause is EndCause.CRASHED

    def _with(self, line: Line, token: Token) -> tuple[Line, ...]:
        """The lines with one more in flight. Where there is no room any older one may be lost."""
        others = tuple(other for other in line.flight if other != token)
        if self.in_flight is None or len(others) < self.in_flight:
            return (replace(line, flight=_sorted((*others, token))),)
        return tuple(
            replace(line, flight=_sorted((*others[:lost], *others[lost + 1 :], token)))
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
        broken = judge_step(record, job, happening.event, result)
        after = remember(record, job, happening.event, result)
        broken = broken or judge_state(self.judgement, after, result.state)
        if result.state.attempt > job.attempt:
            lines = tuple(_one_attempt_later(line) for line in lines)
        ways = [(line,) for line in lines]
        if self.sealed and not result.state.is_terminal:
            for place, (then, now) in enumerate(zip(job.workers, result.state.workers, strict=True)):
                order = after.workers[place].order
                if now.last_sequence == then.last_sequence:
                    continue
                line = lines[place]
                if self.in_flight is None:
                    line = replace(line, flight=_sorted(map(_sealed, line.flight)))
                    ways[place] = (line,)
                if line.is_up and order in ANSWERS:
                    ways[place] = self._with(line, Letter(order, now.last_sequence))
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
        job, _, _ = self.codec.unpack(state)
        return job.sequence > self.last_sequence and job.phase not in TERMINAL_PHASES

    def is_settled(self, state: int) -> bool:
        """Whether the job trains or its run is over."""
        return self.codec.unpack(state)[0].phase in SETTLED

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
        job, record, lines = self.codec.unpack(state)
        cells = describe(job, record)
        cells["sequence"] = str(job.sequence)
        for place, line in enumerate(lines):
            flight = line.flight if line else ()
            cells[f"in flight {place}"] = ", ".join(map(_words, flight))
        return cells


def _delivered(key: WorkerKey, token: Token, line: Line) -> Iterator[tuple[Happening, Line, bool]]:
    """One delivery. It stays in flight: it may come once more."""
    if isinstance(token, Obituary):
        event = ev.IncarnationEnded(
            key, token.cause, in_attempt=token.in_attempt, is_current=token.is_current
        )
        yield Happening("", event), line, True
        return
    for answer in (token.answer,) if token.answer else ANSWERS[token.order]:
        opened = replace(token, answer=answer)
        flight = _sorted(opened if other == token else other for other in line.flight)
        is_at_rest = token.answer is not None or answer in _PASSES
        yield (
            Happening("", ev.Message(key, answer[0], answer[1], token.sequence)),
            replace(line, flight=flight),
            is_at_rest,
        )


def _words(token: Token) -> str:
    if isinstance(token, Obituary):
        return f"end ({token.cause})"
    return f"{' '.join(token.answer) if token.answer else f'answer to {token.order}'} {token.sequence}"


def _sorted(flight: Iterable[Token]) -> tuple[Token, ...]:
    return tuple(sorted(set(flight), key=_rank))


def _sealed(token: Token) -> Token:
    """An answer to an order set that is over may say anything."""
    return replace(token, answer=None) if isinstance(token, Letter) else token


def _one_attempt_later(line: Line) -> Line:
    """What is in flight when an attempt begins: ends that happened before it."""
    return replace(
        line,
        flight=_sorted(
            replace(token, in_attempt=False) if isinstance(token, Obituary) else token
            for token in line.flight
        ),
    )
