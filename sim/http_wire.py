"""A small HTTP/1.1 server on asyncio in a thread of its own.

Plain HTTP and TLS share the port: the first byte of a connection tells which it is.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from sim.tokens import User

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 3 * 1024 * 1024
"""As the API server's own bound on a request body."""
IDLE_SECONDS = 300.0
WORKER_THREADS = 16
ACCEPT_RETRY_SECONDS = 0.2


@dataclass
class Request:
    """One HTTP request. Header names are lower case; of a repeated query parameter the last counts."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    user: User | None = None

    @property
    def user_agent(self) -> str:
        return self.headers.get("user-agent", "")

    def flag(self, name: str) -> bool:
        """Whether a boolean parameter is given and true."""
        return self.query.get(name, "").lower() in ("1", "t", "true")


@dataclass
class Response:
    """A whole answer, or with `stream` one that goes on in chunks until the iterator ends."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncGenerator[bytes, None] | None = None

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        return cls(status, msgspec.json.encode(value), headers=headers or {})


class _BadHttp(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class HttpServer:
    """Serves `handle` on a loopback port until stopped."""

    def __init__(
        self,
        handle: Callable[[Request], Awaitable[Response]],
        *,
        tls: ssl.SSLContext | None,
        sock: socket.socket,
    ) -> None:
        self._handle = handle
        self._tls = tls
        self._socket = sock
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="sim-http", daemon=True)
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()

    def start(self) -> None:
        """Returns once connections are accepted."""
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Close the port and every connection; returns when the thread has ended."""
        if self._thread.is_alive() and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        executor = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="sim-route")
        self._loop.set_default_executor(executor)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._socket.setblocking(False)
        accepting = asyncio.ensure_future(self._accept())
        self._started.set()
        await self._stopping.wait()
        accepting.cancel()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(accepting, *self._connections, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._socket)
            except OSError:  # out of file descriptors, most likely: those in use are given back in time
                traceback.print_exc()
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            task = self._loop.create_task(self._connection(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connection(self, connection: socket.socket) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = await asyncio.wait_for(self._peek(connection), IDLE_SECONDS)
            if not first:
                return
            reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls if first == b"\x16" else None
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            while await self._exchange(reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client is gone; there is nobody to tell
        finally:
            if writer is not None:
                writer.close()
            else:
                connection.close()

    async def _peek(self, connection: socket.socket) -> bytes:
        readable: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not readable.done():
                readable.set_result(None)

        self._loop.add_reader(connection, wake)
        try:
            await readable
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer. Returns whether the connection may carry another."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_SECONDS)
            request = _parse_head(head)
            await self._read_body(request, reader, writer)
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise
            return False
        except asyncio.LimitOverrunError:
            await _send(writer, _refusal(431, "the request head is too large"), keep_alive=False)
            return False
        except _BadHttp as problem:
            await _send(writer, _refusal(problem.status, str(problem)), keep_alive=False)
            return False
        try:
            response = await self._handle(request)
        except Exception:  # noqa: BLE001  # the outermost handler: one broken request must not end the server
            traceback.print_exc()
            response = _refusal(500, "the simulated API server failed; its log has the traceback")
        keep_alive = request.headers.get("connection", "").lower() != "close"
        if response.stream is None:
            await _send(writer, response, keep_alive=keep_alive)
            return keep_alive
        await self._stream(reader, writer, response)
        return False

    async def _read_body(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if "chunked" in request.headers.get("transfer-encoding", ""):
            parts: list[bytes] = []
            size = 0
            while chunk := _chunk_bytes(await reader.readuntil(b"\r\n")):
                size += chunk
                if size > MAX_BODY_BYTES:
                    raise _BadHttp(413, f"the request is larger than {MAX_BODY_BYTES} bytes")
                parts.append(await reader.readexactly(chunk))
                await reader.readexactly(2)
            await reader.readuntil(b"\r\n")
            request.body = b"".join(parts)
            return
        text = request.headers.get("content-length") or "0"
        if not text.isdecimal():
            raise _BadHttp(400, "Content-Length is no number")
        length = int(text)
        if length > MAX_BODY_BYTES:
            raise _BadHttp(413, f"the request is larger than {MAX_BODY_BYTES} bytes")
        if length:
            if request.headers.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.body = await reader.readexactly(length)

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: Response
    ) -> None:
        """Send chunks until the iterator or the client ends."""
        assert response.stream is not None
        writer.write(_head(response, {"Transfer-Encoding": "chunked", "Connection": "close"}))
        await writer.drain()
        sending = asyncio.ensure_future(_send_chunks(writer, response.stream))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await response.stream.aclose()  # frees its watch now


async def _send_chunks(writer: asyncio.StreamWriter, chunks: AsyncGenerator[bytes, None]) -> None:
    async for chunk in chunks:
        if chunk:
            writer.writelines((f"{len(chunk):x}\r\n".encode(), chunk, b"\r\n"))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _chunk_bytes(line: bytes) -> int:
    """The size that a chunk's first line tells. Raises _BadHttp."""
    try:
        size = int(line.split(b";")[0], 16)
    except ValueError:
        size = -1
    if size < 0:
        raise _BadHttp(400, "a chunk of the request has no size")
    return size


def _head(response: Response, more: dict[str, str]) -> bytes:
    phrase = HTTPStatus(response.status).phrase
    lines = [f"HTTP/1.1 {response.status} {phrase}", f"Content-Type: {response.content_type}"]
    lines += [f"{name}: {value}" for name, value in (response.headers | more).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send(writer: asyncio.StreamWriter, response: Response, *, keep_alive: bool) -> None:
    more = {"Content-Length": str(len(response.body))} | ({} if keep_alive else {"Connection": "close"})
    writer.writelines((_head(response, more), response.body))
    await writer.drain()


def _refusal(code: int, text: str) -> Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": text,
        "code": code,
    }
    return Response.json(body, code)


def _parse_head(head: bytes) -> Request:
    try:
        lines = head[:-4].decode("latin-1").split("\r\n")
        method, target, version = lines[0].split(" ")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError("a header line has no colon")
            headers[name.strip().lower()] = value.strip()
    except ValueError as problem:
        raise _BadHttp(400, f"malformed HTTP request: {problem}") from None
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise _BadHttp(505, f"{version} is not spoken here")
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    path, _, query = target.partition("?")
    return Request(method, unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers)
