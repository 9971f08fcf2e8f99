"""What becomes of open actions, and how a choice of the ladder becomes actions. Source: DOMAIN section 5."""

from __future__ import annotations

from recovery import wording
from recovery.decision_prices import price_of_restart
from recovery.draft import Draft
from recovery.draft_actions import change_action, want
from recovery.ladder import Choice, Situation, choose
from recovery.lifecycle import HARMFUL_ACTIONS, ActionKind, ActionState, IncidentState, Severity
from recovery.phases import MessagePhase, MessageType, Phase, WorkerState
from recovery.records import ActionView, Mode

#: Kinds that mend a job, one at a time.
REMEDIES = (ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB)
NOT_BEGUN = frozenset({ActionState.PLANNED, ActionState.AWAITING_APPROVAL, ActionState.READY})


def settle_restart(draft: Draft) -> None:
    """A restart in place is done when every agent told of its new process in that sequence."""
    job = draft.job
    for action in draft.open_actions(ActionKind.RESTART_PROCESS):
        if action.state in NOT_BEGUN:
            if draft.is_observing:
                change_action(draft, action, ActionState.REFUSED, draft.observing_because)
            elif job.is_terminal:
                change_action(draft, action, ActionState.CANCELLED, f"the job is {job.phase}")
            elif job.phase is not Phase.TROUBLESHOOTING:
                change_action(draft, action, ActionState.SUPERSEDED, f"the job is in {job.phase} by now")
            elif draft.failures:
                change_action(draft, action, ActionState.SUPERSEDED, "another failure came meanwhile")
        elif action.state is ActionState.VERIFYING and action.sequence is not None:
            _settle_sent_restart(draft, action)


def settle_stop(draft: Draft) -> None:
    """A stop of the job that has not begun is not made in a cluster or job that is only observed by now."""
    if not draft.is_mode_observe:
        return
    for action in draft.open_actions(ActionKind.STOP_JOB):
        if action.state in NOT_BEGUN:
            change_action(draft, action, ActionState.REFUSED, draft.observing_because)


def _settle_sent_restart(draft: Draft, action: ActionView) -> None:
    job = draft.job
    missing = [worker.key for worker in job.present if not _has_started(worker)]
    if job.phase is Phase.SUCCEEDED:
        change_action(draft, action, ActionState.DONE, "the job has finished since")
    elif job.phase is not Phase.RUN_COMMAND or action.sequence != job.attempt_sequence:
        change_action(
            draft, action, ActionState.FAILED, "the attempt ended before every agent had told of its process"
        )
    elif not missing:
        change_action(
            draft, action, ActionState.DONE, f"every agent told of its new process, order {action.sequence}"
        )
        draft.settle("restart_process.done", "every agent told of its new process")
    elif action.deadline is not None and draft.now >= action.deadline:
        draft.restart_failed = f"{wording.workers(missing)} did not tell of a new process in time"
        change_action(draft, action, ActionState.FAILED, draft.restart_failed)


def _has_started(worker: WorkerState) -> bool:
    return worker.finished or any(
        worker.has_answered(type_, MessagePhase.COMMAND) for type_ in (MessageType.ACK, MessageType.MARK)
    )


def settle_deadlines(draft: Draft) -> None:
    """What was sent and not seen, or tried in vain, until its deadline has failed, and is said so."""
    for action in draft.open_actions():
        if action.deadline is None or draft.now < action.deadline:
            continue
        if action.state is ActionState.VERIFYING:
            is_harmful = action.kind in HARMFUL_ACTIONS
            end = ActionState.UNKNOWN if is_harmful else ActionState.FAILED
            change_action(draft, action, end, "its effect was not seen by the deadline")
        elif action.state is ActionState.READY:
            change_action(
                draft,
                action,
                ActionState.FAILED,
                f"tried {action.try_n} times until the deadline, never got through",
            )
    failed = [
        draft.actions[change.uid]
        for change in draft.action_changes
        if change.state in {ActionState.FAILED, ActionState.UNKNOWN}
    ]
    for action in failed:
        if action.kind is ActionKind.STOP_JOB and draft.incident.is_open:
            why = "The job could not be suspended: suspend it by hand"
            ask(draft, why)
        elif action.state is ActionState.UNKNOWN and draft.incident.is_open:
            words = str(action.kind).replace("_", " ")
            ask(
                draft,
                f"Whether {words} of {action.target} happened is not known, and it is never repeated by machine: "
                "look at it, then decide",
            )
        elif action.kind is ActionKind.RESTART_PROCESS and action.sequence is None:
            draft.restart_failed = draft.restart_failed or "it could not be sent"


def ask(draft: Draft, why: str, *, rung: str | None = None) -> None:
    """Ask a person, once: an open question is not asked again."""
    if rung is not None:
        draft.incident.set(rung=rung)
    if not draft.is_wanted(ActionKind.ASK_PERSON):
        want(draft, ActionKind.ASK_PERSON, why, deadline_seconds=draft.policy.ask_person_deadline_seconds)
    draft.incident.raise_severity(Severity.HIGH)
    draft.bring_incident(IncidentState.NEEDS_PERSON, why)
    draft.settle("ask_person", why)


def carry_out(draft: Draft, choice: Choice) -> None:
    """Want what the ladder chose. Kinds that this version has not end refused, and are shown."""
    draft.considered += choice.considered
    if choice.rung:
        draft.incident.set(rung=choice.rung)
    draft.settle(choice.rule, choice.why)
    deadlines = {
        ActionKind.RESTART_PROCESS: draft.policy.restart_process_deadline_seconds,
        ActionKind.STOP_JOB: draft.policy.stop_job_deadline_seconds,
        ActionKind.ASK_PERSON: draft.policy.ask_person_deadline_seconds,
    }
    needs_yes = draft.before.subject.mode is Mode.APPROVE
    for remedy in choice.remedies:
        is_open = draft.is_wanted(remedy.kind)
        if is_open and not remedy.refused_because:
            continue
        is_restart = remedy.kind is ActionKind.RESTART_PROCESS
        wait_seconds = choice.wait_seconds if is_restart else 0.0
        want(
            draft,
            remedy.kind,
            remedy.why,
            target=_target(draft, remedy.kind),
            wait_seconds=wait_seconds,
            deadline_seconds=deadlines.get(remedy.kind, 0.0),
            refused_because=remedy.refused_because,
            needs_yes=needs_yes and remedy.kind in REMEDIES,
            priced=price_of_restart(draft, remedy.why, wait_seconds) if is_restart else None,
        )


def _target(draft: Draft, kind: ActionKind) -> str:
    if kind is ActionKind.HOLD_NODE:
        sent_away = [failure for failure in draft.failures if failure.fact.node]
        return sent_away[0].fact.node if sent_away else draft.job_name
    if kind is ActionKind.RESTART_CONTAINER:
        missing = [worker.key for worker in draft.job.present if not _has_started(worker)]
        return wording.workers(missing) if missing else draft.job_name
    return draft.job_name


def take_next_rung(draft: Draft) -> None:
    """The restart in place did not work: the next rung, which ends refused where it is not installed."""
    choice = choose(
        Situation(
            category="", reason="", workers=len(draft.job.present), checks_clean=0,
            restart_failed=draft.restart_failed,
        ),
        draft.policy, draft.seed,
    )  # fmt: skip
    carry_out(draft, choice)
    draft.incident.raise_severity(Severity.HIGH)
    draft.bring_incident(IncidentState.NEEDS_PERSON, choice.why)
