"""The worked example of the phase machine on real processes: three workers, max retry 2, to Failed."""

from __future__ import annotations

from functools import partial
from typing import Any

from apps.incidents.models import Action
from apps.jobs.models import Job
from incidentdesk.drills import job_view as view
from incidentdesk.drills.field import Field, Processes, Standing, expect, wait_for
from incidentdesk.drills.recoveries import is_desk_write, named, submit

MAX_RETRY = 2
HISTORY = [(0, 0, 0), (1, 0, 0), (1, 1, 1), (1, 2, 1), (2, 2, 2), (2, 2, 3)]
#: Failures that count, as (attempt, worker). The death during the first recovery is not among them.
COUNTED = [(1, 0), (2, 1), (3, 2)]
HELD = "action_claimed"  # the executor holds the restart, all have stopped, nothing is started yet
SEEN_SECONDS = 30
RESTART_SECONDS = 120


def max_retry(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """Three failures that count at a limit of two, and a death in between that does not; the job is suspended."""
    job_name = submit(field, named("max-retry"), max_retry=MAX_RETRY)
    job = view.wait_training(field, field.namespace, job_name)
    first = field.cluster.processes(field.namespace, job_name)

    standing = _fail(field, job_name, "kill-process", 0)
    _see(field, job, (1, 0, 0), "worker 0 was killed", phase="Troubleshooting")
    field.cluster.fault("kill-agent", namespace=field.namespace, job=job_name, index=1)
    wait_for("the job to be Restarting", partial(_is_in, job, "Restarting"), seconds=SEEN_SECONDS)
    _see(field, job, (1, 0, 0), "worker 1 died meanwhile, pod and all", phase="Restarting")
    standing.release()
    second = _wait_back(field, job, job_name, 2)
    _see(field, job, (1, 1, 1), "all start together", phase="RunCommand")
    _judge_processes(first, second, replaced=(1,))

    standing = _fail(field, job_name, "exit-with", 1)
    _see(field, job, (1, 2, 1), "worker 1 reported an error", phase="Troubleshooting")
    standing.release()
    third = _wait_back(field, job, job_name, 3)
    _see(field, job, (2, 2, 2), "all start together", phase="RunCommand")
    _judge_processes(second, third, replaced=())

    field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=2)
    wait_for("the job to be Failed", partial(_is_in, job, "Failed"), seconds=SEEN_SECONDS)
    _see(field, job, (2, 2, 3), "worker 2 was killed", phase="Failed")
    reason = _judge_stop(field, job, job_name)
    field.say(f"job suspended: {reason}")

    history = view.retries_history(job)
    shown = " → ".join(map(view.as_text, history))
    expect(
        history == HISTORY,
        f"counters should go {' → '.join(map(view.as_text, HISTORY))}, decisions wrote {shown}",
    )
    counted = [(count.attempt, count.worker.index) for count in view.counts(job)]
    expect(counted == COUNTED, f"counted as (attempt, worker) should be {COUNTED}, it is {counted}")
    field.cluster.delete_job(field.namespace, job_name)
    return {"counters": view.retries(job), "history": shown, "reason": reason}


def _fail(field: Field, job_name: str, fault: str, index: int) -> Standing:
    """Let a worker fail, and hold its job's recovery where all have stopped and none is started."""
    field.arm(HELD)
    field.cluster.fault(fault, namespace=field.namespace, job=job_name, index=index)
    return wait_for("an executor to hold the restart", partial(field.standing, HELD), seconds=SEEN_SECONDS)


def _see(field: Field, job: Job, expected: tuple[int, ...], what: str, *, phase: str) -> None:
    """Read the counters and the phase now, print them, and compare."""
    counters, now = view.retries(job), view.get_job(job).phase
    field.say(f"{view.as_text(counters)}  {now:<16} {what}")
    expect(
        counters == expected and now == phase,
        f"after {what!r} it should be {view.as_text(expected)} in {phase}",
    )


def _is_in(job: Job, phase: str) -> bool:
    return view.get_job(job).phase == phase


def _wait_back(field: Field, job: Job, job_name: str, attempt: int) -> dict[int, Processes]:
    """Wait until all step again; their processes, as the cluster shows them."""
    wait_for(f"attempt {attempt} to step", partial(view.has_stepped, job, attempt), seconds=RESTART_SECONDS)
    return field.cluster.processes(field.namespace, job_name)


def _judge_processes(
    before: dict[int, Processes], after: dict[int, Processes], *, replaced: tuple[int, ...]
) -> None:
    """All have new training processes; only the replaced workers have a new pod."""
    expect(sorted(after) == sorted(before), f"workers {sorted(before)} should run, these do: {sorted(after)}")
    for index, old in before.items():
        new = after[index]
        expect(
            new.rank_pids and not set(new.rank_pids) & set(old.rank_pids),
            f"worker {index} should have a new training process, it had {old.rank_pids}, has {new.rank_pids}",
        )
        expect(
            (new.pod_uid != old.pod_uid) == (index in replaced),
            f"worker {index} should have {'a new' if index in replaced else 'its old'} pod: {new.pod}",
        )


def _judge_stop(field: Field, job: Job, job_name: str) -> str:
    """The job is suspended in the cluster by one write, with the reason, which is given back."""
    stop = wait_for(
        "stop_job to be done",
        lambda: Action.objects.filter(incident__job=job, kind="stop_job", state="done").first(),
        seconds=RESTART_SECONDS,
    )
    recover_count = view.get_job(job).recover_count
    expect(
        recover_count == MAX_RETRY + 1,
        f"recover count should be max retry + 1 = {MAX_RETRY + 1}: {recover_count}",
    )
    seen = field.cluster.object(f"/apis/batch/v1/namespaces/{field.namespace}/jobs/{job_name}")
    expect(seen["spec"].get("suspend") is True, "the job should be suspended in the cluster")
    expect(not seen.get("status", {}).get("active"), "no pod should be active in the cluster")
    expect(not field.cluster.processes(field.namespace, job_name), "no process should be left in the cluster")
    reason = str(seen["metadata"].get("annotations", {}).get("incidentdesk.io/stop-reason", ""))
    expect("failures 3 of 2" in reason, f"the reason should stand on the job in the cluster: {reason!r}")
    title = stop.incident.title
    expect("failures 3 of 2" in title, f"the incident should be called by it, it is called {title!r}")
    writes = [row for row in field.cluster.audit() if is_desk_write(row, job_name)]
    expect(len(writes) == 1, f"the cluster should have seen one write of the desk, it saw {len(writes)}")
    expect(stop.incident.log_tails.exists(), "log tails should be stored before the pods went")
    return reason
