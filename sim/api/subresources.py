"""Eviction, binding and service-account tokens: requests that act on an object without replacing it."""

from __future__ import annotations

from typing import Any

from sim.admission import rfc3339
from sim.api.request import Target, is_dry_run, make_note, read_object, success, whole_number
from sim.disruption import DisruptionBudgets
from sim.errors import BadRequest, Conflict, Invalid, NotFound
from sim.http_wire import Request, Response
from sim.store import Store
from sim.tokens import TokenIssuer

MIN_TOKEN_SECONDS = 600
DEFAULT_TOKEN_SECONDS = 3600


class Subresources:
    """One method per subresource; each gives the whole response or raises an ApiError."""

    def __init__(self, store: Store, tokens: TokenIssuer, budgets: DisruptionBudgets) -> None:
        self.store = store
        self.tokens = tokens
        self.budgets = budgets

    def evict(self, request: Request, target: Target) -> Response:
        body = read_object(request)
        if body.get("apiVersion") not in (None, "policy/v1", "policy/v1beta1"):
            raise BadRequest(f"no kind Eviction is registered for version {body.get('apiVersion')}")
        named = (body.get("metadata") or {}).get("name")
        if named and named != target.name:
            raise BadRequest(f"name in URL does not match name in Eviction object: {named}")
        options: dict[str, Any] = body.get("deleteOptions") or {}
        conditions = options.get("preconditions") or {}
        self.budgets.evict(
            str(target.namespace),
            str(target.name),
            actor=request.user.name if request.user else "",
            uid=conditions.get("uid"),
            resource_version=conditions.get("resourceVersion"),
            grace_period_seconds=whole_number(options.get("gracePeriodSeconds"), "gracePeriodSeconds"),
            dry_run=is_dry_run(request, options),
            note=make_note(request, "evict", request.body.decode(errors="replace")),
        )
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Response.json(done, 201)

    def bind(self, request: Request, target: Target) -> Response:
        body = read_object(request)
        node = (body.get("target") or {}).get("name")
        if not node:
            raise Invalid.of(
                "Binding", "", str(target.name), [("target.name", "FieldValueRequired", "Required value")]
            )
        self.store.bind(
            str(target.namespace),
            str(target.name),
            node,
            actor=request.user.name if request.user else "",
            uid=(body.get("metadata") or {}).get("uid"),
            dry_run=is_dry_run(request),
            note=make_note(request, "create", f"node {node}"),
        )
        return Response.json(success(target, code=201), 201)

    def token(self, request: Request, target: Target) -> Response:
        """TokenRequest. With boundObjectRef to a pod the token names that pod and ends with it."""
        body = read_object(request)
        spec: dict[str, Any] = body.get("spec") or {}
        seconds = whole_number(spec.get("expirationSeconds"), "expirationSeconds") or DEFAULT_TOKEN_SECONDS
        if seconds < MIN_TOKEN_SECONDS:
            text = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            cause = ("spec.expirationSeconds", "FieldValueInvalid", text)
            raise Invalid.of("TokenRequest", "authentication.k8s.io", str(target.name), [cause])
        account = self.store.get("ServiceAccount", target.namespace, str(target.name))
        pod = self._bound_pod(spec.get("boundObjectRef"), target)
        audiences = spec.get("audiences") or [self.tokens.issuer]
        token = self.tokens.issue(
            f"system:serviceaccount:{target.namespace}:{target.name}",
            audiences,
            pod=pod,
            expires_seconds=seconds,
            account_uid=account["metadata"]["uid"],
            node=self._node_of(pod),
        )
        now = self.store.clock()
        self.store.audit.add(
            make_note(request, "create", f"audiences {audiences}"),
            at=self.store.clock(),
            kind="ServiceAccount",
            namespace=str(target.namespace),
            name=str(target.name),
            uid=account["metadata"]["uid"],
            actor=request.user.name if request.user else "",
            subresource="token",
            status=201,
        )
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "creationTimestamp": rfc3339(now),
            },
            "spec": spec | {"audiences": audiences, "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": rfc3339(int(now) + seconds)},
        }
        return Response.json(answer, 201)

    def _bound_pod(self, reference: dict[str, Any] | None, target: Target) -> dict[str, Any] | None:
        if not reference:
            return None
        if reference.get("kind") != "Pod":
            raise BadRequest(f"cannot bind token to object of type {reference.get('kind')} here: only Pod")
        pod = self.store.get("Pod", target.namespace, str(reference.get("name")))
        if pod["spec"].get("serviceAccountName") != target.name:
            raise BadRequest(
                f"cannot bind token for serviceaccount {target.name!r} to pod running with different "
                f"serviceaccount name {pod['spec'].get('serviceAccountName')!r}"
            )
        wanted = reference.get("uid")
        if wanted and wanted != pod["metadata"]["uid"]:
            raise Conflict.precondition(
                "pods", pod["metadata"]["name"], "UID", wanted, pod["metadata"]["uid"]
            )
        return pod

    def _node_of(self, pod: dict[str, Any] | None) -> dict[str, str] | None:
        name = ((pod or {}).get("spec") or {}).get("nodeName")
        if not name:
            return None
        try:
            return {"name": name, "uid": self.store.entry("Node", None, name).uid}
        except NotFound:
            return {"name": name}
