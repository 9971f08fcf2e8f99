"""The kinds the simulated cluster serves, as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

Fields = dict[str, str]


@dataclass(frozen=True)
class Resource:
    """One kind. `fields` gives the values that field selectors see besides metadata.name and .namespace."""

    kind: str
    plural: str
    namespaced: bool
    group: str = ""
    version: str = "v1"
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = WRITE
    has_status: bool = False
    has_generation: bool = False
    keeps_status_on_create: bool = False
    subresources: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = field(default_factory=dict)
    """Name -> (kind, group, version, verbs), besides `status`."""
    fields: Callable[[Mapping[str, Any]], Fields] | None = None
    field_names: tuple[str, ...] = ()

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def selectable(self) -> frozenset[str]:
        """Paths a fieldSelector may name."""
        names = {"metadata.name", *self.field_names} | ({"metadata.namespace"} if self.namespaced else set())
        return frozenset(names)


def _pod_fields(pod: Mapping[str, Any]) -> Fields:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    return {
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.restartPolicy": spec.get("restartPolicy", ""),
        "spec.schedulerName": spec.get("schedulerName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.phase": status.get("phase", ""),
        "status.podIP": status.get("podIP", ""),
        "status.nominatedNodeName": status.get("nominatedNodeName", ""),
    }


def _node_fields(node: Mapping[str, Any]) -> Fields:
    return {"spec.unschedulable": "true" if (node.get("spec") or {}).get("unschedulable") else "false"}


def _event_fields(event: Mapping[str, Any]) -> Fields:
    about = event.get("involvedObject") or {}
    parts = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    values = {f"involvedObject.{part}": about.get(part, "") for part in parts}
    source = (event.get("source") or {}).get("component", "")
    component = event.get("reportingComponent") or source
    return values | {
        "type": event.get("type", ""),
        "reason": event.get("reason", ""),
        "source": source or component,
        "reportingComponent": component,
    }


def _regarding_fields(event: Mapping[str, Any]) -> Fields:
    fields = _event_fields(event)
    return {key.replace("involvedObject.", "regarding."): value for key, value in fields.items()}


def _job_fields(job: Mapping[str, Any]) -> Fields:
    return {"status.successful": str((job.get("status") or {}).get("succeeded", 0))}


def _namespace_fields(namespace: Mapping[str, Any]) -> Fields:
    return {"status.phase": (namespace.get("status") or {}).get("phase", "")}


def _secret_fields(secret: Mapping[str, Any]) -> Fields:
    return {"type": secret.get("type", "")}


_EVENT_FIELDS = tuple(_event_fields({}))

RESOURCES: tuple[Resource, ...] = (
    Resource(
        "Node",
        "nodes",
        namespaced=False,
        short_names=("no",),
        has_status=True,
        keeps_status_on_create=True,
        fields=_node_fields,
        field_names=("spec.unschedulable",),
    ),
    Resource(
        "Pod",
        "pods",
        namespaced=True,
        short_names=("po",),
        categories=("all",),
        has_status=True,
        fields=_pod_fields,
        field_names=tuple(_pod_fields({})),
        subresources={
            "binding": ("Binding", "", "v1", ("create",)),
            "eviction": ("Eviction", "policy", "v1", ("create",)),
            "log": ("Pod", "", "v1", ("get",)),
        },
    ),
    Resource(
        "Event",
        "events",
        namespaced=True,
        short_names=("ev",),
        fields=_event_fields,
        field_names=_EVENT_FIELDS,
    ),
    Resource(
        "Event",
        "events",
        namespaced=True,
        group="events.k8s.io",
        short_names=("ev",),
        fields=_regarding_fields,
        field_names=tuple(name.replace("involvedObject.", "regarding.") for name in _EVENT_FIELDS),
    ),
    Resource(
        "Namespace",
        "namespaces",
        namespaced=False,
        short_names=("ns",),
        has_status=True,
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        fields=_namespace_fields,
        field_names=("status.phase",),
    ),
    Resource(
        "Service", "services", namespaced=True, short_names=("svc",), categories=("all",), has_status=True
    ),
    Resource("Endpoints", "endpoints", namespaced=True, short_names=("ep",)),
    Resource("ConfigMap", "configmaps", namespaced=True, short_names=("cm",)),
    Resource("Secret", "secrets", namespaced=True, fields=_secret_fields, field_names=("type",)),
    Resource(
        "ServiceAccount",
        "serviceaccounts",
        namespaced=True,
        short_names=("sa",),
        subresources={"token": ("TokenRequest", "authentication.k8s.io", "v1", ("create",))},
    ),
    Resource("PersistentVolume", "persistentvolumes", namespaced=False, short_names=("pv",), has_status=True),
    Resource(
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        namespaced=True,
        short_names=("pvc",),
        has_status=True,
    ),
    Resource(
        "ResourceQuota",
        "resourcequotas",
        namespaced=True,
        short_names=("quota",),
        verbs=READ,
        has_status=True,
    ),
    Resource("LimitRange", "limitranges", namespaced=True, short_names=("limits",), verbs=READ),
    Resource("Lease", "leases", namespaced=True, group="coordination.k8s.io"),
    Resource(
        "Job",
        "jobs",
        namespaced=True,
        group="batch",
        categories=("all",),
        has_status=True,
        has_generation=True,
        fields=_job_fields,
        field_names=("status.successful",),
    ),
    Resource(
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        namespaced=True,
        group="policy",
        short_names=("pdb",),
        has_status=True,
        has_generation=True,
    ),
    Resource(
        "ReplicaSet",
        "replicasets",
        namespaced=True,
        group="apps",
        short_names=("rs",),
        categories=("all",),
        verbs=READ,
        has_status=True,
        has_generation=True,
    ),
    Resource(
        "StatefulSet",
        "statefulsets",
        namespaced=True,
        group="apps",
        short_names=("sts",),
        categories=("all",),
        verbs=READ,
        has_status=True,
        has_generation=True,
    ),
    Resource(
        "DaemonSet",
        "daemonsets",
        namespaced=True,
        group="apps",
        short_names=("ds",),
        categories=("all",),
        verbs=READ,
        has_status=True,
        has_generation=True,
    ),
)

BY_KIND: dict[str, Resource] = {}
for _resource in RESOURCES:
    BY_KIND.setdefault(_resource.kind, _resource)  # the core group's Event is the stored one

BY_PATH: dict[tuple[str, str, str], Resource] = {(r.group, r.version, r.plural): r for r in RESOURCES}

GROUPS: tuple[tuple[str, str], ...] = tuple(sorted({(r.group, r.version) for r in RESOURCES if r.group}))
