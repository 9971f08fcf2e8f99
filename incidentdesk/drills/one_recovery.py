"""One failure of a job that was hit before and will be again: what stands before it, and what must after."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from django.db.models import Max

from apps.incidents.models import Action, Decision, Signal
from apps.incidents.policy import current_policy
from apps.incidents.services.replaying import replay_after
from apps.jobs.models import Job, Order
from incidentdesk.drills import job_view as view
from incidentdesk.drills.field import Field, expect, wait_for
from incidentdesk.drills.recoveries import is_desk_write

WORKERS = 3
RECOVERY_SECONDS = 90
START_LINE = "rendezvous complete"


@dataclass(frozen=True, slots=True)
class Before:
    """Where a job stood before a failure. ``starts``: how often the trainer of a pod, by uid, has started."""

    attempt: int
    counted: int
    sequence: int
    signal: int
    action: int
    decision: int
    starts: dict[str, int]


def look(field: Field, job: Job, job_name: str) -> Before:
    """Where the job stands now, from database and cluster."""
    return Before(
        attempt=view.get_job(job).attempt,
        counted=len(view.counts(job)),
        sequence=Order.objects.filter(job=job).aggregate(newest=Max("sequence"))["newest"] or 0,
        signal=Signal.objects.aggregate(newest=Max("pk"))["newest"] or 0,
        action=Action.objects.aggregate(newest=Max("pk"))["newest"] or 0,
        decision=Decision.objects.aggregate(newest=Max("pk"))["newest"] or 0,
        starts=_starts(field, job_name),
    )


def wait_stepping(job: Job, before: Before) -> None:
    """Wait until the next attempt steps."""
    wait_for(
        f"attempt {before.attempt + 1} to step",
        partial(view.has_stepped, job, before.attempt + 1),
        seconds=RECOVERY_SECONDS,
    )


def judge(
    field: Field, job: Job, job_name: str, before: Before, *, index: int, is_replaced: bool = False
) -> None:
    """The failure of worker ``index`` was counted once and had one set of effects.

    ``is_replaced``: its pod came anew, which takes a boot check and a second stop.
    """
    counted = view.counts(job)[before.counted :]
    expect(len(counted) == 1, f"one failure should be counted, {len(counted)} were")
    expect(counted[0].worker.index == index, f"worker {index} failed, {counted[0].worker.index} was counted")
    expected = (before.counted + 1,) * WORKERS
    counters = view.retries(job)
    expect(counters == expected, f"counters should be {view.as_text(expected)}: {view.as_text(counters)}")
    attempt = view.get_job(job).attempt
    expect(attempt == before.attempt + 1, f"attempt {before.attempt + 1} should run, it is {attempt}")
    orders = Order.objects.filter(job=job, sequence__gt=before.sequence).order_by("sequence")
    phases = [order.phase for order in orders]
    if is_replaced:
        expect(
            phases.count("command") == 1 and phases[-1] == "command",
            f"one start should be ordered, at the end, these were: {phases}",
        )
    else:
        expect(phases == ["troubleshoot", "command"], f"two order sets should do it, these were: {phases}")
    sequences = [order.sequence - before.sequence for order in orders]
    expect(sequences == list(range(1, len(phases) + 1)), f"sequences should be dense: {sequences}")
    restarts = Action.objects.filter(incident__job=job, kind="restart_process", pk__gt=before.action)
    states = sorted(restarts.values_list("state", flat=True))
    expect(
        states.count("done") == 1 and set(states) <= {"done", "superseded"},
        f"one restart should be done, they are {states}",
    )
    for pod, starts in _starts(field, job_name).items():
        more = starts - before.starts.get(pod, 0)
        expect(more == 1, f"the trainer of pod {pod} should start once more, it did {more} times")
    _, different = replay_after(before.decision, current_policy())
    expect(not different, f"replayed otherwise than stored: {'; '.join(map(str, different[:3]))}")


def recover(field: Field, job: Job, job_name: str, *, meanwhile: Any = None) -> None:
    """Kill one rank, let ``meanwhile`` happen, and judge the recovery."""
    before = look(field, job, job_name)
    index = before.counted % WORKERS
    field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=index)
    if meanwhile is not None:
        meanwhile()
    wait_stepping(job, before)
    judge(field, job, job_name, before, index=index)


def settle(field: Field, job: Job, job_name: str, *, failures: int) -> None:
    """At the end all incidents are resolved, no action is open, and there was one effect a failure."""
    for incident in view.incidents(job):
        view.wait_resolved(job, incident, seconds=RECOVERY_SECONDS)
    expected = (failures,) * WORKERS
    counters = view.retries(job)
    expect(counters == expected, f"counters should be {view.as_text(expected)}: {view.as_text(counters)}")
    ends = list(Action.objects.filter(incident__job=job).values_list("state", flat=True))
    expect(
        set(ends) <= {"done", "superseded"} and ends.count("done") == failures,
        f"{failures} actions should be done, others superseded, they are {sorted(ends)}",
    )
    starts = view.order_phases(job).count("command")
    expect(starts == failures + 1, f"{failures + 1} starts should be ordered, {starts} were")
    writes = [row for row in field.cluster.audit() if is_desk_write(row, job_name)]
    expect(not writes, f"restarts in place should write nothing to the cluster, there are {writes}")


def flush_redis(field: Field) -> None:
    """Empty Redis, as a lost broker would."""
    client = redis.Redis.from_url(field.stack.servers.redis_url)
    client.flushall()
    client.close()


def _starts(field: Field, job_name: str) -> dict[str, int]:
    return {
        process.pod_uid: field.cluster.log(field.namespace, process.pod).count(START_LINE)
        for process in field.cluster.processes(field.namespace, job_name).values()
    }
