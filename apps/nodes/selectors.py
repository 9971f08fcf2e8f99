"""Reads of machines and of the watch, for pages and the API. Source: DOMAIN sections 2 and 13."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from django.db.models import BooleanField, Case, Count, F, QuerySet, TextField, Value, When
from django.db.models.expressions import RawSQL

from apps.access.models import Cluster
from apps.nodes.models import Machine, WatchState

# Taints that pools carry all their life, and the one that a cordon makes: neither says that a node is held.
STANDING_TAINTS = ("nvidia.com/gpu", "amd.com/gpu", "node.kubernetes.io/unschedulable")
#: Finds, among a machine's taints, one that holds it.
HELD_TAINT_PATH = (
    '$[*] ? (@.effect != "PreferNoSchedule"'
    + "".join(f' && @.key != "{key}"' for key in STANDING_TAINTS)
    + ")"
)
_HELD_TAINT = RawSQL(  # noqa: S611 - of constants only
    f"jsonb_path_exists(nodes_machine.taints, '{HELD_TAINT_PATH}')",
    (),
    output_field=BooleanField(),
)


class NodeState(StrEnum):
    """What a node is now, in one word; the first that applies, from the last to the first."""

    READY = "ready"
    TAINTED = "tainted"
    CORDONED = "cordoned"
    UNKNOWN = "unknown"
    NOT_READY = "not_ready"
    GONE = "gone"


IN_SERVICE = (NodeState.READY,)
_STATE = Case(
    When(gone_at__isnull=False, then=Value(NodeState.GONE.value)),
    When(is_ready=False, then=Value(NodeState.NOT_READY.value)),
    When(is_ready=None, then=Value(NodeState.UNKNOWN.value)),
    When(is_cordoned=True, then=Value(NodeState.CORDONED.value)),
    When(_HELD_TAINT, then=Value(NodeState.TAINTED.value)),
    default=Value(NodeState.READY.value),
    output_field=TextField(),
)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """What a list of nodes shows. Empty fields do not narrow; gone nodes show only when asked for."""

    states: tuple[str, ...] = ()
    rack: str = ""
    pool: str = ""
    text: str = ""
    cluster_id: int | None = None


@dataclass(frozen=True, slots=True)
class RackCount:
    """Nodes of one rack by state; ``rack`` is empty for nodes without one."""

    cluster: str
    rack: str
    total: int
    by_state: dict[str, int] = field(default_factory=dict)


def with_state(machines: QuerySet[Machine]) -> QuerySet[Machine]:
    """Add ``state``, a NodeState in one word, as the database sees it."""
    return machines.annotate(state=_STATE)


def visible_machines(tenant_ids: Sequence[int] | None, *, all_of_them: bool = False) -> QuerySet[Machine]:
    """Machines that somebody may see: those where workers of these tenants ran; all for None or ``all_of_them``.

    ``all_of_them`` is for people whose role holds in every tenant: the fleet is their work.
    """
    machines = with_state(Machine.objects.select_related("cluster"))
    if tenant_ids is None or all_of_them:
        return machines
    return machines.filter(pk__in=Machine.objects.filter(incarnations__tenant__in=tenant_ids).values("pk"))


def filter_machines(machines: QuerySet[Machine], wanted: NodeFilter) -> QuerySet[Machine]:
    """Narrow ``visible_machines`` to what the filter wants."""
    if wanted.cluster_id is not None:
        machines = machines.filter(cluster_id=wanted.cluster_id)
    if wanted.rack:
        machines = machines.filter(rack=wanted.rack)
    if wanted.pool:
        machines = machines.filter(pool=wanted.pool)
    if wanted.text:
        machines = machines.filter(name__icontains=wanted.text)
    if NodeState.GONE not in wanted.states:
        machines = machines.filter(gone_at__isnull=True)
    if wanted.states:
        machines = machines.filter(state__in=wanted.states)  # type: ignore[misc]  # with_state adds it
    return machines


def count_by_state(machines: QuerySet[Machine]) -> dict[str, int]:
    """Number of nodes by state; states without nodes are left out."""
    rows = machines.order_by().values_list("state").annotate(n=Count("id"))  # type: ignore[misc]  # with_state adds it
    return {str(state): int(n) for state, n in rows}


def count_by_rack(machines: QuerySet[Machine]) -> list[RackCount]:
    """Racks with their nodes by state, sorted by cluster and rack. One grouped query, whatever the size."""
    racks: dict[tuple[str, str], RackCount] = {}
    rows = (
        machines.order_by("cluster__slug", "rack")  # type: ignore[misc]  # with_state adds it
        .values_list("cluster__slug", "rack", "state")
        .annotate(n=Count("id"))
    )
    for cluster, rack, state, n in rows:
        known = racks.get((cluster, rack)) or RackCount(cluster=cluster, rack=rack, total=0)
        racks[cluster, rack] = RackCount(
            cluster=cluster, rack=rack, total=known.total + n, by_state={**known.by_state, str(state): n}
        )
    return list(racks.values())


def watch_states(cluster_ids: Iterable[int]) -> list[WatchState]:
    """Rows of the watch of these clusters, by cluster and resource."""
    return list(
        WatchState.objects.filter(cluster__in=list(cluster_ids))
        .select_related("cluster")
        .order_by("cluster__slug", "resource")
    )


def all_clusters() -> list[Cluster]:
    """Every cluster, by slug. They are few."""
    return list(Cluster.objects.order_by("slug"))


def present(machines: QuerySet[Machine]) -> QuerySet[Machine]:
    """Those that the cluster still has."""
    return machines.filter(gone_at__isnull=True)


def unusual(machines: QuerySet[Machine]) -> QuerySet[Machine]:
    """Present nodes that are not plainly ready, worst cluster order first."""
    return present(machines).exclude(state=NodeState.READY.value).order_by(F("cluster_id"), "rack", "name")  # type: ignore[misc]  # with_state adds it


__all__ = [
    "IN_SERVICE",
    "STANDING_TAINTS",
    "NodeFilter",
    "NodeState",
    "RackCount",
    "all_clusters",
    "count_by_rack",
    "count_by_state",
    "filter_machines",
    "present",
    "unusual",
    "visible_machines",
    "watch_states",
    "with_state",
]
