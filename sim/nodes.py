"""Node objects, and the node life cycle controller: silent nodes, their taints, evictions by NoExecute."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.admission import (
    UNREACHABLE_TOLERATION_SECONDS,
    rfc3339,
    rfc3339_micro,
    seconds_of,
)
from sim.errors import ApiError, Conflict, NotFound
from sim.events import EventRecorder
from sim.kubelet.node import LEASE_NAMESPACE, healthy_conditions
from sim.store import Store, iterate
from sim.taints import seconds_tolerated
from sim.timings import Timings
from sim.watch import Change

logger = logging.getLogger(__name__)

LIFECYCLE_ACTOR = "system:serviceaccount:kube-system:node-controller"
TAINT_ACTOR = "system:serviceaccount:kube-system:taint-eviction-controller"
GARBAGE_ACTOR = "system:serviceaccount:kube-system:pod-garbage-collector"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True)
class NodeShape:
    """What a node offers. ``zone``, ``rack`` and ``pool`` become labels."""

    name: str
    number: int
    zone: str
    rack: str
    pool: str = "train"
    gpus: int = 8
    gpu_product: str = "NVIDIA-H100-80GB-HBM3"
    cpu: str = "192"
    memory: str = "2113563164Ki"
    pods: int = 110

    @property
    def address(self) -> str:
        """Internal address of the machine (never dialled)."""
        return f"10.{self.number >> 16 & 255}.{self.number >> 8 & 255}.{self.number & 255}"


def shapes(count: int, gpus: int) -> list[NodeShape]:
    """Nodes gpu-r01-01, gpu-r01-02, …: eight a rack, two racks a zone."""
    found = []
    for at in range(count):
        rack = at // 8 + 1
        found.append(
            NodeShape(
                name=f"gpu-r{rack:02d}-{at % 8 + 1:02d}",
                number=at + 1,
                zone=f"zone-{chr(ord('a') + (rack - 1) // 2 % 26)}",
                rack=f"r{rack:02d}",
                gpus=gpus,
            )
        )
    return found


def node_object(shape: NodeShape, *, cluster: str, now: float) -> dict[str, Any]:
    """A Node as a freshly registered, healthy kubelet posts it. ``cluster`` salts the machine's identity."""

    def identity(what: str) -> str:
        return str(uuid.UUID(hashlib.sha256(f"{cluster}/{shape.name}/{what}".encode()).hexdigest()[:32]))

    capacity: dict[str, str] = {
        "cpu": shape.cpu,
        "memory": shape.memory,
        "ephemeral-storage": "7440712680Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": str(shape.pods),
    }
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": shape.name,
        "node.kubernetes.io/instance-type": f"gpu-{shape.gpus}x" if shape.gpus else "cpu",
        "topology.kubernetes.io/region": "sim",
        "topology.kubernetes.io/zone": shape.zone,
        "incidentdesk.io/rack": shape.rack,
        "incidentdesk.io/pool": shape.pool,
    }
    if shape.gpus:
        capacity["nvidia.com/gpu"] = str(shape.gpus)
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(shape.gpus),
            "nvidia.com/gpu.product": shape.gpu_product,
        }
    return {
        "metadata": {
            "name": shape.name,
            "labels": labels,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": {"providerID": f"sim://{cluster}/{shape.zone}/{shape.name}"},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "addresses": [
                {"type": "InternalIP", "address": shape.address},
                {"type": "Hostname", "address": shape.name},
            ],
            "conditions": healthy_conditions([], now),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["incidentdesk/trainer:latest"], "sizeBytes": 19_327_352}],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": identity("boot 1"),
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.8.0-88-generic",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.35.0",
                "machineID": identity("machine").replace("-", ""),
                "operatingSystem": "linux",
                "osImage": "Ubuntu 24.04.3 LTS",
                "systemUUID": identity("system"),
            },
        },
    }


def lease_object(name: str, timings: Timings, now: float) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": max(round(timings.lease_duration), 1),
            "renewTime": rfc3339_micro(now),
        },
    }


class NodeLifecycle:
    """Marks silent nodes, keeps the condition taints, evicts pods that do not tolerate NoExecute."""

    def __init__(self, store: Store, events: EventRecorder, timings: Timings) -> None:
        self._store = store
        self._events = events
        self._timings = timings
        self._inbox: queue.Queue[Change | None] = queue.Queue()
        self._evict_at: dict[str, float] = {}  # pod uid -> Unix seconds
        self._tainted_since: dict[tuple[str, str], float] = {}
        self._seen_lease: dict[
            str, tuple[str, float]
        ] = {}  # node -> its newest renewal, and when it was noticed
        self._look_at = 0.0
        self._looked_at = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="sim-node-lifecycle", daemon=True)

    def tell(self, change: Change) -> None:
        """A change of a node or pod (others are ignored)."""
        if change.kind in ("Node", "Pod"):
            self._inbox.put(change)

    def stop(self) -> None:
        self._inbox.put(None)
        self.thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            due = min([self._look_at, *self._evict_at.values()])
            try:
                change = self._inbox.get(timeout=max(due - time.time(), 0.01))
                if change is None:
                    return
            except queue.Empty:
                change = None
            try:
                self._work(change)
            except Exception:  # outermost loop: one bad object must not end node care for all others
                logger.exception("node life cycle: change not handled")

    def _work(self, change: Change | None) -> None:
        if change is not None:
            (self._node_changed if change.kind == "Node" else self._pod_changed)(change)
        now = time.time()
        if now >= self._look_at:
            self._look_at = now + self._timings.lease_renew
            self._check_leases()
        self._evict_due()

    def _check_leases(self) -> None:
        """Measured on this controller's own clock since it last saw the lease move, as in Kubernetes."""
        now = time.monotonic()
        stall = max(now - self._looked_at - 2 * self._timings.lease_renew, 0.0)
        self._looked_at = now
        if stall:
            # This process itself stood still, and its kubelets with it: that time is no node's silence.
            self._seen_lease = {name: (seen, at + stall) for name, (seen, at) in self._seen_lease.items()}
        renewals = {
            lease["metadata"]["name"]: str(lease["spec"].get("renewTime"))
            for lease in iterate(self._store, "Lease", LEASE_NAMESPACE)
        }
        for node in iterate(self._store, "Node"):
            name = node["metadata"]["name"]
            renewal = renewals.get(name, "")
            seen, at = self._seen_lease.get(name, ("", now))
            if renewal != seen or name not in self._seen_lease:
                self._seen_lease[name] = (renewal, now)
                continue
            if now - at >= self._timings.node_monitor_grace:
                self._mark_unknown(node)

    def _mark_unknown(self, node: Mapping[str, Any]) -> None:
        name = node["metadata"]["name"]
        if _ready_status(node) == "Unknown":
            return
        now = rfc3339(self._store.clock())

        def change(fresh: dict[str, Any]) -> dict[str, Any]:
            for condition in fresh["status"]["conditions"]:
                if condition["status"] != "Unknown":
                    condition["lastTransitionTime"] = now
                condition["status"] = "Unknown"
                condition["reason"] = "NodeStatusUnknown"
                condition["message"] = "Kubelet stopped posting node status."
            return fresh

        try:
            self._store.mutate("Node", None, name, change, actor=LIFECYCLE_ACTOR, subresource="status")
        except NotFound:
            return
        self._events.record(
            node,
            reason="NodeNotReady",
            message=f"Node {name} status is now: NodeNotReady",
            component="node-controller",
            actor=LIFECYCLE_ACTOR,
        )
        for pod in self._pods_on(name):
            self._mark_pod_not_ready(pod)

    def _mark_pod_not_ready(self, pod: Mapping[str, Any]) -> None:
        now = rfc3339(self._store.clock())

        def change(fresh: dict[str, Any]) -> dict[str, Any] | None:
            for condition in (fresh.get("status") or {}).get("conditions") or []:
                if condition["type"] == "Ready" and condition["status"] == "True":
                    condition.update(status="False", lastTransitionTime=now)
                    return fresh
            return None

        try:
            self._store.mutate(
                "Pod",
                pod["metadata"]["namespace"],
                pod["metadata"]["name"],
                change,
                actor=LIFECYCLE_ACTOR,
                subresource="status",
                uid=pod["metadata"]["uid"],
            )
        except (NotFound, Conflict):
            return
        self._events.record(
            pod,
            reason="NodeNotReady",
            message="Node is not ready",
            component="node-controller",
            actor=LIFECYCLE_ACTOR,
            warning=True,
        )

    def _node_changed(self, change: Change) -> None:
        name = change.name
        if change.type == "DELETED":
            self._seen_lease.pop(name, None)
            for pod in self._pods_on(name):
                self._collect(pod)
            return
        try:
            self._store.mutate("Node", None, name, self._with_condition_taints, actor=LIFECYCLE_ACTOR)
            node = self._store.get("Node", None, name)
        except NotFound:
            return
        present = {taint["key"] for taint in _taints(node) if taint["effect"] == "NoExecute"}
        for key in [key for key in self._tainted_since if key[0] == name and key[1] not in present]:
            del self._tainted_since[key]
        for pod in self._pods_on(name):
            self._plan_eviction(pod, node)

    def _with_condition_taints(self, node: dict[str, Any]) -> dict[str, Any] | None:
        ready = _ready_status(node)
        wanted: dict[tuple[str, str], bool] = {
            (UNSCHEDULABLE, "NoSchedule"): bool(node["spec"].get("unschedulable")),
            (NOT_READY, "NoSchedule"): ready == "False",
            (NOT_READY, "NoExecute"): ready == "False",
            (UNREACHABLE, "NoSchedule"): ready == "Unknown",
            (UNREACHABLE, "NoExecute"): ready == "Unknown",
        }
        taints = _taints(node)
        kept = [taint for taint in taints if wanted.get((taint["key"], taint["effect"]), True)]
        have = {(taint["key"], taint["effect"]) for taint in kept}
        now = rfc3339(self._store.clock())
        for (key, effect), is_wanted in wanted.items():
            if is_wanted and (key, effect) not in have:
                taint = {"key": key, "effect": effect}
                kept.append(
                    taint if key == UNSCHEDULABLE and effect == "NoSchedule" else taint | {"timeAdded": now}
                )
        if kept == taints:
            return None
        node["spec"]["taints"] = kept
        return node

    def _pod_changed(self, change: Change) -> None:
        pod = change.object
        uid = pod["metadata"]["uid"]
        node_name = pod["spec"].get("nodeName")
        if change.type == "DELETED" or pod["metadata"].get("deletionTimestamp") or not node_name:
            self._evict_at.pop(uid, None)
            return
        try:
            node = self._store.get("Node", None, node_name)
        except NotFound:
            return
        self._plan_eviction(pod, node)

    def _plan_eviction(self, pod: Mapping[str, Any], node: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        taints = [taint for taint in _taints(node) if taint["effect"] == "NoExecute"]
        over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if not taints or over or pod["metadata"].get("deletionTimestamp"):
            self._evict_at.pop(uid, None)
            return
        seconds = seconds_tolerated(taints, [self._scaled(t) for t in pod["spec"].get("tolerations") or []])
        if seconds is None:
            self._evict_at.pop(uid, None)
            return
        since = min(self._since(node["metadata"]["name"], taint) for taint in taints)
        self._evict_at.setdefault(uid, since + seconds)
        self._evict_at[uid] = min(self._evict_at[uid], since + seconds)

    def _scaled(self, toleration: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tolerations that admission gave by default follow the table of timings; others mean what they say."""
        by_default = (
            toleration.get("key") in (NOT_READY, UNREACHABLE)
            and toleration.get("tolerationSeconds") == UNREACHABLE_TOLERATION_SECONDS
        )
        return (
            {**toleration, "tolerationSeconds": self._timings.default_toleration}
            if by_default
            else toleration
        )

    def _since(self, node_name: str, taint: Mapping[str, Any]) -> float:
        noticed = self._tainted_since.setdefault((node_name, taint["key"]), self._store.clock())
        return min(noticed, seconds_of(taint["timeAdded"])) if taint.get("timeAdded") else noticed

    def _evict_due(self) -> None:
        now = self._store.clock()
        for uid in [uid for uid, at in self._evict_at.items() if at <= now]:
            del self._evict_at[uid]
            pod = next(
                (p for p in iterate(self._store, "Pod") if p["metadata"]["uid"] == uid),
                None,
            )
            if pod is not None:
                self._evict(pod)

    def _evict(self, pod: Mapping[str, Any]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._events.record(
            pod,
            reason="TaintManagerEviction",
            message=f"Marking for deletion Pod {namespace}/{name}",
            component="taint-eviction-controller",
            actor=TAINT_ACTOR,
        )
        message = "Taint manager: deleting due to NoExecute taint"
        self._disrupt_and_delete(pod, "DeletionByTaintManager", message, TAINT_ACTOR, grace=None)

    def _collect(self, pod: Mapping[str, Any]) -> None:
        """A pod whose node is gone can never end by itself: it is deleted by force."""
        message = "PodGC: node no longer exists"
        self._disrupt_and_delete(pod, "DeletionByPodGC", message, GARBAGE_ACTOR, grace=0)

    def _disrupt_and_delete(
        self,
        pod: Mapping[str, Any],
        reason: str,
        message: str,
        actor: str,
        *,
        grace: int | None,
    ) -> None:
        namespace, name, uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
        now = rfc3339(self._store.clock())

        def disrupted(fresh: dict[str, Any]) -> dict[str, Any]:
            return with_disruption(fresh, reason=reason, message=message, now=now)

        try:
            self._store.mutate(
                "Pod",
                namespace,
                name,
                disrupted,
                actor=actor,
                subresource="status",
                uid=uid,
            )
            self._store.delete("Pod", namespace, name, actor=actor, uid=uid, grace_period_seconds=grace)
        except ApiError:
            return  # went by itself, or another took its name

    def _pods_on(self, node_name: str) -> list[dict[str, Any]]:
        return self._store.list("Pod", field_selector=f"spec.nodeName={node_name}").items


def with_disruption(pod: dict[str, Any], *, reason: str, message: str, now: str) -> dict[str, Any]:
    """The pod with the condition that tells controllers: ended by a disruption, not by its own fault."""
    conditions = (pod.setdefault("status", {})).get("conditions") or []
    others = [condition for condition in conditions if condition["type"] != "DisruptionTarget"]
    told = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    pod["status"]["conditions"] = [*others, told]
    return pod


def _taints(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((node.get("spec") or {}).get("taints") or [])


def _ready_status(node: Mapping[str, Any]) -> str:
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Ready":
            return str(condition["status"])
    return "Unknown"
