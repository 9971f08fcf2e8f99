"""SubjectState + inbox -> Decision. Source: DOMAIN section 4."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from recovery import phase_events as ev
from recovery.draft import Draft
from recovery.draft_job import move
from recovery.fold import fold
from recovery.incident_rules import conclude
from recovery.ladder import jitter_seed
from recovery.phases import JobState, Phase, WorkerState
from recovery.placement import in_source_order
from recovery.records import (
    ActionChange,
    ActionView,
    ActionWanted,
    AttemptChange,
    AttemptView,
    CheckpointView,
    Considered,
    CountChange,
    CountWanted,
    Decision,
    ElasticTerms,
    Finding,
    GuardRefusal,
    HeldBack,
    IncarnationView,
    IncidentChange,
    IncidentView,
    MachineFinding,
    MachinePast,
    Mode,
    OrderView,
    OrderWanted,
    PastAttempt,
    Policy,
    ReservationWanted,
    SignalUse,
    Subject,
    SubjectState,
    TimelineEntry,
    WorldView,
)
from recovery.signals import Signal, Use

__all__ = [
    "ActionChange",
    "ActionView",
    "ActionWanted",
    "AttemptChange",
    "AttemptView",
    "CheckpointView",
    "Considered",
    "CountChange",
    "CountWanted",
    "Decision",
    "ElasticTerms",
    "Finding",
    "GuardRefusal",
    "HeldBack",
    "IncarnationView",
    "IncidentChange",
    "IncidentView",
    "MachineFinding",
    "MachinePast",
    "Mode",
    "OrderView",
    "OrderWanted",
    "PastAttempt",
    "Policy",
    "ReservationWanted",
    "SignalUse",
    "Subject",
    "SubjectState",
    "TimelineEntry",
    "WorldView",
    "decide",
]


def decide(state: SubjectState, inbox: tuple[Signal, ...], now: datetime, policy: Policy) -> Decision:
    """What follows from an inbox, with its reasons. Pure and total: same input, same output, never an error.

    The inbox is folded in order of source time; then incident and actions are brought to where the job is.

    Args:
        state: The subject, read under its lock.
        inbox: All its undecided signals, in any order; ``seen_at`` is corrected by its measured offset.
        now: The database's time, read after the lock.
        policy: Thresholds and waiting times.
    Returns:
        The decision. It names what became of every signal of the inbox.
    """
    if state.job is None:
        return _without_rules(state, inbox, policy)
    world = tuple(worker.key for worker in state.job.active)
    known = tuple(worker for worker in state.job.workers if not _is_new_place(state.job, worker))
    job = _as_obeyed(state, replace(state.job, workers=known))
    draft = Draft(state, job, inbox, now, policy)
    if len(known) < len(state.job.workers):
        move(draft, ev.WorldChanged(world))
    for signal in in_source_order(
        inbox, sequence=job.sequence, uncertainty_seconds=policy.late_uncertainty_seconds
    ):
        fold(draft, signal)
    conclude(draft)
    return draft.decision(_as_stored(draft))


def _as_obeyed(state: SubjectState, job: JobState) -> JobState:
    """The job as it is obeyed now: in ``observe`` nobody obeys, whatever the job itself wants."""
    if state.subject.mode is Mode.OBSERVE:
        return replace(job, protected=False, protection_due=False)
    if job.protected and job.phase is Phase.RUN_COMMAND and not all(w.enrolled for w in job.present):
        # Armed while it trained, and agents are missing: it is protected from its next start on.
        return replace(job, protected=False, protection_due=True)
    return job


def _is_new_place(job: JobState, worker: WorkerState) -> bool:
    """Whether the world grew by this place since the last decision: it is in no phase of the job yet."""
    is_untouched = not (worker.enrolled or worker.restarted or worker.finished or worker.retired)
    return (
        is_untouched
        and worker.inner_phase is Phase.PENDING
        and job.phase is not Phase.PENDING
        and not job.is_terminal
    )


def _as_stored(draft: Draft) -> JobState:
    """The job with its own wish for protection, which an observing cluster only overrides."""
    before = draft.before.job
    assert before is not None
    if not draft.is_mode_observe:
        return draft.job
    if draft.wish_for_protection is not None:
        return replace(draft.job, protected=draft.wish_for_protection, protection_due=False)
    return replace(draft.job, protected=before.protected, protection_due=before.protection_due)


def _without_rules(state: SubjectState, inbox: tuple[Signal, ...], policy: Policy) -> Decision:
    """A subject that is not a job: what is said about it is kept as context."""
    return Decision(
        subject=state.subject,
        n=state.decision_n,
        policy_version=policy.version,
        rule="none",
        reason=f"there are no rules for a {state.subject.kind} yet; kept as evidence",
        job=None,
        uses=tuple(SignalUse(signal.id, Use.CONTEXT, "kept as evidence") for signal in inbox),
        jitter_seed=jitter_seed(f"{state.subject.kind}/{state.subject.key}", state.decision_n),
    )
