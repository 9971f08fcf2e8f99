"""Decision -> rows of actions, for the executors to claim."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apps.incidents.models import Action, Incident, Subject
from apps.incidents.services.state import Loaded
from recovery import decide as core
from recovery.lifecycle import ENDED_ACTION_STATES, ActionState
from recovery.serialize import to_plain


def store_actions(
    held: Subject, incident: Incident | None, loaded: Loaded, decision: core.Decision, now: datetime
) -> list[int]:
    """Change open actions, then write new ones. Returns the ids of those that may be claimed now."""
    due = []
    for change in decision.action_changes:
        action = loaded.actions[change.uid]
        is_end = change.state in ENDED_ACTION_STATES
        fields: dict[str, Any] = {"state": change.state, "end_reason": change.reason}
        if is_end:
            fields["ended_at"] = now
        else:
            fields |= {"not_before_at": change.not_before, "lease_until_at": None, "lease_owner": ""}
        if change.sequence is not None:
            fields["content"] = {**action.content, "sequence": change.sequence}
        Action.objects.filter(pk=action.pk).update(**fields)
        if change.state is ActionState.READY and (change.not_before is None or change.not_before <= now):
            due.append(action.pk)
    for wanted in decision.actions:
        if incident is None:
            raise AssertionError(f"decision {decision.n} of {held} wants an action without an incident")
        action = Action.objects.create(
            tenant_id=held.tenant_id,
            incident=incident,
            kind=wanted.kind,
            target=wanted.target,
            generation=wanted.generation,
            state=wanted.state,
            why=wanted.why,
            refused_because=wanted.refused_because,
            price=to_plain(wanted.price),
            content=to_plain(wanted.data),
            decision_n=decision.n,
            not_before_at=wanted.not_before,
            deadline_seconds=wanted.deadline_seconds,
            created_at=now,
            ended_at=now if wanted.state in ENDED_ACTION_STATES else None,
        )
        if wanted.state is ActionState.READY and (wanted.not_before is None or wanted.not_before <= now):
            due.append(action.pk)
    return due
