"""The simulated cluster put together: API server, controllers, kubelets, control API."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import random
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sim.control import Control
from sim.errors import NotFound
from sim.events import EventRecorder
from sim.http_server import ApiServer
from sim.job_controller import JobController
from sim.kubelet.node import Kubelet, Place, StoreSources
from sim.kubelet.pod import PodWorker
from sim.network import AddressPool, HostsFiles, Network
from sim.nodes import NodeLifecycle, NodeShape, lease_object, node_object, shapes
from sim.scheduler import Scheduler
from sim.store import Store
from sim.timings import Timings
from sim.tokens import TokenIssuer
from sim.watch import Change

logger = logging.getLogger(__name__)

CHECKOUT = Path(__file__).resolve().parent.parent


class DirectoryInUse(Exception):
    """Another simulated cluster runs in the directory."""


@dataclass(frozen=True)
class Settings:
    """What `serve` is told. ``agent`` is the worker agent's zipapp; without it jobs run their trainer as it is."""

    directory: Path
    timings: Timings
    port: int = 0
    nodes: int = 4
    gpus: int = 8
    agent: Path | None = None
    desk_url: str | None = None
    seed: int | None = None
    publishes_keys: bool = True


class Directory:
    """The cluster's place on disk, held by one cluster at a time and emptied at its start.

    State lives in memory, so what an earlier cluster left here (pods, host paths) belongs to nobody.
    """

    def __init__(self, root: Path) -> None:
        """Raises DirectoryInUse."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self._lock: TextIO = (self.root / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise DirectoryInUse(f"another simulated cluster runs in {self.root}") from None
        (self.root / "endpoint.json").unlink(missing_ok=True)
        (self.root / "kubeconfig").unlink(missing_ok=True)
        for name in ("pods", "tmp", "hosts", "hostpaths", "claims"):
            shutil.rmtree(self.root / name, ignore_errors=True)

    def write_private(self, name: str, text: str) -> None:
        """A file that holds a credential: whole at once, for the owner only."""
        path = self.root / name
        temporary = path.with_name(f".{name}.tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.rename(path)

    def release(self) -> None:
        """Remove what only a running cluster has; host paths stay to be looked at."""
        for name in ("endpoint.json", "kubeconfig"):
            (self.root / name).unlink(missing_ok=True)
        for name in ("pods", "tmp", "hosts"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        self._lock.close()


class Cluster:
    """A running cluster. Nothing runs before `start`; `stop` ends every process it started."""

    def __init__(self, settings: Settings) -> None:
        """Raises DirectoryInUse, ValueError (desk URL), AddressesExhausted."""
        self.settings = settings
        self.agent = settings.agent.resolve() if settings.agent else None
        self.directory = Directory(settings.directory)
        rng = random.Random(settings.seed) if settings.seed is not None else None
        self.store = Store(rng=rng, first_revision=int(time.time()))
        self.tokens = TokenIssuer()
        self.events = EventRecorder(self.store)
        self.network = Network(settings.desk_url)
        self._addresses = AddressPool()
        self._place = Place(
            root=self.directory.root,
            agent=self.agent,
            python_path=CHECKOUT,
            network=self.network,
            addresses=self._addresses,
            hosts=HostsFiles(self.directory.root / "hosts"),
        )
        self.scheduler = Scheduler(self.store, self.events)
        self.jobs = JobController(self.store, self.events, settings.timings)
        self.lifecycle = NodeLifecycle(self.store, self.events, settings.timings)
        self.kubelets: dict[str, Kubelet] = {}
        self._sources = StoreSources(self.store, self.tokens)
        self._pod_changes: queue.Queue[Change | None] = queue.Queue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow_pods, name="sim-kubelets", daemon=True),
            threading.Thread(target=self._beat, name="sim-heartbeats", daemon=True),
        ]
        self.api = ApiServer(
            self.store,
            self.tokens,
            port=settings.port,
            extra_routes={"/sim/v1/": Control(self).handle},
            log_source=self._log_of,
            publishes_keys=settings.publishes_keys,
        )

    @property
    def url(self) -> str:
        return self.api.url

    def start(self) -> None:
        """Register the nodes, start the controllers, listen; then DIR has kubeconfig and endpoint.json."""
        uid = self.store.get("Namespace", None, "kube-system")["metadata"]["uid"]
        for shape in shapes(self.settings.nodes, self.settings.gpus):
            self._register(shape, cluster=uid)
        self.store.subscribe(self._tell)
        for thread in (self.scheduler.thread, self.jobs.thread, self.lifecycle.thread, *self._threads):
            thread.start()
        self.api.start()
        self.directory.write_private("kubeconfig", self.api.kubeconfig())
        endpoint = {
            "url": self.api.url,
            "admin_token": self.tokens.admin_token,
            "pid": os.getpid(),
            "desk_url": self.settings.desk_url,
        }
        self.directory.write_private("endpoint.json", json.dumps(endpoint, indent=1) + "\n")

    def stop(self) -> None:
        """Take no more requests, end every container, leave nothing behind."""
        self.api.stop()
        self._stopping.set()
        self.jobs.stop()
        self.scheduler.stop()
        self.lifecycle.stop()
        self._pod_changes.put(None)
        for thread in self._threads:
            thread.join(timeout=10)
        for kubelet in self.kubelets.values():
            kubelet.shut_down()
        self.network.stop()
        self._addresses.close()
        self.directory.release()

    def pod_workers(self) -> list[PodWorker]:
        """Every pod that a kubelet looks after, oldest first by node."""
        return [worker for kubelet in self.kubelets.values() for worker in kubelet.workers()]

    def _register(self, shape: NodeShape, *, cluster: str) -> None:
        kubelet = self.kubelets[shape.name] = Kubelet(
            node_name=shape.name,
            number=shape.number,
            host_address=shape.address,
            store=self.store,
            events=self.events,
            timings=self.settings.timings,
            place=self._place,
            sources=self._sources,
        )
        now = self.store.clock()
        self.store.create("Node", node_object(shape, cluster=cluster, now=now), actor=kubelet.actor)
        self.store.create("Lease", lease_object(shape.name, self.settings.timings, now), actor=kubelet.actor)

    def _tell(self, change: Change) -> None:
        """Under the store's lock: only hand on."""
        self.scheduler.tell(change)
        self.jobs.tell(change)
        self.lifecycle.tell(change)
        if change.kind == "Pod":
            self._pod_changes.put(change)

    def _follow_pods(self) -> None:
        while (change := self._pod_changes.get()) is not None:
            kubelet = self.kubelets.get(change.entry.fields["spec.nodeName"])
            if kubelet is None:
                continue
            try:
                kubelet.pod_changed(change)
            except Exception:  # outermost loop: one bad pod must not end the care for all others
                logger.exception("kubelet %s: pod %s not followed", kubelet.node_name, change.name)

    def _beat(self) -> None:
        while not self._stopping.wait(self.settings.timings.lease_renew):
            for kubelet in self.kubelets.values():
                try:
                    kubelet.beat()
                except Exception:  # outermost loop: one node's trouble must not silence all others
                    logger.exception("kubelet %s: heartbeat failed", kubelet.node_name)

    def _log_of(self, namespace: str, pod: str, container: str, previous: bool) -> Path | None:
        try:
            entry = self.store.entry("Pod", namespace, pod)
        except NotFound:
            return None
        kubelet = self.kubelets.get(entry.fields["spec.nodeName"])
        worker = kubelet.worker(entry.uid) if kubelet else None
        return worker.log_path(container, previous=previous) if worker else None
