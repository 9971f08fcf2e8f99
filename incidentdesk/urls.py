"""Addresses of the whole site. Agents' polls and the live feed are answered before Django (asgi.py)."""

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

urlpatterns = [
    path("api/v1/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/v1/", include("apps.incidents.api.urls")),
    path("agent/v1/", include("apps.incidents.api.agent_urls")),
    path("", include("apps.desk.urls")),
]
