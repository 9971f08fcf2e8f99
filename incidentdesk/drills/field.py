"""What a drill stands on: the stack of processes, the simulated cluster's control, and waiting for facts."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.stack import Stack

POLL_SECONDS = 0.05
DESK_SERVICES = ("web", "decide", "worker", "beat", "watch")


class DrillFailed(Exception):
    """What a drill expected was not seen; the text says what, where, and what was there instead."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Process ids of one worker, as the cluster knows them."""

    index: int
    pod: str
    pod_uid: str
    node: str
    agent_pid: int
    rank_pids: tuple[int, ...]


class SimulatedCluster:
    """Control of the simulated cluster over its HTTP API, with the admin's token."""

    def __init__(self, endpoint: Path) -> None:
        content = json.loads(endpoint.read_text())
        self.url: str = content["url"]
        self._token: str = content["admin_token"]

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One call; JSON in and out. A refusal becomes DrillFailed with the cluster's own words."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                raw, type_ = answer.read(), answer.headers.get_content_type()
        except urllib.error.HTTPError as error:
            raise DrillFailed(
                f"{method} {path}: {error.code} {error.read().decode(errors='replace')}"
            ) from error
        return json.loads(raw) if type_ == "application/json" else raw.decode(errors="replace")

    def submit(self, *, namespace: str, name: str, **parameters: Any) -> dict[str, Any]:
        """Submit a training job."""
        return dict(
            self.request("POST", "/sim/v1/jobs", {"namespace": namespace, "name": name, **parameters})
        )

    def fault(self, name: str, *, namespace: str, job: str, **parameters: Any) -> dict[str, Any]:
        """Inject a fault; the answer comes when its effect was seen."""
        body = {"fault": name, "namespace": namespace, "job": job, **parameters}
        return dict(self.request("POST", "/sim/v1/faults", body))

    def processes(self, namespace: str, job: str) -> dict[int, Processes]:
        """Process ids by worker index, of pods that run."""
        answer = self.request("GET", f"/sim/v1/processes?namespace={namespace}&job={job}")
        rows = answer["items"] if isinstance(answer, dict) else answer
        found = {}
        for row in rows:
            if row.get("agent_pid") and row.get("index") is not None:
                found[int(row["index"])] = Processes(
                    index=int(row["index"]),
                    pod=row["pod"],
                    pod_uid=row["uid"],
                    node=row.get("node", ""),
                    agent_pid=int(row["agent_pid"]),
                    rank_pids=tuple(row.get("rank_pids", ())),
                )
        return found

    def audit(self) -> list[dict[str, Any]]:
        """Every write that the cluster saw, oldest first."""
        answer = self.request("GET", "/sim/v1/audit?since=0")
        return list(answer["items"] if isinstance(answer, dict) else answer)

    def log(self, namespace: str, pod: str) -> str:
        """The log of a pod's only container."""
        return str(self.request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log"))

    def object(self, path: str) -> dict[str, Any]:
        """One object of the Kubernetes API."""
        return dict(self.request("GET", path))

    def delete_job(self, namespace: str, name: str) -> None:
        """Delete a job with its pods; the drill has seen enough of it."""
        self.request(
            "DELETE",
            f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
            {"propagationPolicy": "Background", "kind": "DeleteOptions", "apiVersion": "v1"},
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """A process that stands at a named point. ``service`` is empty when the supervisor knows it no more."""

    path: Path
    pid: int
    service: str

    def release(self) -> None:
        """Let it go on, if it still lives."""
        self.path.unlink(missing_ok=True)


@dataclass
class Field:
    """The place of one or more drills. ``say`` takes lines for people."""

    stack: Stack
    say: Callable[[str], None]
    fault_points: Path
    is_long: bool = False
    namespace: str = "drills"
    _cluster: SimulatedCluster | None = field(default=None, init=False)

    @property
    def cluster(self) -> SimulatedCluster:
        """The simulated cluster that this stack runs."""
        if self._cluster is None:
            self._cluster = SimulatedCluster(self.stack.cluster / "endpoint.json")
        return self._cluster

    def arm(self, point: str) -> None:
        """Let the next process that passes a named point stand there until it is released."""
        (self.fault_points / point).touch()

    def disarm(self, point: str) -> None:
        """Let nobody stand at a point any more, and those go on who do."""
        (self.fault_points / point).unlink(missing_ok=True)
        for path in self.fault_points.glob(f"{point}.taken-*"):
            path.unlink(missing_ok=True)

    def standing(self, point: str) -> Standing | None:
        """Who stands at an armed point, or None while nobody does."""
        for path in self.fault_points.glob(f"{point}.taken-*"):
            pid = int(path.name.rsplit("-", 2)[1])
            return Standing(path, pid, self.service_of(pid))
        return None

    def service_of(self, pid: int) -> str:
        """The service that a process belongs to: each leads a process group. Empty when it is gone."""
        try:
            leader = os.getpgid(pid)
        except ProcessLookupError:
            return ""
        for name in DESK_SERVICES:
            try:
                if self.stack.supervisor.pid(name) == leader:
                    return name
            except FrontDoorError:
                continue  # it is being started again
        return ""

    def kill(self, service: str) -> int:
        """Kill a service (-9) with all of its processes at once; gives the id that it had."""
        pid = self.stack.supervisor.pid(service)
        os.killpg(pid, signal.SIGKILL)
        return pid

    def clean_up(self) -> None:
        """Take away what a drill left: armed points, faults and jobs, so that the next one starts clean."""
        for path in self.fault_points.iterdir():
            path.unlink()
        jobs = self.cluster.request("GET", f"/apis/batch/v1/namespaces/{self.namespace}/jobs").get(
            "items", []
        )
        for job in jobs:
            self.cluster.fault("restore", namespace=self.namespace, job=job["metadata"]["name"])
            self.cluster.delete_job(self.namespace, job["metadata"]["name"])
        wait_for("the last drill's pods to be gone", lambda: not self._pods(), seconds=60)

    def _pods(self) -> list[dict[str, Any]]:
        return list(self.cluster.request("GET", f"/api/v1/namespaces/{self.namespace}/pods").get("items", []))


def wait_for[T](what: str, look: Callable[[], T | None], *, seconds: float) -> T:
    """Look until ``look`` gives something that is true, and give it back.

    Raises:
        DrillFailed: It did not within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise DrillFailed(f"waited {seconds:g} s for {what}; it was not seen")
        time.sleep(POLL_SECONDS)


def expect(condition: object, sentence: str) -> None:
    """Fail the drill with ``sentence`` unless the condition holds."""
    if not condition:
        raise DrillFailed(sentence)


@contextmanager
def running_stack(
    root: Path, *, is_long: bool, say: Callable[[str], None], env: dict[str, str] | None = None
) -> Iterator[Field]:
    """Start a stack for drills, set Django up against its database, and end all of it afterwards."""
    points = root / "fault-points"
    points.mkdir(parents=True, exist_ok=True)
    for old in points.iterdir():
        old.unlink()
    stack = Stack(
        root,
        profile="drill-long" if is_long else "drill",
        env={"INCIDENTDESK_FAULT_POINTS": str(points), **(env or {})},
        say=say,
    )
    with stack:
        use_database(stack)
        yield Field(stack=stack, say=say, fault_points=points, is_long=is_long)


def use_database(stack: Stack) -> None:
    """Point this process's Django at the stack's database."""
    import django

    os.environ.update({**stack.env, "INCIDENTDESK_FAULT_POINTS": ""})
    django.setup()
