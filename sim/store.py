"""The cluster's state: objects as Kubernetes JSON under one global revision counter, in memory.

Objects go in and out as plain dicts; what comes out is always the caller's own copy. Writes are admitted by
`sim.admission` (defaults, spec and status kept apart), get the next revision, and wake listeners and watches
in revision order. Garbage collection by owner and namespace happens within the write that causes it.
"""

from __future__ import annotations

import bisect
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from sim import admission
from sim.audit import AuditLog, Note
from sim.errors import AlreadyExists, ApiError, BadRequest, Conflict, Forbidden, Gone, NotFound
from sim.pages import INCONSISTENT, ListResult, Selection, Snapshots, read_token, write_token
from sim.resources import BY_KIND, Resource
from sim.selectors import parse_fields, parse_labels
from sim.table import Table
from sim.watch import Change, Entry, Key, Scope, Watch

GARBAGE_COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
NAMESPACE_CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"

IMMORTAL_NAMESPACES = ("default", "kube-system", "kube-public")
EVENT_SECONDS = 3600.0
MAX_EVENTS = 20_000
_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

_encode = msgspec.json.Encoder().encode

Entries = list[Entry]  # `Store.list` hides the builtin's name in the class's own annotations


class Store:
    """See the module. One lock guards everything; any thread may call any method."""

    def __init__(
        self,
        *,
        history: int = 10_000,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        first_revision: int = 1,
        audit_bound: int = 200_000,
    ) -> None:
        """`history` bounds the changes kept for watches, per kind. The four standard namespaces exist at once."""
        self.clock = clock
        self.lock = threading.RLock()
        self.audit = AuditLog(audit_bound)
        self._rng = rng or random.SystemRandom()
        self._revision = first_revision
        self._tables = {kind: Table(resource, history) for kind, resource in BY_KIND.items()}
        self._by_uid: dict[str, tuple[str, Key]] = {}
        self._dependents: dict[str, set[tuple[str, Key]]] = {}
        self._event_times: dict[Key, float] = {}  # of the last write, oldest first
        self._listeners: list[Callable[[Change], None]] = []
        self._unpublished: deque[Change] = deque()
        self._publishing = False
        self._snapshots = Snapshots(clock)
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create("Namespace", {"metadata": {"name": name}}, actor="system:apiserver")

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
            if kind == "Event":
                self._expire_events()
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

    # Writing

    def create(
        self, kind: str, obj: dict[str, Any], *, actor: str, dry_run: bool = False, note: Note | None = None
    ) -> dict[str, Any]:
        """Store a new object and return it with uid, creationTimestamp, resourceVersion and defaults.

        `metadata.generateName` gets five letters. Raises AlreadyExists, Invalid, NotFound (namespace),
        Forbidden (namespace being deleted).
        """
        table = self._tables[kind]
        resource = table.resource
        new = _copy(obj)
        meta = new.setdefault("metadata", {})
        with self.lock:
            if not meta.get("name") and meta.get("generateName"):
                meta["name"] = meta["generateName"] + "".join(self._rng.choices(_NAME_LETTERS, k=5))
            if not resource.namespaced:
                meta.pop("namespace", None)
            meta["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
            meta["creationTimestamp"] = admission.rfc3339(self.clock())
            for server_owned in (
                "resourceVersion",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "selfLink",
            ):
                meta.pop(server_owned, None)
            new = {"kind": kind, "apiVersion": resource.api_version} | {
                key: value for key, value in new.items() if key not in ("kind", "apiVersion")
            }
            admission.admit_create(resource, new)
            key = self._key(resource, meta.get("namespace"), meta["name"])
            if resource.namespaced:
                self._require_namespace(resource, key)
            if key in table.entries:
                raise AlreadyExists.of(resource.plural, resource.group, meta["name"])
            if dry_run:
                self._record("create", resource, new, actor, note=note, dry_run=True, status=201)
                return new
            stored = self._commit("ADDED", table, key, new, actor)
            self._record("create", resource, stored, actor, note=note, status=201)
            self._after_create(kind, stored)
        return stored

    def load(self, kind: str, objects: Iterable[dict[str, Any]], *, actor: str) -> int:
        """Store many complete objects at once, spec and status as given, without defaults or audit records."""
        table = self._tables[kind]
        loaded = 0
        with self.lock:
            for given in objects:
                new = {"kind": kind, "apiVersion": table.resource.api_version} | given
                meta = new["metadata"] = dict(given["metadata"])
                meta.setdefault("uid", str(uuid.UUID(int=self._rng.getrandbits(128), version=4)))
                meta.setdefault("creationTimestamp", admission.rfc3339(self.clock()))
                key = self._key(table.resource, meta.get("namespace"), meta["name"])
                if key in table.entries:
                    raise AlreadyExists.of(table.resource.plural, table.resource.group, meta["name"])
                self._commit("ADDED", table, key, new, actor)
                loaded += 1
        return loaded

    def update(
        self,
        kind: str,
        obj: dict[str, Any],
        *,
        actor: str,
        subresource: str | None = None,
        dry_run: bool = False,
        note: Note | None = None,
    ) -> dict[str, Any]:
        """Replace an object; without `subresource` its status stays, with "status" its spec stays.

        Raises NotFound, Conflict (metadata.resourceVersion or uid given and not the present one), Invalid.
        An update that changes nothing writes nothing.
        """
        table = self._tables[kind]
        meta = obj.get("metadata") or {}
        name = str(meta.get("name", ""))
        with self.lock:
            entry = self.entry(kind, meta.get("namespace"), name)
            self._check_version(table, entry, obj)
            return self._replace(table, entry, _copy(obj), actor, subresource, dry_run=dry_run, note=note)

    def mutate(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        change: Callable[[dict[str, Any]], dict[str, Any] | None],
        *,
        actor: str,
        subresource: str | None = None,
        uid: str | None = None,
        dry_run: bool = False,
        note: Note | None = None,
    ) -> dict[str, Any]:
        """Change an object in one step: `change` gets a copy and returns the new object, or None to leave it.

        It runs under the store's lock, so it cannot meet a conflict; keep it short. As with `update`, only
        the part that `subresource` names is taken. Raises NotFound, Conflict (another uid), Invalid.
        """
        table = self._tables[kind]
        with self.lock:
            entry = self.entry(kind, namespace, name)
            if uid is not None and uid != entry.uid:
                raise Conflict.precondition(table.resource.plural, name, "UID", uid, entry.uid)
            new = change(entry.object())
            if new is None:
                return entry.object()
            self._check_version(table, entry, new)
            return self._replace(table, entry, new, actor, subresource, dry_run=dry_run, note=note)

    def bind(
        self,
        namespace: str,
        name: str,
        node: str,
        *,
        actor: str,
        uid: str | None = None,
        dry_run: bool = False,
        note: Note | None = None,
    ) -> dict[str, Any]:
        """Place a pod on a node and set PodScheduled. Raises Conflict when it is placed or being deleted."""

        def place(pod: dict[str, Any]) -> dict[str, Any]:
            if pod["spec"].get("nodeName"):
                raise Conflict(
                    f'Operation cannot be fulfilled on pods/binding "{name}": pod {name} is already assigned to '
                    f'node "{pod["spec"]["nodeName"]}"',
                    details={"name": name, "kind": "pods/binding"},
                )
            if pod["metadata"].get("deletionTimestamp"):
                raise Conflict(
                    f'Operation cannot be fulfilled on pods/binding "{name}": pod {name} is being deleted, '
                    "cannot be assigned to a host",
                    details={"name": name, "kind": "pods/binding"},
                )
            pod["spec"]["nodeName"] = node
            condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
            condition["lastTransitionTime"] = admission.rfc3339(self.clock())
            conditions = (pod.get("status") or {}).get("conditions") or []
            others = [one for one in conditions if one["type"] != "PodScheduled"]
            pod.setdefault("status", {})["conditions"] = [*others, condition]
            return pod

        note = note or Note("create", detail=f"node {node}")
        return self.mutate(
            "Pod",
            namespace,
            name,
            place,
            actor=actor,
            subresource="binding",
            uid=uid,
            dry_run=dry_run,
            note=note,
        )

    def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        actor: str,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation: str | None = None,
        dry_run: bool = False,
        note: Note | None = None,
    ) -> dict[str, Any]:
        """Delete, or begin to: the object as it stands afterwards is returned.

        A pod on a node gets deletionTimestamp and waits for its kubelet, which deletes again with grace 0
        when the containers have ended; without a node, finished, or with grace 0 it goes at once. Finalizers
        hold any object until they are removed. `propagation` is Background (default), Foreground or Orphan
        (default for Jobs, as in batch/v1). Raises NotFound, Conflict (uid or resource_version), Forbidden.
        """
        table = self._tables[kind]
        resource = table.resource
        if kind == "Namespace" and name in IMMORTAL_NAMESPACES:
            raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        with self.lock:
            entry = self.entry(kind, namespace, name)
            if uid is not None and uid != entry.uid:
                raise Conflict.precondition(resource.plural, name, "UID", uid, entry.uid)
            if resource_version is not None and resource_version != str(entry.revision):
                raise Conflict.precondition(
                    resource.plural, name, "ResourceVersion", resource_version, str(entry.revision)
                )
            present = entry.object()
            if dry_run:
                self._record("delete", resource, present, actor, note=note, dry_run=True, status=200)
                return present
            propagation = propagation or ("Orphan" if kind == "Job" else "Background")
            grace = admission.deletion_grace(present, grace_period_seconds) if kind == "Pod" else 0
            detail = f"grace {grace}" if kind == "Pod" else f"propagation {propagation}"
            if kind == "Namespace":
                result = self._terminate_namespace(table, entry, present, actor)
            else:
                result = self._begin_delete(table, entry, present, actor, grace, propagation)
            self._record(
                "delete", resource, result, actor, note=note or Note("delete", detail=detail), status=200
            )
        return result

    # Inside a write

    @staticmethod
    def _check_version(table: Table, entry: Entry, wanted: dict[str, Any]) -> None:
        """Raises Conflict when the uid or resourceVersion that an object names is not the present one."""
        resource, meta = table.resource, wanted.get("metadata") or {}
        if meta.get("uid") and meta["uid"] != entry.uid:
            raise Conflict.precondition(resource.plural, entry.key[1], "UID", meta["uid"], entry.uid)
        if meta.get("resourceVersion") and meta["resourceVersion"] != str(entry.revision):
            raise Conflict.stale(resource.plural, resource.group, entry.key[1])

    def _begin_delete(
        self, table: Table, entry: Entry, present: dict[str, Any], actor: str, grace: int, propagation: str
    ) -> dict[str, Any]:
        meta = present["metadata"]
        if propagation == "Orphan":
            self._orphan(entry.uid)
        elif propagation == "Foreground" and self._dependents.get(entry.uid):
            meta["finalizers"] = [*meta.get("finalizers", ()), "foregroundDeletion"]
        changed = admission.mark_deleted(present, grace, self.clock())
        if not grace and not meta.get("finalizers"):
            return self._remove(table, entry.key, present, actor)
        result = self._commit("MODIFIED", table, entry.key, present, actor) if changed else present
        if "foregroundDeletion" in meta.get("finalizers", ()):
            for kind, key in sorted(self._dependents.get(entry.uid, ())):
                self._delete_quietly(kind, key, GARBAGE_COLLECTOR)
        return result

    def _remove(self, table: Table, key: Key, last: dict[str, Any], actor: str) -> dict[str, Any]:
        removed = self._commit("DELETED", table, key, last, actor)
        uid = removed["metadata"]["uid"]
        for kind, dependent in sorted(self._dependents.pop(uid, ())):
            self._collect(kind, dependent)
        for owner in removed["metadata"].get("ownerReferences") or ():
            self._release_foreground(owner["uid"])
        if key[0]:
            self._finish_namespace(key[0])
        return removed

    def _collect(self, kind: str, key: Key) -> None:
        """Delete an object whose owners are all gone; of one that has another owner, drop the dead reference."""
        entry = self._tables[kind].entries.get(key)
        if entry is None:
            return
        present = entry.object()
        owners = present["metadata"].get("ownerReferences") or []
        living = [owner for owner in owners if owner["uid"] in self._by_uid]
        if not living:
            self._delete_quietly(kind, key, GARBAGE_COLLECTOR)
        elif len(living) < len(owners):
            present["metadata"]["ownerReferences"] = living
            self._commit("MODIFIED", self._tables[kind], key, present, GARBAGE_COLLECTOR)

    def _orphan(self, uid: str) -> None:
        for kind, key in sorted(self._dependents.pop(uid, ())):
            entry = self._tables[kind].entries.get(key)
            if entry is not None:
                dependent = entry.object()
                owners = dependent["metadata"].get("ownerReferences") or []
                dependent["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]
                if not dependent["metadata"]["ownerReferences"]:
                    del dependent["metadata"]["ownerReferences"]
                self._commit("MODIFIED", self._tables[kind], key, dependent, GARBAGE_COLLECTOR)

    def _release_foreground(self, owner_uid: str) -> None:
        if self._dependents.get(owner_uid) or owner_uid not in self._by_uid:
            return
        kind, key = self._by_uid[owner_uid]
        owner = self._tables[kind].entries[key].object()
        finalizers = owner["metadata"].get("finalizers") or []
        if "foregroundDeletion" in finalizers:
            owner["metadata"]["finalizers"] = [one for one in finalizers if one != "foregroundDeletion"]
            entry = self._tables[kind].entries[key]
            self._replace(self._tables[kind], entry, owner, GARBAGE_COLLECTOR, None)

    def _delete_quietly(self, kind: str, key: Key, actor: str) -> None:
        try:
            self.delete(kind, key[0] or None, key[1], actor=actor, propagation="Background")
        except NotFound:
            return  # went with something deleted just before

    def _replace(
        self,
        table: Table,
        entry: Entry,
        new: dict[str, Any],
        actor: str,
        subresource: str | None,
        *,
        dry_run: bool = False,
        note: Note | None = None,
    ) -> dict[str, Any]:
        resource = table.resource
        old = entry.object()
        admission.admit_update(resource, old, new, subresource)
        meta = new["metadata"]
        verb_note = note or Note("update")
        if new == old:
            self._record(
                "update", resource, old, actor, subresource, note=verb_note, dry_run=dry_run, status=200
            )
            return old
        if dry_run:
            self._record(
                "update", resource, new, actor, subresource, note=verb_note, dry_run=True, status=200
            )
            return new
        leaves = meta.get("deletionTimestamp") and not meta.get("finalizers")
        if leaves and not meta.get("deletionGracePeriodSeconds") and resource.kind != "Namespace":
            stored = self._remove(table, entry.key, new, actor)
        else:
            stored = self._commit("MODIFIED", table, entry.key, new, actor)
        self._record("update", resource, stored, actor, subresource, note=verb_note, status=200)
        return stored

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

    def _after_create(self, kind: str, stored: dict[str, Any]) -> None:
        meta = stored["metadata"]
        if kind == "Namespace":
            account = {"metadata": {"name": "default", "namespace": meta["name"]}}
            self.create(
                "ServiceAccount",
                account,
                actor="system:serviceaccount:kube-system:service-account-controller",
            )
        elif kind == "Event":
            self._expire_events()
        owners = meta.get("ownerReferences") or ()
        if owners and not any(
            owner["uid"] in self._by_uid or owner["kind"] not in BY_KIND for owner in owners
        ):
            self._delete_quietly(kind, (meta.get("namespace", ""), meta["name"]), GARBAGE_COLLECTOR)

    def _expire_events(self) -> None:
        """An event lives one hour after its last write, and there are no more than a bound of them."""
        table = self._tables["Event"]
        horizon = self.clock() - EVENT_SECONDS
        while self._event_times:
            key, written_at = next(iter(self._event_times.items()))
            if written_at > horizon and len(self._event_times) <= MAX_EVENTS:
                return
            self._remove(table, key, table.entries[key].object(), "system:apiserver")

    # Namespaces

    def _require_namespace(self, resource: Resource, key: Key) -> None:
        entry = self._tables["Namespace"].entries.get(("", key[0]))
        if entry is None:
            raise NotFound.of("namespaces", "", key[0])
        if entry.fields["status.phase"] == "Terminating":
            raise Forbidden.in_ending_namespace(resource.plural, key[1], key[0])

    def _terminate_namespace(
        self, table: Table, entry: Entry, present: dict[str, Any], actor: str
    ) -> dict[str, Any]:
        name = entry.key[1]
        if admission.mark_deleted(present, 0, self.clock()):
            present["status"] = {"phase": "Terminating"}
            present = self._commit("MODIFIED", table, entry.key, present, actor)
        for kind, other in self._tables.items():
            for key in other.keys(name) if other.resource.namespaced else ():
                self._delete_quietly(kind, key, NAMESPACE_CONTROLLER)
        self._finish_namespace(name)
        return present

    def _finish_namespace(self, name: str) -> None:
        table = self._tables["Namespace"]
        entry = table.entries.get(("", name))
        if entry is None or entry.fields["status.phase"] != "Terminating":
            return
        if any(other.resource.namespaced and other.keys(name) for other in self._tables.values()):
            return
        self._commit("DELETED", table, entry.key, entry.object(), NAMESPACE_CONTROLLER)

    # Audit

    def _record(
        self,
        verb: str,
        resource: Resource,
        obj: dict[str, Any],
        actor: str,
        subresource: str | None = None,
        *,
        note: Note | None,
        dry_run: bool = False,
        status: int,
    ) -> None:
        meta = obj["metadata"]
        self.audit.add(
            note or Note(verb),
            at=self.clock(),
            kind=resource.kind,
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            uid=meta.get("uid", ""),
            actor=actor,
            subresource=subresource or "",
            status=status,
            is_dry_run=dry_run,
            revision=0 if dry_run else int(meta.get("resourceVersion", 0)),
        )

    @staticmethod
    def _key(resource: Resource, namespace: str | None, name: str) -> Key:
        if not resource.namespaced:
            return "", name
        if not namespace:
            raise BadRequest(f"an empty namespace may not be set for {resource.kind} {name!r}")
        return namespace, name


def _copy(obj: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of JSON, without the dropped nulls of metadata that Go clients send."""
    copied: dict[str, Any] = msgspec.json.decode(_encode(obj))
    meta = copied.get("metadata")
    if isinstance(meta, dict):
        copied["metadata"] = {key: value for key, value in meta.items() if value is not None}
    return copied


def iterate(store: Store, kind: str, namespace: str | None = None) -> Iterator[dict[str, Any]]:
    """Every object of a kind, one copy at a time."""
    for entry in store.list(kind, namespace).entries:
        yield entry.object()


__all__ = ["ApiError", "Change", "Entry", "ListResult", "Store", "Watch", "iterate"]
