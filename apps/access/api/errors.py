"""One answer for every error: ``{"code", "detail"}``, with ``fields`` for wrong input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import set_rollback

from apps.access.permissions import PermissionMissing
from recovery.errors import (
    BadInput,
    ClusterError,
    ClusterRefused,
    ClusterUnavailable,
    Conflict,
    DeskError,
    InvalidTransition,
    NotFound,
    PreconditionFailed,
    SubjectBusy,
)

#: Our errors and their status; the first class that fits counts.
STATUSES: tuple[tuple[type[DeskError], int], ...] = (
    (BadInput, status.HTTP_400_BAD_REQUEST),
    (NotFound, status.HTTP_404_NOT_FOUND),
    (Conflict, status.HTTP_409_CONFLICT),
    (InvalidTransition, status.HTTP_409_CONFLICT),
    (PreconditionFailed, status.HTTP_409_CONFLICT),
    (ClusterRefused, status.HTTP_409_CONFLICT),
    (SubjectBusy, status.HTTP_503_SERVICE_UNAVAILABLE),
    (ClusterUnavailable, status.HTTP_503_SERVICE_UNAVAILABLE),
    (ClusterError, status.HTTP_502_BAD_GATEWAY),
    (DeskError, status.HTTP_500_INTERNAL_SERVER_ERROR),
)


class TooLarge(exceptions.APIException):
    """The body is larger than the desk reads."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The body is too large; send less at once."
    default_code = "too_large"


class InboxFull(exceptions.Throttled):
    """Too much waits for a decision already. Nothing was stored; send it again later."""

    default_code = "inbox_full"


def status_of(error: DeskError) -> int:
    """HTTP status for one of our errors."""
    return next(number for kind, number in STATUSES if isinstance(error, kind))


def handle_error(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. None = not ours: a 500 with its traceback in the log."""
    answer = _answer(error)
    if answer is not None:
        set_rollback()
        request = context["request"]  # whatever format the view speaks, an error is JSON
        request.accepted_renderer, request.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
    return answer


def _answer(error: Exception) -> Response | None:
    if isinstance(error, DeskError):
        return _desk_answer(error)
    if isinstance(error, PermissionMissing):
        return Response(
            {"code": "permission_denied", "detail": str(error)},
            status.HTTP_403_FORBIDDEN,
        )
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if isinstance(error, exceptions.ValidationError):
        fields = dict(_flat(error.detail))
        first = next(iter(fields.items()), ("", ["wrong input"]))
        detail = f"{first[0]}: {first[1][0]}" if first[0] else first[1][0]
        body = {"code": "bad_input", "detail": detail, "fields": fields}
        return Response(body, status.HTTP_400_BAD_REQUEST)
    if isinstance(error, exceptions.APIException):
        headers = {}
        if scheme := getattr(error, "auth_header", None):
            headers["WWW-Authenticate"] = scheme
        if (wait := getattr(error, "wait", None)) is not None:
            headers["Retry-After"] = str(max(1, round(wait)))
        code = error.get_codes() if isinstance(error.get_codes(), str) else error.default_code
        detail = str(error.detail)
        if isinstance(error, exceptions.NotAuthenticated):
            detail = (
                "Send a token, as Authorization: Bearer TOKEN, or log in; manage.py create_token makes one."
            )
        return Response(
            {"code": code, "detail": detail},
            error.status_code,
            headers=headers,
        )
    return None


def _desk_answer(error: DeskError) -> Response:
    body: dict[str, Any] = {"code": error.code, "detail": str(error)}
    if isinstance(error, BadInput) and error.field:
        body["fields"] = {error.field: [str(error)]}
    if (present := getattr(error, "present", None)) is not None:
        body["present"] = present  # the state that the asker did not know of
    headers = {}
    number = status_of(error)
    if number == status.HTTP_503_SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after_seconds", None) or 1)))
    return Response(body, number, headers=headers)


def _flat(detail: Any, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Nested messages of serializers as (path of the field, messages)."""
    if isinstance(detail, dict):
        for key, value in detail.items():
            name = "" if key == "non_field_errors" else str(key)
            yield from _flat(value, f"{path}.{name}".strip("."))
    elif isinstance(detail, list) and any(isinstance(item, (dict, list)) for item in detail):
        for number, item in enumerate(detail):
            yield from _flat(item, f"{path}.{number}".strip("."))
    elif isinstance(detail, list):
        if detail:
            yield path, [str(item) for item in detail]
    else:
        yield path, [str(detail)]
