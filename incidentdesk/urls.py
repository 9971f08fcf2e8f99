"""Addresses of the whole site. Agents' polls and the live feed are answered before Django (asgi.py)."""

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView

from apps.access.api.unknown import unknown_address

urlpatterns = [
    path("api/v1/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/v1/", include("apps.incidents.api.urls")),
    re_path(r"^api(?:/|\Z)", unknown_address),
    path("agent/v1/", include("apps.incidents.api.agent_urls")),
    path("", include("apps.desk.urls")),
]
