"""Bodies in Kubernetes' protobuf form, for the small objects that newer kubectls send so.

From 1.33 on `kubectl create` (namespace, configmap, token, ...) and the reviews behind `kubectl auth` speak
protobuf in requests; answers may be JSON. Field numbers are those of the API's generated.proto files; a field
that is not listed is left out, a kind that is not listed is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sim.errors import BadRequest, UnsupportedMediaType

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class _Many:
    """A repeated field."""

    of: Any


@dataclass(frozen=True)
class _Map:
    """A map from text to something."""

    of: Any


_Message = dict[int, tuple[str, Any]]
"""Field number -> (JSON name, type): "text", "bytes", "raw", "int", "bool", "int-or-text", a message, _Many, _Map."""

_META: _Message = {
    1: ("name", "text"),
    2: ("generateName", "text"),
    3: ("namespace", "text"),
    5: ("uid", "text"),
    6: ("resourceVersion", "text"),
    11: ("labels", _Map("text")),
    12: ("annotations", _Map("text")),
    14: ("finalizers", _Many("text")),
}
_DELETE_OPTIONS: _Message = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", {1: ("uid", "text"), 2: ("resourceVersion", "text")}),
    3: ("orphanDependents", "bool"),
    4: ("propagationPolicy", "text"),
    5: ("dryRun", _Many("text")),
}
_REQUIREMENT: _Message = {1: ("key", "text"), 2: ("operator", "text"), 3: ("values", _Many("text"))}
_SELECTOR: _Message = {1: ("matchLabels", _Map("text")), 2: ("matchExpressions", _Many(_REQUIREMENT))}
_BUDGET: _Message = {
    1: ("minAvailable", "int-or-text"),
    2: ("selector", _SELECTOR),
    3: ("maxUnavailable", "int-or-text"),
    4: ("unhealthyPodEvictionPolicy", "text"),
}
_REFERENCE: _Message = {
    1: ("kind", "text"),
    2: ("apiVersion", "text"),
    3: ("name", "text"),
    4: ("uid", "text"),
}
_TOKEN: _Message = {
    1: ("audiences", _Many("text")),
    3: ("boundObjectRef", _REFERENCE),
    4: ("expirationSeconds", "int"),
}
_RESOURCE: _Message = {
    at: (name, "text")
    for at, name in enumerate(("namespace", "verb", "group", "version", "resource", "subresource", "name"), 1)
}
_ACCESS: _Message = {
    1: ("resourceAttributes", _RESOURCE),
    2: ("nonResourceAttributes", {1: ("path", "text"), 2: ("verb", "text")}),
}

_KINDS: dict[str, _Message] = {
    "Namespace": {1: ("metadata", _META)},
    "ServiceAccount": {1: ("metadata", _META)},
    "ConfigMap": {
        1: ("metadata", _META),
        2: ("data", _Map("text")),
        3: ("binaryData", _Map("bytes")),
        4: ("immutable", "bool"),
    },
    "Secret": {
        1: ("metadata", _META),
        2: ("data", _Map("bytes")),
        3: ("type", "text"),
        4: ("stringData", _Map("text")),
        5: ("immutable", "bool"),
    },
    "PodDisruptionBudget": {1: ("metadata", _META), 2: ("spec", _BUDGET)},
    "Eviction": {1: ("metadata", _META), 2: ("deleteOptions", _DELETE_OPTIONS)},
    "DeleteOptions": _DELETE_OPTIONS,
    "TokenRequest": {1: ("metadata", _META), 2: ("spec", _TOKEN)},
    "TokenReview": {
        1: ("metadata", _META),
        2: ("spec", {1: ("token", "text"), 2: ("audiences", _Many("text"))}),
    },
    "SelfSubjectReview": {1: ("metadata", _META)},
    "SelfSubjectAccessReview": {1: ("metadata", _META), 2: ("spec", _ACCESS)},
    "SelfSubjectRulesReview": {1: ("metadata", _META), 2: ("spec", {1: ("namespace", "text")})},
}
_ENVELOPE: _Message = {1: ("typeMeta", {1: ("apiVersion", "text"), 2: ("kind", "text")}), 2: ("raw", "raw")}
_INT_OR_TEXT: _Message = {1: ("type", "int"), 2: ("number", "int"), 3: ("text", "text")}


def decode(body: bytes) -> dict[str, Any]:
    """The object of a protobuf body. Raises BadRequest, UnsupportedMediaType (kind not read in this form)."""
    if not body.startswith(_MAGIC):
        raise BadRequest(
            "the provided data does not appear to be a protobuf message, expected prefix 6b 38 73 00"
        )
    try:
        envelope = _read(body[len(_MAGIC) :], _ENVELOPE)
        about: dict[str, Any] = envelope.get("typeMeta") or {}
        message = _KINDS.get(about.get("kind", ""))
        if message is None:
            raise UnsupportedMediaType(
                f"{about.get('kind')} is not read as protobuf here - accepted media types include: application/json"
            )
        return {key: value for key, value in about.items() if value} | _read(
            envelope.get("raw", b""), message
        )
    except (IndexError, ValueError) as problem:
        raise BadRequest(f"the protobuf message cannot be read: {problem}") from None


def _read(text: bytes, message: _Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in _fields(text):
        if number not in message:
            continue
        name, kind = message[number]
        if isinstance(kind, _Many):
            found.setdefault(name, []).append(_value(value, kind.of))
        elif isinstance(kind, _Map):
            pair = _read(_as_bytes(value), {1: ("key", "text"), 2: ("value", kind.of)})
            found.setdefault(name, {})[pair.get("key", "")] = pair.get("value", "")
        else:
            found[name] = _value(value, kind)
    return found


def _value(value: int | bytes, kind: Any) -> Any:
    if kind == "int":
        return value if isinstance(value, int) and value < 2**63 else int(value) - 2**64
    if kind == "bool":
        return bool(value)
    text = _as_bytes(value)
    if kind == "text":
        return text.decode()
    if kind == "bytes":
        return base64.b64encode(text).decode()
    if kind == "raw":
        return text
    if kind == "int-or-text":
        either = _read(text, _INT_OR_TEXT)
        return either.get("text", "") if either.get("type") else either.get("number", 0)
    return _read(text, kind)


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has the wrong wire type")  # noqa: TRY004  # of the message, not of a caller
    return value


def _fields(text: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(text):
        key, at = _varint(text, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(text, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            length, at = _varint(text, at)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {wire}")
        if at + length > len(text):
            raise ValueError("it ends too early")
        yield key >> 3, text[at : at + length]
        at += length


def _varint(text: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = text[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
