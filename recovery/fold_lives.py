"""Lives of workers: an incarnation takes up contact, or has ended. Source: DOMAIN sections 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from recovery import causes, evidence, wording
from recovery import phase_events as ev
from recovery.draft import Draft
from recovery.draft_verdict import judged_facts
from recovery.evidence import Role
from recovery.failures import FAILURE_ROWS, move_failure, take_evidence, take_late
from recovery.phases import MessagePhase, MessageType, Phase
from recovery.placement import came_before, came_clearly_before
from recovery.records import IncarnationView
from recovery.signals import EndCause, Signal, SignalKind, Source, Use, WorkerKey, whole_number

#: Kubernetes' word for a pod that went through the Eviction API, as a drain does.
EVICTION = "EvictionByEvictionAPI"


def _enrolled(draft: Draft, signal: Signal) -> None:
    key = signal.worker
    if key is None:
        draft.use(signal, Use.REFUSED, "an enrolment without worker")
        return
    lives = draft.lives
    if lives.is_fenced(key, signal.incarnation):
        draft.use(signal, Use.STALE, f"a newer incarnation of {key} is enrolled")
        return
    if signal.incarnation is not None and lives.present.get(key) == signal.incarnation:
        draft.use(signal, Use.DUPLICATE, f"this incarnation of {key} is enrolled already")
        return
    old = lives.of(key)
    old = old if old is not None and old.id != signal.incarnation else None
    by_desk = old is not None and old.ended_by_desk
    result = move_failure(draft, ev.Enrolled(key, by_desk=by_desk), signal, key, hidden=True)
    if signal.incarnation is not None and result.use is not Use.REFUSED:
        lives.present[key] = signal.incarnation
    replaced = old.id if old is not None else whole_number(signal.data.get("replaces"))
    if result.row in FAILURE_ROWS and replaced is not None:
        draft.ended.append((replaced, EndCause.ORDERED if by_desk else EndCause.REPLACED))
    draft.use(signal, result.use, result.reason)
    if result.use is not Use.USED:
        return
    view = lives.view(signal)
    node = view.node if view else str(signal.data.get("node") or "")
    draft.note(
        "enrolled", f"{wording.capitalized(key)} enrolled{f' on {node}' if node else ''}", signal=signal,
        node=node, pod_uid=view.pod_uid if view else str(signal.data.get("pod_uid") or ""),
    )  # fmt: skip


def _ended(draft: Draft, signal: Signal) -> None:
    view = draft.lives.view(signal)
    key = signal.worker or (view.worker if view else None)
    if key is None:
        take_evidence(draft, signal)
        return
    if view is None:  # the watch makes a row of every life, so this is none of the present ones
        take_late(draft, signal, key, Use.LATE, "no incarnation of this job that is known")
        return
    if not _is_really_gone(draft, signal, view):
        take_late(draft, signal, key, Use.LATE, f"{key} has been heard of since, and its pod runs")
        return
    signal = _evicted_as_slow(draft, signal, view)
    cause = evidence.end_cause(signal.data)
    by_desk = cause in {EndCause.ORDERED, EndCause.EVICTED_BY_DESK} or view.ended_by_desk
    told = causes.explained_by_end(draft, signal, view, cause, by_desk=by_desk)
    event = ev.IncarnationEnded(
        key,
        cause,
        in_attempt=_was_in_attempt(draft, signal, view, key),
        by_desk=by_desk,
        is_current=_is_present_one(draft, view, key),
    )
    draft.lives.end(view.id, signal.seen_at)
    worker = draft.job.worker(key)
    was_sent_away = worker is not None and worker.must_exit
    is_context = told is None and (by_desk or was_sent_away)
    result = move_failure(draft, event, signal, key, hidden=is_context)
    if result.row in FAILURE_ROWS:
        draft.use(signal, result.use, result.reason)
        if told is not None:
            causes.settle(draft, told, draft.facts[-1], signal)
    elif result.use is Use.LATE or told is not None:
        fact = take_late(draft, signal, key, result.use, result.reason, tells_why=told is not None)
        draft.ended.append((view.id, cause))  # it may have been known as replaced only
        if told is not None:
            causes.settle(draft, told, fact, signal)
        return
    else:
        draft.use(signal, result.use, result.reason)
    if result.use is Use.USED:
        draft.ended.append((view.id, EndCause.ORDERED if was_sent_away else cause))
        node = draft.lives.node(key, signal)
        draft.note(
            "pod_gone", f"{wording.capitalized(key)} is gone from {node or 'its node'}: {str(cause).replace('_', ' ')}",
            signal=signal, cause=str(cause), node=node, pod_uid=view.pod_uid,
        )  # fmt: skip


def _evicted_as_slow(draft: Draft, signal: Signal, view: IncarnationView) -> Signal:
    """An eviction from a machine that people were told is slow: they did as they were told, and that is its cause."""
    is_eviction = signal.data.get("reason") == EVICTION
    if not is_eviction or evidence.end_cause(signal.data) is not EndCause.MAINTENANCE:
        return signal
    slow = draft.slow
    if slow is None or not slow.is_told(view.worker, view.node):
        return signal
    return replace(signal, data={**signal.data, "cause": str(EndCause.EVICTED_AS_SLOW)})


def _is_really_gone(draft: Draft, signal: Signal, view: IncarnationView) -> bool:
    """Level, not edge: a report of an end is outranked by signs of life that are newer."""
    if view.ended_at is not None or not view.is_running or draft.lives.is_fenced(view.worker, view.id):
        return True
    uncertainty = draft.policy.late_uncertainty_seconds
    if came_before(signal, draft.attempt, uncertainty) and draft.job.attempt in view.attempts:
        return False  # it was alive when the attempt began, which was after this
    heard = view.last_seen_at
    bound = timedelta(seconds=max(uncertainty, signal.offset_uncertainty_seconds))
    if signal.source is not Source.WATCH and any(
        fact.worker == str(view.worker)
        and fact.attempt == draft.job.attempt
        and abs(fact.at - signal.seen_at) <= bound
        for fact in judged_facts(draft)
        if fact.role is not Role.CHECK
    ):
        return (
            False  # its own agent told of this end: of the process. If the pod goes too, the watch will tell
        )
    return heard is None or heard <= signal.seen_at + bound


def _was_in_attempt(draft: Draft, signal: Signal, view: IncarnationView, key: WorkerKey) -> bool:
    """Whether this life was part of the present attempt and ended in it."""
    attempt = draft.attempt
    if attempt is None:
        return False
    is_part = draft.job.attempt in view.attempts or (
        draft.began_attempt and _is_present_one(draft, view, key)
    )
    if not is_part:
        return False
    worker = draft.job.worker(key)
    if worker is not None and worker.has_answered(MessageType.ACK, MessagePhase.COMMAND):
        return True  # it answered in this attempt, so it ended in it, whatever the clocks say
    return not came_clearly_before(signal, attempt, draft.policy.late_uncertainty_seconds)


def _is_present_one(draft: Draft, view: IncarnationView, key: WorkerKey) -> bool:
    """Whether this life is the worker's present one."""
    present = draft.lives.present.get(key)
    worker = draft.job.worker(key)
    if draft.job.phase is Phase.PENDING and worker is not None and not worker.enrolled and view.id == present:
        return False  # it was enrolled and its worker is not: this life belongs to the run before
    if present is not None:
        return view.id >= present
    return view.is_current or draft.job.attempt in view.attempts


HANDLERS: Mapping[SignalKind, Callable[[Draft, Signal], None]] = {
    SignalKind.ENROLLED: _enrolled,
    SignalKind.INCARNATION_ENDED: _ended,
}
