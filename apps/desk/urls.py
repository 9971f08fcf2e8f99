"""Addresses of the pages."""

from django.urls import path

from apps.desk import faults
from apps.desk.views import account, feed, incidents, jobs, nodes, overview, search

app_name = "desk"

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("login/", account.login, name="login"),
    path("logout/", account.logout, name="logout"),
    path("preferences/", account.preferences, name="preferences"),
    path("search/", search.search, name="search"),
    path("changes/", feed.changes, name="changes"),
    path("incidents/", incidents.incident_list, name="incident_list"),
    path("incidents.csv", incidents.incident_export, name="incident_export"),
    path("incidents/<int:incident_id>/", incidents.incident_detail, name="incident_detail"),
    path(
        "incidents/<int:incident_id>/timeline.<str:form>", incidents.timeline_export, name="timeline_export"
    ),
    path(
        "incidents/<int:incident_id>/acknowledge/",
        incidents.incident_acknowledge,
        name="incident_acknowledge",
    ),
    path("incidents/<int:incident_id>/resolve/", incidents.incident_resolve, name="incident_resolve"),
    path("incidents/<int:incident_id>/restart/", incidents.incident_restart, name="incident_restart"),
    path("actions/<int:action_id>/cancel/", incidents.action_cancel, name="action_cancel"),
    path("actions/<int:action_id>/now/", incidents.action_now, name="action_now"),
    path("jobs/", jobs.job_list, name="job_list"),
    path("jobs/<int:job_id>/", jobs.job_detail, name="job_detail"),
    path("jobs/<int:job_id>/stop/", jobs.job_stop, name="job_stop"),
    path("jobs/<int:job_id>/break/", faults.break_something, name="break_something"),
    path("nodes/", nodes.node_list, name="node_list"),
    path("nodes/<int:node_id>/", nodes.node_detail, name="node_detail"),
]
