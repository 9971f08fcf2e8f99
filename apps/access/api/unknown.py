"""The answer for addresses below /api/ that no view has."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt


@csrf_exempt  # a POST without a token would get a page about cookies; nothing is done here
def unknown_address(request: HttpRequest) -> JsonResponse:
    """404 as every error of the API has it, whatever was sent and by whom."""
    path = request.path[:200]
    detail = (
        f"There is nothing at {path}: see the addresses, and what their parts may be, in /api/v1/schema/."
    )
    return JsonResponse({"code": "not_found", "detail": detail}, status=404)
