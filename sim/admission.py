"""What the API server makes of an object before it is stored: checks, defaults, and which parts a write may touch."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sim.errors import BadRequest, Invalid
from sim.resources import Resource

Object = dict[str, Any]
Cause = tuple[str, str, str]

DEFAULT_GRACE_SECONDS = 30
UNREACHABLE_TOLERATION_SECONDS = 300
"""Given by the DefaultTolerationSeconds admission plug-in for not-ready and unreachable nodes."""

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_IMMUTABLE_META = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


_META_SHAPE: Object = {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": [{}]}
_STATUS_SHAPE: Object = {"conditions": [{}], "containerStatuses": [{}]}
_ANY_SHAPE: Object = {"metadata": _META_SHAPE, "spec": {}, "status": _STATUS_SHAPE}
_CONTAINER_SHAPE: Object = {"env": [{"valueFrom": {"fieldRef": {}}}], "ports": [{}], "resources": {}}
_POD_SHAPE: Object = {
    "containers": [_CONTAINER_SHAPE],
    "initContainers": [_CONTAINER_SHAPE],
    "tolerations": [{}],
    "volumes": [{}],
}
_JOB_SHAPE: Object = {
    "template": {"metadata": _META_SHAPE, "spec": _POD_SHAPE},
    "podFailurePolicy": {"rules": [{"onPodConditions": [{}]}]},
}
_SHAPES: dict[str, Object] = {
    "Pod": _ANY_SHAPE | {"spec": _POD_SHAPE},
    "Job": _ANY_SHAPE | {"spec": _JOB_SHAPE},
    "Node": _ANY_SHAPE | {"spec": {"taints": [{}]}},
    "PodDisruptionBudget": _ANY_SHAPE | {"spec": {"selector": {"matchLabels": {}, "matchExpressions": [{}]}}},
    "Service": _ANY_SHAPE | {"spec": {"ports": [{}]}},
}
"""Parts of the kinds that are read here: {} an object, [] a list."""


def rfc3339(at: float) -> str:
    """Unix seconds as Kubernetes writes a Time (whole seconds, UTC)."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(at: float) -> str:
    """Unix seconds as Kubernetes writes a MicroTime (leases, event times)."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_of(text: str) -> float:
    """Unix seconds of a Time or MicroTime."""
    return datetime.fromisoformat(text).timestamp()


def require_shape(value: Any, shape: Any, path: str = "") -> None:
    """Check that the parts that are worked with are objects and lists at all. Raises BadRequest."""
    if value is None:
        return
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise BadRequest(f"the object provided is unrecognized: {path} must be a list")
        for at, item in enumerate(value if shape else ()):
            if item is None:
                raise BadRequest(f"the object provided is unrecognized: {path}[{at}] must not be null")
            require_shape(item, shape[0], f"{path}[{at}]")
        return
    if not isinstance(value, dict):
        raise BadRequest(f"the object provided is unrecognized: {path or 'it'} must be an object")
    for name, below in shape.items():
        require_shape(value.get(name), below, f"{path}.{name}" if path else name)


def admit_create(resource: Resource, new: Object) -> None:
    """Check and complete an object that is about to be created. Raises Invalid, BadRequest."""
    require_shape(new, _SHAPES.get(resource.kind, _ANY_SHAPE))
    meta = new["metadata"]
    if resource.has_generation:
        meta["generation"] = 1
    else:
        meta.pop("generation", None)
    if resource.has_status and not resource.keeps_status_on_create:
        new.pop("status", None)
    complete = _DEFAULTS.get(resource.kind)
    if complete is not None:
        complete(new)
    _check(resource, new, _causes_meta(meta) + _causes_spec(resource, new))


def admit_update(resource: Resource, old: Object, new: Object, subresource: str | None) -> None:
    """Make `new` the object to store: parts that this write may not touch come from `old`.

    Raises Invalid, BadRequest.
    """
    require_shape(new, _SHAPES.get(resource.kind, _ANY_SHAPE))
    new["kind"], new["apiVersion"] = old["kind"], old["apiVersion"]
    meta, before = new.setdefault("metadata", {}), old["metadata"]
    if meta.get("name", before["name"]) != before["name"]:
        text = f'Invalid value: "{meta["name"]}": field is immutable'
        raise Invalid.of(
            resource.kind, resource.group, before["name"], [("metadata.name", "FieldValueInvalid", text)]
        )
    for name in (*_IMMUTABLE_META, "generation", "resourceVersion"):
        if name in before:
            meta[name] = before[name]
        else:
            meta.pop(name, None)
    if subresource == "status":
        for name in old.keys() | new.keys():
            if name not in ("metadata", "status"):
                _take(new, old, name)
        for name in ("ownerReferences", "finalizers"):
            _take(meta, before, name)
    elif subresource is None and resource.has_status:
        _take(new, old, "status")
    complete = _DEFAULTS.get(resource.kind)
    if complete is not None and subresource != "status":
        complete(new)
    if resource.has_generation and new.get("spec") != old.get("spec"):
        meta["generation"] = before.get("generation", 0) + 1
    causes = _causes_meta(meta) + _causes_spec(resource, new)
    if subresource is None and resource.kind in _FROZEN:
        causes += _FROZEN[resource.kind](old, new)
    if before.get("deletionTimestamp"):
        added = set(meta.get("finalizers") or ()) - set(before.get("finalizers") or ())
        if added:
            text = "Forbidden: no new finalizers can be added if the object is being deleted, "
            text += f"found new finalizers {sorted(added)}"
            causes.append(("metadata.finalizers", "FieldValueForbidden", text))
    _check(resource, new, causes)


def deletion_grace(pod: Object, asked: int | None) -> int:
    """Seconds a pod gets to end: what was asked, else its own; none when no containers can be running."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = (
        asked if asked is not None else int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
    )
    return 1 if grace < 0 else grace


def mark_deleted(obj: Object, grace: int, now: float) -> bool:
    """Set deletionTimestamp (the time by which it should be gone). A later delete can only shorten the grace.

    Returns whether anything changed.
    """
    meta = obj["metadata"]
    if meta.get("deletionTimestamp"):
        before = int(meta.get("deletionGracePeriodSeconds") or 0)
        if grace >= before:
            return False
        begun = seconds_of(meta["deletionTimestamp"]) - before
        meta["deletionTimestamp"] = rfc3339(begun + grace)
    else:
        meta["deletionTimestamp"] = rfc3339(now + grace)
        if "generation" in meta:
            meta["generation"] += 1
    meta["deletionGracePeriodSeconds"] = grace
    return True


def _take(new: Object, old: Object, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


# Checks


def _check(resource: Resource, new: Object, causes: list[Cause]) -> None:
    if causes:
        raise Invalid.of(resource.kind, resource.group, str(new["metadata"].get("name", "")), causes)


def _causes_meta(meta: Object) -> list[Cause]:
    causes: list[Cause] = []
    name = meta.get("name")
    if not name:
        causes.append(
            ("metadata.name", "FieldValueRequired", "Required value: name or generateName is required")
        )
    elif not isinstance(name, str) or len(name) > 253 or not _SUBDOMAIN.match(name.replace(":", "-")):
        text = f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric '
        text += "characters, '-' or '.', and must start and end with an alphanumeric character"
        causes.append(("metadata.name", "FieldValueInvalid", text))
    for key, value in (meta.get("labels") or {}).items():
        if not _LABEL_KEY.match(key):
            causes.append(
                ("metadata.labels", "FieldValueInvalid", f'Invalid value: "{key}": not a qualified name')
            )
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.match(value):
            text = (
                f'Invalid value: "{value}": a valid label must be an empty string or consist of alphanumeric '
            )
            text += "characters, '-', '_' or '.', and must start and end with an alphanumeric character"
            causes.append(("metadata.labels", "FieldValueInvalid", text))
    for key, value in (meta.get("annotations") or {}).items():
        if not isinstance(value, str):
            text = f'Invalid value: "{key}": an annotation is a string'
            causes.append(("metadata.annotations", "FieldValueInvalid", text))
    return causes


def _causes_spec(resource: Resource, new: Object) -> list[Cause]:
    if resource.kind == "Pod":
        return _causes_pod("spec", new.get("spec") or {})
    if resource.kind == "Job":
        return _causes_job(new.get("spec") or {})
    if resource.kind == "Node":
        return _causes_taints(new.get("spec") or {})
    if resource.kind == "PodDisruptionBudget":
        spec = new.get("spec") or {}
        if "minAvailable" in spec and "maxUnavailable" in spec:
            text = "Invalid value: minAvailable and maxUnavailable cannot be both set"
            return [("spec", "FieldValueInvalid", text)]
    return []


def _causes_pod(path: str, spec: Object) -> list[Cause]:
    causes: list[Cause] = []
    containers = spec.get("containers") or []
    if not containers:
        causes.append((f"{path}.containers", "FieldValueRequired", "Required value"))
    for at, container in enumerate(containers):
        causes += [
            (f"{path}.containers[{at}].{name}", "FieldValueRequired", "Required value")
            for name in ("name", "image")
            if not container.get(name)
        ]
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        text = (
            f'Unsupported value: "{spec["restartPolicy"]}": supported values: "Always", "Never", "OnFailure"'
        )
        causes.append((f"{path}.restartPolicy", "FieldValueNotSupported", text))
    return causes


def _causes_job(spec: Object) -> list[Cause]:
    template = (spec.get("template") or {}).get("spec") or {}
    causes = _causes_pod("spec.template.spec", template)
    if template.get("restartPolicy") not in ("Never", "OnFailure"):
        text = 'Required value: valid values: "OnFailure", "Never"'
        causes.append(("spec.template.spec.restartPolicy", "FieldValueRequired", text))
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        text = "Required value: when completion mode is Indexed"
        causes.append(("spec.completions", "FieldValueRequired", text))
    if spec.get("podFailurePolicy") and template.get("restartPolicy") != "Never":
        text = 'Invalid value: only "Never" is supported when podFailurePolicy is specified'
        causes.append(("spec.template.spec.restartPolicy", "FieldValueInvalid", text))
    return causes


def _causes_taints(spec: Object) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[tuple[str, str]] = set()
    for at, taint in enumerate(spec.get("taints") or []):
        identity = (taint.get("key", ""), taint.get("effect", ""))
        if identity[1] not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            text = f'Unsupported value: "{identity[1]}": supported values: '
            text += '"NoSchedule", "PreferNoSchedule", "NoExecute"'
            causes.append((f"spec.taints[{at}].effect", "FieldValueNotSupported", text))
        if identity in seen:
            text = f'Duplicate value: taints must be unique by key and effect pair ("{identity[0]}", "{identity[1]}")'
            causes.append((f"spec.taints[{at}]", "FieldValueDuplicate", text))
        seen.add(identity)
    return causes


# What an update may not change


def _frozen_pod(old: Object, new: Object) -> list[Cause]:
    """Of a pod's spec only images, the deadline, a shorter grace and further tolerations may change."""
    before, after = _thawed_pod(old["spec"]), _thawed_pod(new.get("spec") or {})
    if before != after:
        text = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
        text += "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
        text += (
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
        )
        text += "previously negative)"
        return [("spec", "FieldValueForbidden", text)]
    kept = new["spec"].get("tolerations") or []
    if any(toleration not in kept for toleration in old["spec"].get("tolerations") or []):
        text = "Forbidden: existing toleration can not be modified except its tolerationSeconds"
        return [("spec.tolerations", "FieldValueForbidden", text)]
    return []


def _thawed_pod(spec: Object) -> Object:
    rest = {key: value for key, value in spec.items() if key not in ("activeDeadlineSeconds", "tolerations")}
    for name in ("containers", "initContainers"):
        if name in rest:
            rest[name] = [{key: value for key, value in one.items() if key != "image"} for one in rest[name]]
    return rest


def _frozen_job(old: Object, new: Object) -> list[Cause]:
    """A Job's shape is fixed; completions of an Indexed one follow parallelism, a suspended one may be placed anew."""
    before, after = dict(old["spec"]), dict(new.get("spec") or {})
    frozen = [
        "completions",
        "selector",
        "template",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
    ]
    if before.get("completionMode") == "Indexed" and after.get("completions") == after.get("parallelism"):
        frozen.remove("completions")
    if before.get("suspend") and not (old.get("status") or {}).get("startTime"):
        before["template"], after["template"] = (
            _placeable(before["template"]),
            _placeable(after.get("template") or {}),
        )
    return [
        (f"spec.{name}", "FieldValueInvalid", "Invalid value: field is immutable")
        for name in frozen
        if before.get(name) != after.get(name)
    ]


def _placeable(template: Object) -> Object:
    spec = dict(template.get("spec") or {})
    for name in ("nodeSelector", "tolerations", "affinity", "schedulingGates"):
        spec.pop(name, None)
    return {"spec": spec}


def _frozen_node(old: Object, new: Object) -> list[Cause]:
    spec = new.setdefault("spec", {})
    if not spec.get("unschedulable"):
        spec.pop("unschedulable", None)
    if not spec.get("taints"):
        spec.pop("taints", None)
    before = (old.get("spec") or {}).get("providerID")
    if before and spec.get("providerID") != before:
        return [
            (
                "spec.providerID",
                "FieldValueForbidden",
                "Forbidden: node updates may not change a set providerID",
            )
        ]
    return []


_FROZEN: dict[str, Callable[[Object, Object], list[Cause]]] = {
    "Pod": _frozen_pod,
    "Job": _frozen_job,
    "Node": _frozen_node,
}


# Defaults


def _default_pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        image = str(container.get("image", ""))
        tag = image.rsplit("/", 1)[-1].partition(":")[2]
        container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")
        container.setdefault("resources", {})
        requests, limits = container["resources"].get("requests"), container["resources"].get("limits")
        if limits:
            container["resources"]["requests"] = dict(limits) | dict(requests or {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")
        for variable in container.get("env") or ():
            if reference := (variable.get("valueFrom") or {}).get("fieldRef"):
                reference.setdefault("apiVersion", "v1")


def _default_pod(pod: Object) -> None:
    spec = pod.setdefault("spec", {})
    _default_pod_spec(spec)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_covers_no_execute(toleration, key) for toleration in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": UNREACHABLE_TOLERATION_SECONDS,
                }
            )
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", _qos_class(spec))


def _covers_no_execute(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _qos_class(spec: Object) -> str:
    """Guaranteed when every container limits cpu and memory to what it requests, BestEffort when none asks."""
    containers = [container.get("resources") or {} for container in spec.get("containers") or ()]
    basic = ("cpu", "memory")
    if not any(
        name in (part.get(side) or {})
        for part in containers
        for side in ("requests", "limits")
        for name in basic
    ):
        return "BestEffort"
    for part in containers:
        limits, requests = part.get("limits") or {}, part.get("requests") or {}
        if any(name not in limits or requests.get(name) != limits[name] for name in basic):
            return "Burstable"
    return "Guaranteed"


def _default_job(job: Object) -> None:
    spec, meta = job.setdefault("spec", {}), job["metadata"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("backoffLimit", 6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1)
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault(
        "podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    )
    template = spec.setdefault("template", {})
    _default_pod_spec(template.setdefault("spec", {}))
    if not spec["manualSelector"]:
        uid, name = meta["uid"], meta.get("name", "")
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels.update({"controller-uid": uid, "job-name": name})
        labels.update({"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name})
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")


def _default_node(node: Object) -> None:
    node.setdefault("spec", {})
    labels = node["metadata"].setdefault("labels", {})
    labels.setdefault("kubernetes.io/hostname", node["metadata"].get("name", ""))


def _default_namespace(namespace: Object) -> None:
    namespace["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = namespace["metadata"].get(
        "name", ""
    )
    namespace.setdefault("spec", {"finalizers": ["kubernetes"]})
    namespace.setdefault("status", {"phase": "Active"})


def _default_service(service: Object) -> None:
    spec = service.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("clusterIP", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _default_secret(secret: Object) -> None:
    secret.setdefault("type", "Opaque")


_DEFAULTS: dict[str, Callable[[Object], None]] = {
    "Pod": _default_pod,
    "Job": _default_job,
    "Node": _default_node,
    "Namespace": _default_namespace,
    "Service": _default_service,
    "Secret": _default_secret,
}
