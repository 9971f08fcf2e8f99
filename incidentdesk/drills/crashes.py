"""Drills that stop parts of the desk in the middle of a recovery, or kill them at moments chosen by chance."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.incidents.models import Action, ActionTry
from apps.jobs.models import Job
from incidentdesk.drills import job_view as view
from incidentdesk.drills import one_recovery
from incidentdesk.drills.field import DrillFailed, Field, expect, wait_for
from incidentdesk.drills.one_recovery import VICTIMS
from incidentdesk.drills.recoveries import is_desk_write, named, submit

LONG_MOMENTS = 20
LATEST_MOMENT_SECONDS = 1.5


def random_moments(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """Twenty seeded moments: after a failure, a process chosen by chance dies at a moment chosen by chance."""
    chance = random.Random(seed)
    job_name = submit(field, named("random-moments"), **one_recovery.PARAMETERS)
    job = view.wait_training(field, field.namespace, job_name)
    for n in range(LONG_MOMENTS):
        victim, delay = chance.choice(VICTIMS), chance.uniform(0, LATEST_MOMENT_SECONDS)
        before = one_recovery.look(field, job, job_name)
        index = n % one_recovery.WORKERS
        try:
            field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=index)
            time.sleep(delay)  # the moment itself is what this drill varies
            away = one_recovery.wait_back(field, one_recovery.strike(field, victim))
            one_recovery.wait_stepping(job, before)
            in_place = not one_recovery.may_leave(victim, away)
            one_recovery.judge(field, job, job_name, before, index=index, in_place=in_place)
        except DrillFailed as failed:
            raise DrillFailed(f"moment {n + 1}, {victim} after {delay:.2f} s: {failed}") from None
        field.say(f"  {n + 1:>2}: {victim} after {delay:.2f} s; counted once, training again")
    one_recovery.settle(field, job, job_name, failures=LONG_MOMENTS)
    field.cluster.delete_job(field.namespace, job_name)
    return {"moments": LONG_MOMENTS, "seed": seed}


def sleeping_executor(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """An executor sleeps (SIGSTOP) past its lease, before and in its send: the cluster sees one write."""
    for point in ("action_claimed", "action_sending"):
        job_name = submit(field, named("sleeping"), max_retry=0)
        job = view.wait_training(field, field.namespace, job_name)
        field.arm(point)
        field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=0)
        standing = wait_for(f"an executor to stand at {point}", partial(field.standing, point), seconds=30)
        sleeper = standing.pid
        os.kill(sleeper, signal.SIGSTOP)
        wait_for("it to sleep", partial(is_stopped, sleeper), seconds=10)
        standing.release()
        action = wait_for("another executor to do it", partial(done_by_another, job, sleeper), seconds=60)
        wait_for("the job to be stopped", partial(view.has_stopped, job), seconds=60)
        os.kill(sleeper, signal.SIGCONT)
        first = wait_for("the sleeper's own try to end", partial(ended_try, action), seconds=30)
        writes = [row for row in field.cluster.audit() if is_desk_write(row, job_name) and was_done(row)]
        expect(
            len(writes) == 1,
            f"the cluster should see one write after a sleep at {point}, it saw {len(writes)}",
        )
        field.say(
            f"  slept at {point}: try 1 ended {first.outcome}, try {action.try_n} acted; one write in the cluster"
        )
        field.cluster.delete_job(field.namespace, job_name)
    return {"writes": 1}


def sleeping_watch(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """The watch sleeps (SIGSTOP) longer than its lease while a pod is deleted: counted once, nothing done twice."""
    job_name = submit(field, named("sleeping-watch"))
    job = view.wait_training(field, field.namespace, job_name)
    field.stack.kill("watch", signal.SIGSTOP)
    field.cluster.fault("pod-deleted", namespace=field.namespace, job=job_name, index=0)
    lease = float(settings.TIMINGS["WATCH_LEASE_SECONDS"])
    started = time.monotonic()
    wait_for("the lease to run out", lambda: time.monotonic() - started > lease + 1, seconds=lease + 5)
    field.stack.kill("watch", signal.SIGCONT)
    incident = wait_for("an incident", lambda: view.open_incident(job), seconds=60)
    view.wait_resolved(job, incident, seconds=one_recovery.RECOVERY_SECONDS)
    expect(
        view.retries(job) == (1, 1, 1),
        f"counters should be 1:1:1, they are {view.as_text(view.retries(job))}",
    )
    expect(len(view.counts(job)) == 1, f"one failure should be counted, {len(view.counts(job))} were")
    field.cluster.delete_job(field.namespace, job_name)
    return {"counters": view.retries(job)}


# -- parts ---------------------------------------------------------------------------------------------


def is_stopped(pid: int) -> bool:
    """Whether the kernel has stopped a process."""
    # pid (name) state …: the name may hold spaces and parentheses
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def done_by_another(job: Job, sleeper: int) -> Action | None:
    """The action that the sleeper had claimed, once another try carried it out; None until then."""
    asleep = Action.objects.filter(incident__job=job, tries__n=1, tries__worker_name__endswith=f":{sleeper}")
    return asleep.filter(state="done", try_n__gt=1).first()


def ended_try(action: Action) -> ActionTry | None:
    """The first try of an action once it has ended, or None."""
    return action.tries.filter(n=1, ended_at__isnull=False).exclude(outcome="").first()


def was_done(row: dict[str, Any]) -> bool:
    """Whether the cluster carried the write out (a refused one changed nothing)."""
    return int(row.get("status") or 200) < 400
