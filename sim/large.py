"""A large cluster without processes: nodes, Jobs and pods from a seed, and changes at a set rate.

Shapes follow real ones: GPU nodes of two products in racks and zones, CPU nodes, training pods in Indexed Jobs,
system pods on each node, a share of Pending, Succeeded and Failed pods with the reasons that clusters show.
"""

from __future__ import annotations

import json
import logging
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

logger = logging.getLogger(__name__)

ACTOR = "system:sim:large"
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
            for index in range(size):
                yield "Pod", self._pod(job, index, created, state)
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
                        "containers": [{"name": "train", "image": "registry.sim.invalid/train:2.9"}],
                    },
                },
            },
            "status": status,
        }

    def _pod(self, job: dict[str, Any], index: int, created: float, state: str) -> dict[str, Any]:
        owner = job["metadata"]
        suffix = "".join(self._rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
        node = "" if state == "pending" else self._rng.choice(self.node_names)
        limits = {"cpu": "24", "memory": "192Gi", "nvidia.com/gpu": "1"}
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "trainer",
            "terminationGracePeriodSeconds": 30,
            "hostname": f"{owner['name']}-{index}",
            "subdomain": owner["name"],
            "priority": 0,
            "containers": [
                {
                    "name": "train",
                    "image": "registry.sim.invalid/train:2.9",
                    "command": ["deskagent", "-c", "torchrun --nproc-per-node 8 train.py"],
                    "env": [
                        {"name": "WORLD_SIZE", "value": str(job["spec"]["completions"])},
                        {"name": "MASTER_ADDR", "value": f"{owner['name']}-0.{owner['name']}"},
                        {"name": "NCCL_DEBUG", "value": "WARN"},
                    ],
                    "resources": {"limits": limits, "requests": limits},
                    "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
                }
            ],
            "volumes": [
                {
                    "name": "checkpoints",
                    "persistentVolumeClaim": {"claimName": f"{owner['namespace']}-checkpoints"},
                }
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
        if node:
            spec["nodeName"] = node
        return {
            "metadata": {
                "name": f"{owner['name']}-{index}-{suffix}",
                "generateName": f"{owner['name']}-{index}-",
                "namespace": owner["namespace"],
                "uid": self._uid(),
                "creationTimestamp": rfc3339(created),
                "labels": {
                    "batch.kubernetes.io/controller-uid": owner["uid"],
                    "batch.kubernetes.io/job-name": owner["name"],
                    "batch.kubernetes.io/job-completion-index": str(index),
                    "job-name": owner["name"],
                },
                "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "name": owner["name"],
                        "uid": owner["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": spec,
            "status": self._pod_status(created, state, f"{owner['name']}-{index}"),
        }

    def _pod_status(self, created: float, state: str, hostname: str) -> dict[str, Any]:
        if state == "pending":
            message = f"0/{self._nodes} nodes are available: {self._nodes} Insufficient nvidia.com/gpu."
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
            }
            return {
                "phase": "Pending",
                "qosClass": "Guaranteed",
                "conditions": [condition | {"lastProbeTime": None, "lastTransitionTime": rfc3339(created)}],
            }
        started = rfc3339(created + 4)
        address = ".".join(("10", *(str(self._rng.randrange(1, 255)) for _ in range(3))))
        running: dict[str, Any] = {"running": {"startedAt": started}}
        phase, ready = "Running", True
        if state == "ended":
            code, reason = (0, "Completed") if self._rng.random() < 0.9 else self._rng.choice(FAILURES)
            phase, ready = ("Succeeded" if code == 0 else "Failed"), False
            finished = rfc3339(self._now - 31)
            running = {
                "terminated": {
                    "exitCode": code,
                    "reason": reason,
                    "startedAt": started,
                    "finishedAt": finished,
                }
            }
        conditions = [
            {
                "type": kind,
                "status": "True" if ready or kind in ("PodScheduled", "Initialized") else "False",
                "lastProbeTime": None,
                "lastTransitionTime": started,
            }
            for kind in (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            )
        ]
        return {
            "phase": phase,
            "qosClass": "Guaranteed",
            "startTime": rfc3339(created + 2),
            "hostIP": address,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": "train",
                    "image": "registry.sim.invalid/train:2.9",
                    "imageID": f"registry.sim.invalid/train@sha256:{self._rng.getrandbits(256):064x}",
                    "containerID": f"containerd://{self._rng.getrandbits(256):064x}",
                    "ready": ready,
                    "started": ready,
                    "restartCount": 0,
                    "state": running,
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
