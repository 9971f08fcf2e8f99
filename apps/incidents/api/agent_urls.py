"""Agents' endpoints below /agent/v1/. The poll is answered before Django, see incidentdesk/asgi.py."""

from django.urls import path

from apps.incidents.api.agent_views import enrol_view, report_view

urlpatterns = [
    path("enrol", enrol_view, name="agent-enrol"),
    path("report", report_view, name="agent-report"),
]
