"""The job has ended: what nobody needs any more is cancelled, and the incident is resolved."""

from __future__ import annotations

from recovery import wording
from recovery.action_rules import NOT_BEGUN, REMEDIES, carry_out
from recovery.draft import Draft
from recovery.draft_actions import change_action
from recovery.draft_verdict import judge_failure
from recovery.ladder import Situation, choose
from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution, Severity
from recovery.phases import Phase


def look_at_end(draft: Draft) -> None:
    """The job has ended: what nobody needs any more is cancelled, then the incident is resolved."""
    incident, job = draft.incident, draft.job
    if "auto.over_budget" in draft.rows:
        _fail_over_budget(draft)
        return
    if job.phase is Phase.SUCCEEDED:
        for action in draft.open_actions(ActionKind.ASK_PERSON, ActionKind.STOP_JOB):
            if action.state in NOT_BEGUN:
                change_action(draft, action, ActionState.CANCELLED, "the job has finished")
    if draft.open_actions() or draft.is_wanted(*REMEDIES, ActionKind.ASK_PERSON) or draft.held_by:
        return
    if incident.state is IncidentState.NEEDS_PERSON and job.phase is Phase.FAILED and _stop_failed(draft):
        return
    recovered = job.phase is Phase.SUCCEEDED and incident.state is IncidentState.WATCHING
    draft.bring_incident(
        IncidentState.RESOLVED,
        f"the job has ended: {job.phase}",
        resolution=Resolution.RECOVERED if recovered else Resolution.JOB_ENDED,
    )
    draft.settle("job.ended", f"the job has ended: {job.phase}")


def _stop_failed(draft: Draft) -> bool:
    """Whether the job that we gave up still runs: then a person has it, until it is suspended."""
    return not draft.before.suspended and not any(
        change.state is ActionState.DONE and draft.actions[change.uid].kind is ActionKind.STOP_JOB
        for change in draft.action_changes
    )


def _fail_over_budget(draft: Draft) -> None:
    words = wording.failures(draft.job)
    verdict = judge_failure(draft)
    choice = choose(
        Situation(
            category=verdict.category, reason=verdict.reason, workers=len(draft.job.present),
            checks_clean=0, over_budget=words,
        ),
        draft.policy, draft.seed,
    )  # fmt: skip
    if draft.incident.state is not IncidentState.OPEN:
        draft.bring_incident(IncidentState.OPEN, f"Failed: {words}")
    carry_out(draft, choice)
    draft.incident.set(title=f"Failed: {words}")
    draft.incident.raise_severity(Severity.CRITICAL)
