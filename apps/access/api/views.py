"""What every endpoint of the REST API has in common: who may ask, how large a body may be, and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.db import InterfaceError, OperationalError
from rest_framework.exceptions import APIException
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agent.wire import MAX_BODY_BYTES
from apps.access import services
from apps.access.api.authentication import HasScope, caller_of
from apps.access.api.errors import TooLarge
from apps.access.permissions import Caller


class DatabaseAway(APIException):
    """PostgreSQL does not answer. Nothing was stored."""

    status_code = 503
    default_code = "database_unavailable"
    default_detail = "The database is away; nothing was stored, send this again."
    wait = 2


class DeskView(APIView):
    """An endpoint: token with the scope named in ``scopes`` for its method, or a logged-in person."""

    permission_classes = (IsAuthenticated, HasScope)
    scopes: ClassVar[Mapping[str, str]] = {}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        announced = request.headers.get("Content-Length") or "0"
        if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
            raise TooLarge(f"A body has at most {MAX_BODY_BYTES} bytes; send less at once.")
        super().initial(request, *args, **kwargs)

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, (OperationalError, InterfaceError)):
            exc = DatabaseAway()
        return super().handle_exception(exc)

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return caller_of(self.request)

    def once(
        self, *, tenant_id: int, endpoint: str, answer: Callable[[], tuple[int, dict[str, Any]]]
    ) -> Response:
        """Answer, and with the header Idempotency-Key give the same answer to the same request again."""
        status, body = services.answer_once(
            tenant_id=tenant_id,
            endpoint=endpoint,
            key=self.request.headers.get("Idempotency-Key", ""),
            body=self.request.body,
            answer=answer,
        )
        return Response(body, status)


class DeskList(DeskView, ListAPIView):  # type: ignore[type-arg]
    """A list in keyset pages. ``ordering_fields`` names what it may be ordered by, the default first."""

    ordering_fields: ClassVar[tuple[str, ...]] = ("-id",)
