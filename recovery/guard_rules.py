"""What becomes of an incident when a guard has no room for what it needs. Source: DOMAIN section 8.

The action ends refused, with the guard's numbers, and the incident waits for the guard: it is looked at again when
the guard's window has room, else each minute, and what is still needed then is wanted anew.
"""

from __future__ import annotations

from recovery.draft import Draft
from recovery.draft_actions import want
from recovery.guards import held_by, retry_at
from recovery.ladder import fraction
from recovery.lifecycle import ActionKind, IncidentState, WaitingFor


def try_held_again(draft: Draft) -> None:
    """Want again what a guard held back, where nothing else chooses it anew. (A restart is: by the ladder.)"""
    if not draft.incident.is_open or draft.is_mode_observe:
        return
    for held in draft.before.held_back:
        if held.kind is ActionKind.STOP_JOB and draft.job.is_terminal and not draft.is_wanted(held.kind):
            want(draft, held.kind, held.why, target=held.target, deadline_seconds=held.deadline_seconds)
            if not draft.held_by and draft.incident.waiting_for is WaitingFor.GUARD:
                draft.bring_incident(IncidentState.OPEN, "the guard has room again")


def settle_held(draft: Draft) -> None:
    """Let the incident wait for the guard that held something back, and look again when there may be room."""
    if not draft.held_by or not draft.incident.is_open:
        return
    refusal = draft.held_by[0]
    words = held_by(refusal.guard, refusal.numbers)
    until = retry_at(refusal.frees_at, draft.now, jitter=fraction(draft.seed))
    draft.look_at(until)
    draft.settle("guard.held", words)
    if draft.incident.waiting_for is WaitingFor.GUARD:
        draft.incident.set(waiting_for=WaitingFor.GUARD, waiting_until=until)
    elif draft.incident.state is not IncidentState.NEEDS_PERSON:
        draft.bring_incident(IncidentState.WAITING, words, waiting_for=WaitingFor.GUARD, waiting_until=until)
