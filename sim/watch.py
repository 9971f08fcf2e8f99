"""Stored objects, the changes between them, and the streams that follow the changes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sim.selectors import Predicate

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is empty."""

_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored version of an object: its JSON, and what finding it needs without decoding."""

    key: Key
    uid: str
    revision: int
    raw: bytes
    labels: dict[str, str]
    fields: dict[str, str]

    def object(self) -> dict[str, Any]:
        """A fresh copy, the caller's to change."""
        decoded: dict[str, Any] = _decoder.decode(self.raw)
        return decoded


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `entry` is the new version (for DELETED the last one, with the revision of the deletion)."""

    type: str
    kind: str
    entry: Entry
    previous: Entry | None
    actor: str

    @property
    def namespace(self) -> str:
        return self.entry.key[0]

    @property
    def name(self) -> str:
        return self.entry.key[1]

    @property
    def revision(self) -> int:
        return self.entry.revision

    @property
    def object(self) -> dict[str, Any]:
        """A fresh copy of the new version."""
        return self.entry.object()

    @property
    def old(self) -> dict[str, Any] | None:
        """A fresh copy of the version before, None for a creation."""
        return self.previous.object() if self.previous else None


@dataclass(frozen=True)
class Scope:
    """Which objects of one kind a list or watch sees. `namespace` None means all."""

    namespace: str | None
    labels: Predicate
    fields: Predicate
    is_filtered: bool

    def covers(self, entry: Entry) -> bool:
        """Whether this version of an object is seen."""
        if self.namespace is not None and entry.key[0] != self.namespace:
            return False
        return not self.is_filtered or (self.labels(entry.labels) and self.fields(entry.fields))

    def event(self, change: Change) -> str | None:
        """What the change is to a watcher: an object that leaves the selection is DELETED to it."""
        now = change.type != "DELETED" and self.covers(change.entry)
        before = change.previous is not None and self.covers(change.previous)
        if now:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else None


MAX_QUEUED = 50_000
"""A watcher that is this many events behind is closed, as an API server closes a slow one."""


@dataclass
class Watch:
    """A stream of one kind's changes, in revision order.

    Iterating blocks and yields (type, object, revision) until `close` is called, by either side. `take`
    gives what is queued without waiting; `on_ready` is called, under the store's lock, when an event comes.
    """

    scope: Scope
    forget: Callable[[Watch], None]
    current_revision: Callable[[], int]
    on_ready: Callable[[], None] | None = None
    _queue: deque[tuple[str, Entry]] = field(default_factory=deque)
    _ready: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False

    def offer(self, kind_event: str, entry: Entry) -> None:
        """Queue one event (the store calls this)."""
        with self._ready:
            if self.closed:
                return
            if len(self._queue) >= MAX_QUEUED:
                self.closed = True
            else:
                self._queue.append((kind_event, entry))
            self._ready.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    def take(self) -> list[tuple[str, Entry]]:
        """Everything queued, oldest first; empty when nothing is."""
        with self._ready:
            events = list(self._queue)
            self._queue.clear()
        return events

    def next(self, timeout_seconds: float | None = None) -> tuple[str, dict[str, Any], int] | None:
        """The next event, or None after the time-out or once closed and drained."""
        with self._ready:
            self._ready.wait_for(lambda: self._queue or self.closed, timeout_seconds)
            if not self._queue:
                return None
            kind_event, entry = self._queue.popleft()
        return kind_event, entry.object(), entry.revision

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any], int]]:
        while (event := self.next()) is not None:
            yield event

    def bookmark(self) -> int | None:
        """The revision up to which everything was taken, None while events are queued."""
        with self._ready:
            idle = not self._queue
        revision = self.current_revision()
        with self._ready:
            return revision if idle and not self._queue else None

    def close(self) -> None:
        """End the stream; may be called twice. Queued events stay readable."""
        self.forget(self)
        with self._ready:
            self.closed = True
            self._ready.notify_all()
        if self.on_ready is not None:
            self.on_ready()
