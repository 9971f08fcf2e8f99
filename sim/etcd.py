"""What is stored: objects as Kubernetes JSON under one global revision counter, in memory, as etcd keeps them.

Here it is read, followed and told of; what may be written is the store's to say. What comes out is always the
caller's own copy.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from sim.errors import BadRequest, Gone, NotFound
from sim.pages import INCONSISTENT, ListResult, Selection, Snapshots, read_token, write_token
from sim.resources import BY_KIND, Resource
from sim.selectors import parse_fields, parse_labels
from sim.table import Table
from sim.watch import Change, Entry, Key, Scope, Watch

_encode = msgspec.json.Encoder().encode

Entries = list[Entry]  # `Etcd.list` hides the builtin's name in the class's own annotations


class Etcd:
    """See the module. One lock guards everything; any thread may call any method."""

    def __init__(
        self, *, history: int = 10_000, clock: Callable[[], float] = time.time, first_revision: int = 1
    ) -> None:
        """`history` bounds the changes kept for watches, per kind."""
        self.clock = clock
        self.lock = threading.RLock()
        self._revision = first_revision
        self._tables = {kind: Table(resource, history) for kind, resource in BY_KIND.items()}
        self._by_uid: dict[str, tuple[str, Key]] = {}
        self._dependents: dict[str, set[tuple[str, Key]]] = {}
        self._event_times: dict[Key, float] = {}  # of the last write, oldest first
        self._listeners: list[Callable[[Change], None]] = []
        self._unpublished: deque[Change] = deque()
        self._publishing = False
        self._snapshots = Snapshots(clock)

    # Reading

    @property
    def revision(self) -> int:
        """The revision of the newest write."""
        return self._revision

    def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        """The object. Raises NotFound."""
        return self.entry(kind, namespace, name).object()

    def entry(self, kind: str, namespace: str | None, name: str) -> Entry:
        """The stored version, for its JSON bytes. Raises NotFound."""
        table = self._tables[kind]
        with self.lock:
            entry = table.entries.get(self._key(table.resource, namespace, name))
        if entry is None:
            raise NotFound.of(table.resource.plural, table.resource.group, name)
        return entry

    def exists(self, uid: str) -> bool:
        """Whether an object of that uid is stored."""
        return uid in self._by_uid

    def count(self, kind: str) -> int:
        """How many objects of the kind there are."""
        return len(self._tables[kind].entries)

    def scope(
        self,
        kind: str,
        namespace: str | None,
        label_selector: str | None,
        field_selector: str | None,
        *,
        resource: Resource | None = None,
    ) -> Scope:
        """The selection of a list or watch. Raises BadRequest for a selector that cannot be read."""
        resource = resource or self._tables[kind].resource
        return Scope(
            namespace if resource.namespaced else None,
            parse_labels(label_selector),
            parse_fields(field_selector, resource.selectable),
            is_filtered=bool(label_selector or field_selector),
        )

    def list(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
        continue_token: str | None = None,
    ) -> ListResult:
        """A page in key order; following pages show the state of the first. Raises Gone for an expired token."""
        table = self._tables[kind]
        scope = self.scope(kind, namespace, label_selector, field_selector)
        selection: Selection = (kind, scope.namespace, label_selector or "", field_selector or "")
        with self.lock:
            revision, start = read_token(continue_token) if continue_token else (self._revision, None)
            if revision == INCONSISTENT:
                revision, found = self._revision, table.matching(scope)
            elif start is not None:
                found = self._snapshots.find(selection, revision, start)
            else:
                found = table.matching(scope)
            first = bisect.bisect_right(found, start, key=lambda entry: entry.key) if start is not None else 0
            page = found[first : first + limit] if limit else found[first:]
            left = len(found) - first - len(page)
            token = None
            if left:
                token = write_token(revision, page[-1].key)
                self._snapshots.keep(selection, revision, found)
        return ListResult(page, str(revision), token, left if left and not scope.is_filtered else None)

    # Watching

    def watch(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        resource_version: str | int | None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        scope: Scope | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> Watch:
        """Follow changes after `resource_version`; None, "" and "0" begin with an ADDED for each object there is.

        Raises Gone when changes after that revision are forgotten, or the revision is not of this cluster.
        """
        table = self._tables[kind]
        scope = scope or self.scope(kind, namespace, label_selector, field_selector)
        try:
            since = int(resource_version or 0)
        except ValueError:
            raise BadRequest(f"invalid resource version {resource_version!r}") from None
        with self.lock:
            if since and (since < table.compacted or since > self._revision):
                raise Gone(f"too old resource version: {since} ({max(table.compacted, 1)})")
            watch = Watch(scope, lambda ended: self._forget_watch(table, ended), self._settled_revision)
            if since:
                for change in table.since(since):
                    if event := scope.event(change):
                        watch.offer(event, change.entry)
            else:
                for entry in table.matching(scope):
                    watch.offer("ADDED", entry)
            watch.on_ready = on_ready
            table.watches.append(watch)
        return watch

    def _settled_revision(self) -> int:
        """The newest revision whose event every watch has: within a write the counter runs ahead of them."""
        with self.lock:
            return self._revision

    def _forget_watch(self, table: Table, watch: Watch) -> None:
        with self.lock:
            table.watches = [other for other in table.watches if other is not watch]

    @property
    def open_watches(self) -> int:
        """How many streams are followed."""
        with self.lock:
            return sum(len(table.watches) for table in self._tables.values())

    def close_watches(self) -> int:
        """End every stream, as an API server does when it restarts. Returns how many there were."""
        with self.lock:
            open_watches = [watch for table in self._tables.values() for watch in table.watches]
        for watch in open_watches:
            watch.close()
        return len(open_watches)

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` for every later change, in order, under the store's lock: note it and return.

        A listener may write; what it writes is told to all listeners after the present change.
        """
        with self.lock:
            self._listeners.append(listener)

    def compact(self, to_revision: int | None = None) -> None:
        """Forget changes up to the revision (None: all so far) and the lists that continue tokens lean on."""
        with self.lock:
            limit = self._revision if to_revision is None else min(to_revision, self._revision)
            for table in self._tables.values():
                table.compact(limit)
            self._snapshots.forget(limit)

    # Inside a write

    def _commit(self, event: str, table: Table, key: Key, obj: dict[str, Any], actor: str) -> dict[str, Any]:
        resource = table.resource
        self._revision += 1
        meta = obj["metadata"]
        meta["resourceVersion"] = str(self._revision)
        previous = table.entries.get(key)
        fields = resource.fields(obj) if resource.fields else {}
        fields = fields | {"metadata.name": key[1], "metadata.namespace": key[0]}
        entry = Entry(key, meta["uid"], self._revision, _encode(obj), meta.get("labels") or {}, fields)
        if event == "DELETED":
            table.drop(key)
            self._by_uid.pop(entry.uid, None)
        else:
            table.put(entry)
            self._by_uid[entry.uid] = (resource.kind, key)
        if resource.kind == "Event":
            self._event_times.pop(key, None)
            if event != "DELETED":
                self._event_times[key] = self.clock()
        self._index_owners(resource.kind, key, previous, obj if event != "DELETED" else None)
        change = Change(event, resource.kind, entry, previous, actor)
        table.tell(change)
        self._publish(change)
        return obj

    def _index_owners(self, kind: str, key: Key, previous: Entry | None, new: dict[str, Any] | None) -> None:
        now = {owner["uid"] for owner in (new or {}).get("metadata", {}).get("ownerReferences") or ()}
        before: set[str] = set()
        if previous is not None and b'"ownerReferences"' in previous.raw:
            before = {owner["uid"] for owner in previous.object()["metadata"].get("ownerReferences") or ()}
        for uid in before - now:
            self._dependents.get(uid, set()).discard((kind, key))
        for uid in now - before:
            self._dependents.setdefault(uid, set()).add((kind, key))

    def _publish(self, change: Change) -> None:
        self._unpublished.append(change)
        if self._publishing:
            return
        self._publishing = True
        try:
            while self._unpublished:
                told = self._unpublished.popleft()
                for listener in self._listeners:
                    listener(told)
        finally:
            self._publishing = False

    @staticmethod
    def _key(resource: Resource, namespace: str | None, name: str) -> Key:
        if not resource.namespaced:
            return "", name
        if not namespace:
            raise BadRequest(f"an empty namespace may not be set for {resource.kind} {name!r}")
        return namespace, name
