"""Refusals of the simulated API server, each with the Status body a real one answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ApiError(Exception):
    """A refused request. `code` is the HTTP status, `reason` the machine word of the Status object."""

    code = 500
    reason = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after_seconds: int | None = None,
        continue_token: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = dict(details or {})
        self.retry_after_seconds = retry_after_seconds
        self.continue_token = continue_token
        if retry_after_seconds:
            self.details["retryAfterSeconds"] = retry_after_seconds

    def status(self) -> dict[str, Any]:
        """The Status object (meta/v1) for this refusal."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.continue_token} if self.continue_token else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


class BadRequest(ApiError):
    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    code, reason = 401, "Unauthorized"


class Forbidden(ApiError):
    code, reason = 403, "Forbidden"

    @classmethod
    def in_ending_namespace(cls, plural: str, name: str, namespace: str) -> Forbidden:
        """Nothing can be created in a namespace that is being deleted."""
        ending = f"namespace {namespace} is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": ending, "field": "metadata.namespace"}
        return cls(
            f'{plural} "{name}" is forbidden: unable to create new content in namespace {namespace} '
            "because it is being terminated",
            details={"name": name, "kind": plural, "causes": [cause]},
        )


class NotFound(ApiError):
    code, reason = 404, "NotFound"

    @classmethod
    def of(cls, plural: str, group: str, name: str) -> NotFound:
        """The object `name` of the resource does not exist."""
        title = f"{plural}.{group}" if group else plural
        details = {"name": name, "kind": plural} | ({"group": group} if group else {})
        return cls(f'{title} "{name}" not found', details=details)


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(ApiError):
    code, reason = 406, "NotAcceptable"


class Conflict(ApiError):
    """A stale resourceVersion, a uid precondition that no longer holds, or a field owned by another manager."""

    code, reason = 409, "Conflict"

    @classmethod
    def stale(cls, plural: str, group: str, name: str) -> Conflict:
        """The caller's resourceVersion is not the newest."""
        title = f"{plural}.{group}" if group else plural
        return cls(
            f'Operation cannot be fulfilled on {title} "{name}": the object has been modified; '
            "please apply your changes to the latest version and try again",
            details={"name": name, "kind": plural} | ({"group": group} if group else {}),
        )

    @classmethod
    def precondition(cls, plural: str, name: str, field: str, wanted: str, found: str) -> Conflict:
        """A delete or update was meant for another uid or resourceVersion."""
        return cls(
            f'Operation cannot be fulfilled on {plural} "{name}": the {field} in the precondition ({wanted}) '
            f"does not match the {field} in record ({found}). The object might have been deleted and then recreated",
            details={"name": name, "kind": plural},
        )


class AlreadyExists(ApiError):
    code, reason = 409, "AlreadyExists"

    @classmethod
    def of(cls, plural: str, group: str, name: str) -> AlreadyExists:
        """A create met an object of that name."""
        title = f"{plural}.{group}" if group else plural
        details = {"name": name, "kind": plural} | ({"group": group} if group else {})
        return cls(f'{title} "{name}" already exists', details=details)


class Gone(ApiError):
    """The resourceVersion or continue token is older than the kept history: list again."""

    code, reason = 410, "Expired"


class RequestTooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    """A field is wrong. `causes` are (field path, reason such as FieldValueInvalid, sentence)."""

    code, reason = 422, "Invalid"

    @classmethod
    def of(cls, kind: str, group: str, name: str, causes: Sequence[tuple[str, str, str]]) -> Invalid:
        """All wrong fields of one object, as Kubernetes words them."""
        title = f"{kind}.{group}" if group else kind
        sentences = [f"{field}: {text}" for field, _, text in causes]
        joined = sentences[0] if len(sentences) == 1 else "[" + ", ".join(sentences) + "]"
        details: dict[str, Any] = {"name": name, "kind": kind} | ({"group": group} if group else {})
        details["causes"] = [
            {"reason": reason, "message": text, "field": field} for field, reason, text in causes
        ]
        return cls(f'{title} "{name}" is invalid: {joined}', details=details)


class TooManyRequests(ApiError):
    """Try later. An eviction refused by a disruption budget names the budget in its cause."""

    code, reason = 429, "TooManyRequests"


class ServerTimeout(ApiError):
    code, reason = 504, "Timeout"
