"""Answers that go on: watches and followed logs."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec

from sim.api.events_v1 import to_v1
from sim.api.objects import field_selector
from sim.api.request import Form, Target, find_form, number
from sim.api.tables import partial, table
from sim.errors import BadRequest, Gone, Invalid, NotFound
from sim.http_wire import Request, Response
from sim.resources import Resource
from sim.store import Store
from sim.watch import Entry, Scope

LogSource = Callable[[str, str, str, bool], Path | None]
"""(namespace, pod, container, previous) -> the file that holds the container's output, None when there is none."""

WATCH_SECONDS = (1800, 3600)
"""How long a watch lasts that names no timeout: the API server's minimum to twice of it, at random."""
LOG_POLL_SECONDS = 0.1
_LOG_CHUNK = 64 * 1024


class Watches:
    """Watch requests of one store."""

    def __init__(self, store: Store, *, bookmark_seconds: float) -> None:
        self.store = store
        self.bookmark_seconds = bookmark_seconds

    def open(self, request: Request, target: Target) -> Response:
        """The stream of a watch. What is wrong with the request is raised; a forgotten revision is an event."""
        form = find_form(request)
        resource = target.resource
        wants_initial = request.query.get("sendInitialEvents")
        if wants_initial is not None and request.query.get("resourceVersionMatch") != "NotOlderThan":
            text = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise Invalid.of(
                "ListOptions", "meta.k8s.io", "", [("resourceVersionMatch", "FieldValueForbidden", text)]
            )
        number(request, "resourceVersion")
        selector = field_selector(request, resource)
        if target.name is not None:
            selector = f"metadata.name={target.name}"
        scope = self.store.scope(
            resource.kind, target.namespace, request.query.get("labelSelector"), selector
        )
        seconds = number(request, "timeoutSeconds")
        if not seconds:
            seconds = random.randint(*WATCH_SECONDS)
        return Response(
            content_type="application/json" if not form.kind else form.content_type,
            stream=self._events(request, resource, scope, form, seconds),
        )

    async def _events(
        self, request: Request, resource: Resource, scope: Scope, form: Form, seconds: int
    ) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        is_told = False

        def tell() -> None:
            nonlocal is_told
            if not is_told:  # one wake-up for any number of events: a burst must not flood the loop
                is_told = True
                loop.call_soon_threadsafe(ready.set)

        encode = self._encoder(request, resource, form)
        is_initial = request.flag("sendInitialEvents")
        try:
            since = "0" if is_initial else request.query.get("resourceVersion")
            watch = self.store.watch(resource.kind, resource_version=since, scope=scope, on_ready=tell)
        except Gone as gone:
            yield _line("ERROR", msgspec.json.encode(gone.status()))
            return
        wants_bookmarks = request.flag("allowWatchBookmarks")
        end = loop.time() + seconds
        next_bookmark = loop.time() + self.bookmark_seconds
        try:
            while True:
                ready.clear()
                is_told = False
                if events := watch.take():
                    yield b"".join(_line(event, encode(entry)) for event, entry in events)
                    continue
                if is_initial and (revision := watch.bookmark()) is not None:
                    is_initial = False
                    yield _line("BOOKMARK", _bookmark(resource, revision, form, is_initial_end=True))
                now = loop.time()
                is_over = watch.closed or now >= end
                if wants_bookmarks and (now >= next_bookmark or (is_over and not watch.closed)):
                    next_bookmark = now + self.bookmark_seconds
                    if (revision := watch.bookmark()) is not None:
                        yield _line("BOOKMARK", _bookmark(resource, revision, form))
                if is_over:
                    return
                until = min(end, next_bookmark) if wants_bookmarks else end
                try:
                    async with asyncio.timeout(max(until - now, 0)):
                        await ready.wait()
                except TimeoutError:
                    continue
        finally:
            watch.close()

    def _encoder(self, request: Request, resource: Resource, form: Form) -> Callable[[Entry], bytes]:
        if form.kind == "Table":
            include = request.query.get("includeObject", "Metadata")
            needs_headers = True

            def as_table(entry: Entry) -> bytes:
                nonlocal needs_headers
                shown = table(
                    resource.kind,
                    [entry.object()],
                    now=self.store.clock(),
                    include=include,
                    metadata={"resourceVersion": str(entry.revision)},
                    headers=needs_headers,
                )
                needs_headers = False
                return msgspec.json.encode(shown)

            return as_table
        if form.kind:
            return lambda entry: msgspec.json.encode(partial(entry.object()))
        if resource.group == "events.k8s.io":
            return lambda entry: msgspec.json.encode(to_v1(entry.object()))
        return lambda entry: entry.raw


def _line(event: str, raw: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (event.encode(), raw)


def _bookmark(resource: Resource, revision: int, form: Form, *, is_initial_end: bool = False) -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if is_initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    if form.kind == "Table":
        shown: dict[str, Any] = table(
            resource.kind,
            [],
            now=0,
            include="None",
            metadata={"resourceVersion": str(revision)},
            headers=False,
        )
        shown["rows"] = [
            {
                "cells": [],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                },
            }
        ]
        return msgspec.json.encode(shown)
    kind, version = resource.kind, resource.api_version
    if form.kind:
        kind, version = "PartialObjectMetadata", "meta.k8s.io/v1"
    return msgspec.json.encode({"kind": kind, "apiVersion": version, "metadata": metadata})


class Logs:
    """Output of containers, from the files that the kubelet writes."""

    def __init__(self, store: Store, source: LogSource | None) -> None:
        self.store = store
        self.source = source

    def open(self, request: Request, target: Target) -> Response:
        """The log of one container: whole, its end (`tailLines`), or followed until the pod has finished."""
        pod = self.store.get("Pod", target.namespace, str(target.name))
        for name in ("timestamps", "sinceSeconds", "sinceTime"):
            if request.query.get(name) not in (None, "", "false"):
                raise BadRequest(f"{name} is not served here: lines are kept without their times")
        container = self._container(request, pod)
        previous = request.flag("previous")
        path = (
            self.source(pod["metadata"]["namespace"], str(target.name), container, previous)
            if self.source
            else None
        )
        if path is None or not path.exists():
            title = f'container "{container}" in pod "{target.name}"'
            if previous:
                raise BadRequest(f"previous terminated {title} not found")
            raise BadRequest(f"{title} is waiting to start: ContainerCreating")
        text = path.read_bytes()
        begin = _tail(text, number(request, "tailLines"))
        limit = number(request, "limitBytes")
        if not request.flag("follow"):
            body = text[begin : begin + limit] if limit else text[begin:]
            return Response(body=body, content_type="text/plain")
        return Response(content_type="text/plain", stream=self._follow(pod, path, begin))

    def _container(self, request: Request, pod: dict[str, Any]) -> str:
        spec = pod["spec"]
        names = [one["name"] for part in ("initContainers", "containers") for one in spec.get(part) or ()]
        wanted = request.query.get("container")
        if wanted is None:
            if len(spec["containers"]) > 1:
                raise BadRequest(
                    f"a container name must be specified for pod {pod['metadata']['name']}, "
                    f"choose one of: [{' '.join(names)}]"
                )
            return str(spec["containers"][0]["name"])
        if wanted not in names:
            raise BadRequest(f"container {wanted} is not valid for pod {pod['metadata']['name']}")
        return wanted

    async def _follow(self, pod: dict[str, Any], path: Path, begin: int) -> AsyncGenerator[bytes, None]:
        with path.open("rb", buffering=0) as file:
            file.seek(begin, os.SEEK_SET)
            while True:
                has_ended = self._has_ended(
                    pod
                )  # asked before reading: what was written by then is still sent
                if os.fstat(file.fileno()).st_size < file.tell():
                    file.seek(0)  # the kubelet emptied a full log
                while chunk := file.read(_LOG_CHUNK):
                    yield chunk
                if has_ended:
                    return
                await asyncio.sleep(LOG_POLL_SECONDS)

    def _has_ended(self, pod: dict[str, Any]) -> bool:
        meta = pod["metadata"]
        try:
            present = self.store.get("Pod", meta["namespace"], meta["name"])
        except NotFound:
            return True
        phase = (present.get("status") or {}).get("phase")
        return present["metadata"]["uid"] != meta["uid"] or phase in ("Succeeded", "Failed")


def _tail(text: bytes, lines: int | None) -> int:
    """Where the last `lines` lines begin; 0 for all."""
    if lines is None:
        return 0
    at = len(text)
    if lines > 0 and text.endswith(b"\n"):
        at -= 1
    for _ in range(lines):
        at = text.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1 if lines else len(text)
