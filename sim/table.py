"""All objects of one kind, in key order, with the changes that watches may still ask for."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator

from sim.resources import Resource
from sim.watch import Change, Entry, Key, Scope, Watch


class Table:
    """The store's lock guards it."""

    def __init__(self, resource: Resource, history: int) -> None:
        """`history` bounds the changes that are remembered."""
        self.resource = resource
        self.entries: dict[Key, Entry] = {}
        self.watches: list[Watch] = []
        self.compacted = 0
        """Changes up to this revision are forgotten."""
        self._order: list[Key] = []
        self._history: deque[Change] = deque(maxlen=history)

    def keys(self, namespace: str | None) -> list[Key]:
        """Keys of one namespace or of all (None), in order."""
        if namespace is None:
            return self._order[:]
        low = bisect.bisect_left(self._order, (namespace, ""))
        high = bisect.bisect_left(self._order, (namespace + "\0", ""))
        return self._order[low:high]

    def matching(self, scope: Scope) -> list[Entry]:
        """Entries that a list of this scope sees, in key order."""
        entries = self.entries
        found = [entries[key] for key in self.keys(scope.namespace)]
        if not scope.is_filtered:
            return found
        labels, fields = scope.labels, scope.fields
        return [entry for entry in found if labels(entry.labels) and fields(entry.fields)]

    def put(self, entry: Entry) -> None:
        """Store a new or newer version."""
        key = entry.key
        if key not in self.entries:
            if not self._order or key > self._order[-1]:
                self._order.append(key)
            else:
                bisect.insort(self._order, key)
        self.entries[key] = entry

    def drop(self, key: Key) -> None:
        """Remove an object."""
        del self.entries[key]
        del self._order[bisect.bisect_left(self._order, key)]

    def tell(self, change: Change) -> None:
        """Remember a change and queue it for the watches that see it."""
        if len(self._history) == self._history.maxlen:
            self.compacted = self._history[0].revision
        self._history.append(change)
        for watch in self.watches:
            if event := watch.scope.event(change):
                watch.offer(event, change.entry)

    def since(self, revision: int) -> Iterator[Change]:
        """Remembered changes after a revision, oldest first."""
        at = bisect.bisect_right(self._history, revision, key=lambda change: change.revision)
        for index in range(at, len(self._history)):
            yield self._history[index]

    def compact(self, to_revision: int) -> None:
        """Forget changes up to a revision."""
        while self._history and self._history[0].revision <= to_revision:
            self._history.popleft()
        self.compacted = max(self.compacted, to_revision)
