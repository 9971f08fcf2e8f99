"""Events as the events.k8s.io group shows them; they are stored as core events."""

from __future__ import annotations

from typing import Any

_RENAMED = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_BACK = {new: old for old, new in _RENAMED.items()}


def to_v1(event: dict[str, Any]) -> dict[str, Any]:
    """A core event in the shape of events.k8s.io/v1."""
    shown = {_RENAMED.get(key, key): value for key, value in event.items()}
    return shown | {"apiVersion": "events.k8s.io/v1"}


def from_v1(event: dict[str, Any]) -> dict[str, Any]:
    """An events.k8s.io/v1 event in the shape that is stored."""
    stored = {_BACK.get(key, key): value for key, value in event.items()}
    return stored | {"apiVersion": "v1"}
