"""What a cluster would show, for tests: facts of nodes, jobs and pods with the smallest valid contents."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from adapters.facts import (
    Change,
    ChangeType,
    ContainerEnd,
    ContainerFact,
    Disruption,
    JobConditionFact,
    JobFact,
    NodeFact,
    PodFact,
)

START = datetime(2026, 11, 29, 14, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def added(fact: Any) -> Change[Any]:
    return Change(ChangeType.ADDED, fact.uid, fact)


def modified(fact: Any) -> Change[Any]:
    return Change(ChangeType.MODIFIED, fact.uid, fact)


def deleted(fact: Any) -> Change[Any]:
    return Change(ChangeType.DELETED, fact.uid, fact)


def vanished(fact: Any) -> Change[Any]:
    return Change(ChangeType.VANISHED, fact.uid, None)


def make_node_fact(name: str = "gpu-r01-01", **overrides: Any) -> NodeFact:
    fields: dict[str, Any] = {
        "uid": f"uid-{name}",
        "name": name,
        "hardware_key": f"provider:sim://{name}",
        "is_key_weak": False,
        "boot_id": "boot-1",
        "gpu_count": 8,
        "is_ready": True,
        "resource_version": "1",
    }
    return NodeFact(**{**fields, **overrides})


def make_job_fact(name: str = "llm", **overrides: Any) -> JobFact:
    """An indexed job of three workers, opted in, with one device each."""
    fields: dict[str, Any] = {
        "uid": f"uid-{name}",
        "namespace": "train",
        "name": name,
        "kind": "Job",
        "annotations": {"protect": "true"},
        "world_size": 3,
        "is_indexed": True,
        "gpus_per_worker": 1,
        "restart_policy": "Never",
        "backoff_limit": 100,
        "backoff_limit_per_index": None,
        "active_deadline_seconds": None,
        "failure_policy": (),
        "is_suspended": False,
        "created_at": START,
        "resource_version": "10",
    }
    return JobFact(**{**fields, **overrides})


def over(job: JobFact, type_: str, reason: str = "") -> JobFact:
    condition = JobConditionFact(type_, reason, at=at(100))
    return replace(job, conditions=(condition,), resource_version=str(int(job.resource_version) + 1))


def make_pod_fact(number: int = 0, *, job: str = "llm", version: int = 20, **overrides: Any) -> PodFact:
    """A pod of the job that has not been placed yet."""
    fields: dict[str, Any] = {
        "uid": f"uid-{job}-{number}",
        "namespace": "train",
        "name": f"{job}-{number}-abcde",
        "job_uid": f"uid-{job}",
        "job_name": job,
        "index": number,
        "node": "",
        "ip": "",
        "phase": "Pending",
        "reason": "",
        "message": "",
        "service_account": "default",
        "containers": (ContainerFact("train"),),
        "main_container": "train",
        "created_at": START,
        "resource_version": str(version),
    }
    return PodFact(**{**fields, **overrides})


def later(pod: PodFact, **changes: Any) -> PodFact:
    return replace(pod, **changes, resource_version=str(int(pod.resource_version) + 1))


def running(pod: PodFact, *, restart: int = 0, seconds: float = 10, **changes: Any) -> PodFact:
    """The pod runs on a node; after a restart its last life is still told."""
    ends = (make_end(restart - 1, seconds=seconds - 1),) if restart else ()
    container = ContainerFact("train", restart, "running", started_at=at(seconds), ends=ends)
    return later(
        pod,
        **{"phase": "Running", "node": "gpu-r01-01", "ip": "10.0.0.1", "containers": (container,), **changes},
    )


def make_end(restart: int = 0, *, code: int = 1, seconds: float = 60, **changes: Any) -> ContainerEnd:
    fields: dict[str, Any] = {
        "restart": restart,
        "exit_code": code,
        "signal": code - 128 if code > 128 else 0,
        "reason": "Completed" if code == 0 else "Error",
        "message": "",
        "started_at": None,
        "finished_at": at(seconds),
    }
    return ContainerEnd(**{**fields, **changes})


def ended(pod: PodFact, end: ContainerEnd | None = None, **changes: Any) -> PodFact:
    """Its container has ended for good."""
    end = end or make_end()
    container = ContainerFact("train", end.restart, "terminated", reason=end.reason, ends=(end,))
    phase = "Succeeded" if end.exit_code == 0 else "Failed"
    return later(pod, **{"phase": phase, "containers": (container,), **changes})


def deleting(pod: PodFact, *, seconds: float = 59, grace: float = 30, **changes: Any) -> PodFact:
    return later(pod, delete_asked_at=at(seconds), deleting_at=at(seconds + grace), **changes)


def unplaceable(pod: PodFact) -> PodFact:
    return later(pod, unschedulable=Disruption("Unschedulable", "0/4 nodes are available"))
