"""The live feed as server-sent events: a plain ASGI callable, without Django's request cycle.

A page holds the cursor at which it was read. The stream begins there, so nothing falls between the first
fetch and the first message; each event's id is the cursor to go on from (``Last-Event-ID``). One reader
task a process reads new rows once, however many pages look; a stream that resumes from before the
reader's memory reads the difference from the table.

Order: rows are read by (transaction, id) below the snapshot's xmin, since sequences become visible at
commit and a lower id may come later.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.db import Error as DatabaseError
from django.db import connections
from django.utils.crypto import constant_time_compare

from apps.access.async_database import Unavailable, database
from apps.access.models import RoleBinding, User
from apps.access.selectors import visible_tenant_ids
from apps.desk.scope import sees_all_nodes
from apps.desk.views.feed import read_cursor
from apps.incidents.services.feed import FLEET_TOPIC, NODE_TOPIC

_log = logging.getLogger(__name__)

CHANNEL = "incidentdesk_live"
BEAT_SECONDS = 5.0  # the page shows the time since the last one as "updated … ago"
COMMENT_SECONDS = 10.0  # for proxies, which cut streams that say nothing
LOOK_SECONDS = 5.0  # a look without a notification, should one be lost
PENDING_SECONDS = 0.1  # until rows that an older open transaction holds back are looked for again
COALESCE_SECONDS = 0.1  # a burst of commits is one message
CHECK_SECONDS = 60.0  # session and roles are read again
MEMORY_ROWS = 5000
LONGEST_MESSAGE = 500  # more changes than that in one message: the page just looks again at all of it

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Cursor = tuple[int, int]

_ROWS = """
SELECT transaction, id, tenant_id, topic, key FROM incidents_feedrow
 WHERE (transaction, id) > (%s, %s) AND transaction < %s ORDER BY transaction, id
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the feed."""

    cursor: Cursor
    tenant_id: int
    topic: str
    key: str

    @property
    def change(self) -> tuple[str, str]:
        """What a page is told."""
        return (NODE_TOPIC if self.topic == FLEET_TOPIC else self.topic), self.key


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a stream: tenants, None for all, and whether every node."""

    user_id: int
    tenant_ids: frozenset[int] | None
    all_nodes: bool

    def sees(self, row: Row) -> bool:
        """Whether a row is of one of the reader's tenants, or about a node of somebody who sees them all."""
        if row.topic == FLEET_TOPIC:
            return self.all_nodes
        return self.tenant_ids is None or row.tenant_id in self.tenant_ids


class Feed:
    """Memory of the newest rows and the task that fills it. Belongs to one event loop."""

    def __init__(self) -> None:
        self.position: Cursor | None = None  # everything below has been read
        self._floor: Cursor = (0, 0)  # the memory is complete from here
        self._rows: list[Row] = []
        self._moved = asyncio.Event()
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read_at = -math.inf  # monotonic time of the last look that succeeded
        self.streams = 0

    @property
    def is_fresh(self) -> bool:
        """Whether the table was read lately: only then may a page be told that it is up to date."""
        return time.monotonic() - self._read_at < 2 * LOOK_SECONDS

    async def joined(self) -> None:
        """Count a stream; the first one starts the reader and waits until it has a position."""
        self.streams += 1
        if self._task is None or self._task.done():
            self.position = None
            self._task = asyncio.create_task(self._run(), name="live-feed")
        while self.position is None and not self._task.done():
            await self.moved(1.0)
        if self.position is None:
            raise ConnectionError("the live feed has no database")

    def left(self) -> None:
        """Count a stream out; without any the reader ends, so that idle desks ask nothing."""
        self.streams -= 1
        if self.streams == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    async def moved(self, seconds: float) -> None:
        """Wait until there are new rows, at most so long."""
        event = self._moved
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
        if self._task is not None and self._task.done():
            raise ConnectionError("the reader of the live feed ended")

    async def after(self, cursor: Cursor) -> tuple[list[Row], Cursor]:
        """Rows after ``cursor`` and the cursor to go on from."""
        assert self.position is not None
        position = self.position
        if cursor >= self._floor:
            start = bisect.bisect_right(self._rows, cursor, key=lambda row: row.cursor)
            return self._rows[start:], max(cursor, position)
        async with database.connection() as connection:
            found = await (await connection.execute(_ROWS, (*cursor, position[0]))).fetchall()
        return [_row(values) for values in found], position

    async def begins_after(self, cursor: Cursor) -> bool:
        """Whether rows may have been swept since ``cursor``, or the database is another one (restored)."""
        async with database.connection() as connection:
            answer = await connection.execute(
                "SELECT min(transaction), pg_snapshot_xmax(pg_current_snapshot())::text::bigint FROM incidents_feedrow"
            )
            values = await answer.fetchone()
        assert values is not None
        oldest, newest = values
        return cursor[0] > newest or (oldest is not None and cursor[0] < oldest)

    async def _run(self) -> None:
        """Read until cancelled. PostgreSQL may go and come back: then it is looked at again."""
        with database.hearing(CHANNEL, lambda _payload: self._nudged.set()):
            while True:
                try:
                    pending = await self._read()
                except Unavailable as error:
                    _log.warning("live.database_away error=%s", str(error).strip())
                    pending = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._nudged.wait(), PENDING_SECONDS if pending else LOOK_SECONDS)
                    await asyncio.sleep(COALESCE_SECONDS)
                self._nudged.clear()

    async def _read(self) -> bool:
        """Read what is new. Returns whether rows exist that an older open transaction still holds back."""
        async with database.connection() as connection:
            answer = await connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
            values = await answer.fetchone()
            assert values is not None
            xmin = int(values[0])
            if self.position is None:
                self.position = self._floor = (xmin, 0)
                self._rows = []
                self._read_at = time.monotonic()
                self._tell()
                return False
            # The snapshot of this statement is younger, so all below xmin has ended and is visible to it.
            found = await (await connection.execute(_ROWS, (*self.position, xmin))).fetchall()
            pending = await (
                await connection.execute(
                    "SELECT 1 FROM incidents_feedrow WHERE transaction >= %s LIMIT 1", (xmin,)
                )
            ).fetchone()
        self.position = max(self.position, (xmin, 0))
        self._read_at = time.monotonic()
        if found:
            self._rows.extend(_row(values) for values in found)
            if len(self._rows) > MEMORY_ROWS:
                dropped = len(self._rows) - MEMORY_ROWS
                self._floor = self._rows[dropped - 1].cursor
                del self._rows[:dropped]
            self._tell()
        return pending is not None

    def _tell(self) -> None:
        event, self._moved = self._moved, asyncio.Event()
        event.set()


def _row(values: Sequence[Any]) -> Row:
    return Row(
        cursor=(int(values[0]), int(values[1])), tenant_id=int(values[2]), topic=values[3], key=values[4]
    )


_feeds: dict[asyncio.AbstractEventLoop, Feed] = {}


def feed() -> Feed:
    """The feed of the running event loop."""
    loop = asyncio.get_running_loop()
    for other in [other for other in _feeds if other.is_closed()]:
        del _feeds[other]
    return _feeds.setdefault(loop, Feed())


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI application of ``/live/``: ``?cursor=transaction:id``, or ``Last-Event-ID``, which outranks it.

    Answers 401 without a session, 400 for a cursor that cannot be read, 503 while the database is away.
    Events: ``change`` with {"changes": [[topic, key], …]}, ``reload`` when the page must look at
    everything again, and ``beat``.
    """
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    if scope["method"] != "GET":
        return await _answer(send, 405, "Only GET.")
    try:
        cursor = read_cursor(headers.get("last-event-id") or query.get("cursor", [""])[0])
    except ValueError as error:
        return await _answer(send, 400, str(error))
    session_key = _session_key(headers.get("cookie", ""))
    try:
        reader = await asyncio.to_thread(identify, session_key)
    except DatabaseError as error:
        _log.warning("live.identify_failed error=%r", error)
        return await _answer(send, 503, "The database is away.")
    if reader is None:
        return await _answer(send, 401, "Log in first.")
    stream = _Stream(send, reader, session_key, cursor)
    sending = asyncio.create_task(stream.run())
    leaving = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        for result in await asyncio.gather(sending, leaving, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, (*Unavailable, ConnectionError)):
                _log.error("live.stream_failed", exc_info=result)


class _Stream:
    """One open page."""

    def __init__(self, send: Send, reader: Reader, session_key: str, cursor: Cursor) -> None:
        self._send = send
        self._reader = reader
        self._session_key = session_key
        self._cursor = cursor
        self._begun = False

    async def run(self) -> None:
        """Send until the page leaves, the session ends or the database does."""
        source = feed()
        try:
            await source.joined()
            must_reload = await source.begins_after(self._cursor)
        except (*Unavailable, ConnectionError):
            source.left()
            await _answer(self._send, 503, "The database is away.")
            return
        try:
            await self._begin()
            if must_reload:
                assert source.position is not None
                self._cursor = source.position
                await self._event("reload", {})
            await self._follow(source)
        finally:
            source.left()

    async def _follow(self, source: Feed) -> None:
        checked = spoke = commented = time.monotonic()
        while True:
            rows, self._cursor = await source.after(self._cursor)
            changes = list(dict.fromkeys(row.change for row in rows if self._reader.sees(row)))
            now = time.monotonic()
            if len(changes) > LONGEST_MESSAGE:
                await self._event("reload", {})
                spoke = now
            elif changes:
                await self._event("change", {"changes": changes})
                spoke = now
            elif now - spoke >= BEAT_SECONDS - 0.01:
                if source.is_fresh:
                    await self._event("beat", {})
                spoke = now
            if now - commented >= COMMENT_SECONDS:
                await self._write(b":\n\n")
                commented = now
            if now - checked >= CHECK_SECONDS:
                checked = now
                reader = await asyncio.to_thread(identify, self._session_key)
                if reader is None or reader != self._reader:
                    await self._event("reload", {})  # the page asks again and is told what it may see now
                    return
            # A row may have come while this stream was sending: the event is taken anew by moved().
            if source.position is not None and source.position <= self._cursor:
                await source.moved(max(0.0, spoke + BEAT_SECONDS - time.monotonic()))
            else:
                await asyncio.sleep(0)

    async def _begin(self) -> None:
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-store"),
                    (b"x-accel-buffering", b"no"),
                    (b"x-content-type-options", b"nosniff"),
                ],
            }
        )
        await self._write(b"retry: 2000\n")
        await self._event("beat", {})

    async def _event(self, name: str, body: dict[str, Any]) -> None:
        text = json.dumps(body, separators=(",", ":"))
        await self._write(
            f"id: {self._cursor[0]}:{self._cursor[1]}\nevent: {name}\ndata: {text}\n\n".encode()
        )

    async def _write(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, text: str) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")],
        }
    )
    await send({"type": "http.response.body", "body": text.encode()})


def _session_key(cookies: str) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(cookies)
    except CookieError:
        return ""
    morsel = jar.get(settings.SESSION_COOKIE_NAME)
    return morsel.value if morsel is not None else ""


def identify(session_key: str) -> Reader | None:
    """Who a session belongs to, None when it has ended. Uses a connection of its own thread and closes it."""
    if not session_key:
        return None
    try:
        session = import_module(settings.SESSION_ENGINE).SessionStore(session_key).load()
        if session.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
            return None
        user = User.objects.filter(pk=session.get(SESSION_KEY), is_active=True).first()
        if user is None:
            return None
        known = str(session.get(HASH_SESSION_KEY, ""))
        hashes = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
        if not any(constant_time_compare(known, valid) for valid in hashes):
            return None  # the password was changed since
        tenants = visible_tenant_ids(user)
        bound_to = RoleBinding.objects.filter(user=user).values_list("tenant_id", flat=True)
        return Reader(
            user_id=user.pk,
            tenant_ids=None if tenants is None else frozenset(tenants),
            all_nodes=sees_all_nodes(tenants, bound_to),
        )
    finally:
        connections.close_all()
