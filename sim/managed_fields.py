"""Who set which field: managedFields, and server-side apply on top of them.

A field set is a set of paths. A path is a tuple of Kubernetes' fieldsV1 elements: `f:name` for a field,
`k:{"name":"train"}` for an element of a keyed list, `v:"text"` for a member of a set.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sim.errors import BadRequest, Conflict
from sim.schema import ListRule, is_atomic_map, list_rule

FieldPath = tuple[str, ...]
FieldSet = frozenset[FieldPath]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NOT_TRACKED = frozenset(
    ("f:metadata", f"f:{name}")
    for name in (
        *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink"),
        *("managedFields", "deletionTimestamp", "deletionGracePeriodSeconds"),
    )
) | {("f:apiVersion",), ("f:kind",)}


@dataclass(frozen=True)
class Owner:
    """One entry of managedFields. `operation` is Apply or Update."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    fields: FieldSet
    time: str = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.manager, self.operation, self.subresource


# fieldsV1 <-> paths


def read_fields(fields: dict[str, Any], prefix: FieldPath = ()) -> FieldSet:
    """The paths of a fieldsV1 object."""
    found: set[FieldPath] = set()
    for name, below in fields.items():
        if name == ".":
            found.add(prefix)
        elif below:
            found |= read_fields(below, (*prefix, name))
        else:
            found.add((*prefix, name))
    return frozenset(found)


def write_fields(paths: FieldSet) -> dict[str, Any]:
    """The fieldsV1 object of some paths; a path that has others below it is marked with "."."""
    root: dict[str, Any] = {}
    for path in sorted(paths):
        node = root
        for part in path:
            node = node.setdefault(part, {})
    for path in paths:
        node = root
        for part in path:
            node = node[part]
        if node:
            node["."] = {}
    return root


def read_owners(obj: dict[str, Any]) -> list[Owner]:
    """The managedFields of an object."""
    return [
        Owner(
            entry.get("manager", ""),
            entry.get("operation", "Update"),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
            read_fields(entry.get("fieldsV1") or {}),
            entry.get("time", ""),
        )
        for entry in obj["metadata"].get("managedFields") or []
        if entry
    ]


def write_owners(obj: dict[str, Any], owners: list[Owner]) -> None:
    """Store owners that own something as the object's managedFields."""
    entries: list[dict[str, Any]] = []
    for owner in owners:
        if not owner.fields:
            continue
        entry = {
            "manager": owner.manager,
            "operation": owner.operation,
            "apiVersion": owner.api_version,
            "time": owner.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": write_fields(owner.fields),
        }
        entries.append(entry | ({"subresource": owner.subresource} if owner.subresource else {}))
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


# Values by path


def _element(rule: ListRule, item: Any) -> str:
    if not rule.keys:
        return "v:" + msgspec.json.encode(item).decode()
    if not isinstance(item, dict):
        raise BadRequest(f"an element of a list keyed by {', '.join(rule.keys)} is no object")
    keys = {key: item.get(key, "TCP" if key == "protocol" else None) for key in sorted(rule.keys)}
    return "k:" + msgspec.json.encode(keys).decode()


def _flatten(
    kind: str, value: Any, fields: tuple[str, ...], path: FieldPath, into: dict[FieldPath, Any]
) -> None:
    if path in _NOT_TRACKED:
        return
    if isinstance(value, dict) and value and not is_atomic_map(fields):
        for key, below in value.items():
            _flatten(kind, below, (*fields, key), (*path, f"f:{key}"), into)
        return
    rule = list_rule(kind, fields) if isinstance(value, list) else None
    if rule is None or not value:
        into[path] = value
        return
    for item in value:
        element = (*path, _element(rule, item))
        into[element] = None if rule.keys else item
        if rule.keys:
            for key, below in item.items():
                _flatten(kind, below, (*fields, key), (*element, f"f:{key}"), into)


def values(kind: str, obj: dict[str, Any]) -> dict[FieldPath, Any]:
    """Every owned path of an object with its value; an element of a keyed list has None beside its fields."""
    found: dict[FieldPath, Any] = {}
    _flatten(kind, obj, (), (), found)
    found.pop((), None)
    return found


# Updates


def note_update(
    kind: str,
    old: dict[str, Any] | None,
    new: dict[str, Any],
    *,
    manager: str,
    api_version: str,
    subresource: str,
    now: str,
) -> None:
    """Set the managedFields of `new` after a write that is no apply: who changes a field owns it alone."""
    before, after = (values(kind, old) if old is not None else {}), values(kind, new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    gone = before.keys() - after.keys()
    if not changed and not gone:
        return
    owners: list[Owner] = []
    mine: Owner | None = None
    for owner in read_owners(new):
        left = owner.fields - gone
        if owner.identity == (manager, "Update", subresource):
            mine = replace(owner, fields=left)
        else:
            lost = {path for path in changed if path in before}
            owners.append(replace(owner, fields=left - lost))
    fields = (mine.fields if mine else frozenset()) | changed
    if fields:
        owners.append(Owner(manager, "Update", api_version, subresource, frozenset(fields), now))
    write_owners(new, owners)


# Server-side apply


def apply(
    kind: str,
    live: dict[str, Any] | None,
    config: dict[str, Any],
    *,
    manager: str,
    force: bool,
    subresource: str,
    now: str,
) -> dict[str, Any]:
    """The object after `manager` applies `config`: its fields set, those it no longer names removed.

    Raises Conflict when a field with another value belongs to another manager and `force` is not given.
    """
    if config.get("metadata", {}).get("managedFields"):
        raise BadRequest("metadata.managedFields must be nil")
    wanted = values(kind, config)
    present = values(kind, live) if live is not None else {}
    owners = read_owners(live) if live is not None else []
    mine = next((owner for owner in owners if owner.identity == (manager, "Apply", subresource)), None)
    others = [owner for owner in owners if owner is not mine]
    differs = {path for path, value in wanted.items() if path in present and present[path] != value}
    clashes = [(owner, sorted(owner.fields & differs)) for owner in others]
    clashes = [(owner, paths) for owner, paths in clashes if paths]
    if clashes and not force and not _takes_over(kind, manager, live, present, clashes):
        raise _conflict(clashes)
    others = [replace(owner, fields=owner.fields - differs) for owner in others]
    result = copy.deepcopy(live) if live is not None else {}
    kept = frozenset().union(*(owner.fields for owner in others)) | wanted.keys()
    for path in sorted(
        (mine.fields if mine else frozenset()) - wanted.keys()
    ):  # an element before its fields
        if not any(one[: len(path)] == path for one in kept):
            _drop(kind, result, path)
    merged: dict[str, Any] = _merge(kind, (), result, config)
    fields = frozenset(wanted)
    time = mine.time if mine and mine.fields == fields else now
    api_version = str(config.get("apiVersion", ""))
    write_owners(merged, [*others, Owner(manager, "Apply", api_version, subresource, fields, time)])
    return merged


def _takes_over(
    kind: str,
    manager: str,
    live: dict[str, Any] | None,
    present: dict[FieldPath, Any],
    clashes: list[tuple[Owner, list[FieldPath]]],
) -> bool:
    """Whether kubectl only meets what its own client-side apply set, and nobody changed since.

    As the API server does, so that `kubectl apply` can be followed by `kubectl apply --server-side`.
    """
    text = ((live or {}).get("metadata", {}).get("annotations") or {}).get(LAST_APPLIED)
    if manager != "kubectl" or text is None:
        return False
    try:
        applied = values(kind, msgspec.json.decode(text, type=dict[str, Any]))
    except msgspec.DecodeError:
        return False
    missing = object()
    return all(applied.get(path, missing) == present[path] for _, paths in clashes for path in paths)


def _conflict(clashes: list[tuple[Owner, list[FieldPath]]]) -> Conflict:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{owner.manager}"'
            + (f" with subresource {owner.subresource!r}" if owner.subresource else "")
            + f" using {owner.api_version}",
            "field": _dotted(path),
        }
        for owner, paths in clashes
        for path in paths
    ]
    if len(causes) == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines = [f"Apply failed with {len(causes)} conflicts:"]
        for message in dict.fromkeys(cause["message"] for cause in causes):
            lines.append(f"{message.replace('conflict with', 'conflicts with')}:")
            lines += [f"- {cause['field']}" for cause in causes if cause["message"] == message]
        text = " ".join(lines[:1]) + " " + "\n".join(lines[1:])
    return Conflict(text, details={"causes": causes})


def _dotted(path: FieldPath) -> str:
    text = ""
    for part in path:
        if part.startswith("f:"):
            text += f".{part[2:]}"
        elif part.startswith("k:"):
            keys = msgspec.json.decode(part[2:])
            text += (
                "["
                + ",".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in keys.items())
                + "]"
            )
        else:
            text += f"[={part[2:]}]"
    return text


def _drop(kind: str, obj: dict[str, Any], path: FieldPath) -> None:
    node: Any = obj
    fields: tuple[str, ...] = ()
    parents: list[tuple[Any, Any]] = []
    is_element = False
    element_keys: tuple[str, ...] = ()
    for part in path:
        if part.startswith("f:"):
            key: Any = part[2:]
            if is_element and key in element_keys:
                return  # what names an element goes with it, not before
            fields = (*fields, key)
            is_element = False
            if not isinstance(node, dict) or key not in node:
                return
        else:
            rule = list_rule(kind, fields)
            if rule is None or not isinstance(node, list):
                return
            key = next((at for at, item in enumerate(node) if _element(rule, item) == part), None)
            if key is None:
                return
            is_element, element_keys = True, rule.keys
        parents.append((node, key))
        node = node[key]
    holder, key = parents[-1]
    del holder[key]
    for holder, key in reversed(parents[:-1]):  # an emptied list or map goes with its last member
        if holder[key] in ({}, []) and len(parents) > 2 and holder is not obj:
            del holder[key]
        else:
            break


def _merge(kind: str, fields: tuple[str, ...], live: Any, wanted: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict) and not is_atomic_map(fields):
        merged = dict(live)
        for key, value in wanted.items():
            if value is None:
                continue
            merged[key] = _merge(kind, (*fields, key), live.get(key), value)
        return merged
    rule = list_rule(kind, fields) if isinstance(wanted, list) else None
    if rule is None or not isinstance(live, list):
        return copy.deepcopy(wanted)
    items = {_element(rule, item): item for item in live}
    for item in wanted:
        element = _element(rule, item)
        items[element] = _merge(kind, fields, items.get(element), item)
    return list(items.values())
