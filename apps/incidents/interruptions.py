"""What interrupted training here, and the node time in which it did: the desk's own record as the core's values.

Exposure is the time of attempts, from their start to their end, times their nodes: while nothing trains, nothing can be
interrupted, so down time is not in it. A failure is one that counts against a job, or would if the job were protected:
preemption, evictions, stops and ends that were ordered are none (DOMAIN 3, "by cause").
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from recovery.reliability import DAY_SECONDS, Exposure, Failure, SizeClass
from recovery.rules import ends
from recovery.rules.rule import Blame

#: Older failures say little of machines that were repaired and programs that were changed since.
WINDOW_DAYS = 90.0
#: The newest attempts that are read. Where there are more the window begins later, for failures and exposure alike.
MOST_ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True)
class Interruptions:
    """Failures by time and node, and the node time of every attempt, from ``since`` until ``until``.

    ``without_nodes`` attempts are in neither: on how many nodes they ran is not known. Failures that the verdict
    blames on the job itself are there and not ``by_machine``. A class is the cause as the page of the job says it.
    """

    since: datetime
    until: datetime
    failures: tuple[Failure, ...]
    exposures: tuple[Exposure, ...]
    without_nodes: int = 0

    @property
    def days(self) -> float:
        """From the first start within the window until now; 0 without one."""
        first = min((each.since for each in self.exposures), default=self.until)
        return (self.until - first).total_seconds() / DAY_SECONDS


def interruptions(
    *,
    cluster_id: int,
    now: datetime,
    tenant_id: int | None = None,
    size: SizeClass | None = None,
    days: float = WINDOW_DAYS,
    most: int = MOST_ATTEMPTS,
) -> Interruptions:
    """What interrupted jobs of a cluster. One statement over at most ``2 * most`` attempts.

    Args:
        tenant_id: Of this tenant only; None = of all.
        size: On so many nodes only; None = on any number, also one that is not known.
    """
    since = now - timedelta(days=days)
    rows = _rows(cluster_id, tenant_id, size, since, most)
    ended = [row.ended_at for row in rows if row.is_ended and row.ended_at is not None]
    if len(ended) >= most:
        since = max(since, min(ended))
    return Interruptions(
        since=since,
        until=now,
        failures=tuple(
            Failure(
                row.failed_at,
                row.node_name,
                row.cause,
                job_nodes=row.nodes,
                by_machine=row.blame != Blame.JOB,
            )
            for row in rows
            if row.nodes and row.failed_at is not None
        ),
        exposures=tuple(
            Exposure("", begin, end, job_nodes=row.nodes, nodes=row.nodes)
            for row in rows
            if row.nodes and (begin := max(row.started_at, since)) < (end := min(row.ended_at or now, now))
        ),
        without_nodes=sum(not row.nodes for row in rows),
    )


def exposure_of_nodes(*, cluster_id: int, found: Interruptions) -> tuple[Exposure, ...]:
    """How long each node that failed was trained on, its times added up. One statement, a row for each of them."""
    names = sorted({each.node for each in found.failures if each.node})
    if not names:
        return ()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT node_name, sum(seconds) FROM ("
            " SELECT DISTINCT a.id, i.node_name, extract(epoch FROM"
            "  least(coalesce(a.ended_at, j.ended_at, j.gone_at), %(until)s) - greatest(a.started_at, %(since)s))"
            "  AS seconds"  # least() passes over NULL: an attempt that goes on ends now
            " FROM jobs_incarnation i JOIN jobs_worker w ON w.id = i.worker_id"
            " JOIN jobs_job j ON j.id = w.job_id"
            " JOIN jobs_attempt a ON a.job_id = j.id AND a.n BETWEEN i.first_attempt AND i.last_attempt"
            " WHERE j.cluster_id = %(cluster)s AND i.node_name = ANY(%(names)s) AND a.nodes > 0"
            " AND (a.ended_at IS NULL OR a.ended_at > %(since)s)) each_attempt"
            " WHERE seconds > 0 GROUP BY 1 ORDER BY 1",
            {"cluster": cluster_id, "names": names, "since": found.since, "until": found.until},
        )
        told = cursor.fetchall()
    return tuple(
        Exposure(name, found.since, found.since + timedelta(seconds=float(seconds))) for name, seconds in told
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """An attempt with the failure that ended it, if one did. ``ended_at`` None = it goes on."""

    nodes: int | None
    started_at: datetime
    is_ended: bool
    ended_at: datetime | None
    failed_at: datetime | None
    node_name: str
    cause: str
    blame: str


# A condition whose parameter is NULL is a constant and falls away before the plan is made: parameters are bound by the
# client. The two halves read the two ends of one index.
_ROWS = """
WITH attempt AS (
  (SELECT a.* FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
    WHERE j.cluster_id = %(cluster)s AND a.ended_at > %(since)s
      AND (%(tenant)s::bigint IS NULL OR a.tenant_id = %(tenant)s)
      AND (%(low)s::int IS NULL OR a.nodes >= %(low)s) AND (%(high)s::int IS NULL OR a.nodes <= %(high)s)
    ORDER BY a.ended_at DESC LIMIT %(most)s)
  UNION ALL
  (SELECT a.* FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
    WHERE j.cluster_id = %(cluster)s AND a.ended_at IS NULL
      AND (%(tenant)s::bigint IS NULL OR a.tenant_id = %(tenant)s)
      AND (%(low)s::int IS NULL OR a.nodes >= %(low)s) AND (%(high)s::int IS NULL OR a.nodes <= %(high)s)
    ORDER BY a.id DESC LIMIT %(most)s)
)
SELECT a.nodes, a.started_at, a.ended_at IS NOT NULL, coalesce(a.ended_at, j.ended_at, j.gone_at),
  f.at, coalesce(f.node_name, ''),
  CASE WHEN a.end_cause IN ('', %(unknown)s) THEN coalesce(f.cause, '') ELSE a.end_cause END,
  coalesce(i.verdict #>> '{diagnosis,blame}', '')
FROM attempt a
  JOIN jobs_job j ON j.id = a.job_id
  LEFT JOIN jobs_failurecount f ON f.job_id = a.job_id AND f.attempt = a.n
  LEFT JOIN incidents_incident i ON i.uid = f.incident_uid
"""


def _rows(
    cluster_id: int, tenant_id: int | None, size: SizeClass | None, since: datetime, most: int
) -> list[_Row]:
    parameters = {
        "cluster": cluster_id,
        "tenant": tenant_id,
        "low": size.low if size is not None else None,
        "high": size.high if size is not None else None,
        "since": since,
        "most": most,
        "unknown": ends.UNKNOWN.category,
    }
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, parameters)
        return [_Row(*row) for row in cursor.fetchall()]
