import random
import threading
from typing import Any

import pytest

from sim.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Gone, Invalid, NotFound
from sim.store import Store
from sim.watch import Change
from tests.sim.apiserver import make_pod

JOB: dict[str, Any] = {
    "metadata": {"name": "llm", "namespace": "default"},
    "spec": {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "train", "image": "incidentdesk/trainer"}],
            }
        },
    },
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return Store(clock=clock, rng=random.Random(7))


def create_pod(store: Store, name: str, **changes: Any) -> dict[str, Any]:
    return store.create("Pod", make_pod(name, **changes), actor="test")


def annotate(value: str) -> Any:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        obj["metadata"].setdefault("annotations", {})["a"] = value
        return obj

    return change


def owned_by(owner: dict[str, Any], kind: str, **more: Any) -> dict[str, Any]:
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": kind, "name": meta["name"], "uid": meta["uid"]}
    return {"ownerReferences": [reference | more]}


# Identity and revisions


def test_create_fills_in_what_the_server_owns(store: Store) -> None:
    before = store.revision
    pod = create_pod(store, "a")
    assert pod["metadata"]["resourceVersion"] == str(before + 1)
    assert pod["metadata"]["uid"]
    assert pod["metadata"]["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert [one["key"] for one in pod["spec"]["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]


def test_same_seed_gives_the_same_uids() -> None:
    uids = [create_pod(Store(rng=random.Random(3)), "a")["metadata"]["uid"] for _ in range(2)]
    assert uids[0] == uids[1]


def test_generate_name_gives_distinct_names(store: Store) -> None:
    pod = make_pod("x")
    pod["metadata"] = {"generateName": "llm-", "namespace": "default"}
    names = {store.create("Pod", pod, actor="test")["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("llm-") and len(name) == 9 for name in names)


def test_second_object_of_a_name_is_refused(store: Store) -> None:
    create_pod(store, "a")
    with pytest.raises(AlreadyExists, match='pods "a" already exists'):
        create_pod(store, "a")


def test_object_without_its_namespace_is_refused(store: Store) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        create_pod(store, "a", metadata={"namespace": "nowhere"})


def test_what_is_given_out_is_the_callers_own(store: Store) -> None:
    create_pod(store, "a")
    store.get("Pod", "default", "a")["spec"]["nodeName"] = "elsewhere"
    store.list("Pod").items[0]["metadata"]["labels"] = {"x": "y"}
    assert "nodeName" not in store.get("Pod", "default", "a")["spec"]
    assert "labels" not in store.get("Pod", "default", "a")["metadata"]


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"spec": {"containers": []}}, "spec.containers"),
        ({"metadata": {"name": "Upper"}}, "metadata.name"),
        ({"metadata": {"labels": {"a": "not a label"}}}, "metadata.labels"),
        ({"spec": {"restartPolicy": "Sometimes"}}, "spec.restartPolicy"),
    ],
)
def test_wrong_field_is_named(store: Store, pod: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        store.create("Pod", make_pod("a", **pod), actor="test")
    assert [cause["field"] for cause in refused.value.details["causes"]] == [field]


# Updates


def test_stale_resource_version_is_a_conflict(store: Store) -> None:
    old = create_pod(store, "a")
    store.mutate("Pod", "default", "a", annotate("1"), actor="other")
    old["metadata"]["annotations"] = {"a": "2"}
    with pytest.raises(Conflict, match="the object has been modified"):
        store.update("Pod", old, actor="test")
    assert store.get("Pod", "default", "a")["metadata"]["annotations"] == {"a": "1"}


def test_update_for_another_uid_is_a_conflict(store: Store) -> None:
    create_pod(store, "a")
    with pytest.raises(Conflict, match="UID"):
        store.mutate("Pod", "default", "a", annotate("1"), actor="test", uid="another")


def test_update_without_change_writes_nothing(store: Store) -> None:
    pod = create_pod(store, "a")
    assert store.update("Pod", pod, actor="test")["metadata"]["resourceVersion"] == str(store.revision)
    assert pod["metadata"]["resourceVersion"] == str(store.revision)


def test_status_and_spec_are_written_apart(store: Store) -> None:
    node = store.create("Node", {"metadata": {"name": "n"}, "status": {"phase": "x"}}, actor="test")
    node["spec"]["unschedulable"] = True
    node["status"] = {"phase": "y"}
    assert store.update("Node", node, actor="test", subresource="status")["spec"] == {}
    node["metadata"].pop("resourceVersion")
    node["status"] = {"phase": "z"}
    stored = store.update("Node", node, actor="test")
    assert stored["spec"] == {"unschedulable": True}
    assert stored["status"] == {"phase": "y"}


def test_generation_counts_changes_of_the_spec_only(store: Store) -> None:
    def set_suspend(job: dict[str, Any]) -> dict[str, Any]:
        job["spec"]["suspend"] = True
        return job

    assert store.create("Job", JOB, actor="test")["metadata"]["generation"] == 1
    assert store.mutate("Job", "default", "llm", annotate("1"), actor="test")["metadata"]["generation"] == 1
    assert store.mutate("Job", "default", "llm", set_suspend, actor="test")["metadata"]["generation"] == 2


def test_pods_node_is_set_by_binding_only(store: Store) -> None:
    def move(pod: dict[str, Any]) -> dict[str, Any]:
        pod["spec"]["nodeName"] = "n2"
        return pod

    create_pod(store, "a")
    with pytest.raises(Invalid, match="pod updates may not change fields"):
        store.mutate("Pod", "default", "a", move, actor="test")
    bound = store.bind("default", "a", "n1", actor="scheduler")
    assert bound["spec"]["nodeName"] == "n1"
    assert [one["type"] for one in bound["status"]["conditions"]] == ["PodScheduled"]
    with pytest.raises(Conflict, match="already assigned"):
        store.bind("default", "a", "n2", actor="scheduler")


def test_jobs_template_is_immutable(store: Store) -> None:
    def change(job: dict[str, Any]) -> dict[str, Any]:
        job["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
        return job

    store.create("Job", JOB, actor="test")
    with pytest.raises(Invalid, match=r"spec\.template: Invalid value: field is immutable"):
        store.mutate("Job", "default", "llm", change, actor="test")


def test_job_gets_selector_and_labels_of_its_uid(store: Store) -> None:
    job = store.create("Job", JOB, actor="test")
    uid = job["metadata"]["uid"]
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert job["spec"]["template"]["metadata"]["labels"]["job-name"] == "llm"
    assert job["spec"]["backoffLimit"] == 6


def test_two_taints_of_one_key_and_effect_are_refused(store: Store) -> None:
    taint = {"key": "a", "effect": "NoSchedule"}
    with pytest.raises(Invalid, match="unique by key and effect"):
        store.create("Node", {"metadata": {"name": "n"}, "spec": {"taints": [taint, taint]}}, actor="test")


def test_concurrent_changes_are_all_kept(store: Store) -> None:
    def count_up(obj: dict[str, Any]) -> dict[str, Any]:
        obj["data"]["n"] = str(int(obj["data"]["n"]) + 1)
        return obj

    def work() -> None:
        for _ in range(50):
            store.mutate("ConfigMap", "default", "c", count_up, actor="test")

    store.create(
        "ConfigMap", {"metadata": {"name": "c", "namespace": "default"}, "data": {"n": "0"}}, actor="test"
    )
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("ConfigMap", "default", "c")["data"] == {"n": "200"}


def test_dry_run_answers_but_stores_nothing(store: Store) -> None:
    before = store.revision
    assert store.create("Pod", make_pod("a"), actor="test", dry_run=True)["metadata"]["uid"]
    assert store.revision == before
    with pytest.raises(NotFound):
        store.get("Pod", "default", "a")
    assert store.audit[-1].dry_run


# Deletes


def test_pod_without_node_goes_at_once(store: Store) -> None:
    create_pod(store, "a")
    store.delete("Pod", "default", "a", actor="test")
    with pytest.raises(NotFound):
        store.get("Pod", "default", "a")


def test_pod_on_a_node_waits_for_its_kubelet(store: Store) -> None:
    create_pod(store, "a", node="n1")
    pod = store.delete("Pod", "default", "a", actor="test", grace_period_seconds=20)
    assert pod["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:20Z"
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 20
    assert store.get("Pod", "default", "a")["metadata"]["deletionTimestamp"]
    store.delete("Pod", "default", "a", actor="kubelet", grace_period_seconds=0)
    with pytest.raises(NotFound):
        store.get("Pod", "default", "a")


@pytest.mark.parametrize(("second", "expected"), [(5, 5), (60, 30), (None, 30)])
def test_second_delete_can_only_shorten_the_grace(store: Store, second: int | None, expected: int) -> None:
    create_pod(store, "a", node="n1")
    store.delete("Pod", "default", "a", actor="test")
    pod = store.delete("Pod", "default", "a", actor="test", grace_period_seconds=second)
    assert pod["metadata"]["deletionGracePeriodSeconds"] == expected
    assert pod["metadata"]["deletionTimestamp"] == f"2027-01-15T08:00:{expected:02}Z"


def test_delete_for_another_uid_or_revision_is_a_conflict(store: Store) -> None:
    create_pod(store, "a")
    with pytest.raises(Conflict):
        store.delete("Pod", "default", "a", actor="test", uid="another")
    with pytest.raises(Conflict):
        store.delete("Pod", "default", "a", actor="test", resource_version="1")
    assert store.get("Pod", "default", "a")


def test_finalizer_holds_an_object_until_it_is_removed(store: Store) -> None:
    def release(pod: dict[str, Any]) -> dict[str, Any]:
        pod["metadata"]["finalizers"] = []
        return pod

    create_pod(store, "a", metadata={"finalizers": ["batch.kubernetes.io/job-tracking"]})
    store.delete("Pod", "default", "a", actor="test", grace_period_seconds=0)
    assert store.get("Pod", "default", "a")["metadata"]["deletionTimestamp"]
    store.mutate("Pod", "default", "a", release, actor="job-controller")
    with pytest.raises(NotFound):
        store.get("Pod", "default", "a")


def test_finalizer_does_not_outlive_a_running_pods_grace(store: Store) -> None:
    def release(pod: dict[str, Any]) -> dict[str, Any]:
        pod["metadata"]["finalizers"] = []
        return pod

    create_pod(store, "a", node="n1", metadata={"finalizers": ["x/y"]})
    store.delete("Pod", "default", "a", actor="test")
    store.mutate("Pod", "default", "a", release, actor="test")
    assert store.get("Pod", "default", "a")  # its containers still run
    store.delete("Pod", "default", "a", actor="kubelet", grace_period_seconds=0)
    assert store.count("Pod") == 0


def test_owned_objects_go_with_their_owner(store: Store) -> None:
    job = store.create("Job", JOB, actor="test")
    create_pod(store, "a", metadata=owned_by(job, "Job", controller=True))
    create_pod(store, "other")
    store.delete("Job", "default", "llm", actor="test", propagation="Background")
    assert [pod["metadata"]["name"] for pod in store.list("Pod").items] == ["other"]
    assert [(r.verb, r.name) for r in store.audit if r.actor.endswith("garbage-collector")] == [
        ("delete", "a")
    ]


def test_job_deleted_without_policy_leaves_its_pods(store: Store) -> None:
    job = store.create("Job", JOB, actor="test")
    create_pod(store, "a", metadata=owned_by(job, "Job"))
    store.delete("Job", "default", "llm", actor="test")
    assert "ownerReferences" not in store.get("Pod", "default", "a")["metadata"]


def test_foreground_delete_waits_for_the_pods(store: Store) -> None:
    job = store.create("Job", JOB, actor="test")
    create_pod(store, "a", node="n1", metadata=owned_by(job, "Job", blockOwnerDeletion=True))
    store.delete("Job", "default", "llm", actor="test", propagation="Foreground")
    assert store.get("Job", "default", "llm")["metadata"]["finalizers"] == ["foregroundDeletion"]
    store.delete("Pod", "default", "a", actor="kubelet", grace_period_seconds=0)
    with pytest.raises(NotFound):
        store.get("Job", "default", "llm")


def test_object_of_two_owners_stays_with_the_other(store: Store) -> None:
    first = store.create("Job", JOB, actor="test")
    second = store.create("Job", JOB | {"metadata": {"name": "two", "namespace": "default"}}, actor="test")
    references = [owned_by(job, "Job")["ownerReferences"][0] for job in (first, second)]
    create_pod(store, "a", metadata={"ownerReferences": references})
    store.delete("Job", "default", "llm", actor="test", propagation="Background")
    left = store.get("Pod", "default", "a")["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in left] == ["two"]


def test_object_made_for_a_deleted_owner_is_collected(store: Store) -> None:
    job = store.create("Job", JOB, actor="test")
    store.delete("Job", "default", "llm", actor="test", propagation="Background")
    create_pod(store, "late", metadata=owned_by(job, "Job"))
    assert store.count("Pod") == 0


def test_namespace_goes_when_its_content_is_gone(store: Store) -> None:
    store.create("Namespace", {"metadata": {"name": "team"}}, actor="test")
    create_pod(store, "a", node="n1", metadata={"namespace": "team"})
    store.delete("Namespace", None, "team", actor="test")
    assert store.get("Namespace", None, "team")["status"] == {"phase": "Terminating"}
    with pytest.raises(Forbidden, match="because it is being terminated"):
        create_pod(store, "b", metadata={"namespace": "team"})
    store.delete("Pod", "team", "a", actor="kubelet", grace_period_seconds=0)
    with pytest.raises(NotFound):
        store.get("Namespace", None, "team")


def test_standard_namespaces_stay(store: Store) -> None:
    with pytest.raises(Forbidden, match="may not be deleted"):
        store.delete("Namespace", None, "default", actor="test")
    assert store.get("Namespace", None, "default")["status"] == {"phase": "Active"}


def test_event_that_goes_on_is_kept(store: Store, clock: Clock) -> None:
    def count(event: dict[str, Any]) -> dict[str, Any]:
        return event | {"count": 2}

    about = {"kind": "Pod", "name": "a", "namespace": "default"}
    event = {"metadata": {"name": "e", "namespace": "default"}, "involvedObject": about}
    store.create("Event", event, actor="kubelet")
    clock.now += 3000
    store.mutate("Event", "default", "e", count, actor="kubelet")
    clock.now += 3000
    assert len(store.list("Event").items) == 1
    clock.now += 601
    assert store.list("Event").items == []


def test_events_end_after_an_hour(store: Store, clock: Clock) -> None:
    def event(name: str) -> dict[str, Any]:
        about = {"kind": "Pod", "name": "a", "namespace": "default"}
        return {
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": about,
            "reason": "Started",
        }

    store.create("Event", event("old"), actor="kubelet")
    clock.now += 1800
    store.create("Event", event("new"), actor="kubelet")
    clock.now += 1801
    assert [one["metadata"]["name"] for one in store.list("Event").items] == ["new"]


# Lists


def test_pages_show_the_state_of_the_first(store: Store) -> None:
    for index in range(5):
        create_pod(store, f"p{index}")
    first = store.list("Pod", limit=2)
    assert first.remaining == 3
    store.delete("Pod", "default", "p3", actor="test")
    create_pod(store, "p2a")
    second = store.list("Pod", limit=2, continue_token=first.continue_token)
    third = store.list("Pod", limit=2, continue_token=second.continue_token)
    names = [pod["metadata"]["name"] for page in (first, second, third) for pod in page.items]
    assert names == ["p0", "p1", "p2", "p3", "p4"]
    assert first.resource_version == second.resource_version == third.resource_version
    assert third.continue_token is None


def test_token_of_compacted_list_is_gone_and_offers_a_way_on(store: Store) -> None:
    for index in range(4):
        create_pod(store, f"p{index}")
    first = store.list("Pod", limit=2)
    store.delete("Pod", "default", "p2", actor="test")
    store.compact()
    with pytest.raises(Gone) as gone:
        store.list("Pod", limit=2, continue_token=first.continue_token)
    rest = store.list("Pod", limit=2, continue_token=gone.value.continue_token)
    assert [pod["metadata"]["name"] for pod in rest.items] == ["p3"]


def test_token_ends_after_five_minutes(store: Store, clock: Clock) -> None:
    create_pod(store, "a")
    create_pod(store, "b")
    first = store.list("Pod", limit=1)
    clock.now += 301
    with pytest.raises(Gone):
        store.list("Pod", limit=1, continue_token=first.continue_token)


def test_broken_token_is_refused(store: Store) -> None:
    with pytest.raises(BadRequest, match="continue key is not valid"):
        store.list("Pod", continue_token="###")


def test_list_by_namespace_and_selectors(store: Store) -> None:
    store.create("Namespace", {"metadata": {"name": "team"}}, actor="test")
    create_pod(store, "a", node="n1", metadata={"labels": {"app": "x"}})
    create_pod(store, "b", node="n2", metadata={"labels": {"app": "x"}})
    create_pod(store, "a", metadata={"namespace": "team"})

    def names(**selection: Any) -> list[str]:
        return [f"{one.key[0]}/{one.key[1]}" for one in store.list("Pod", **selection).entries]

    assert names() == ["default/a", "default/b", "team/a"]
    assert names(namespace="default", field_selector="spec.nodeName=n1") == ["default/a"]
    assert names(label_selector="app=x") == ["default/a", "default/b"]
    assert names(field_selector="metadata.namespace=team") == ["team/a"]
    assert names(namespace="tea") == []


# Watches


def test_watch_gives_every_change_after_its_revision(store: Store) -> None:
    create_pod(store, "before")
    since = store.revision
    create_pod(store, "a")
    watch = store.watch("Pod", resource_version=since)
    store.mutate("Pod", "default", "a", annotate("1"), actor="test")
    store.delete("Pod", "default", "a", actor="test")
    events = [(event, entry.key[1], entry.revision) for event, entry in watch.take()]
    assert events == [("ADDED", "a", since + 1), ("MODIFIED", "a", since + 2), ("DELETED", "a", since + 3)]
    assert watch.bookmark() == store.revision


def test_watch_with_selector_sees_objects_come_and_go(store: Store) -> None:
    def label(value: str) -> Any:
        def change(pod: dict[str, Any]) -> dict[str, Any]:
            pod["metadata"]["labels"] = {"app": value}
            return pod

        return change

    create_pod(store, "a")
    watch = store.watch("Pod", resource_version=store.revision, label_selector="app=x")
    for value in ("x", "x", "y"):
        store.mutate("Pod", "default", "a", label(value), actor="test")
    assert [event for event, _ in watch.take()] == ["ADDED", "DELETED"]


def test_watch_from_a_compacted_revision_is_gone(store: Store) -> None:
    since = store.revision
    create_pod(store, "a")
    store.compact()
    with pytest.raises(Gone, match="too old resource version"):
        store.watch("Pod", resource_version=since)
    store.watch("Pod", resource_version=store.revision).close()


def test_history_is_bounded_per_kind() -> None:
    store = Store(history=3)
    create_pod(store, "a")
    since = store.revision
    for value in range(4):
        store.mutate("Pod", "default", "a", annotate(str(value)), actor="test")
    with pytest.raises(Gone):
        store.watch("Pod", resource_version=since)
    assert len(store.watch("Pod", resource_version=since + 1).take()) == 3


def test_watch_of_another_clusters_revision_is_gone(store: Store) -> None:
    with pytest.raises(Gone):
        store.watch("Pod", resource_version=store.revision + 1000)


def test_bookmark_never_runs_ahead_of_an_event(store: Store) -> None:
    """A bookmark between a write's revision and its event would lose that event at the next resume."""
    create_pod(store, "a")
    watch = store.watch("Pod", resource_version=store.revision)
    done = threading.Event()

    def write() -> None:
        for value in range(500):
            store.mutate("Pod", "default", "a", annotate(str(value)), actor="test")
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    bookmarked = seen = 0
    late: list[tuple[int, int]] = []
    while True:
        has_ended = done.is_set()
        events = watch.take()
        for _, entry in events:
            seen = entry.revision
            if seen <= bookmarked:
                late.append((seen, bookmarked))
        if not events:
            bookmarked = watch.bookmark() or bookmarked
            if has_ended:
                break
    thread.join()
    assert late == []
    assert seen == bookmarked == store.revision


def test_closed_watch_ends_its_iteration(store: Store) -> None:
    watch = store.watch("Pod", resource_version=store.revision)
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.extend(obj["metadata"]["name"] for _, obj, _ in watch))
    thread.start()
    create_pod(store, "a")
    assert store.close_watches() == 1
    thread.join(10)
    assert not thread.is_alive()
    assert seen == ["a"]


# Listeners


def test_listeners_hear_changes_in_order_also_those_a_listener_makes(store: Store) -> None:
    heard: list[tuple[str, str, int]] = []

    def react(change: Change) -> None:
        if change.kind == "Pod" and change.type == "ADDED":
            store.mutate("Pod", "default", change.name, annotate("seen"), actor="controller")

    store.subscribe(react)
    store.subscribe(lambda change: heard.append((change.type, change.name, change.revision)))
    create_pod(store, "a")
    since = store.revision - 1
    assert heard == [("ADDED", "a", since), ("MODIFIED", "a", since + 1)]


def test_change_carries_both_versions(store: Store) -> None:
    changes: list[Change] = []
    create_pod(store, "a")
    store.subscribe(changes.append)
    store.mutate("Pod", "default", "a", annotate("1"), actor="someone")
    assert "annotations" not in (changes[0].old or {})["metadata"]
    assert changes[0].object["metadata"]["annotations"] == {"a": "1"}
    assert changes[0].actor == "someone"


def test_every_write_is_audited_with_its_actor(store: Store) -> None:
    create_pod(store, "a", node="n1")
    last = store.audit.last
    store.mutate(
        "Pod",
        "default",
        "a",
        lambda pod: pod | {"status": {"phase": "Running"}},
        actor="kubelet",
        subresource="status",
    )
    store.delete("Pod", "default", "a", actor="desk")
    records = store.audit.since(last)
    assert [(r.actor, r.verb, r.subresource, r.name, r.status) for r in records] == [
        ("kubelet", "update", "status", "a", 200),
        ("desk", "delete", "", "a", 200),
    ]
    assert [r.n for r in records] == [last + 1, last + 2]
