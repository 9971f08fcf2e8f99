"""One contract for the cluster port, on the fake and on the real adapter over HTTP; then what is HTTP's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapters.fake import FakeCluster
from adapters.kubernetes import client
from adapters.kubernetes.client import KubernetesTransport
from adapters.kubernetes.cluster import NAMESPACES, NODES, KubernetesCluster
from adapters.kubernetes.watch import Batch, Watcher
from recovery.errors import ClusterRefused, ClusterUnavailable, NotFound, PreconditionFailed, WatchExpired
from recovery.ports import Cluster, JobStatus, PodStatus, SuspendOutcome, TokenReview
from tests.sim.apiserver import READER, Api

FENCE = "incidentdesk.io/fence"
DEADLINE_SECONDS = 10


def make_job(name: str = "llm") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"incidentdesk.io/protect": "true"},
        },
        "spec": {
            "completions": 3,
            "parallelism": 3,
            "completionMode": "Indexed",
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "train", "image": "incidentdesk/trainer"}],
                }
            },
        },
    }


@dataclass
class World:
    """A cluster with job default/llm (one pod, llm-0), and how to look at it from behind."""

    cluster: Cluster
    uid: str
    version: str
    annotations: Callable[[], dict[str, str]]
    touch: Callable[[], None]
    token: Callable[[str], str]  # of pod llm-0, by audience
    pod_uid: str


def _fake() -> World:
    fake = FakeCluster()
    fake.jobs["default", "llm"] = JobStatus(uid="u-1", resource_version="5", is_suspended=False, active=1)
    fake.pods["default", "llm"] = [
        PodStatus("default", "llm-0", "p-1", node="", phase="Pending", is_running=False)
    ]

    def touch() -> None:
        fake.jobs["default", "llm"] = JobStatus("u-1", "6", is_suspended=False, active=1)

    def token(audience: str) -> str:
        fake.tokens["t"] = TokenReview(
            is_authentic=True,
            audiences=(audience, "another"),
            namespace="default",
            service_account="default",
            pod_name="llm-0",
            pod_uid="p-1",
        )
        return "t"

    return World(fake, "u-1", "5", lambda: dict(fake.jobs["default", "llm"].annotations), touch, token, "p-1")


def _real(api: Api, transport: KubernetesTransport) -> World:
    job = api.store.create("Job", make_job(), actor="user")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "uid": job["metadata"]["uid"]}
    labels = {"batch.kubernetes.io/job-name": "llm"}
    spec = {"containers": [{"name": "train", "image": "incidentdesk/trainer"}]}
    for name, owners in (("llm-0", [{**owner, "controller": True}]), ("stranger", [])):
        metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": owners}
        api.store.create("Pod", {"metadata": metadata, "spec": spec}, actor="job-controller")

    def touch() -> None:
        def change(present: dict[str, Any]) -> dict[str, Any]:
            present["metadata"].setdefault("labels", {})["touched"] = "yes"
            return present

        api.store.mutate("Job", "default", "llm", change, actor="user")

    pod = api.store.get("Pod", "default", "llm-0")

    def token(audience: str) -> str:
        return api.tokens.issue("system:serviceaccount:default:default", [audience, "another"], pod)

    return World(
        KubernetesCluster(transport),
        job["metadata"]["uid"],
        job["metadata"]["resourceVersion"],
        lambda: api.store.get("Job", "default", "llm")["metadata"]["annotations"],
        touch,
        token,
        pod["metadata"]["uid"],
    )


@pytest.fixture(params=["fake", "kubernetes"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "fake":
        return _fake()
    return _real(request.getfixturevalue("api"), request.getfixturevalue("transport"))


def suspend(world: World, fence: str = "action-1/1", **overrides: Any) -> SuspendOutcome:
    wanted: dict[str, Any] = {
        "namespace": "default",
        "name": "llm",
        "uid": world.uid,
        "resource_version": world.version,
        "annotations": {FENCE: fence},
    }
    return world.cluster.suspend_job(**{**wanted, **overrides})


def status(world: World) -> JobStatus:
    found = world.cluster.job_status(namespace="default", name="llm")
    assert found is not None
    return found


def test_status_of_a_job_names_its_uid_and_version(world: World) -> None:
    found = status(world)
    assert (found.uid, found.resource_version, found.is_suspended) == (world.uid, world.version, False)
    assert world.cluster.job_status(namespace="default", name="none") is None


def test_suspend_writes_fence_and_is_seen_as_suspended(world: World) -> None:
    assert suspend(world) is SuspendOutcome.DONE
    assert status(world).is_suspended
    assert world.annotations()[FENCE] == "action-1/1"


def test_second_try_of_the_same_action_finds_the_first(world: World) -> None:
    suspend(world)
    version = status(world).resource_version
    assert suspend(world, fence="action-1/2") is SuspendOutcome.DONE
    assert status(world).resource_version == version, "nothing was written again"


def test_job_that_somebody_else_suspended_is_found(world: World) -> None:
    suspend(world, fence="action-0/1")
    assert suspend(world) is SuspendOutcome.FOUND
    assert world.annotations()[FENCE] == "action-0/1"


def test_another_job_under_the_name_is_not_suspended(world: World) -> None:
    assert suspend(world, uid="00000000-0000-0000-0000-000000000000") is SuspendOutcome.GONE
    assert suspend(world, name="none") is SuspendOutcome.GONE
    assert not status(world).is_suspended


def test_suspend_of_a_changed_job_fails_its_precondition(world: World) -> None:
    world.touch()
    with pytest.raises(PreconditionFailed):
        suspend(world)
    assert not status(world).is_suspended
    assert suspend(world, resource_version=None) is SuspendOutcome.DONE


def test_pods_of_a_job_are_those_it_controls(world: World) -> None:
    pods = world.cluster.pods_of_job(namespace="default", name="llm", uid=world.uid)
    assert [(pod.name, pod.is_running) for pod in pods] == [("llm-0", False)]
    assert world.cluster.pods_of_job(namespace="default", name="none", uid=world.uid) == ()


def test_log_of_a_pod_that_is_gone_is_empty(world: World) -> None:
    assert world.cluster.log_tail(namespace="default", pod="none", container="train", lines=5) == ()


def test_review_of_a_token_names_its_pod_and_the_audience_asked_for(world: World) -> None:
    review = world.cluster.review_token(token=world.token("incidentdesk"), audience="incidentdesk")
    assert review == TokenReview(
        is_authentic=True,
        audiences=("incidentdesk",),
        namespace="default",
        service_account="default",
        pod_name="llm-0",
        pod_uid=world.pod_uid,
    )


@pytest.mark.parametrize("audience", ["elsewhere", "incidentdesk"], ids=["other audience", "forged"])
def test_review_of_a_token_that_proves_nothing_says_why(world: World, audience: str) -> None:
    token = world.token(audience)
    if audience == "incidentdesk":
        token = token[:-8] + "AAAAAAAA" if "." in token else "forged"
    review = world.cluster.review_token(token=token, audience="incidentdesk")
    assert not review.is_authentic
    assert review.error
    assert (review.audiences, review.pod_uid) == ((), "")


# HTTP


def test_patch_carries_our_name_and_the_precondition_reaches_the_server(
    api: Api, transport: KubernetesTransport
) -> None:
    world = _real(api, transport)
    world.touch()
    body = {"metadata": {"resourceVersion": world.version}, "spec": {"suspend": True}}
    with pytest.raises(PreconditionFailed):
        transport.merge_patch("/apis/batch/v1/namespaces/default/jobs/llm", body, {})
    suspend(world, resource_version=None)
    fact = KubernetesCluster(transport).job(namespace="default", name="llm")
    assert fact is not None
    assert fact.suspend_set_by == "incidentdesk"


def test_token_that_is_no_good_is_a_refusal(api: Api, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "bad"
    kubeconfig.write_text(api.server.kubeconfig("no-such-token"))
    with pytest.raises(ClusterRefused, match="401"):
        KubernetesCluster(client.connect(kubeconfig=str(kubeconfig), timeout_seconds=5)).identity()


def test_kubeconfig_that_is_missing_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ClusterRefused, match="INCIDENTDESK_KUBECONFIG"):
        client.connect(kubeconfig=str(tmp_path / "none"), timeout_seconds=5)


def test_token_keys_are_those_of_the_issuer(api: Api, transport: KubernetesTransport) -> None:
    issuer, keys = KubernetesCluster(transport).token_keys()
    assert issuer == api.server.url
    assert keys["keys"][0]["kty"] == "RSA"


def _plain_kubeconfig(port: int, path: Path) -> str:
    path.write_text(
        f"""apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
    )
    return str(path)


def test_nobody_listening_is_not_ambiguous_even_for_a_write(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    there = client.connect(kubeconfig=_plain_kubeconfig(port, tmp_path / "k"), timeout_seconds=2)
    with pytest.raises(ClusterUnavailable) as failure:
        there.merge_patch("/x", {}, {})
    assert not failure.value.ambiguous


@pytest.mark.parametrize(
    ("answer", "ambiguous"),
    [
        pytest.param(b"", True, id="closed without an answer"),
        pytest.param(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", True, id="500"),
        pytest.param(b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n", False, id="429"),
    ],
)
def test_write_is_ambiguous_where_it_may_have_happened(
    answer: bytes, ambiguous: bool, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve_once)
        thread.start()
        port = listener.getsockname()[1]
        there = client.connect(kubeconfig=_plain_kubeconfig(port, tmp_path / "k"), timeout_seconds=5)
        with pytest.raises(ClusterUnavailable) as failure:
            there.merge_patch("/x", {}, {})
        thread.join(DEADLINE_SECONDS)
    assert failure.value.ambiguous is ambiguous
    assert failure.value.retry_after_seconds == (None if ambiguous else 3.0)


def test_review_without_the_right_to_it_is_a_refusal(api: Api, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "reader"
    kubeconfig.write_text(api.server.kubeconfig(READER))
    reader = KubernetesCluster(client.connect(kubeconfig=str(kubeconfig), timeout_seconds=5))
    with pytest.raises(ClusterRefused, match="403"):
        reader.review_token(token="t", audience="incidentdesk")


def test_missing_path_is_not_found(transport: KubernetesTransport) -> None:
    with pytest.raises(NotFound):
        transport.read("/api/v1/namespaces/none", {})


def test_continue_token_of_a_compacted_list_is_expired(api: Api, transport: KubernetesTransport) -> None:
    first = NAMESPACES.decode_page(transport.read(NAMESPACES.path, {"limit": "1"}))
    api.store.create("Namespace", {"metadata": {"name": "new"}}, actor="user")
    api.store.compact()
    with pytest.raises(WatchExpired):
        transport.read(NAMESPACES.path, {"limit": "1", "continue": first.continue_token})


def test_watch_over_http_follows_bookmarks_and_finds_what_a_gap_hid(
    api: Api, transport: KubernetesTransport
) -> None:
    heard: list[Batch[Any]] = []
    news = threading.Condition()

    def sink(batch: Batch[Any]) -> None:
        with news:
            heard.append(batch)
            news.notify_all()

    def wait_for(what: Callable[[], bool]) -> None:
        with news:
            assert news.wait_for(what, DEADLINE_SECONDS), heard

    def has(type_: str, name: str) -> bool:
        return any(
            change.type == type_ and getattr(change.fact, "name", "") == name
            for batch in heard
            for change in batch.changes
        )

    stop = threading.Event()
    watcher = Watcher(transport, NAMESPACES, sink, known={}, timeout_seconds=30, stop=stop)
    thread = threading.Thread(target=watcher.run)
    thread.start()
    try:
        wait_for(lambda: any(batch.completes_list for batch in heard))
        api.store.create("Namespace", {"metadata": {"name": "train"}}, actor="user")
        wait_for(lambda: has("added", "train"))
        seen = len(heard)
        api.store.create("ConfigMap", {"metadata": {"name": "x", "namespace": "train"}}, actor="user")
        moved = str(api.store.revision)
        wait_for(lambda: any(batch.resource_version == moved for batch in heard[seen:]))
        # Everything that is written and forgotten while the stream is cut is a gap.
        with api.store.lock:
            api.store.close_watches()
            api.store.delete("Namespace", None, "train", actor="user")
            api.store.create("Namespace", {"metadata": {"name": "later"}}, actor="user")
            api.store.compact()
        wait_for(lambda: any(batch.gap for batch in heard))
        wait_for(lambda: has("added", "later"))
        assert any(change.type == "vanished" for batch in heard for change in batch.changes)
    finally:
        stop.set()
        watcher.close()
        thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive(), "closing wakes a silent stream"


def test_nodes_are_read_in_pages(api: Api, transport: KubernetesTransport) -> None:
    for number in range(3):
        api.store.create("Node", {"metadata": {"name": f"node-{number}"}}, actor="kubelet")
    first = NODES.decode_page(transport.read(NODES.path, {"limit": "2"}))
    rest = NODES.decode_page(transport.read(NODES.path, {"limit": "2", "continue": first.continue_token}))
    assert [fact.name for fact in (*first.facts, *rest.facts)] == ["node-0", "node-1", "node-2"]
    assert rest.continue_token == ""
