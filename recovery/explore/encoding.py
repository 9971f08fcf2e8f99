"""Job and record as one small number, so that a million states fit into memory.

What differs by numbers that only rise is made equal first (``renumber``), where a model wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import factorial, prod

from recovery.explore.jobs import Record, WorkerRecord
from recovery.phase_state import JobState, MessagePhase, MessageType, Phase, WorkerState
from recovery.signals import WorkerKey

#: Bits of one part of a packed state; so many different workers and jobs may be met.
_BITS = 24
_MASK = (1 << _BITS) - 1


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
        self._job_ids: dict[tuple[object, ...], int] = {}
        self._jobs: list[tuple[object, ...]] = []
        self._worker_ids: dict[tuple[object, ...], int] = {}
        self._workers: list[tuple[WorkerState, ...]] = []  # by place
        self._records: list[WorkerRecord] = []
        self._extras: list[X] = []

    def pack(self, job: JobState, record: Record, extras: tuple[X, ...] | None = None) -> int:
        """The number of a state. ``extras`` None: all blank."""
        job = self.normal(job)
        known = record.workers
        if job.is_terminal:
            known = tuple(WorkerRecord(is_open=worker.is_open) for worker in known)
            extras = None
        elif not self.exact:
            job = _essence(job)
        shape = (
            job.phase,
            job.recover_count,
            job.reason,
            job.quit_due,
            job.sequence,
            job.attempt_sequence,
            job.cause_open,
            record.counted and not job.is_terminal,
            record.spent,
            record.open_before if self.keeps_open else 0,
        )
        number = self._job_ids.get(shape)
        if number is None:
            number = self._job_ids[shape] = len(self._jobs)
            self._jobs.append(shape)
        packed = number
        for place, worker in enumerate(job.workers):
            extra = extras[place] if extras is not None else self.blank
            packed = packed << _BITS | self._worker_id(worker, known[place], extra)
        return packed

    def _worker_id(self, worker: WorkerState, known: WorkerRecord, extra: X) -> int:
        shape = (
            worker.inner_phase,
            worker.enrolled,
            worker.finished,
            worker.retries,
            worker.restarted,
            worker.must_exit,
            worker.departed,
            worker.last_sequence,
            worker.handled if self.exact else worker.handled - UNREAD_ANSWERS,
            known.order,
            known.finish_taken,
            known.is_open and self.keeps_open,
            extra,
        )
        number = self._worker_ids.get(shape)
        if number is None:
            number = self._worker_ids[shape] = len(self._records)
            self._workers.append(
                tuple(
                    WorkerState(
                        key,
                        worker.inner_phase,
                        worker.enrolled,
                        worker.finished,
                        worker.retries,
                        worker.restarted,
                        worker.must_exit,
                        worker.retired,
                        worker.departed,
                        worker.last_sequence,
                        shape[8],
                    )
                    for key in self.keys
                )
            )
            self._records.append(known if self.keeps_open else replace(known, is_open=False))
            self._extras.append(extra)
        return number

    def parts(self, packed: int) -> tuple[int, tuple[int, ...]]:
        """The numbers of the job and of its workers, by place."""
        workers = []
        for _ in self.keys:
            workers.append(packed & _MASK)
            packed >>= _BITS
        return packed, tuple(reversed(workers))

    def unpack(self, packed: int) -> tuple[JobState, Record, tuple[X, ...]]:
        """The job, the record and the models' own parts of a state."""
        number, ids = self.parts(packed)
        phase, recover_count, reason, quit_due, sequence, attempt_sequence, cause_open, *known = self._jobs[
            number
        ]
        job = JobState(
            phase=phase,  # type: ignore[arg-type]
            workers=tuple(self._workers[n][place] for place, n in enumerate(ids)),
            max_retry=self.max_retry,
            recover_count=recover_count,  # type: ignore[arg-type]
            sequence=sequence,  # type: ignore[arg-type]
            attempt_sequence=attempt_sequence,  # type: ignore[arg-type]
            reason=reason,  # type: ignore[arg-type]
            quit_due=quit_due,  # type: ignore[arg-type]
            cause_open=cause_open,  # type: ignore[arg-type]
        )
        record = Record(tuple(self._records[n] for n in ids), *known)  # type: ignore[arg-type]
        return job, record, tuple(self._extras[n] for n in ids)

    def canonical(self, packed: int) -> int:
        """The state with its workers in one order: who is called first says nothing."""
        number, ids = self.parts(packed)
        for n in sorted(ids):
            number = number << _BITS | n
        return number

    def weight(self, packed: int) -> int:
        """In how many ways the workers of a state can be named."""
        _, ids = self.parts(packed)
        return factorial(len(ids)) // prod(factorial(ids.count(n)) for n in set(ids))
