"""A pod's status as a kubelet writes it, from what its containers did. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.admission import rfc3339

OWN_CONDITIONS = (
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
)
"""Conditions that the kubelet owns; others (PodScheduled, DisruptionTarget) belong to other components."""


@dataclass
class ContainerLife:
    """One container of a pod through its restarts. Times are Unix seconds."""

    name: str
    image: str
    state: str = "waiting"  # waiting | running | terminated
    reason: str = "ContainerCreating"
    message: str = ""
    container_id: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    previous: dict[str, Any] | None = None  # the last run's `terminated` state
    backoff_seconds: float = 0.0
    start_due: float = 0.0  # not to be started before
    was_started: bool = False

    def terminated_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": rfc3339(self.started_at),
            "finishedAt": rfc3339(self.finished_at),
        }
        if self.signal:
            state["signal"] = self.signal
        if self.message:
            state["message"] = self.message
        if self.container_id:
            state["containerID"] = f"containerd://{self.container_id}"
        return state

    def as_status(self) -> dict[str, Any]:
        """One element of containerStatuses."""
        state: dict[str, Any]
        if self.state == "running":
            state = {"running": {"startedAt": rfc3339(self.started_at)}}
        elif self.state == "terminated":
            state = {"terminated": self.terminated_state()}
        else:
            state = {"waiting": {"reason": self.reason} | ({"message": self.message} if self.message else {})}
        is_running = self.state == "running"
        status: dict[str, Any] = {
            "name": self.name,
            "image": self.image,
            "imageID": f"sim.invalid/{self.image}" if self.was_started else "",
            "ready": is_running,
            "started": is_running,
            "restartCount": self.restarts,
            "state": state,
            "lastState": {"terminated": self.previous} if self.previous else {},
        }
        if self.container_id:
            status["containerID"] = f"containerd://{self.container_id}"
        return status


def phase_of(containers: Sequence[ContainerLife], restart_policy: str, *, is_initialized: bool) -> str:
    """The pod's phase (kubelet's getPhase), as long as the kubelet has not ended the pod."""
    if not is_initialized:
        return "Pending"
    never_started = [c for c in containers if c.state == "waiting" and c.previous is None]
    if never_started:
        return "Pending"
    if any(c.state == "running" for c in containers):
        return "Running"
    # All stopped, or waiting for a restart.
    if restart_policy == "Always":
        return "Running"
    succeeded = all(c.state == "terminated" and c.exit_code == 0 for c in containers)
    if succeeded:
        return "Succeeded"
    return "Failed" if restart_policy == "Never" else "Running"


def conditions_of(
    present: Sequence[Mapping[str, Any]],
    containers: Sequence[ContainerLife],
    *,
    phase: str,
    has_sandbox: bool,
    is_initialized: bool,
    now: float,
) -> list[dict[str, Any]]:
    """All conditions of the pod: the kubelet's own, as they are now, and others' untouched."""
    unready = [c.name for c in containers if c.state != "running"]
    incomplete = {
        "reason": "ContainersNotInitialized",
        "message": "containers with incomplete status",
    }
    if phase in ("Succeeded", "Failed"):
        not_ready: dict[str, str] = {"reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
    else:
        not_ready = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(unready)}]",
        }
    is_ready = not unready and phase == "Running"
    wanted: list[tuple[str, bool, dict[str, str]]] = [
        ("PodReadyToStartContainers", has_sandbox, {}),
        ("Initialized", is_initialized, incomplete),
        ("Ready", is_ready, not_ready),
        ("ContainersReady", is_ready, not_ready),
    ]
    before = {condition["type"]: condition for condition in present}
    kept = [dict(condition) for condition in present if condition["type"] not in OWN_CONDITIONS]
    own = []
    for kind, holds, why in wanted:
        condition: dict[str, Any] = {
            "type": kind,
            "status": "True" if holds else "False",
            "lastProbeTime": None,
        }
        condition |= {} if holds else why
        old = before.get(kind, {})
        same = old.get("status") == condition["status"]
        condition["lastTransitionTime"] = old["lastTransitionTime"] if same else rfc3339(now)
        own.append(condition)
    return own + kept
