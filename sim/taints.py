"""Taints against tolerations, as Kubernetes matches them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    # Without a key only Exists matches everything.
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def untolerated(
    taints: Sequence[Mapping[str, Any]],
    tolerations: Sequence[Mapping[str, Any]],
    effects: Sequence[str],
) -> Mapping[str, Any] | None:
    """The first taint with one of the effects that no toleration covers."""
    for taint in taints:
        if taint["effect"] in effects and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None


def seconds_tolerated(
    taints: Sequence[Mapping[str, Any]], tolerations: Sequence[Mapping[str, Any]]
) -> float | None:
    """How long a pod may stay under these NoExecute taints: 0 at once, None for ever (as far as they go)."""
    shortest: float | None = None
    for taint in taints:
        if taint["effect"] != "NoExecute":
            continue
        matching = [each for each in tolerations if tolerates(each, taint)]
        if not matching:
            return 0.0
        limited = [
            float(each["tolerationSeconds"]) for each in matching if each.get("tolerationSeconds") is not None
        ]
        if limited:
            least = max(min(limited), 0.0)
            shortest = least if shortest is None else min(shortest, least)
    return shortest
