"""Search by name: one hit leads straight to it, several are listed."""

from __future__ import annotations

from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from apps.desk.scope import DeskRequest, page
from apps.incidents import selectors as incidents
from apps.jobs import selectors as jobs
from apps.nodes import selectors as nodes

MOST = 10


@page
@require_safe
def search(request: DeskRequest) -> HttpResponseBase:
    """Incidents by number or title, jobs by namespace/name, nodes by name; the exact one first."""
    scope = request.scope
    text = request.GET.get("q", "").strip()[:200]
    context = {"nav": "", "topics": "", "q": text, "incidents": [], "jobs": [], "nodes": []}
    if not text:
        return render(request, "desk/search.html", context)
    visible = incidents.visible_incidents(scope.tenant_ids)
    number = incidents.incident_number(text)
    if number is not None and (hit := visible.filter(id=number).first()):
        return redirect("desk:incident_detail", hit.pk)
    all_jobs = jobs.visible_jobs(scope.tenant_ids).defer("annotations", "limits")
    machines = scope.machines().defer("labels", "conditions")
    if hit_node := nodes.present(machines).filter(name=text).first():
        return redirect("desk:node_detail", hit_node.pk)
    found_jobs = list(jobs.filter_jobs(all_jobs, jobs.JobFilter(tab="all", text=text))[: MOST + 1])
    exact = [job for job in found_jobs if text in (job.name, f"{job.namespace}/{job.name}")]
    if len(exact) == 1:
        return redirect("desk:job_detail", exact[0].pk)
    found_nodes = list(
        nodes.present(machines).filter(name__icontains=text).order_by("name", "id")[: MOST + 1]
    )
    found_incidents = list(visible.filter(title__icontains=text)[: MOST + 1])
    hits = [
        *(("desk:incident_detail", row.pk) for row in found_incidents),
        *(("desk:job_detail", row.pk) for row in found_jobs),
        *(("desk:node_detail", row.pk) for row in found_nodes),
    ]
    if len(hits) == 1:
        return redirect(hits[0][0], hits[0][1])
    return render(
        request,
        "desk/search.html",
        context | {"incidents": found_incidents, "jobs": found_jobs, "nodes": found_nodes, "most": MOST},
    )
