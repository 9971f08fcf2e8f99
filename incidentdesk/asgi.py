"""The one web process: agents' polls and the live feed as plain async callables, the rest Django in threads.

Django's own ASGI costs more than three times the CPU for a page, so pages go through WSGI. A request's
body is read whole before a thread is taken, so that slow senders cannot occupy the threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.dev")

from a2wsgi import WSGIMiddleware
from django.conf import settings

from incidentdesk.wsgi import application as django  # loads the apps that the following need

# isort: split
from agent.wire import MAX_BODY_BYTES
from apps import crash_points
from apps.access.async_database import database
from apps.desk.live import live
from apps.incidents.undecided import undecided_jobs
from apps.jobs.poll import Poll
from incidentdesk import health

_log = logging.getLogger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

THREADS = 12
AGENT_PATHS = "/agent/v1/"
#: Requests that wait for a thread or run in one; above it the answer is 503 at once.
MAX_REQUESTS = 200
BODY_SECONDS = 15.0
MOST_DRAINED_BYTES = 8 * MAX_BODY_BYTES


class Dispatcher:
    """Sends each request to who answers it, and starts and ends what runs beside requests."""

    def __init__(self) -> None:
        self.poll = Poll(
            database,
            on_orders_read=lambda: crash_points.reach("order_read"),
            undecided_jobs=undecided_jobs,
        )
        self._django: App = WSGIMiddleware(django, workers=THREADS)  # type: ignore[assignment, arg-type]
        self._requests = 0
        self._stopping: asyncio.Event | None = None
        self._exact: dict[str, App] = {
            "/agent/v1/poll": self.poll,
            "/healthz": health.healthz,
            "/readyz": health.readyz,
            "/metrics": health.serve_metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            path = scope["path"]
            exact = self._exact.get(path)
            if exact is not None:
                await exact(scope, receive, send)
            elif path.startswith("/live/"):
                await live(scope, self._until_stopped(receive), send)
            else:
                await self._page(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                try:
                    self._stopping = asyncio.Event()
                    await database.open()
                    self.poll.start()
                    _before_stop(self._stop)
                except Exception as error:
                    _log.exception("web.start_failed")
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self.poll.stop()
                await database.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _stop(self) -> None:
        """Let go of the requests that are held open: the server waits for them before its shutdown event."""
        self.poll.release()
        if self._stopping is not None:
            self._stopping.set()

    def _until_stopped(self, receive: Receive) -> Receive:
        """A receive that tells a stream the end when the process is about to stop."""
        stopping = self._stopping
        if stopping is None:
            return receive

        async def hear() -> dict[str, Any]:
            tasks = [asyncio.ensure_future(receive()), asyncio.ensure_future(stopping.wait())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                heard = tasks[0]
                return await heard if heard.done() else {"type": "http.disconnect"}  # type: ignore[return-value]
            finally:
                for task in tasks:
                    task.cancel()

        return hear

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Django, with the whole body at hand."""
        if self._requests >= MAX_REQUESTS:
            await _refuse(send, 503, "busy", "Too many requests wait already; come again.")
            return
        self._requests += 1
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await _read(scope, receive)
            except TimeoutError:
                await _refuse(send, 408, "slow", f"The body took longer than {BODY_SECONDS:.0f} s.")
                return
            if body is None:
                await _refuse(send, 413, "too_large", f"A body has at most {MAX_BODY_BYTES} bytes.")
                return
            await self._django(_prepared(scope, len(body)), _at_hand(body, receive), send)
        finally:
            self._requests -= 1


def _before_stop(call: Callable[[], None]) -> None:
    """Run ``call`` when this process is told to stop, before what the server does then.

    The server stops listening, waits until the last request is answered, and only then sends the
    lifespan's shutdown: held polls and streams would hold it too. Its handler is kept and run after ours.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        handle = getattr(loop, "_signal_handlers", {}).get(number)
        if handle is None:
            continue  # another server or event loop, or a test: its own time-out ends held requests

        def stop(handle: Any = handle) -> None:
            call()
            handle._run()  # noqa: SLF001 - asyncio has no way to read a handler that is set

        loop.add_signal_handler(number, stop)


async def _read(scope: Scope, receive: Receive) -> bytes | None:
    """The body, or None when it is too large, announced or not.

    Some of what is too much is read and dropped: a peer that is still sending would see a broken pipe
    instead of the answer that tells it why.
    """
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > MOST_DRAINED_BYTES:
        return None
    parts = bytearray()
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return bytes(parts)
        part = event.get("body", b"")
        size += len(part)
        if size <= MAX_BODY_BYTES:
            parts += part
        if size > MOST_DRAINED_BYTES or not event.get("more_body"):
            return bytes(parts) if size <= MAX_BODY_BYTES else None


def _prepared(scope: Scope, length: int) -> Scope:
    """The scope as WSGI needs it: the body's true length, and a query string of ASCII only.

    Agents address the desk by whatever name their network has for it (a service, a proxy, an address), and
    nothing in their answers depends on it: Django sees one fixed name instead of refusing the unknown one.
    """
    replaced = {b"content-length"}
    headers = [(b"content-length", str(length).encode())]
    if scope["path"].startswith(AGENT_PATHS):
        replaced.add(b"host")
        headers.append((b"host", settings.AGENT_HOST.encode()))
    headers += [(name, value) for name, value in scope["headers"] if name not in replaced]
    query = "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in scope["query_string"])
    return {**scope, "headers": headers, "query_string": query.encode("ascii")}


def _at_hand(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body that was read, then what the server says."""
    left = [body]

    async def give() -> dict[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return give


async def _refuse(send: Send, status: int, code: str, detail: str) -> None:
    headers = ((b"retry-after", b"1"),) if status == 503 else ()
    body = f'{{"code":"{code}","detail":"{detail}"}}'.encode()
    await health.answer(send, status, body, headers=headers)


application = Dispatcher()
