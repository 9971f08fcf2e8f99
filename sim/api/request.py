"""What a request asks for: its target, the form of the answer, and its options, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from sim.api import protobuf
from sim.api.protobuf import PROTOBUF
from sim.audit import Note
from sim.errors import BadRequest, NotAcceptable, NotFound, UnsupportedMediaType
from sim.http_wire import Request
from sim.patch import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from sim.resources import BY_PATH, Resource

PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
MAX_DETAIL_CHARACTERS = 1000


@dataclass(frozen=True)
class Target:
    """The object or collection a path names. `namespace` None: cluster scope, or all namespaces of a list."""

    resource: Resource
    namespace: str | None
    name: str | None
    subresource: str = ""

    @property
    def title(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def no_such_page() -> NotFound:
    """The path leads nowhere."""
    return NotFound("the server could not find the requested resource", details={})


def find_target(path: str) -> Target:
    """The target of a path below /api/v1 or /apis/GROUP/VERSION. Raises NotFound."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, version, rest = "", parts[1] if len(parts) > 1 else "", parts[2:]
    elif parts[0] == "apis" and len(parts) >= 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_page()
    namespace: str | None = None
    if len(rest) >= 3 and rest[0] == "namespaces" and (group, version, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0])) if rest else None
    if resource is None or len(rest) > 3:
        raise no_such_page()
    name = rest[1] if len(rest) > 1 else None
    subresource = rest[2] if len(rest) > 2 else ""
    if (namespace is None and resource.namespaced and name is not None) or (
        namespace and not resource.namespaced
    ):
        raise no_such_page()
    return Target(resource, namespace, name, subresource)


@dataclass(frozen=True)
class Form:
    """How to answer: `kind` is "" (the object itself), Table, PartialObjectMetadata or a discovery list."""

    kind: str = ""
    version: str = ""
    content_type: str = "application/json"


def find_form(request: Request, *, kinds: tuple[str, ...] = ("Table", "PartialObjectMetadata")) -> Form:
    """The first form in the Accept header that is served here. Raises NotAcceptable."""
    accept = request.headers.get("accept", "") or "*/*"
    for choice in accept.split(","):
        media, *parameters = [part.strip() for part in choice.split(";")]
        if media not in ("application/json", "application/*", "*/*"):
            continue
        options = dict(part.partition("=")[::2] for part in parameters)
        wanted = (
            options.get("as", "").removesuffix("List")
            if "Discovery" not in options.get("as", "")
            else options["as"]
        )
        if not wanted:
            return Form()
        if wanted in kinds and media == "application/json":
            return Form(wanted, options.get("v", ""), choice.strip())
    raise NotAcceptable("only the following media types are accepted: application/json")


def read_body(request: Request) -> Any:
    """The decoded JSON (or, for server-side apply, YAML) body; None when there is none."""
    if not request.body:
        return None
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if media == PROTOBUF:
        return protobuf.decode(request.body)
    if media not in ("application/json", "application/yaml", *PATCHES, "", "*/*"):
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format ({media}) - accepted media types include: "
            "application/json, application/yaml"
        )
    try:
        return msgspec.json.decode(request.body)
    except msgspec.DecodeError as problem:
        if media not in ("application/yaml", APPLY_PATCH):
            raise BadRequest(f"the object provided is unrecognized (must be valid JSON): {problem}") from None
    try:
        return msgspec.yaml.decode(request.body)
    except msgspec.DecodeError as problem:
        raise BadRequest(f"error decoding YAML: {problem}") from None


def read_object(request: Request) -> dict[str, Any]:
    """The body as an object. Raises BadRequest."""
    body = read_body(request)
    if not isinstance(body, dict):
        raise BadRequest("the body of the request must be an object")
    if not isinstance(body.get("metadata", {}), dict):
        raise BadRequest("metadata must be an object")
    return body


def is_dry_run(request: Request, options: dict[str, Any] | None = None) -> bool:
    """Whether nothing shall be stored: `dryRun=All` in the query or in DeleteOptions. Raises BadRequest."""
    wanted = (
        [request.query["dryRun"]]
        if request.query.get("dryRun")
        else list((options or {}).get("dryRun") or [])
    )
    for value in wanted:
        if value != "All":
            raise BadRequest(f'Invalid value: "{value}": supported values: "All" in dryRun')
    return bool(wanted)


def manager_of(request: Request) -> str:
    """The field manager: as given, else the user agent's first word."""
    return request.query.get("fieldManager") or request.user_agent.partition("/")[0][:128] or "unknown"


def make_note(request: Request, verb: str, detail: str = "") -> Note:
    """What the audit log keeps of the request."""
    query = "&".join(f"{key}={value}" for key, value in request.query.items())
    path = f"{request.path}?{query}" if query else request.path
    return Note(verb, path, request.user_agent, detail[:MAX_DETAIL_CHARACTERS])


def number(request: Request, name: str) -> int | None:
    """A whole number of the query, None when it is not given. Raises BadRequest."""
    text = request.query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax in {name}') from None


def whole_number(value: Any, name: str) -> int | None:
    """A number of a body, None when it is not given. Raises BadRequest."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise BadRequest(f"{name} must be a whole number, not {value!r}")


def success(target: Target, *, uid: str = "", code: int = 200) -> dict[str, Any]:
    """A Status object that says it is done."""
    details: dict[str, Any] = {"name": target.name, "kind": target.resource.plural}
    if target.resource.group:
        details["group"] = target.resource.group
    if uid:
        details["uid"] = uid
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    return body | ({"code": code} if code != 200 else {})
