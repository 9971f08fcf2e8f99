"""Our own metrics in the Prometheus text format, counted by query when asked, so that they cannot drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

#: (name, what it says, labels, query); a query gives the labels' values, then the number.
_GAUGES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "incidentdesk_incidents",
        "Incidents by state, without the closed ones",
        ("state",),
        "SELECT state, count(*) FROM incidents_incident WHERE state <> 'closed' GROUP BY state",
    ),
    (
        "incidentdesk_jobs",
        "Jobs that have not ended, by phase and protection",
        ("phase", "protected"),
        (
            "SELECT phase, is_protected::text, count(*) FROM jobs_job WHERE ended_at IS NULL AND gone_at IS NULL "
            "GROUP BY phase, is_protected"
        ),
    ),
    (
        "incidentdesk_undecided_signals",
        "Signals that wait for a decision",
        (),
        "SELECT count(*) FROM incidents_inboxentry WHERE decision_n IS NULL",
    ),
    (
        "incidentdesk_undecided_oldest_seconds",
        "Age of the oldest signal that waits for a decision, without checkpoints, which may wait",
        (),
        (
            "SELECT COALESCE(EXTRACT(epoch FROM clock_timestamp() - min(s.received_at)), 0) "
            "FROM incidents_inboxentry e JOIN incidents_signal s ON s.id = e.signal_id "
            "WHERE e.decision_n IS NULL AND s.kind <> 'checkpoint'"
        ),
    ),
    (
        "incidentdesk_stuck_subjects",
        "Subjects whose last decision failed; the log says why",
        (),
        "SELECT count(*) FROM incidents_subject WHERE failures > 0",
    ),
    (
        "incidentdesk_unplaced_signals",
        "Signals about something that is not known yet",
        (),
        "SELECT count(*) FROM incidents_signal WHERE is_unplaced",
    ),
    (
        "incidentdesk_open_actions",
        "Actions that have not ended, by kind and state",
        ("kind", "state"),
        (
            "SELECT kind, state, count(*) FROM incidents_action WHERE ended_at IS NULL AND state <> 'refused' "
            "GROUP BY kind, state"
        ),
    ),
    (
        "incidentdesk_overdue_actions",
        "Actions behind their deadline that have not ended",
        (),
        (
            "SELECT count(*) FROM incidents_action "
            "WHERE state IN ('ready', 'running', 'verifying') AND deadline_at < clock_timestamp()"
        ),
    ),
    (
        "incidentdesk_overdue_subjects",
        "Subjects whose time to look again has passed",
        (),
        "SELECT count(*) FROM incidents_subject WHERE next_look_at < clock_timestamp()",
    ),
    (
        "incidentdesk_guard_used",
        "Machines or actions that a guard counts now (a window: as of its last reservation), in its fullest group",
        ("cluster", "guard"),
        (
            "SELECT c.slug, l.name, max(g.used) FROM incidents_guardcounter g "
            "JOIN incidents_guardlimit l ON l.id = g.limit_id JOIN access_cluster c ON c.id = g.cluster_id "
            "GROUP BY c.slug, l.name"
        ),
    ),
    (
        "incidentdesk_guard_full_groups",
        "Groups in which a standing guard has no room",
        ("cluster", "guard"),
        (
            "SELECT c.slug, l.name, count(*) FILTER (WHERE g.used >= g.cap) FROM incidents_guardcounter g "
            "JOIN incidents_guardlimit l ON l.id = g.limit_id JOIN access_cluster c ON c.id = g.cluster_id "
            "WHERE g.slot_seconds IS NULL GROUP BY c.slug, l.name"
        ),
    ),
    (
        "incidentdesk_guard_refusals",
        "Actions that a guard has refused",
        ("cluster", "guard"),
        (
            "SELECT c.slug, l.name, sum(g.refusals) FROM incidents_guardcounter g "
            "JOIN incidents_guardlimit l ON l.id = g.limit_id JOIN access_cluster c ON c.id = g.cluster_id "
            "GROUP BY c.slug, l.name"
        ),
    ),
    (
        "incidentdesk_guard_drifts",
        "Recounts that found another number than a guard's counter said; it should never rise",
        ("cluster", "guard"),
        (
            "SELECT c.slug, l.name, sum(g.drifts) FROM incidents_guardcounter g "
            "JOIN incidents_guardlimit l ON l.id = g.limit_id JOIN access_cluster c ON c.id = g.cluster_id "
            "GROUP BY c.slug, l.name"
        ),
    ),
    (
        "incidentdesk_agents",
        "Worker agents that are enrolled and alive, by silence",
        ("silent",),
        (
            "SELECT is_silent::text, count(*) FROM jobs_incarnation "
            "WHERE ended_at IS NULL AND last_seen_at IS NOT NULL AND nonce <> '' GROUP BY is_silent"
        ),
    ),
    (
        "incidentdesk_watch_lag_seconds",
        "How far the watch was behind at its last event",
        ("cluster", "resource"),
        (
            "SELECT c.slug, w.resource, COALESCE(w.lag_seconds, 0) FROM nodes_watchstate w "
            "JOIN access_cluster c ON c.id = w.cluster_id WHERE w.resource <> 'leader'"
        ),
    ),
    (
        "incidentdesk_watch_quiet_seconds",
        "Since the watch last heard an event or a bookmark",
        ("cluster", "resource"),
        (
            "SELECT c.slug, w.resource, EXTRACT(epoch FROM clock_timestamp() - w.last_heard_at) "
            "FROM nodes_watchstate w JOIN access_cluster c ON c.id = w.cluster_id "
            "WHERE w.resource <> 'leader' AND w.last_heard_at IS NOT NULL"
        ),
    ),
    (
        "incidentdesk_feed_lag_seconds",
        "Age of the oldest feed row that an open transaction still holds back from the live pages",
        (),
        (
            "SELECT COALESCE(EXTRACT(epoch FROM clock_timestamp() - min(created_at)), 0) FROM incidents_feedrow "
            "WHERE transaction >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        ),
    ),
)


class _Counted(Collector):
    """Families that were counted a moment ago."""

    def __init__(self, families: Sequence[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Sequence[GaugeMetricFamily]:
        return self._families


async def exposition(connection: psycopg.AsyncConnection[Any]) -> bytes:
    """All metrics as text: counted from rows, and those of this process. Raises psycopg's errors."""
    families = []
    for name, text, labels, query in _GAUGES:
        family = GaugeMetricFamily(name, text, labels=labels)
        found = await connection.execute(query)
        for row in await found.fetchall():
            family.add_metric([str(value) for value in row[:-1]], float(row[-1]))
        families.append(family)
    return bytes(generate_latest(_Counted(families))) + bytes(generate_latest(REGISTRY))
