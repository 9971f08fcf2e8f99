"""One time zone per person, for every time on a page."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils import timezone


class TimeZoneMiddleware:
    """Activate the zone that the person chose; UTC for everybody else and for a zone that is not known here."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = getattr(request.user, "time_zone", "") or "UTC"
        try:
            chosen = zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            chosen = zoneinfo.ZoneInfo("UTC")
        with timezone.override(chosen):
            response = self.get_response(request)
            if not getattr(response, "is_rendered", True):
                response.render()  # type: ignore[attr-defined]  # a lazy page must be drawn in this zone
            return response
