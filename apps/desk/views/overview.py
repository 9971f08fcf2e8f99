"""The first page: is anything burning?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from apps.access.models import Cluster
from apps.desk import charts
from apps.desk.context import watch_trouble
from apps.desk.faults import BREAKABLE
from apps.desk.headline import headline
from apps.desk.next_step import next_step_of_row
from apps.desk.paging import capped_counts, capped_word
from apps.desk.scope import DeskRequest, page
from apps.desk.silence import silences
from apps.incidents import selectors as incidents
from apps.incidents.models import Incident
from apps.jobs import selectors as jobs
from apps.nodes import selectors as nodes
from apps.nodes.models import WatchState
from recovery.phases import LIVE_PHASES, Phase

STANDING = (Phase.RESTARTING, Phase.TROUBLESHOOTING)  # live jobs that do not train: hardware idles


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """Live jobs in one phase: how many, how many of them protected, and the share of the meter."""

    phase: str
    count: int
    protected: int
    percent: float


@page
@require_safe
def overview(request: DeskRequest) -> HttpResponseBase:
    """Open incidents, jobs by phase, nodes by state, and how fresh all of it is."""
    scope, now = request.scope, timezone.now()
    visible = incidents.visible_incidents(scope.tenant_ids)
    machines = scope.machines()
    all_jobs = jobs.visible_jobs(scope.tenant_ids)
    if scope.cluster_id is not None:
        visible = visible.filter(cluster=scope.cluster_id)
        machines = machines.filter(cluster=scope.cluster_id)
        all_jobs = all_jobs.filter(cluster=scope.cluster_id)
    open_ones = visible.filter(state__in=incidents.OPEN_WORDS)
    open_count, needs_person = capped_counts(open_ones, incidents.waiting_for_a_person())
    burning = incidents.burning(visible)
    by_phase, sources = _jobs(all_jobs), _sources(scope, now)
    context: dict[str, Any] = {
        "nav": "overview",
        "topics": "incident job node",
        "rows": [(incident, next_step_of_row(incident, now)) for incident in burning],
        "open_count": open_count,
        "open_word": capped_word(open_count),
        "recent": _resolved_lately(visible) if len(burning) < 4 else [],
        **by_phase,
        **_nodes(machines),
        **sources,
        "headline": headline(
            open_count=open_count,
            open_word=capped_word(open_count),
            needs_person=needs_person,
            burning=burning,
            silences=silences(jobs.silent_jobs(scope.tenant_ids, scope.cluster_id))
            if sources["agents"].silent
            else [],
            standing=by_phase["job_standing"] if not open_count else 0,
            waiting=list(incidents.without_open_incident(jobs.waiting_for_capacity(all_jobs))[:10])
            if by_phase["has_unplaced"]
            else [],
        ),
        "breakable": _breakable(scope, all_jobs),
        "faults": BREAKABLE,
    }
    return render(request, "desk/overview.html", context)


def _resolved_lately(visible: Any) -> list[Incident]:
    """The five that were resolved last, of the newest twenty: one that was reopened is older than its place."""
    newest = visible.filter(state__in=incidents.RESOLVED_WORDS)[:20]
    return sorted(newest, key=lambda incident: incident.resolved_at, reverse=True)[:5]


def _jobs(all_jobs: Any) -> dict[str, Any]:
    by_phase = jobs.count_by_phase(all_jobs)
    total = sum(count for count, _ in by_phase.values())
    lines = [
        PhaseLine(str(phase), *by_phase[phase], charts.percent(by_phase[phase][0], total))
        for phase in (p for p in Phase if p in LIVE_PHASES)
        if phase in by_phase
    ]
    return {
        "phases": lines,
        "job_total": total,
        "job_running": by_phase.get(Phase.RUN_COMMAND, (0, 0))[0],
        "job_protected": sum(protected for _, protected in by_phase.values()),
        "job_standing": sum(by_phase.get(phase, (0, 0))[0] for phase in STANDING),
        "has_unplaced": any(phase in by_phase for phase in (Phase.PENDING, Phase.RESTARTING)),
    }


def _nodes(machines: Any) -> dict[str, Any]:
    here = nodes.present(machines)
    by_state = nodes.count_by_state(here)
    total = sum(by_state.values())
    if total <= charts.NODES_DRAWN_SINGLY:
        drawn = here.order_by("cluster__slug", "rack", "name").defer("labels", "conditions", "addresses")
        racks = charts.racks_of_machines(list(drawn))
    else:
        racks = charts.racks_of_counts(nodes.count_by_rack(here))
    return {
        "node_states": [(state, by_state[state]) for state in nodes.NodeState if state in by_state],
        "node_total": total,
        "node_ready": by_state.get(nodes.NodeState.READY, 0),
        "racks": racks,
        "unusual_nodes": list(nodes.unusual(machines).defer("labels", "conditions")[:8]) if total else [],
    }


def _sources(scope: Any, now: Any) -> dict[str, Any]:
    watched = [cluster for cluster in scope.chosen_clusters if not cluster.is_retired]
    by_cluster: dict[Cluster, list[WatchState]] = {cluster: [] for cluster in watched}
    for row in nodes.watch_states(cluster.pk for cluster in watched):
        by_cluster[row.cluster].append(row)
    return {
        "watches": [_watch_line(cluster, rows, now) for cluster, rows in by_cluster.items()],
        "agents": jobs.agents_heard(scope.tenant_ids, scope.cluster_id),
        "decisions": incidents.decision_speed(scope.tenant_ids),
    }


@dataclass(frozen=True, slots=True)
class WatchLine:
    """The watch of one cluster: the worst of its resources, and what is wrong with it."""

    cluster: Cluster
    state: str
    trouble: str
    lag_seconds: float | None


def _watch_line(cluster: Cluster, rows: list[WatchState], now: datetime) -> WatchLine:
    troubles = [
        f"{row.resource} {why}" if row.resource != "leader" else why
        for row in rows
        if (why := watch_trouble(row, now))
    ]
    read = [row for row in rows if row.resource != "leader"]
    order = ("broken", "starting", "listing", "watching")
    worst = min(
        (row.state for row in read),
        key=lambda state: order.index(state) if state in order else -1,
        default="",
    )
    lags = [row.lag_seconds for row in read if row.lag_seconds is not None]
    return WatchLine(cluster, worst, "; ".join(troubles), max(lags, default=None))


def _breakable(scope: Any, all_jobs: Any) -> Any:
    """The job of a simulated cluster that the reader may break, where breaking is on.

    The newest live one that has run, whatever became of it since: the buttons must not pass to another job when
    the first of them has worked.
    """
    if not settings.SIM_ENDPOINT:
        return None
    job = all_jobs.filter(
        cluster__is_simulated=True, phase__in=jobs.LIVE_WORDS, attempt__gt=0, gone_at__isnull=True
    ).first()
    return job if job is not None and scope.may_operate(job.tenant_id) else None
