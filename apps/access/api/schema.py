"""What drf-spectacular is told about our own classes. Imported by the urls, so that it is registered."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

ERROR = {
    "type": "object",
    "description": "Every error has this form. `code` is for programs, `detail` for people.",
    "required": ["code", "detail"],
    "properties": {
        "code": {"type": "string", "example": "bad_input"},
        "detail": {"type": "string", "example": "ends.0.restart: This field is required."},
        "fields": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
            "description": "Wrong input only: what is wrong, by path of the field.",
        },
        "present": {
            "type": "object",
            "additionalProperties": True,
            "description": "409 of what people do: the present state, which the asker did not know of.",
        },
    },
}

_ALWAYS = {
    "401": "No token, or one that is unknown, expired or revoked.",
    "403": "The token has not the scope, or the person not the role.",
    "503": "The database is away, or this job is being decided right now. Nothing was changed; see Retry-After.",
}
_WITH_QUERY = {"400": "A filter, cursor or ordering that cannot be: `fields` names it."}
_WITH_ID = {"404": "There is no such row, or it is another tenant's."}
_WITH_BODY = {
    "400": "Wrong input: `fields` names each field. Nothing was stored.",
    "409": "The key was used with another body, or the state has changed meanwhile: see `present`.",
    "413": "The body is too large: send less at once.",
    "415": "Another content type than application/json.",
}
_TELLING = {
    "429": "Too much waits for a decision already. Nothing was stored; send it again after Retry-After."
}
#: Where programs tell something, which may be more than is decided in time.
_TELLING_PATHS = ("/signals/", "/hooks/", "/checkpoints/", "/jobs/")


class DeskSchema(AutoSchema):
    """Says with every operation who may ask for it: the scope that a token needs, or people only."""

    def get_description(self) -> str:  # type: ignore[override]  # drf-spectacular calls it without arguments
        told = str(super().get_description() or "").strip()
        if self._is_for_people:
            return f"{told}\n\nA logged-in operator's to do; no token may."
        return f"{told}\n\nScope of a token: `{self._scope}`." if self._scope else told

    def get_auth(self) -> list[dict[str, Any]]:
        ways: list[dict[str, Any]] = super().get_auth()
        return [way for way in ways if "token" not in way] if self._is_for_people else ways

    @property
    def _scope(self) -> str:
        return str(getattr(self.view, "scopes", {}).get(self.method, ""))

    @property
    def _is_for_people(self) -> bool:
        return bool(getattr(self.view, "is_for_people", False))


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the OpenAPI document names our tokens."""

    target_class = "apps.access.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A program's token, `idk_…`, of one tenant. Made by `manage.py create_token`.",
        }


def describe_errors(result: dict[str, Any], generator: Any, **options: Any) -> dict[str, Any]:
    """Give every operation the errors that it can answer, and identifiers in the path their meaning.

    A hook of drf-spectacular (POSTPROCESSING_HOOKS), called once the document is whole.
    """
    result["components"]["schemas"]["Error"] = ERROR
    for path, operations in result["paths"].items():
        for method, operation in operations.items():
            _describe(path, method, operation)
    return result


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    errors = dict(_ALWAYS)
    parameters = operation.get("parameters", [])
    if any(parameter["in"] == "query" for parameter in parameters):
        errors |= _WITH_QUERY
    if method == "post":
        errors |= _WITH_BODY
    if "{" in path:
        errors |= _WITH_ID
    if method == "post" and any(part in path for part in _TELLING_PATHS):
        errors |= _TELLING
    if not operation.get("requestBody"):
        errors.pop("413", None)
        errors.pop("415", None)
    for parameter in parameters:
        if parameter["in"] == "path" and not parameter.get("description"):
            what = parameter["name"].removesuffix("_id").replace("uid", "signal")
            parameter["description"] = f"Which {what}: its `{'uid' if what == 'signal' else 'id'}`."
    for status, text in sorted(errors.items()):
        operation["responses"].setdefault(
            status,
            {
                "description": text,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        )
    for status, answer in operation["responses"].items():
        if not answer["description"]:
            answer["description"] = {"200": "Done.", "201": "Stored.", "202": "Asked for; not done yet."}.get(
                status, ""
            )
