"""The verbs over stored objects: get, list, create, update, patch, delete, deletecollection."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from sim import managed_fields
from sim.admission import rfc3339
from sim.api.events_v1 import from_v1, to_v1
from sim.api.request import (
    Form,
    Target,
    find_form,
    is_dry_run,
    make_note,
    manager_of,
    number,
    read_body,
    read_object,
    success,
    whole_number,
)
from sim.api.tables import partial, table
from sim.errors import BadRequest, Conflict, Gone, NotFound, ServerTimeout, UnsupportedMediaType
from sim.http_wire import Request, Response
from sim.pages import ListResult
from sim.patch import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    json_patch,
    merge_patch,
    strategic_patch,
)
from sim.resources import Resource
from sim.store import Store
from sim.watch import Entry

Object = dict[str, Any]

ORPHAN_WARNING = (
    '299 - "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove '
    'them or set propagationPolicy=Orphan to suppress this warning"'
)


def field_selector(request: Request, resource: Resource) -> str | None:
    """The field selector in the names of the stored kind."""
    text = request.query.get("fieldSelector")
    if text and resource.group == "events.k8s.io":
        return text.replace("regarding.", "involvedObject.").replace(
            "reportingController", "reportingComponent"
        )
    return text


def shown(resource: Resource, obj: Object) -> Object:
    """An object as the resource's group shows it."""
    return to_v1(obj) if resource.group == "events.k8s.io" else obj


class Objects:
    """One method per verb; each gives the whole response or raises an ApiError."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # Reading

    def get(self, request: Request, target: Target) -> Response:
        form = find_form(request)
        entry = self.store.entry(target.resource.kind, target.namespace, str(target.name))
        return self._answer(request, target, entry, form)

    def _answer(self, request: Request, target: Target, entry: Entry, form: Form) -> Response:
        if not form.kind and target.resource.group != "events.k8s.io":
            return Response(body=entry.raw)
        obj = entry.object()
        if form.kind == "Table":
            include = request.query.get("includeObject", "Metadata")
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            obj = table(
                target.resource.kind, [obj], now=self.store.clock(), include=include, metadata=metadata
            )
        elif form.kind:
            obj = partial(obj)
        else:
            obj = shown(target.resource, obj)
        return Response.json(obj)

    def list(self, request: Request, target: Target) -> Response:
        form = find_form(request)
        self._check_list_version(request)
        resource = target.resource
        result = self.store.list(
            resource.kind,
            target.namespace,
            label_selector=request.query.get("labelSelector"),
            field_selector=field_selector(request, resource),
            limit=number(request, "limit"),
            continue_token=request.query.get("continue") or None,
        )
        metadata: Object = {"resourceVersion": result.resource_version}
        if result.continue_token:
            metadata["continue"] = result.continue_token
        if result.remaining is not None:
            metadata["remainingItemCount"] = result.remaining
        if form.kind == "Table":
            include = request.query.get("includeObject", "Metadata")
            now = self.store.clock()
            return Response.json(
                table(resource.kind, result.items, now=now, include=include, metadata=metadata)
            )
        return Response(body=_list_body(resource, result, metadata, form))

    def _check_list_version(self, request: Request) -> None:
        query = request.query
        if "sendInitialEvents" in query:
            raise BadRequest("sendInitialEvents is forbidden for list")
        wanted, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        if not wanted or wanted == "0" or query.get("continue"):
            if match and not wanted:
                raise BadRequest("resourceVersionMatch is forbidden unless resourceVersion is provided")
            return
        version = number(request, "resourceVersion") or 0
        if version > self.store.revision:
            text = f"Too large resource version: {version}, current: {self.store.revision}"
            causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            raise ServerTimeout(f"Timeout: {text}", details={"causes": causes}, retry_after_seconds=1)
        if match == "Exact" and version < self.store.revision:
            raise Gone(f"The resourceVersion for the provided list is too old: {version}")

    # Writing

    def create(self, request: Request, target: Target) -> Response:
        resource = target.resource
        obj = self._prepare(target, read_object(request))
        managed_fields.note_update(
            resource.kind,
            None,
            obj,
            manager=manager_of(request),
            api_version=resource.api_version,
            subresource="",
            now=self._now(),
        )
        actor = request.user.name if request.user else ""
        dry_run = is_dry_run(request)
        note = make_note(request, "create")
        stored = self.store.create(resource.kind, obj, actor=actor, dry_run=dry_run, note=note)
        return self._written(request, target, stored, 201)

    def _prepare(self, target: Target, obj: Object) -> Object:
        """A body in the shape that is stored, with the namespace of the path. Raises BadRequest."""
        resource = target.resource
        for name, expected in (("kind", resource.kind), ("apiVersion", resource.api_version)):
            if obj.get(name) not in (None, "", expected):
                text = f"{obj.get('apiVersion')}, Kind={obj.get('kind')}"
                raise BadRequest(
                    f"the API version in the data ({text}) does not match the expected API version "
                    f"({resource.api_version}, Kind={resource.kind})"
                )
        meta = obj.setdefault("metadata", {})
        if resource.namespaced:
            if meta.get("namespace") not in (None, "", target.namespace):
                raise BadRequest(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            meta["namespace"] = target.namespace
        return from_v1(obj) if resource.group == "events.k8s.io" else obj

    def _named(self, target: Target, obj: Object) -> Object:
        name = obj["metadata"].setdefault("name", target.name)
        if name != target.name:
            raise BadRequest(
                f"the name of the object ({name}) does not match the name on the URL ({target.name})"
            )
        return obj

    def update(self, request: Request, target: Target) -> Response:
        resource = target.resource
        obj = self._named(target, self._prepare(target, read_object(request)))
        store, subresource = self.store, target.subresource or None
        with store.lock:
            old = store.get(resource.kind, target.namespace, str(target.name))
            self._note_update(request, target, old, obj)
            stored = store.update(
                resource.kind,
                obj,
                actor=request.user.name if request.user else "",
                subresource=subresource,
                dry_run=is_dry_run(request),
                note=make_note(request, "update"),
            )
        return self._written(request, target, stored, 200)

    def _note_update(self, request: Request, target: Target, old: Object, new: Object) -> None:
        """Give the request's manager the fields it changes, of the part it may touch."""
        part = {name: value for name, value in new.items() if name not in ("spec", "status")}
        if target.subresource == "status":
            kept, taken = "spec", "status"
        else:
            kept, taken = ("status" if target.resource.has_status else ""), "spec"
        if taken in new:
            part[taken] = new[taken]
        if kept in old:
            part[kept] = old[kept]
        meta = part["metadata"] = dict(new["metadata"])
        if "managedFields" not in meta and "managedFields" in old["metadata"]:
            meta["managedFields"] = old["metadata"]["managedFields"]
        managed_fields.note_update(
            target.resource.kind,
            old,
            part,
            manager=manager_of(request),
            api_version=target.resource.api_version,
            subresource=target.subresource,
            now=self._now(),
        )
        if "managedFields" in part["metadata"]:
            new["metadata"]["managedFields"] = part["metadata"]["managedFields"]
        else:
            new["metadata"].pop("managedFields", None)

    def patch(self, request: Request, target: Target) -> Response:
        media = request.headers.get("content-type", "").partition(";")[0].strip()
        body = read_body(request)
        if media == APPLY_PATCH:
            return self._apply(request, target, body)
        kind = target.resource.kind

        def change(old: Object) -> Object:
            base = shown(target.resource, old)
            if media == JSON_PATCH:
                new = json_patch(base, body)
            elif media == MERGE_PATCH:
                new = merge_patch(base, body)
            else:
                new = strategic_patch(kind, base, body)
            if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
                raise BadRequest("the patch leaves no object")
            new = self._named(target, self._prepare(target, new))
            self._note_update(request, target, old, new)
            return new

        if media not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH):
            accepted = f"{JSON_PATCH}, {MERGE_PATCH}, {STRATEGIC_PATCH}, {APPLY_PATCH}"
            raise UnsupportedMediaType(
                f"the body of the request was in an unknown format - accepted media types include: {accepted}"
            )
        stored = self.store.mutate(
            kind,
            target.namespace,
            str(target.name),
            change,
            actor=request.user.name if request.user else "",
            subresource=target.subresource or None,
            dry_run=is_dry_run(request),
            note=make_note(request, "patch", request.body.decode(errors="replace")),
        )
        return self._written(request, target, stored, 200)

    def _apply(self, request: Request, target: Target, config: Any) -> Response:
        """Server-side apply: change what is there, or create it."""
        manager = request.query.get("fieldManager")
        if not manager:
            raise BadRequest(
                "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch"
            )
        if not isinstance(config, dict) or not isinstance(config.get("metadata"), dict):
            raise BadRequest("the body of an apply patch must be an object with metadata")
        resource, store = target.resource, self.store
        config = self._named(target, self._prepare(target, config))
        config.setdefault("apiVersion", resource.api_version)
        actor, dry_run = request.user.name if request.user else "", is_dry_run(request)
        note = make_note(request, "apply", request.body.decode(errors="replace"))

        def merged(live: Object | None) -> Object:
            return managed_fields.apply(
                resource.kind,
                live,
                config,
                manager=manager,
                force=request.flag("force"),
                subresource=target.subresource,
                now=self._now(),
            )

        with store.lock:
            try:
                store.entry(resource.kind, target.namespace, str(target.name))
            except NotFound:
                if target.subresource:
                    raise
                if uid := config["metadata"].get("uid"):
                    raise Conflict.precondition(resource.plural, str(target.name), "UID", uid, "") from None
                stored = store.create(resource.kind, merged(None), actor=actor, dry_run=dry_run, note=note)
                return self._written(request, target, stored, 201)
            stored = store.mutate(
                resource.kind,
                target.namespace,
                str(target.name),
                merged,
                actor=actor,
                subresource=target.subresource or None,
                dry_run=dry_run,
                note=note,
            )
        return self._written(request, target, stored, 200)

    def delete(self, request: Request, target: Target) -> Response:
        options = self._delete_options(request)
        dry_run = is_dry_run(request, options)
        conditions = options.get("preconditions") or {}
        propagation = _propagation(request, options)
        result = self.store.delete(
            target.resource.kind,
            target.namespace,
            str(target.name),
            actor=request.user.name if request.user else "",
            uid=conditions.get("uid"),
            resource_version=conditions.get("resourceVersion"),
            grace_period_seconds=_grace(request, options),
            propagation=propagation,
            dry_run=dry_run,
            note=make_note(request, "delete", request.body.decode(errors="replace")),
        )
        uid = result["metadata"]["uid"]
        headers = {"Warning": ORPHAN_WARNING} if target.resource.kind == "Job" and not propagation else {}
        if target.resource.kind in ("Pod", "Namespace") or (self.store.exists(uid) and not dry_run):
            return Response.json(shown(target.resource, result), headers=headers)
        return Response.json(success(target, uid=uid), headers=headers)

    def delete_collection(self, request: Request, target: Target) -> Response:
        """Delete what the selectors match, as one list; an object that went meanwhile is no error."""
        options = self._delete_options(request)
        resource = target.resource
        found = self.store.list(
            resource.kind,
            target.namespace,
            label_selector=request.query.get("labelSelector"),
            field_selector=field_selector(request, resource),
        )
        for entry in found.entries:
            with contextlib.suppress(NotFound):
                self.store.delete(
                    resource.kind,
                    entry.key[0] or None,
                    entry.key[1],
                    actor=request.user.name if request.user else "",
                    grace_period_seconds=_grace(request, options),
                    propagation=_propagation(request, options),
                    dry_run=is_dry_run(request, options),
                    note=make_note(request, "deletecollection"),
                )
        return Response(body=_list_body(resource, found, {"resourceVersion": found.resource_version}, Form()))

    def _delete_options(self, request: Request) -> Object:
        body = read_body(request)
        if body is not None and not isinstance(body, dict):
            raise BadRequest("DeleteOptions must be an object")
        return body or {}

    def _written(self, request: Request, target: Target, stored: Object, code: int) -> Response:
        form = find_form(request)
        if form.kind == "Table":
            include = request.query.get("includeObject", "Metadata")
            metadata = {"resourceVersion": stored["metadata"].get("resourceVersion", "")}
            now = self.store.clock()
            return Response.json(
                table(target.resource.kind, [stored], now=now, include=include, metadata=metadata), code
            )
        return Response.json(partial(stored) if form.kind else shown(target.resource, stored), code)

    def _now(self) -> str:
        return rfc3339(self.store.clock())


def _list_body(resource: Resource, result: ListResult, metadata: Object, form: Form) -> bytes:
    if form.kind:
        kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        items = [msgspec.json.encode(partial(obj)) for obj in result.items]
    else:
        kind, version = f"{resource.kind}List", resource.api_version
        if resource.group == "events.k8s.io":
            items = [msgspec.json.encode(to_v1(obj)) for obj in result.items]
        else:
            items = [entry.raw for entry in result.entries]
    head = msgspec.json.encode({"kind": kind, "apiVersion": version, "metadata": metadata})
    return b"".join((head[:-1], b',"items":[', b",".join(items), b"]}"))


def _grace(request: Request, options: Object) -> int | None:
    given = whole_number(options.get("gracePeriodSeconds"), "gracePeriodSeconds")
    return given if given is not None else number(request, "gracePeriodSeconds")


def _propagation(request: Request, options: Object) -> str | None:
    policy = options.get("propagationPolicy") or request.query.get("propagationPolicy")
    orphan = options.get("orphanDependents")
    if policy is None and orphan is not None:
        return "Orphan" if orphan else "Background"
    if policy not in (None, "Background", "Foreground", "Orphan"):
        raise BadRequest(f'Invalid value: "{policy}": supported values: "Background", "Foreground", "Orphan"')
    return policy
