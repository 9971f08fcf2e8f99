"""A large cluster without processes: nodes, Jobs and pods from a seed, and changes at a set rate.

Shapes follow real ones: GPU nodes of two products in racks and zones, CPU nodes, training pods in Indexed Jobs,
system pods on each node, a share of Pending, Succeeded and Failed pods with the reasons that clusters show.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.admission import rfc3339
from sim.cluster import Directory
from sim.errors import NotFound
from sim.http_server import ApiServer
from sim.nodes import NodeShape, node_object
from sim.store import Store
from sim.tokens import TokenIssuer, User

ACTOR = "system:sim:large"
IMAGE = "registry.sim.invalid/train:2.9"
IMAGE_ID = f"registry.sim.invalid/train@sha256:{hashlib.sha256(IMAGE.encode()).hexdigest()}"
GPU_PRODUCTS = (("NVIDIA-H100-80GB-HBM3", 8), ("NVIDIA-A100-SXM4-80GB", 8), ("NVIDIA-L40S", 4))
CPU_NODE_SHARE = 0.1
TENANTS = ("research", "speech", "vision", "ranking", "platform", "science")
JOB_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENDED_SHARE = 0.12
PENDING_SHARE = 0.02
FAILURES = ((1, "Error"), (137, "OOMKilled"), (137, "Error"), (139, "Error"), (134, "Error"))
CHANGE_TICK_SECONDS = 0.02


class Generator:
    """Objects of a cluster, the same for the same seed and sizes (but for the clock)."""

    def __init__(self, *, nodes: int, pods: int, seed: int, now: float) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self._nodes = nodes
        self._pods = pods
        self._now = now
        self.node_names: list[str] = []

    def nodes(self) -> Iterator[dict[str, Any]]:
        for number in range(1, self._nodes + 1):
            is_cpu = self._rng.random() < CPU_NODE_SHARE
            product, gpus = GPU_PRODUCTS[self._rng.choices((0, 1, 2), (6, 3, 1))[0]]
            rack = (number - 1) // 16 + 1
            shape = NodeShape(
                name=f"{'cpu' if is_cpu else 'gpu'}-r{rack:03d}-{(number - 1) % 16 + 1:02d}",
                number=number,
                zone=f"zone-{'abc'[rack % 3]}",
                rack=f"r{rack:03d}",
                pool="system" if is_cpu else ("serve" if gpus == 4 else "train"),
                gpus=0 if is_cpu else gpus,
                gpu_product=product,
                cpu="64" if is_cpu else "192",
            )
            node = node_object(shape, cluster=f"large-{self._seed}", now=self._now)
            node["metadata"]["uid"] = self._uid()
            node["metadata"]["creationTimestamp"] = rfc3339(self._now - self._rng.uniform(1, 200) * 86400)
            if self._rng.random() < 0.004:
                node["spec"]["unschedulable"] = True
                node["spec"]["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
            self.node_names.append(shape.name)
            yield node

    def jobs_and_pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """("Job", object) before the ("Pod", object)s that it owns, until the pods are enough."""
        made = 0
        number = 0
        while made < self._pods:
            number += 1
            size = min(self._rng.choices(JOB_SIZES, (20, 15, 14, 14, 12, 10, 8, 5, 2))[0], self._pods - made)
            namespace = self._rng.choice(TENANTS)
            name = f"{self._rng.choice(('pretrain', 'finetune', 'eval', 'sweep', 'distill'))}-{number:05d}"
            created = self._now - self._rng.uniform(60, 14 * 86400)
            draw = self._rng.random()
            state = (
                "ended"
                if draw < ENDED_SHARE
                else "pending"
                if draw < ENDED_SHARE + PENDING_SHARE
                else "running"
            )
            job = self._job(namespace, name, size, created, state)
            yield "Job", job
            for pod in self._pods_of(job, created, state):
                yield "Pod", pod
            made += size

    def _uid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _job(self, namespace: str, name: str, size: int, created: float, state: str) -> dict[str, Any]:
        uid = self._uid()
        labels = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
        status: dict[str, Any] = {"startTime": rfc3339(created)}
        if state == "ended":
            status["succeeded"] = size
            done = rfc3339(self._now - 30)
            status["completionTime"] = done
            complete = {"type": "Complete", "status": "True", "reason": "CompletionsReached"}
            status["conditions"] = [complete | {"lastProbeTime": done, "lastTransitionTime": done}]
        else:
            status |= {"active": size, "ready": size if state == "running" else 0}
        return {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "creationTimestamp": rfc3339(created),
                "generation": 1,
                "labels": {"app.kubernetes.io/name": name},
                "annotations": {"incidentdesk.io/max-retry": "10"},
            },
            "spec": {
                "completions": size,
                "parallelism": size,
                "completionMode": "Indexed",
                "backoffLimit": size * 22,
                "suspend": False,
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "train", "image": IMAGE}],
                    },
                },
            },
            "status": status,
        }

    def _pods_of(self, job: dict[str, Any], created: float, state: str) -> Iterator[dict[str, Any]]:
        """The pods of one Job. What they have in common is made once and shared between them."""
        owner = job["metadata"]
        name, namespace, uid = owner["name"], owner["namespace"], owner["uid"]
        spec = _pod_spec(name, namespace, job["spec"]["completions"])
        owners = [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name,
                "uid": uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        created_at = rfc3339(created)
        statuses = _Statuses(created, self._now, self._nodes)
        for index in range(job["spec"]["completions"]):
            suffix = "".join(self._rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
            hostname = f"{name}-{index}"
            place = {} if state == "pending" else {"nodeName": self._rng.choice(self.node_names)}
            yield {
                "metadata": {
                    "name": f"{hostname}-{suffix}",
                    "generateName": f"{hostname}-",
                    "namespace": namespace,
                    "uid": self._uid(),
                    "creationTimestamp": created_at,
                    "labels": {
                        "batch.kubernetes.io/controller-uid": uid,
                        "batch.kubernetes.io/job-name": name,
                        "batch.kubernetes.io/job-completion-index": str(index),
                        "job-name": name,
                    },
                    "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                    "ownerReferences": owners,
                },
                "spec": {**spec, "hostname": hostname, **place},
                "status": statuses.draw(state, self._rng),
            }


def _pod_spec(name: str, namespace: str, world: int) -> dict[str, Any]:
    limits = {"cpu": "24", "memory": "192Gi", "nvidia.com/gpu": "1"}
    return {
        "restartPolicy": "Never",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "trainer",
        "terminationGracePeriodSeconds": 30,
        "subdomain": name,
        "priority": 0,
        "containers": [
            {
                "name": "train",
                "image": IMAGE,
                "command": ["deskagent", "-c", "torchrun --nproc-per-node 8 train.py"],
                "env": [
                    {"name": "WORLD_SIZE", "value": str(world)},
                    {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"},
                    {"name": "NCCL_DEBUG", "value": "WARN"},
                ],
                "resources": {"limits": limits, "requests": limits},
                "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
            }
        ],
        "volumes": [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": f"{namespace}-checkpoints"}}
        ],
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for key in ("not-ready", "unreachable")
        ],
    }


class _Statuses:
    """Statuses of the pods of one Job, which were all created at one time."""

    def __init__(self, created: float, now: float, nodes: int) -> None:
        self._scheduled_at = rfc3339(created + 2)
        self._started_at = rfc3339(created + 4)
        self._finished_at = rfc3339(now - 31)
        message = f"0/{nodes} nodes are available: {nodes} Insufficient nvidia.com/gpu."
        unscheduled = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        self._pending = {
            "phase": "Pending",
            "qosClass": "Guaranteed",
            "conditions": [unscheduled | {"lastProbeTime": None, "lastTransitionTime": rfc3339(created)}],
        }
        self._ready = self._conditions(is_ready=True)
        self._unready = self._conditions(is_ready=False)

    def _conditions(self, *, is_ready: bool) -> list[dict[str, Any]]:
        return [
            {
                "type": kind,
                "status": "True" if is_ready or kind in ("PodScheduled", "Initialized") else "False",
                "lastProbeTime": None,
                "lastTransitionTime": self._started_at,
            }
            for kind in (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            )
        ]

    def draw(self, state: str, rng: random.Random) -> dict[str, Any]:
        if state == "pending":
            return self._pending
        bits = rng.getrandbits(24)
        address = f"10.{bits >> 16}.{bits >> 8 & 255}.{bits & 255}"
        phase = "Running"
        container_state: dict[str, Any] = {"running": {"startedAt": self._started_at}}
        if state == "ended":
            code, reason = (0, "Completed") if rng.random() < 0.9 else rng.choice(FAILURES)
            phase = "Succeeded" if code == 0 else "Failed"
            ended: dict[str, Any] = {"exitCode": code, "reason": reason, "startedAt": self._started_at}
            container_state = {"terminated": ended | {"finishedAt": self._finished_at}}
        is_ready = phase == "Running"
        return {
            "phase": phase,
            "qosClass": "Guaranteed",
            "startTime": self._scheduled_at,
            "hostIP": address,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": self._ready if is_ready else self._unready,
            "containerStatuses": [
                {
                    "name": "train",
                    "image": IMAGE,
                    "imageID": IMAGE_ID,
                    "containerID": f"containerd://{rng.getrandbits(256):064x}",
                    "ready": is_ready,
                    "started": is_ready,
                    "restartCount": 0,
                    "state": container_state,
                    "lastState": {},
                }
            ],
        }


class LargeCluster:
    """Serves a generated cluster and changes it; no scheduler, no kubelet, nothing to clean up."""

    def __init__(
        self, directory: Path, *, port: int, nodes: int, pods: int, changes_per_second: float, seed: int
    ) -> None:
        """Raises DirectoryInUse."""
        self._directory = Directory(directory)
        self._rng = random.Random(seed)
        self.store = Store(rng=random.Random(seed), first_revision=int(time.time()))
        self.tokens = TokenIssuer()
        self._generator = Generator(nodes=nodes, pods=pods, seed=seed, now=self.store.clock())
        self._rate = changes_per_second
        self._stopping = threading.Event()
        self._changes = threading.Thread(target=self._change, name="sim-changes", daemon=True)
        self._made = 0
        self.api = ApiServer(self.store, self.tokens, port=port, extra_routes={"/sim/v1/": self._control})

    @property
    def url(self) -> str:
        return self.api.url

    def start(self) -> None:
        """Fill the store, listen, begin to change."""
        for tenant in TENANTS:
            self.store.create("Namespace", {"metadata": {"name": tenant}}, actor=ACTOR)
        self.store.load("Node", self._generator.nodes(), actor=ACTOR)
        self._load_jobs()
        self._changes.start()
        self.api.start()
        self._directory.write_private("kubeconfig", self.api.kubeconfig())
        endpoint = {
            "url": self.api.url,
            "admin_token": self.tokens.admin_token,
            "pid": os.getpid(),
            "desk_url": None,
        }
        self._directory.write_private("endpoint.json", json.dumps(endpoint, indent=1) + "\n")

    def stop(self) -> None:
        self.api.stop()
        self._stopping.set()
        self._changes.join(timeout=10)
        self._directory.release()

    def _load_jobs(self) -> None:
        batch: list[dict[str, Any]] = []
        for kind, one in self._generator.jobs_and_pods():
            if kind == "Job":
                self.store.load("Pod", batch, actor=ACTOR)
                batch = []
                self.store.load("Job", [one], actor=ACTOR)
            else:
                batch.append(one)
        self.store.load("Pod", batch, actor=ACTOR)
        self._pod_keys = [entry.key for entry in self.store.list("Pod").entries]

    def _change(self) -> None:
        """Keep the mean rate: each tick makes what is owed by the clock, so a slow tick is made up for."""
        began = time.monotonic()
        while not self._stopping.wait(CHANGE_TICK_SECONDS):
            owed = int((time.monotonic() - began) * self._rate) - self._made
            for _ in range(owed):
                self._made += 1
                try:
                    self._change_one()
                except NotFound:
                    continue

    def _change_one(self) -> None:
        now = rfc3339(self.store.clock())
        if self._rng.random() < 0.3 and self._generator.node_names:
            name = self._rng.choice(self._generator.node_names)
            self.store.mutate(
                "Node",
                None,
                name,
                lambda node: _heartbeat(node, now),
                actor=f"system:node:{name}",
                subresource="status",
            )
        elif self._pod_keys:
            namespace, name = self._rng.choice(self._pod_keys)
            self.store.mutate(
                "Pod", namespace, name, lambda pod: _flip(pod, now), actor=ACTOR, subresource="status"
            )

    def _control(
        self, method: str, path: str, query: dict[str, str], body: Any, user: User
    ) -> tuple[int, Any]:
        if (method, path) == ("GET", "/sim/v1/changes"):
            return 200, {"made": self._made, "per_second": self._rate}
        return 404, {
            "code": "not-found",
            "detail": "a large cluster runs no processes: there is nothing to break",
        }


def _heartbeat(node: dict[str, Any], now: str) -> dict[str, Any]:
    for condition in node["status"]["conditions"]:
        condition["lastHeartbeatTime"] = now
    return node


def _flip(pod: dict[str, Any], now: str) -> dict[str, Any]:
    """A running pod's readiness changes; any other's newest condition is touched."""
    conditions = pod["status"]["conditions"]
    for condition in conditions:
        if condition["type"] in ("Ready", "ContainersReady") and pod["status"]["phase"] == "Running":
            condition["status"] = "False" if condition["status"] == "True" else "True"
            condition["lastTransitionTime"] = now
            condition["lastProbeTime"] = now
    conditions[-1]["lastProbeTime"] = now
    return pod
