"""The three patches of the Kubernetes API: JSON patch, merge patch, strategic merge patch."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

from sim.errors import BadRequest, Invalid
from sim.schema import ListRule, Path, list_rule

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


# JSON patch (RFC 6902)


def json_patch(document: Any, operations: Any) -> Any:
    """Apply the operations in order to a copy. Raises BadRequest (no patch) or Invalid (does not apply)."""
    if not isinstance(operations, list):
        raise BadRequest("a JSON patch is a list of operations")
    result = copy.deepcopy(document)
    for operation in operations:
        try:
            result = _apply(result, operation)
        except (KeyError, IndexError, ValueError, TypeError) as problem:
            raise Invalid(
                "the server rejected our request due to an error in our request: "
                f"{operation.get('op') if isinstance(operation, dict) else operation!r} "
                f"{operation.get('path') if isinstance(operation, dict) else ''}: {problem}"
            ) from None
    return result


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is no JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _index(container: list[Any], part: str, *, adding: bool = False) -> int:
    if part == "-" and adding:
        return len(container)
    index = int(part)
    if not 0 <= index < len(container) + adding:
        raise IndexError(f"index {part} is out of range")
    return index


def _find(document: Any, parts: list[str]) -> Any:
    for part in parts:
        document = document[_index(document, part)] if isinstance(document, list) else document[part]
    return document


def _add(document: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    parent = _find(document, parts[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, parts[-1], adding=True), value)
    elif isinstance(parent, dict):
        parent[parts[-1]] = value
    else:
        raise TypeError("the parent is neither an object nor a list")
    return document


def _remove(document: Any, parts: list[str]) -> Any:
    parent = _find(document, parts[:-1])
    if isinstance(parent, list):
        return parent.pop(_index(parent, parts[-1]))
    return parent.pop(parts[-1])


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    name, parts = operation["op"], _pointer(operation["path"])
    match name:
        case "add":
            return _add(document, parts, copy.deepcopy(operation["value"]))
        case "remove":
            _remove(document, parts)
        case "replace":
            value = copy.deepcopy(operation["value"])
            if not parts:
                return value
            parent = _find(document, parts[:-1])
            if isinstance(parent, list):
                parent[_index(parent, parts[-1])] = value
            elif parts[-1] not in parent:
                raise KeyError(f"replace operation does not apply: doc is missing key {operation['path']}")
            else:
                parent[parts[-1]] = value
        case "move":
            return _add(document, parts, _remove(document, _pointer(operation["from"])))
        case "copy":
            return _add(document, parts, copy.deepcopy(_find(document, _pointer(operation["from"]))))
        case "test":
            try:
                found = _find(document, parts)
            except (KeyError, IndexError):
                found = None
            if found != operation.get("value"):
                raise ValueError(f"testing path {operation['path']} failed")
        case _:
            raise ValueError(f"unexpected kind {name!r}")
    return document


# Merge patch (RFC 7386)


def merge_patch(document: Any, patch: Any) -> Any:
    """Merge objects key by key; null removes, anything else replaces. Gives a new document."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


# Strategic merge patch


def strategic_patch(kind: str, document: dict[str, Any], patch: Any) -> dict[str, Any]:
    """Merge as the kind's types say; understands `$patch`, `$retainKeys`, `$setElementOrder` and
    `$deleteFromPrimitiveList`. Gives a new document. Raises BadRequest.
    """
    if not isinstance(patch, dict):
        raise BadRequest("a strategic merge patch is an object")
    return _merge_map(kind, (), copy.deepcopy(document), copy.deepcopy(patch))


def _merge_map(kind: str, path: Path, original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch.pop("$patch", None)
    if directive == "replace":
        return patch
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise BadRequest(f"unrecognized $patch directive {directive!r}")
    retained = patch.pop("$retainKeys", None)
    if retained is not None:
        original = {key: value for key, value in original.items() if key in retained}
    orders = {key.removeprefix(_ORDER): patch.pop(key) for key in list(patch) if key.startswith(_ORDER)}
    for key in [key for key in patch if key.startswith(_DELETE_FROM)]:
        name, dropped = key.removeprefix(_DELETE_FROM), patch.pop(key)
        if name in original:
            original[name] = [value for value in original[name] if value not in dropped]
    for key, value in patch.items():
        before = original.get(key)
        if value is None:
            original.pop(key, None)
        elif isinstance(value, dict):
            is_deleted = value.get("$patch") == "delete"
            merged = _merge_map(kind, (*path, key), before if isinstance(before, dict) else {}, value)
            if is_deleted:
                original.pop(key, None)
            else:
                original[key] = merged
        elif isinstance(value, list):
            rule = list_rule(kind, (*path, key))
            if rule is None:
                original[key] = [item for item in value if not _is_directive(item)]
            else:
                known = before if isinstance(before, list) else []
                original[key] = _merge_list(kind, (*path, key), rule, known, value, orders.pop(key, None))
        else:
            original[key] = value
    for key, order in orders.items():  # only the order changed
        rule = list_rule(kind, (*path, key))
        if rule is not None and isinstance(original.get(key), list):
            original[key] = _ordered(rule, original[key], original[key], order, set())
    return original


def _is_directive(item: Any) -> bool:
    return isinstance(item, dict) and "$patch" in item


def _identity(rule: ListRule, item: Any) -> Hashable:
    if rule.merge_key is None:
        return item if isinstance(item, Hashable) else repr(item)
    if not isinstance(item, dict) or rule.merge_key not in item:
        raise BadRequest(f"map: {item} does not contain declared merge key: {rule.merge_key}")
    value = item[rule.merge_key]
    return value if isinstance(value, Hashable) else repr(value)


def _merge_list(
    kind: str, path: Path, rule: ListRule, original: list[Any], patch: list[Any], order: list[Any] | None
) -> list[Any]:
    if rule.merge_key is None:
        merged = [*original, *(value for value in patch if value not in original)]
        merged = list(dict.fromkeys(merged))
        return _ordered(rule, merged, original, order, set(patch)) if order is not None else merged
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not _is_directive(item)]
    merged = list(original)
    touched: set[Hashable] = set()
    for item in patch:
        identity = _identity(rule, item)
        at = next((i for i, one in enumerate(merged) if _identity(rule, one) == identity), None)
        if isinstance(item, dict) and item.get("$patch") == "delete":
            if at is not None:
                del merged[at]
            continue
        touched.add(identity)
        if at is None:
            merged.append(_merge_map(kind, path, {}, item))
        else:
            merged[at] = _merge_map(kind, path, merged[at], item)
    return _ordered(rule, merged, original, order, touched) if order is not None else merged


def _ordered(
    rule: ListRule, merged: list[Any], original: list[Any], order: list[Any], touched: set[Hashable]
) -> list[Any]:
    """Items of the wanted order in that order; the server's own keep their places relative to it."""
    wanted = {_identity(rule, item): at for at, item in enumerate(order)}
    server = {_identity(rule, item): at for at, item in enumerate(original)}
    known = [item for item in merged if _identity(rule, item) in wanted or _identity(rule, item) in touched]
    known.sort(key=lambda item: wanted.get(_identity(rule, item), len(wanted)))
    others = [item for item in merged if item not in known]
    result: list[Any] = []
    while known and others:
        left, right = server.get(_identity(rule, others[0])), server.get(_identity(rule, known[0]))
        takes_other = left is not None and right is not None and left < right
        result.append(others.pop(0) if takes_other else known.pop(0))
    return [*result, *known, *others]
