"""A person asks that all workers start again in place: whether that can be had, and what to do instead.

The desk asks a person when it cannot choose by itself. What they did in the meantime nobody tells it, so they
say when training shall start again. This counts nothing and moves no phase by itself: it wants the action that the
ladder would want, under the same guards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recovery import wording
from recovery.draft import Draft
from recovery.lifecycle import (
    OPEN_INCIDENT_STATES,
    ActionKind,
    ActionState,
    IncidentState,
    WaitingFor,
)
from recovery.phases import Phase
from recovery.records import ActionView
from recovery.signals import WorkerKey

_BEGUN = frozenset({ActionState.RUNNING, ActionState.VERIFYING})


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job and its incident stand, as far as a restart in place depends on it; "" = not so."""

    phase: Phase
    attempt: int
    incident: IncidentState | None
    waiting_for: WaitingFor | None = None
    observed_because: str = ""  # nobody obeys
    begun: str = ""  # the remedy that is being carried out, in words
    is_stop_wanted: bool = False  # a stop of the job waits to begin
    is_restart_wanted: bool = False  # a restart in place waits for its time or for a person
    departed: str = ""  # workers that finished and have left
    missing: str = ""  # workers that are gone or about to leave
    is_held: bool = False  # over budget by a failure that may turn out not to count


def why_not(standing: Standing) -> str:
    """What stands in the way of a restart in place, and what to do instead; "" when it can be had."""
    for reason in (_no_job_to_restart(standing), _at_it(standing), _not_all_there(standing)):
        if reason:
            return reason
    return ""


def _no_job_to_restart(standing: Standing) -> str:
    if standing.incident not in OPEN_INCIDENT_STATES:
        return "there is no open incident"
    match standing.phase:
        case Phase.FAILED:
            return (
                "the job has failed and its agents are told to leave; resume it in the cluster (suspend: false): "
                "a new run begins, and its failures start at 0"
            )
        case Phase.STOPPED:
            return "the job is stopped; resume it in the cluster (suspend: false), and a new run begins"
        case Phase.SUCCEEDED:
            return "the job has finished"
        case _:
            return ""


def _at_it(standing: Standing) -> str:
    if standing.observed_because:
        return f"{standing.observed_because}, so no agent obeys; restart it by its controller"
    if standing.begun:
        return f"{standing.begun} is being carried out; the timeline shows when its effect is seen"
    if standing.is_stop_wanted:
        return "the job is about to be stopped; cancel that first"
    if standing.is_held:
        return (
            "it is over budget, unless the last failure turns out not to count; that is known within a minute"
        )
    return ""


def _not_all_there(standing: Standing) -> str:
    match standing.phase:
        case Phase.RUN_COMMAND:
            return (
                f"its workers run, attempt {standing.attempt}; end the process of one worker, and all start again (it "
                "counts once), or stop the job and resume it in the cluster (nothing counts)"
            )
        case Phase.PENDING | Phase.BOOT_CHECKING:
            return "training has not begun; it does when every worker is there and has passed its boot check"
        case Phase.RESTARTING:
            return (
                f"{standing.missing or 'a worker'} is not back; look at its pod: once every worker is there the desk "
                "goes on by itself"
            )
        case _:
            pass
    if standing.departed:
        return (
            f"{standing.departed} finished and has left its container; stop the job and start it anew, for a "
            "restart needs every worker"
        )
    if standing.missing:
        return f"{standing.missing} is gone or about to leave; look at its pod"
    if standing.is_restart_wanted or standing.incident is IncidentState.NEEDS_PERSON:
        return ""
    if standing.waiting_for is WaitingFor.GUARD:
        return ""
    return "the desk is at it: it decides as soon as every worker has stopped"


def standing_of(draft: Draft) -> Standing:
    """How things stand in a decision."""
    job = draft.job
    remedies = draft.open_actions(ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB)
    begun = [action for action in remedies if action.state in _BEGUN]
    waiting = [action.kind for action in remedies if action.state not in _BEGUN]
    return Standing(
        phase=job.phase,
        attempt=job.attempt,
        incident=draft.incident.state,
        waiting_for=draft.incident.waiting_for,
        observed_because=draft.observing_because if draft.is_observing else "",
        begun=in_words(begun[0].kind) if begun else "",
        is_stop_wanted=ActionKind.STOP_JOB in waiting,
        is_restart_wanted=ActionKind.RESTART_PROCESS in waiting,
        departed=_names(worker.key for worker in job.active if worker.departed),
        missing=_names(
            worker.key
            for worker in job.present
            if worker.must_exit or worker.restarted or not worker.enrolled
        ),
        is_held=job.protected and job.is_held,
    )


def waiting_restart(draft: Draft) -> ActionView | None:
    """The restart in place that has not begun."""
    waiting = [a for a in draft.open_actions(ActionKind.RESTART_PROCESS) if a.state not in _BEGUN]
    return waiting[0] if waiting else None


def in_words(kind: ActionKind) -> str:
    """A remedy as the subject of a sentence."""
    return "a restart in place" if kind is ActionKind.RESTART_PROCESS else "the stop of the job"


def _names(keys: Iterable[WorkerKey]) -> str:
    found = list(keys)
    return wording.workers(found) if found else ""
