"""What the page of one job shows, put together from selectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.desk import charts
from apps.desk.checkpoint_panel import checkpoint_panel
from apps.desk.next_step import CAPACITY_HINT
from apps.desk.silence import Silence, silence
from apps.desk.words import Mark, duration, mark_for, number
from apps.incidents import selectors as incidents
from apps.incidents.checkpoint_advice import checkpoint_advice
from apps.jobs import selectors
from apps.jobs.models import Job, Worker
from recovery.phases import TERMINAL_PHASES, WAITING_FOR_CAPACITY, Phase

#: Retries are a worker's, and aligned to the job's after each recovery (DOMAIN 3): alone they blame nobody.
RETRIES_TITLE = (
    "What counts against max retry. After a recovery every worker has the count of the job, "
    "also one that never failed; who failed is told by its last failure."
)
EVENT_TABS = {
    "failures": "Failures used",
    "rescheduled": "Ended in a reschedule",
    "preempted": "Preempted",
    "evicted": "Evicted as slow",
    "waiting": "Waited for capacity",
}


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A worker as its card, cell or row shows it."""

    worker: Worker
    mark: Mark
    node: str
    machine_id: int | None
    step: int | None  # None where it is not of this attempt, or its agent is silent
    step_at: datetime | None
    step_seconds: float | None
    is_silent: bool
    behind: int | None  # steps behind the first of them; None when it cannot be said
    is_unusual: bool
    title: str


def job_page(
    job: Job,
    *,
    tenant_ids: Sequence[int] | None,
    tab: str,
    show: str,
    before: int | None,
    as_table: bool,
    now: datetime,
) -> dict[str, Any]:
    """Context of ``jobs/job_detail.html``. An unknown tab is the overview."""
    tab = tab if tab in ("overview", "events") else "overview"
    counters = selectors.counters(job)
    context: dict[str, Any] = {
        "job": job,
        "tab": tab,
        "counters": counters,
        "used_percent": charts.percent(counters.used, max(counters.limit, 1)),
        "incident": incidents.open_incidents_of_jobs([job.pk]).get(job.pk),
        "is_ended": job.phase in TERMINAL_PHASES,
        "resume_command": resume_command(job),
        "retries_title": RETRIES_TITLE,
        "capacity_hint": CAPACITY_HINT if job.phase_reason.startswith(WAITING_FOR_CAPACITY) else "",
    }
    if tab == "events":
        return context | _events(job, show if show in EVENT_TABS else "failures")
    attempts, older = selectors.attempt_rows(job, before=before)
    is_newest_shown = bool(attempts) and attempts[0].attempt.n == job.attempt
    began_at = attempts[0].attempt.started_at if is_newest_shown else selectors.began_at(job)
    lines = worker_lines(selectors.worker_rows(job), job, began_at=began_at)
    checkpoints = selectors.newest_checkpoints(job)
    newest = [row.attempt for row in attempts] if before is None else None  # else older ones are shown
    step_seconds = _median([line.step_seconds for line in lines if line.step_seconds is not None])
    return context | {
        **_workers(lines, as_table),
        "silences": _silences(job, lines),
        "attempts": attempts,
        "attempts_older": older,
        "attempts_before": before,
        "attempt_incidents": incidents.incidents_by_uid(row.attempt.incident_uid for row in attempts),
        "checkpoints": checkpoints,
        "advice": checkpoint_panel(
            job,
            checkpoint_advice(
                job, now=now, checkpoints=checkpoints, attempts=newest, step_seconds=step_seconds
            ),
        ),
        "environment": selectors.environment_report(job),
        "unclean": selectors.unclean_checks(job),
        "step": min((line.step for line in lines if line.step is not None), default=None),
        "step_seconds": step_seconds,
    }


def worker_lines(workers: Sequence[Worker], job: Job, *, began_at: datetime | None) -> list[WorkerLine]:
    """Turn workers into lines: who is silent, behind, or not in the phase of most of them.

    ``began_at``: start of the attempt. What a worker did before it, or told before it fell silent, is not its
    step.
    """
    usual = Counter(worker.inner_phase for worker in workers).most_common(1)
    usual_phase = usual[0][0] if usual else ""
    is_over = job.phase in TERMINAL_PHASES
    since = began_at if job.phase == Phase.RUN_COMMAND else None
    known = [_known_step(worker, since, is_over=is_over) for worker in workers]
    first = max((step for step in known if step is not None), default=None)
    lines = []
    for worker, step in zip(workers, known, strict=True):
        life = worker.incarnation
        behind = first - step if first is not None and step is not None else None
        is_silent = _is_silent(worker, is_over=is_over)
        mark = _worker_mark(worker, is_silent=is_silent, is_over=is_over)
        node = life.node_name if life is not None else ""
        lines.append(
            WorkerLine(
                worker=worker,
                mark=mark,
                node=node,
                machine_id=life.machine_id if life is not None else None,
                step=step,
                step_at=life.step_at if life is not None else None,
                step_seconds=life.step_seconds if life is not None else None,
                is_silent=is_silent,
                behind=behind,
                is_unusual=is_silent
                or worker.must_exit
                or worker.inner_phase != usual_phase
                or (behind is not None and behind > 2)
                or life is None
                or (life.ended_at is not None and not is_over),
                title=_worker_title(worker, mark, node, step, is_silent=is_silent),
            )
        )
    return lines


def resume_command(job: Job) -> str:
    """How to resume a stopped job whose object is there still; empty for any other."""
    if job.phase != Phase.STOPPED or job.gone_at is not None or not job.owner_kind:
        return ""
    patch = '{"spec":{"suspend":false}}'
    return f"kubectl -n {job.namespace} patch {job.owner_kind.lower()} {job.name} -p '{patch}'"


def _silences(job: Job, lines: Sequence[WorkerLine]) -> list[Silence]:
    """What is to be said of silent workers: one sentence, or none."""
    lives = []
    for line in lines:
        life = line.worker.incarnation
        if line.is_silent and life is not None:
            life.worker = line.worker  # spares a query for its name
            lives.append(life)
    told = [line.step_at for line in lines if line.step_at is not None and not line.is_silent]
    said = silence(job, lives, others_stepped_at=max(told, default=None))
    return [] if said is None else [said]


def _is_silent(worker: Worker, *, is_over: bool) -> bool:
    life = worker.incarnation
    return life is not None and life.is_silent and life.ended_at is None and not is_over


def _known_step(worker: Worker, since: datetime | None, *, is_over: bool) -> int | None:
    life = worker.incarnation
    if life is None or _is_silent(worker, is_over=is_over):
        return None
    is_old = since is not None and life.step_at is not None and life.step_at < since
    return None if is_old else life.step


def _worker_title(worker: Worker, mark: Mark, node: str, step: int | None, *, is_silent: bool) -> str:
    at = "step not known" if is_silent else f"step {number(step)}"
    return f"{worker}: {mark.word}, {node or 'no node'}, {at}, counts {worker.retries}"


def _worker_mark(worker: Worker, *, is_silent: bool, is_over: bool) -> Mark:
    life = worker.incarnation
    if worker.must_exit:
        return Mark("must exit", "cross", "critical")
    if is_silent:
        return Mark("silent", "ring", "warn")
    if worker.is_finished:
        return Mark("finished", "check", "good")
    if is_over:
        return Mark("ended", "square", "quiet")
    if life is not None and life.ended_at is not None:
        return Mark("ended", "triangle", "critical")
    return mark_for("inner", worker.inner_phase)


def _workers(lines: list[WorkerLine], as_table: bool) -> dict[str, Any]:
    unusual = [line for line in lines if line.is_unusual]
    layout = "table" if as_table else "cards" if len(lines) <= charts.WORKERS_AS_CARDS else "grid"
    shown = lines if layout in ("table", "cards") else unusual[:50]
    return {
        "workers": shown,
        "worker_total": len(lines),
        "worker_layout": layout,
        "worker_marks": Counter(line.mark for line in lines).most_common(),
        "unusual_count": len(unusual),
        "worker_grid": charts.grid([(line.mark, line.title) for line in lines]) if layout == "grid" else None,
    }


def _events(job: Job, show: str) -> dict[str, Any]:
    counts = (
        selectors.failure_counts(job, rescheduled=show == "rescheduled")
        if show in ("failures", "rescheduled")
        else []
    )
    causes = {"preempted": selectors.PREEMPTED_CAUSES, "evicted": selectors.EVICTED_CAUSES}.get(show, ())
    return {
        "show": show,
        "event_tabs": list(EVENT_TABS.items()),
        "counts": counts,
        "count_incidents": incidents.incidents_by_uid(count.incident_uid for count in counts),
        "ends": selectors.incarnation_ends(job, causes) if causes else [],
        "waits": incidents.waiting_signals(job) if show == "waiting" else [],
        "waited": duration(job.waiting_seconds),
    }


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
