"""What a cluster shows, as plain frozen values: the part of nodes, jobs and pods that the desk remembers.

Two facts are equal when nothing changed that matters: the resource version, which rises with every
heartbeat, is left out of the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class ChangeType(StrEnum):
    """What happened to an object. VANISHED: it was known and is missing in a complete list."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True)
class Change[T]:
    """One change of one object. ``fact`` is its last version; None when it vanished unseen."""

    type: ChangeType
    uid: str
    fact: T | None

    @property
    def is_gone(self) -> bool:
        """Whether the object is there no more."""
        return self.type in (ChangeType.DELETED, ChangeType.VANISHED)


@dataclass(frozen=True, slots=True)
class NamespaceFact:
    """A namespace and its annotations."""

    uid: str
    name: str
    annotations: Mapping[str, str]
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """A condition of a node. status: True, False or Unknown; ``since`` is its last transition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A node. ``hardware_key`` names the machine under it; ``is_ready`` None: its kubelet is silent."""

    uid: str
    name: str
    hardware_key: str
    is_key_weak: bool
    boot_id: str = ""
    pool: str = ""
    rack: str = ""
    zone: str = ""
    gpu_type: str = ""
    gpu_count: int = 0
    is_ready: bool | None = None
    ready_since: datetime | None = None
    is_cordoned: bool = False
    taints: tuple[tuple[str, str, str], ...] = ()  # (key, value, effect), sorted
    conditions: tuple[NodeCondition, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[tuple[str, str], ...] = ()  # (type, address)
    kubelet_version: str = ""
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FailurePolicyRule:
    """A rule of a job's pod failure policy. ``exit_codes`` with operator In or NotIn, or pod conditions."""

    action: str  # FailJob | Ignore | Count | FailIndex
    operator: str = ""
    exit_codes: tuple[int, ...] = ()
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobConditionFact:
    """A condition of a job that is true."""

    type: str  # Complete | Failed | FailureTarget | SuccessCriteriaMet | Suspended
    reason: str = ""
    message: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobFact:
    """A batch job. ``world_size`` counts its places, ``gpus_per_worker`` the devices one pod asks for."""

    uid: str
    namespace: str
    name: str
    kind: str
    annotations: Mapping[str, str]  # ours only, without the prefix: {"protect": "true", …}
    world_size: int
    is_indexed: bool
    gpus_per_worker: int
    restart_policy: str
    backoff_limit: int | None  # None: not limited over the whole job (per index instead)
    backoff_limit_per_index: int | None
    active_deadline_seconds: int | None
    failure_policy: tuple[FailurePolicyRule, ...]
    is_suspended: bool
    suspend_set_by: str = ""  # field manager that owns spec.suspend
    is_deleting: bool = False
    failed_pods: int = 0
    conditions: tuple[JobConditionFact, ...] = ()
    created_at: datetime | None = None
    ended_at: datetime | None = None
    resource_version: str = field(default="", compare=False)

    @property
    def is_training(self) -> bool:
        """Whether this is recognised as a training job: workers by index, devices, or asked for by name."""
        return self.is_indexed or self.gpus_per_worker > 0 or bool(self.annotations)

    def condition(self, type_: str) -> JobConditionFact | None:
        """The condition of this type, if it is true."""
        return next((each for each in self.conditions if each.type == type_), None)


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How one life of a container ended. ``restart`` is the restart count of that life."""

    restart: int
    exit_code: int
    signal: int
    reason: str
    message: str
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ContainerFact:
    """The container that does the work. ``ends`` are the lives that its status tells of, oldest first."""

    name: str
    restart_count: int = 0
    state: str = "waiting"  # waiting | running | terminated
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None  # of the life that runs
    ends: tuple[ContainerEnd, ...] = ()


@dataclass(frozen=True, slots=True)
class Disruption:
    """Why the cluster ends or ended a pod, from its condition DisruptionTarget or its status reason."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodFact:
    """A pod that a job controls."""

    uid: str
    namespace: str
    name: str
    job_uid: str
    job_name: str
    index: int | None  # None: the job does not number its pods
    node: str
    ip: str
    phase: str
    reason: str
    message: str
    service_account: str
    containers: tuple[ContainerFact, ...]
    main_container: str
    created_at: datetime | None
    deleting_at: datetime | None = None  # when its grace ends
    delete_asked_at: datetime | None = None
    disruption: Disruption | None = None
    unschedulable: Disruption | None = None  # why no node takes it
    resource_version: str = field(default="", compare=False)

    def container(self, name: str) -> ContainerFact | None:
        """The container of this name."""
        return next((each for each in self.containers if each.name == name), None)
