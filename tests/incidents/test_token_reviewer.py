"""Agents of a cluster that publishes no token keys enrol by its own word, over HTTP and through the watch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

import incidentdesk.celery  # noqa: F401 - the app that wakes workers
from apps.access.models import Cluster
from apps.jobs.models import Incarnation, Pod, ReviewedToken
from tests.factories import make_cluster
from tests.incidents.test_watch_process import Processes, eventually, place, submit
from tests.sim.apiserver import READER, Api, serve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


@pytest.fixture
def api() -> Iterator[Api]:
    with serve(bookmark_seconds=0.2, publishes_keys=False) as served:
        served.store.create("Namespace", {"metadata": {"name": "train"}}, actor="user")
        yield served


@pytest.fixture
def cluster(api: Api) -> Cluster:
    uid = api.store.get("Namespace", None, "kube-system")["metadata"]["uid"]
    return make_cluster(system_uid=uid)


@pytest.fixture
def processes(api: Api, tmp_path: Path) -> Iterator[Processes]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.server.kubeconfig())
    held = Processes(kubeconfig)
    yield held
    for name in list(held.running):
        held.stop(name)


def enrol(client: Client, pod: dict[str, Any], token: str) -> dict[str, Any]:
    body = {
        "version": 1,
        "nonce": "0123456789abcdef0123",
        "pod_uid": pod["metadata"]["uid"],
        "pod_name": pod["metadata"]["name"],
        "namespace": "train",
        "container": "train",
        "node_name": "node-a",
        "sent_at": time.time(),
    }
    answer = client.post(
        "/agent/v1/enrol", body, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
    )
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def settled(client: Client, pod: dict[str, Any], token: str) -> dict[str, Any]:
    """What an agent hears in the end, asking again as it is told to."""

    def ask() -> dict[str, Any] | None:
        said = enrol(client, pod, token)
        return None if said["status"] == "again" else said

    found: dict[str, Any] = eventually(ask)
    return found


def test_agents_are_judged_by_their_cluster(
    api: Api, cluster: Cluster, processes: Processes, client: Client
) -> None:
    processes.start(cluster)
    job = submit(api)
    pods = [api.store.get("Pod", "train", place(api, job, index)) for index in range(2)]
    eventually(lambda: Pod.objects.count() == 2)
    account = "system:serviceaccount:train:default"
    token = api.tokens.issue(account, "incidentdesk", pods[0])
    forged = token[:-8] + ("AAAAAAAA" if token[-8:] != "AAAAAAAA" else "BBBBBBBB")
    said = settled(client, pods[0], forged)
    assert (said["status"], "does not accept" in said["reason"]) == ("refused", True)
    said = settled(client, pods[0], api.tokens.issue(account, "vault", pods[0]))
    assert (said["status"], "audience" in said["reason"]) == ("refused", True)
    said = settled(client, pods[1], token)
    assert (said["status"], "another pod" in said["reason"]) == ("refused", True)
    assert not Incarnation.objects.exists()
    assert settled(client, pods[0], token)["status"] == "enrolled"
    assert Incarnation.objects.get().pod_uid == pods[0]["metadata"]["uid"]
    cluster.refresh_from_db()
    assert (cluster.token_issuer, cluster.token_keys) == ("", {}), "it published nothing"


def test_cluster_that_does_not_let_the_desk_ask_is_named(
    api: Api, cluster: Cluster, processes: Processes, client: Client
) -> None:
    Path(processes.kubeconfig).write_text(api.server.kubeconfig(READER))
    processes.start(cluster)
    pod = api.store.get("Pod", "train", place(api, submit(api), 0))
    eventually(Pod.objects.exists)
    token = api.tokens.issue("system:serviceaccount:train:default", "incidentdesk", pod)
    said = eventually(lambda: next((e for e in [enrol(client, pod, token)] if "403" in e["reason"]), None))
    assert said["status"] == "again"
    assert "tokenreviews" in said["reason"]
    assert ReviewedToken.objects.get().state == "asked"
