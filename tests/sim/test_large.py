"""The large cluster, small: generated from a seed, changed at a rate."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.large import Generator, LargeCluster
from tests.sim.conftest import until

NOW = 1_800_000_000.0


def generate(seed: int) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    generator = Generator(nodes=40, pods=2500, seed=seed, now=NOW)
    return list(generator.nodes()), list(generator.jobs_and_pods())


def test_same_seed_gives_the_same_cluster() -> None:
    assert generate(7) == generate(7)
    assert generate(7) != generate(8)


def test_objects_fit_together() -> None:
    nodes, objects = generate(7)
    names = {node["metadata"]["name"] for node in nodes}
    jobs = {o["metadata"]["uid"]: o for kind, o in objects if kind == "Job"}
    pods = [o for kind, o in objects if kind == "Pod"]

    assert (len(nodes), len(names), len(pods)) == (40, 40, 2500)
    assert len({o["metadata"]["uid"] for _, o in objects}) == len(objects)
    for pod in pods:
        owner = jobs[pod["metadata"]["ownerReferences"][0]["uid"]]
        assert owner["metadata"]["namespace"] == pod["metadata"]["namespace"]
        if pod["status"]["phase"] == "Pending":
            assert "nodeName" not in pod["spec"]
        else:
            assert pod["spec"]["nodeName"] in names
    assert {pod["status"]["phase"] for pod in pods} >= {"Running", "Succeeded"}


@pytest.fixture
def make_large(tmp_path: Path) -> Iterator[Callable[[float], LargeCluster]]:
    started: list[LargeCluster] = []

    def make(changes_per_second: float) -> LargeCluster:
        cluster = LargeCluster(
            tmp_path / "large", port=0, nodes=40, pods=500, changes_per_second=changes_per_second, seed=7
        )
        started.append(cluster)
        cluster.start()
        return cluster

    yield make
    for cluster in started:
        cluster.stop()


def get(cluster: LargeCluster, path: str) -> dict[str, Any]:
    request = urllib.request.Request(
        cluster.url + path, headers={"Authorization": f"Bearer {cluster.tokens.admin_token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        return dict(json.load(response))


def test_pods_are_listed_in_pages_of_one_state(make_large: Callable[[float], LargeCluster]) -> None:
    cluster = make_large(200.0)
    uids, versions, token = [], set(), ""
    while True:
        page = get(cluster, f"/api/v1/pods?limit=120&continue={token}")
        uids += [pod["metadata"]["uid"] for pod in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue", "")
        if not token:
            break

    assert (len(uids), len(set(uids)), len(versions)) == (500, 500, 1)


def test_changes_come_at_the_set_rate_and_reach_a_watch(make_large: Callable[[float], LargeCluster]) -> None:
    cluster = make_large(200.0)
    before = cluster.store.revision
    watch = cluster.store.watch("Pod", resource_version=before)

    until(lambda: get(cluster, "/sim/v1/changes")["made"] >= 100, "a hundred changes")

    assert cluster.store.revision > before
    event = watch.next(timeout_seconds=5)
    assert event is not None
    assert event[0] == "MODIFIED"
    watch.close()


def test_rate_zero_changes_nothing(make_large: Callable[[float], LargeCluster]) -> None:
    cluster = make_large(0.0)
    before = cluster.store.revision
    for _ in range(5):
        get(cluster, "/api/v1/nodes?limit=1")

    assert cluster.store.revision == before
    assert get(cluster, "/sim/v1/changes") == {"made": 0, "per_second": 0.0}
