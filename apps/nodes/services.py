"""Nodes of a cluster become machine rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Q

from adapters.facts import Change, NodeFact
from apps.access.models import Cluster
from apps.nodes.models import Machine

BATCH_ROWS = 500

_FIELDS = (
    "hardware_key",
    "is_key_weak",
    "name",
    "node_uid",
    "boot_id",
    "pool",
    "rack",
    "zone",
    "gpu_type",
    "gpu_count",
    "is_ready",
    "is_cordoned",
    "ready_since_at",
    "taints",
    "conditions",
    "labels",
    "addresses",
    "kubelet_version",
)


@dataclass
class NodesImported:
    """What an import did. ``ready_changed`` are (machine, was, is) with None for Unknown."""

    written: int = 0
    gone: int = 0
    changed_ids: list[int] = field(default_factory=list)
    ready_changed: list[tuple[Machine, bool | None, bool | None]] = field(default_factory=list)


def import_nodes(*, cluster: Cluster, changes: Sequence[Change[NodeFact]], now: datetime) -> NodesImported:
    """Write what changed of these nodes, in the caller's transaction.

    A machine keeps its row when its node is registered anew, also under another name. Another machine
    under an old name gets a row of its own; the old one is gone from then on. What is equal but for its
    resource version (a heartbeat) is not written.

    Args:
        changes: In the order in which they were seen; the last one of a node counts.
    """
    outcome = NodesImported()
    last = {change.uid: change for change in changes}
    facts = {
        change.fact.hardware_key: change.fact
        for change in last.values()
        if change.fact and not change.is_gone
    }
    gone_uids = {change.uid for change in last.values() if change.is_gone}
    rows = list(
        Machine.objects.filter(cluster=cluster).filter(
            Q(hardware_key__in=facts)
            | Q(name__in=[fact.name for fact in facts.values()], gone_at__isnull=True)
            | Q(node_uid__in=[*gone_uids, *(fact.uid for fact in facts.values())], gone_at__isnull=True)
        )
    )
    by_key = {row.hardware_key: row for row in rows}
    _mark_gone(rows, facts, gone_uids, now, outcome)
    new, changed = [], []
    for key, fact in facts.items():
        row = by_key.get(key)
        if row is None:
            new.append(_fill(Machine(cluster=cluster, first_seen_at=now), fact, now))
        elif row.gone_at is not None or _differs(row, fact):
            was = row.is_ready if row.gone_at is None else None
            if was != fact.is_ready:
                outcome.ready_changed.append((row, was, fact.is_ready))
            changed.append(_fill(row, fact, now))
    Machine.objects.bulk_create(new, batch_size=BATCH_ROWS)
    Machine.objects.bulk_update(
        changed, [*_FIELDS, "resource_version", "last_seen_at", "gone_at"], batch_size=BATCH_ROWS
    )
    outcome.written = len(new) + len(changed)
    outcome.changed_ids.extend(row.pk for row in [*new, *changed])
    return outcome


def known_nodes(cluster: Cluster) -> dict[str, str]:
    """Node uid -> resource version of the machines that are present: what a list is compared with."""
    return dict(
        Machine.objects.filter(cluster=cluster, gone_at__isnull=True)
        .exclude(node_uid="")
        .values_list("node_uid", "resource_version")
    )


def _mark_gone(
    rows: list[Machine],
    facts: dict[str, NodeFact],
    gone_uids: set[str],
    now: datetime,
    outcome: NodesImported,
) -> None:
    """Before anything else is written, for a name belongs to one present machine at a time."""
    names = {fact.name: key for key, fact in facts.items()}
    for row in rows:
        if row.gone_at is not None:
            continue
        is_deleted = row.node_uid in gone_uids and row.hardware_key not in facts
        bearer = names.get(row.name)
        if is_deleted or (
            bearer is not None and bearer != row.hardware_key and row.hardware_key not in facts
        ):
            row.gone_at = now
            outcome.gone += 1
            outcome.changed_ids.append(row.pk)
            Machine.objects.filter(pk=row.pk).update(gone_at=now)
        elif row.hardware_key in facts and facts[row.hardware_key].name != row.name:
            # It comes under another name in this very batch; its old name may go to another machine here.
            Machine.objects.filter(pk=row.pk).update(gone_at=now)


def _values(fact: NodeFact) -> dict[str, Any]:
    return {
        "hardware_key": fact.hardware_key,
        "is_key_weak": fact.is_key_weak,
        "name": fact.name,
        "node_uid": fact.uid,
        "boot_id": fact.boot_id,
        "pool": fact.pool[:100],
        "rack": fact.rack[:100],
        "zone": fact.zone[:100],
        "gpu_type": fact.gpu_type[:100],
        "gpu_count": fact.gpu_count,
        "is_ready": fact.is_ready,
        "is_cordoned": fact.is_cordoned,
        "ready_since_at": fact.ready_since,
        "taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in fact.taints],
        "conditions": [
            {
                "type": each.type,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
                "since": each.since.isoformat() if each.since else None,
            }
            for each in fact.conditions
        ],
        "labels": dict(fact.labels),
        "addresses": [{"type": type_, "address": address} for type_, address in fact.addresses],
        "kubelet_version": fact.kubelet_version,
    }


def _differs(row: Machine, fact: NodeFact) -> bool:
    return any(getattr(row, name) != value for name, value in _values(fact).items())


def _fill(row: Machine, fact: NodeFact, now: datetime) -> Machine:
    for name, value in _values(fact).items():
        setattr(row, name, value)
    row.resource_version = fact.resource_version
    row.last_seen_at = now
    row.gone_at = None
    return row
