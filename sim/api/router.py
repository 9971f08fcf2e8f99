"""From a request to its answer: who asks, what for, and which handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from sim import discovery, openapi
from sim.api.access import Access, verb_of
from sim.api.objects import Objects
from sim.api.request import Target, find_form, find_target, make_note, no_such_page, read_body
from sim.api.streams import Logs, LogSource, Watches
from sim.api.subresources import Subresources
from sim.disruption import DisruptionBudgets
from sim.errors import ApiError, Forbidden, MethodNotAllowed, NotFound
from sim.http_wire import Request, Response
from sim.store import Store
from sim.tokens import TokenIssuer, User

Handler = Callable[[str, str, dict[str, str], Any, User], tuple[int, Any]]
"""A route beside Kubernetes' own: (method, path, query, decoded body or None, user) -> (status, JSON value).

It is called in a worker thread, so it may wait. Only users who may write reach it, readers for GET.
"""

_HEALTH = ("/healthz", "/livez", "/readyz")
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Router:
    """Serves the whole API; `handle` never raises an ApiError."""

    def __init__(
        self,
        store: Store,
        tokens: TokenIssuer,
        *,
        extra_routes: dict[str, Handler],
        log_source: LogSource | None,
        bookmark_seconds: float,
        publishes_keys: bool = True,
    ) -> None:
        self.store = store
        self.tokens = tokens
        self.publishes_keys = publishes_keys
        self.extra_routes = extra_routes
        self.access = Access(tokens)
        self.objects = Objects(store)
        self.watches = Watches(store, bookmark_seconds=bookmark_seconds)
        self.logs = Logs(store, log_source)
        self.subresources = Subresources(store, tokens, DisruptionBudgets(store))

    async def handle(self, request: Request) -> Response:
        """The answer to any request; refused writes are audited here, done ones by the store."""
        try:
            return await self._route(request)
        except ApiError as error:
            if request.method in _WRITES:
                self._audit_refusal(request, error)
            headers = {}
            if error.retry_after_seconds:
                headers["Retry-After"] = str(error.retry_after_seconds)
            return Response.json(error.status(), error.code, headers)

    async def _route(self, request: Request) -> Response:
        path = request.path.rstrip("/") or "/"
        if (public := self._public(path)) is not None:
            return public
        user = request.user = self.access.user_of(request)
        if (handler := self._extra(request.path)) is not None:
            return await self._run_extra(handler, request, user)
        if (told := self._discovery(request, path)) is not None:
            return told
        parts = path.strip("/").split("/")
        if (
            len(parts) == 4
            and parts[0] == "apis"
            and parts[1] in ("authentication.k8s.io", "authorization.k8s.io")
        ):
            return self.access.review(request, parts[1], parts[3], user)
        target = find_target(path)
        self.access.require(user, request, target)
        return self._dispatch(request, target)

    def _public(self, path: str) -> Response | None:
        if path in _HEALTH or path.startswith(tuple(f"{health}/" for health in _HEALTH)):
            return Response(body=b"ok", content_type="text/plain; charset=utf-8")
        if path == "/version":
            return Response.json(discovery.VERSION)
        if not self.publishes_keys:
            return None
        if path == "/openid/v1/jwks":
            return Response(
                body=msgspec.json.encode(self.tokens.jwks()), content_type="application/jwk-set+json"
            )
        if path == "/.well-known/openid-configuration":
            return Response.json(self.tokens.discovery())
        return None

    # Routes beside Kubernetes' own

    def _extra(self, path: str) -> Handler | None:
        if path in self.extra_routes:
            return self.extra_routes[path]
        prefixes = [route for route in self.extra_routes if route.endswith("/") and path.startswith(route)]
        return self.extra_routes[max(prefixes, key=len)] if prefixes else None

    async def _run_extra(self, handler: Handler, request: Request, user: User) -> Response:
        if not (user.can_write or (user.can_read and request.method == "GET")):
            raise Forbidden(f'User "{user.name}" cannot {request.method.lower()} path "{request.path}"')
        body = read_body(request)
        status, value = await asyncio.to_thread(
            handler, request.method, request.path, request.query, body, user
        )
        return Response.json(value, status)

    # What is served

    def _discovery(self, request: Request, path: str) -> Response | None:
        if path in ("/api", "/apis"):
            form = find_form(request, kinds=("APIGroupDiscoveryList",))
            if form.kind and form.version in discovery.AGGREGATED:
                listed = discovery.aggregated(form.version, core=path == "/api")
                return Response(body=msgspec.json.encode(listed), content_type=form.content_type)
            if path == "/apis":
                return Response.json(discovery.group_list())
            return Response.json(discovery.api_versions(self.tokens.issuer.partition("//")[2]))
        if path == "/api/v1":
            return Response.json(discovery.resource_list(""))
        parts = path.strip("/").split("/")
        if parts[0] == "apis" and len(parts) in (2, 3) and parts[1] in discovery.groups():
            if len(parts) == 2:
                return Response.json({"kind": "APIGroup", "apiVersion": "v1"} | discovery.group(parts[1]))
            if parts[2] == "v1":
                return Response.json(discovery.resource_list(parts[1]))
        if path == "/openapi/v2":
            find_form(request)
            return Response.json(openapi.swagger())
        if path == "/openapi/v3":
            return Response.json(openapi.index())
        if path.startswith("/openapi/v3/"):
            name = path.removeprefix("/openapi/v3/")
            if name not in openapi.group_paths():
                raise no_such_page()
            return Response.json(openapi.document(name))
        if path == "/":
            paths = [
                "/api",
                "/api/v1",
                "/apis",
                "/healthz",
                "/livez",
                "/openapi/v2",
                "/openapi/v3",
                "/readyz",
                "/version",
            ]
            return Response.json({"paths": paths})
        return None

    def _dispatch(self, request: Request, target: Target) -> Response:
        verb = verb_of(request, target)
        if target.subresource:
            return self._subresource(request, target, verb)
        if verb not in target.resource.verbs:
            raise MethodNotAllowed(
                "the server does not allow this method on the requested resource",
                details={"kind": target.resource.plural},
            )
        if verb in ("create", "deletecollection") and target.resource.namespaced and target.namespace is None:
            raise MethodNotAllowed(f"{verb} of {target.resource.plural} needs a namespace")
        if verb == "create" and target.name is not None:
            raise MethodNotAllowed("POST to an object is not allowed")
        handlers: dict[str, Callable[[Request, Target], Response]] = {
            "get": self.objects.get,
            "list": self.objects.list,
            "watch": self.watches.open,
            "create": self.objects.create,
            "update": self.objects.update,
            "patch": self.objects.patch,
            "delete": self.objects.delete,
            "deletecollection": self.objects.delete_collection,
        }
        return handlers[verb](request, target)

    def _subresource(self, request: Request, target: Target, verb: str) -> Response:
        known = discovery.subresources(target.resource).get(target.subresource)
        if known is None:
            raise no_such_page()
        if verb not in known[3]:
            raise MethodNotAllowed("the server does not allow this method on the requested resource")
        handlers: dict[tuple[str, str], Callable[[Request, Target], Response]] = {
            ("status", "get"): self.objects.get,
            ("status", "update"): self.objects.update,
            ("status", "patch"): self.objects.patch,
            ("eviction", "create"): self.subresources.evict,
            ("binding", "create"): self.subresources.bind,
            ("token", "create"): self.subresources.token,
            ("log", "get"): self.logs.open,
        }
        return handlers[target.subresource, verb](request, target)

    def _audit_refusal(self, request: Request, error: ApiError) -> None:
        try:
            target = find_target(request.path)
        except NotFound:
            return
        verb = "evict" if target.subresource == "eviction" else verb_of(request, target)
        uid = ""
        if target.name is not None:
            try:
                uid = self.store.entry(target.resource.kind, target.namespace, target.name).uid
            except ApiError:
                uid = ""
        self.store.audit.add(
            make_note(request, verb, error.message),
            at=self.store.clock(),
            kind=target.resource.kind,
            namespace=target.namespace or "",
            name=target.name or "",
            uid=uid,
            actor=request.user.name if request.user else "",
            subresource=target.subresource,
            status=error.code,
            is_dry_run=request.query.get("dryRun") == "All",
        )
