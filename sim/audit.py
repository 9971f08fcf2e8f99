"""Who wrote what, when: tests and drills read the cluster's truth from here."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Note:
    """What the HTTP front knows of a request besides its user; controllers have none."""

    verb: str
    path: str = ""
    user_agent: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One write, or one refused try. `n` rises by one; `at` is Unix seconds; `status` is the HTTP code."""

    n: int
    at: float
    verb: str
    kind: str
    namespace: str
    name: str
    uid: str
    actor: str
    subresource: str
    detail: str
    status: int
    dry_run: bool = False
    user_agent: str = ""
    path: str = ""
    revision: int = 0
    """The object's revision after the write, 0 when nothing was written."""

    def as_json(self) -> dict[str, Any]:
        """The record as plain JSON, with `time` in RFC 3339 beside `at`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            "time": datetime.fromtimestamp(self.at, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        }


class AuditLog(deque[AuditRecord]):
    """The newest records, oldest first; older ones than the bound are dropped. Any thread may add and read."""

    def __init__(self, bound: int) -> None:
        super().__init__(maxlen=bound)
        self.last = 0
        self._lock = threading.Lock()

    def add(
        self,
        note: Note,
        *,
        at: float,
        kind: str,
        namespace: str,
        name: str,
        actor: str,
        status: int,
        uid: str = "",
        subresource: str = "",
        is_dry_run: bool = False,
        revision: int = 0,
    ) -> None:
        """Append a record under the next number."""
        with self._lock:
            self.last += 1
            self.append(
                AuditRecord(
                    n=self.last,
                    at=at,
                    verb=note.verb,
                    kind=kind,
                    namespace=namespace,
                    name=name,
                    uid=uid,
                    actor=actor,
                    subresource=subresource,
                    detail=note.detail,
                    status=status,
                    dry_run=is_dry_run,
                    user_agent=note.user_agent,
                    path=note.path,
                    revision=revision,
                )
            )

    def since(self, n: int) -> list[AuditRecord]:
        """Records with a number greater than `n`."""
        records: list[AuditRecord] = []
        with self._lock:
            for record in reversed(self):
                if record.n <= n:
                    break
                records.append(record)
        return records[::-1]
