"""Heartbeats in batches: whatever polls came while one batch was on its way is the next one.

A batch is three statements in one round trip, however many agents are in it. It writes the heartbeats,
reads what each agent must be told, and the orders above each cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from django.conf import settings

from agent import wire
from apps.access.async_database import AsyncDatabase, Unavailable
from apps.jobs import waiting_times
from apps.jobs.clock_offset import ClockOffset

MAX_BATCH = 1000
EXITED = "exited"
COUNT_SECONDS = 10.0
BATCH_SECONDS = 8.0
#: Between two batches of heartbeats, so that ten go together at 500 polls a second; one that comes alone, or
#: looks because an order was written, waits for nothing.
GATHER_SECONDS = 0.02


@dataclass(slots=True)
class Beat:
    """What one poll says. ``writes`` false: only look again, the heartbeat is written already."""

    incarnation_id: int
    job_id: int
    cursor: int
    received_at: float  # Unix seconds of this host
    sent_at: float | None = None
    phase: str = ""
    sequence: int = 0
    pid: int | None = None
    process_state: str = ""  # as in wire.ProcessState
    step: int | None = None
    step_at: float | None = None
    step_seconds: float | None = None
    checkpoint_step: int | None = None
    skipped_bytes: int = 0
    writes: bool = True
    seen: asyncio.Future[Seen] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True, slots=True)
class OrderRow:
    """One order set above the cursor, for this worker."""

    sequence: int
    phase: str
    content: dict[str, Any]
    written_at: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What an agent must be told. ``state`` is gone, fenced or live."""

    state: str
    job: str = ""
    namespace: str = ""
    is_protected: bool = False
    directive: str = ""
    extend_seconds: float = 0.0
    stop_grace_seconds: float = 0.0
    orders: tuple[OrderRow, ...] = ()
    now: float = 0.0  # the database's clock

    @property
    def told(self) -> tuple[bool, str]:
        """What is worth an early answer when it changes."""
        return self.is_protected, self.directive


GONE = Seen(state="gone")


def _waiting_on(seen: Seen) -> Seen:
    """The same, told to wait on for an order: the desk has not decided yet about what was reported."""
    if not seen.is_protected or seen.directive not in ("", wire.EXTEND_WAIT):
        return seen
    wait = float(settings.TIMINGS["ORDER_WAIT_SECONDS"])
    return replace(seen, directive=wire.EXTEND_WAIT, extend_seconds=max(seen.extend_seconds, wait))


# A row that a decision or an enrolment holds is skipped: its heartbeat is written by the next poll, and a
# process that stopped while it held a lock cannot silence the whole fleet.
_WRITE = """
WITH held AS (
    SELECT id FROM jobs_incarnation WHERE id = ANY(%(id)s) AND ended_at IS NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), beat AS (
    SELECT * FROM unnest(
        %(id)s::bigint[], %(cursor)s::bigint[], %(phase)s::text[], %(sequence)s::bigint[], %(pid)s::bigint[],
        %(state)s::text[], %(step)s::bigint[], %(step_at)s::float8[], %(step_seconds)s::float8[],
        %(checkpoint)s::bigint[], %(skipped)s::bigint[], %(offset)s::float8[], %(uncertainty)s::float8[]
    ) AS t(id, cursor, phase, sequence, pid, state, step, step_at, step_seconds, checkpoint, skipped,
           clock_offset, uncertainty)
)
UPDATE jobs_incarnation i SET
    last_seen_at = clock_timestamp(),
    cursor = GREATEST(i.cursor, beat.cursor),
    agent_phase = beat.phase,
    agent_sequence = beat.sequence,
    command_pid = COALESCE(beat.pid, i.command_pid),
    process_state = beat.state,
    step = COALESCE(beat.step, i.step),
    step_at = CASE WHEN beat.step IS NULL THEN i.step_at
                   ELSE LEAST(clock_timestamp(), GREATEST(timestamptz '2000-01-01 00:00:00+00',
                                                          to_timestamp(beat.step_at - beat.clock_offset))) END,
    step_seconds = CASE WHEN beat.step IS NULL THEN i.step_seconds ELSE beat.step_seconds END,
    checkpoint_step = COALESCE(beat.checkpoint, i.checkpoint_step),
    skipped_bytes = beat.skipped,
    clock_offset_seconds = beat.clock_offset,
    clock_uncertainty_seconds = beat.uncertainty
FROM beat JOIN held USING (id) WHERE i.id = beat.id
"""

_READ = """
SELECT i.id, j.id, w.role, w.index, j.name, j.namespace, j.stop_grace_seconds,
       j.is_protected AND c.mode <> 'observe' AND j.mode <> 'observe',
       j.directive, EXTRACT(epoch FROM j.directive_until_at - clock_timestamp())::float8,
       i.ended_at IS NOT NULL OR EXISTS (
           SELECT 1 FROM jobs_incarnation n WHERE n.worker_id = i.worker_id AND n.id > i.id AND n.nonce <> ''),
       EXTRACT(epoch FROM clock_timestamp())::float8
FROM jobs_incarnation i
JOIN jobs_worker w ON w.id = i.worker_id
JOIN jobs_job j ON j.id = w.job_id
JOIN access_cluster c ON c.id = j.cluster_id
WHERE i.id = ANY(%(id)s)
"""

_ORDERS = """
SELECT o.id, o.job_id, o.sequence, o.phase, o.targets, o.content,
       EXTRACT(epoch FROM o.written_at)::float8, o.first_read_at IS NULL
FROM unnest(%(job)s::bigint[], %(cursor)s::bigint[]) AS t(job, cursor)
JOIN jobs_order o ON o.job_id = t.job AND o.sequence > t.cursor
ORDER BY o.job_id, o.sequence
"""

_MARK_READ = """
UPDATE jobs_order SET first_read_at = clock_timestamp() WHERE id IN (
    SELECT id FROM jobs_order WHERE id = ANY(%(id)s) AND first_read_at IS NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
"""

_COUNT = """
SELECT count(*) FROM jobs_incarnation
WHERE ended_at IS NULL AND last_seen_at > clock_timestamp() - make_interval(secs => %(within)s)
"""


#: Those of the given jobs about which something was reported that is not decided yet.
UndecidedJobs = Callable[[psycopg.AsyncConnection[Any], Sequence[int]], Awaitable[set[int]]]


async def nothing_undecided(connection: psycopg.AsyncConnection[Any], job_ids: Sequence[int]) -> set[int]:
    """For who asks no decisions."""
    return set()


class Heartbeats:
    """One task that drains the waiting beats.

    ``on_read`` is called when orders were read and marked. ``undecided_jobs`` is asked about the jobs of
    agents whose process has ended: while the desk has yet to decide, these wait on.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        on_read: Callable[[], None],
        undecided_jobs: UndecidedJobs = nothing_undecided,
    ) -> None:
        self._database = database
        self._on_read = on_read
        self._undecided_jobs = undecided_jobs
        self._waiting: list[Beat] = []
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._offsets: dict[int, tuple[ClockOffset, float]] = {}
        self._database_ahead: float | None = None
        self._counted_at = 0.0
        self.agents = 0

    def start(self) -> None:
        """Begin; in the running event loop."""
        self._task = asyncio.create_task(self._drain(), name="heartbeats")

    async def stop(self) -> None:
        """End; beats that wait fail as if the database were away."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._fail(self._waiting, psycopg.OperationalError("The server stops."))
        self._waiting = []

    async def look(self, beat: Beat) -> Seen:
        """Write a heartbeat (unless it only looks) and give what the agent must be told.

        Raises one of ``Unavailable`` while PostgreSQL is away.
        """
        self._waiting.append(beat)
        self._some.set()
        if not beat.writes:
            self._hurry.set()
        return await beat.seen

    async def _drain(self) -> None:
        began = 0.0
        while True:
            await self._some.wait()
            if (rest := began + GATHER_SECONDS - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await self._hurry.wait()
            began = time.monotonic()
            self._hurry.clear()
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            if not self._waiting:
                self._some.clear()
            try:
                async with asyncio.timeout(BATCH_SECONDS), self._database.connection() as connection:
                    seen = await self._exchange(connection, batch)
            except (*Unavailable, TimeoutError) as error:
                self._fail(batch, error)
            except asyncio.CancelledError:
                self._fail(batch, psycopg.OperationalError("The server stops."))
                raise
            except Exception as error:  # noqa: BLE001
                # A batch that fails for a reason nobody foresaw must not silence the fleet for good.
                self._fail(batch, error)
            else:
                for beat in batch:
                    if not beat.seen.done():
                        beat.seen.set_result(seen.get(id(beat), GONE))

    @staticmethod
    def _fail(batch: Sequence[Beat], error: BaseException) -> None:
        reason = psycopg.OperationalError("No answer in time.") if isinstance(error, TimeoutError) else error
        for beat in batch:
            if not beat.seen.done():
                beat.seen.set_exception(reason)

    async def _exchange(
        self, connection: psycopg.AsyncConnection[Any], batch: Sequence[Beat]
    ) -> dict[int, Seen]:
        """Results by ``id(beat)``: one agent may be in a batch twice."""
        if self._database_ahead is None or time.monotonic() - self._counted_at > COUNT_SECONDS:
            await self._measure(connection)
        ids = [beat.incarnation_id for beat in batch]
        cursors: dict[int, int] = {}
        for beat in batch:
            cursors[beat.job_id] = min(cursors.get(beat.job_id, beat.cursor), beat.cursor)
        writes = {beat.incarnation_id: beat for beat in batch if beat.writes}
        async with connection.pipeline():
            if writes:
                await connection.execute(_WRITE, self._columns(list(writes.values())))
            reading = await connection.execute(_READ, {"id": ids})
            ordering = await connection.execute(
                _ORDERS, {"job": list(cursors), "cursor": list(cursors.values())}
            )
            rows = {row[0]: row for row in await reading.fetchall()}
            orders: dict[int, list[Any]] = {}
            for order in await ordering.fetchall():
                orders.setdefault(order[1], []).append(order)
        ended = sorted({beat.job_id for beat in batch if beat.process_state == EXITED})
        undecided = await self._undecided_jobs(connection, ended) if ended else set()
        seen: dict[int, Seen] = {}
        unread: set[int] = set()
        for beat in batch:
            row = rows.get(beat.incarnation_id)
            if row is not None and row[1] == beat.job_id:
                told = self._seen(beat, row, orders.get(row[1], ()), unread)
                if beat.process_state == EXITED and beat.job_id in undecided:
                    told = _waiting_on(told)
                seen[id(beat)] = told
        if unread:
            await connection.execute(_MARK_READ, {"id": sorted(unread)})
            self._on_read()
        return seen

    @staticmethod
    def _seen(beat: Beat, row: Any, orders: Sequence[Any], unread: set[int]) -> Seen:
        _, _, role, index, name, namespace, grace, is_protected, directive, extend, is_fenced, now = row
        if is_fenced:
            return Seen(state="fenced", now=now)
        mine = []
        for order_id, _, sequence, phase, targets, content, written_at, is_unread in orders:
            if sequence > beat.cursor and (targets is None or f"{role}/{index}" in targets):
                mine.append(OrderRow(sequence, phase, content, written_at))
                if is_unread:
                    unread.add(order_id)
        if extend is not None and extend <= 0:
            directive = ""
        return Seen(
            state="live",
            job=name,
            namespace=namespace,
            is_protected=is_protected,
            directive=directive,
            extend_seconds=max(0.0, extend or 0.0),
            stop_grace_seconds=grace,
            orders=tuple(mine),
            now=now,
        )

    def _columns(self, beats: Sequence[Beat]) -> dict[str, list[Any]]:
        offsets = [self._offset(beat) for beat in beats]
        return {
            "id": [beat.incarnation_id for beat in beats],
            "cursor": [beat.cursor for beat in beats],
            "phase": [beat.phase for beat in beats],
            "sequence": [beat.sequence for beat in beats],
            "pid": [beat.pid for beat in beats],
            "state": [beat.process_state for beat in beats],
            "step": [beat.step for beat in beats],
            "step_at": [beat.step_at for beat in beats],
            "step_seconds": [beat.step_seconds for beat in beats],
            "checkpoint": [beat.checkpoint_step for beat in beats],
            "skipped": [beat.skipped_bytes for beat in beats],
            "offset": [offset.seconds for offset in offsets],
            "uncertainty": [offset.uncertainty_seconds for offset in offsets],
        }

    def _offset(self, beat: Beat) -> ClockOffset:
        offset, _ = self._offsets.get(beat.incarnation_id, (ClockOffset(), 0.0))
        if beat.sent_at is not None:
            received = beat.received_at + (self._database_ahead or 0.0)
            offset.add(sent_at=beat.sent_at, received_at=received)
        self._offsets[beat.incarnation_id] = (offset, time.monotonic())
        return offset

    async def _measure(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Count the fleet, and compare this host's clock with the database's, which is the one that counts."""
        within = max(60.0, 3 * waiting_times.lost_seconds(self.agents))
        counting = await connection.execute(_COUNT, {"within": within})
        self.agents = (await counting.fetchone() or (0,))[0]
        before = time.time()
        asking = await connection.execute("SELECT EXTRACT(epoch FROM clock_timestamp())::float8")
        after = time.time()
        self._database_ahead = (await asking.fetchone() or (after,))[0] - (before + after) / 2
        self._counted_at = time.monotonic()
        old = self._counted_at - within
        self._offsets = {key: kept for key, kept in self._offsets.items() if kept[1] > old}
