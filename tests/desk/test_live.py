"""The live feed, driven as the ASGI callable that it is, on a real database with real commits."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connections, transaction
from django.test import Client

from apps.access.async_database import AsyncDatabase, conninfo
from apps.access.clock import database_now
from apps.access.models import Tenant, User
from apps.desk import live as live_module
from apps.desk.live import live
from apps.incidents.models import FeedRow
from apps.incidents.selectors import feed_cursor
from apps.incidents.services import feed
from tests.factories import make_tenant, make_user

pytestmark = pytest.mark.django_db(transaction=True)
SECONDS = 10.0


class Stream:
    """One open page: what it was sent, as (id, event, data)."""

    def __init__(self, *, session: str, cursor: str, last_event_id: str = "") -> None:
        headers = [(b"cookie", f"{settings.SESSION_COOKIE_NAME}={session}".encode())]
        if last_event_id:
            headers.append((b"last-event-id", last_event_id.encode()))
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": "/live/",
            "query_string": f"cursor={cursor}".encode(),
            "headers": headers,
        }
        self.status = 0
        self.body = b""
        self._news = asyncio.Event()
        self._left = asyncio.Event()
        self.task = asyncio.create_task(live(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
        self._news.set()

    @property
    def events(self) -> list[tuple[str, str, Any]]:
        found = re.findall(r"id: (\S+)\nevent: (\w+)\ndata: (.*)\n\n", self.body.decode())
        return [(cursor, name, json.loads(data)) for cursor, name, data in found]

    @property
    def changes(self) -> list[list[str]]:
        return [change for _, name, data in self.events if name == "change" for change in data["changes"]]

    async def until(self, come: Callable[[], Any]) -> None:
        """Wait for what the stream is to bring."""
        async with asyncio.timeout(SECONDS):
            while not come():
                self._news.clear()
                if not come():
                    await self._news.wait()

    async def close(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, SECONDS)


@asynccontextmanager
async def desk() -> AsyncIterator[None]:
    """The process's pool and listener, as the dispatcher opens them."""
    await live_module.database.open()
    try:
        yield
    finally:
        await live_module.database.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def with_desk() -> None:
        async with desk():
            await test()

    asyncio.run(with_desk())


async def in_thread(work: Callable[[], Any]) -> Any:
    """Django's database in a thread of its own, closed afterwards."""

    def closed() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    return await asyncio.to_thread(closed)


def publish(tenant: Tenant, key: str, topic: str = "incident") -> None:
    with transaction.atomic():
        feed.publish(tenant_id=tenant.pk, topic=topic, key=key, now=database_now())


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant()


@pytest.fixture
def session(tenant: Tenant) -> str:
    return session_of(make_user(tenant=tenant))


def test_database_is_the_one_that_others_use() -> None:
    assert isinstance(live_module.database, AsyncDatabase)


def test_stranger_is_refused() -> None:
    async def test() -> None:
        stream = Stream(session="nobody", cursor="1:0")
        await stream.until(lambda: stream.status)
        assert stream.status == 401

    run(test)


@pytest.mark.parametrize("cursor", ["", "x", "1"])
def test_cursor_that_cannot_be_read_is_refused(session: str, cursor: str) -> None:
    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: stream.status)
        assert stream.status == 400

    run(test)


def test_change_is_told_after_its_commit(session: str, tenant: Tenant) -> None:
    cursor = feed_cursor()

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: stream.events)
        assert stream.events[0][1] == "beat"
        await in_thread(lambda: publish(tenant, "7"))
        await stream.until(lambda: stream.changes)
        assert stream.changes == [["incident", "7"]]
        await stream.close()

    run(test)


def test_what_happened_before_the_stream_opened_is_not_lost(session: str, tenant: Tenant) -> None:
    """D4: the stream begins where the page was read."""
    cursor = feed_cursor()
    publish(tenant, "8")
    publish(tenant, "9")

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: len(stream.changes) >= 2)
        assert stream.changes == [["incident", "8"], ["incident", "9"]]
        await stream.close()

    run(test)


def test_stream_resumes_after_the_last_event(session: str, tenant: Tenant) -> None:
    cursor = feed_cursor()
    publish(tenant, "1")

    async def test() -> None:
        first = Stream(session=session, cursor=cursor)
        await first.until(lambda: first.changes)
        last = first.events[-1][0]
        await first.close()
        await in_thread(lambda: publish(tenant, "2"))
        again = Stream(session=session, cursor=cursor, last_event_id=last)
        await again.until(lambda: again.changes)
        assert again.changes == [["incident", "2"]]
        await again.close()

    run(test)


def test_row_that_commits_late_with_a_low_number_is_not_skipped(session: str, tenant: Tenant) -> None:
    """R4: sequences become visible at commit, so a lower id may come later."""
    cursor = feed_cursor()

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: stream.events)
        slow = await psycopg.AsyncConnection.connect(conninfo())
        await slow.execute(
            "INSERT INTO incidents_feedrow (tenant_id, topic, key, created_at) VALUES (%s, 'job', 'slow', now())",
            (tenant.pk,),
        )
        await in_thread(lambda: publish(tenant, "fast"))
        other = Stream(session=session, cursor=cursor)  # a page that opens meanwhile must not skip it either
        await other.until(lambda: other.events)
        assert stream.changes == []
        await slow.commit()
        await slow.close()
        for each in (stream, other):
            await each.until(lambda each=each: len(each.changes) >= 2)
            assert each.changes == [["job", "slow"], ["incident", "fast"]]
            await each.close()

    run(test)


def test_other_tenants_are_not_heard(session: str, tenant: Tenant) -> None:
    foreign = make_tenant()
    cursor = feed_cursor()

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: stream.events)
        await in_thread(lambda: publish(foreign, "secret"))
        await in_thread(lambda: publish(tenant, "own"))
        await stream.until(lambda: stream.changes)
        assert stream.changes == [["incident", "own"]]
        assert b"secret" not in stream.body
        await stream.close()

    run(test)


def test_repeats_in_one_message_are_told_once(session: str, tenant: Tenant) -> None:
    cursor = feed_cursor()
    for _ in range(5):
        publish(tenant, "3")

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: stream.changes)
        assert stream.changes == [["incident", "3"]]
        await stream.close()

    run(test)


def test_swept_or_foreign_cursor_makes_the_page_look_again(session: str, tenant: Tenant) -> None:
    publish(tenant, "1")
    oldest = FeedRow.objects.order_by("transaction").values_list("transaction", flat=True)[0]

    async def test() -> None:
        for cursor in (f"{oldest - 1}:0", "999999999:0"):
            stream = Stream(session=session, cursor=cursor)
            await stream.until(lambda stream=stream: "reload" in [name for _, name, _ in stream.events])
            position = stream.events[-1][0]
            assert int(position.split(":")[0]) >= oldest
            await stream.close()

    run(test)


def test_stream_ends_when_the_session_does(
    session: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "CHECK_SECONDS", 0.0)
    cursor = feed_cursor()

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: stream.events)
        await in_thread(lambda: User.objects.update(is_active=False))
        await in_thread(lambda: publish(tenant, "after"))
        await asyncio.wait_for(stream.task, SECONDS)
        assert stream.events[-1][1] == "reload"

    run(test)


def test_person_who_gains_a_tenant_is_told_to_look_again(tenant: Tenant) -> None:
    user = make_user(tenant=tenant)
    first = live_module.identify(session_of(user))
    from apps.access.models import RoleBinding

    other = make_tenant()
    RoleBinding.objects.create(user=user, tenant=other, role="viewer")
    second = live_module.identify(session_of(user))
    assert first is not None
    assert second is not None
    assert first != second
    assert second.tenant_ids == {tenant.pk, other.pk}


def test_changed_password_ends_the_session(tenant: Tenant) -> None:
    user = make_user(tenant=tenant)
    session = session_of(user)
    assert live_module.identify(session) is not None
    user.set_password("another one")
    user.save()
    assert live_module.identify(session) is None


def test_beat_needs_a_reader_that_reads(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is told that it is up to date only while the table is really read."""
    monkeypatch.setattr(live_module, "BEAT_SECONDS", 0.05)
    cursor = feed_cursor()

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: len(stream.events) >= 3)
        source = live_module.feed()
        monkeypatch.setattr(type(source), "is_fresh", False)
        heard = len(stream.events)
        await source.moved(0.3)
        assert len(stream.events) <= heard + 1
        await stream.close()

    run(test)


def test_reader_rests_when_nobody_looks(session: str) -> None:
    cursor = feed_cursor()

    async def test() -> None:
        stream = Stream(session=session, cursor=cursor)
        await stream.until(lambda: stream.events)
        source = live_module.feed()
        assert source.streams == 1
        await stream.close()
        assert source.streams == 0
        assert source._task is None

    run(test)


def test_polling_tells_the_same_and_is_silent_when_nothing_changed(session: str, tenant: Tenant) -> None:
    client = Client()
    client.cookies[settings.SESSION_COOKIE_NAME] = session
    cursor = feed_cursor()
    publish(tenant, "5")
    first = client.get(f"/changes/?cursor={cursor}")
    assert first.json()["changes"] == [["incident", "5"]]
    after = first.json()["cursor"]
    again = client.get(f"/changes/?cursor={after}")
    assert again.json()["changes"] == []
    unchanged = client.get(f"/changes/?cursor={after}", headers={"If-None-Match": again["ETag"]})
    assert unchanged.status_code == 304
    publish(tenant, "6")
    told = client.get(f"/changes/?cursor={after}", headers={"If-None-Match": again["ETag"]})
    assert told.json()["changes"] == [["incident", "6"]]
