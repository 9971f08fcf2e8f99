"""Drills of one failure and its recovery: kill-process, pod-deleted, desk-cut-off; and of none: finish."""

from __future__ import annotations

import re
import time
from typing import Any

from django.conf import settings

from apps.incidents.models import Incident
from apps.incidents.selectors import stage_events
from apps.jobs.models import Attempt, Job
from incidentdesk.drills import job_view as view
from incidentdesk.drills.field import Field, Processes, expect, wait_for
from recovery.timeline import render, stages

STEP_SECONDS = 0.05
CHECKPOINT_EVERY = 10
COLLECTIVE_TIMEOUT_SECONDS = 10.0


def named(name: str) -> str:
    """The name with the time, so that a drill may run twice on one stack."""
    return f"{name}-{int(time.time() * 1000) % 10_000_000}"


def submit(field: Field, name: str, **parameters: Any) -> str:
    """Submit a protected job of three workers with the drills' parameters; gives its name."""
    field.cluster.submit(
        namespace=field.namespace,
        name=name,
        **{
            "workers": 3,
            "steps": 1_000_000,
            "step_seconds": STEP_SECONDS,
            "checkpoint_every": CHECKPOINT_EVERY,
            "collective_timeout_seconds": COLLECTIVE_TIMEOUT_SECONDS,
            "max_retry": 10,
            "protect": True,
            "no_contact_seconds": settings.TIMINGS["NO_CONTACT_SECONDS"],
            **parameters,
        },
    )
    return name


def kill_process(
    field: Field, *, seed: int = 1, name: str = "kill-process", **parameters: Any
) -> dict[str, Any]:
    """A rank is killed: all restart in place, in the same pods under the same agents."""
    job_name = submit(field, named(name), **parameters)
    job = view.wait_training(field, field.namespace, job_name)
    before = field.cluster.processes(field.namespace, job_name)
    expect(len(before) == 3, f"three workers should run, the cluster shows {sorted(before)}")
    writes_before = len(field.cluster.audit())
    killed = field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=0)
    field.say(f"killed: {killed.get('what', killed)}")
    incident = wait_for("an incident", lambda: view.open_incident(job), seconds=20)
    incident = view.wait_resolved(job, incident, seconds=60 if not field.is_long else 900)
    after = field.cluster.processes(field.namespace, job_name)
    show_processes(field, before, after)
    for index, process in before.items():
        expect(after[index].pod_uid == process.pod_uid, f"worker {index} should keep its pod")
        expect(after[index].agent_pid == process.agent_pid, f"worker {index} should keep its agent process")
        expect(
            not set(after[index].rank_pids) & set(process.rank_pids),
            f"worker {index} should have a new training process",
        )
    is_reset = bool(parameters.get("reset"))
    result = judge_one_count(field, job, incident, job_name, any_worker=is_reset)
    orders = view.order_phases(job, after=attempt_of(job, 1).sequence)
    expect(
        orders == ["troubleshoot", "command"], f"two order sets should do it, these were written: {orders}"
    )
    harmful = [row for row in field.cluster.audit()[writes_before:] if is_desk_write(row, job_name)]
    expect(not harmful, f"the desk should not write to the cluster for this, it did: {harmful}")
    field.cluster.delete_job(field.namespace, job_name)
    return result


def kill_process_reset(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """The same with gloo's conduct: survivors die at once of the reset, so that any worker may be counted."""
    return kill_process(field, seed=seed, name="kill-reset", reset=True)


def pod_deleted(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """A pod is deleted by force: counted once, recreated by its controller, all restart together."""
    job_name = submit(field, named("pod-deleted"))
    job = view.wait_training(field, field.namespace, job_name)
    before = field.cluster.processes(field.namespace, job_name)
    gone = field.cluster.fault("pod-deleted", namespace=field.namespace, job=job_name, index=0)
    field.say(f"deleted: {gone.get('what', gone)}")
    incident = wait_for("an incident", lambda: view.open_incident(job), seconds=20)
    incident = view.wait_resolved(job, incident, seconds=90 if not field.is_long else 900)
    after = field.cluster.processes(field.namespace, job_name)
    show_processes(field, before, after)
    expect(after[0].pod_uid != before[0].pod_uid, "worker 0 should have a new pod")
    for index in (1, 2):
        expect(after[index].pod_uid == before[index].pod_uid, f"worker {index} should keep its pod")
        expect(after[index].agent_pid == before[index].agent_pid, f"worker {index} should keep its agent")
    result = judge_one_count(field, job, incident, job_name)
    field.cluster.delete_job(field.namespace, job_name)
    return result


def desk_cut_off(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """One of three agents cannot enrol: all run unprotected. All cut off in the middle: training goes on."""
    lonely = named("cut-one")
    field.cluster.fault("desk-cut-off", namespace=field.namespace, job=lonely, indices=[2])
    submit(field, lonely)
    job = wait_for("the job in the watch", lambda: view.find_job(field.namespace, lonely), seconds=30)
    wait_for("every rank of the cut-off job to step", lambda: all_step(field, lonely, 3), seconds=60)
    fresh = wait_for(
        "the job shown as unprotected",
        lambda: row if not (row := view.get_job(job)).is_protected else None,
        seconds=30,
    )
    expect(fresh.protection_reason or fresh.phase_reason, "the page should say why it is unprotected")
    field.say(f"one of three cut off: all run unprotected ({fresh.protection_reason or fresh.phase_reason})")
    expect(not view.counts(job), "nothing should be counted in an unprotected attempt")
    field.cluster.fault("restore", namespace=field.namespace, job=lonely)
    field.cluster.delete_job(field.namespace, lonely)

    job_name = submit(field, named("cut-all"))
    job = view.wait_training(field, field.namespace, job_name)
    before = field.cluster.processes(field.namespace, job_name)
    field.cluster.fault("desk-cut-off", namespace=field.namespace, job=job_name, indices=[0, 1, 2])
    wait_for("every agent shown as silent", lambda: silent_agents(job) == 3, seconds=30)
    reached = last_logged_step(field, job_name, 0)
    wait_for(
        "training to go on without the desk",
        lambda: last_logged_step(field, job_name, 0) > reached + 5,
        seconds=20,
    )
    expect(not view.counts(job), "silence is evidence, not an end: nothing should be counted")
    field.cluster.fault("restore", namespace=field.namespace, job=job_name)
    wait_for("every agent heard again", lambda: silent_agents(job) == 0, seconds=30)
    after = field.cluster.processes(field.namespace, job_name)
    expect(
        {i: p.rank_pids for i, p in after.items()} == {i: p.rank_pids for i, p in before.items()},
        "no training process should have been touched",
    )
    fresh = view.get_job(job)
    expect(
        fresh.phase == "RunCommand" and fresh.is_protected, f"it should run protected, it is {fresh.phase}"
    )
    field.say("all cut off in the middle: training went on, nothing counted, protected again")
    killed = field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=1)
    field.say(f"and a process killed afterwards: {killed.get('what', killed)}")
    incident = wait_for(
        "an incident", lambda: view.incidents(job)[-1] if view.counts(job) else None, seconds=20
    )
    view.wait_resolved(job, incident, seconds=60)
    expect(
        view.retries(job) == (1, 1, 1),
        f"counters should be 1:1:1, they are {view.as_text(view.retries(job))}",
    )
    field.cluster.delete_job(field.namespace, job_name)
    return {"counters": view.retries(job)}


def finish(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """A job that does all its steps: every worker finishes, the containers leave together, no incident."""
    job_name = submit(field, named("finish"), steps=60)
    job = wait_for("the job in the watch", lambda: view.find_job(field.namespace, job_name), seconds=30)
    wait_for("the job to have succeeded", lambda: view.get_job(job).phase == "Succeeded", seconds=60)
    path = f"/apis/batch/v1/namespaces/{field.namespace}/jobs/{job_name}"
    status = wait_for(
        "the cluster to call it complete",
        lambda: (now := field.cluster.object(path)["status"]).get("succeeded") == 3 and now,
        seconds=60,
    )
    expect(not status.get("failed"), f"no pod should have failed, the cluster counts {status.get('failed')}")
    expect(not view.incidents(job), "a job that ends well should open no incident")
    expect(view.retries(job) == (0, 0, 0), "nothing should be counted")
    field.say("60 steps done, three pods completed, no incident")
    return {"succeeded": status["succeeded"]}


# -- what several drills judge by --------------------------------------------------------------------


def judge_one_count(
    field: Field, job: Job, incident: Incident, job_name: str, *, any_worker: bool = False
) -> dict[str, Any]:
    """One failure was counted once, training came back from the newest committed checkpoint."""
    history = view.retries_history(job)
    shown = " → ".join(view.as_text(counters) for counters in history if any(counters))
    field.say(f"counters {shown}")
    if any_worker:
        firsts = {(1, 0, 0), (0, 1, 0), (0, 0, 1)}
        good = len(history) == 3 and history[1] in firsts and history[2] == (1, 1, 1)
    else:
        good = history == [(0, 0, 0), (1, 0, 0), (1, 1, 1)]
    expect(good, f"counters should go 1:0:0 → 1:1:1, they went {shown}")
    expect(len(view.counts(job)) == 1, f"one failure should be counted, {len(view.counts(job))} were")
    expect(view.get_job(job).recover_count == 1, "the job's recover count should be 1")
    expect(
        incident.resolution == "recovered", f"it should be resolved as recovered, not {incident.resolution}"
    )
    first, second = attempt_of(job, 1), attempt_of(job, 2)
    restored = restored_steps(field, job_name)
    expect(restored, "the trainers' logs should tell from which step they resumed")
    expect(len(set(restored)) == 1, f"all ranks should resume from one step, they did from {restored}")
    resumed = restored[0]
    expect(resumed > 0, "training should resume from a checkpoint, not from the start")
    newest = newest_committed_before_restart(field, job_name, resumed)
    expect(resumed == newest, f"resumed from step {resumed}, but {newest} was committed before")
    expect(
        second.resumed_from_step == resumed,
        f"the desk shows {second.resumed_from_step} as resumed from, the trainers say {resumed}",
    )
    show_timeline(field, incident)
    failed_at = first.last_step
    field.say(f"failed at step {failed_at}, resumed from {resumed} (newest committed checkpoint)")
    return {"counters": view.retries(job), "history": shown, "failed_at": failed_at, "resumed_from": resumed}


def attempt_of(job: Job, n: int) -> Attempt:
    """Attempt ``n``, which must be there."""
    found = view.attempt(job, n)
    expect(found is not None, f"attempt {n} should be there")
    assert found is not None
    return found


def restored_steps(field: Field, job_name: str) -> list[int]:
    """Step from which each rank resumed in its newest start, from the trainers' own logs."""
    steps = []
    for process in field.cluster.processes(field.namespace, job_name).values():
        found = re.findall(r"restored step (\d+) from", field.cluster.log(field.namespace, process.pod))
        if found:
            steps.append(int(found[-1]))
    return steps


def newest_committed_before_restart(field: Field, job_name: str, resumed: int) -> int:
    """The newest step whose commit stands in rank 0's log before its last restore.

    Pods that were replaced took their log along; then the resumed step itself is the best that is known,
    and must be a committed one.
    """
    process = field.cluster.processes(field.namespace, job_name)[0]
    log = field.cluster.log(field.namespace, process.pod)
    before = log[: log.rfind("restored step")]
    committed = [int(step) for step in re.findall(r"committed checkpoint step (\d+) to", before)]
    return max(committed, default=resumed)


def all_step(field: Field, job_name: str, workers: int) -> bool:
    """Whether every worker's log shows a step."""
    processes = field.cluster.processes(field.namespace, job_name)
    return len(processes) == workers and all(
        re.search(r"\] step \d+/", field.cluster.log(field.namespace, process.pod))
        for process in processes.values()
    )


def last_logged_step(field: Field, job_name: str, index: int) -> int:
    """The newest step in a worker's log, 0 when there is none."""
    process = field.cluster.processes(field.namespace, job_name).get(index)
    if process is None:
        return 0
    found = re.findall(r"\] step (\d+)/", field.cluster.log(field.namespace, process.pod))
    return int(found[-1]) if found else 0


def silent_agents(job: Job) -> int:
    """How many present agents of the job are silent."""
    return job.workers.filter(incarnation__is_silent=True).count()


def is_desk_write(row: dict[str, Any], job_name: str) -> bool:
    """Whether an audit row is a write of the desk's executor on this job (not of a controller or the drill)."""
    return (
        row.get("kind") == "Job"
        and row.get("name") == job_name
        and row.get("verb") in ("patch", "update")
        and "incidentdesk"
        in str(row.get("detail", "")) + str(row.get("user_agent", "")) + str(row.get("actor", ""))
    )


def show_processes(field: Field, before: dict[int, Processes], after: dict[int, Processes]) -> None:
    """Print process ids before and after, worker by worker."""
    for index in sorted(before):
        old, new = before[index], after.get(index)
        if new is None:
            field.say(f"worker {index}: pod {old.pod}, agent {old.agent_pid}, ranks {old.rank_pids} → gone")
            continue
        pod = "same pod" if new.pod_uid == old.pod_uid else f"pod {old.pod} → {new.pod}"
        agent = "same agent" if new.agent_pid == old.agent_pid else f"agent {old.agent_pid} → {new.agent_pid}"
        field.say(
            f"worker {index}: {pod}, {agent} ({new.agent_pid}), ranks {old.rank_pids} → {new.rank_pids}"
        )


def show_timeline(field: Field, incident: Incident) -> None:
    """Print the recovery timeline: stage, seconds, share."""
    field.say(render(stages(stage_events(incident))))
