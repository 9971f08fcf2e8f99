"""Pages of nodes: list, racks, one node."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpResponseBase
from django.shortcuts import render
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_safe

from apps.desk import charts
from apps.desk.chips import toggle_chips
from apps.desk.forms import node_filter
from apps.desk.paging import keyset_page
from apps.desk.scope import DeskRequest, held_rows, page
from apps.desk.words import plain
from apps.incidents import selectors as incidents
from apps.jobs import selectors as jobs
from apps.jobs.models import Incarnation
from apps.nodes import selectors
from apps.nodes.models import Machine

_OWNERS = (
    ("incidentdesk.io/", "IncidentDesk"),
    ("node.kubernetes.io/", "Kubernetes"),
    ("node.cloudprovider.kubernetes.io/", "cloud provider"),
    ("nvidia.com/", "standing, of the pool"),
    ("amd.com/", "standing, of the pool"),
    ("ToBeDeletedByClusterAutoscaler", "cluster autoscaler"),
)


@page
@require_safe
def node_list(request: DeskRequest) -> HttpResponseBase:
    """Nodes by name, fifty at a time, or racks drawn from counts."""
    scope = request.scope
    wanted, view = node_filter(request.GET, scope.cluster_id)
    visible = scope.machines()
    lean = visible.defer("labels", "addresses")
    matching = selectors.filter_machines(lean, wanted)
    in_scope = visible if wanted.cluster_id is None else visible.filter(cluster=wanted.cluster_id)
    by_state = selectors.count_by_state(in_scope)
    held = held_rows(request)
    if view == "racks":
        found = None
    elif held is not None:
        found = keyset_page(lean.filter(id__in=held), order=("name", "id"), size=len(held))
    else:
        found = keyset_page(
            matching,
            order=("name", "id"),
            after=request.GET.get("after", ""),
            before=request.GET.get("before", ""),
        )
    rows = found.rows if found is not None else []
    per_machine = jobs.jobs_per_machine([row.pk for row in rows], scope.tenant_ids) if rows else {}
    total = sum(n for state, n in by_state.items() if state != selectors.NodeState.GONE)
    racks: list[charts.Rack] = []
    if view == "racks":
        few = total <= charts.NODES_DRAWN_SINGLY
        racks = (
            charts.racks_of_machines(list(matching.order_by("cluster__slug", "rack", "name")))
            if few
            else charts.racks_of_counts(selectors.count_by_rack(matching))
        )
    return render(
        request,
        "nodes/node_list.html",
        {
            "nav": "nodes",
            "topics": "node",
            "refresh_seconds": 15,
            "wanted": wanted,
            "view": view,
            "page": found,
            "rows": [(row, per_machine.get(row.pk, [])) for row in rows],
            "racks": racks,
            "total": total,
            "by_state": by_state,
            "state_chips": [
                (chip, by_state.get(state, 0))
                for state, chip in zip(
                    selectors.NodeState,
                    toggle_chips(request.GET, "state", "node", selectors.NodeState),
                    strict=True,
                )
            ],
            "holds": found is not None and (held is not None or found.is_first),
            "is_filtered": bool(wanted.states or wanted.rack or wanted.pool or wanted.text),
        },
    )


@page
@require_safe
def node_detail(request: DeskRequest, node_id: int) -> HttpResponseBase:
    """One node: state, conditions, taints with owners, what runs and what ran on it, failures that happened on it."""
    tenant_ids = request.scope.tenant_ids
    machine = request.scope.machines().filter(id=node_id).first()
    if machine is None:
        raise Http404(f"There is no node {node_id} here.")
    failures = jobs.failures_on_machine(machine.pk, tenant_ids)
    return render(
        request,
        "nodes/node_detail.html",
        {
            "nav": "nodes",
            "topics": f"node:{machine.pk} job",
            "refresh_seconds": 15,
            "machine": machine,
            "taints": [(taint, taint_owner(str(taint.get("key", "")))) for taint in machine.taints],
            "conditions": [_condition(condition) for condition in machine.conditions],
            "lives": jobs.lives_on_machine(machine.pk, tenant_ids),
            "past_lives": [
                (life, _ended_by(life, machine))
                for life in jobs.past_lives_on_machine(machine.pk, tenant_ids)
            ],
            "failures": failures,
            "failure_incidents": incidents.incidents_by_uid(count.incident_uid for count in failures),
            "incidents": list(
                incidents.visible_incidents(tenant_ids).filter(machine=machine)[:10],
            ),
            "alerts": incidents.alerts_about_node(machine.name, machine.cluster_id, tenant_ids),
            "attributes": _attributes(machine),
            "labels": sorted(machine.labels.items()),
        },
    )


def taint_owner(key: str) -> str:
    """Who sets taints of this key, where that is known; others are "not known"."""
    return next((owner for prefix, owner in _OWNERS if key.startswith(prefix)), "not known")


def _ended_by(life: Incarnation, machine: Machine) -> str:
    """How a life ended; where nobody told its end, what went before it could be told."""
    if life.ended_at is not None:
        return plain(life.end_cause)
    until = life.until_at  # type: ignore[attr-defined]  # annotated
    if until == machine.gone_at:
        return "the node went"
    return "the job was deleted" if until == life.worker.job.gone_at else "the job ended"


def _condition(condition: dict[str, Any]) -> dict[str, Any]:
    """A condition with its mark. Ready should be True, all others False; Unknown is neither."""
    status = str(condition.get("status", ""))
    wanted = "True" if condition.get("type") == "Ready" else "False"
    icon, tone = (
        ("ring", "warn")
        if status == "Unknown"
        else ("check", "good")
        if status == wanted
        else ("triangle", "critical")
    )
    since = condition.get("since")
    return condition | {
        "icon": icon,
        "tone": tone,
        "since": parse_datetime(since) if isinstance(since, str) else None,
    }


def _attributes(machine: Machine) -> list[tuple[str, str]]:
    addresses = ", ".join(
        str(address.get("address", "")) if isinstance(address, dict) else str(address)
        for address in machine.addresses
    )
    rows = [
        (
            "GPUs",
            f"{machine.gpu_count} × {machine.gpu_type or 'type not known'}" if machine.gpu_count else "",
        ),
        ("Pool", machine.pool),
        ("Rack", machine.rack),
        ("Zone", machine.zone),
        ("Hardware key", machine.hardware_key + (" (weak: only a name)" if machine.is_key_weak else "")),
        ("Node uid", machine.node_uid),
        ("Boot id", machine.boot_id),
        ("Kubelet", machine.kubelet_version),
        ("Addresses", addresses),
    ]
    return [(name, value) for name, value in rows if value]
