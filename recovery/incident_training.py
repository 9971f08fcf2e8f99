"""Training runs again: it must come to a first step, and the incident is resolved when it is steady."""

from __future__ import annotations

from datetime import datetime, timedelta

from recovery import wording
from recovery.action_rules import take_next_rung
from recovery.draft import Draft
from recovery.lifecycle import IncidentState, Resolution
from recovery.phases import MessagePhase, MessageType, Phase, WorkerState
from recovery.records import AttemptChange
from recovery.slow_nodes import is_followed

#: Look again after this, in seconds, where steps are waited for whose pace is not known.
LOOK_SECONDS = 2.0


def look_at_training(draft: Draft) -> None:
    """Training runs again: watch it until it is steady."""
    incident, job = draft.incident, draft.job
    if is_followed(draft):
        return
    if incident.state is IncidentState.SUSPECTED:
        _clear_suspicion(draft)
        return
    if draft.failed_attempt is not None and job.attempt <= draft.failed_attempt:
        return
    if draft.restart_failed:
        take_next_rung(draft)
        return
    if incident.state is not IncidentState.WATCHING:
        if not _all_step(draft):
            _look_at_start(draft)
            return
        step = _lowest_step(draft)
        incident.set(watching_from_step=step)
        draft.bring_incident(
            IncidentState.WATCHING, f"all workers step{'' if step is None else f', at step {step}'}"
        )
        draft.settle("training.steps", "all workers step")
    _resolve_when_steady(draft)


def _all_step(draft: Draft) -> bool:
    """Whether every worker that has not finished has done a step in this attempt.

    Of a job that nobody reports steps of, running is all that can be seen.
    """
    waiting = [worker for worker in draft.job.present if not worker.finished]
    if not draft.job.protected and not any(view.step is not None for view in draft.before.incarnations):
        return bool(waiting)
    return all(_steps(draft, worker) for worker in waiting)


def _steps(draft: Draft, worker: WorkerState) -> bool:
    if worker.has_answered(MessageType.MARK, MessagePhase.COMMAND):
        return True
    view, attempt = draft.lives.of(worker.key), draft.attempt
    return (
        attempt is not None
        and not draft.began_attempt
        and view is not None
        and view.step is not None
        and view.step_at is not None
        and view.step_at > attempt.started_at
    )


def _lowest_step(draft: Draft) -> int | None:
    """The step that every worker has done in this attempt, None when it is not known."""
    attempt = draft.attempt
    if attempt is not None and attempt.step is not None and not draft.began_attempt:
        return attempt.step
    steps = [step for _, step in draft.first_steps.values() if step is not None]
    return min(steps, default=None)


def note_first_steps(draft: Draft) -> None:
    """The moment at which the last worker did its first step of the attempt."""
    attempt = draft.attempt
    if (
        draft.job.phase is not Phase.RUN_COMMAND
        or attempt is None
        or attempt.first_step_at is not None
        or not draft.first_steps
        or not all(
            worker.finished or worker.has_answered(MessageType.MARK, MessagePhase.COMMAND)
            for worker in draft.job.present
            if worker.enrolled or draft.job.protected
        )
    ):
        return
    at = max(at for at, _ in draft.first_steps.values())
    steps = [step for _, step in draft.first_steps.values() if step is not None]
    draft.attempts.append(
        AttemptChange(n=draft.job.attempt, first_step=min(steps, default=None), first_step_at=at)
    )
    draft.first_step_at = at
    draft.settle("attempt.first_step", "every worker did its first step of the attempt")


def _look_at_start(draft: Draft) -> None:
    """A start must come to its first step within its time."""
    seconds, attempt = draft.policy.start_seconds, draft.attempt
    if seconds <= 0 or attempt is None or draft.is_observing:
        if draft.is_observing:
            _look_soon(draft, attempt.started_at if attempt else None)
        return
    due = attempt.started_at + timedelta(seconds=seconds)
    if draft.now < due:
        draft.look_at(min(due, draft.now + timedelta(seconds=max(LOOK_SECONDS, seconds / 20))))
        return
    if draft.incident.state is IncidentState.NEEDS_PERSON:
        draft.look_at(draft.now + timedelta(seconds=max(LOOK_SECONDS, seconds / 20)))
        return
    waiting = [w.key for w in draft.job.present if not w.finished and not _steps(draft, w)]
    draft.restart_failed = f"{wording.workers(waiting)} did no step within {seconds:.0f} s of the start"
    take_next_rung(draft)
    draft.look_at(draft.now + timedelta(seconds=max(LOOK_SECONDS, seconds / 20)))


def _resolve_when_steady(draft: Draft) -> None:
    policy, incident, attempt = draft.policy, draft.incident, draft.attempt
    since = incident.state_since or draft.now
    if draft.first_step_at is not None:
        since = draft.first_step_at
    elif attempt is not None and attempt.first_step_at is not None and not draft.began_attempt:
        since = max(attempt.first_step_at, attempt.started_at)
    due = since + timedelta(seconds=policy.steady_seconds)
    if draft.now < due:
        draft.look_at(due)
        return
    begin, step = incident.watching_from_step, _lowest_step(draft)
    missing = 0 if begin is None or step is None else begin + policy.steady_steps - step
    if missing > 0:
        pace = attempt.step_seconds if attempt is not None and attempt.step_seconds else None
        wait = min(max(0.2, missing * pace), policy.steady_seconds) if pace else LOOK_SECONDS
        _look_soon(draft, due, at_least=max(wait, 0.2))
        return
    held = (draft.now - since).total_seconds()
    why = f"steady for {held:.0f} s"
    if begin is not None and step is not None:
        why += f" and {step - begin} steps"
    draft.bring_incident(IncidentState.RESOLVED, f"recovered, {why}", resolution=Resolution.RECOVERED)
    draft.settle("training.steady", why)


def _look_soon(draft: Draft, since: datetime | None, *, at_least: float = LOOK_SECONDS) -> None:
    """Look again soon, and the longer it has lasted the more seldom: each look is a stored decision."""
    lasted = (draft.now - since).total_seconds() if since is not None else 0.0
    draft.look_at(draft.now + timedelta(seconds=max(at_least, lasted / 20)))


def _clear_suspicion(draft: Draft) -> None:
    seen, attempt = draft.incident.seen_failed_at, draft.attempt
    if draft.suspicions or attempt is None:
        _look_soon(draft, seen)
        return
    if attempt.step_at is not None and seen is not None and attempt.step_at > seen:
        draft.bring_incident(
            IncidentState.RESOLVED, f"training steps, at step {attempt.step}",
            resolution=Resolution.FALSE_ALARM,
        )  # fmt: skip
        draft.settle("hang_suspected.cleared", "training steps")
        return
    _look_soon(draft, seen, at_least=max(LOOK_SECONDS, attempt.step_seconds or 0.0))
