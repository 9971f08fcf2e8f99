"""Kubernetes objects -> facts, on objects as API servers send them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from adapters.facts import FailurePolicyRule, JobFact, NodeFact, PodFact
from adapters.kubernetes import objects, translate
from adapters.kubernetes.cluster import NODES, PODS

# Objects of real clusters, where they were laid beside the checkout.
SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "k8s"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no sample objects beside the checkout")


def node(**parts: Any) -> NodeFact:
    body = {"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "5"}, **parts}
    return translate.node_fact(msgspec.convert(body, objects.Node))


def pod(status: dict[str, Any], **metadata: Any) -> PodFact:
    body = {
        "metadata": {
            "name": "llm-0-x",
            "namespace": "train",
            "uid": "p1",
            "resourceVersion": "7",
            "annotations": {"batch.kubernetes.io/job-completion-index": "4"},
            "ownerReferences": [
                {"kind": "Job", "name": "llm", "uid": "j1", "controller": True, "apiVersion": "batch/v1"}
            ],
            **metadata,
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "train"}]},
        "status": status,
    }
    fact = translate.pod_fact(msgspec.json.decode(json.dumps(body), type=objects.Pod))
    assert fact is not None
    return fact


def job(spec: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> JobFact:
    body = {
        "metadata": {"name": "llm", "namespace": "train", "uid": "j1", "resourceVersion": "9", **metadata},
        "spec": {"template": {"spec": {"containers": [{"name": "train"}]}}, **spec},
        "status": status or {},
    }
    return translate.job_fact(msgspec.json.decode(json.dumps(body), type=objects.Job))


@pytest.mark.parametrize(
    ("spec", "info", "key", "is_weak"),
    [
        pytest.param(
            {"providerID": "aws:///a/i-1"},
            {"systemUUID": "EC2-1"},
            "provider:aws:///a/i-1",
            False,
            id="provider",
        ),
        pytest.param({}, {"systemUUID": "4C4C-AB"}, "system:4c4c-ab", False, id="system uuid"),
        pytest.param({}, {"systemUUID": "00000000-0000-0000"}, "name:n1", True, id="all zeros is none"),
        pytest.param({}, {"systemUUID": "FFFF-FFFF"}, "name:n1", True, id="all ones is none"),
        pytest.param({}, {}, "name:n1", True, id="only a name"),
    ],
)
def test_machine_identity(spec: dict[str, Any], info: dict[str, str], key: str, is_weak: bool) -> None:
    fact = node(spec=spec, status={"nodeInfo": info})
    assert (fact.hardware_key, fact.is_key_weak) == (key, is_weak)


@pytest.mark.parametrize(
    ("status", "ready"), [("True", True), ("False", False), ("Unknown", None), (None, None)]
)
def test_readiness_of_a_node(status: str | None, ready: bool | None) -> None:
    conditions = [{"type": "Ready", "status": status}] if status else []
    assert node(status={"conditions": conditions}).is_ready is ready


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (objects.ReviewedUser(username="system:serviceaccount:train:llm"), ("train", "llm", "")),
        (objects.ReviewedUser(username="jane"), ("", "", "")),
        (objects.ReviewedUser(username="x:system:serviceaccount:train:llm"), ("", "", "")),
        (
            objects.ReviewedUser(
                username="system:serviceaccount:train:llm",
                extra={"authentication.kubernetes.io/pod-uid": ["a", "b"]},
            ),
            ("train", "llm", ""),
        ),
    ],
    ids=["unbound", "person", "name that contains it", "two pods"],
)
def test_reviewed_user_is_read_as_a_service_account_only(
    user: objects.ReviewedUser, expected: tuple[str, str, str]
) -> None:
    review = translate.token_review(objects.TokenReviewStatus(authenticated=True, user=user))
    assert (review.namespace, review.service_account, review.pod_uid) == expected


def test_heartbeats_are_no_difference() -> None:
    def beat(version: str, at: str) -> NodeFact:
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": at}
        return node(
            metadata={"name": "n1", "uid": "u1", "resourceVersion": version},
            status={"conditions": [condition]},
        )

    assert beat("5", "2026-11-29T14:00:00Z") == beat("6", "2026-11-29T14:05:00Z")


def test_places_devices_and_labels_of_a_node() -> None:
    labels = {
        "incidentdesk.io/rack": "r01",
        "cloud.google.com/gke-nodepool": "a100",
        "topology.kubernetes.io/zone": "z1",
        "nvidia.com/gpu.product": "NVIDIA-H100",
        "feature.node.kubernetes.io/cpu-cpuid.AVX": "true",
    }
    fact = node(
        metadata={"name": "n1", "labels": labels},
        status={"capacity": {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb": "2", "cpu": "96"}},
    )
    assert (fact.rack, fact.pool, fact.zone, fact.gpu_type, fact.gpu_count) == (
        "r01",
        "a100",
        "z1",
        "NVIDIA-H100",
        10,
    )
    assert not any(label.startswith("feature.node") for label in fact.labels)


TERMINATED = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-11-29T14:01:00Z"}
RUNNING = {"startedAt": "2026-11-29T14:02:00Z"}


@pytest.mark.parametrize(
    ("container", "state", "lives"),
    [
        pytest.param({"restartCount": 0, "state": {"running": RUNNING}}, "running", [], id="first life"),
        pytest.param({"restartCount": 0, "state": {"waiting": {}}}, "waiting", [], id="not begun"),
        pytest.param(
            {"restartCount": 2, "state": {"running": RUNNING}, "lastState": {"terminated": TERMINATED}},
            "running",
            [1],
            id="runs again: the last state is the life before",
        ),
        pytest.param(
            {
                "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": TERMINATED},
            },
            "waiting",
            [2],
            id="in back-off: the last state is the newest life",
        ),
        pytest.param(
            {"restartCount": 1, "state": {"terminated": TERMINATED}, "lastState": {"terminated": TERMINATED}},
            "terminated",
            [0, 1],
            id="ended twice",
        ),
    ],
)
def test_lives_of_a_container(container: dict[str, Any], state: str, lives: list[int]) -> None:
    fact = pod({"phase": "Running", "containerStatuses": [{"name": "train", **container}]}).container("train")
    assert fact is not None
    assert (fact.state, [end.restart for end in fact.ends]) == (state, lives)
    assert all(end.signal == 9 for end in fact.ends)


def test_pod_names_its_job_index_and_deletion() -> None:
    fact = pod(
        {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "X"}]},
        deletionTimestamp="2026-11-29T14:00:30Z",
        deletionGracePeriodSeconds=30,
    )
    assert (fact.job_uid, fact.job_name, fact.index, fact.node) == ("j1", "llm", 4, "n1")
    assert fact.delete_asked_at is not None
    assert fact.delete_asked_at.isoformat() == "2026-11-29T14:00:00+00:00"
    assert fact.disruption is not None
    assert fact.disruption.reason == "X"


def test_pod_without_a_job_is_of_no_interest() -> None:
    body = {"metadata": {"name": "x", "ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}}
    assert translate.pod_fact(msgspec.convert(body, objects.Pod)) is None


def test_container_that_trains_is_named_or_has_devices_or_is_the_first() -> None:
    def main(containers: list[dict[str, Any]], **annotations: str) -> str:
        body = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
        parsed = msgspec.convert(body, objects.Pod)
        return translate._main_container(parsed.metadata.annotations or {}, parsed.spec)

    sidecar, device = {"name": "sidecar"}, {"name": "gpu", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    assert main([sidecar, {"name": "other"}]) == "sidecar"
    assert main([sidecar, device]) == "gpu"
    assert main([sidecar, device], **{"kubectl.kubernetes.io/default-container": "sidecar"}) == "sidecar"


def test_job_with_its_limits_and_conditions() -> None:
    fact = job(
        {
            "completions": 4,
            "parallelism": 4,
            "completionMode": "Indexed",
            "backoffLimit": 3,
            "suspend": True,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [78]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                ]
            },
        },
        {"conditions": [{"type": "Suspended", "status": "True"}, {"type": "Failed", "status": "False"}]},
        annotations={"incidentdesk.io/protect": "true", "other.io/x": "y"},
    )
    assert (fact.world_size, fact.is_suspended, fact.backoff_limit) == (4, True, 3)
    assert fact.annotations == {"protect": "true"}
    assert fact.failure_policy == (
        FailurePolicyRule("FailJob", "In", (78,)),
        FailurePolicyRule("Ignore", conditions=("DisruptionTarget",)),
    )
    assert [each.type for each in fact.conditions] == ["Suspended"]


def test_who_suspended_is_the_last_manager_that_owns_the_field() -> None:
    def field(manager: str, minute: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"manager": manager, "time": f"2026-11-29T14:{minute:02}:00Z", "fieldsV1": fields}

    owns = {"f:spec": {"f:suspend": {}}}
    managed = [field("kueue", 5, owns), field("kubectl", 1, owns), field("controller", 9, {"f:status": {}})]
    assert job({}, managedFields=managed).suspend_set_by == "kueue"


@pytest.mark.parametrize(
    ("spec", "places"),
    [({}, 1), ({"parallelism": 3}, 3), ({"completions": 5, "parallelism": 2}, 5), ({"parallelism": 0}, 1)],
)
def test_places_of_a_job(spec: dict[str, Any], places: int) -> None:
    assert job(spec).world_size == places


def _documents(name: str) -> Iterator[dict[str, Any]]:
    yield from yaml.load_all((SAMPLES / name).read_text(), Loader=yaml.BaseLoader)


@needs_samples
def test_sample_nodes_are_read() -> None:
    page = NODES.decode_page((SAMPLES / "nodes_list.json").read_bytes())
    assert len(page.facts) == 7
    assert all(fact.name and fact.hardware_key for fact in page.facts)
    assert any(fact.is_ready for fact in page.facts)


@needs_samples
def test_sample_gpu_nodes_have_devices_and_types() -> None:
    facts = [
        translate.node_fact(msgspec.convert(body, objects.Node, strict=False))
        for body in _documents("openb_gpu_nodes_first40.yaml")
        if body
    ]
    assert len(facts) == 40
    assert all(fact.gpu_count > 0 and fact.gpu_type for fact in facts)


@needs_samples
def test_sample_pod_killed_for_memory_is_read_as_such() -> None:
    (fact,) = PODS.decode_page((SAMPLES / "pods_oomkilled_137.json").read_bytes()).facts
    (end,) = fact.containers[0].ends
    assert (fact.job_name, fact.phase, end.reason, end.exit_code) == (
        "oom-kill-job3",
        "Failed",
        "OOMKilled",
        137,
    )


@needs_samples
@pytest.mark.parametrize("name", ["pods_crashloop_backoff.json", "pods_pending_resources.json"])
def test_sample_pods_of_no_job_are_passed_over(name: str) -> None:
    page = PODS.decode_page((SAMPLES / name).read_bytes())
    assert page.facts == ()
    assert page.resource_version
