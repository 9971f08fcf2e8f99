"""Restart in place against the cold start of the same trainer, pair by pair."""

from __future__ import annotations

import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from apps.incidents.models import Decision, Signal
from apps.jobs.models import Job, Order
from incidentdesk.drills import job_view as view
from incidentdesk.drills.field import Field, expect, wait_for
from incidentdesk.drills.recoveries import named, submit

WORKERS = 3
STEP_SECONDS = 0.05
CHECKPOINT_EVERY = 20
BAR_SECONDS = 0.5
STAGES = ("report", "decide stop", "decide start", "order", "stop", "start", "first step")
_STEP_LINE = re.compile(r"^\[(?P<at>[\d-]+ [\d:,]+)\] \[rank \d+\] step \d+/")


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart: stages in seconds (they add up to the total), and the quick checks beside the stop.

    ``decide stop`` is from the stored report to the decision that stops the others, ``decide start`` from the last
    stored answer to the one that starts all again; ``order`` is until agents read both, with storing them.
    ``decisions`` were made from the report to the last rank's first step, each ``deciding`` seconds long (median,
    reading and deciding, without storing).
    """

    total: float
    stages: dict[str, float]
    checks: float
    decisions: int
    deciding: float


def measure(field: Field, *, pairs: int) -> int:
    """Print the median of interleaved pairs, stage by stage. 1 when the difference is above the bar."""
    job_name = submit(
        field, named("bench"), step_seconds=STEP_SECONDS, checkpoint_every=CHECKPOINT_EVERY, max_retry=10_000
    )
    job = view.wait_training(field, field.namespace, job_name)
    store = field.stack.root / "cold-start"
    colds, restarts = [], []
    print(f"{'pair':>4} {'cold start':>11} {'restart':>9} {'difference':>11}")
    for n in range(1, pairs + 1):
        if n == 1:
            cold_start(store)  # writes the checkpoint that the counted ones resume from
        cold = cold_start(store)
        restart = restart_once(field, job, job_name)
        colds.append(cold)
        restarts.append(restart)
        print(f"{n:>4} {cold:>9.3f} s {restart.total:>7.3f} s {restart.total - cold:>9.3f} s")
    difference = statistics.median(
        restart.total - cold for cold, restart in zip(colds, restarts, strict=True)
    )
    print(
        f"\nmedian cold start {statistics.median(colds):.3f} s, restart "
        f"{statistics.median(restart.total for restart in restarts):.3f} s"
    )
    for stage in STAGES:
        print(f"  {stage:<12} {statistics.median(restart.stages[stage] for restart in restarts):>7.3f} s")
    print(
        f"  quick checks beside the stop: {statistics.median(restart.checks for restart in restarts):.3f} s"
    )
    print(
        f"  decisions on the way: {statistics.median(restart.decisions for restart in restarts):.0f}, "
        f"{statistics.median(restart.deciding for restart in restarts) * 1000:.1f} ms each to read and decide"
    )
    print(f"median difference {difference:.3f} s, bar {BAR_SECONDS} s; load now {os.getloadavg()[0]:.2f}")
    field.cluster.delete_job(field.namespace, job_name)
    return 0 if difference <= BAR_SECONDS else 1


def cold_start(store: Path) -> float:
    """Start the trainer's ranks as plain processes; seconds until every rank finished its first step.

    They resume from the newest committed checkpoint in ``store``, as a restarted attempt does. The first
    call makes one.
    """
    store.mkdir(parents=True, exist_ok=True)
    first = not any(store.glob("step-*/commit_success"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = [store / f"rank-{rank}.log" for rank in range(WORKERS)]
    started = time.time()
    processes = []
    for rank in range(WORKERS):
        with logs[rank].open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "sim.trainer",
                        "--steps",
                        "1000000",
                        "--checkpoint-every",
                        "5" if first else "1000000",
                        "--step-seconds",
                        str(STEP_SECONDS),
                        "--checkpoint-dir",
                        str(store),
                    ],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={
                        **os.environ,
                        "RANK": str(rank),
                        "WORLD_SIZE": str(WORKERS),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                    },
                )
            )
    try:
        if first:
            wait_for("a first checkpoint", lambda: any(store.glob("step-*/commit_success")), seconds=30)
            return 0.0
        wait_for(
            "every rank's first step", lambda: all(first_step_at(log.read_text()) for log in logs), seconds=30
        )
        return max(first_step_at(log.read_text()) or 0.0 for log in logs) - started
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def first_step_at(log: str, *, after: str = "") -> float | None:
    """When the first step after the last line with ``after`` was done (Unix seconds), or None."""
    lines = log.splitlines()
    if after:
        starts = [n for n, line in enumerate(lines) if after in line]
        lines = lines[starts[-1] :] if starts else []
    for line in lines:
        found = _STEP_LINE.match(line)
        if found:
            # the trainer writes the machine's local time
            return datetime.strptime(found["at"], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
    return None


def restart_once(field: Field, job: Job, job_name: str) -> Restart:
    """Kill a rank, wait until every rank steps again, and split the time by rows and logs."""
    before = view.get_job(job)
    committed = view.committed_step(job) or 0
    wait_for(
        "some steps beyond a checkpoint", lambda: (view.lowest_step(job) or 0) > committed + 2, seconds=30
    )
    killed = field.cluster.fault("kill-process", namespace=field.namespace, job=job_name, index=1)
    killed_at = datetime.fromtimestamp(float(killed["at"]), tz=UTC)
    attempt = wait_for(
        "the next attempt to step",
        lambda: view.has_stepped(job, before.attempt + 1),
        seconds=60,
    )
    expect(view.get_job(job).attempt == before.attempt + 1, "one restart should be one attempt")
    stop = Order.objects.get(job=job, sequence=attempt.sequence - 1)
    start = Order.objects.get(job=job, sequence=attempt.sequence)
    error = Signal.objects.filter(
        kind="error", sequence=before.attempt_sequence, inbox_entries__subject__job=job
    )
    error_at = error.order_by("id").first()
    acks = list(
        Signal.objects.filter(kind="ack", sequence=stop.sequence, inbox_entries__subject__job=job).order_by(
            "id"
        )
    )
    started = list(
        Signal.objects.filter(kind="ack", sequence=start.sequence, inbox_entries__subject__job=job).order_by(
            "id"
        )
    )
    expect(error_at is not None, "the killed process should have been reported")
    assert error_at is not None
    processes = field.cluster.processes(field.namespace, job_name)
    first_steps = [
        first_step_at(field.cluster.log(field.namespace, process.pod), after="restored step")
        for process in processes.values()
    ]
    expect(len(first_steps) == WORKERS and all(first_steps), "every rank should step again")
    done_at = max(at for at in first_steps if at is not None)
    stop_read = stop.first_read_at or stop.written_at
    start_read = start.first_read_at or start.written_at
    stopped_at = max(row.received_at for row in acks)
    running_at = max(row.seen_at for row in started)
    stages = {
        "report": (error_at.received_at - killed_at).total_seconds(),
        "decide stop": (stop.written_at - error_at.received_at).total_seconds(),
        "decide start": (start.written_at - stopped_at).total_seconds(),
        "order": (stop_read - stop.written_at + (start_read - start.written_at)).total_seconds(),
        "stop": (stopped_at - stop_read).total_seconds(),
        "start": (running_at - start_read).total_seconds(),
        "first step": done_at - running_at.timestamp(),
    }
    checks = max(
        (float(check.get("seconds", 0)) for row in acks for check in row.body.get("checks", [])), default=0.0
    )
    done = datetime.fromtimestamp(done_at, tz=UTC)
    decisions = Decision.objects.filter(subject__job=job, at__gte=error_at.received_at, at__lte=done)
    seconds = list(decisions.values_list("seconds", flat=True))
    return Restart(
        total=done_at - killed_at.timestamp(),
        stages=stages,
        checks=checks,
        decisions=len(seconds),
        deciding=statistics.median(seconds),
    )
