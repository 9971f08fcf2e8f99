"""What an incident does next, in one line for lists and the overview."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from apps.desk.words import ACTION_WORDS, RESOLUTIONS, WAITING_WORDS
from apps.incidents.models import Action, Incident
from recovery.lifecycle import ActionState, IncidentState


@dataclass(frozen=True, slots=True)
class NextStep:
    """A few words, and the time they lead up to where one is known."""

    text: str
    at: datetime | None = None


def next_step(incident: Incident, actions: list[Action], now: datetime) -> NextStep:
    """Say what happens next.

    Args:
        incident: The incident.
        actions: Its open actions, oldest first.
        now: The present, aware.
    """
    if incident.resolved_at is not None:
        return NextStep(RESOLUTIONS.get(incident.resolution, "resolved"), None)
    if incident.state == IncidentState.NEEDS_PERSON:
        return NextStep("a person decides")
    for action in reversed(actions):
        word = ACTION_WORDS.get(action.kind, action.kind)
        if action.state == ActionState.RUNNING:
            return NextStep(f"{word}: being sent")
        if action.state == ActionState.VERIFYING:
            return NextStep(f"{word}: sent, its effect not seen yet")
        if action.state == ActionState.PLANNED:
            return NextStep(f"{word}: waits until a person says so")
        if action.not_before_at is not None and action.not_before_at > now:
            return NextStep(word, action.not_before_at)
        if action.state == ActionState.AWAITING_APPROVAL:
            return NextStep(f"{word}: waits for approval")
        return NextStep(f"{word}: at once")
    if incident.state == IncidentState.WAITING:
        return NextStep(
            f"after {WAITING_WORDS.get(incident.waiting_for, 'a wait')}", incident.waiting_until_at
        )
    if incident.state == IncidentState.WATCHING:
        steady_at = incident.state_since_at + timedelta(seconds=settings.TIMINGS["STEADY_SECONDS"])
        if steady_at > now:
            return NextStep("trains again, steady", steady_at)
        return NextStep(f"trains again, steady after {settings.TIMINGS['STEADY_STEPS']:.0f} steps")
    if incident.state == IncidentState.RECOVERING:
        return NextStep("every worker steps again")
    if incident.state == IncidentState.SUSPECTED:
        return NextStep("a second witness, or the all-clear")
    return NextStep("the desk decides")
