"""The kubelet of one node: its pods, its lease, its status."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.admission import rfc3339, rfc3339_micro
from sim.errors import ApiError, NotFound
from sim.events import EventRecorder
from sim.kubelet.pod import PodProcesses, PodWorker
from sim.network import AddressPool, HostsFiles, Network
from sim.store import Store
from sim.timings import Timings
from sim.tokens import DEFAULT_AUDIENCE, TokenIssuer
from sim.watch import Change

LEASE_NAMESPACE = "kube-node-lease"
CONTAINER_LOG_BYTES = 10 * 1024 * 1024  # kubelet: containerLogMaxSize


@dataclass(frozen=True)
class Place:
    """Where pods live on this machine. ``agent`` is the worker agent's zipapp, or None."""

    root: Path
    agent: Path | None
    python_path: Path
    network: Network
    addresses: AddressPool
    hosts: HostsFiles

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"


class StoreSources:
    """ConfigMaps and secrets from the store, tokens from the cluster's issuer."""

    def __init__(self, store: Store, tokens: TokenIssuer) -> None:
        self._store = store
        self._tokens = tokens

    def config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._get("ConfigMap", namespace, name)

    def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._get("Secret", namespace, name)

    def token(self, pod: Mapping[str, Any], audience: str | None, expires_seconds: int) -> str:
        namespace = pod["metadata"]["namespace"]
        name = pod["spec"].get("serviceAccountName") or "default"
        account = self._get("ServiceAccount", namespace, name)
        node = self._get("Node", None, pod["spec"]["nodeName"])
        return self._tokens.issue(
            f"system:serviceaccount:{namespace}:{name}",
            audience or DEFAULT_AUDIENCE,
            pod=dict(pod),
            expires_seconds=expires_seconds,
            account_uid=account["metadata"]["uid"] if account else "",
            node={"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]} if node else None,
        )

    def _get(self, kind: str, namespace: str | None, name: str) -> Mapping[str, Any] | None:
        try:
            return self._store.get(kind, namespace, name)
        except NotFound:
            return None


class Kubelet:
    """Runs the pods that are bound to its node and tells the API about them and about the node."""

    def __init__(
        self,
        *,
        node_name: str,
        number: int,
        host_address: str,
        store: Store,
        events: EventRecorder,
        timings: Timings,
        place: Place,
        sources: StoreSources,
    ) -> None:
        self.node_name = node_name
        self.number = number
        self.host_address = host_address
        self.store = store
        self.events = events
        self.timings = timings
        self.place = place
        self.sources = sources
        self.actor = f"system:node:{node_name}"
        self.clock: Callable[[], float] = store.clock
        self.log_bytes = CONTAINER_LOG_BYTES
        self._lock = threading.Lock()
        self._workers: dict[str, PodWorker] = {}
        self._status_due = 0.0
        self._api = threading.Lock()  # held by a heartbeat, and while silence begins or ends
        self._is_silent = False
        self._unseen: list[Change] = []

    @property
    def is_silent(self) -> bool:
        return self._is_silent

    def fall_silent(self) -> None:
        """From now on neither hear nor tell the API server anything; the pods that run, run on."""
        with self._api:
            self._is_silent = True

    def speak(self) -> None:
        """Catch up on what changed meanwhile, and report again."""
        with self._api:
            self._is_silent = False
            unseen, self._unseen = self._unseen, []
            for change in unseen:
                self._follow(change)
        for worker in self.workers():
            worker.report()

    def pod_changed(self, change: Change) -> None:
        """Follow one change of a pod on this node, in the order of the store."""
        with self._api:
            if self._is_silent:
                self._unseen.append(change)
            else:
                self._follow(change)

    def _follow(self, change: Change) -> None:
        pod = change.object
        uid = str(pod["metadata"]["uid"])
        with self._lock:
            worker = self._workers.get(uid)
            if worker is None:
                if change.type == "DELETED" or is_over(pod):
                    return
                worker = self._workers[uid] = PodWorker(self, pod)
                worker.thread.start()
                return
        if change.type == "DELETED":
            worker.gone()
        elif change.actor != self.actor:
            worker.changed(pod)

    def forget(self, worker: PodWorker) -> None:
        with self._lock:
            self._workers.pop(worker.uid, None)

    def worker(self, uid: str) -> PodWorker | None:
        with self._lock:
            return self._workers.get(uid)

    def workers(self) -> list[PodWorker]:
        with self._lock:
            return list(self._workers.values())

    def processes(self) -> list[PodProcesses]:
        return [each for worker in self.workers() for each in worker.processes()]

    def network_address(self) -> str:
        """A pod address on this node."""
        return self.place.addresses.take(self.number)

    def env_from(self, namespace: str, source: Mapping[str, Any]) -> dict[str, str]:
        """Values of a configMapRef or secretRef; empty when it does not exist."""
        if "configMapRef" in source:
            found = self.sources.config_map(namespace, source["configMapRef"]["name"]) or {}
            return {key: str(value) for key, value in (found.get("data") or {}).items()}
        if "secretRef" in source:
            found = self.sources.secret(namespace, source["secretRef"]["name"]) or {}
            return {
                key: base64.b64decode(value).decode(errors="replace")
                for key, value in (found.get("data") or {}).items()
            }
        return {}

    def beat(self) -> None:
        """Renew the lease; report the node's status when it is due or does not say Ready."""
        with self._api:
            if not self._is_silent:
                self._beat()

    def _beat(self) -> None:
        now = self.clock()
        try:
            self.store.mutate(
                "Lease",
                LEASE_NAMESPACE,
                self.node_name,
                lambda lease: _renewed(lease, now),
                actor=self.actor,
            )
            node = self.store.get("Node", None, self.node_name)
        except ApiError:
            return  # the Node object was deleted: a real kubelet registers again only when it restarts
        is_ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in (node.get("status") or {}).get("conditions") or []
        )
        if now >= self._status_due or not is_ready:
            self._status_due = now + self.timings.node_status_update
            self.store.mutate(
                "Node",
                None,
                self.node_name,
                lambda node: _healthy(node, now),
                actor=self.actor,
                subresource="status",
            )

    def shut_down(self) -> None:
        """Kill every process of every pod and wait until none is left."""
        workers = self.workers()
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.thread.join(timeout=30)


HEALTHY_CONDITIONS = (
    (
        "MemoryPressure",
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    (
        "DiskPressure",
        "False",
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
    ),
    (
        "PIDPressure",
        "False",
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
    ),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def healthy_conditions(present: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """The node's conditions with the kubelet's four set to healthy; others' are kept."""
    before = {condition["type"]: condition for condition in present}
    own = {kind for kind, *_ in HEALTHY_CONDITIONS}
    found = [condition for condition in present if condition["type"] not in own]
    for kind, status, reason, message in HEALTHY_CONDITIONS:
        old = before.get(kind, {})
        same = old.get("status") == status
        found.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": rfc3339(now),
                "lastTransitionTime": old["lastTransitionTime"] if same else rfc3339(now),
            }
        )
    return found


def _healthy(node: dict[str, Any], now: float) -> dict[str, Any]:
    status = node.setdefault("status", {})
    status["conditions"] = healthy_conditions(status.get("conditions") or [], now)
    return node


def _renewed(lease: dict[str, Any], now: float) -> dict[str, Any]:
    lease["spec"]["renewTime"] = rfc3339_micro(now)
    return lease


def is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
