"""The cluster's state, and what may be written to it: what an API server does before etcd.

Objects go in and out as plain dicts; what comes out is always the caller's own copy. Writes are admitted by
`sim.admission` (defaults, spec and status kept apart), get the next revision, and wake listeners and watches
in revision order. Garbage collection by owner and namespace happens within the write that causes it.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from sim import admission
from sim.audit import AuditLog, Note
from sim.errors import AlreadyExists, Conflict, Forbidden, NotFound
from sim.etcd import Etcd
from sim.pages import ListResult
from sim.resources import BY_KIND, Resource
from sim.table import Table
from sim.watch import Entry, Key

GARBAGE_COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
NAMESPACE_CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"

IMMORTAL_NAMESPACES = ("default", "kube-system", "kube-public")
EVENT_SECONDS = 3600.0
MAX_EVENTS = 20_000
_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

_encode = msgspec.json.Encoder().encode


class Store(Etcd):
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
        super().__init__(history=history, clock=clock, first_revision=first_revision)
        self.audit = AuditLog(audit_bound)
        self._rng = rng or random.SystemRandom()
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create("Namespace", {"metadata": {"name": name}}, actor="system:apiserver")

    # Reading

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
        """As etcd has it, without events whose time is over."""
        with self.lock:
            if kind == "Event":
                self._expire_events()
            return super().list(
                kind,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continue_token=continue_token,
            )

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
