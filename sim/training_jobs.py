"""Training jobs as people submit them: from a few parameters to namespace, ConfigMap and an Indexed Job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sim.errors import AlreadyExists
from sim.store import Store

ACTOR = "kubernetes-admin"
MASTER_PORT = 29400
CONFIG_MAP = "incidentdesk"
SERVICE_ACCOUNT = "trainer"
AUDIENCE = "incidentdesk"
TOKEN_SECONDS = 3600

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")


class BadParameters(Exception):
    """A parameter is unknown, of the wrong type, or out of range."""


@dataclass(frozen=True)
class TrainingJob:
    """What can be said about a job. Times are in seconds."""

    namespace: str = "research"
    name: str = "train"
    workers: int = 3
    gpus: int = 8
    steps: int = 5000
    step_seconds: float = 0.2
    checkpoint_every: int = 20
    max_retry: int = 10
    protect: bool = False
    protect_namespace: bool = False
    restart_policy: str = "Never"
    collective_timeout_seconds: float = 10.0
    reset: bool = False
    suspend: bool = False
    priority: int = 0
    stop_grace_seconds: float = 5.0
    termination_grace_seconds: int = 30
    no_contact_seconds: float | None = None
    backoff_limit: int | None = None
    trainer_arguments: str = ""
    agent: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> TrainingJob:
        """From JSON.

        Raises:
            BadParameters: Names the parameter and what it should be.
        """
        known = {field.name: field for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise BadParameters(f"no parameter {name!r}; there are: {', '.join(sorted(known))}")
            kind = str(known[name].type).removesuffix(" | None")
            if value is None and "None" in str(known[name].type):
                continue
            values[name] = _typed(name, value, kind)
        job = cls(**values)
        job._check()
        return job

    def _check(self) -> None:
        for name in ("namespace", "name"):
            if not _NAME.fullmatch(getattr(self, name)):
                raise BadParameters(f"{name} must be lower-case letters, digits and '-', at most 52 of them")
        if self.restart_policy not in ("Never", "OnFailure"):
            raise BadParameters("restart_policy must be Never or OnFailure")
        for name, least in (
            ("workers", 1),
            ("gpus", 0),
            ("steps", 0),
            ("checkpoint_every", 1),
            ("max_retry", 0),
        ):
            if getattr(self, name) < least:
                raise BadParameters(f"{name} must be at least {least}")
        for name in ("step_seconds", "stop_grace_seconds"):
            if getattr(self, name) < 0:
                raise BadParameters(f"{name} must not be negative")
        if self.collective_timeout_seconds <= 0:
            raise BadParameters("collective_timeout_seconds must be above 0")


def _typed(name: str, value: Any, kind: str) -> Any:
    if kind == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != kind:  # exact, because a bool is an int to isinstance
        raise BadParameters(f"{name} must be of type {kind}, not {value!r}")
    return value


def manifest(job: TrainingJob) -> dict[str, Any]:
    """The batch/v1 Job."""
    trainer = [
        "python3 -m sim.trainer",
        f"--steps {job.steps}",
        f"--step-seconds {job.step_seconds:g}",
        f"--checkpoint-every {job.checkpoint_every}",
    ]
    command = " ".join([*trainer, job.trainer_arguments]).strip()
    annotations = {
        "incidentdesk.io/max-retry": str(job.max_retry),
        "incidentdesk.io/checkpoint-dir": "/checkpoints",
        "incidentdesk.io/checkpoint-format": "sharded-manifest",
        "incidentdesk.io/stop-grace-seconds": f"{job.stop_grace_seconds:g}",
    }
    if job.protect:
        annotations["incidentdesk.io/protect"] = "true"
    labels = {"app.kubernetes.io/name": job.name, "app.kubernetes.io/component": "trainer"}
    limits = {"cpu": "8", "memory": "64Gi"} | ({"nvidia.com/gpu": str(job.gpus)} if job.gpus else {})
    enough = (job.max_retry + 1) * job.workers * 2
    spec: dict[str, Any] = {
        "completions": job.workers,
        "parallelism": job.workers,
        "completionMode": "Indexed",
        "backoffLimit": enough if job.backoff_limit is None else job.backoff_limit,
        "suspend": job.suspend,
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "restartPolicy": job.restart_policy,
                "subdomain": job.name,
                "serviceAccountName": SERVICE_ACCOUNT,
                "terminationGracePeriodSeconds": job.termination_grace_seconds,
                "priority": job.priority,
                "containers": [
                    {
                        "name": "train",
                        "image": "incidentdesk/trainer:latest",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["deskagent", "-c", command] if job.agent else shlex.split(command),
                        "env": _environment(job),
                        "resources": {"limits": limits, "requests": dict(limits)},
                        "volumeMounts": [
                            {
                                "name": "desk-token",
                                "mountPath": "/var/run/incidentdesk/token",
                                "readOnly": True,
                            },
                            {"name": "desk-config", "mountPath": "/etc/incidentdesk", "readOnly": True},
                            {"name": "checkpoints", "mountPath": "/checkpoints"},
                        ],
                    }
                ],
                "volumes": [
                    {
                        "name": "desk-token",
                        "projected": {
                            "sources": [
                                {
                                    "serviceAccountToken": {
                                        "path": "token",
                                        "audience": AUDIENCE,
                                        "expirationSeconds": TOKEN_SECONDS,
                                    }
                                }
                            ]
                        },
                    },
                    {"name": "desk-config", "configMap": {"name": CONFIG_MAP}},
                    {
                        "name": "checkpoints",
                        "hostPath": {
                            "path": f"/checkpoints/{job.namespace}/{job.name}",
                            "type": "DirectoryOrCreate",
                        },
                    },
                ],
            },
        },
    }
    if job.restart_policy == "Never":
        disrupted = {"type": "DisruptionTarget", "status": "True"}
        spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": [disrupted]}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }


def _environment(job: TrainingJob) -> list[dict[str, Any]]:
    plain = {
        "WORLD_SIZE": str(job.workers),
        "MASTER_ADDR": f"{job.name}-0.{job.name}",
        "MASTER_PORT": str(MASTER_PORT),
        "TRAINER_JOB": f"{job.namespace}/{job.name}",
        "TRAINER_CHECKPOINT_DIR": "/checkpoints",
        "TRAINER_COLLECTIVE_TIMEOUT_SECONDS": f"{job.collective_timeout_seconds:g}",
        "INCIDENTDESK_CONFIG_DIR": "/etc/incidentdesk",
        "INCIDENTDESK_TOKEN_FILE": "/var/run/incidentdesk/token/token",
        "INCIDENTDESK_CONTAINER": "train",
        "INCIDENTDESK_CHECKPOINT_DIR": "/checkpoints",
        "INCIDENTDESK_CHECKPOINT_FORMAT": "sharded-manifest",
        "INCIDENTDESK_STOP_GRACE_SECONDS": f"{job.stop_grace_seconds:g}",
        "INCIDENTDESK_TERMINATION_LOG": "/dev/termination-log",
    }
    if job.reset:
        plain["TRAINER_RESET"] = "1"
    if job.no_contact_seconds is not None:
        plain["INCIDENTDESK_NO_CONTACT_SECONDS"] = f"{job.no_contact_seconds:g}"
    downward = {
        "POD_IP": "status.podIP",
        "INCIDENTDESK_POD_UID": "metadata.uid",
        "INCIDENTDESK_POD_NAME": "metadata.name",
        "INCIDENTDESK_NAMESPACE": "metadata.namespace",
        "INCIDENTDESK_NODE_NAME": "spec.nodeName",
        "INCIDENTDESK_POD_IP": "status.podIP",
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in downward.items()),
    ]


def submit(store: Store, job: TrainingJob, *, desk_url: str | None) -> dict[str, Any]:
    """Create the Job and what it needs in its namespace. Returns the stored Job.

    Raises:
        AlreadyExists: A Job of that name is there.
        Invalid: The API server refused the Job.
    """
    namespace: dict[str, Any] = {"metadata": {"name": job.namespace}}
    if job.protect_namespace:
        namespace["metadata"]["annotations"] = {"incidentdesk.io/protect": "true"}
    _ensure(store, "Namespace", namespace)
    where = {"namespace": job.namespace}
    _ensure(store, "ServiceAccount", {"metadata": {"name": SERVICE_ACCOUNT, **where}})
    settings = {"url": desk_url} if desk_url else {}
    _ensure(store, "ConfigMap", {"metadata": {"name": CONFIG_MAP, **where}, "data": settings})
    return store.create("Job", manifest(job), actor=ACTOR)


def _ensure(store: Store, kind: str, wanted: dict[str, Any]) -> None:
    try:
        store.create(kind, wanted, actor=ACTOR)
    except AlreadyExists:
        annotations = wanted["metadata"].get("annotations")
        if not annotations:
            return

        def annotate(present: dict[str, Any]) -> dict[str, Any]:
            present["metadata"].setdefault("annotations", {}).update(annotations)
            return present

        metadata = wanted["metadata"]
        store.mutate(kind, metadata.get("namespace"), metadata["name"], annotate, actor=ACTOR)
