"""Nodes: what they look like, what happens to silent and tainted ones."""

from typing import Any

import pytest

from sim.nodes import UNREACHABLE, shapes
from sim.taints import seconds_tolerated, tolerates
from tests.sim.conftest import Bench, until

STAY = "exec sleep 1000"


def ready(bench: Bench, node: str) -> str:
    conditions = bench.store.get("Node", None, node)["status"]["conditions"]
    return str(next(c["status"] for c in conditions if c["type"] == "Ready"))


def taint_keys(bench: Bench, node: str) -> set[str]:
    return {taint["key"] for taint in bench.store.get("Node", None, node)["spec"].get("taints") or []}


def test_nodes_have_names_labels_and_an_identity_of_their_own(bench: Bench) -> None:
    nodes = bench.store.list("Node").items

    assert [node["metadata"]["name"] for node in nodes] == ["gpu-r01-01", "gpu-r01-02"]
    labels = nodes[0]["metadata"]["labels"]
    assert (labels["incidentdesk.io/rack"], labels["topology.kubernetes.io/zone"]) == ("r01", "zone-a")
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert nodes[0]["status"]["capacity"]["nvidia.com/gpu"] == "8"
    for field in ("machineID", "systemUUID", "bootID"):
        assert nodes[0]["status"]["nodeInfo"][field] != nodes[1]["status"]["nodeInfo"][field]
    assert nodes[0]["spec"]["providerID"] != nodes[1]["spec"]["providerID"]


def test_racks_hold_eight_nodes_and_zones_two_racks() -> None:
    found = shapes(40, 8)

    assert [found[i].name for i in (0, 7, 8, 39)] == ["gpu-r01-01", "gpu-r01-08", "gpu-r02-01", "gpu-r05-08"]
    assert [found[i].zone for i in (0, 15, 16, 39)] == ["zone-a", "zone-a", "zone-b", "zone-c"]
    assert len({shape.address for shape in found}) == 40


def test_leases_are_renewed(bench: Bench) -> None:
    first = bench.store.get("Lease", "kube-node-lease", "gpu-r01-01")["spec"]["renewTime"]

    until(
        lambda: bench.store.get("Lease", "kube-node-lease", "gpu-r01-01")["spec"]["renewTime"] > first,
        "renewal",
    )


def test_silent_node_becomes_unknown_and_loses_its_pods_after_their_toleration(bench: Bench) -> None:
    bench.run_pod("stays", STAY, terminationGracePeriodSeconds=1)
    until(lambda: bench.phase("stays") == "Running", "the pod runs")
    pod = bench.pod("stays")
    assert pod is not None
    node = pod["spec"]["nodeName"]
    other = next(name for name in bench.cluster.kubelets if name != node)

    bench.cluster.kubelets[node].fall_silent()

    until(lambda: ready(bench, node) == "Unknown", "NotReady")
    until(lambda: UNREACHABLE in taint_keys(bench, node), "the taint")
    assert ready(bench, other) == "True"
    until(lambda: bench.condition("Pod", "stays", "Ready") == "False", "the pod is shown unready")
    until(
        lambda: (bench.pod("stays") or {"metadata": {}})["metadata"].get("deletionTimestamp"), "the eviction"
    )
    assert bench.condition("Pod", "stays", "DisruptionTarget") == "True"
    assert "NodeNotReady" in bench.reasons(node)
    assert bench.container("stays")["state"].keys() == {"running"}  # nobody on the node has heard of it

    bench.cluster.kubelets[node].speak()

    until(lambda: bench.pod("stays") is None, "the end of the pod")


def test_silent_node_that_speaks_again_is_ready_without_taints(bench: Bench) -> None:
    kubelet = bench.cluster.kubelets["gpu-r01-02"]
    kubelet.fall_silent()
    until(lambda: UNREACHABLE in taint_keys(bench, "gpu-r01-02"), "the taint")

    kubelet.speak()

    until(lambda: ready(bench, "gpu-r01-02") == "True", "Ready")
    until(lambda: taint_keys(bench, "gpu-r01-02") == set(), "no taints")


def test_cordoned_node_carries_the_taint_and_drops_it_again(bench: Bench) -> None:
    def cordon(is_cordoned: bool) -> None:
        bench.store.mutate(
            "Node",
            None,
            "gpu-r01-01",
            lambda n: {**n, "spec": {**n["spec"], "unschedulable": is_cordoned}},
            actor="test",
        )

    cordon(True)
    until(lambda: taint_keys(bench, "gpu-r01-01") == {"node.kubernetes.io/unschedulable"}, "the taint")
    cordon(False)
    until(lambda: taint_keys(bench, "gpu-r01-01") == set(), "no taint")


def test_no_execute_spares_pods_that_tolerate_it(bench: Bench) -> None:
    tolerant = {"tolerations": [{"key": "broken", "operator": "Exists"}]}
    bench.run_pod("tolerant", STAY, nodeSelector={"kubernetes.io/hostname": "gpu-r01-01"}, **tolerant)
    bench.run_pod(
        "other", STAY, nodeSelector={"kubernetes.io/hostname": "gpu-r01-01"}, terminationGracePeriodSeconds=1
    )
    until(lambda: bench.phase("tolerant") == bench.phase("other") == "Running", "both run")

    bench.store.mutate(
        "Node",
        None,
        "gpu-r01-01",
        lambda n: {**n, "spec": {**n["spec"], "taints": [{"key": "broken", "effect": "NoExecute"}]}},
        actor="test",
    )

    until(lambda: bench.pod("other") is None, "eviction")
    assert bench.phase("tolerant") == "Running"


def test_pods_of_a_deleted_node_are_collected(bench: Bench) -> None:
    bench.run_pod("lost", STAY)
    until(lambda: bench.phase("lost") == "Running", "the pod runs")
    pod = bench.pod("lost")
    assert pod is not None

    bench.store.delete("Node", None, pod["spec"]["nodeName"], actor="test")

    until(lambda: bench.pod("lost") is None, "collection")


TAINT = {"key": "k", "value": "v", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "k", "value": "v", "effect": "NoExecute"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k"}, False),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, False),
        ({"value": "v"}, False),
    ],
)
def test_toleration(toleration: dict[str, Any], expected: bool) -> None:
    assert tolerates(toleration, TAINT) is expected


def test_time_under_no_execute_is_the_shortest_that_is_tolerated() -> None:
    other = {"key": "o", "effect": "NoExecute"}
    soft = {"key": "s", "effect": "NoSchedule"}
    hour = {"key": "k", "operator": "Exists", "tolerationSeconds": 3600}
    minute = {"key": "o", "operator": "Exists", "tolerationSeconds": 60}

    assert seconds_tolerated([TAINT], []) == 0
    assert seconds_tolerated([TAINT], [hour]) == 3600
    assert seconds_tolerated([TAINT, other], [hour, minute]) == 60
    assert seconds_tolerated([TAINT, other], [hour]) == 0
    assert seconds_tolerated([soft], []) is None
    assert seconds_tolerated([TAINT], [{"operator": "Exists"}]) is None
