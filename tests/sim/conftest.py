"""A running cluster for tests, and waiting for what it does."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim import timings
from sim.cluster import Cluster, Settings
from sim.processes import look_up

# Shorter than the drills' table: these tests wait for back-offs again and again.
TEST_TIMINGS = replace(
    timings.SHORT,
    container_backoff_initial=0.4,
    container_backoff_maximum=2.0,
    job_backoff_initial=0.2,
    job_backoff_maximum=0.4,
    lease_renew=0.2,
    lease_duration=0.8,
    node_monitor_grace=0.8,
    default_toleration=0.5,
    volume_sync=0.3,
)


def until[T](look: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    """The first true answer of ``look``; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not seen within {seconds:g} s: {what}"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether no process runs under this pid any more; one that waits to be reaped is gone."""
    process = look_up(pid)
    return process is None or process.state == "Z"


def processes_below(directory: Path) -> list[str]:
    """Command lines of the processes whose environment or arguments name the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{directory}/".encode() in text:
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


class Bench:
    """A cluster and short ways to make and read its objects."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.store = cluster.store
        self.store.create("Namespace", {"metadata": {"name": "lab"}}, actor="test")

    def run_pod(
        self, name: str, script: str, *, container: dict[str, Any] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Create a bare pod whose container `main` runs a shell script."""
        main = {"name": "main", "image": "busybox:1", "command": ["sh", "-c", script], **(container or {})}
        pod = {
            "metadata": {"name": name, "namespace": "lab"},
            "spec": {"restartPolicy": "Never", "containers": [main], **spec},
        }
        return self.store.create("Pod", pod, actor="test")

    def run_job(
        self, name: str, script: str, *, pod: dict[str, Any] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Create a Job whose pods run a shell script."""
        template = {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "busybox:1", "command": ["sh", "-c", script]}],
            **(pod or {}),
        }
        job = {
            "metadata": {"name": name, "namespace": "lab"},
            "spec": {**spec, "template": {"spec": template}},
        }
        return self.store.create("Job", job, actor="test")

    def pod(self, name: str) -> dict[str, Any] | None:
        return next((p for p in self.pods() if p["metadata"]["name"] == name), None)

    def pods(self, job: str | None = None) -> list[dict[str, Any]]:
        selector = f"job-name={job}" if job else None
        return self.store.list("Pod", "lab", label_selector=selector).items

    def job(self, name: str) -> dict[str, Any]:
        return self.store.get("Job", "lab", name)

    def phase(self, name: str) -> str | None:
        pod = self.pod(name)
        return pod["status"]["phase"] if pod else None

    def container(self, name: str) -> dict[str, Any]:
        """Status of the pod's first container, empty before there is one."""
        statuses = (self.pod(name) or {}).get("status", {}).get("containerStatuses") or [{}]
        return dict(statuses[0])

    def condition(self, kind: str, name: str, condition: str) -> str | None:
        """Status of a condition of a pod or job of the namespace."""
        found = self.store.get(kind, "lab", name)
        conditions = (found.get("status") or {}).get("conditions") or []
        return next((c["status"] for c in conditions if c["type"] == condition), None)

    def reasons(self, about: str) -> list[str]:
        """Reasons of the events about an object, oldest first."""
        events = self.store.list("Event").items
        events.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [event["reason"] for event in events if event["involvedObject"]["name"] == about]

    def log(self, name: str) -> str:
        for worker in self.cluster.pod_workers():
            if worker.name == name and (path := worker.log_path("main")):
                return path.read_text()
        return ""


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, and ends them; afterwards none of their processes is left."""
    started: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        directory = tmp_path / f"c{len(started)}"
        cluster = Cluster(Settings(directory=directory, **{"timings": TEST_TIMINGS, "nodes": 2, **settings}))
        started.append(cluster)
        cluster.start()
        return cluster

    yield make
    for cluster in started:
        cluster.stop()
        assert processes_below(cluster.directory.root) == []


@pytest.fixture
def bench(make_cluster: Callable[..., Cluster]) -> Bench:
    return Bench(make_cluster())
