"""Advice on how often a job should save, from what the desk has seen. For the page of the job and its REST answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from apps.incidents.interruptions import interruptions
from apps.jobs.models import Attempt, Checkpoint, Job
from apps.jobs.selectors import newest_attempts, newest_checkpoints
from recovery.checkpoint_advice import CheckpointAdvice, SavedPoint, Start, advise, save_seconds
from recovery.figures import measured
from recovery.reliability import estimate, size_class, with_prior


def checkpoint_advice(
    job: Job,
    *,
    now: datetime,
    checkpoints: Sequence[Checkpoint] | None = None,
    attempts: Sequence[Attempt] | None = None,
    step_seconds: float | None = None,
) -> CheckpointAdvice | None:
    """How often the job should save; None where that cannot be said. At most three statements.

    M is of jobs of this size of the same tenant in the same cluster, so nothing of another tenant shows. The prior is
    of nodes with GPUs: a job without any has advice only once jobs of its size have failed.

    Args:
        checkpoints: The newest ones, read here where they are not given.
        attempts: The same for its newest attempts, newest first.
        step_seconds: Of a step, as the page shows it; None = as the newest attempt tells it.
    """
    checkpoints = newest_checkpoints(job) if checkpoints is None else checkpoints
    points = [
        SavedPoint(
            row.step,
            row.attempt,
            row.committed_at or row.written_at,
            seconds=row.seconds,
            size_bytes=row.bytes,
        )
        for row in checkpoints
    ]
    if save_seconds(points) is None:
        return None
    attempts = newest_attempts(job) if attempts is None else attempts
    nodes = next((row.nodes for row in attempts if row.nodes), None)
    if nodes is None:
        return None
    size = size_class(nodes)
    found = interruptions(cluster_id=job.cluster_id, tenant_id=job.tenant_id, size=size, now=now)
    if job.gpus_per_worker:
        mtbf = with_prior(found.failures, found.exposures)
    elif found.failures and found.exposures:
        mtbf = estimate(found.failures, found.exposures)
    else:
        return None
    step = step_seconds or next((row.step_seconds for row in attempts if row.step_seconds), None)
    return advise(
        points=points,
        starts=[Start(row.n, row.ended_at, row.first_step_at) for row in attempts],
        nodes=nodes,
        size=size,
        mtbf=mtbf,
        days=found.days,
        step_seconds=measured(step, "as it trains") if step else None,
    )
