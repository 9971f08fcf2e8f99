"""What an incident does next, in one line for lists and the overview, and why it waits for somebody."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from apps.desk.words import ACTION_WORDS, RESOLUTIONS, WAITING_WORDS
from apps.incidents import selectors
from apps.incidents.models import Action, Incident
from recovery.lifecycle import ActionState, IncidentState, WaitingFor
from recovery.phases import WAITING_FOR_CAPACITY

CAPACITY_HINT = "a person may have to free a node or uncordon one"


@dataclass(frozen=True, slots=True)
class NextStep:
    """A few words, and the time they lead up to where one is known.

    ``time_word`` stands before the time ("deadline"), ``past`` in its place once it has come. ``why`` is what a
    person has to know to help, as a sentence without its stop; empty where the desk goes on by itself.
    """

    text: str
    at: datetime | None = None
    time_word: str = ""
    past: str = "now"
    why: str = ""
    hint: str = ""  # what a person can do about it


def next_step(
    incident: Incident, actions: list[Action], now: datetime, *, asked: str = "", silent: str = ""
) -> NextStep:
    """Say what happens next.

    Args:
        incident: The incident, with its job.
        actions: Its open actions, oldest first.
        now: The present, aware.
        asked: Why it waits for a person, where it does.
        silent: Which workers of its job are silent ("worker 0"), "" for none.
    """
    if incident.resolved_at is not None:
        return NextStep(RESOLUTIONS.get(incident.resolution, "resolved"), None)
    if incident.state == IncidentState.NEEDS_PERSON:
        return NextStep("a person decides", why=asked)
    for action in reversed(actions):
        word = ACTION_WORDS.get(action.kind, action.kind)
        if action.state == ActionState.RUNNING:
            return NextStep(f"{word}: being sent")
        if action.state == ActionState.VERIFYING:
            return NextStep(
                f"{word}: sent, waits until {silent} is heard again"
                if silent
                else f"{word}: sent, its effect not seen yet"
            )
        if action.state == ActionState.PLANNED:
            return NextStep(f"{word}: waits until a person says so")
        if action.not_before_at is not None and action.not_before_at > now:
            return NextStep(word, action.not_before_at)
        if action.state == ActionState.AWAITING_APPROVAL:
            return NextStep(f"{word}: waits for approval")
        return NextStep(f"{word}: at once")
    if incident.state == IncidentState.WAITING:
        return _wait(incident)
    if silent and incident.state in (IncidentState.WATCHING, IncidentState.RECOVERING):
        return NextStep(f"waits until {silent} is heard again")
    if incident.state == IncidentState.WATCHING:
        return _watching(incident, now)
    if incident.state == IncidentState.RECOVERING:
        return NextStep("every worker steps again")
    if incident.state == IncidentState.SUSPECTED:
        return NextStep("a second witness, or the all-clear")
    return NextStep("the desk decides")


def next_step_of_row(incident: Incident, now: datetime) -> NextStep:
    """What happens next of a row that ``selectors.with_next_step`` has read."""
    text, waits_for_silent = incident.asked_text, incident.waits_for_silent  # type: ignore[attr-defined]  # annotated
    return next_step(
        incident,
        selectors.open_actions_of(incident),
        now,
        asked=selectors.reason_of(text or ""),
        silent="a silent worker" if waits_for_silent else "",
    )


def waits_for_capacity(incident: Incident) -> bool:
    """Whether an open incident waits for a place in its cluster."""
    return incident.state == IncidentState.WAITING and incident.waiting_for == WaitingFor.CAPACITY


def missing_capacity(phase_reason: str) -> str:
    """What the scheduler says is missing, from a job's reason: ``0/4 nodes are available``; "" where it is silent."""
    return phase_reason.removeprefix(WAITING_FOR_CAPACITY).removeprefix(":").strip().rstrip(".")


def _wait(incident: Incident) -> NextStep:
    until = incident.waiting_until_at
    if incident.waiting_for != WaitingFor.CAPACITY:
        return NextStep(f"after {WAITING_WORDS.get(incident.waiting_for, 'a wait')}", until)
    missing = missing_capacity(incident.job.phase_reason) if incident.job is not None else ""
    return NextStep(
        "waits for capacity",
        until,
        time_word="deadline",
        past="passed",
        why=missing or "no place is free",
        hint=CAPACITY_HINT,
    )


def _watching(incident: Incident, now: datetime) -> NextStep:
    """Steady after some time and some steps, whichever is later; of the steps no time is known."""
    steps = f"after {settings.TIMINGS['STEADY_STEPS']:.0f} steps"
    steady_at = incident.state_since_at + timedelta(seconds=settings.TIMINGS["STEADY_SECONDS"])
    if steady_at > now:
        return NextStep("trains again", steady_at, time_word="steady at best", past=steps)
    return NextStep(f"trains again, steady {steps}")
