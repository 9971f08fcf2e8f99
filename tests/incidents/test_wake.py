"""Waking is a hint: whoever leaves one waits for nothing, and what is lost is found by the tick."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.test import Client
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from apps.access.clock import database_now
from apps.incidents import wake
from apps.incidents.models import InboxEntry
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.ticking import find_due
from apps.incidents.wake import WakeSender
from apps.jobs import tokens
from incidentdesk.celery import app
from incidentdesk.frontdoor.valkey import ValkeyServer
from tests.factories import PlayedJob, make_job

DEADLINE_SECONDS = 20
TASK = "apps.incidents.tasks.decide_subject"


class Broker:
    """Takes what is sent when it is let; ``taken`` tells in which order."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.is_trying = threading.Semaphore(0)
        self.may_answer = threading.Semaphore(0)
        self.error: Exception | None = None

    def send(self, task: str, row_id: int) -> None:
        self.is_trying.release()
        assert self.may_answer.acquire(timeout=DEADLINE_SECONDS)
        if self.error is not None:
            raise self.error
        self.taken.append(row_id)


def test_whoever_wakes_waits_for_nobody() -> None:
    broker = Broker()
    sender = WakeSender(broker.send)
    sender.put(TASK, [2, 1, 2])
    assert broker.is_trying.acquire(timeout=DEADLINE_SECONDS)
    for _ in range(3):
        sender.put(TASK, [2, 3])
    assert not sender.settle(0), "the first is still being sent"
    for _ in range(3):
        broker.may_answer.release()
    assert sender.settle(DEADLINE_SECONDS)
    assert broker.taken == [1, 2, 3], "each once while it waits"


def test_no_more_wait_than_are_worth_it() -> None:
    broker = Broker()
    sender = WakeSender(broker.send)
    sender.put(TASK, [0])
    assert broker.is_trying.acquire(timeout=DEADLINE_SECONDS)
    sender.put(TASK, range(1, wake.MOST_WAITING + 10))
    for _ in range(wake.MOST_WAITING + 10):
        broker.may_answer.release()
    assert sender.settle(DEADLINE_SECONDS)
    assert broker.taken == list(range(wake.MOST_WAITING + 1))


def test_lost_wake_up_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("apps.incidents.wake.time.monotonic", lambda: now)
    broker = Broker()
    broker.error = RedisTimeoutError("Timeout reading from socket")
    sender = WakeSender(broker.send)
    sender.put(TASK, [1, 2])
    broker.may_answer.release()
    assert sender.settle(DEADLINE_SECONDS), "2 is dropped with 1"
    broker.error = None
    sender.put(TASK, [3])
    assert sender.settle(0)
    now += wake.QUIET_SECONDS
    sender.put(TASK, [4])
    broker.may_answer.release()
    assert sender.settle(DEADLINE_SECONDS)
    assert broker.taken == [4]


def test_error_of_another_kind_ends_no_thread() -> None:
    broker = Broker()
    broker.error = TypeError("not JSON")
    sender = WakeSender(broker.send)
    sender.put(TASK, [1])
    broker.may_answer.release()
    assert sender.settle(DEADLINE_SECONDS)
    broker.error = None
    sender.put(TASK, [2])
    broker.may_answer.release()
    assert sender.settle(DEADLINE_SECONDS)
    assert broker.taken == [2]


# With a server that hangs


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def sender(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[WakeSender]:
    """The process's sender, to a server of our own by the desk's own settings."""
    own = Celery("hanging", broker=valkey.url().replace("unix://", "redis+socket://"), set_as_current=False)
    for name in ("task_routes", "task_create_missing_queues"):
        setattr(own.conf, name, getattr(app.conf, name))

    patience = {"socket_timeout": 60, "socket_connect_timeout": 60}  # so long a busy machine may need here
    own.conf.broker_transport_options = {**app.conf.broker_transport_options, **patience}

    def send(task: str, row_id: int) -> None:
        own.send_task(task, args=[row_id], ignore_result=True, retry=False)

    fresh = WakeSender(send)
    monkeypatch.setattr(wake, "_sender", fresh)
    yield fresh
    valkey.kill(signal.SIGCONT)
    fresh.settle(DEADLINE_SECONDS)
    own.close()


def is_stopped(server: ValkeyServer) -> bool:
    stat = Path(f"/proc/{server.pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.django_db(transaction=True)
def test_report_is_answered_and_decided_while_redis_hangs(valkey: ValkeyServer, sender: WakeSender) -> None:
    job = PlayedJob(make_job(workers=2))
    job.start_training()
    assert sender.settle(DEADLINE_SECONDS)
    redis = Redis(unix_socket_path=str(valkey.socket))
    sent = redis.llen("decide")
    valkey.kill(signal.SIGSTOP)
    life = job.lives[0]
    token, _ = tokens.issue(job_id=job.job.pk, incarnation_id=life.pk, now=database_now().timestamp())
    for n in (101, 102, 103):
        message: dict[str, Any] = {"n": n, "type": "Error", "phase": "command", "time": time.time()}
        message |= {"sequence": job.fresh().attempt_sequence, "data": {"signal": 9}}
        answer = Client().post(
            "/agent/v1/report",
            {"version": 1, "incarnation": life.pk, "messages": [message]},
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}"},
        )
        assert (answer.status_code, answer.json()["accepted"]) == (200, [n])
    assert not sender.settle(0), "all were answered while the first wake-up was on its way"
    assert InboxEntry.objects.filter(subject=job.subject, decision_n__isnull=True).count() == 3
    assert job.subject.pk in find_due().subjects, "the tick finds it"
    decide_subject(subject_id=job.subject.pk)
    assert job.fresh().phase == "Troubleshooting"
    assert is_stopped(valkey)
    valkey.kill(signal.SIGCONT)
    assert sender.settle(DEADLINE_SECONDS)
    assert redis.llen("decide") > sent, "a server that comes back in time has lost nothing"
