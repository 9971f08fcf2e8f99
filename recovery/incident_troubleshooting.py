"""All workers stand still: what the ladder chooses once they have answered. Source: DOMAIN section 5."""

from __future__ import annotations

from datetime import datetime, timedelta

from recovery import wording
from recovery.action_rules import REMEDIES, ask, carry_out
from recovery.draft import Draft
from recovery.draft_verdict import diagnose, judge_failure, store_verdict
from recovery.ladder import Choice, Situation, choose, failures_in_window, stuck
from recovery.lifecycle import ActionKind, IncidentState, Severity, WaitingFor
from recovery.phases import MessagePhase, MessageType
from recovery.records import Mode


def look_at_troubleshooting(draft: Draft) -> None:
    """All stand still: once every stop is confirmed, or the bound has passed, the ladder chooses."""
    incident = draft.incident
    if draft.is_observing or draft.is_wanted(*REMEDIES) or draft.job.is_held:
        return
    if incident.state is IncidentState.NEEDS_PERSON:
        if not draft.entered_troubleshooting:
            return
        draft.bring_incident(IncidentState.OPEN, "all workers are back")
    job = draft.job
    due = _stop_due(draft)
    leaving = [worker.key for worker in job.present if worker.must_exit]
    silent = [
        worker.key
        for worker in job.present
        if not worker.must_exit and not worker.has_answered(MessageType.ACK, MessagePhase.TROUBLESHOOT)
    ]
    if (leaving or silent) and draft.now < due:
        draft.look_at(due)
        return
    if leaving:
        ask(draft, f"{wording.workers(leaving)} was told to leave its container and is still there")
        return
    if draft.is_evidence_new or silent:
        store_verdict(draft)
    verdict = judge_failure(draft)
    attempts = draft.past
    stuck_restarts, stuck_step = stuck(attempts, draft.policy)
    choice = choose(
        Situation(
            category=verdict.category,
            reason=verdict.reason,
            workers=len(job.present),
            checks_clean=sum(draft.checked.get(str(worker.key), False) for worker in job.present),
            checks_failed=tuple(fact.text for fact in verdict.failed_checks),
            silent=tuple(str(key) for key in silent),
            departed=tuple(str(worker.key) for worker in job.active if worker.departed),
            restart_failed=draft.restart_failed,
            failures_in_window=failures_in_window(attempts, draft.now, draft.policy),
            stuck_restarts=stuck_restarts,
            stuck_step=stuck_step,
            diagnosis=diagnose(draft)[0],
            rebuilt=_rebuilt(draft, verdict.worker),
        ),
        draft.policy,
        draft.seed,
    )
    carry_out(draft, choice)
    kinds = {remedy.kind for remedy in choice.remedies}
    if draft.held_by:
        return
    if ActionKind.RESTART_PROCESS in kinds:
        _wait_or_recover(draft, choice)
    elif ActionKind.STOP_JOB in kinds:
        incident.set(title=choice.why)
        incident.raise_severity(Severity.CRITICAL)
    else:
        incident.raise_severity(Severity.HIGH)
        draft.bring_incident(IncidentState.NEEDS_PERSON, choice.why)


def _rebuilt(draft: Draft, worker: str) -> str:
    """The worker, when its present life has begun since the attempt that failed; else ""."""
    is_new = any(
        str(view.worker) == worker and view.is_current and draft.failed_attempt not in view.attempts
        for view in draft.before.incarnations
    )
    return worker if is_new and draft.failed_attempt is not None else ""


def _wait_or_recover(draft: Draft, choice: Choice) -> None:
    if draft.before.subject.mode is Mode.APPROVE:
        draft.bring_incident(IncidentState.WAITING, "a person must say so", waiting_for=WaitingFor.APPROVAL)
    elif choice.wait_seconds:
        until = draft.now + timedelta(seconds=choice.wait_seconds)
        draft.bring_incident(
            IncidentState.WAITING, f"back-off of {choice.wait_seconds:.1f} s",
            waiting_for=WaitingFor.BACKOFF, waiting_until=until,
        )  # fmt: skip
    else:
        draft.bring_incident(IncidentState.RECOVERING, choice.why)


def _stop_due(draft: Draft) -> datetime:
    """Until when the answers to the stop are waited for."""
    policy = draft.policy
    order = draft.before.order
    begun = draft.now
    is_new = any(order.phase is MessagePhase.TROUBLESHOOT for order in draft.orders)
    if not is_new and order is not None and order.phase is MessagePhase.TROUBLESHOOT:
        begun = order.written_at
    return begun + timedelta(
        seconds=draft.before.stop_grace_seconds + policy.check_seconds + policy.stop_ack_seconds
    )
