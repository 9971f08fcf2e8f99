"""The agents' long-poll over real connections: orders, heartbeats, fencing, and a database that is away."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from apps.access.async_database import AsyncDatabase, conninfo
from apps.access.clock import database_now
from apps.incidents.models import InboxEntry
from apps.incidents.services.signals import NewSignal, record_signals, subject_for_job
from apps.incidents.undecided import undecided_jobs
from apps.jobs import tokens
from apps.jobs.models import Incarnation, Job, Order, Worker
from apps.jobs.poll import Poll
from recovery.signals import SignalKind, Source
from tests.factories import make_job

pytestmark = pytest.mark.django_db(transaction=True)

HOLD_SECONDS = 20.0  # far longer than any test waits: an answer that comes was rung for
DEADLINE_SECONDS = 15.0


@pytest.fixture(autouse=True)
def long_polls(settings: Any) -> None:
    settings.TIMINGS = {**settings.TIMINGS, "POLL_SECONDS": HOLD_SECONDS}


@dataclass
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: dict[str, Any]


def make_life(job: Job, index: int = 0) -> Incarnation:
    worker = Worker.objects.get(job=job, index=index)
    life = Incarnation.objects.create(
        tenant=job.tenant,
        worker=worker,
        pod_uid=str(uuid.uuid4()),
        pod_name=f"{job.name}-{index}",
        container="train",
        nonce=uuid.uuid4().hex,
        enrolled_at=database_now(),
    )
    worker.incarnation = life
    worker.save()
    return life


def write_order(job: Job, sequence: int, *, phase: str = "command", targets: list[str] | None = None) -> None:
    """An order set as a decision writes it, with its notification, in a connection of its own."""
    with psycopg.connect(conninfo()) as connection, connection.transaction():
        connection.execute(
            "INSERT INTO jobs_order (tenant_id, job_id, sequence, phase, targets, content, written_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp())",
            [job.tenant_id, job.pk, sequence, phase, targets, '{"attempt": 1}'],
        )
        connection.execute("SELECT pg_notify('incidentdesk_orders', %s)", [str(job.pk)])


class Desk:
    """The endpoint with a pool and a listener of its own."""

    def __init__(self) -> None:
        self.database = AsyncDatabase()
        self.reads = 0
        self.poll = Poll(self.database, on_orders_read=self._count, undecided_jobs=undecided_jobs)

    def _count(self) -> None:
        self.reads += 1

    async def __aenter__(self) -> Desk:
        await self.database.open()
        self.poll.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.poll.stop()
        await self.database.close()

    async def ask(
        self, life: Incarnation, *, wait: float = 0.0, token: str | None = None, **body: Any
    ) -> Answer:
        if token is None:
            token, _ = tokens.issue(job_id=life.worker.job_id, incarnation_id=life.pk, now=time.time())
        content = {"version": 1, "incarnation": life.pk, "cursor": 0, "wait_seconds": wait, **body}
        return await self.send(json.dumps(content).encode(), token)

    async def send(self, body: bytes, token: str, method: str = "POST") -> Answer:
        events = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return events.pop(0)

        async def send(event: Any) -> None:
            sent.append(event)

        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        await self.poll({"type": "http", "method": method, "headers": headers}, receive, send)
        return Answer(sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"]))

    async def is_held(self, job: Job) -> None:
        """Wait until a poll of the job waits for its bell, with its heartbeat written."""
        await until(lambda: bool(self.poll._held.get(job.pk)))
        await until_row(
            lambda: Incarnation.objects.filter(worker__job=job, last_seen_at__isnull=False).exists()
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - any condition, not only ours
            await asyncio.sleep(0.005)


async def in_thread[T](call: Callable[[], T]) -> T:
    def work() -> T:
        try:
            return call()
        finally:
            connections.close_all()

    return await asyncio.to_thread(work)


async def until_row(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await in_thread(condition):  # noqa: ASYNC110 - a row has no event
            await asyncio.sleep(0.005)


def run(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Desk() as desk:
            await test(desk)

    asyncio.run(main())


def test_order_written_while_held_is_answered_at_once() -> None:
    job = make_job()
    life = make_life(job)

    async def test(desk: Desk) -> None:
        asked = asyncio.create_task(desk.ask(life, wait=HOLD_SECONDS))
        await desk.is_held(job)
        await until(lambda: desk.database.is_listening)
        assert not asked.done()
        await in_thread(lambda: write_order(job, 1))
        async with asyncio.timeout(DEADLINE_SECONDS):
            answer = await asked
        (order,) = answer.body["orders"]
        assert (order["type"], order["phase"], order["sequence"]) == ("Order", "command", 1)
        assert order["data"] == {"attempt": 1}
        assert desk.reads == 1

    run(test)
    assert Order.objects.get().first_read_at is not None


def test_only_orders_above_the_cursor_for_this_worker_come_in_order() -> None:
    job, other = make_job(), make_job()
    life = make_life(job, 1)
    for sequence, targets in [(1, None), (2, None), (3, ["worker/0"]), (4, ["worker/1", "worker/2"])]:
        write_order(job, sequence, targets=targets)
    write_order(other, 9)

    async def test(desk: Desk) -> None:
        answer = await desk.ask(life, cursor=1)
        assert [order["sequence"] for order in answer.body["orders"]] == [2, 4]

    run(test)
    read = Order.objects.filter(first_read_at__isnull=False).values_list("job_id", "sequence")
    assert sorted(read) == [(job.pk, 2), (job.pk, 4)]


def test_order_of_another_job_leaves_the_poll_held() -> None:
    job, other = make_job(), make_job()
    life, stranger = make_life(job), make_life(other)

    async def test(desk: Desk) -> None:
        asked = asyncio.create_task(desk.ask(life, wait=HOLD_SECONDS))
        theirs = asyncio.create_task(desk.ask(stranger, wait=HOLD_SECONDS))
        await desk.is_held(job)
        await desk.is_held(other)
        await until(lambda: desk.database.is_listening)
        await in_thread(lambda: write_order(other, 1))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await theirs
        assert not asked.done()
        await in_thread(lambda: write_order(job, 1))
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await asked).body["orders"]

    run(test)


def test_poll_without_news_is_answered_when_its_time_is_up(settings: Any) -> None:
    life = make_life(make_job())

    async def test(desk: Desk) -> None:
        answer = await desk.ask(life, wait=0.05)
        assert answer.status == 200
        assert answer.body["orders"] == []
        assert answer.body["protected"] is True
        assert answer.body["directive"] == "continue"
        assert answer.body["limits"]["poll_seconds"] == HOLD_SECONDS

    run(test)


def test_heartbeat_columns_are_written() -> None:
    life = make_life(make_job())
    sent = {
        "cursor": 4,
        "inner_phase": "RunCommand",
        "sequence": 4,
        "process": {"state": "running", "pid": 71},
        "step": 120,
        "step_at": time.time(),
        "step_seconds": 0.2,
        "checkpoint_step": 100,
        "skipped_bytes": 5,
        "sent_at": time.time(),
    }

    async def test(desk: Desk) -> None:
        assert (await desk.ask(life, **sent)).status == 200
        assert (await desk.ask(life, cursor=2, process={"state": "exited"}, sequence=5)).status == 200

    run(test)
    life.refresh_from_db()
    assert life.last_seen_at is not None
    assert life.cursor == 4, "a cursor never goes back"
    assert (life.step, life.step_seconds, life.checkpoint_step) == (120, 0.2, 100), "kept while none is told"
    assert life.step_at is not None
    assert abs(life.step_at.timestamp() - sent["step_at"]) < 30
    assert (life.process_state, life.command_pid, life.agent_sequence) == ("exited", 71, 5)


@pytest.mark.parametrize("ahead", [-3600.0, 120.0, -1.7e9, 5e9])
def test_offset_of_a_wrong_clock_is_measured(ahead: float) -> None:
    life = make_life(make_job())

    async def test(desk: Desk) -> None:
        for _ in range(4):
            now = time.time() + ahead
            await desk.ask(life, sent_at=now, step=1, step_at=now)

    run(test)
    life.refresh_from_db()
    assert life.clock_offset_seconds == pytest.approx(ahead, abs=20)
    assert life.last_seen_at is not None
    assert life.step_at is not None
    assert abs((life.last_seen_at - life.step_at).total_seconds()) < 10, "steps stand in our time"


def test_older_incarnation_is_told_to_obey_nothing() -> None:
    job = make_job()
    old = make_life(job)
    new = make_life(job)

    async def test(desk: Desk) -> None:
        refused = await desk.ask(old)
        assert (refused.status, refused.body["code"]) == (409, "fenced")
        assert (await desk.ask(new)).status == 200

    run(test)
    old.refresh_from_db()


def test_token_of_another_incarnation_or_job_is_refused() -> None:
    one, two = make_life(make_job()), make_life(make_job())
    swapped, _ = tokens.issue(job_id=two.worker.job_id, incarnation_id=two.pk, now=time.time())
    mixed, _ = tokens.issue(job_id=two.worker.job_id, incarnation_id=one.pk, now=time.time())
    old, _ = tokens.issue(job_id=one.worker.job_id, incarnation_id=one.pk, now=time.time() - 3600)

    async def test(desk: Desk) -> None:
        for token in (swapped, mixed, old, "nonsense", ""):
            body = json.dumps({"version": 1, "incarnation": one.pk}).encode()
            answer = await desk.send(body, token)
            assert answer.status == 401, token
            assert b"www-authenticate" in answer.headers

    run(test)
    one.refresh_from_db()


def test_worn_token_is_renewed() -> None:
    life = make_life(make_job())
    worn, _ = tokens.issue(job_id=life.worker.job_id, incarnation_id=life.pk, now=time.time() - 600)

    async def test(desk: Desk) -> None:
        answer = await desk.ask(life, token=worn)
        fresh = tokens.read(answer.body["token"], now=time.time())
        assert fresh is not None
        assert (fresh.incarnation_id, fresh.expires_at) == (life.pk, answer.body["token_expires_at"])
        again = await desk.ask(life, token=answer.body["token"])
        assert "token" not in again.body

    run(test)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"version": 1}', 400),
        (b'{"version": 99, "incarnation": %d}', 400),
        (b'{"version": 1, "incarnation": %d, "cursor": -1}', 400),
        (b'{"version": 1, "incarnation": %d, "step": "many"}', 400),
        (b'{"version": 1, "incarnation": %d, "step": 1e400}', 400),
        (b'{"version": 1, "incarnation": %d, "inner_phase": "\xff"}', 400),
        (b" " * 70_000, 413),
    ],
)
def test_wrong_input_is_refused_with_its_field(body: bytes, status: int) -> None:
    life = make_life(make_job())
    token, _ = tokens.issue(job_id=life.worker.job_id, incarnation_id=life.pk, now=time.time())

    async def test(desk: Desk) -> None:
        answer = await desk.send(body.replace(b"%d", str(life.pk).encode()), token)
        assert answer.status == status
        assert answer.body["detail"]

    run(test)


def test_get_is_no_poll() -> None:
    async def test(desk: Desk) -> None:
        assert (await desk.send(b"", "", method="GET")).status == 405

    run(test)


def test_directive_written_while_held_is_told_at_once() -> None:
    job = make_job()
    life = make_life(job)

    def direct() -> None:
        with psycopg.connect(conninfo()) as connection:
            connection.execute(
                "UPDATE jobs_job SET directive = 'extend_wait',"
                " directive_until_at = clock_timestamp() + interval '30 seconds' WHERE id = %s",
                [job.pk],
            )
            connection.execute("SELECT pg_notify('incidentdesk_orders', %s)", [str(job.pk)])

    async def test(desk: Desk) -> None:
        asked = asyncio.create_task(desk.ask(life, wait=HOLD_SECONDS))
        await desk.is_held(job)
        await until(lambda: desk.database.is_listening)
        await in_thread(direct)
        async with asyncio.timeout(DEADLINE_SECONDS):
            answer = await asked
        assert answer.body["directive"] == "extend_wait"
        assert 0 < answer.body["extend_seconds"] <= 30

    run(test)


@pytest.mark.parametrize(
    ("state", "kind", "decided", "directive"),
    [
        ("exited", SignalKind.ERROR, False, "extend_wait"),
        ("exited", SignalKind.ERROR, True, "continue"),
        ("exited", SignalKind.CHECKPOINT, False, "continue"),
        ("running", SignalKind.ERROR, False, "continue"),
    ],
)
def test_agent_of_an_ended_process_waits_on_while_the_desk_has_not_decided(
    state: str, kind: SignalKind, decided: bool, directive: str, settings: Any
) -> None:
    job = make_job()
    life = make_life(job)
    subject = subject_for_job(job)
    with transaction.atomic():
        record_signals(
            signals=[
                NewSignal(
                    tenant_id=job.tenant_id,
                    cluster_id=job.cluster_id,
                    source=Source.AGENT,
                    source_key=f"{life.pk}:1",
                    kind=kind,
                    body={},
                    seen_at=database_now(),
                    subject_ids=(subject.pk,),
                )
            ],
            now=database_now(),
        )
    if decided:
        InboxEntry.objects.filter(subject=subject).update(decision_n=1)

    async def test(desk: Desk) -> None:
        answer = await desk.ask(life, process={"state": state})
        assert answer.body["directive"] == directive
        if directive == "extend_wait":
            assert answer.body["extend_seconds"] == settings.TIMINGS["ORDER_WAIT_SECONDS"]

    run(test)


def test_cluster_in_observe_protects_nobody() -> None:
    job = make_job()
    life = make_life(job)
    job.cluster.mode = "observe"
    job.cluster.save()

    async def test(desk: Desk) -> None:
        assert (await desk.ask(life)).body["protected"] is False

    run(test)


def test_row_held_by_a_stopped_process_does_not_hold_the_fleet() -> None:
    held, free = make_life(make_job()), make_life(make_job())

    async def test(desk: Desk) -> None:
        async with await psycopg.AsyncConnection.connect(conninfo()) as stopped:
            await stopped.execute("SELECT 1 FROM jobs_incarnation WHERE id = %s FOR UPDATE", [held.pk])
            both = await asyncio.gather(desk.ask(held, step=5), desk.ask(free, step=5))
            assert [answer.status for answer in both] == [200, 200]

    run(test)
    free.refresh_from_db()
    held.refresh_from_db()
    assert (free.step, held.step) == (5, None)


def test_lost_listener_looks_again_and_listens_again() -> None:
    job = make_job()
    life = make_life(job)

    def break_listener() -> None:
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'incidentdesk-listen'"
            )

    async def test(desk: Desk) -> None:
        asked = asyncio.create_task(desk.ask(life, wait=HOLD_SECONDS))
        await desk.is_held(job)
        await until(lambda: desk.database.is_listening)
        await in_thread(break_listener)
        await until(lambda: not desk.database.is_listening)
        await in_thread(lambda: write_order(job, 1))  # nobody hears this one
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await asked).body["orders"]

    run(test)


def test_database_away_is_503_with_retry_after() -> None:
    life = make_life(make_job())

    async def main() -> None:
        async with Desk() as desk:
            assert (await desk.ask(life)).status == 200
            pool = desk.database._pool
            desk.database._pool = None
            answer = await desk.ask(life)
            assert answer.status == 503
            assert int(answer.headers[b"retry-after"]) >= 1
            desk.database._pool = pool
            assert (await desk.ask(life)).status == 200

    asyncio.run(main())


def test_connections_that_a_restart_left_dead_are_not_handed_out() -> None:
    life = make_life(make_job())

    def end_all() -> None:
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'incidentdesk-async'"
            )

    async def test(desk: Desk) -> None:
        async with desk.database.connection(), desk.database.connection():
            pass  # two in the pool
        await in_thread(end_all)
        deadline = time.monotonic() + 30
        answers: list[int] = []
        while answers[-3:] != [200, 200, 200]:
            assert time.monotonic() < deadline, answers
            answers.append((await desk.ask(life)).status)
        # While new ones are made, "ask again" may be the answer; a dead one is never handed out.
        assert set(answers) <= {200, 503}

    run(test)


def test_shutdown_answers_who_waits() -> None:
    job = make_job()
    life = make_life(job)

    async def main() -> None:
        desk = Desk()
        async with desk:
            asked = asyncio.create_task(desk.ask(life, wait=HOLD_SECONDS))
            await desk.is_held(job)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await asked).status in (200, 503)

    asyncio.run(main())


def test_polls_at_the_same_time_share_round_trips() -> None:
    jobs = [make_job(workers=10) for _ in range(4)]
    lives = [make_life(job, index) for job in jobs for index in range(10)]

    async def test(desk: Desk) -> None:
        batches = 0
        exchange = desk.poll._heartbeats._exchange  # type: ignore[union-attr]

        async def counted(connection: Any, batch: Any) -> Any:
            nonlocal batches
            batches += 1
            return await exchange(connection, batch)

        desk.poll._heartbeats._exchange = counted  # type: ignore[union-attr, method-assign]
        answers = await asyncio.gather(*(desk.ask(life, step=3) for life in lives))
        assert {answer.status for answer in answers} == {200}
        assert batches <= 4

    run(test)
    assert Incarnation.objects.filter(step=3).count() == 40
