"""Drills that kill or stop parts of the desk in the middle of a recovery, which must end well all the same."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from django.conf import settings

from apps.incidents.models import Action, ActionTry
from apps.jobs.models import Job
from incidentdesk.drills import job_view as view
from incidentdesk.drills.field import Field, expect, wait_for
from incidentdesk.drills.recoveries import is_desk_write, named, submit

POINTS = (
    "signal_committed",
    "decision_before_commit",
    "decision_after_commit",
    "action_claimed",
    "action_sent",
    "action_seen",
    "order_written",
    "order_read",
)
PROCESSES = ("web", "decide", "worker", "beat", "watch")
LONG_MOMENTS = 20
RECOVERY_SECONDS = 90


def crash_points(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """A process of the desk dies at each named point of a recovery."""
    job_name = submit(field, named("crash-points"), max_retry=100)
    job = view.wait_training(field, field.namespace, job_name)
    for point in POINTS:
        armed = field.arm(point)
        recover_once(field, job, job_name, f"death at {point}")
        expect(not armed.exists(), f"nobody passed {point}; the drill did not test it")
        field.say(f"  {point}: process {field.taken(point)} died there; counted once, training again")
    settle(field, job, job_name, failures=len(POINTS))
    return {"points": list(POINTS), "counters": view.retries(job)}


def kill_each(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """Each process of the desk is killed (-9) right after a failure; Redis is flushed; all of it again."""
    job_name = submit(field, named("kill-each"), max_retry=100)
    job = view.wait_training(field, field.namespace, job_name)
    for name in PROCESSES:
        recover_once(field, job, job_name, f"{name} killed", meanwhile=partial(field.stack.kill, name))
        field.say(f"  {name} killed after the failure; counted once, training again")
    recover_once(field, job, job_name, "Redis flushed", meanwhile=lambda: flush_redis(field))
    field.say("  Redis flushed; counted once, training again")
    settle(field, job, job_name, failures=len(PROCESSES) + 1)
    return {"counters": view.retries(job)}


def random_moments(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """Twenty seeded moments: after a failure, a process chosen by chance dies at a moment chosen by chance."""
    chance = random.Random(seed)
    job_name = submit(field, named("random-moments"), max_retry=100)
    job = view.wait_training(field, field.namespace, job_name)
    for n in range(LONG_MOMENTS):
        name, delay = chance.choice((*PROCESSES, "redis")), chance.uniform(0, 1.5)

        def strike(name: str = name, delay: float = delay) -> None:
            time.sleep(delay)  # the moment itself is what this drill varies
            if name == "redis":
                flush_redis(field)
            else:
                field.stack.kill(name)

        recover_once(field, job, job_name, f"moment {n + 1}", meanwhile=strike)
        field.say(f"  {n + 1:>2}: {name} after {delay:.2f} s; counted once, training again")
    settle(field, job, job_name, failures=LONG_MOMENTS)
    return {"moments": LONG_MOMENTS, "seed": seed}


def sleeping_executor(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """An executor sleeps (SIGSTOP) past its lease, before and in its send: the cluster sees one write."""
    for point in ("action_claimed", "action_sending"):
        job_name = submit(field, named("sleeping"), max_retry=0)
        job = view.wait_training(field, field.namespace, job_name)
        armed = field.arm(point, "stop")
        field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=0)
        sleeper = wait_for(f"an executor to sleep at {point}", partial(field.taken, point), seconds=30)
        action = wait_for("another executor to do it", partial(done_by_another, job, sleeper), seconds=60)
        wait_for("the job to be stopped", partial(view.has_stopped, job), seconds=60)
        os.kill(sleeper, signal.SIGCONT)
        first = wait_for("the sleeper's own try to end", partial(ended_try, action), seconds=30)
        writes = [row for row in field.cluster.audit() if is_desk_write(row, job_name) and was_done(row)]
        expect(
            len(writes) == 1,
            f"the cluster should see one write after a sleep at {point}, it saw {len(writes)}",
        )
        expect(not armed.exists(), f"nobody slept at {point}")
        field.say(
            f"  slept at {point}: try 1 ended {first.outcome}, try {action.try_n} acted; one write in the cluster"
        )
        field.cluster.delete_job(field.namespace, job_name)
        for path in field.fault_points.glob(f"{point}.taken-*"):
            path.unlink()
    return {"writes": 1}


def sleeping_watch(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """The watch sleeps (SIGSTOP) longer than its lease while a pod is deleted: counted once, nothing done twice."""
    job_name = submit(field, named("sleeping-watch"))
    job = view.wait_training(field, field.namespace, job_name)
    field.stack.kill("watch", signal.SIGSTOP)
    field.cluster.fault("pod-deleted", namespace=field.namespace, job=job_name, index=0)
    lease = watch_lease_seconds()
    started = time.monotonic()
    wait_for("the lease to run out", lambda: time.monotonic() - started > lease + 1, seconds=lease + 5)
    field.stack.kill("watch", signal.SIGCONT)
    incident = wait_for("an incident", lambda: view.open_incident(job), seconds=60)
    view.wait_resolved(job, incident, seconds=RECOVERY_SECONDS)
    expect(
        view.retries(job) == (1, 1, 1),
        f"counters should be 1:1:1, they are {view.as_text(view.retries(job))}",
    )
    expect(len(view.counts(job)) == 1, f"one failure should be counted, {len(view.counts(job))} were")
    field.cluster.delete_job(field.namespace, job_name)
    return {"counters": view.retries(job)}


# -- parts ---------------------------------------------------------------------------------------------


def recover_once(
    field: Field, job: Job, job_name: str, what: str, *, meanwhile: Callable[[], Any] | None = None
) -> None:
    """Kill one rank; afterwards exactly one more failure is counted and one more attempt steps."""
    before = view.get_job(job)
    counted = len(view.counts(job))
    field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=counted % 3)
    if meanwhile is not None:
        meanwhile()
    wait_for(
        f"attempt {before.attempt + 1} to step ({what})",
        partial(view.has_stepped, job, before.attempt + 1),
        seconds=RECOVERY_SECONDS,
    )
    now_counted = len(view.counts(job))
    expect(
        now_counted == counted + 1, f"{what}: {now_counted - counted} failures were counted instead of one"
    )
    attempt = view.get_job(job).attempt
    expect(attempt == before.attempt + 1, f"{what}: attempt {attempt} instead of {before.attempt + 1}")


def done_by_another(job: Job, sleeper: int) -> Action | None:
    """The action that the sleeper had claimed, once another try carried it out; None until then."""
    asleep = Action.objects.filter(incident__job=job, tries__n=1, tries__worker_name__endswith=f":{sleeper}")
    return asleep.filter(state="done", try_n__gt=1).first()


def ended_try(action: Action) -> ActionTry | None:
    """The first try of an action once it has ended, or None."""
    return action.tries.filter(n=1, ended_at__isnull=False).exclude(outcome="").first()


def settle(field: Field, job: Job, job_name: str, *, failures: int) -> None:
    """At the end all incidents are resolved, no action is open, every counter agrees."""
    for incident in view.incidents(job):
        view.wait_resolved(job, incident, seconds=RECOVERY_SECONDS)
    expected = (failures,) * 3
    counters = view.retries(job)
    expect(
        counters == expected,
        f"counters should be {view.as_text(expected)}, they are {view.as_text(counters)}",
    )
    ends = set(Action.objects.filter(incident__job=job).values_list("state", flat=True))
    expect(
        ends <= {"done", "superseded"}, f"every action should be done or superseded, there are {sorted(ends)}"
    )
    writes = [row for row in field.cluster.audit() if is_desk_write(row, job_name)]
    expect(not writes, f"restarts in place should write nothing to the cluster, there are {writes}")
    field.cluster.delete_job(field.namespace, job_name)


def flush_redis(field: Field) -> None:
    """Empty Redis, as a lost broker would."""
    client = redis.Redis.from_url(field.stack.servers.redis_url)
    client.flushall()
    client.close()


def watch_lease_seconds() -> float:
    """The watch's lease as set for this stack."""
    return float(settings.TIMINGS["WATCH_LEASE_SECONDS"])


def was_done(row: dict[str, Any]) -> bool:
    """Whether the cluster carried the write out (a refused one changed nothing)."""
    return int(row.get("status") or 200) < 400
