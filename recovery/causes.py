"""Why an attempt ended, where that was open when it was counted. Source: DOMAIN section 3, "by cause"; ADR 8.

Two witnesses tell that somebody is gone and not why: a survivor that lost its peers, and the successor of a life
that is over. The failure counts at once, and when the life's own end is told its cause is the attempt's: an end
that never counts takes the count back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from recovery import phase_events as ev
from recovery.draft import Draft
from recovery.draft_job import know_cause, move
from recovery.draft_verdict import judge_failure, retitle
from recovery.evidence import Fact, Role
from recovery.phases import Phase
from recovery.records import CountChange, IncarnationView, PastAttempt
from recovery.rules import ends
from recovery.signals import EndCause, OnlyWitness, Signal, WorkerKey

_NEVER_COUNTED = frozenset(ends.BY_CAUSE[cause].id for cause in EndCause if not cause.counts)
# A survivor's own container may crash of what made it lose its peers; these ends come from outside.
_FROM_OUTSIDE = frozenset({EndCause.DELETED, EndCause.NODE_LOST, EndCause.OUT_OF_MEMORY})


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a report says about an attempt whose cause was open. ``word`` is the count's, None = as it is."""

    past: PastAttempt
    counts: bool
    word: str | None = None


def explained_by_end(
    draft: Draft, signal: Signal, view: IncarnationView, cause: EndCause, *, by_desk: bool
) -> Explanation | None:
    """What the end of a life says about an attempt whose cause is open; None where it says nothing.

    Of a life that was only known as replaced it is the very end. Where a survivor had told of lost peers it is
    their cause, unless it came later than the hold or by what this recovery itself ordered.
    """
    past = _open_one(draft, max(view.attempts, default=0))
    if past is None or cause is EndCause.REPLACED:
        return None
    counts = cause.counts and not by_desk
    if past.witness is OnlyWitness.SUCCESSOR:
        is_that_life = past.worker == view.worker and draft.lives.is_fenced(view.worker, view.id)
        return Explanation(past, counts, str(cause)) if is_that_life else None
    worker = draft.job.worker(view.worker)
    if worker is not None and worker.must_exit and past.n == draft.job.attempt:
        return None
    hold = 0.0 if by_desk else draft.policy.cause_hold_seconds
    clocks = max(draft.policy.late_uncertainty_seconds, signal.offset_uncertainty_seconds)
    if signal.seen_at > past.ended_at + timedelta(seconds=hold + clocks):
        return None
    if counts and cause not in _FROM_OUTSIDE:
        return None
    return Explanation(past, counts, str(cause) if past.worker == view.worker else None)


def explained_by_error(draft: Draft, fact: Fact) -> Explanation | None:
    """What a process's end that is told late says about an attempt of which only lost peers were known."""
    past = _open_one(draft, fact.attempt)
    if past is None or past.witness is not OnlyWitness.SYMPTOM:
        return None
    bound = timedelta(seconds=draft.policy.late_uncertainty_seconds)
    if fact.role is not Role.CAUSE or fact.category == "unknown" or fact.at > past.ended_at + bound:
        return None
    return Explanation(past, True, fact.category if fact.worker == str(past.worker) else None)


def _open_one(draft: Draft, attempt: int) -> PastAttempt | None:
    """The attempt of this number, if it was counted and its cause is open."""
    return next(
        (
            past
            for past in draft.past
            if past.n == attempt and past.worker is not None and past.witness is not None
        ),
        None,
    )


def settle(draft: Draft, told: Explanation, fact: Fact, signal: Signal) -> None:
    """Give the attempt, its count and its incident the cause that is known now.

    Args:
        fact: What the signal says, as it stands among the facts.
    """
    past, worker = told.past, told.past.worker
    assert worker is not None
    _put_behind(draft, past, worker)
    verdict = judge_failure(draft) if draft.failed_attempt == past.n else None
    first = verdict.support[0] if verdict is not None and verdict.support else fact
    if past.witness is OnlyWitness.SYMPTOM and first.signal != signal.id:
        if not told.counts and first.rule not in _NEVER_COUNTED:
            return  # a death of its own came before
        fact = first
    category = fact.category
    is_taken_back, why = _settle_counters(draft, told, worker, fact)
    know_cause(
        draft,
        CountChange(
            attempt=past.n,
            cause=told.word or "",
            end_cause=category,
            taken_back=is_taken_back,
            reason=why,
        ),
    )
    if draft.failed_attempt == past.n:
        draft.incident.rename_cause(past.end_cause, category, fact.text)
        draft.is_cause_new = True
        retitle(draft, fact)
    used = [each.retries for each in draft.job.active]
    if is_taken_back:
        draft.note(
            "count_taken_back", f"Failure of {worker} in attempt {past.n} does not count: {why}", signal=signal,
            at=draft.now, actor_kind="policy", attempt=past.n, cause=category, retries=used,
        )  # fmt: skip
    else:
        draft.note(
            "cause_known", f"Cause of the end of attempt {past.n}, counted for {worker}: {why}", signal=signal,
            at=draft.now, actor_kind="policy", attempt=past.n, cause=category, retries=used,
        )  # fmt: skip


def _settle_counters(draft: Draft, told: Explanation, worker: WorkerKey, fact: Fact) -> tuple[bool, str]:
    """Let the phase machine know. Returns whether the count is taken back, and why (not)."""
    past = told.past
    if past.would:
        return not told.counts, fact.text
    if past.run != draft.job.run:
        return False, f"{fact.text}; the counters of run {past.run} stand"
    result = move(draft, ev.CauseKnown(worker, past.n, told.counts, fact.text))
    draft.settle(result.row, result.reason)
    if told.counts or result.row != "cause.given_up":
        return not told.counts, fact.text
    return False, f"{fact.text}, but {result.reason}"


def _put_behind(draft: Draft, past: PastAttempt, worker: WorkerKey) -> None:
    """That it was replaced is how we heard of its end, and no cause beside it."""
    if past.witness is not OnlyWitness.SUCCESSOR:
        return
    rule = ends.BY_CAUSE[EndCause.REPLACED].id
    draft.facts = [
        replace(fact, role=Role.CONTEXT, weight=0.1)
        if (fact.rule, fact.worker, fact.attempt) == (rule, str(worker), past.n)
        else fact
        for fact in draft.facts
    ]


def look_at_hold(draft: Draft) -> None:
    """No job is given up over a failure that may never count: so long more is waited for, and no longer."""
    job, attempt = draft.job, draft.attempt
    if not (job.protected and job.is_held) or job.phase not in {Phase.RESTARTING, Phase.TROUBLESHOOTING}:
        return
    ended_at = attempt.ended_at if attempt is not None and attempt.ended_at is not None else draft.now
    seconds = draft.policy.cause_hold_seconds
    due = ended_at + timedelta(seconds=seconds)
    if draft.now < due:
        draft.look_at(due)
        if any(failure.left_run for failure in draft.failures):
            draft.note("waiting", f"Over budget if it counts; why is open, so it is waited for {seconds:g} s")
        return
    past = _open_one(draft, job.attempt)
    worker = past.worker if past is not None else job.active[0].key
    assert worker is not None
    result = move(
        draft,
        ev.CauseKnown(
            worker, job.attempt, counts=True, reason=f"in {seconds:g} s nobody told of another cause"
        ),
    )
    draft.settle(result.row, result.reason)
