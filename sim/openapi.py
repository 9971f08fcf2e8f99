"""OpenAPI documents as far as kubectl reads them: which operations exist and which query parameters they take.

`kubectl apply` looks in the version 3 documents whether a PATCH knows `dryRun` and `fieldValidation`. The
schemas of the objects are left open.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from sim.discovery import VERSION, groups
from sim.resources import RESOURCES, Resource

_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
_READ_PARAMETERS = (
    *("allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit"),
    *("resourceVersion", "resourceVersionMatch", "timeoutSeconds", "watch"),
)
_METHODS = {
    "get": ("get", "get", _READ_PARAMETERS),
    "update": ("put", "put", _WRITE_PARAMETERS),
    "patch": ("patch", "patch", _WRITE_PARAMETERS),
    "delete": ("delete", "delete", ("dryRun", "gracePeriodSeconds", "propagationPolicy", "pretty")),
}
_INFO = {"title": "Kubernetes (simulated)", "version": VERSION["gitVersion"]}


def group_paths() -> list[str]:
    """Names of the version 3 documents: `api/v1`, `apis/batch/v1`, ..."""
    return ["api/v1", *(f"apis/{name}/v1" for name in groups())]


def index() -> dict[str, Any]:
    """/openapi/v3"""
    paths = {}
    for path in group_paths():
        digest = hashlib.sha256(msgspec.json.encode(document(path))).hexdigest()[:32].upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(path: str) -> dict[str, Any]:
    """/openapi/v3/PATH of one group version."""
    name = "" if path == "api/v1" else path.split("/")[1]
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for resource in RESOURCES:
        if resource.group == name:
            paths |= _paths(resource, version=3)
            schemas[_schema_name(resource)] = _schema(resource)
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def swagger() -> dict[str, Any]:
    """/openapi/v2"""
    paths: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for resource in RESOURCES:
        paths |= _paths(resource, version=2)
        definitions[_schema_name(resource)] = _schema(resource)
    return {"swagger": "2.0", "info": _INFO, "paths": paths, "definitions": definitions}


def _schema_name(resource: Resource) -> str:
    group = resource.group.partition(".")[0] or "core"
    return f"io.k8s.api.{group}.{resource.version}.{resource.kind}"


def _gvk(resource: Resource) -> dict[str, str]:
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def _schema(resource: Resource) -> dict[str, Any]:
    return {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-group-version-kind": [_gvk(resource)],
    }


def _paths(resource: Resource, *, version: int) -> dict[str, Any]:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    many = f"{root}{scope}/{resource.plural}"
    item: dict[str, Any] = {}
    for verb, (method, action, parameters) in _METHODS.items():
        if verb in resource.verbs:
            item[method] = _operation(resource, action, parameters, version=version)
    collection = {"get": _operation(resource, "list", _READ_PARAMETERS, version=version)}
    if "create" in resource.verbs:
        collection["post"] = _operation(resource, "post", _WRITE_PARAMETERS, version=version)
    return {many: collection, f"{many}/{{name}}": item}


def _operation(
    resource: Resource, action: str, parameters: tuple[str, ...], *, version: int
) -> dict[str, Any]:
    def parameter(name: str) -> dict[str, Any]:
        kind: dict[str, Any] = {"schema": {"type": "string"}} if version == 3 else {"type": "string"}
        return {"name": name, "in": "query"} | kind

    return {
        "operationId": f"{action}{resource.group.title().replace('.', '')}{resource.version.title()}{resource.kind}",
        "parameters": [parameter(name) for name in parameters],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(resource),
    }
