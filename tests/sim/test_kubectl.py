"""What kubectl does against the simulated API server, command by command."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.discovery import VERSION
from sim.watch import Change
from tests.sim.apiserver import Api, make_budget, make_pod, make_ready, serve

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")

LABELS = {"app": "train"}
Kubectl = Callable[..., str]


@pytest.fixture
def api() -> Iterator[Api]:
    with serve() as served:
        for name in ("n1", "n2"):
            node = {
                "metadata": {"name": name},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
            served.store.create("Node", node, actor="kubelet")
        yield served


@pytest.fixture
def environment(api: Api, tmp_path: Path) -> dict[str, str]:
    config = tmp_path / "kubeconfig"
    config.write_text(api.server.kubeconfig())
    return os.environ | {"KUBECONFIG": str(config), "HOME": str(tmp_path)}


@pytest.fixture
def kubectl(environment: dict[str, str]) -> Kubectl:
    """Runs kubectl, gives stdout and stderr together; `code` is the exit code that is expected."""

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> str:
        ended = subprocess.run(
            [str(KUBECTL), *arguments],
            env=environment,
            input=stdin,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        assert ended.returncode == code, ended.stdout
        return ended.stdout

    return run


def add_pod(api: Api, name: str, node: str = "n1", **changes: Any) -> None:
    """A ready pod on a node."""
    changes.setdefault("metadata", {"labels": LABELS})
    api.store.create("Pod", make_pod(name, node=node, **changes), actor="test")
    make_ready(api.store, name)


def end_pods(api: Api) -> None:
    """Stand for the kubelets: a pod that is to go has ended."""

    def listen(change: Change) -> None:
        if (
            change.kind == "Pod"
            and change.type == "MODIFIED"
            and change.object["metadata"].get("deletionTimestamp")
        ):
            api.store.delete("Pod", change.namespace, change.name, actor="kubelet", grace_period_seconds=0)

    api.store.subscribe(listen)


def names(api: Api, kind: str = "Pod") -> list[str]:
    return [entry.key[1] for entry in api.store.list(kind, "default").entries]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_api_resources_and_version(kubectl: Kubectl) -> None:
    kinds = {row[-1] for row in rows(kubectl("api-resources"))}
    assert {"Node", "Pod", "Job", "Lease", "PodDisruptionBudget", "Event", "Namespace"} <= kinds
    assert f"Server Version: {VERSION['gitVersion']}" in kubectl("version")


def test_get_with_columns_and_selectors(api: Api, kubectl: Kubectl) -> None:
    add_pod(api, "a", "n1")
    add_pod(api, "b", "n2", metadata={"labels": {"app": "other"}})
    assert rows(kubectl("get", "nodes", "-o", "wide"))[1][:2] == ["n1", "Ready"]
    wide = rows(kubectl("get", "pods", "-o", "wide"))
    assert wide[0][:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row[0] for row in wide[1:]] == ["a", "b"]
    assert rows(kubectl("get", "po", "-l", "app=train", "--no-headers"))[0][0] == "a"
    on_n2 = kubectl(
        "get", "pods", "-A", "--field-selector", "spec.nodeName=n2,status.phase=Running", "-o", "name"
    )
    assert on_n2 == "pod/b\n"
    assert kubectl("get", "pod", "a", "-o", "jsonpath={.spec.nodeName}") == "n1"
    assert "not found" in kubectl("get", "pod", "missing", code=1)
    assert [row[0] for row in rows(kubectl("get", "pods", "--chunk-size=1", "--no-headers"))] == ["a", "b"]


def test_describe_shows_pods_of_a_node_and_events_of_a_pod(api: Api, kubectl: Kubectl) -> None:
    add_pod(api, "a")
    pod = api.store.get("Pod", "default", "a")
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "a"}
    about["uid"] = pod["metadata"]["uid"]
    event = {
        "involvedObject": about,
        "type": "Warning",
        "reason": "BackOff",
        "message": "Back-off restarting",
        "count": 3,
    }
    api.store.create("Event", {"metadata": {"name": "e", "namespace": "default"}} | event, actor="kubelet")
    node = kubectl("describe", "node", "n1")
    assert "Non-terminated Pods:          (1 in total)" in node
    shown = kubectl("describe", "pod", "a")
    assert "BackOff" in shown
    assert "Back-off restarting" in shown
    assert "BackOff" in kubectl("events", "--for", "pod/a")
    assert "BackOff" in kubectl("get", "events")


def test_cordon_and_uncordon(api: Api, kubectl: Kubectl) -> None:
    assert "node/n1 cordoned" in kubectl("cordon", "n1")
    assert api.store.get("Node", None, "n1")["spec"]["unschedulable"] is True
    assert "SchedulingDisabled" in kubectl("get", "node", "n1")
    assert "node/n1 uncordoned" in kubectl("uncordon", "n1")
    assert "unschedulable" not in api.store.get("Node", None, "n1")["spec"]
    assert {record.actor for record in api.store.audit if record.verb == "patch"} == {"kubernetes-admin"}


def test_taint_adds_changes_and_removes(api: Api, kubectl: Kubectl) -> None:
    def taints() -> list[tuple[str, str, str]]:
        found = api.store.get("Node", None, "n1")["spec"].get("taints", [])
        return [(one["key"], one.get("value", ""), one["effect"]) for one in found]

    kubectl("taint", "nodes", "n1", "incidentdesk.io/bad=xid:NoSchedule")
    kubectl("taint", "nodes", "n1", "incidentdesk.io/bad=xid:NoExecute")
    assert sorted(taints()) == [
        ("incidentdesk.io/bad", "xid", "NoExecute"),
        ("incidentdesk.io/bad", "xid", "NoSchedule"),
    ]
    kubectl("taint", "nodes", "n1", "incidentdesk.io/bad=ecc:NoSchedule", "--overwrite")
    assert ("incidentdesk.io/bad", "ecc", "NoSchedule") in taints()
    kubectl("taint", "nodes", "n1", "incidentdesk.io/bad:NoSchedule-")
    assert taints() == [("incidentdesk.io/bad", "xid", "NoExecute")]
    kubectl("taint", "nodes", "n1", "incidentdesk.io/bad-")
    assert taints() == []


def test_drain_waits_for_the_budget_then_goes(api: Api, kubectl: Kubectl) -> None:
    add_pod(api, "a", "n1")
    add_pod(api, "b", "n2")
    end_pods(api)
    api.store.create("PodDisruptionBudget", make_budget("train-pdb", LABELS, minAvailable=2), actor="test")
    refused = kubectl("drain", "n1", "--force", "--timeout=3s", code=1)
    assert "Cannot evict pod as it would violate the pod's disruption budget" in refused
    assert names(api) == ["a", "b"]
    assert next(record.status for record in api.store.audit if record.verb == "evict") == 429
    kubectl("patch", "pdb", "train-pdb", "--type", "merge", "-p", '{"spec":{"minAvailable":1}}')
    assert "node/n1 drained" in kubectl("drain", "n1", "--force", "--timeout=30s")
    assert names(api) == ["b"]
    assert api.store.get("Node", None, "n1")["spec"]["unschedulable"] is True


def test_drain_leaves_a_daemonsets_pods(api: Api, kubectl: Kubectl) -> None:
    made = api.store.create(
        "DaemonSet", {"metadata": {"name": "ds", "namespace": "default"}, "spec": {}}, actor="test"
    )
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "controller": True}
    owner["uid"] = made["metadata"]["uid"]
    add_pod(api, "agent", metadata={"ownerReferences": [owner]})
    assert "cannot delete DaemonSet-managed Pods" in kubectl("drain", "n1", code=1)
    kubectl("drain", "n1", "--ignore-daemonsets")
    assert names(api) == ["agent"]


def test_delete_with_grace_and_by_force(api: Api, kubectl: Kubectl) -> None:
    add_pod(api, "a")
    kubectl("delete", "pod", "a", "--grace-period=9", "--wait=false")
    assert api.store.get("Pod", "default", "a")["metadata"]["deletionGracePeriodSeconds"] == 9
    assert "Terminating" in kubectl("get", "pod", "a")
    kubectl("delete", "pod", "a", "--grace-period=0", "--force")
    assert names(api) == []
    add_pod(api, "b")
    end_pods(api)
    assert 'pod "b" deleted' in kubectl("delete", "pod", "b")  # waits until it is gone
    assert names(api) == []


def test_delete_job_takes_its_pods(api: Api, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=JOB)
    job = api.store.get("Job", "default", "llm")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "uid": job["metadata"]["uid"]}
    api.store.create("Pod", make_pod("llm-0", metadata={"ownerReferences": [owner]}), actor="job-controller")
    kubectl("delete", "job", "llm")
    assert names(api) == []
    assert names(api, "Job") == []


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: llm, namespace: default, annotations: {incidentdesk.io/protect: "true"}}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}]}
  template:
    spec:
      restartPolicy: Never
      containers: [{name: train, image: incidentdesk/trainer, command: [deskagent, -c, "true"]}]
"""
CONFIG = (
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: incidentdesk, namespace: default}\ndata: {url: %s}\n"
)


def test_apply_creates_changes_and_leaves_alone(api: Api, kubectl: Kubectl) -> None:
    assert "job.batch/llm created" in kubectl("apply", "-f", "-", stdin=JOB)
    assert "job.batch/llm unchanged" in kubectl("apply", "-f", "-", stdin=JOB)
    changed = JOB.replace('protect: "true"', 'protect: "false"')
    assert "job.batch/llm configured" in kubectl("apply", "-f", "-", stdin=changed)
    job = api.store.get("Job", "default", "llm")
    assert job["metadata"]["annotations"]["incidentdesk.io/protect"] == "false"
    refused = kubectl("apply", "-f", "-", stdin=JOB.replace("incidentdesk/trainer", "other"), code=1)
    assert "field is immutable" in refused


def test_apply_on_the_server_tells_who_owns_a_field(api: Api, kubectl: Kubectl) -> None:
    server = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kubectl(*server, "--field-manager=one", stdin=CONFIG % "http://a")
    refused = kubectl(*server, "--field-manager=two", stdin=CONFIG % "http://b", code=1)
    assert 'conflict with "one"' in refused
    assert ".data.url" in refused
    kubectl(*server, "--field-manager=two", "--force-conflicts", stdin=CONFIG % "http://b")
    assert api.store.get("ConfigMap", "default", "incidentdesk")["data"] == {"url": "http://b"}


def test_apply_on_the_server_takes_over_from_a_client_side_apply(api: Api, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=CONFIG % "http://a")
    kubectl("apply", "--server-side", "-f", "-", stdin=CONFIG % "http://b")
    assert api.store.get("ConfigMap", "default", "incidentdesk")["data"] == {"url": "http://b"}


def test_apply_with_dry_run_on_the_server_stores_nothing(api: Api, kubectl: Kubectl) -> None:
    assert "(server dry run)" in kubectl("apply", "--dry-run=server", "-f", "-", stdin=JOB)
    assert names(api, "Job") == []


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("json", '[{"op":"add","path":"/metadata/labels/x","value":"1"}]'),
        ("merge", '{"metadata":{"labels":{"x":"1"}}}'),
        ("strategic", '{"metadata":{"labels":{"x":"1"}}}'),
    ],
)
def test_patch(api: Api, kubectl: Kubectl, kind: str, patch: str) -> None:
    add_pod(api, "a")
    assert "pod/a patched" in kubectl("patch", "pod", "a", "--type", kind, "-p", patch)
    assert api.store.get("Pod", "default", "a")["metadata"]["labels"] == {"app": "train", "x": "1"}


def test_patch_of_status_and_suspend(api: Api, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=JOB)
    kubectl("patch", "job", "llm", "-p", '{"spec":{"suspend":true}}')
    assert api.store.get("Job", "default", "llm")["spec"]["suspend"] is True
    condition = '{"status":{"conditions":[{"type":"Disk","status":"True"}]}}'
    kubectl("patch", "node", "n1", "--subresource=status", "-p", condition)
    assert len(api.store.get("Node", None, "n1")["status"]["conditions"]) == 2


def test_annotate_and_label(api: Api, kubectl: Kubectl) -> None:
    kubectl("annotate", "node", "n1", "incidentdesk.io/note=bad dimm")
    kubectl("label", "node", "n1", "rack=r1")
    assert "already has a value" in kubectl("label", "node", "n1", "rack=r2", code=1)
    kubectl("label", "node", "n1", "rack=r2", "--overwrite")
    meta = api.store.get("Node", None, "n1")["metadata"]
    assert (meta["annotations"]["incidentdesk.io/note"], meta["labels"]["rack"]) == ("bad dimm", "r2")
    kubectl("annotate", "node", "n1", "incidentdesk.io/note-")
    assert "incidentdesk.io/note" not in api.store.get("Node", None, "n1")["metadata"].get("annotations", {})


def test_get_watch_prints_changes(api: Api, environment: dict[str, str]) -> None:
    add_pod(api, "a")
    command = [str(KUBECTL), "get", "pods", "--watch", "--no-headers"]
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        guard = threading.Timer(30, watching.kill)
        guard.start()
        assert watching.stdout.readline().split()[0] == "a"
        add_pod(api, "b")
        assert watching.stdout.readline().split()[:3] == ["b", "0/1", "Pending"]
        assert watching.stdout.readline().split()[:3] == ["b", "0/1", "Running"]
        guard.cancel()
        watching.terminate()


def test_wait_returns_when_the_condition_holds(api: Api, kubectl: Kubectl) -> None:
    api.store.create("Pod", make_pod("a", node="n1"), actor="test")
    timer = threading.Timer(0.5, make_ready, (api.store, "a"))
    timer.start()
    assert "condition met" in kubectl("wait", "pod/a", "--for=condition=Ready", "--timeout=20s")
    timer.join()
    timer = threading.Timer(
        0.5, api.store.delete, ("Pod", "default", "a"), {"actor": "test", "grace_period_seconds": 0}
    )
    timer.start()
    kubectl("wait", "pod/a", "--for=delete", "--timeout=20s")
    timer.join()
    assert "timed out" in kubectl("wait", "node/n1", "--for=condition=Broken", "--timeout=1s", code=1)


def test_create_token_and_ask_who_i_am(kubectl: Kubectl) -> None:
    assert kubectl("create", "token", "default", "--audience", "incidentdesk").count(".") == 2
    assert "kubernetes-admin" in kubectl("auth", "whoami")
    assert kubectl("auth", "can-i", "delete", "pods") == "yes\n"


def test_small_objects_are_created_by_command(api: Api, kubectl: Kubectl) -> None:
    """Newer kubectls send these as protobuf."""
    kubectl("create", "configmap", "c", "--from-literal=url=http://a")
    kubectl("create", "secret", "generic", "s", "--from-literal=key=value")
    kubectl("create", "serviceaccount", "trainer")
    kubectl("create", "poddisruptionbudget", "b", "--selector=app=train", "--min-available=50%")
    assert api.store.get("ConfigMap", "default", "c")["data"] == {"url": "http://a"}
    assert api.store.get("Secret", "default", "s")["data"] == {"key": "dmFsdWU="}
    assert names(api, "ServiceAccount") == ["default", "trainer"]
    spec = api.store.get("PodDisruptionBudget", "default", "b")["spec"]
    assert (spec["minAvailable"], spec["selector"]) == ("50%", {"matchLabels": {"app": "train"}})


def test_namespaces_come_and_go(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "team")
    kubectl("-n", "team", "create", "configmap", "c", "--from-literal=a=1")
    assert "deleted" in kubectl("delete", "namespace", "team", "--timeout=20s")
    assert "NotFound" in kubectl("get", "namespace", "team", code=1)
