"""Which jobs wait for a decision: asked by the agents' polls, so plain SQL in an async connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from apps.incidents.services.signals import UNHURRIED_KINDS

#: What is undecided for longer keeps no agent waiting: nobody seems to decide any more.
DECIDED_WITHIN_SECONDS = 300.0

_UNDECIDED = """
SELECT s.job_id FROM incidents_subject s
WHERE s.job_id = ANY(%(job)s) AND EXISTS (
    SELECT 1 FROM incidents_inboxentry e JOIN incidents_signal g ON g.id = e.signal_id
    WHERE e.subject_id = s.id AND e.decision_n IS NULL AND g.kind <> ALL(%(unhurried)s)
      AND g.received_at > clock_timestamp() - make_interval(secs => %(within)s))
"""


async def undecided_jobs(connection: psycopg.AsyncConnection[Any], job_ids: Sequence[int]) -> set[int]:
    """Those of the jobs about which something was reported that no decision has used yet."""
    rows = await connection.execute(
        _UNDECIDED,
        {
            "job": list(job_ids),
            "unhurried": sorted(UNHURRIED_KINDS),
            "within": DECIDED_WITHIN_SECONDS,
        },
    )
    return {row[0] for row in await rows.fetchall()}
