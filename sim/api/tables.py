"""The columns of `kubectl get`: meta.k8s.io/v1 Table, computed here as a real API server does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.admission import seconds_of
from sim.api.durations import human

Object = dict[str, Any]
NONE, UNKNOWN = "<none>", "<unknown>"


@dataclass(frozen=True)
class Column:
    """One column; `priority` 1 is shown with `-o wide` only. `cell` gets the object and the present time."""

    name: str
    cell: Callable[[Object, float], Any]
    priority: int = 0
    type: str = "string"
    format: str = ""

    def definition(self) -> Object:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.name,
            "priority": self.priority,
        }


def table(
    kind: str, rows: list[Object], *, now: float, include: str, metadata: Object, headers: bool = True
) -> Object:
    """A Table of some objects. `include` is None, Metadata or Object: what each row carries of its object."""
    columns = COLUMNS.get(kind, _PLAIN)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [column.definition() for column in columns] if headers else [],
        "rows": [_row(columns, row, now, include) for row in rows],
    }


def _row(columns: tuple[Column, ...], obj: Object, now: float, include: str) -> Object:
    row: Object = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include != "None":
        row["object"] = partial(obj)
    return row


def partial(obj: Object) -> Object:
    """Only the metadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _since(text: str | None, now: float) -> str:
    return human(now - seconds_of(text)) if text else UNKNOWN


def _age(obj: Object, now: float) -> str:
    return _since(obj["metadata"].get("creationTimestamp"), now)


def _name(obj: Object, _now: float) -> str:
    return str(obj["metadata"]["name"])


def _at(*path: str, default: Any = NONE) -> Callable[[Object, float], Any]:
    """The value at a path, or the default where it is missing or empty."""

    def cell(obj: Object, _now: float) -> Any:
        value: Any = obj
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return default if value in (None, "", {}, []) else value

    return cell


def _count(*path: str) -> Callable[[Object, float], int]:
    at = _at(*path, default=())
    return lambda obj, now: len(at(obj, now))


def _labels_text(selector: Object | None) -> str:
    labels = (selector or {}).get("matchLabels", selector or {})
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def _containers(field: str, *path: str) -> Callable[[Object, float], str]:
    at = _at(*path, default=())
    return lambda obj, now: ",".join(str(one.get(field, "")) for one in at(obj, now))


# Pods


def _statuses(pod: Object) -> list[Object]:
    return list((pod.get("status") or {}).get("containerStatuses") or [])


def _is_true(pod: Object, condition: str) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def _pod_ready(pod: Object, _now: float) -> str:
    ready = sum(bool(one.get("ready")) for one in _statuses(pod))
    return f"{ready}/{len((pod.get('spec') or {}).get('containers') or [])}"


def _state_word(state: Object) -> str | None:
    if reason := (state.get("waiting") or {}).get("reason"):
        return str(reason)
    ended = state.get("terminated")
    if ended is None:
        return None
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _pod_status(pod: Object, _now: float) -> str:
    status = pod.get("status") or {}
    word = str(status.get("reason") or status.get("phase") or UNKNOWN)
    if any(one.get("reason") == "SchedulingGated" for one in status.get("conditions") or ()):
        word = "SchedulingGated"
    is_running = False
    for one in reversed(_statuses(pod)):
        state = one.get("state") or {}
        found = _state_word(state)
        if found:
            word = found
        elif one.get("ready") and state.get("running"):
            is_running = True
    if word == "Completed" and is_running:
        word = "Running" if _is_true(pod, "Ready") else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return word


def _pod_restarts(pod: Object, now: float) -> str:
    count = sum(int(one.get("restartCount", 0)) for one in _statuses(pod))
    ends = [
        ended["finishedAt"]
        for one in _statuses(pod)
        if (ended := (one.get("lastState") or {}).get("terminated")) and ended.get("finishedAt")
    ]
    return f"{count} ({_since(max(ends), now)} ago)" if count and ends else str(count)


def _pod_gates(pod: Object, _now: float) -> str:
    gates = (pod.get("spec") or {}).get("readinessGates") or []
    ready = sum(_is_true(pod, gate["conditionType"]) for gate in gates)
    return f"{ready}/{len(gates)}" if gates else NONE


# Nodes


def _node_status(node: Object, _now: float) -> str:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = next((one["status"] for one in conditions if one["type"] == "Ready"), None)
    word = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    return word + (",SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else "")


def _node_roles(node: Object, _now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or NONE


def _node_address(kind: str) -> Callable[[Object, float], str]:
    def cell(node: Object, _now: float) -> str:
        addresses = (node.get("status") or {}).get("addresses") or []
        return next((str(one["address"]) for one in addresses if one["type"] == kind), NONE)

    return cell


def _node_info(field: str) -> Callable[[Object, float], Any]:
    return _at("status", "nodeInfo", field, default=UNKNOWN)


# Events


def _event_seen(event: Object, now: float) -> str:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    first = event.get("firstTimestamp") or event.get("eventTime")
    count = int(series.get("count") or event.get("count") or 1)
    return f"{_since(last, now)} (x{count} over {_since(first, now)})" if count > 1 else _since(last, now)


def _event_about(event: Object, _now: float) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(event: Object, _now: float) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    return ", ".join(part for part in (component, source.get("host")) if part)


def _event_first(event: Object, now: float) -> str:
    return _since(event.get("firstTimestamp") or event.get("eventTime"), now)


# Jobs


def _job_status(job: Object, _now: float) -> str:
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    conditions = (job.get("status") or {}).get("conditions") or []
    true = {one["type"] for one in conditions if one["status"] == "True"}
    words = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((word for word in words if word in true), "Running")


def _job_completions(job: Object, _now: float) -> str:
    spec = job.get("spec") or {}
    succeeded = (job.get("status") or {}).get("succeeded", 0)
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism", 0)
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(job: Object, now: float) -> str:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return ""
    end = seconds_of(status["completionTime"]) if status.get("completionTime") else now
    return human(end - seconds_of(status["startTime"]))


# The rest


def _budget(field: str) -> Callable[[Object, float], str]:
    return lambda obj, _now: str((obj.get("spec") or {}).get(field, "N/A"))


def _service_ports(service: Object, _now: float) -> str:
    ports = (service.get("spec") or {}).get("ports") or []
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or NONE


def _endpoints(endpoints: Object, _now: float) -> str:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in endpoints.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ()
    ]
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    return ",".join(found[:3]) + more or NONE


def _set_ready(obj: Object, _now: float) -> str:
    ready = (obj.get("status") or {}).get("readyReplicas", 0)
    return f"{ready}/{(obj.get('spec') or {}).get('replicas', 1)}"


_NAME = Column("Name", _name, format="name")
_AGE = Column("Age", _age)
_PLAIN = (
    _NAME,
    Column("Created At", lambda obj, now: obj["metadata"].get("creationTimestamp", UNKNOWN), type="date"),
)
_TEMPLATE = ("spec", "template", "spec", "containers")


def _selector(obj: Object, _now: float) -> str:
    return _labels_text((obj.get("spec") or {}).get("selector"))


def _number(name: str, *path: str) -> Column:
    return Column(name, _at(*path, default=0), type="integer")


COLUMNS: dict[str, tuple[Column, ...]] = {
    "Pod": (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", _at("status", "podIP"), 1),
        Column("Node", _at("spec", "nodeName"), 1),
        Column("Nominated Node", _at("status", "nominatedNodeName"), 1),
        Column("Readiness Gates", _pod_gates, 1),
    ),
    "Node": (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _node_info("kubeletVersion")),
        Column("Internal-IP", _node_address("InternalIP"), 1),
        Column("External-IP", _node_address("ExternalIP"), 1),
        Column("OS-Image", _node_info("osImage"), 1),
        Column("Kernel-Version", _node_info("kernelVersion"), 1),
        Column("Container-Runtime", _node_info("containerRuntimeVersion"), 1),
    ),
    "Event": (
        Column("Last Seen", _event_seen),
        Column("Type", _at("type", default="")),
        Column("Reason", _at("reason", default="")),
        Column("Object", _event_about),
        Column("Subobject", _at("involvedObject", "fieldPath", default=""), 1),
        Column("Source", _event_source, 1),
        Column("Message", lambda event, _now: str(event.get("message", "")).strip()),
        Column("First Seen", _event_first, 1),
        Column("Count", _at("count", default=1), 1, type="integer"),
        Column("Name", _name, 1, format="name"),
    ),
    "Namespace": (_NAME, Column("Status", _at("status", "phase")), _AGE),
    "Job": (
        _NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        _AGE,
        Column("Containers", _containers("name", *_TEMPLATE), 1),
        Column("Images", _containers("image", *_TEMPLATE), 1),
        Column("Selector", _selector, 1),
    ),
    "PodDisruptionBudget": (
        _NAME,
        Column("Min Available", _budget("minAvailable")),
        Column("Max Unavailable", _budget("maxUnavailable")),
        _number("Allowed Disruptions", "status", "disruptionsAllowed"),
        _AGE,
    ),
    "Lease": (_NAME, Column("Holder", _at("spec", "holderIdentity", default="")), _AGE),
    "ConfigMap": (_NAME, Column("Data", _count("data"), type="integer"), _AGE),
    "Secret": (_NAME, Column("Type", _at("type")), Column("Data", _count("data"), type="integer"), _AGE),
    "ServiceAccount": (_NAME, Column("Secrets", _count("secrets"), type="integer"), _AGE),
    "Service": (
        _NAME,
        Column("Type", _at("spec", "type")),
        Column("Cluster-IP", _at("spec", "clusterIP")),
        Column("External-IP", lambda _obj, _now: NONE),
        Column("Port(s)", _service_ports),
        _AGE,
        Column("Selector", _selector, 1),
    ),
    "Endpoints": (_NAME, Column("Endpoints", _endpoints), _AGE),
    "ReplicaSet": (
        _NAME,
        _number("Desired", "spec", "replicas"),
        _number("Current", "status", "replicas"),
        _number("Ready", "status", "readyReplicas"),
        _AGE,
    ),
    "StatefulSet": (_NAME, Column("Ready", _set_ready), _AGE),
    "DaemonSet": (
        _NAME,
        _number("Desired", "status", "desiredNumberScheduled"),
        _number("Current", "status", "currentNumberScheduled"),
        _number("Ready", "status", "numberReady"),
        _AGE,
    ),
}
