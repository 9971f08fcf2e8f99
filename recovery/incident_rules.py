"""After the inbox is read: what becomes of incident and actions, by what is so now. Source: DOMAIN sections 5, 7.

Level, not edge: each rule looks at the job's phase, the open actions and the time, and may run again.
"""

from __future__ import annotations

from datetime import timedelta

from recovery.action_rules import carry_out, settle_deadlines, settle_restart, settle_stop
from recovery.barrier import look_at_barrier
from recovery.causes import look_at_hold
from recovery.decision_prices import price_of_restart
from recovery.draft import Draft
from recovery.draft_actions import want
from recovery.draft_verdict import judge_failure, store_verdict
from recovery.elastic import look_at_elastic
from recovery.guard_rules import settle_held, try_held_again
from recovery.incident_ending import look_at_end
from recovery.incident_opening import open_for_failures, open_for_stop, open_for_suspicion
from recovery.incident_restarting import look_at_restarting
from recovery.incident_training import look_at_training, note_first_steps
from recovery.incident_troubleshooting import look_at_troubleshooting
from recovery.lifecycle import ActionKind, ActionState, IncidentState
from recovery.phases import Phase
from recovery.slow_nodes import look_at_slow


def conclude(draft: Draft) -> None:
    """Bring incident and actions to where the job is."""
    look_at_hold(draft)
    look_at_barrier(draft)
    open_for_failures(draft)
    open_for_suspicion(draft)
    open_for_stop(draft)
    note_first_steps(draft)
    settle_restart(draft)
    settle_stop(draft)
    settle_deadlines(draft)
    look_at_slow(draft)
    for choice in draft.choices:
        carry_out(draft, choice)
    try_held_again(draft)
    if draft.incident.is_open:
        match draft.job.phase:
            case Phase.TROUBLESHOOTING:
                look_at_troubleshooting(draft)
            case Phase.RESTARTING:
                look_at_restarting(draft)
            case Phase.RUN_COMMAND:
                look_at_training(draft)
            case Phase.FAILED | Phase.SUCCEEDED | Phase.STOPPED:
                look_at_end(draft)
            case Phase.PENDING | Phase.BOOT_CHECKING:
                pass
    look_at_elastic(draft)
    settle_held(draft)
    if draft.is_observing:
        _refuse_while_observing(draft)
    if draft.is_evidence_new and (draft.incident.is_open or draft.is_cause_new):
        store_verdict(draft)
    _close_resolved(draft)
    _direct(draft)
    for action in draft.open_actions():
        if action.deadline is not None and action.state in (ActionState.VERIFYING, ActionState.READY):
            draft.look_at(action.deadline)


def _refuse_while_observing(draft: Draft) -> None:
    """Say what would have been done, once a failure that ended an attempt."""
    if not draft.incident.is_open or not any(failure.left_run for failure in draft.failures):
        return
    because = draft.observing_because
    verdict = judge_failure(draft)
    want(
        draft,
        ActionKind.RESTART_PROCESS,
        f"{verdict.reason}: would restart in place",
        refused_because=because,
        priced=price_of_restart(draft, verdict.reason),
    )
    draft.settle("observe.refused", because)


def _close_resolved(draft: Draft) -> None:
    """A resolved incident can reopen for a while, then it closes."""
    incident = draft.incident
    if incident.state is not IncidentState.RESOLVED or incident.resolved_at is None:
        return
    due = incident.resolved_at + timedelta(seconds=draft.policy.reopen_seconds)
    if draft.now < due:
        draft.look_at(due)
    elif incident.change is not None:
        draft.look_at(draft.now)  # it closes by a decision of its own
    else:
        incident.set(closes_resolved=True)
        incident.state = IncidentState.CLOSED
        draft.settle("incident.closed", "resolved long enough ago")


def _direct(draft: Draft) -> None:
    """What all polls tell the agents of this job."""
    job = draft.job
    if job.is_terminal:
        return
    if not job.protected:
        draft.directive = "run_unprotected"
    elif job.phase in {Phase.RESTARTING, Phase.TROUBLESHOOTING} and draft.incident.is_open:
        draft.directive = "extend_wait"
        draft.look_at(draft.now + timedelta(seconds=draft.policy.extend_wait_seconds))
