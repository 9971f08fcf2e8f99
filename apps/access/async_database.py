"""PostgreSQL for the plain async callables (agents' polls, live feed, readiness): a pool and one LISTEN.

Without the ORM, which under ASGI costs several times the CPU. One `AsyncDatabase` a process, opened and
closed by the dispatcher's lifespan.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from django.db import connection as django_connection
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

_log = logging.getLogger(__name__)

POOL_SIZE = 8
#: A request that finds no connection for so long is answered 503: the peer comes again by itself.
ACQUIRE_SECONDS = 3.0
STATEMENT_SECONDS = 5.0
_RECONNECT_SECONDS = (0.1, 0.5, 1.0, 2.0)
_QUIET_SECONDS = 15.0
LIVE_CHANNEL = "incidentdesk_live"  # payload empty: the feed has new rows
ORDERS_CHANNEL = "incidentdesk_orders"  # payload: id of the job that has a new order set
CHANNELS = (LIVE_CHANNEL, ORDERS_CHANNEL)

#: What is raised while PostgreSQL is away, busy or starting. All of them pass.
Unavailable = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)

#: Called with a notification's payload, or with None when notifications may have been missed.
Heard = Callable[[str | None], None]


def conninfo() -> str:
    """How to reach the database that Django uses, also the one of a test run."""
    params: dict[str, Any] = dict(django_connection.get_connection_params())
    for name in ("cursor_factory", "context", "prepare_threshold", "server_side_binding", "row_factory"):
        params.pop(name, None)
    return make_conninfo("", **params)


class AsyncDatabase:
    """A bounded pool of autocommit connections and one connection that listens."""

    def __init__(self) -> None:
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._heard: dict[str, set[Heard]] = {channel: set() for channel in CHANNELS}
        self.is_listening = False

    async def open(self) -> None:
        """Start; needs no PostgreSQL that answers: connections are made, and made again, behind it."""
        options = f"-c statement_timeout={int(STATEMENT_SECONDS * 1000)}"
        self._pool = AsyncConnectionPool(
            conninfo(),
            kwargs={"autocommit": True, "options": options, "application_name": "incidentdesk-async"},
            min_size=1,
            max_size=POOL_SIZE,
            timeout=ACQUIRE_SECONDS,
            reconnect_timeout=5,
            # One more round trip for each use, against handing out what a restarted server left dead.
            check=AsyncConnectionPool.check_connection,
            open=False,
            name="async",
        )
        await self._pool.open()
        self._listener = asyncio.create_task(self._listen(), name="listen")

    async def close(self) -> None:
        """End what `open` started. May be called twice."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        pool, self._pool = self._pool, None
        for channel in CHANNELS:
            self._tell(channel, None)  # who looks now finds no pool, and ends
        if pool is not None:
            await pool.close(timeout=2)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection in autocommit. Raises one of `Unavailable` while PostgreSQL is away."""
        if self._pool is None:
            raise psycopg.OperationalError("The pool is not open; the server starts or stops.")
        async with self._pool.connection() as connection:
            yield connection

    @contextmanager
    def hearing(self, channel: str, heard: Heard) -> Iterator[None]:
        """Call ``heard`` for each notification of a channel, and with None after every gap.

        It runs between two awaits of the listener: set an event there, and do the work elsewhere.
        """
        self._heard[channel].add(heard)
        try:
            yield
        finally:
            self._heard[channel].discard(heard)

    async def _listen(self) -> None:
        """Keep one connection that listens; after a gap everybody is told to look."""
        failures = 0
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    conninfo(), autocommit=True, connect_timeout=5, application_name="incidentdesk-listen"
                ) as connection:
                    for channel in CHANNELS:
                        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                    failures = 0
                    self.is_listening = True
                    for channel in CHANNELS:
                        self._tell(channel, None)
                    while True:
                        async for note in connection.notifies(timeout=_QUIET_SECONDS):
                            self._tell(note.channel, note.payload)
                        await connection.execute("SELECT 1")  # finds a peer that is gone without a word
            except (psycopg.Error, OSError) as error:
                self.is_listening = False
                wait = _RECONNECT_SECONDS[min(failures, len(_RECONNECT_SECONDS) - 1)]
                failures += 1
                _log.warning("listen.lost error=%s again_in_seconds=%s", str(error).strip(), wait)
                await asyncio.sleep(wait)

    def _tell(self, channel: str, payload: str | None) -> None:
        for heard in list(self._heard[channel]):
            heard(payload)


database = AsyncDatabase()
