"""GET /healthz, /readyz and /metrics: plain async callables, so that they answer when Django cannot."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from django.conf import settings
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from apps.access.async_database import Unavailable, database
from apps.access.services import authenticate_token
from apps.incidents import metrics

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_JSON = b"application/json"


async def healthz(scope: Scope, receive: Receive, send: Send) -> None:
    """This process runs and answers. Says nothing about anything else."""
    await answer(send, 200, b'{"status":"ok"}')


async def readyz(scope: Scope, receive: Receive, send: Send) -> None:
    """200 once the database answers and has every migration that this code knows; else 503 and why."""
    try:
        async with database.connection() as connection:
            found = await connection.execute("SELECT app, name FROM django_migrations")
            applied = {(app, name) for app, name in await found.fetchall()}
    except psycopg.errors.UndefinedTable:
        applied = set()
    except Unavailable as error:
        await _not_ready(send, f"The database does not answer: {str(error).strip()}")
        return
    missing = sorted(f"{app}.{name}" for app, name in set(_expected()) - applied)
    if missing:
        await _not_ready(send, f"The database lacks migrations: {', '.join(missing[:5])}; run migrate.")
        return
    await answer(send, 200, b'{"status":"ready"}')


async def serve_metrics(scope: Scope, receive: Receive, send: Send) -> None:
    """Metrics for tokens with the scope metrics:read; the demo's also for whoever asks on its own machine."""
    if not (is_open(scope) or await asyncio.to_thread(_may_read_metrics, _bearer(scope))):
        await answer(
            send, 401, b'{"code":"no_token","detail":"A token with the scope metrics:read is needed."}'
        )
        return
    try:
        async with database.connection() as connection:
            text = await metrics.exposition(connection)
    except Unavailable as error:
        await _not_ready(send, f"The database does not answer: {str(error).strip()}")
        return
    await answer(send, 200, text, metrics.CONTENT_TYPE)


async def answer(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes = _JSON,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    start = [(b"content-type", content_type), length, (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def _not_ready(send: Send, reason: str) -> None:
    body = json.dumps({"code": "not_ready", "detail": reason}).encode()
    await answer(send, 503, body, headers=((b"retry-after", b"2"),))


_expected_migrations: list[tuple[str, str]] = []


def _expected() -> list[tuple[str, str]]:
    """The newest migrations of every app; read from disk once."""
    if not _expected_migrations:
        _expected_migrations.extend(MigrationLoader(None, ignore_no_migrations=True).graph.leaf_nodes())
    return _expected_migrations


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


def _bearer(scope: Scope) -> str:
    kind, _, text = _header(scope, b"authorization").partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def is_open(scope: Scope) -> bool:
    """Whether the metrics need no token: beside a simulated cluster, asked for on this machine."""
    return bool(settings.METRICS_ARE_OPEN) and _is_local(scope)


def _is_local(scope: Scope) -> bool:
    """Whether somebody on this machine asks. Behind a proxy everybody looks so, which its headers tell."""
    client = scope.get("client")
    if not client or _header(scope, b"x-forwarded-for") or _header(scope, b"forwarded"):
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _may_read_metrics(plain: str) -> bool:
    if not plain:
        return False
    try:
        token = authenticate_token(plain)
    finally:
        connections.close_all()  # this thread belongs to asyncio, and Django would keep its connection open
    return token is not None and "metrics:read" in token.scopes
