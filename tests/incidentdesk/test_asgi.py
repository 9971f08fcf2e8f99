"""The web process as it is served: granian, the dispatcher, polls beside Django, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings
from django.test import Client

from apps.access import services
from apps.access.async_database import conninfo
from apps.jobs.models import Job
from incidentdesk.frontdoor.places import CHECKOUT
from incidentdesk.frontdoor.servers import EmbeddedServers
from tests.factories import make_job, make_tenant, make_user
from tests.jobs.projected import SigningCluster

pytestmark = pytest.mark.django_db(transaction=True)

DEADLINE_SECONDS = 60.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Web:
    """The web process of a test."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "DJANGO_SETTINGS_MODULE": "incidentdesk.settings.test",
            "INCIDENTDESK_POLL_SECONDS": "20",
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "granian", "--interface", "asgi", "--workers", "1", "--no-ws"]
        place = ["--host", "127.0.0.1", "--port", str(self.port), "incidentdesk.asgi:application"]
        self.process = subprocess.Popen([*command, *place], cwd=CHECKOUT, env=environment)

    def wait(self) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                assert self.request("GET", "/healthz").status == 200
                return
            except OSError:
                assert self.process.poll() is None, "the web process ended"
                assert time.monotonic() < deadline, "the web process did not start"
                time.sleep(0.05)

    def request(
        self, method: str, path: str, body: bytes | None = None, bearer: str = "", **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read().decode())
        finally:
            connection.close()

    def post(self, path: str, body: dict[str, Any], bearer: str) -> Answer:
        return self.request("POST", path, json.dumps({"version": 1, **body}).encode(), bearer)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_SECONDS)


def run_database_url(servers: EmbeddedServers) -> str:
    """URL of the database that this test run writes to."""
    name = psycopg.conninfo.conninfo_to_dict(conninfo())["dbname"]
    return urlunsplit(urlsplit(servers.database_url)._replace(path=f"/{name}"))


@pytest.fixture(scope="module")
def web(django_db_setup: None, django_db_blocker: Any, servers: EmbeddedServers) -> Iterator[Web]:
    with django_db_blocker.unblock():
        url = run_database_url(servers)
    web = Web(url, servers.redis_url)
    try:
        web.wait()
        yield web
    finally:
        web.end()


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def enrolled(web: Web, key: rsa.RSAPrivateKey) -> tuple[Job, dict[str, Any]]:
    signing = SigningCluster(key=key)
    job = make_job(cluster=signing.cluster)
    pod = signing.pod(job)
    start = {"nonce": uuid.uuid4().hex, "pod_uid": pod.uid, "pod_name": pod.name, "container": "train"}
    answer = web.post("/agent/v1/enrol", start, signing.token(pod))
    assert answer.status == 200, answer.text
    return job, answer.json()


def test_agent_enrols_reports_and_is_rung_by_an_order(web: Web, key: rsa.RSAPrivateKey) -> None:
    job, told = enrolled(web, key)
    token, incarnation = told["token"], told["incarnation"]
    message = {
        "n": 1,
        "type": "Mark",
        "phase": "",
        "sequence": 0,
        "data": {"mark": "started"},
        "time": time.time(),
    }
    report = web.post("/agent/v1/report", {"incarnation": incarnation, "messages": [message]}, token)
    assert report.json()["accepted"] == [1]

    answers: list[Answer] = []
    poll = {"incarnation": incarnation, "cursor": told["sequence"], "wait_seconds": 20, "step": 7}
    asking = threading.Thread(target=lambda: answers.append(web.post("/agent/v1/poll", poll, token)))
    asking.start()
    with psycopg.connect(conninfo(), autocommit=True) as connection:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not connection.execute("SELECT 1 FROM jobs_incarnation WHERE step = 7").fetchone():
            assert time.monotonic() < deadline, "the heartbeat was not written"
            time.sleep(0.01)
        assert not answers, "the poll is held"
        with connection.transaction():
            connection.execute(
                "INSERT INTO jobs_order (tenant_id, job_id, sequence, phase, content, written_at)"
                " VALUES (%s, %s, 1, 'bootcheck', '{}', clock_timestamp())",
                [job.tenant_id, job.pk],
            )
            connection.execute("SELECT pg_notify('incidentdesk_orders', %s)", [str(job.pk)])
    asking.join(15)  # far less than the poll is held
    assert answers, "the order rang"
    assert [order["sequence"] for order in answers[0].json()["orders"]] == [1]


def test_page_api_and_poll_answer_at_one_address(web: Web) -> None:
    assert web.request("GET", "/api/v1/incidents/").status == 401
    assert web.request("POST", "/agent/v1/poll", b"{}").status == 401
    assert web.request("GET", "/api/v1/schema/").status == 200
    assert web.request("GET", "/login/").status == 200


def test_query_with_other_bytes_is_no_server_error(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as raw:
        raw.sendall(
            b"GET /api/v1/incidents/?after=\xff\xc3\xa9 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        status = raw.makefile("rb").readline()
    assert b" 500 " not in status


@pytest.mark.parametrize("is_announced", [True, False])
def test_too_large_body_is_413_announced_or_not(web: Web, is_announced: bool) -> None:
    large = b" " * (1024 * 1024 + 1)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=DEADLINE_SECONDS)
    try:
        body = large if is_announced else iter([large[:600_000], large[600_000:]])
        connection.request("POST", "/api/v1/signals/", body, {}, encode_chunked=not is_announced)
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["code"] == "too_large"
    finally:
        connection.close()


def test_body_without_length_is_read(web: Web, key: rsa.RSAPrivateKey) -> None:
    _, told = enrolled(web, key)
    body = json.dumps({"version": 1, "incarnation": told["incarnation"], "messages": []}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=DEADLINE_SECONDS)
    try:
        headers = {"Authorization": f"Bearer {told['token']}", "Transfer-Encoding": "chunked"}
        connection.request(
            "POST", "/agent/v1/report", iter([body[:9], body[9:]]), headers, encode_chunked=True
        )
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def test_ready_once_the_database_has_every_migration(web: Web) -> None:
    assert web.request("GET", "/readyz").status == 200
    with psycopg.connect(conninfo(), autocommit=True) as connection:
        (row,) = connection.execute(
            "DELETE FROM django_migrations WHERE app = 'access' AND name LIKE '0004%'"
            " RETURNING (app, name, applied)::text"
        ).fetchall()
        try:
            answer = web.request("GET", "/readyz")
            assert answer.status == 503
            assert "access.0004" in answer.json()["detail"]
        finally:
            connection.execute(
                "INSERT INTO django_migrations (app, name, applied)"
                " VALUES ('access', '0004_idempotency_key', clock_timestamp())"
            )
    assert row


def test_metrics_need_a_token_also_on_this_machine(web: Web) -> None:
    make_job()
    assert web.request("GET", "/metrics").status == 401
    for scope, status in (("metrics:read", 200), ("jobs:read", 401)):
        _, plain = services.create_token(
            tenant_id=make_tenant().pk, name="p", scopes=[scope], actor_kind="command", actor="t"
        )
        answer = web.request("GET", "/metrics", None, plain)
        assert answer.status == status
        if status == 200:
            assert 'incidentdesk_jobs{phase="Pending",protected="true"} 1.0' in answer.text
            assert "incidentdesk_undecided_signals 0.0" in answer.text


def test_web_process_ends_in_time_while_polls_and_streams_are_held(
    servers: EmbeddedServers, key: rsa.RSAPrivateKey
) -> None:
    web = Web(run_database_url(servers), servers.redis_url)
    page = Client()
    page.force_login(make_user(), "django.contrib.auth.backends.ModelBackend")
    cookie = f"{settings.SESSION_COOKIE_NAME}={page.cookies[settings.SESSION_COOKIE_NAME].value}"
    stream = http.client.HTTPConnection("127.0.0.1", web.port, timeout=DEADLINE_SECONDS)
    try:
        web.wait()
        _, told = enrolled(web, key)
        stream.request("GET", "/live/?cursor=1:0", headers={"Cookie": cookie})
        events = stream.getresponse()
        assert events.status == 200
        assert (events.getheader("Content-Type") or "").startswith("text/event-stream")
        poll = {"incarnation": told["incarnation"], "wait_seconds": 20, "step": 9}
        answers: list[Answer] = []
        asking = threading.Thread(
            target=lambda: answers.append(web.post("/agent/v1/poll", poll, told["token"]))
        )
        asking.start()
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not connection.execute("SELECT 1 FROM jobs_incarnation WHERE step = 9").fetchone():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        began = time.monotonic()
        web.end()
        assert time.monotonic() - began < 15, "neither holds the process"
        asking.join(DEADLINE_SECONDS)
        assert [answer.status for answer in answers] == [200], "the poll was answered, not cut"
        with contextlib.suppress(http.client.IncompleteRead):
            events.read()  # it ends, without the last chunk
    finally:
        stream.close()
        web.end()
