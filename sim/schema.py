"""How lists and maps of the served kinds merge: the keys Kubernetes' own types declare.

`merge_key` is the strategic merge patch's patchMergeKey, `map_keys` server-side apply's list map keys. Lists
that are named nowhere are atomic: a patch replaces them. Node taints, tolerations, commands and container
statuses are such lists (`kubectl taint` sends the whole list).
"""

from __future__ import annotations

from dataclasses import dataclass

Path = tuple[str, ...]
"""Field names from the object down; elements of lists have no name of their own."""


@dataclass(frozen=True)
class ListRule:
    """One list that merges. Without `merge_key` it is a set of plain values."""

    merge_key: str | None = None
    map_keys: tuple[str, ...] = ()
    retains_keys: bool = False
    """A patch of an element names the keys it keeps (volumes: one source replaces another)."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Server-side apply's keys of an element."""
        return self.map_keys or ((self.merge_key,) if self.merge_key else ())


def _by(key: str, *keys: str, retains_keys: bool = False) -> ListRule:
    return ListRule(key, keys, retains_keys)


_SET = ListRule()
Rules = dict[Path, ListRule]

_CONTAINER: Rules = {
    ("env",): _by("name"),
    ("ports",): _by("containerPort", "containerPort", "protocol"),
    ("volumeMounts",): _by("mountPath"),
    ("volumeDevices",): _by("devicePath"),
}

_POD_SPEC: Rules = {
    ("volumes",): _by("name", retains_keys=True),
    ("imagePullSecrets",): _by("name"),
    ("hostAliases",): _by("ip"),
    ("topologySpreadConstraints",): _by("topologyKey", "topologyKey", "whenUnsatisfiable"),
    ("schedulingGates",): _by("name"),
    ("resourceClaims",): _by("name"),
}
for _name in ("containers", "initContainers", "ephemeralContainers"):
    _POD_SPEC[(_name,)] = _by("name")
    _POD_SPEC |= {(_name, *path): rule for path, rule in _CONTAINER.items()}

_ANY: Rules = {("metadata", "finalizers"): _SET, ("metadata", "ownerReferences"): _by("uid")}
_CONDITIONS: Rules = {("status", "conditions"): _by("type")}
_TEMPLATE: Rules = {("spec", "template", "spec", *path): rule for path, rule in _POD_SPEC.items()} | {
    ("spec", "template", *path): rule for path, rule in _ANY.items()
}

_KINDS: dict[str, Rules] = {
    "Pod": {("spec", *path): rule for path, rule in _POD_SPEC.items()}
    | _CONDITIONS
    | {("status", "podIPs"): _by("ip"), ("status", "hostIPs"): _by("ip")},
    "Node": _CONDITIONS | {("status", "addresses"): _by("type"), ("spec", "podCIDRs"): _SET},
    "Job": _TEMPLATE | _CONDITIONS,
    "ReplicaSet": _TEMPLATE | _CONDITIONS,
    "StatefulSet": _TEMPLATE | _CONDITIONS,
    "DaemonSet": _TEMPLATE | _CONDITIONS,
    "PodDisruptionBudget": _CONDITIONS,
    "Namespace": _CONDITIONS,
    "Service": _CONDITIONS | {("spec", "ports"): _by("port", "port", "protocol")},
    "ServiceAccount": {("secrets",): _by("name"), ("imagePullSecrets",): _by("name")},
}

_ATOMIC_NAMES = frozenset(
    (
        *("nodeSelector", "selector", "labelSelector", "fieldRef", "resourceFieldRef"),
        *("secretKeyRef", "configMapKeyRef", "involvedObject", "regarding", "fieldsV1"),
    )
)


def list_rule(kind: str, path: Path) -> ListRule | None:
    """How the list at `path` merges, None when it is atomic."""
    return _KINDS.get(kind, {}).get(path) or _ANY.get(path)


def is_atomic_map(path: Path) -> bool:
    """Whether server-side apply owns the map at `path` as one value."""
    return bool(path) and path[-1] in _ATOMIC_NAMES and "matchLabels" not in path
