"""Actions as a decision goes on: what it wants anew, what its guards refuse, what becomes of open ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from recovery.draft import Draft
from recovery.errors import InvalidTransition
from recovery.guards import GUARDED_KINDS, held_by
from recovery.lifecycle import ENDED_ACTION_STATES, ActionKind, ActionState, advance_action
from recovery.prices import PricedChoice
from recovery.records import (
    ActionChange,
    ActionView,
    ActionWanted,
    Considered,
    GuardRefusal,
    ReservationWanted,
)
from recovery.signals import Signal


def want(
    draft: Draft,
    kind: ActionKind,
    why: str,
    *,
    target: str = "",
    wait_seconds: float = 0.0,
    deadline_seconds: float = 0.0,
    refused_because: str = "",
    needs_yes: bool = False,
    priced: PricedChoice | None = None,
) -> None:
    """Want an action: ready at ``now + wait_seconds``, planned where a person must say so, or refused.

    What would begin is reserved in the guards that count it; where one has refused, so is the action.

    ``priced``: what it costs beside the other options, None = not known.
    """
    state = ActionState.READY
    target = target or draft.job_name
    if not refused_because and not needs_yes:
        refusal = reserve(draft, kind, target)
        if refusal is not None:
            refused_because = held_by(refusal.guard, refusal.numbers)
            draft.held_by.append(refusal)
            draft.considered.append(Considered(str(kind), refused_because))
            if is_told_held(draft, kind):
                return
    if refused_because:
        state = ActionState.REFUSED
    elif needs_yes:
        state = ActionState.PLANNED
    draft.wanted.append(
        ActionWanted(
            kind=kind,
            target=target,
            generation=draft.before.decision_n,
            state=state,
            not_before=None if refused_because else draft.now + timedelta(seconds=wait_seconds),
            deadline_seconds=deadline_seconds,
            why=why,
            price=priced.as_plain() if priced is not None else {},
            data={"jitter_seed": draft.seed} if wait_seconds else {},
            refused_because=refused_because,
        )
    )
    words = str(kind).replace("_", " ")
    costs = f". Costs: {priced.words}" if priced is not None else ""
    if refused_because:
        draft.note(
            "action_refused",
            f"Refused: {words}, {refused_because}. {why}{costs}",
            action=str(kind),
            target=target,
        )
    else:
        draft.note(
            "decided",
            f"Decided: {words}. {why}{costs}",
            action=str(kind),
            target=target,
            wait_seconds=wait_seconds,
        )


def reserve(draft: Draft, kind: ActionKind, target: str) -> GuardRefusal | None:
    """Want room for an action in every guard that counts it. What refuses it, if one has."""
    if kind not in GUARDED_KINDS:
        return None
    for refusal in draft.before.guard_refusals:
        if refusal.kind is kind:
            return refusal
    draft.reservations.append(ReservationWanted(kind, target))
    return None


def is_told_held(draft: Draft, kind: ActionKind) -> bool:
    """Whether people have been told already that a guard holds it back: one row for one wait."""
    return any(each.kind is kind for each in draft.before.held_back)


def change_action(
    draft: Draft,
    action: ActionView,
    state: ActionState,
    reason: str,
    *,
    not_before: datetime | None = None,
    sequence: int | None = None,
    signal: Signal | None = None,
) -> bool:
    """Bring an open action into a state. False when its table has no such way: it is outranked."""
    present = draft.actions[action.uid]
    try:
        advance_action(present.state, state)
    except InvalidTransition:
        return False
    draft.actions[action.uid] = replace(
        present,
        state=state,
        not_before=not_before if not_before is not None else present.not_before,
        sequence=sequence if sequence is not None else present.sequence,
    )
    draft.action_changes.append(ActionChange(action.uid, state, reason, not_before, sequence))
    words = str(action.kind).replace("_", " ")
    kind = "action_sent" if state is ActionState.VERIFYING else f"action_{state}"
    draft.note(kind, f"{words.capitalize()} {_state_words(state)}: {reason}", signal=signal, at=draft.now,
              action=str(action.kind), action_uid=action.uid)  # fmt: skip
    return True


def _state_words(state: ActionState) -> str:
    if state is ActionState.VERIFYING:
        return "sent"
    if state in ENDED_ACTION_STATES or state is ActionState.RUNNING:
        return str(state)
    return f"is {str(state).replace('_', ' ')}"
