"""Addresses of the REST API below /api/v1/. A program may leave out the last slash; the document has it."""

from __future__ import annotations

from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework.views import APIView

import apps.access.api.schema  # noqa: F401 - registers how tokens are described
from apps.incidents.api import incident_views, job_views, rule_views, signal_views
from apps.jobs.api import views as jobs


def _addresses(route: str, view: type[APIView], name: str) -> list[URLPattern]:
    """The address of a view, and the one without the slash, which a POST cannot be redirected from."""
    without_slash: type[APIView] = type(f"{view.__name__}WithoutSlash", (view,), {})
    bare = extend_schema(exclude=True)(without_slash)
    return [path(route, view.as_view(), name=name), path(route.removesuffix("/"), bare.as_view())]


urlpatterns = [
    *_addresses("signals/", signal_views.SignalsView, "api-signals"),
    *_addresses("signals/alertmanager/", signal_views.AlertmanagerView, "api-alertmanager"),
    *_addresses("signals/<uuid:uid>/", signal_views.SignalView, "api-signal"),
    *_addresses("hooks/pod-ends/", signal_views.PodEndsView, "api-pod-ends"),
    *_addresses("checkpoints/", signal_views.CheckpointsView, "api-checkpoints"),
    *_addresses("jobs/", job_views.JobListOrRegister, "api-jobs"),
    *_addresses("jobs/<int:job_id>/", job_views.AdvisedJobDetail, "api-job"),
    *_addresses("jobs/<int:job_id>/stop/", job_views.JobStop, "api-job-stop"),
    *_addresses("jobs/<int:job_id>/attempts/", jobs.AttemptList, "api-attempts"),
    *_addresses("jobs/<int:job_id>/checkpoints/", jobs.JobCheckpointList, "api-job-checkpoints"),
    *_addresses("incidents/", incident_views.IncidentList, "api-incidents"),
    *_addresses("incidents/<int:incident_id>/", incident_views.IncidentDetail, "api-incident"),
    *_addresses("incidents/<int:incident_id>/timeline/", incident_views.IncidentTimeline, "api-timeline"),
    *_addresses(
        "incidents/<int:incident_id>/acknowledge/", incident_views.IncidentAcknowledge, "api-acknowledge"
    ),
    *_addresses("incidents/<int:incident_id>/resolve/", incident_views.IncidentResolve, "api-resolve"),
    *_addresses("incidents/<int:incident_id>/restart/", incident_views.IncidentRestart, "api-restart"),
    *_addresses("actions/<int:action_id>/cancel/", incident_views.ActionCancel, "api-action-cancel"),
    *_addresses("actions/<int:action_id>/do-now/", incident_views.ActionDoNow, "api-action-do-now"),
    *_addresses("rules/try/", rule_views.RulesTry, "api-rules-try"),
    *_addresses("nodes/", incident_views.NodeList, "api-nodes"),
    *_addresses("nodes/<int:node_id>/", incident_views.NodeDetail, "api-node"),
]
