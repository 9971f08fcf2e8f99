"""What a failure is to a decision: it moves the job, or it comes late and joins as evidence.

Source: DOMAIN sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recovery import evidence
from recovery import phase_events as ev
from recovery.draft import Draft, Failure
from recovery.draft_job import move
from recovery.draft_verdict import observe
from recovery.evidence import Fact, Role
from recovery.ladder import isolate
from recovery.phases import MessageType, Phase, Step
from recovery.placement import attempt_at, attempt_of_sequence
from recovery.signals import Signal, SignalKind, Use, WorkerKey

#: Rows of the phase table by which training stops or a recovery is set back.
FAILURE_ROWS = frozenset(
    {
        "message.error",
        "message.error_in_check",
        "message.boot_check_failed",
        "message.check_failed",
        "end.counted",
        "end.not_counted",
        "end.in_recovery",
        "end.again",
        "enrol.replaced",
        "enrol.replaced_ordered",
        "enrol.replaced_again",
        "enrol.replaced_in_recovery",
        "hang.confirmed",
    }
)
_SENT_AWAY_ROWS = frozenset({"message.error_in_check", "message.boot_check_failed", "message.check_failed"})


def move_failure(
    draft: Draft, event: ev.Event, signal: Signal, key: WorkerKey, *, hidden: bool = False
) -> Step:
    """Move; if training stopped or a recovery was set back by it, keep what it says as evidence.

    ``hidden``: the end was ordered or comes with another report; it is context and not a cause.
    """
    before = draft.job
    node = draft.lives.node(key, signal)
    fact = evidence.fact_of_end(signal, worker=key, node=node, attempt=before.attempt)
    counts, lines = len(draft.counts), len(draft.timeline)
    result = move(draft, event, signal, end_cause=_end_cause(event, fact))
    if result.row not in FAILURE_ROWS:
        return result
    left_run = before.phase is Phase.RUN_COMMAND
    if hidden and not left_run:
        fact = replace(fact, role=Role.CONTEXT, weight=0.1)
    if left_run or draft.failed_attempt is None or not draft.incident.is_open:
        if draft.failed_attempt != before.attempt:
            draft.checked = {}
        draft.failed_attempt = before.attempt
    draft.add_fact(fact)
    observe(draft, signal, key, node, before.attempt, fact.role)
    failure = Failure(
        signal, fact, key, counted=len(draft.counts) > counts, left_run=left_run, row=result.row
    )
    draft.failures.append(failure)
    late = (signal.received_at - signal.seen_at).total_seconds()
    draft.note(
        "failure_seen", fact.text, signal=signal, attempt=before.attempt, worker=key,
        step=signal.step if signal.step is not None else draft.last_step(),
        received_at=signal.received_at.isoformat(), received_after_seconds=round(late, 3),
        found_by=_found_by(signal), left_run=left_run, node=node, pid=signal.data.get("pid"),
    )  # fmt: skip
    draft.tell_first("failure_seen", since=lines)
    if result.row in _SENT_AWAY_ROWS:
        draft.choices.append(isolate(str(key), node, fact.text))
    return result


def _end_cause(event: ev.Event, fact: Fact) -> str:
    if isinstance(event, ev.Message) and event.type is MessageType.FINISH:
        return ""
    return fact.category


def _found_by(signal: Signal) -> str:
    if signal.kind is SignalKind.ENROLLED:
        return "enrolment of its successor"
    return {"agent": "agent's report", "watch": "watch", "hook": "scheduler's hook"}.get(
        str(signal.source), str(signal.source)
    )


def take_evidence(draft: Draft, signal: Signal) -> None:
    """Never moves anything: it is placed by its time and joins the incident of that attempt."""
    attempt = attempt_at(signal, draft.attempt, draft.past, draft.policy.late_uncertainty_seconds)
    use = Use.LATE if attempt < draft.job.attempt else Use.CONTEXT
    draft.use(signal, use, f"evidence for attempt {attempt}, by its time; evidence alone never counts")
    _join(draft, signal, attempt, Role.CONTEXT, f"{signal.source} {signal.kind}: {_summary(signal.data)}")


def take_late(
    draft: Draft, signal: Signal, key: WorkerKey, use: Use, reason: str, *, tells_why: bool = False
) -> Fact:
    """A witness of something that is over: it moves nothing and joins as evidence.

    ``tells_why``: it is the end whose cause was open, so what it says is a cause and no context.
    """
    draft.use(signal, use, reason)
    fact = evidence.fact_of_end(
        signal, worker=key, node=draft.lives.node(key, signal), attempt=_attempt_of(draft, signal)
    )
    role = fact.role if tells_why or signal.kind is SignalKind.ERROR else Role.CONTEXT
    _join(draft, signal, fact.attempt, role, fact.text, like=fact)
    return fact


def _attempt_of(draft: Draft, signal: Signal) -> int:
    """To which attempt a late report belongs: by its sequence, else by the life that it speaks of, else by time."""
    if signal.sequence is not None:
        return attempt_of_sequence(signal.sequence, draft.attempt, draft.past)
    by_time = attempt_at(signal, draft.attempt, draft.past, draft.policy.late_uncertainty_seconds)
    view = draft.lives.view(signal)
    if view is None or not view.attempts:
        return by_time
    return min(max(by_time, min(view.attempts)), max(view.attempts))


def _join(
    draft: Draft, signal: Signal, attempt: int, role: Role, text: str, like: Fact | None = None
) -> None:
    if attempt != draft.failed_attempt or not (draft.failures or draft.incident.state):
        return
    if role is Role.CAUSE and like is not None and like.category == "unknown":
        role = Role.SYMPTOM  # after the first failure an end that says nothing is what the others did
    draft.add_fact(
        Fact(
            signal=signal.id,
            at=signal.seen_at,
            attempt=attempt,
            role=role,
            rule=like.rule if like else "evidence",
            category=like.category if like else str(signal.kind),
            text=text,
            weight=like.weight if like else 0.1,
            order=like.order if like else 1,
            worker=like.worker if like else str(signal.worker or ""),
            node=like.node if like else "",
        )
    )
    observe(draft, signal, signal.worker, like.node if like else "", attempt, role)
    late = (signal.received_at - signal.seen_at).total_seconds()
    draft.note("evidence", text, signal=signal, attempt=attempt, received_after_seconds=round(late, 3))


def _summary(data: Mapping[str, Any]) -> str:
    labels = data.get("labels")
    if isinstance(labels, Mapping) and labels.get("alertname"):
        return str(labels["alertname"])[:200]
    for name in ("message", "reason", "name", "type"):
        if data.get(name):
            return str(data[name])[:200]
    lines = evidence.lines_of(data)
    return lines[-1][:200] if lines else "no details"
