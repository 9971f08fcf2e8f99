"""What other jobs met on the machines involved in a failure, in the last 30 days (DOMAIN 4), for its verdict.

Read only by decisions that may judge, for the few machines that the culprit may be among. What leaves here are
numbers and our own words: nothing names another job, its owner or what it wrote. The numbers are a decision's input,
and no page, API or export shows them (DOMAIN 13).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from apps.incidents.models import Incident, Subject
from apps.incidents.services.guarding import WHOLE
from apps.incidents.services.world import may_judge
from recovery.decide import IncarnationView, MachineFinding, MachinePast
from recovery.findings import NO_RULE
from recovery.guards import Dimension
from recovery.history import FAIR_TRY_SECONDS
from recovery.signals import Signal, SignalKind

DAYS = 30
#: Whoever failed first is among the first of a burst; of those that the incident kept, it stands first.
MAX_MACHINES = 8
#: So many of the newest are counted on one machine.
MAX_ON_MACHINE = 200
#: And so many of one rule in the cluster: one that is found more often is nothing rare, and is not counted further.
MAX_ANYWHERE = 200

_ENDS = frozenset({SignalKind.ERROR, SignalKind.INCARNATION_ENDED, SignalKind.HANG, SignalKind.ENROLLED})

# A kind is counted by category, by category and rule, and by these and the device; jobs of one name are one lineage.
_PASTS = """
WITH mine AS (
    SELECT id, name FROM nodes_machine
    WHERE cluster_id = %(cluster)s AND gone_at IS NULL AND name = ANY(%(nodes)s)
), own AS (
    SELECT id FROM jobs_job
    WHERE cluster_id = %(cluster)s AND namespace = %(namespace)s AND name = %(name)s AND tenant_id = %(tenant)s
), found AS (
    SELECT mine.id AS machine, near.* FROM mine CROSS JOIN LATERAL (
        SELECT job_id, tenant_id, found_category AS category, found_rule AS rule, found_device AS device, ended_at
        FROM jobs_attempt
        WHERE found_machine_id = mine.id AND ended_at >= %(since)s AND found_rule <> %(no_rule)s
            AND job_id NOT IN (SELECT id FROM own)
        ORDER BY ended_at DESC LIMIT %(on_machine)s
    ) AS near
), kinds AS (
    SELECT machine, category, rule, device, count(DISTINCT job_id) AS jobs,
        count(DISTINCT tenant_id) FILTER (WHERE tenant_id <> %(tenant)s) AS owners, max(ended_at) AS last_at
    FROM found
    GROUP BY GROUPING SETS ((machine, category), (machine, category, rule), (machine, category, rule, device))
    HAVING NOT (grouping(device) = 0 AND device = '')
), anywhere AS MATERIALIZED (
    SELECT rules.rule, newest.* FROM (SELECT DISTINCT rule FROM found) AS rules CROSS JOIN LATERAL (
        SELECT attempt.job_id, attempt.found_machine_id AS machine
        FROM jobs_attempt AS attempt JOIN nodes_machine AS machine ON machine.id = attempt.found_machine_id
        WHERE attempt.found_rule = rules.rule AND attempt.ended_at >= %(since)s
            AND machine.cluster_id = %(cluster)s AND attempt.job_id NOT IN (SELECT id FROM own)
        ORDER BY attempt.ended_at DESC LIMIT %(anywhere)s
    ) AS newest
), told AS MATERIALIZED (
    SELECT kinds.*, fine.jobs AS fine, elsewhere.jobs AS jobs_elsewhere,
        elsewhere.rows >= %(anywhere)s AS is_cut
    FROM kinds CROSS JOIN LATERAL (
        SELECT count(DISTINCT worker.job_id) AS jobs
        FROM jobs_incarnation AS life JOIN jobs_worker AS worker ON worker.id = life.worker_id
        WHERE life.machine_id = kinds.machine AND life.enrolled_at > kinds.last_at
            AND life.step_at >= life.enrolled_at + make_interval(secs => %(fair_try)s)
            AND worker.job_id NOT IN (SELECT id FROM own)
    ) AS fine CROSS JOIN LATERAL (
        SELECT count(*) AS rows,
            count(DISTINCT job_id) FILTER (WHERE anywhere.machine <> kinds.machine) AS jobs
        FROM anywhere WHERE anywhere.rule = kinds.rule AND kinds.device IS NULL
    ) AS elsewhere
)
SELECT mine.name,
    coalesce(
        (SELECT max(members) FROM incidents_guardcounter
            WHERE cluster_id = %(cluster)s AND dimension = %(dimension)s AND "group" = %(whole)s),
        (SELECT count(*) FROM nodes_machine WHERE cluster_id = %(cluster)s AND gone_at IS NULL)
    ),
    (SELECT coalesce(jsonb_agg(jsonb_build_array(life.first_attempt, life.last_attempt)), '[]')
        FROM jobs_incarnation AS life JOIN jobs_worker AS worker ON worker.id = life.worker_id
        WHERE life.machine_id = mine.id AND worker.job_id = %(job)s AND life.first_attempt IS NOT NULL),
    (SELECT coalesce(jsonb_agg(to_jsonb(told) - '{machine,last_at}'::text[]), '[]')
        FROM told WHERE told.machine = mine.id)
FROM mine ORDER BY mine.name
"""


def read_machines(
    held: Subject,
    incident: Incident | None,
    inbox: Sequence[Signal],
    lives: Sequence[IncarnationView],
    *,
    now: datetime,
) -> tuple[MachinePast, ...]:
    """The past of the machines on which a worker of this job may have failed; empty where nothing is judged.

    Args:
        held: The locked subject of a job.
        incident: The one that is open, or was resolved last; it says which workers were seen to fail.
        inbox: What is being decided.
        lives: The job's incarnations, as far as they are loaded.
    """
    job = held.job
    nodes = _nodes(incident, inbox, lives)
    if job is None or held.cluster_id is None or not nodes or not may_judge(held, tuple(inbox)):
        return ()
    with connection.cursor() as cursor:
        cursor.execute(
            _PASTS,
            {
                "cluster": held.cluster_id,
                "nodes": nodes,
                "job": job.pk,
                "namespace": job.namespace,
                "name": job.name,
                "tenant": job.tenant_id,
                "since": now - timedelta(days=DAYS),
                "no_rule": NO_RULE,
                "fair_try": FAIR_TRY_SECONDS,
                "on_machine": MAX_ON_MACHINE,
                "anywhere": MAX_ANYWHERE,
                "dimension": str(Dimension.CLUSTER),
                "whole": WHOLE,
            },
        )
        rows = cursor.fetchall()
    return tuple(_machine(*row) for row in rows)


def _nodes(incident: Incident | None, inbox: Iterable[Signal], lives: Sequence[IncarnationView]) -> list[str]:
    """Nodes of the workers that failed: those that the incident kept, and the first that the inbox tells of."""
    by_id = {life.id: life for life in lives}
    by_pod = {life.pod_uid: life for life in lives}
    current = {life.worker: life for life in lives if life.is_current}
    seen = incident.verdict.get("seen") if incident is not None else None
    nodes = [str(each.get("node") or "") for each in seen or () if isinstance(each, Mapping)]
    for signal in sorted(inbox, key=lambda each: (each.seen_at, each.id)):
        if signal.kind not in _ENDS:
            continue
        life = (
            by_id.get(signal.incarnation or 0)
            or by_pod.get(str(signal.data.get("pod_uid")))
            or (current.get(signal.worker) if signal.worker is not None else None)
        )
        if life is not None:
            nodes.append(life.node)
    return list(dict.fromkeys(node for node in nodes if node))[:MAX_MACHINES]


def _machine(name: str, machines: int, own: Any, told: Any) -> MachinePast:
    own, told = (json.loads(each) if isinstance(each, str) else each for each in (own, told))
    findings = [
        MachineFinding(
            category=row["category"],
            rule=row["rule"] or "",
            device=row["device"] or "",
            jobs=row["jobs"],
            owners=row["owners"],
            fine_since=row["fine"],
            jobs_elsewhere=None if row["is_cut"] else row["jobs_elsewhere"],
        )
        for row in told
    ]
    return MachinePast(
        node=name,
        findings=tuple(sorted(findings, key=lambda each: (each.category, each.rule, each.device))),
        own_attempts=tuple(sorted({n for first, last in own for n in range(first, (last or first) + 1)})),
        machines=machines,
    )
