"""One failure of a job that was hit before and will be again: what stands before it, and what must after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import redis
from django.conf import settings
from django.db.models import Max

from apps.incidents.models import Action, Decision, Signal
from apps.incidents.policy import current_policy
from apps.incidents.services.replaying import replay_after
from apps.jobs.models import Job, Order
from apps.nodes.models import WatchState
from incidentdesk.drills import job_view as view
from incidentdesk.drills.field import DESK_SERVICES, Field, expect, wait_for
from incidentdesk.drills.recoveries import is_desk_write

REDIS = "redis"
VICTIMS = (*DESK_SERVICES, REDIS)
WORKERS = 3
RECOVERY_SECONDS = 90
BACK_SECONDS = 60
#: Of the job. Production's wait for a first contact: a new pod must not go its own way where the web process,
#: killed more than once, takes longer to come back than the short one.
PARAMETERS = {"max_retry": 100, "no_contact_seconds": 60.0}
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


@dataclass(frozen=True, slots=True)
class Struck:
    """A victim, the process id that it had, and when that was killed (monotonic clock)."""

    victim: str
    pid: int
    at: float


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
    field: Field, job: Job, job_name: str, before: Before, *, index: int, in_place: bool = True
) -> None:
    """The failure of worker ``index`` was counted once and had one set of effects.

    ``in_place``: every worker has to keep its pod. A replaced one takes a boot check and a second stop.
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
    if in_place:
        expect(phases == ["troubleshoot", "command"], f"two order sets should do it, these were: {phases}")
    expect(
        phases.count("command") == 1 and phases[-1] == "command",
        f"one start should be ordered, at the end, these were: {phases}",
    )
    sequences = [order.sequence - before.sequence for order in orders]
    expect(sequences == list(range(1, len(phases) + 1)), f"sequences should be dense: {sequences}")
    restarts = Action.objects.filter(incident__job=job, kind="restart_process", pk__gt=before.action)
    states = sorted(restarts.values_list("state", flat=True))
    expect(
        states.count("done") == 1 and set(states) <= {"done", "superseded"},
        f"one restart should be done, they are {states}",
    )
    starts_now = _starts(field, job_name)
    expect(len(starts_now) == WORKERS, f"{WORKERS} pods should run, {len(starts_now)} do")
    if in_place:
        expect(starts_now.keys() == before.starts.keys(), "every worker should keep its pod")
    for pod, starts in starts_now.items():
        more = starts - before.starts.get(pod, 0)
        expect(more == 1, f"the trainer of pod {pod} should start once more, it did {more} times")
    _, different = replay_after(before.decision, current_policy())
    expect(not different, f"replayed otherwise than stored: {'; '.join(map(str, different[:3]))}")


def strike(field: Field, victim: str) -> Struck:
    """Kill a service, or flush Redis."""
    struck_at = time.monotonic()
    if victim != REDIS:
        return Struck(victim, field.kill(victim), struck_at)
    client = redis.Redis.from_url(field.stack.servers.redis_url)
    client.flushall()
    client.close()
    return Struck(victim, 0, struck_at)


def wait_back(field: Field, struck: Struck) -> float:
    """Wait until the victim does its work again; seconds for which it was away."""
    if struck.victim == REDIS:
        return 0.0
    pid = field.stack.supervisor.wait_ready(
        struck.victim, other_than=struck.pid, timeout_seconds=BACK_SECONDS
    )
    away = time.monotonic() - struck.at
    if struck.victim == "watch":
        leaders = WatchState.objects.filter(resource="leader", leader__endswith=f":{pid}")
        wait_for("the new watch to lead", leaders.exists, seconds=BACK_SECONDS)
    return away


def may_leave(victim: str, away: float) -> bool:
    """Whether agents may have ended their containers while the victim was away.

    An agent without contact waits for an order as long as ORDER_WAIT_SECONDS, and leaves; its pod comes
    anew. That is what it is made for when the web process is away for so long.
    """
    return (
        victim == "web" and away > settings.TIMINGS["ORDER_WAIT_SECONDS"] - settings.TIMINGS["POLL_SECONDS"]
    )


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


def _starts(field: Field, job_name: str) -> dict[str, int]:
    return {
        process.pod_uid: field.cluster.log(field.namespace, process.pod).count(START_LINE)
        for process in field.cluster.processes(field.namespace, job_name).values()
    }
