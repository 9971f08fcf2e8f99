"""The buttons that break the simulated cluster, for trying the desk out. There only where SIM_ENDPOINT is set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from adapters.sim_faults import FaultRefused, SimulatorAway, inject_fault
from apps.access.clock import database_now
from apps.access.services import audit
from apps.desk.scope import DeskRequest, page
from apps.jobs import selectors


@dataclass(frozen=True, slots=True)
class Breakable:
    """A fault that the pages offer."""

    name: str
    label: str
    meaning: str


BREAKABLE = (
    Breakable("kill-process", "Kill a process", "SIGKILL to one rank; its agent lives and reports it."),
    Breakable("pod-deleted", "Delete a pod", "Deletes one worker's pod at once, without grace."),
    Breakable("desk-cut-off", "Cut off the desk", "One worker cannot reach the desk any more."),
    Breakable("restore", "Restore the network", "Undoes the cut."),
)
_NAMES = {fault.name for fault in BREAKABLE}


@page
@require_POST
def break_something(request: DeskRequest, job_id: int) -> HttpResponseBase:
    """Inject a fault into a job of the simulated cluster; says what was done once the cluster has answered."""
    if not settings.SIM_ENDPOINT:
        raise Http404("There is no simulated cluster here.")
    job = selectors.get_job(request.scope.tenant_ids, job_id)
    request.scope.require_operator(job.tenant)
    if not job.cluster.is_simulated:
        raise PermissionDenied(
            f"{job.cluster.slug} is a real cluster; faults go into the simulated one only."
        )
    name = request.POST.get("fault", "")
    if name not in _NAMES:
        raise BadRequest(f"There is no fault {name!r} to inject from here.")
    parameters: dict[str, Any] = {"namespace": job.namespace, "job": job.name}
    if name != "restore":
        index = request.POST.get("index", "") or "0"
        if not (index.isascii() and index.isdigit()) or int(index) >= job.world_size:
            raise BadRequest(f"Worker {index!r} is none of 0 to {job.world_size - 1}.")
        parameters["index"] = int(index)
    try:
        what = inject_fault(settings.SIM_ENDPOINT, name, parameters)
    except FaultRefused as error:
        messages.warning(request, f"Nothing was broken: {error}")
    except SimulatorAway as error:
        messages.error(request, f"It is not known whether something broke: {error}")
    else:
        audit(
            at=database_now(),
            tenant_id=job.tenant_id,
            actor_kind="person",
            actor=request.user.get_username(),
            verb="inject_fault",
            target_kind="job",
            target=str(job),
            reason=name,
        )
        messages.success(request, what if name == "restore" else f"{what} Watch what the desk does.")
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(target, allowed_hosts=None):
        target = reverse("desk:job_detail", args=[job.pk])
    return redirect(target)
