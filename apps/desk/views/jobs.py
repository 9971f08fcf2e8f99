"""Pages of jobs: the list, one job (the training user's page), and its stop button."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from apps.desk.chips import toggle_chips
from apps.desk.faults import BREAKABLE
from apps.desk.forms import StopForm, job_filter
from apps.desk.job_page import job_page
from apps.desk.paging import capped_count, capped_word, keyset_page
from apps.desk.scope import DeskRequest, held_rows, page, whole
from apps.incidents import selectors as incidents
from apps.incidents.services import people
from apps.jobs import selectors
from recovery.errors import Conflict, InvalidTransition, SubjectBusy
from recovery.phases import LIVE_PHASES, TERMINAL_PHASES, Phase

_TAB_WORDS = {"live": "Live", "ended": "Ended", "all": "All"}


@page
@require_safe
def job_list(request: DeskRequest) -> HttpResponseBase:
    """The list, fifty at a time. ``held`` as in the incidents list."""
    scope = request.scope
    wanted = job_filter(request.GET, scope.cluster_id)
    visible = selectors.visible_jobs(scope.tenant_ids).defer("annotations", "limits")
    matching = selectors.filter_jobs(visible, wanted)
    held = held_rows(request)
    new_count = 0
    if held is not None:
        found = keyset_page(selectors.with_rank_zero(visible.filter(id__in=held)), size=len(held))
        new_count = capped_count(matching.filter(id__gt=max(held)), cap=99)
        still = set(matching.filter(id__in=held).order_by().values_list("id", flat=True))
    else:
        found = keyset_page(
            selectors.with_rank_zero(matching),
            after=request.GET.get("after", ""),
            before=request.GET.get("before", ""),
        )
        still = {row.pk for row in found.rows}
    open_incidents = incidents.open_incidents_of_jobs(row.pk for row in found.rows)
    in_scope = visible if wanted.cluster_id is None else visible.filter(cluster=wanted.cluster_id)
    phases = [p for p in Phase if wanted.tab == "all" or (p in TERMINAL_PHASES) == (wanted.tab == "ended")]
    return render(
        request,
        "jobs/job_list.html",
        {
            "nav": "jobs",
            "topics": "job incident",
            "wanted": wanted,
            "page": found,
            "rows": [(row, open_incidents.get(row.pk), row.pk in still) for row in found.rows],
            "new_count": new_count,
            "holds": held is not None or found.is_first,
            "tabs": [
                (tab, word, capped_word(capped_count(_tab(in_scope, tab))), tab == wanted.tab)
                for tab, word in _TAB_WORDS.items()
            ],
            "phase_chips": toggle_chips(request.GET, "phase", "phase", phases),
            "is_filtered": bool(wanted.phases or wanted.protection or wanted.text),
        },
    )


def _tab(visible: Any, tab: str) -> Any:
    return selectors.filter_jobs(visible, selectors.JobFilter(tab=tab))


@page
@require_safe
def job_detail(request: DeskRequest, job_id: int) -> HttpResponseBase:
    """One job: phase, failures used, workers, attempts, checkpoints, environment, limits."""
    job = selectors.get_job(request.scope.tenant_ids, job_id)
    may_act = request.scope.may_operate(job.tenant_id)
    context = job_page(
        job,
        tenant_ids=request.scope.tenant_ids,
        tab=request.GET.get("tab", "overview"),
        show=request.GET.get("show", "failures"),
        before=whole(request, "before"),
        as_table=request.GET.get("workers") == "table",
        now=timezone.now(),
    )
    is_live = job.phase in LIVE_PHASES and job.gone_at is None
    return render(
        request,
        "jobs/job_detail.html",
        context
        | {
            "nav": "jobs",
            "topics": f"job:{job.pk} incident",
            "refresh_seconds": 5 if is_live else 0,
            "is_live": is_live,
            "may_act": may_act,
            "may_break": bool(settings.SIM_ENDPOINT) and may_act and is_live and job.cluster.is_simulated,
            "faults": BREAKABLE,
            "dialog": request.GET.get("dialog", ""),
        },
    )


@page
@require_POST
def job_stop(request: DeskRequest, job_id: int) -> HttpResponseBase:
    """Ask for Stopped, with a reason. The page says it is stopped when the phase says so."""
    job = selectors.get_job(request.scope.tenant_ids, job_id)
    request.scope.require_operator(job.tenant)
    form = StopForm(request.POST)
    if not form.is_valid():
        messages.error(request, str(form.errors["reason"][0]))
    else:
        try:
            people.stop_job(
                job_id=job.pk,
                by=request.user,
                reason=form.cleaned_data["reason"],
                at_safe_point=form.cleaned_data["at_safe_point"],
            )
        except (Conflict, InvalidTransition) as error:
            messages.warning(request, f"Not done: {error}.")
        except SubjectBusy as error:
            messages.warning(request, f"Not done, nothing was changed: {error}. Try again in a moment.")
        else:
            when = "; it comes after the next checkpoint" if form.cleaned_data["at_safe_point"] else ""
            messages.success(
                request, f"The stop is asked for and decided{when}; the phase below tells when it is done."
            )
    return redirect(reverse("desk:job_detail", args=[job.pk]))
