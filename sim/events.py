"""Kubernetes events as components write them: a repeated one raises its count instead of adding an object."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from sim.admission import rfc3339
from sim.errors import ApiError
from sim.store import Store

REMEMBERED = 4096


class EventRecorder:
    """Writes events about objects. One for all components; safe from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._names: OrderedDict[tuple[str, ...], str] = OrderedDict()

    def record(
        self,
        about: Mapping[str, Any],
        *,
        reason: str,
        message: str,
        component: str,
        actor: str,
        warning: bool = False,
        host: str = "",
    ) -> None:
        """Write one event. What cannot be written (its namespace is going) is dropped, as in Kubernetes."""
        metadata = about["metadata"]
        # Events about cluster-scoped objects live in "default".
        namespace = metadata.get("namespace") or "default"
        key = (namespace, metadata["uid"], component, host, reason, message)
        now = rfc3339(self._store.clock())
        with self._lock:
            known = self._names.get(key)
        try:
            if known is not None and self._count_up(namespace, known, now, actor):
                return
            name = f"{metadata['name']}.{hashlib.sha256(repr((key, now)).encode()).hexdigest()[:16]}"
            event = {
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": about["apiVersion"],
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "resourceVersion": metadata.get("resourceVersion", ""),
                }
                | ({"namespace": metadata["namespace"]} if metadata.get("namespace") else {}),
                "reason": reason,
                "message": message,
                "type": "Warning" if warning else "Normal",
                "source": {"component": component} | ({"host": host} if host else {}),
                "reportingComponent": component,
                "reportingInstance": host,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
                "eventTime": None,
            }
            self._store.create("Event", event, actor=actor)
        except ApiError:
            return
        with self._lock:
            self._names[key] = name
            while len(self._names) > REMEMBERED:
                self._names.popitem(last=False)

    def _count_up(self, namespace: str, name: str, now: str, actor: str) -> bool:
        def change(event: dict[str, Any]) -> dict[str, Any]:
            event["count"] = int(event.get("count") or 1) + 1
            event["lastTimestamp"] = now
            return event

        try:
            self._store.mutate("Event", namespace, name, change, actor=actor)
        except ApiError:
            return False
        return True
