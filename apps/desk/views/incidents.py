"""Pages of incidents: the list, one incident, its exports, and what people do to it."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from apps.access.selectors import visible_tenant_ids
from apps.desk import export
from apps.desk.chips import toggle_chips
from apps.desk.forms import AcknowledgeForm, NoteForm, ReasonForm, incident_filter
from apps.desk.incident_page import incident_page
from apps.desk.next_step import next_step_of_row
from apps.desk.paging import capped_count, capped_word, keyset_page
from apps.desk.scope import DeskRequest, held_rows, page, whole
from apps.incidents import selectors
from apps.incidents.models import Action, Incident
from apps.incidents.services import people
from apps.jobs import selectors as jobs
from recovery.errors import Conflict, DeskError, InvalidTransition, NotFound, SubjectBusy
from recovery.lifecycle import IncidentState, Severity

_TAB_WORDS = {"open": "Open", "acknowledged": "Acknowledged", "resolved": "Resolved", "all": "All"}


@page
@require_safe
def incident_list(request: DeskRequest) -> HttpResponseBase:
    """The list, fifty at a time. With ``held`` it gives back those rows, as they are now, and counts newer ones."""
    scope = request.scope
    wanted = incident_filter(request.GET, scope.cluster_id)
    visible = selectors.visible_incidents(scope.tenant_ids)
    matching = selectors.filter_incidents(visible, wanted)
    held = held_rows(request)
    new_count = 0
    if held is not None:
        found = keyset_page(selectors.with_next_step(visible.filter(id__in=held)), size=len(held))
        new_count = capped_count(matching.filter(id__gt=max(held)), cap=99)
        still = set(matching.filter(id__in=held).order_by().values_list("id", flat=True))
    else:
        found = keyset_page(
            selectors.with_next_step(matching),
            after=request.GET.get("after", ""),
            before=request.GET.get("before", ""),
        )
        still = {row.pk for row in found.rows}
    now = timezone.now()
    in_scope = visible if wanted.cluster_id is None else visible.filter(cluster=wanted.cluster_id)
    states = [
        s
        for s in IncidentState
        if wanted.tab == "all" or (s in ("resolved", "closed")) == (wanted.tab == "resolved")
    ]
    return render(
        request,
        "incidents/incident_list.html",
        {
            "nav": "incidents",
            "topics": "incident",
            "wanted": wanted,
            "page": found,
            "next_word": {"resolved": "Outcome", "all": "Next, or outcome"}.get(wanted.tab, "Next"),
            "rows": [
                (
                    row,
                    next_step_of_row(row, now),
                    scope.may_operate(row.tenant_id),
                    row.pk in still,
                )
                for row in found.rows
            ],
            "new_count": new_count,
            "holds": held is not None or found.is_first,
            "tabs": [
                (tab, word, capped_word(capped_count(_tab(in_scope, tab))), tab == wanted.tab)
                for tab, word in _TAB_WORDS.items()
            ],
            "severity_chips": toggle_chips(request.GET, "severity", "severity", Severity),
            "state_chips": toggle_chips(request.GET, "state", "incident", states),
            "is_filtered": bool(wanted.severities or wanted.states or wanted.job_id or wanted.text),
            "filter_job": jobs.get_job(scope.tenant_ids, wanted.job_id)
            if wanted.job_id is not None
            else None,
        },
    )


def _tab(visible: Any, tab: str) -> Any:
    return selectors.filter_incidents(visible, selectors.IncidentFilter(tab=tab))


@page
@require_safe
def incident_export(request: DeskRequest) -> HttpResponseBase:
    """Every incident of the filter on screen, not only the page, as CSV in UTC."""
    wanted = incident_filter(request.GET, request.scope.cluster_id)
    matching = selectors.filter_incidents(selectors.visible_incidents(request.scope.tenant_ids), wanted)
    return export.incidents_csv(matching)


@page
@require_safe
def incident_detail(request: DeskRequest, incident_id: int) -> HttpResponseBase:
    """One incident: where the time went, what happened, why the desk acts as it does."""
    incident = selectors.get_incident(request.scope.tenant_ids, incident_id)
    context = incident_page(
        incident,
        tenant_ids=request.scope.tenant_ids,
        tab=request.GET.get("tab", "overview"),
        show=request.GET.get("show", "all"),
        before=whole(request, "before"),
        with_idle=request.GET.get("decisions") == "all",
        now=timezone.now(),
    )
    return render(
        request,
        "incidents/incident_detail.html",
        context
        | {
            "nav": "incidents",
            "topics": f"incident:{incident.pk}" + (f" job:{incident.job_id}" if incident.job_id else ""),
            "may_act": request.scope.may_operate(incident.tenant_id),
            "restart": selectors.restart_offer(incident, [line.action for line in context["actions"]]),
            "dialog": request.GET.get("dialog", ""),
        },
    )


@page
@require_safe
def timeline_export(request: DeskRequest, incident_id: int, form: str) -> HttpResponseBase:
    """The whole timeline as Markdown, CSV or JSON."""
    incident = selectors.get_incident(request.scope.tenant_ids, incident_id)
    return export.timeline(incident, form)


@page
@require_POST
def incident_acknowledge(request: DeskRequest, incident_id: int) -> HttpResponseBase:
    """Say that the reader looks after it."""
    incident = _to_act_on(request, incident_id)
    form = AcknowledgeForm(request.POST)
    version = form.cleaned_data["version"] if form.is_valid() else None
    _try(
        request,
        f"{incident} is yours now.",
        lambda: people.acknowledge_incident(incident_id=incident.pk, by=request.user, version=version),
    )
    return _back(request, incident)


@page
@require_POST
def incident_resolve(request: DeskRequest, incident_id: int) -> HttpResponseBase:
    """Resolve by a person's word, with a reason."""
    incident = _to_act_on(request, incident_id)
    reason = _reason(request)
    if reason:
        _try(
            request,
            f"{incident} is resolved.",
            lambda: people.resolve_incident(incident_id=incident.pk, by=request.user, reason=reason),
        )
    return _back(request, incident)


@page
@require_POST
def incident_restart(request: DeskRequest, incident_id: int) -> HttpResponseBase:
    """Let all workers start again in place."""
    incident = _to_act_on(request, incident_id)
    form = NoteForm(request.POST)
    if form.is_valid():
        reason = form.cleaned_data["reason"]
        _try(
            request,
            "The restart is decided; the timeline shows when it is sent, and when training steps.",
            lambda: people.restart_in_place(incident_id=incident.pk, by=request.user, reason=reason),
        )
    else:
        messages.error(request, str(form.errors["reason"][0]))
    return _back(request, incident)


@page
@require_POST
def action_cancel(request: DeskRequest, action_id: int) -> HttpResponseBase:
    """Take back an action that has not begun."""
    action = _action_to_act_on(request, action_id)
    reason = _reason(request)
    if reason:
        _try(
            request,
            "The action is cancelled.",
            lambda: people.cancel_action(action_id=action.pk, by=request.user, reason=reason),
        )
    return _back(request, action.incident)


@page
@require_POST
def action_now(request: DeskRequest, action_id: int) -> HttpResponseBase:
    """Let an action that waits for its time begin."""
    action = _action_to_act_on(request, action_id)
    _try(
        request,
        "The wait is over; the timeline shows when it is sent.",
        lambda: people.do_action_now(action_id=action.pk, by=request.user),
    )
    return _back(request, action.incident)


def _to_act_on(request: DeskRequest, incident_id: int) -> Incident:
    incident = selectors.get_incident(request.scope.tenant_ids, incident_id)
    request.scope.require_operator(incident.tenant)
    return incident


def _action_to_act_on(request: DeskRequest, action_id: int) -> Action:
    action = Action.objects.select_related("incident__tenant").filter(pk=action_id).first()
    tenant_ids = visible_tenant_ids(request.user)
    if action is None or (tenant_ids is not None and action.tenant_id not in tenant_ids):
        raise NotFound(f"There is no action {action_id} here.")
    request.scope.require_operator(action.incident.tenant)
    return action


def _reason(request: DeskRequest) -> str:
    form = ReasonForm(request.POST)
    if form.is_valid():
        return str(form.cleaned_data["reason"])
    messages.error(request, str(form.errors["reason"][0]))
    return ""


def _try(request: DeskRequest, done: str, act: Any) -> None:
    """Do it, and say what came of it: success only once the service has returned."""
    try:
        act()
    except (Conflict, InvalidTransition) as error:
        messages.warning(request, f"Not done: {error}.")
    except SubjectBusy as error:
        messages.warning(request, f"Not done, nothing was changed: {error}. Try again in a moment.")
    except DeskError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done)


def _back(request: DeskRequest, incident: Incident) -> HttpResponseBase:
    """To the page where the button was; the answer there shows the new state."""
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(target, allowed_hosts=None):
        target = reverse("desk:incident_detail", args=[incident.pk])
    return redirect(target, preserve_request=False)


__all__: list[str] = [
    "action_cancel",
    "action_now",
    "incident_acknowledge",
    "incident_detail",
    "incident_export",
    "incident_list",
    "incident_resolve",
    "incident_restart",
    "timeline_export",
]
