"""Enrolment and reports of agents over HTTP: what is stored, once, and what is turned away."""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client

from apps.access.clock import database_now
from apps.incidents.models import InboxEntry, Signal
from apps.incidents.services import reporting
from apps.jobs import tokens
from apps.jobs.models import Checkpoint, Incarnation, Job
from tests.factories import make_job
from tests.jobs.projected import SigningCluster

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Subjects that were woken; nothing is sent to Redis."""
    ids: list[int] = []
    monkeypatch.setattr(reporting, "wake_subjects", ids.extend)
    return ids


class Agent:
    """An agent that was taken in."""

    def __init__(self, signing: SigningCluster, job: Job, index: int = 0) -> None:
        self.client = Client()
        self.job = job
        pod = signing.pod(job, index)
        answer = self.post(
            "enrol",
            {
                "nonce": uuid.uuid4().hex,
                "pod_uid": pod.uid,
                "pod_name": pod.name,
                "namespace": pod.namespace,
                "container": "train",
                "node_name": "node-1",
                "ip": "127.0.0.7",
                "sent_at": time.time(),
            },
            signing.token(pod),
        )
        assert answer["status"] == "enrolled", answer
        self.enrolled = answer
        self.token: str = answer["token"]
        self.incarnation: int = answer["incarnation"]

    def post(self, path: str, body: dict[str, Any], bearer: str, status: int = 200) -> Any:
        response = self.client.post(
            f"/agent/v1/{path}",
            json.dumps({"version": 1, **body}),
            content_type="application/json",
            headers={"Authorization": f"Bearer {bearer}"} if bearer else {},
        )
        assert response.status_code == status, response.content
        return response.json()

    def report(self, *messages: dict[str, Any], status: int = 200, **body: Any) -> Any:
        content = {"incarnation": self.incarnation, "sent_at": time.time(), "messages": messages, **body}
        return self.post("report", content, self.token, status)


def error(n: int = 1, **overrides: Any) -> dict[str, Any]:
    return {
        "n": n,
        "type": "Error",
        "phase": "command",
        "sequence": 2,
        "data": {"signal": 9, "pid": 7, "log_tail": ["boom"]},
        "time": time.time(),
        **overrides,
    }


@pytest.fixture
def job(key: rsa.RSAPrivateKey) -> Job:
    signing = SigningCluster(key=key)
    job = make_job(cluster=signing.cluster)
    job.signing = signing  # type: ignore[attr-defined]
    return job


@pytest.fixture
def agent(job: Job) -> Agent:
    return Agent(job.signing, job)  # type: ignore[attr-defined]


def test_enrolment_tells_the_worker_and_its_job(agent: Agent, job: Job) -> None:
    told = agent.enrolled
    assert told["job"] == str(job)
    assert told["worker"] == {"role": "worker", "index": 0}
    assert told["world_size"] == 3
    assert told["protected"] is True
    assert told["limits"]["order_wait_seconds"] > 0
    token = tokens.read(told["token"], now=time.time())
    assert token is not None
    assert (token.job_id, token.incarnation_id) == (job.pk, agent.incarnation)


def test_enrolment_is_a_signal_of_the_job(agent: Agent, job: Job) -> None:
    signal = Signal.objects.get()
    assert (signal.kind, signal.source, signal.index) == ("enrolled", "agent", 0)
    assert signal.incarnation_id == agent.incarnation
    assert signal.body["replaces"] is None
    assert InboxEntry.objects.get().subject.job == job


def test_second_agent_of_the_worker_replaces_the_first(agent: Agent, job: Job) -> None:
    second = Agent(job.signing, job)  # type: ignore[attr-defined]
    newest = Signal.objects.order_by("-id").first()
    assert newest is not None
    assert newest.body["replaces"] == agent.incarnation
    refused = agent.report(error(), status=409)
    assert refused["code"] == "fenced"
    assert second.report(error())["accepted"] == [1]


def test_enrolment_without_token_is_401(job: Job) -> None:
    response = Client().post("/agent/v1/enrol", "{}", content_type="application/json")
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_bare_job_starts_the_barrier_with_its_first_worker() -> None:
    from apps.jobs.models import EnrolmentSecret
    from apps.jobs.services.credentials import new_secret

    job = make_job(owner_kind="", name="bert")
    plain, digest = new_secret()
    EnrolmentSecret.objects.create(tenant=job.tenant, job=job, sha256=digest)
    for index in range(2):
        response = Client().post(
            "/agent/v1/enrol",
            json.dumps({"version": 1, "nonce": uuid.uuid4().hex, "pod_name": f"bert-{index}"}),
            content_type="application/json",
            headers={"Authorization": f"Bearer {plain}"},
        )
        assert response.json()["status"] == "enrolled"
    kinds = sorted(Signal.objects.values_list("kind", flat=True))
    assert kinds == ["enrolled", "enrolled", "world_running"]
    job.refresh_from_db()
    assert job.world_running_at is not None


def test_messages_become_signals_of_the_worker(
    agent: Agent, job: Job, woken: list[int], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        answer = agent.report(
            error(1), {**error(2), "type": "ACK"}, {**error(3), "type": "Mark", "phase": ""}
        )
    assert answer["accepted"] == [1, 2, 3]
    assert answer["rejected"] == []
    kinds = list(
        Signal.objects.exclude(kind="enrolled").order_by("id").values_list("kind", "sequence", "phase")
    )
    assert kinds == [("error", 2, "command"), ("ack", 2, "command"), ("mark", 2, "")]
    assert woken == [job.subject.pk]
    assert Incarnation.objects.get(pk=agent.incarnation).last_message_n == 3


def test_message_sent_twice_is_stored_once(agent: Agent) -> None:
    message = error()
    for _ in range(2):
        assert agent.report(message)["accepted"] == [1]
    assert Signal.objects.filter(kind="error").count() == 1
    assert InboxEntry.objects.filter(signal__kind="error").count() == 1


def test_number_used_again_for_something_else_is_rejected_alone(agent: Agent) -> None:
    agent.report(error(1))
    answer = agent.report(error(1, data={"signal": 11}), error(2))
    assert answer["accepted"] == [2]
    assert [(item["n"], item["code"]) for item in answer["rejected"]] == [(1, "conflict")]
    assert Signal.objects.get(kind="error", source_key__endswith=":1").body["signal"] == 9


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "Order"}, "type"),
        ({"type": 5}, "type"),
        ({"type": ["ACK"]}, "type"),
        ({"phase": "later"}, "phase"),
        ({"phase": ""}, "phase"),
        ({"phase": 1}, "phase"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": "2"}, "sequence"),
        ({"sequence": 2**40}, "sequence"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"time": "now"}, "time"),
        ({"time": 1e15}, "time"),
        ({"data": []}, "data"),
        ({"job": "other"}, "job"),
        ({"namespace": "other"}, "namespace"),
        ({"type": "Checkpoint", "data": {"step": -1, "path": "/c", "state": "written"}}, "step"),
        ({"type": "Checkpoint", "data": {"step": 1, "path": "", "state": "written"}}, "path"),
        ({"type": "Checkpoint", "data": {"step": 1, "path": "/c", "state": "verified"}}, "state"),
    ],
)
def test_wrong_message_is_rejected_with_its_field_and_the_rest_is_taken(
    agent: Agent, change: dict[str, Any], field: str
) -> None:
    answer = agent.report({**error(5), **change}, error(6))
    assert answer["accepted"] == [6]
    (rejected,) = answer["rejected"]
    assert rejected["code"] == "bad_input"
    assert rejected["detail"].startswith(f"{field}:")


def test_time_is_corrected_by_the_measured_offset(agent: Agent) -> None:
    Incarnation.objects.update(clock_offset_seconds=-120, clock_uncertainty_seconds=0.01)
    ours = database_now() - timedelta(seconds=3)
    agent.report(error(time=ours.timestamp() - 120), sent_at=time.time() - 120)
    signal = Signal.objects.get(kind="error")
    assert abs((signal.seen_at - ours).total_seconds()) < 0.001
    assert signal.source_at is not None
    assert abs((signal.source_at - ours).total_seconds() + 120) < 0.001
    assert signal.uncertainty_seconds == 0.01


@pytest.mark.parametrize("ahead", [-1.7e9, 5e9])
def test_clock_that_is_far_off_is_corrected_too(agent: Agent, ahead: float) -> None:
    Incarnation.objects.update(clock_offset_seconds=ahead, clock_uncertainty_seconds=0.01)
    answer = agent.report(error(time=time.time() + ahead), error(2, time=0.0), sent_at=time.time() + ahead)
    assert answer["accepted"] == [1, 2]
    signal = Signal.objects.get(source_key=f"{agent.incarnation}:1")
    assert abs((signal.received_at - signal.seen_at).total_seconds()) < 30


def test_message_is_never_from_the_future(agent: Agent) -> None:
    agent.report(error(time=time.time() + 3600), sent_at=time.time())
    signal = Signal.objects.get(kind="error")
    assert signal.seen_at <= signal.received_at


def test_checkpoint_never_goes_back(agent: Agent, job: Job) -> None:
    told = {
        "step": 100,
        "path": "/checkpoints/step-00000100",
        "bytes": 12288,
        "shards": 3,
        "shards_expected": 3,
    }
    for n, state in enumerate(("written", "committed", "written"), start=1):
        message = error(n, type="Checkpoint", phase="", data={**told, "state": state})
        assert agent.report(message)["accepted"] == [n]
    row = Checkpoint.objects.get()
    assert (row.job, row.step, row.state, row.bytes, row.shards) == (job, 100, "committed", 12288, 3)
    assert row.committed_at is not None


def test_pids_of_a_start_are_kept(agent: Agent) -> None:
    agent.report(error(1, type="Mark", data={"mark": "started", "pids": {"agent": 11, "command": 12}}))
    life = Incarnation.objects.get(pk=agent.incarnation)
    assert (life.agent_pid, life.command_pid) == (11, 12)


def test_secrets_and_what_the_database_cannot_hold_are_taken_out(agent: Agent) -> None:
    lines = ["export HF_TOKEN=hf_abcdefghijklmnopqrstuv", "nul \0 here", "x" * 10_000]
    agent.report(error(data={"signal": 9, "log_tail": lines}))
    body = Signal.objects.get(kind="error").body
    assert "hf_abc" not in json.dumps(body)
    assert len(body["log_tail"][2].encode()) <= 4096
    assert body["log_tail"][1] == "nul \N{REPLACEMENT CHARACTER} here"


def test_full_inbox_is_429_and_nothing_is_stored(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "MAX_WAITING_SIGNALS", 2)
    agent.report(error(1), error(2))
    response = agent.client.post(
        "/agent/v1/report",
        json.dumps({"version": 1, "incarnation": agent.incarnation, "messages": [error(3)]}),
        content_type="application/json",
        headers={"Authorization": f"Bearer {agent.token}"},
    )
    assert response.status_code == 429
    assert int(response["Retry-After"]) >= 1
    assert Signal.objects.filter(kind="error").count() == 2
    InboxEntry.objects.update(decision_n=1)
    assert agent.report(error(3))["accepted"] == [3]


def test_token_of_another_job_reports_nothing(agent: Agent, key: rsa.RSAPrivateKey) -> None:
    signing = SigningCluster(key=key)
    other = Agent(signing, make_job(cluster=signing.cluster))
    agent.token = other.token
    assert agent.report(error(), status=401)["code"] == "other_incarnation"
    mixed, _ = tokens.issue(job_id=other.job.pk, incarnation_id=agent.incarnation, now=time.time())
    agent.token = mixed
    assert agent.report(error(), status=401)["code"] == "unknown_incarnation"
    assert not Signal.objects.filter(kind="error").exists()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("[]", 400),
        ('{"version": 1, "incarnation": 1}', 400),
        ('{"version": 1, "incarnation": "x", "messages": []}', 400),
        ('{"version": 9, "incarnation": 1, "messages": []}', 400),
        ('{"version": 1, "incarnation": 1, "messages": [' + ",".join(["{}"] * 501) + "]}", 400),
        (" " * (1024 * 1024 + 1), 413),
    ],
)
def test_wrong_report_is_refused_whole(agent: Agent, body: str, status: int) -> None:
    response = agent.client.post(
        "/agent/v1/report",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {agent.token}"},
    )
    assert response.status_code == status
    assert set(response.json()) == {"code", "detail"}


def test_get_is_no_report() -> None:
    assert Client().get("/agent/v1/report").status_code == 405
