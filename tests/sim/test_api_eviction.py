from collections.abc import Iterator
from typing import Any

import pytest

from tests.sim.apiserver import Answer, Api, make_budget, make_pod, make_ready, serve

PODS = "/api/v1/namespaces/default/pods"
LABELS = {"app": "train"}


@pytest.fixture
def api() -> Iterator[Api]:
    with serve() as served:
        yield served


def add_pods(api: Api, count: int, *, ready: bool = True, **metadata: Any) -> None:
    for index in range(count):
        pod = make_pod(f"p{index}", node="n1", metadata={"labels": LABELS} | metadata)
        api.store.create("Pod", pod, actor="test")
        if ready:
            make_ready(api.store, f"p{index}")


def evict(api: Api, name: str, **options: Any) -> Answer:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name},
        "deleteOptions": options,
    }
    return api.call("POST", f"{PODS}/{name}/eviction", body)


def budget_status(api: Api, name: str = "b") -> dict[str, Any]:
    status = api.store.get("PodDisruptionBudget", "default", name)["status"]
    return {
        key: status[key] for key in ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")
    }


def test_budget_that_refuses_is_named_and_the_pod_stays(api: Api) -> None:
    add_pods(api, 2)
    api.store.create("PodDisruptionBudget", make_budget("train-pdb", LABELS, minAvailable=2), actor="test")
    refused = evict(api, "p0")
    assert refused.status == 429
    assert refused.body["reason"] == "TooManyRequests"
    assert refused.body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused.body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget train-pdb needs 2 healthy pods and has 2 currently",
        }
    ]
    assert "deletionTimestamp" not in api.store.get("Pod", "default", "p0")["metadata"]
    record = api.store.audit[-1]
    assert (record.verb, record.subresource, record.status, record.name) == ("evict", "eviction", 429, "p0")


def test_allowed_eviction_marks_the_pod_and_uses_the_budget_up(api: Api) -> None:
    add_pods(api, 2)
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, minAvailable=1), actor="test")
    done = evict(api, "p0", gracePeriodSeconds=5)
    assert (done.status, done.body["status"]) == (201, "Success")
    pod = api.store.get("Pod", "default", "p0")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 5
    target = next(one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    assert budget_status(api)["disruptionsAllowed"] == 0
    assert evict(api, "p1").status == 429


def test_dry_run_asks_the_budget_but_does_nothing(api: Api) -> None:
    add_pods(api, 2)
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, minAvailable=1), actor="test")
    before = api.store.revision
    assert evict(api, "p0", dryRun=["All"]).status == 201
    assert api.store.revision == before
    api.store.create("PodDisruptionBudget", make_budget("c", {"app": "none"}, minAvailable=1), actor="test")
    api.store.mutate(
        "PodDisruptionBudget",
        "default",
        "b",
        lambda b: b | {"spec": b["spec"] | {"minAvailable": 2}},
        actor="test",
    )
    assert evict(api, "p0", dryRun=["All"]).status == 429


def test_eviction_for_another_uid_is_a_conflict(api: Api) -> None:
    add_pods(api, 1)
    assert evict(api, "p0", preconditions={"uid": "another"}).status == 409
    assert "deletionTimestamp" not in api.store.get("Pod", "default", "p0")["metadata"]


def test_unready_pod_goes_only_under_a_healthy_budget_or_by_policy(api: Api) -> None:
    add_pods(api, 2)
    make_ready(api.store, "p0", ready=False)
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, minAvailable=2), actor="test")
    assert evict(api, "p0").status == 429
    always = {"unhealthyPodEvictionPolicy": "AlwaysAllow"}
    api.store.mutate(
        "PodDisruptionBudget", "default", "b", lambda b: b | {"spec": b["spec"] | always}, actor="test"
    )
    assert evict(api, "p0").status == 201


def test_pending_and_finished_pods_ask_no_budget(api: Api) -> None:
    add_pods(api, 1, ready=False)
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, minAvailable=1), actor="test")
    assert evict(api, "p0").status == 201


def test_two_budgets_over_one_pod_are_an_error(api: Api) -> None:
    add_pods(api, 1)
    for name in ("b", "c"):
        api.store.create("PodDisruptionBudget", make_budget(name, LABELS, minAvailable=0), actor="test")
    assert evict(api, "p0").status == 500


def test_missing_pod_is_not_found(api: Api) -> None:
    assert evict(api, "nobody").status == 404


@pytest.mark.parametrize(
    ("spec", "ready", "expected"),
    [
        ({"minAvailable": 2}, 3, (3, 3, 2, 1)),
        ({"minAvailable": 3}, 3, (3, 3, 3, 0)),
        ({"minAvailable": 2}, 1, (3, 1, 2, 0)),
    ],
)
def test_budget_status_follows_the_pods(
    api: Api, spec: dict[str, Any], ready: int, expected: tuple[int, int, int, int]
) -> None:
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, **spec), actor="test")
    add_pods(api, 3, ready=False)
    for index in range(ready):
        make_ready(api.store, f"p{index}")
    assert tuple(budget_status(api).values()) == expected


@pytest.mark.parametrize(
    ("spec", "desired"),
    [({"maxUnavailable": 1}, 3), ({"maxUnavailable": "30%"}, 2), ({"minAvailable": "60%"}, 3)],
)
def test_percent_and_max_unavailable_count_by_the_controllers_scale(
    api: Api, spec: dict[str, Any], desired: int
) -> None:
    replicas = {"metadata": {"name": "rs", "namespace": "default"}, "spec": {"replicas": 4}}
    owner = api.store.create("ReplicaSet", replicas, actor="test")
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "controller": True}
    reference["uid"] = owner["metadata"]["uid"]
    add_pods(api, 4, ownerReferences=[reference])
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, **spec), actor="test")
    assert budget_status(api) == {
        "expectedPods": 4,
        "currentHealthy": 4,
        "desiredHealthy": desired,
        "disruptionsAllowed": 4 - desired,
    }


def test_max_unavailable_over_a_jobs_pods_allows_nothing_and_says_why(api: Api) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    job = api.store.create(
        "Job",
        {"metadata": {"name": "j", "namespace": "default"}, "spec": {"template": template}},
        actor="test",
    )
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}
    reference["uid"] = job["metadata"]["uid"]
    add_pods(api, 2, ownerReferences=[reference])
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, maxUnavailable=1), actor="test")
    status = api.store.get("PodDisruptionBudget", "default", "b")["status"]
    assert status["disruptionsAllowed"] == 0
    assert status["conditions"][0]["reason"] == "SyncFailed"
    assert status["conditions"][0]["message"] == "jobs.batch does not implement the scale subresource"


def test_deleted_pod_leaves_the_count(api: Api) -> None:
    add_pods(api, 3)
    api.store.create("PodDisruptionBudget", make_budget("b", LABELS, minAvailable=2), actor="test")
    api.store.delete("Pod", "default", "p0", actor="test", grace_period_seconds=0)
    assert budget_status(api) == {
        "expectedPods": 2,
        "currentHealthy": 2,
        "desiredHealthy": 2,
        "disruptionsAllowed": 0,
    }
