"""Where pods go, and why not."""

from typing import Any

import pytest

from sim.scheduler import NodeState, choose
from tests.sim.conftest import Bench, until


def node(name: str, *, gpus: int = 8, zone: str = "a", **spec: Any) -> NodeState:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, "gpus": str(gpus)}
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "3", "nvidia.com/gpu": str(gpus)}
    found = {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable},
    }
    return NodeState(found)


def pod(
    name: str = "p",
    *,
    labels: dict[str, str] | None = None,
    requests: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"requests": requests or {}}}
    return {
        "metadata": {"name": name, "namespace": "lab", "labels": labels or {}},
        "spec": {"containers": [container], **spec},
    }


def required(*terms: dict[str, Any]) -> list[dict[str, Any]]:
    return list(terms)


def apart(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def node_affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


ISOLATED = {"key": "incidentdesk.io/isolated", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("wanted", "nodes", "expected"),
    [
        pytest.param(
            pod(requests={"nvidia.com/gpu": "8"}), [node("n1", gpus=4), node("n2")], "n2", id="gpus"
        ),
        pytest.param(
            pod(requests={"cpu": "8500m"}),
            [node("n1")],
            "0/1 nodes are available: 1 Insufficient cpu.",
            id="cpu",
        ),
        pytest.param(pod(requests={"memory": "65536Mi"}), [node("n1")], "n1", id="memory-exact"),
        pytest.param(
            pod(requests={"memory": "65537Mi"}),
            [node("n1")],
            "0/1 nodes are available: 1 Insufficient memory.",
            id="memory-over",
        ),
        pytest.param(pod(), [node("n1", unschedulable=True), node("n2")], "n2", id="cordoned"),
        pytest.param(
            pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
            [node("n1", unschedulable=True)],
            "n1",
            id="cordon-tolerated",
        ),
        pytest.param(
            pod(),
            [node("n1", taints=[ISOLATED])],
            "0/1 nodes are available: 1 node(s) had untolerated taint {incidentdesk.io/isolated: yes}.",
            id="tainted",
        ),
        pytest.param(
            pod(tolerations=[{"key": "incidentdesk.io/isolated", "value": "yes"}]),
            [node("n1", taints=[ISOLATED])],
            "n1",
            id="taint-tolerated",
        ),
        pytest.param(
            pod(tolerations=[{"key": "incidentdesk.io/isolated", "value": "no"}]),
            [node("n1", taints=[ISOLATED]), node("n2")],
            "n2",
            id="other-value-tolerates-not",
        ),
        pytest.param(
            pod(),
            [node("n1", taints=[{"key": "k", "effect": "PreferNoSchedule"}])],
            "n1",
            id="prefer-is-no-must",
        ),
        pytest.param(
            pod(nodeSelector={"topology.kubernetes.io/zone": "b"}),
            [node("n1"), node("n2", zone="b")],
            "n2",
            id="selector",
        ),
        pytest.param(
            pod(
                affinity=node_affinity(
                    {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}
                )
            ),
            [node("n1"), node("n2")],
            "n2",
            id="affinity-not-in",
        ),
        pytest.param(
            pod(affinity=node_affinity({"key": "gpus", "operator": "Gt", "values": ["7"]})),
            [node("n1", gpus=4), node("n2", gpus=8)],
            "n2",
            id="affinity-gt",
        ),
        pytest.param(
            pod(affinity=node_affinity({"key": "gpus", "operator": "DoesNotExist"})),
            [node("n1")],
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            id="affinity-absent",
        ),
        pytest.param(pod(), [], "0/0 nodes are available: no nodes.", id="no-nodes"),
    ],
)
def test_placement(wanted: dict[str, Any], nodes: list[NodeState], expected: str) -> None:
    name, message = choose(wanted, nodes)
    assert (name or message) == expected


def test_bound_pods_use_up_a_node() -> None:
    full, other = node("n1"), node("n2", gpus=4)
    full.pods.append(pod("old", requests={"nvidia.com/gpu": "6"}))

    assert choose(pod(requests={"nvidia.com/gpu": "3"}), [full, other])[0] == "n2"


def test_too_many_pods_on_a_node() -> None:
    full = node("n1")
    full.pods += [pod(f"old-{i}") for i in range(3)]

    assert choose(pod(), [full]) == (None, "0/1 nodes are available: 1 Too many pods.")


def test_anti_affinity_keeps_replicas_on_different_hosts() -> None:
    nodes = [node("n1"), node("n2")]
    replica = pod(labels={"app": "web"}, affinity=apart("web"))
    nodes[0].pods.append(pod("old", labels={"app": "web"}))

    assert choose(replica, nodes)[0] == "n2"
    nodes[1].pods.append(pod("old-2", labels={"app": "web"}))
    assert choose(replica, nodes) == (
        None,
        "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.",
    )


def test_reasons_are_counted_by_node() -> None:
    nodes = [node("n1", unschedulable=True), node("n2", gpus=0), node("n3", gpus=1)]
    _, message = choose(pod(requests={"nvidia.com/gpu": "2"}), nodes)

    assert message == "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu."


def test_pod_that_fits_nowhere_is_placed_as_soon_as_a_node_is_uncordoned(bench: Bench) -> None:
    def cordon(is_cordoned: bool) -> None:
        for name in bench.cluster.kubelets:
            bench.store.mutate(
                "Node",
                None,
                name,
                lambda n: {**n, "spec": {**n["spec"], "unschedulable": is_cordoned}},
                actor="test",
            )

    cordon(True)
    bench.run_pod("waits", "exit 0")
    until(lambda: bench.condition("Pod", "waits", "PodScheduled") == "False", "Unschedulable")
    assert bench.phase("waits") == "Pending"
    assert bench.reasons("waits") == ["FailedScheduling"]

    cordon(False)

    until(lambda: bench.phase("waits") == "Succeeded", "the pod's run")


def test_pod_that_cannot_be_read_keeps_no_other_from_its_place(bench: Bench) -> None:
    bench.run_pod("odd", "exit 0", container={"resources": {"requests": {"cpu": "many"}}}, priority=9)
    bench.run_pod("plain", "exit 0")

    until(lambda: bench.phase("plain") == "Succeeded", "the other pod's run")
    until(lambda: bench.condition("Pod", "odd", "PodScheduled") == "False", "the refusal")


def test_higher_priority_is_placed_first(bench: Bench) -> None:
    whole = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    for name in ("first", "second"):
        bench.run_pod(name, "exec sleep 1000", container=whole)
    until(lambda: bench.phase("first") == bench.phase("second") == "Running", "both nodes full")
    bench.run_pod("low", "exec sleep 1000", container=whole)
    bench.run_pod("high", "exec sleep 1000", container=whole, priority=100)
    until(lambda: bench.condition("Pod", "high", "PodScheduled") == "False", "both wait")

    bench.store.delete("Pod", "lab", "first", actor="test", grace_period_seconds=0)

    until(lambda: bench.phase("high") == "Running", "the one of higher priority runs")
    assert bench.phase("low") == "Pending"
