"""Job and record as one small number, so that a million states fit into memory.

From the highest bits down: the job's own fields, the record's own fields, then for each place the worker and
what the record knows of it. So the part that the job alone says is cut out by one mask. What differs by
numbers that only rise is made equal first (``renumber``), where a model wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from math import factorial, prod

from recovery.explore.jobs import Record, WorkerRecord
from recovery.phase_state import Answer, JobState, MessagePhase, MessageType, Phase, WorkerState
from recovery.signals import WorkerKey

#: Bits of the parts of a packed state: so many different ones of each may be met.
_WORKER_BITS = 12
_KNOWN_BITS = 20
_RECORD_BITS = 12
_PLACE_BITS = _WORKER_BITS + _KNOWN_BITS
_PLACE = (1 << _PLACE_BITS) - 1
_KNOWN = (1 << _KNOWN_BITS) - 1

#: Answers that nothing in the table reads but the row of duplicates, which changes nothing.
UNREAD_ANSWERS = frozenset(
    {(MessageType.ACK, MessagePhase.TROUBLESHOOT), (MessageType.ACK, MessagePhase.COMMAND)}
)


def _essence(job: JobState) -> JobState:
    """The job without what no later step reads: while it recovers, where a worker that has left once stood.

    It is no part of any "every", its messages are late, and if it comes back all of this is set anew.
    """
    if job.phase not in {Phase.RESTARTING, Phase.TROUBLESHOOTING}:
        return job
    if not any(worker.departed for worker in job.workers):
        return job
    return replace(
        job,
        workers=tuple(
            WorkerState(
                worker.key,
                finished=worker.finished,
                retries=worker.retries,
                retired=worker.retired,
                departed=True,
            )
            if worker.departed
            else worker
            for worker in job.workers
        ),
    )


_Job = tuple[Phase, int, str, bool, int, int, bool]
_Worker = tuple[Phase, bool, bool, int, bool, bool, bool, bool, int, frozenset[Answer]]


class Codec[X]:
    """Packs (job, record) and back. Parts are numbered as they are met, so the same walk packs alike.

    Args:
        normal: Makes equal what differs by numbers that only rise.
        keeps_open: Whether it is kept which counts may still be taken back.
        exact: Whether fields are kept that no later step reads, for the comparison with a walk without them.
        blank: What else a model keeps of a worker (hashable) when there is nothing to keep, as in a run that is over.
    """

    def __init__(
        self,
        keys: tuple[WorkerKey, ...],
        max_retry: int,
        normal: Callable[[JobState], JobState],
        *,
        keeps_open: bool,
        blank: X,
        exact: bool = False,
    ) -> None:
        self.keys = keys
        self.max_retry = max_retry
        self.normal = normal
        self.keeps_open = keeps_open
        self.blank = blank
        self.exact = exact
        self._shifts = tuple(_PLACE_BITS * n for n in reversed(range(len(keys))))
        self._record_shift = _PLACE_BITS * len(keys)
        self._job_shift = self._record_shift + _RECORD_BITS
        self._job_mask = ~(
            sum(_KNOWN << shift for shift in self._shifts) | ((1 << _RECORD_BITS) - 1) << self._record_shift
        )
        self._jobs = _Numbers[_Job](1 << 30)
        self._workers = _Numbers[_Worker](1 << _WORKER_BITS)
        self._worker_states: list[tuple[WorkerState, ...]] = []  # by number and place
        self._records = _Numbers[tuple[bool, int, int]](1 << _RECORD_BITS)
        self._knowns = _Numbers[tuple[WorkerRecord, X]](1 << _KNOWN_BITS)
        self._packed_records: dict[Record, int] = {}

    def pack(self, job: JobState, record: Record, extras: tuple[X, ...] | None = None) -> int:
        """The number of a state. ``extras`` None: all blank."""
        return self.pack_job(job) | self.pack_record(record, is_over=job.is_terminal, extras=extras)

    def pack_job(self, job: JobState) -> int:
        """What the job says of the number of a state."""
        job = self.normal(job)
        if not job.is_terminal and not self.exact:
            job = _essence(job)
        packed = (
            self._jobs.of(
                (
                    job.phase,
                    job.recover_count,
                    job.reason,
                    job.quit_due,
                    job.sequence,
                    job.attempt_sequence,
                    job.cause_open,
                )
            )
            << self._job_shift
        )
        for worker, shift in zip(job.workers, self._shifts, strict=True):
            packed |= self._worker_number(worker) << shift + _KNOWN_BITS
        return packed

    def _worker_number(self, worker: WorkerState) -> int:
        shape = (
            worker.inner_phase,
            worker.enrolled,
            worker.finished,
            worker.retries,
            worker.restarted,
            worker.must_exit,
            worker.retired,
            worker.departed,
            worker.last_sequence,
            worker.handled if self.exact else worker.handled - UNREAD_ANSWERS,
        )
        number = self._workers.of(shape)
        if number == len(self._worker_states):
            self._worker_states.append(tuple(WorkerState(key, *shape) for key in self.keys))
        return number

    def pack_record(self, record: Record, *, is_over: bool, extras: tuple[X, ...] | None = None) -> int:
        """What the record says of the number of a state. ``is_over``: the run is."""
        if is_over:
            workers = tuple(WorkerRecord(is_open=known.is_open) for known in record.workers)
            record = Record(workers, False, record.spent, record.open_before)
            extras = None
        if extras is not None:
            return self._pack_record(record, extras)
        packed = self._packed_records.get(record)
        if packed is None:
            packed = self._pack_record(record, (self.blank,) * len(self.keys))
            self._packed_records[record] = packed
        return packed

    def _pack_record(self, record: Record, extras: tuple[X, ...]) -> int:
        open_before = record.open_before if self.keeps_open else 0
        packed = self._records.of((record.counted, record.spent, open_before)) << self._record_shift
        for known, extra, shift in zip(record.workers, extras, self._shifts, strict=True):
            kept = known if self.keeps_open or not known.is_open else known._replace(is_open=False)
            packed |= self._knowns.of((kept, extra)) << shift
        return packed

    def job_part(self, packed: int) -> int:
        """The part of a state that its job alone says: alike for all records."""
        return packed & self._job_mask

    def places(self, packed: int) -> tuple[int, ...]:
        """For each place the number of its worker and of what is known of it: alike where they are alike."""
        return tuple([packed >> shift & _PLACE for shift in self._shifts])

    def phase(self, packed: int) -> Phase:
        """The job's phase."""
        return self._jobs.met[packed >> self._job_shift][0]

    def job(self, packed: int) -> JobState:
        """The job of a state."""
        phase, recover_count, reason, quit_due, sequence, attempt_sequence, cause_open = self._jobs.met[
            packed >> self._job_shift
        ]
        states = self._worker_states
        return JobState(
            phase=phase,
            workers=tuple([states[n >> _KNOWN_BITS][place] for place, n in enumerate(self.places(packed))]),
            max_retry=self.max_retry,
            recover_count=recover_count,
            sequence=sequence,
            attempt_sequence=attempt_sequence,
            reason=reason,
            quit_due=quit_due,
            cause_open=cause_open,
        )

    def record(self, packed: int) -> Record:
        """What the onlooker knows in a state."""
        met = self._knowns.met
        own = self._records.met[packed >> self._record_shift & (1 << _RECORD_BITS) - 1]
        return Record(tuple([met[n & _KNOWN][0] for n in self.places(packed)]), *own)

    def extras(self, packed: int) -> tuple[X, ...]:
        """What the model itself keeps of each worker."""
        met = self._knowns.met
        return tuple([met[n & _KNOWN][1] for n in self.places(packed)])

    def canonical(self, packed: int) -> int:
        """The state with its workers in one order: who is called first says nothing."""
        number = packed >> self._record_shift
        for n in sorted(self.places(packed)):
            number = number << _PLACE_BITS | n
        return number

    def weight(self, packed: int) -> int:
        """In how many ways the workers of a state can be named."""
        places = self.places(packed)
        return factorial(len(places)) // prod(factorial(places.count(n)) for n in set(places))


class _Numbers[T: Hashable]:
    """Numbers things in the order in which they are met. OverflowError: more are met than there is room for."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.met: list[T] = []
        self._numbers: dict[T, int] = {}

    def of(self, thing: T) -> int:
        """The number of a thing, a new one where it was not met before."""
        number = self._numbers.get(thing)
        if number is None:
            number = len(self.met)
            if number == self.most:
                raise OverflowError(f"a packed state has room for {self.most:,} different ones, like {thing}")
            self._numbers[thing] = number
            self.met.append(thing)
        return number
