"""POST /agent/v1/poll: heartbeat and doorbell in one, a plain async callable beside Django.

An agent's poll is held until an order for its job is written, what it is told changes, or its time is up.
The orders are rows; PostgreSQL's NOTIFY only wakes. What agent and desk say: ``agent.wire``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import msgspec

from agent import wire
from apps.access.async_database import ORDERS_CHANNEL, AsyncDatabase, Unavailable
from apps.jobs import tokens, waiting_times
from apps.jobs.clock_offset import MOST_UNIX_SECONDS
from apps.jobs.heartbeats import Beat, Heartbeats, Seen, UndecidedJobs, nothing_undecided

_log = logging.getLogger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

RETRY_AFTER_SECONDS = 1
MAX_POLL_BYTES = 64 * 1024

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Large = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Word = Annotated[str, msgspec.Meta(max_length=20)]
_Moment = Annotated[float, msgspec.Meta(ge=0, le=MOST_UNIX_SECONDS)]


class _Process(msgspec.Struct):
    state: Annotated[str, msgspec.Meta(max_length=16)] = ""
    pid: _Count | None = None


class _PollRequest(msgspec.Struct):
    version: int
    incarnation: _Large
    cursor: _Count = 0
    wait_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    sent_at: _Moment | None = None
    inner_phase: _Word = ""
    sequence: _Count = 0
    process: _Process | None = None
    step: _Large | None = None
    step_at: _Moment | None = None
    step_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    checkpoint_step: _Large | None = None
    skipped_bytes: _Large = 0


_decoder = msgspec.json.Decoder(_PollRequest)
_encode = msgspec.json.Encoder().encode


class _Answer(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, code: str, detail: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"code": code, "detail": detail}
        self.retry_after = retry_after


class Poll:
    """The endpoint. ``start`` and ``stop`` are called by the server's lifespan."""

    def __init__(
        self,
        database: AsyncDatabase,
        *,
        on_orders_read: Callable[[], None] = lambda: None,
        undecided_jobs: UndecidedJobs = nothing_undecided,
    ) -> None:
        self._database = database
        self._on_orders_read = on_orders_read
        self._undecided_jobs = undecided_jobs
        self._heartbeats: Heartbeats | None = None
        self._held: dict[int, set[asyncio.Event]] = {}
        self._stack = ExitStack()
        self._is_closing = False

    def start(self) -> None:
        """Begin, in the running event loop, after the database was opened."""
        self._is_closing = False
        self._heartbeats = Heartbeats(self._database, self._on_orders_read, self._undecided_jobs)
        self._heartbeats.start()
        self._stack.enter_context(self._database.hearing(ORDERS_CHANNEL, self._ring))

    def release(self) -> None:
        """Answer all who wait, and hold nobody any more: the server is about to stop."""
        self._is_closing = True
        self._ring(None)

    async def stop(self) -> None:
        """Answer all who wait, and end."""
        self.release()
        self._stack.close()
        await asyncio.sleep(0)
        if self._heartbeats is not None:
            await self._heartbeats.stop()
            self._heartbeats = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        received_at = time.time()
        retry_after = None
        try:
            if scope["method"] != "POST":
                raise _Answer(405, "method_not_allowed", "Use POST.")
            token = self._token(scope, received_at)
            request = self._request(await _body(receive), token)
            body = _encode(await self._poll(request, token, received_at))
            status = 200
        except _Answer as answer:
            status, body, retry_after = answer.status, _encode(answer.body), answer.retry_after
        except Unavailable as error:
            _log.warning("poll.unavailable error=%s", str(error).strip())
            status, retry_after = 503, RETRY_AFTER_SECONDS
            body = _encode({"code": "database_unavailable", "detail": "The database is away; ask again."})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if retry_after is not None:
            headers.append((b"retry-after", str(retry_after).encode()))
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="incidentdesk"'))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _poll(
        self, request: _PollRequest, token: tokens.AgentToken, received_at: float
    ) -> dict[str, Any]:
        if self._heartbeats is None:
            raise _Answer(503, "starting", "The server starts or stops; ask again.", retry_after=1)
        most = waiting_times.poll_seconds(self._heartbeats.agents)
        until = time.monotonic() + min(request.wait_seconds, most)
        with self._waiting(token.job_id) as rung:
            # The bell is there before the first look, so that no order falls between the two.
            seen = first = self._live(await self._heartbeats.look(_beat(request, token, received_at)))
            while not seen.orders and seen.told == first.told and not self._is_closing:
                left = until - time.monotonic()
                if left <= 0:
                    break
                try:
                    async with asyncio.timeout(left):
                        await rung.wait()
                except TimeoutError:
                    break
                rung.clear()
                seen = self._live(await self._heartbeats.look(_look_again(request, token, received_at)))
        return self._response(seen, token, self._heartbeats.agents)

    @staticmethod
    def _live(seen: Seen) -> Seen:
        if seen.state == "fenced":
            raise _Answer(409, "fenced", "A newer incarnation of this worker exists.")
        if seen.state == "gone":
            raise _Answer(401, "unknown_incarnation", "This incarnation is not known; enrol again.")
        return seen

    @staticmethod
    def _response(seen: Seen, token: tokens.AgentToken, agents: int) -> dict[str, Any]:
        now = time.time()
        answer: dict[str, Any] = {
            "version": wire.VERSION,
            "orders": [
                {
                    "type": wire.ORDER,
                    "job": seen.job,
                    "namespace": seen.namespace,
                    "pod": "*",
                    "phase": order.phase,
                    "sequence": order.sequence,
                    "data": order.content,
                    "time": order.written_at,
                }
                for order in seen.orders
            ],
            "protected": seen.is_protected,
            "directive": seen.directive or wire.CONTINUE,
            "limits": waiting_times.told_limits(agents=agents, stop_grace_seconds=seen.stop_grace_seconds),
            "server_time": seen.now,
        }
        if seen.directive == wire.EXTEND_WAIT:
            answer["extend_seconds"] = seen.extend_seconds
        if token.is_worn(now):
            answer["token"], answer["token_expires_at"] = tokens.issue(
                job_id=token.job_id, incarnation_id=token.incarnation_id, now=now
            )
        return answer

    @contextmanager
    def _waiting(self, job_id: int) -> Iterator[asyncio.Event]:
        """A bell that rings when the job has a new order."""
        rung = asyncio.Event()
        held = self._held.setdefault(job_id, set())
        held.add(rung)
        try:
            yield rung
        finally:
            held.discard(rung)
            if not held:
                self._held.pop(job_id, None)

    def _ring(self, payload: str | None) -> None:
        """Wake the polls of one job; of every job when it is not known which."""
        if payload is not None and payload.isdigit():
            bells = self._held.get(int(payload), set())
        else:
            bells = {bell for held in self._held.values() for bell in held}
        for bell in bells:
            bell.set()

    @staticmethod
    def _token(scope: Scope, now: float) -> tokens.AgentToken:
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, text = value.decode("latin-1").partition(" ")
                token = tokens.read(text.strip(), now=now) if kind.lower() == "bearer" else None
                if token is not None:
                    return token
                raise _Answer(401, "bad_token", "The token is not valid, or no more; enrol again.")
        raise _Answer(401, "no_token", "An agent's token is needed; enrol first.")

    @staticmethod
    def _request(body: bytes, token: tokens.AgentToken) -> _PollRequest:
        try:
            request = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise _Answer(400, "bad_input", str(error)) from None
        except UnicodeDecodeError:
            raise _Answer(400, "bad_input", "The body is not UTF-8.") from None
        if request.version not in wire.SPOKEN_VERSIONS:
            raise _Answer(400, "version", f"This desk speaks {list(wire.SPOKEN_VERSIONS)}.")
        if request.incarnation != token.incarnation_id:
            raise _Answer(401, "other_incarnation", "The token is of another incarnation; enrol again.")
        return request


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Answer(400, "bad_input", "The body ended early.")
        part = event.get("body", b"")
        size += len(part)
        if size > MAX_POLL_BYTES:
            raise _Answer(413, "too_large", f"A poll has at most {MAX_POLL_BYTES} bytes.")
        parts.append(part)
        if not event.get("more_body"):
            return b"".join(parts)


def _beat(request: _PollRequest, token: tokens.AgentToken, received_at: float) -> Beat:
    process = request.process or _Process()
    has_step = request.step is not None
    step_at = (request.step_at or request.sent_at or received_at) if has_step else None
    return Beat(
        incarnation_id=token.incarnation_id,
        job_id=token.job_id,
        cursor=request.cursor,
        received_at=received_at,
        sent_at=request.sent_at,
        phase=_clean(request.inner_phase),
        sequence=request.sequence,
        pid=process.pid,
        process_state=_clean(process.state),
        step=request.step,
        step_at=step_at,
        step_seconds=request.step_seconds,
        checkpoint_step=request.checkpoint_step,
        skipped_bytes=request.skipped_bytes,
    )


def _look_again(request: _PollRequest, token: tokens.AgentToken, received_at: float) -> Beat:
    return Beat(
        incarnation_id=token.incarnation_id,
        job_id=token.job_id,
        cursor=request.cursor,
        received_at=received_at,
        process_state=_clean(request.process.state) if request.process else "",
        writes=False,
    )


def _clean(word: str) -> str:
    """PostgreSQL's text holds no NUL."""
    return word.replace("\0", "")
