"""What the executor and people tell: an action begins or ended, somebody decides, it is time to look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recovery import phase_events as ev
from recovery.asked_restart import standing_of, waiting_restart, why_not
from recovery.decision_prices import price_of_restart
from recovery.draft import Draft
from recovery.draft_actions import change_action, reserve, want
from recovery.draft_job import move
from recovery.guards import held_by
from recovery.lifecycle import (
    INSTALLED_ACTIONS,
    ActionKind,
    ActionState,
    IncidentState,
    Resolution,
)
from recovery.records import ActionView, Considered
from recovery.signals import Signal, SignalKind, Use


def _go(draft: Draft, signal: Signal) -> None:
    action = _action(draft, signal)
    if action is None:
        draft.use(signal, Use.STALE, "the action has ended")
        return
    is_sent = action.state is ActionState.VERIFYING and action.sequence is None
    if action.state is not ActionState.RUNNING and not is_sent:
        draft.use(signal, Use.STALE, f"the action is {action.state}, not running")
        return
    if action.try_n != signal.data.get("try"):
        draft.use(signal, Use.STALE, f"an older try: the action is at try {action.try_n}")
        return
    if action.kind is not ActionKind.RESTART_PROCESS:
        draft.use(signal, Use.REFUSED, f"{action.kind} needs no go")
        return
    if not draft.incident.is_open:
        draft.use(signal, Use.STALE, "its incident is not open any more")
        change_action(draft, action, ActionState.SUPERSEDED, "its incident is not open any more")
        return
    result = move(draft, ev.RecoveryGo(), signal)
    draft.use(signal, result.use, result.reason)
    if result.use is not Use.USED:
        change_action(draft, action, ActionState.SUPERSEDED, f"nothing was sent: {result.reason}")
        if result.row == "go.departed":
            draft.entered_troubleshooting = True  # to be chosen anew
        return
    change_action(
        draft, action, ActionState.VERIFYING, f"all workers start, order {draft.job.attempt_sequence}",
        sequence=draft.job.attempt_sequence, signal=signal,
    )  # fmt: skip
    draft.bring_incident(IncidentState.RECOVERING, "training starts again", signal=signal)


def _action_end(draft: Draft, signal: Signal) -> None:
    action = _action(draft, signal)
    if action is None:
        draft.use(signal, Use.DUPLICATE, "the action has ended")
        return
    detail = str(signal.data.get("detail") or "")
    try:
        state = ActionState(str(signal.data.get("state")))
    except ValueError:
        draft.use(signal, Use.REFUSED, f"{signal.data.get('state')!r} is no state of an action")
        return
    if not change_action(draft, action, state, detail or f"told by {signal.source}", signal=signal):
        draft.use(signal, Use.STALE, f"the action is {action.state} and cannot become {state}")
        return
    draft.use(signal, Use.USED, f"{action.kind} {state}")
    draft.settle(f"action.{state}", f"{action.kind} {state}: {detail}")


def _resolve(draft: Draft, signal: Signal) -> None:
    by, reason = signal.by, str(signal.data.get("reason") or "")
    if not draft.incident.is_open:
        draft.use(signal, Use.REFUSED, "there is no open incident")
        return
    busy = [a for a in draft.open_actions() if a.state in {ActionState.RUNNING, ActionState.VERIFYING}]
    if any(action.kind is not ActionKind.ASK_PERSON for action in busy):
        kinds = ", ".join(sorted({str(action.kind) for action in busy}))
        draft.use(signal, Use.REFUSED, f"{kinds} is being carried out; an incident never closes over that")
        draft.settle("person.resolve_refused", f"{kinds} is being carried out")
        return
    for action in draft.open_actions():
        if action not in busy:
            change_action(draft, action, ActionState.CANCELLED, f"incident resolved by {by}", signal=signal)
    for action in busy:
        change_action(draft, action, ActionState.DONE, f"{by} has answered", signal=signal)
    draft.bring_incident(
        IncidentState.RESOLVED, f"by {by}{f': {reason}' if reason else ''}",
        resolution=Resolution.BY_PERSON, signal=signal,
    )  # fmt: skip
    draft.use(signal, Use.USED, f"resolved by {by}")
    draft.settle("person.resolve", f"resolved by {by}")


def _cancel(draft: Draft, signal: Signal) -> None:
    by = signal.by
    uid = signal.data.get("action_uid")
    chosen = [action for action in draft.open_actions() if not uid or action.uid == str(uid)]
    reason = f"cancelled by {by}: {signal.data.get('reason') or 'no reason given'}"
    cancelled = [
        action
        for action in chosen
        if change_action(draft, action, ActionState.CANCELLED, reason, signal=signal)
    ]
    if not cancelled:
        draft.use(signal, Use.REFUSED, "nothing of it waits: what is being carried out cannot be taken back")
        return
    draft.use(signal, Use.USED, reason)
    draft.settle("person.cancel", reason)
    is_remedy = any(action.kind is not ActionKind.ASK_PERSON for action in cancelled)
    if draft.incident.is_open and is_remedy:
        draft.bring_incident(IncidentState.NEEDS_PERSON, reason, signal=signal)


def _do_now(draft: Draft, signal: Signal) -> None:
    if signal.data.get("action_uid") is None and signal.data.get("action") == ActionKind.RESTART_PROCESS:
        _restart_now(draft, signal)
    else:
        _begin_now(draft, signal, _action(draft, signal))


def _restart_now(draft: Draft, signal: Signal) -> None:
    """A person wants all workers to start again: the restart that waits begins, or a new one is wanted."""
    by, reason = signal.by, str(signal.data.get("reason") or "")
    refused = why_not(standing_of(draft))
    if refused:
        draft.use(signal, Use.REFUSED, refused)
        draft.settle("person.restart_refused", refused)
        return
    asked, told = f"restart in place, asked by {by}", f": {reason}" if reason else ""
    waiting = waiting_restart(draft)
    if waiting is not None:
        _begin_now(draft, signal, waiting)
        return
    kind = ActionKind.RESTART_PROCESS
    if any(refusal.kind is kind for refusal in draft.before.guard_refusals):
        _refuse_by_guard(draft, signal, kind)
        return
    draft.note("restart_asked", f"{by} asks for a restart in place{told}", signal=signal, at=draft.now)
    want(
        draft,
        kind,
        f"Restart in place, asked by {by}{told}",
        deadline_seconds=draft.policy.restart_process_deadline_seconds,
        priced=price_of_restart(draft, asked),
    )
    for question in draft.open_actions(ActionKind.ASK_PERSON):
        is_told = question.state in {ActionState.RUNNING, ActionState.VERIFYING}
        change_action(
            draft,
            question,
            ActionState.DONE if is_told else ActionState.CANCELLED,
            f"{by} has answered",
            signal=signal,
        )
    draft.incident.set(rung="L1")
    draft.bring_incident(IncidentState.RECOVERING, asked, signal=signal)
    draft.use(signal, Use.USED, asked)
    draft.settle("person.restart", asked)


def _begin_now(draft: Draft, signal: Signal, action: ActionView | None) -> None:
    by = signal.by
    if action is None or action.state not in {ActionState.PLANNED, ActionState.READY}:
        draft.use(signal, Use.REFUSED, "the action does not wait for its time")
        return
    if action.kind not in INSTALLED_ACTIONS or draft.is_observing:
        draft.use(signal, Use.REFUSED, f"it cannot be done here: {draft.observing_because}")
        return
    if action.state is ActionState.PLANNED and reserve(draft, action.kind, action.target):
        _refuse_by_guard(draft, signal, action.kind, action_uid=action.uid)
        return
    change_action(draft, action, ActionState.READY, f"now, by {by}", not_before=draft.now, signal=signal)
    draft.use(signal, Use.USED, f"{action.kind} begins now, by {by}")
    draft.settle("person.do_now", f"{action.kind} begins now, by {by}")


def _refuse_by_guard(draft: Draft, signal: Signal, kind: ActionKind, **data: Any) -> None:
    """A guard has no room, not even for a person: its numbers are the answer."""
    refusal = next(each for each in draft.before.guard_refusals if each.kind is kind)
    held = held_by(refusal.guard, refusal.numbers)
    draft.use(signal, Use.REFUSED, held)
    draft.considered.append(Considered(str(kind), held))
    words = str(kind).replace("_", " ")
    draft.note("action_refused", f"Not begun for {signal.by}: {words}, {held}", signal=signal, at=draft.now,
               action=str(kind), guard=refusal.guard, **data)  # fmt: skip
    draft.settle("guard.held", held)


def _look(draft: Draft, signal: Signal) -> None:
    draft.use(signal, Use.USED, "looked again")


def _action(draft: Draft, signal: Signal) -> ActionView | None:
    action = draft.actions.get(str(signal.data.get("action_uid")))
    return action if action in draft.open_actions() else None


HANDLERS: Mapping[SignalKind, Callable[[Draft, Signal], None]] = {
    SignalKind.ACTION_GO: _go,
    SignalKind.ACTION_ENDED: _action_end,
    SignalKind.PERSON_RESOLVE: _resolve,
    SignalKind.PERSON_CANCEL: _cancel,
    SignalKind.PERSON_DO_NOW: _do_now,
    SignalKind.LOOK: _look,
}
