"""What the API server says it serves: groups, versions and resources, in the old and the aggregated form."""

from __future__ import annotations

from typing import Any

from sim.resources import RESOURCES, Resource

VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.0",
    "gitCommit": "simulated",
    "gitTreeState": "clean",
    "buildDate": "2025-12-17T12:32:07Z",
    "goVersion": "go1.25.5",
    "compiler": "gc",
    "platform": "linux/amd64",
}

REVIEWS: tuple[tuple[str, str, str], ...] = (
    ("authentication.k8s.io", "TokenReview", "tokenreviews"),
    ("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews"),
    ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
)
"""(group, kind, plural) of what is asked and answered but never stored; all are v1."""

AGGREGATED = ("v2", "v2beta1")


def groups() -> list[str]:
    """Names of the groups besides the core one; each has the version v1 only."""
    return sorted(
        {resource.group for resource in RESOURCES if resource.group} | {group for group, _, _ in REVIEWS}
    )


def api_versions(server_address: str) -> dict[str, Any]:
    """/api"""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def group(name: str) -> dict[str, Any]:
    """/apis/GROUP, without kind and apiVersion as an element of the list."""
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def group_list() -> dict[str, Any]:
    """/apis"""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(name) for name in groups()]}


def resource_list(name: str) -> dict[str, Any]:
    """/api/v1 and /apis/GROUP/v1"""
    listed: list[dict[str, Any]] = []
    for resource in RESOURCES:
        if resource.group == name:
            listed += _resource(resource)
    for review_group, kind, plural in REVIEWS:
        if review_group == name:
            listed.append(
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "namespaced": False,
                    "kind": kind,
                    "verbs": ["create"],
                }
            )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/v1" if name else "v1",
        "resources": listed,
    }


def _resource(resource: Resource) -> list[dict[str, Any]]:
    shown: dict[str, Any] = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        shown["shortNames"] = list(resource.short_names)
    if resource.categories:
        shown["categories"] = list(resource.categories)
    listed = [shown]
    for name, (kind, kind_group, version, verbs) in subresources(resource).items():
        entry: dict[str, Any] = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind,
            "verbs": list(verbs),
        }
        if kind != resource.kind:
            entry |= {"group": kind_group, "version": version} if kind_group else {}
        listed.append(entry)
    return listed


def subresources(resource: Resource) -> dict[str, tuple[str, str, str, tuple[str, ...]]]:
    """Name -> (kind, group, version, verbs), with `status` where the kind has one."""
    status = {"status": (resource.kind, resource.group, resource.version, ("get", "patch", "update"))}
    return (status if resource.has_status and "update" in resource.verbs else {}) | dict(
        resource.subresources
    )


def aggregated(version: str, *, core: bool) -> dict[str, Any]:
    """/api (core) or /apis as one APIGroupDiscoveryList."""
    names = [""] if core else groups()
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None},
            "versions": [{"version": "v1", "freshness": "Current", "resources": _aggregated_resources(name)}],
        }
        for name in names
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_resources(name: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for resource in RESOURCES:
        if resource.group != name:
            continue
        entry: dict[str, Any] = {
            "resource": resource.plural,
            "responseKind": _kind(resource.group, resource.kind),
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "singularResource": resource.singular,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        below = [
            {"subresource": sub, "responseKind": _kind(kind_group, kind), "verbs": list(verbs)}
            for sub, (kind, kind_group, _, verbs) in subresources(resource).items()
        ]
        if below:
            entry["subresources"] = below
        shown.append(entry)
    for review_group, kind, plural in REVIEWS:
        if review_group == name:
            shown.append(
                {
                    "resource": plural,
                    "responseKind": _kind(review_group, kind),
                    "scope": "Cluster",
                    "singularResource": kind.lower(),
                    "verbs": ["create"],
                }
            )
    return shown


def _kind(name: str, kind: str) -> dict[str, str]:
    return {"group": name, "version": "v1", "kind": kind}
