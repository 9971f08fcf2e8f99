"""The job moves, and its attempts with it: what the phase machine answers is written into the draft."""

from __future__ import annotations

from dataclasses import replace

from recovery.draft import Draft
from recovery.draft_orders import write_order
from recovery.phase_events import Event
from recovery.phases import Count, JobState, Phase, Step, step
from recovery.records import AttemptChange, AttemptView, CountChange, CountWanted, PastAttempt
from recovery.signals import Signal


def move(draft: Draft, event: Event, signal: Signal | None = None, *, end_cause: str = "") -> Step:
    """Let the phase machine take an event, and write down what follows."""
    before = draft.job
    result = step(before, event)
    draft.job = after = result.state
    draft.rows += [result.row, *(moved.row for moved in result.moves)]
    if result.count is not None and signal is not None:
        count = result.count
        draft.counts.append(
            CountWanted(
                count.attempt,
                count.worker,
                count.cause,
                signal.id,
                would=count.would,
                witness=count.witness,
            )
        )
        used = after.worker(count.worker)
        says = (
            "would count" if count.would else f"counted, {used.retries if used else 0} of {after.max_retry}"
        )
        draft.note(
            "failure_counted",
            f"Failure of {count.worker} {says}",
            signal=signal,
            at=draft.now,
            actor_kind="policy",
            cause=count.cause,
            would=count.would,
            retries=[worker.retries for worker in after.active],
        )
    for moved in result.moves:
        draft.settle(moved.row, moved.reason)
        draft.note(
            "phase_changed",
            f"{moved.before} to {moved.after}: {moved.reason}",
            before=str(moved.before),
            after=str(moved.after),
            row=moved.row,
        )
        if moved.after is Phase.TROUBLESHOOTING:
            draft.entered_troubleshooting = True
    if before.phase is Phase.RUN_COMMAND and after.phase is not Phase.RUN_COMMAND:
        _end_attempt(draft, before, result.count, end_cause or str(after.phase).lower())
    if after.attempt > before.attempt:
        _begin_attempt(draft, after)
    for order in result.orders:
        write_order(draft, order)
    return result


def _begin_attempt(draft: Draft, job: JobState) -> None:
    resume = draft.newest_committed() if job.protected else None
    draft.began_attempt = True
    draft.first_steps = {}
    draft.attempt = AttemptView(
        n=job.attempt,
        sequence=job.attempt_sequence,
        started_at=draft.now,
        end_step=draft.attempt.step if draft.attempt else None,
    )
    draft.attempts.append(
        AttemptChange(
            begins=job.attempt,
            sequence=job.attempt_sequence,
            resumed_from_step=resume.step if resume else None,
        )
    )


def _end_attempt(draft: Draft, job: JobState, count: Count | None, end_cause: str) -> None:
    is_counted = count is not None and not count.would
    draft.attempts.append(AttemptChange(ends=job.attempt, end_cause=end_cause, counted=is_counted))
    attempt = draft.attempt
    if attempt is None:
        return
    draft.attempt = replace(attempt, ended_at=draft.now)
    view = draft.lives.of(count.worker) if count is not None else None
    draft.past.append(
        PastAttempt(
            n=attempt.n,
            started_at=attempt.started_at,
            ended_at=draft.now,
            end_cause=end_cause,
            counted=is_counted,
            worker=count.worker if count is not None else None,
            node=view.node if view is not None else "",
            last_step=draft.last_step(),
            resumed_from_step=attempt.resumed_from_step,
            run=job.run,
            sequence=attempt.sequence,
            would=count is not None and count.would,
            witness=count.witness if count is not None else None,
            first_step_at=attempt.first_step_at,
        )
    )


def know_cause(draft: Draft, change: CountChange) -> None:
    """The cause of an attempt that was counted is known: by this decision still, or by an earlier one."""
    n = change.attempt
    draft.past = [
        replace(
            each, end_cause=change.end_cause, witness=None,
            counted=each.counted and not change.taken_back, would=each.would and not change.taken_back,
            worker=None if change.taken_back else each.worker,
        )
        if each.n == n
        else each
        for each in draft.past
    ]  # fmt: skip
    if all(count.attempt != n for count in draft.counts):
        draft.count_changes.append(change)
        return
    draft.attempts = [
        replace(each, end_cause=change.end_cause, counted=each.counted and not change.taken_back)
        if each.ends == n
        else each
        for each in draft.attempts
    ]
    if change.taken_back:
        draft.counts = [count for count in draft.counts if count.attempt != n]
        draft.failures = [
            replace(failure, counted=False) if failure.fact.attempt == n else failure
            for failure in draft.failures
        ]
    else:
        draft.counts = [
            replace(count, cause=change.cause or count.cause, witness=None) if count.attempt == n else count
            for count in draft.counts
        ]


def resumed_from(draft: Draft, step: int) -> None:
    """The step from which the present attempt went on."""
    if draft.attempt is not None and draft.attempt.resumed_from_step != step:
        draft.attempt = replace(draft.attempt, resumed_from_step=step)
        draft.attempts.append(AttemptChange(n=draft.job.attempt, resumed_from_step=step))
