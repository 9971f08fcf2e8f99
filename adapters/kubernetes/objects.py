"""The fields of Kubernetes objects that the desk reads, typed for msgspec; everything else is skipped.

Measured on 20,000 pods: 0.4 CPU seconds this way, 24 through the client's own models. A list may be
null where Go writes an empty one, so lists are optional throughout.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class _Object(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Base: camelCase on the wire, unknown fields ignored."""


class OwnerReference(_Object, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ManagedField(_Object, frozen=True):
    manager: str = ""
    time: datetime | None = None
    fields_v1: msgspec.Raw = msgspec.Raw(b"{}")


class Metadata(_Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class JobMetadata(Metadata, frozen=True):
    managed_fields: list[ManagedField] | None = None


class ListMetadata(_Object, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Status(_Object, frozen=True):
    """The body of an error, and of a watch's ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class BookmarkObject(_Object, frozen=True):
    metadata: Metadata = Metadata()


# Namespaces


class Namespace(_Object, frozen=True):
    metadata: Metadata


class NamespaceList(_Object, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: list[Namespace] | None = None


# Nodes


class Taint(_Object, frozen=True):
    key: str
    effect: str = ""
    value: str = ""


class Condition(_Object, frozen=True):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class NodeAddress(_Object, frozen=True):
    type: str = ""
    address: str = ""


class NodeInfo(_Object, frozen=True):
    machine_id: str = msgspec.field(name="machineID", default="")
    system_uuid: str = msgspec.field(name="systemUUID", default="")
    boot_id: str = msgspec.field(name="bootID", default="")
    kubelet_version: str = ""


class NodeSpec(_Object, frozen=True):
    provider_id: str = msgspec.field(name="providerID", default="")
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(_Object, frozen=True):
    capacity: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None
    addresses: list[NodeAddress] | None = None
    node_info: NodeInfo = NodeInfo()


class Node(_Object, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeList(_Object, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: list[Node] | None = None


# Pods


class Resources(_Object, frozen=True):
    limits: dict[str, str | int] | None = None
    requests: dict[str, str | int] | None = None


class Container(_Object, frozen=True):
    name: str
    resources: Resources = Resources()


class PodSpec(_Object, frozen=True):
    node_name: str = ""
    service_account_name: str = ""
    restart_policy: str = "Always"
    containers: list[Container] | None = None


class Running(_Object, frozen=True):
    started_at: datetime | None = None


class Waiting(_Object, frozen=True):
    reason: str = ""
    message: str = ""


class Terminated(_Object, frozen=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(_Object, frozen=True):
    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object, frozen=True):
    name: str
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(_Object, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Object, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodList(_Object, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: list[Pod] | None = None


# Jobs


class OnExitCodes(_Object, frozen=True):
    operator: str = ""
    values: list[int] | None = None
    container_name: str | None = None


class OnPodCondition(_Object, frozen=True):
    type: str = ""
    status: str = "True"


class FailureRule(_Object, frozen=True):
    action: str = ""
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: list[OnPodCondition] | None = None


class PodFailurePolicy(_Object, frozen=True):
    rules: list[FailureRule] | None = None


class PodTemplate(_Object, frozen=True):
    spec: PodSpec = PodSpec()


class JobSpec(_Object, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    active_deadline_seconds: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    template: PodTemplate = PodTemplate()


class JobStatus(_Object, frozen=True):
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: list[Condition] | None = None
    completion_time: datetime | None = None


class Job(_Object, frozen=True):
    metadata: JobMetadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobList(_Object, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: list[Job] | None = None


class ReviewedUser(_Object, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] | None = None


class TokenReviewStatus(_Object, frozen=True):
    authenticated: bool = False
    error: str = ""
    audiences: list[str] | None = None
    user: ReviewedUser = ReviewedUser()


class TokenReview(_Object, frozen=True):
    status: TokenReviewStatus = TokenReviewStatus()
