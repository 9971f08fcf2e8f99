"""What the official Python client does against the simulated API server."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from tests.sim.apiserver import Api, make_budget, make_pod, make_ready, serve


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serve() as served:
        yield served


@pytest.fixture(scope="module")
def connection(api: Api) -> Iterator[Any]:
    """Over TLS, as a kubeconfig has it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kubeconfig")
        path.write_text(api.server.kubeconfig())
        with config.new_client_from_config(str(path)) as made:
            yield made


@pytest.fixture
def core(api: Api, connection: Any) -> Iterator[Any]:
    yield client.CoreV1Api(connection)
    for entry in api.store.list("Pod").entries:
        api.store.delete("Pod", *entry.key, actor="test", grace_period_seconds=0)
    for entry in api.store.list("PodDisruptionBudget").entries:
        api.store.delete("PodDisruptionBudget", *entry.key, actor="test")


def add_pods(api: Api, count: int) -> None:
    for index in range(count):
        pod = make_pod(f"p{index}", node="n1", metadata={"labels": {"app": "train"}})
        api.store.create("Pod", pod, actor="test")
        make_ready(api.store, f"p{index}")


def touch(api: Api, name: str, value: str) -> None:
    def change(pod: dict[str, Any]) -> dict[str, Any]:
        pod["metadata"]["annotations"] = {"a": value}
        return pod

    api.store.mutate("Pod", "default", name, change, actor="test")


def test_list_comes_in_pages(api: Api, core: Any) -> None:
    add_pods(api, 5)
    names: list[str] = []
    token, pages = None, 0
    while True:
        page = core.list_namespaced_pod("default", limit=2, _continue=token)
        names += [pod.metadata.name for pod in page.items]
        pages += 1
        token = page.metadata._continue
        if not token:
            break
    assert (pages, names) == (3, ["p0", "p1", "p2", "p3", "p4"])


def test_continue_after_compaction_is_410(api: Api, core: Any) -> None:
    add_pods(api, 3)
    page = core.list_namespaced_pod("default", limit=1)
    touch(api, "p2", "1")
    api.store.compact()
    with pytest.raises(ApiException) as gone:
        core.list_namespaced_pod("default", limit=1, _continue=page.metadata._continue)
    assert (gone.value.status, gone.value.reason) == (410, "Gone")


def test_selectors(api: Api, core: Any) -> None:
    add_pods(api, 2)
    found = core.list_pod_for_all_namespaces(label_selector="app=train", field_selector="metadata.name=p1")
    assert [pod.metadata.name for pod in found.items] == ["p1"]
    assert found.items[0].status.conditions[0].type == "Ready"


def test_watch_resumes_where_it_ended(api: Api, core: Any) -> None:
    add_pods(api, 1)
    since = core.list_namespaced_pod("default").metadata.resource_version
    stream = watch.Watch()
    seen: list[tuple[str, str]] = []
    touch(api, "p0", "1")
    for event in stream.stream(
        core.list_namespaced_pod, "default", resource_version=since, timeout_seconds=20
    ):
        seen.append((event["type"], event["object"].metadata.annotations["a"]))
        stream.stop()
    touch(api, "p0", "2")
    touch(api, "p0", "3")
    for event in stream.stream(
        core.list_namespaced_pod, "default", resource_version=stream.resource_version, timeout_seconds=20
    ):
        seen.append((event["type"], event["object"].metadata.annotations["a"]))
        if len(seen) == 3:
            stream.stop()
    assert seen == [("MODIFIED", "1"), ("MODIFIED", "2"), ("MODIFIED", "3")]


def test_watch_takes_its_revision_from_a_bookmark(api: Api, core: Any) -> None:
    add_pods(api, 1)
    since = core.list_namespaced_pod("default").metadata.resource_version
    api.store.create("ConfigMap", {"metadata": {"generateName": "c-", "namespace": "default"}}, actor="test")
    stream = watch.Watch()
    events = list(
        stream.stream(
            core.list_namespaced_pod,
            "default",
            resource_version=since,
            allow_watch_bookmarks=True,
            timeout_seconds=1,
        )
    )
    assert [event["type"] for event in events] == ["BOOKMARK"]
    assert stream.resource_version == str(api.store.revision)
    assert int(stream.resource_version) > int(since)


def test_watch_from_before_a_compaction_is_410(api: Api, core: Any) -> None:
    add_pods(api, 1)
    since = core.list_namespaced_pod("default").metadata.resource_version
    touch(api, "p0", "1")
    api.store.compact()
    with pytest.raises(ApiException) as gone:
        list(
            watch.Watch().stream(
                core.list_namespaced_pod, "default", resource_version=since, timeout_seconds=5
            )
        )
    assert gone.value.status == 410


def test_eviction_refused_by_a_budget_is_429_and_names_it(api: Api, core: Any) -> None:
    add_pods(api, 2)
    api.store.create(
        "PodDisruptionBudget", make_budget("train-pdb", {"app": "train"}, minAvailable=2), actor="test"
    )
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name="p0", namespace="default"))
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_pod_eviction("p0", "default", body)
    assert refused.value.status == 429
    assert "The disruption budget train-pdb needs 2 healthy pods and has 2 currently" in refused.value.body
    api.store.delete("PodDisruptionBudget", "default", "train-pdb", actor="test")
    core.create_namespaced_pod_eviction("p0", "default", body)
    assert core.read_namespaced_pod("p0", "default").metadata.deletion_timestamp is not None


def test_patch_with_stale_version_is_409(api: Api, core: Any) -> None:
    add_pods(api, 1)
    old = core.read_namespaced_pod("p0", "default").metadata.resource_version
    touch(api, "p0", "1")
    body = {"metadata": {"resourceVersion": old, "labels": {"x": "1"}}}
    with pytest.raises(ApiException) as refused:
        core.patch_namespaced_pod("p0", "default", body)
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    core.patch_namespaced_pod("p0", "default", {"metadata": {"labels": {"x": "1"}}})
    assert api.store.get("Pod", "default", "p0")["metadata"]["labels"]["x"] == "1"


def test_delete_with_another_uid_is_409(api: Api, core: Any) -> None:
    add_pods(api, 1)
    options = client.V1DeleteOptions(
        preconditions=client.V1Preconditions(uid="another"), grace_period_seconds=0
    )
    with pytest.raises(ApiException) as refused:
        core.delete_namespaced_pod("p0", "default", body=options)
    assert refused.value.status == 409
    options.preconditions.uid = api.store.get("Pod", "default", "p0")["metadata"]["uid"]
    core.delete_namespaced_pod("p0", "default", body=options)
    assert api.store.count("Pod") == 0


def test_cordon_and_taint(api: Api, core: Any) -> None:
    api.store.create("Node", {"metadata": {"name": "n9"}}, actor="kubelet")
    taint = {"key": "incidentdesk.io/hold", "value": "probation", "effect": "NoSchedule"}
    core.patch_node("n9", {"spec": {"unschedulable": True, "taints": [taint]}})
    node = core.read_node("n9")
    assert node.spec.unschedulable
    assert [(one.key, one.effect) for one in node.spec.taints] == [("incidentdesk.io/hold", "NoSchedule")]


def test_job_lease_and_budget(connection: Any, core: Any) -> None:
    batch, leases = client.BatchV1Api(connection), client.CoordinationV1Api(connection)
    container = client.V1Container(name="train", image="incidentdesk/trainer")
    template = client.V1PodTemplateSpec(spec=client.V1PodSpec(restart_policy="Never", containers=[container]))
    spec = client.V1JobSpec(completions=2, parallelism=2, completion_mode="Indexed", template=template)
    job = batch.create_namespaced_job(
        "default", client.V1Job(metadata=client.V1ObjectMeta(name="llm"), spec=spec)
    )
    assert job.spec.selector.match_labels["batch.kubernetes.io/controller-uid"] == job.metadata.uid
    suspended = batch.patch_namespaced_job("llm", "default", {"spec": {"suspend": True}})
    assert (suspended.spec.suspend, suspended.metadata.generation) == (True, 2)
    batch.delete_namespaced_job("llm", "default", propagation_policy="Background")
    lease = leases.create_namespaced_lease(
        "kube-node-lease",
        {
            "metadata": {"name": "n1"},
            "spec": {"holderIdentity": "n1", "renewTime": "2026-11-29T12:00:00.123456Z"},
        },
    )
    assert lease.spec.holder_identity == "n1"
    assert lease.spec.renew_time.microsecond == 123456


def test_token_request_and_review(connection: Any, core: Any) -> None:
    spec = client.V1TokenRequestSpec(audiences=["incidentdesk"], expiration_seconds=600)
    request = core.create_namespaced_service_account_token(
        "default", "default", client.AuthenticationV1TokenRequest(spec=spec)
    )
    reviews = client.AuthenticationV1Api(connection)

    def review(audience: str) -> Any:
        wanted = client.V1TokenReviewSpec(token=request.status.token, audiences=[audience])
        return reviews.create_token_review(client.V1TokenReview(spec=wanted)).status

    good = review("incidentdesk")
    assert good.authenticated
    assert good.user.username == "system:serviceaccount:default:default"
    assert not review("someone-else").authenticated


def test_wrong_token_is_401(api: Api) -> None:
    settings = client.Configuration()
    settings.host = api.server.url
    settings.api_key = {"authorization": "Bearer wrong"}
    with client.ApiClient(settings) as connection, pytest.raises(ApiException) as refused:
        client.CoreV1Api(connection).list_node()
    assert refused.value.status == 401
