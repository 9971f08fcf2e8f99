"""One signal after another: what each does to the draft of a decision. Source: DOMAIN sections 2 to 5.

Only two kinds of witness can move a job: an agent's message, whose sequence names the attempt, and the end
of an incarnation that is really gone. Everything else joins as evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from recovery import evidence
from recovery import phase_events as ev
from recovery.draft import Draft, Failure
from recovery.evidence import Fact, Role
from recovery.ladder import isolate
from recovery.lifecycle import (
    INSTALLED_ACTIONS,
    ActionKind,
    ActionState,
    IncidentState,
    Resolution,
)
from recovery.phases import MessagePhase, MessageType, Phase
from recovery.placement import came_before, came_clearly_before
from recovery.records import ActionView, IncarnationView
from recovery.signals import EndCause, Signal, SignalKind, Use, WorkerKey

_TYPES = {
    SignalKind.ACK: MessageType.ACK,
    SignalKind.ERROR: MessageType.ERROR,
    SignalKind.FINISH: MessageType.FINISH,
}

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


def fold(draft: Draft, signal: Signal) -> None:
    """Let one signal have its effect, and say what became of it. Never raises, whatever it holds."""
    _HANDLERS.get(signal.kind, _evidence)(draft, signal)


# Agents.


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
    result = _move_failure(draft, ev.Enrolled(key, by_desk=by_desk), signal, key, hidden=True)
    if signal.incarnation is not None and result.use is not Use.REFUSED:
        lives.present[key] = signal.incarnation
    replaced = old.id if old is not None else _whole(signal.data.get("replaces"))
    if result.row in FAILURE_ROWS and replaced is not None:
        draft.ended.append((replaced, EndCause.ORDERED if by_desk else EndCause.REPLACED))
    draft.use(signal, result.use, result.reason)
    if result.use is not Use.USED:
        return
    view = lives.view(signal)
    node = view.node if view else str(signal.data.get("node") or "")
    draft.note(
        "enrolled", f"{_cap(key)} enrolled{f' on {node}' if node else ''}", signal=signal,
        node=node, pod_uid=view.pod_uid if view else str(signal.data.get("pod_uid") or ""),
    )  # fmt: skip


def _message(draft: Draft, signal: Signal) -> None:
    key = signal.worker
    phase = _phase_of(signal.phase)
    if key is None or phase is None or signal.sequence is None:
        draft.use(signal, Use.REFUSED, "a message without worker, phase or sequence")
        return
    if draft.lives.is_fenced(key, signal.incarnation):
        _late(draft, signal, key, Use.STALE, f"a newer incarnation of {key} is enrolled")
        return
    failed = evidence.failed_checks(signal.data, hardware_only=True)
    reason = failed
    if signal.kind is SignalKind.ERROR:
        rule, how = evidence.rule_of_process(signal.data)
        reason = rule.category if phase is MessagePhase.COMMAND else failed or how
    event = ev.Message(key, _TYPES[signal.kind], phase, signal.sequence, passed=not failed, reason=reason)
    result = _move_failure(draft, event, signal, key)
    if result.use is Use.LATE and signal.kind is SignalKind.ERROR:
        _late(draft, signal, key, result.use, result.reason)
        return
    draft.use(signal, result.use, result.reason)
    if result.use is not Use.USED:
        return
    if signal.kind is SignalKind.ACK:
        _acknowledged(draft, signal, key, phase)
    elif signal.kind is SignalKind.FINISH:
        draft.note("worker_finished", f"{_cap(key)} finished with exit 0", signal=signal)


def _acknowledged(draft: Draft, signal: Signal, key: WorkerKey, phase: MessagePhase) -> None:
    """What the answer to an order tells: checks, pids, how long the stop took."""
    node = draft.lives.node(key, signal)
    checks = evidence.checks_in(signal.data)
    if checks and phase is not MessagePhase.COMMAND:
        facts = evidence.facts_of_checks(signal, worker=key, node=node, attempt=draft.job.attempt)
        failed = [fact for fact in facts if fact.category == "check_fail"]
        draft.checked[str(key)] = not failed
        for fact in failed:
            draft.add_fact(fact)
        draft.is_evidence_new = True
    said = evidence.failed_checks(signal.data)
    seconds = {
        str(check.get("check")): check.get("seconds")
        for check in checks
        if isinstance(check.get("seconds"), int | float)
    }
    if phase is MessagePhase.COMMAND:
        pids = signal.data.get("pids")
        draft.note(
            "process_started", f"{_cap(key)} started its training process", signal=signal,
            pids=dict(pids) if isinstance(pids, Mapping) else {}, sequence=signal.sequence,
        )  # fmt: skip
    elif phase is MessagePhase.TROUBLESHOOT:
        stopped = signal.data.get("stopped")
        text = f"{_cap(key)} stopped, quick checks {said or ('clean' if checks else 'not run')}"
        draft.note(
            "worker_stopped", text, signal=signal, checks=seconds, sequence=signal.sequence,
            stopped=dict(stopped) if isinstance(stopped, Mapping) else {}, step=_step(signal),
        )  # fmt: skip
    else:
        draft.note(
            "boot_checked", f"{_cap(key)} passed its boot check{f' but {said}' if said else ''}",
            signal=signal, checks=seconds, sequence=signal.sequence,
        )  # fmt: skip


def _mark(draft: Draft, signal: Signal) -> None:
    key, mark = signal.worker, str(signal.data.get("mark") or "")
    if key is None or draft.job.worker(key) is None:
        draft.use(signal, Use.REFUSED, "a mark without worker of this job")
        return
    if draft.lives.is_fenced(key, signal.incarnation):
        draft.use(signal, Use.STALE, f"a newer incarnation of {key} is enrolled")
        return
    step = _step(signal)
    if mark == "first_step" and signal.sequence is not None:
        if not draft.job.protected and draft.job.phase is not Phase.RUN_COMMAND:
            draft.move(ev.SeenRunning(), signal)
        event = ev.Message(key, MessageType.MARK, MessagePhase.COMMAND, signal.sequence)
        result = draft.move(event, signal)
        draft.use(signal, result.use, result.reason)
        if result.use is not Use.USED:
            return
        draft.first_steps[key] = (signal.seen_at, step)
    elif draft.job.phase is not Phase.RUN_COMMAND or not _is_of_now(draft, signal, key):
        draft.use(signal, Use.LATE, f"mark {mark} of an attempt that is over")
        return
    else:
        draft.use(signal, Use.CONTEXT, f"mark {mark}")
    kinds = {"started": "process_started", "restored": "restored", "rebuilt": "rebuilt",
             "first_step": "first_step", "steady": "stepping"}  # fmt: skip
    if mark not in kinds or (mark == "started" and draft.job.protected):
        return  # under protection the answer to the order has told of the start
    if mark == "restored" and step is not None and draft.attempt is not None:
        draft.resumed_from(step)
    pids, seconds = signal.data.get("pids"), signal.data.get("seconds")
    words = {"started": "started its training process", "restored": f"restored step {step}",
             "rebuilt": "joined its peers", "first_step": f"did its first step, {step}",
             "steady": "steps steadily"}  # fmt: skip
    draft.note(
        kinds[mark], f"{_cap(key)} {words[mark]}", signal=signal, step=step,
        seconds=seconds if isinstance(seconds, int | float) else None,
        pids=dict(pids) if isinstance(pids, Mapping) else {}, sequence=signal.sequence,
    )  # fmt: skip


def _hang(draft: Draft, signal: Signal) -> None:
    key = signal.worker
    if key is None or signal.sequence is None:
        draft.use(signal, Use.REFUSED, "a hang without worker or sequence")
        return
    if draft.lives.is_fenced(key, signal.incarnation):
        draft.use(signal, Use.STALE, f"a newer incarnation of {key} is enrolled")
        return
    if signal.data.get("confirmed") is True:
        result = _move_failure(draft, ev.HangConfirmed(key, signal.sequence), signal, key)
        draft.use(signal, result.use, result.reason)
        return
    result = draft.move(ev.HangSuspected(key, signal.sequence), signal)
    draft.use(signal, result.use, result.reason)
    if result.use is Use.USED:
        draft.suspicions.append(
            evidence.fact_of_end(
                signal, worker=key, node=draft.lives.node(key, signal), attempt=draft.job.attempt
            )
        )


def _quit(draft: Draft, signal: Signal) -> None:
    reason = str(signal.data.get("reason") or "no reason given")
    by = str(signal.data.get("by") or (f"{signal.worker} (ctl)" if signal.worker else "somebody"))
    result = draft.move(
        ev.Quit(at_safe_point=signal.data.get("at_safe_point") is True, reason=f"{reason} ({by})"), signal
    )
    draft.use(signal, result.use, result.reason)
    if result.use is Use.USED:
        draft.asked_to_stop = f"Stop asked for by {by}: {reason}"
        draft.note("stop_asked", draft.asked_to_stop, signal=signal)


def _checkpoint(draft: Draft, signal: Signal) -> None:
    step = _step(signal)
    if signal.data.get("state") != "committed":
        draft.use(signal, Use.CONTEXT, f"checkpoint {step} is not committed")
        return
    result = draft.move(ev.SafePoint(), signal)
    draft.use(signal, result.use, f"checkpoint {step} committed; {result.reason}")
    if result.row == "safe_point.stop":
        draft.asked_to_stop = f"Stop asked for, at the safe point after checkpoint {step}"
    if step is not None and _is_first_of_attempt(draft, step):
        draft.note(
            "checkpoint", f"Checkpoint {step} committed, the first of this attempt", signal=signal, step=step
        )


def _is_first_of_attempt(draft: Draft, step: int) -> bool:
    """Whether no other checkpoint of the present attempt is known: every later one is daily life."""
    attempt = draft.attempt
    return attempt is not None and not any(
        point.step != step and point.state != "written" and point.at >= attempt.started_at
        for point in draft.before.checkpoints
    )


def _silence(draft: Draft, signal: Signal) -> None:
    key = signal.worker
    is_silent = signal.kind is SignalKind.AGENT_SILENT
    text = f"{_cap(key)}: no heartbeat" if is_silent else f"{_cap(key)}: heartbeats again"
    draft.use(signal, Use.CONTEXT, "evidence, not an end: the pod may run and train")
    draft.note("agent_silent" if is_silent else "agent_back", text, signal=signal)


# Incarnations.


def _incarnation_ended(draft: Draft, signal: Signal) -> None:
    view = draft.lives.view(signal)
    key = signal.worker or (view.worker if view else None)
    if key is None:
        _evidence(draft, signal)
        return
    if view is None:  # the watch makes a row of every life, so this is none of the present ones
        _late(draft, signal, key, Use.LATE, "no incarnation of this job that is known")
        return
    if not _is_really_gone(draft, signal, view):
        _late(draft, signal, key, Use.LATE, f"{key} has been heard of since, and its pod runs")
        return
    cause = evidence.end_cause(signal.data)
    by_desk = cause in {EndCause.ORDERED, EndCause.EVICTED_BY_DESK} or view.ended_by_desk
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
    result = _move_failure(draft, event, signal, key, hidden=by_desk or was_sent_away)
    if result.use is Use.LATE:
        _late(draft, signal, key, result.use, result.reason)
        return
    draft.use(signal, result.use, result.reason)
    if result.use is Use.USED:
        draft.ended.append((view.id, EndCause.ORDERED if was_sent_away else cause))
        node = draft.lives.node(key, signal)
        draft.note(
            "pod_gone", f"{_cap(key)} is gone from {node or 'its node'}: {str(cause).replace('_', ' ')}",
            signal=signal, cause=str(cause), node=node, pod_uid=view.pod_uid,
        )  # fmt: skip


def _is_really_gone(draft: Draft, signal: Signal, view: IncarnationView) -> bool:
    """Level, not edge: a report of an end is outranked by signs of life that are newer."""
    if view.ended_at is not None or not view.is_running:
        return True
    uncertainty = draft.policy.late_uncertainty_seconds
    if came_before(signal, draft.attempt, uncertainty) and draft.job.attempt in view.attempts:
        return False  # it was alive when the attempt began, which was after this
    heard = view.last_seen_at
    bound = timedelta(seconds=max(uncertainty, signal.offset_uncertainty_seconds))
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


# The job.


def _job_event(make: Callable[[Mapping[str, Any]], ev.Event], kind: str, text: str) -> Callable[..., None]:
    """A handler that turns a signal's data into one event."""

    def handle(draft: Draft, signal: Signal) -> None:
        result = draft.move(make(signal.data), signal)
        draft.use(signal, result.use, result.reason)
        if result.use is Use.USED:
            draft.note(kind, text, signal=signal, reason=str(signal.data.get("reason") or ""))

    return handle


def _by(data: Mapping[str, Any]) -> str:
    return str(data.get("by") or "somebody")


def _pod_waiting(data: Mapping[str, Any]) -> ev.Event:
    words = [str(data[name]) for name in ("message", "reason") if data.get(name)]
    return ev.CapacityMissing(words[0][:200] if words else "")


def _controller_ended(data: Mapping[str, Any]) -> ev.Event:
    succeeded = str(data.get("condition")) in {"Complete", "SuccessCriteriaMet"}
    return ev.ControllerEnded(succeeded, str(data.get("reason") or data.get("message") or "no reason told"))


def _max_retry(draft: Draft, signal: Signal) -> None:
    value = signal.data.get("max_retry")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100_000:
        draft.use(signal, Use.REFUSED, f"max retry {value!r} is not a number from 0 to 100000")
        return
    result = draft.move(ev.MaxRetryChanged(value), signal)
    draft.settle(result.row, result.reason)
    draft.use(signal, result.use, result.reason)


def _protection(draft: Draft, signal: Signal) -> None:
    wanted = signal.data.get("protected") is True
    if draft.is_mode_observe:
        draft.wish_for_protection = wanted
        draft.use(signal, Use.USED, "kept for the time when the cluster is armed: it is in observe")
        return
    result = draft.move(ev.Protection(wanted, str(signal.data.get("reason") or "")), signal)
    draft.settle(result.row, result.reason)
    draft.use(signal, result.use, result.reason)


# Evidence.


def _evidence(draft: Draft, signal: Signal) -> None:
    """Never moves anything: it is placed by its time and joins the incident of that attempt."""
    is_older = came_before(signal, draft.attempt, draft.policy.late_uncertainty_seconds)
    attempt = draft.job.attempt - 1 if is_older else draft.job.attempt
    use = Use.LATE if is_older else Use.CONTEXT
    draft.use(signal, use, f"evidence for attempt {attempt}, by its time; evidence alone never counts")
    _join(draft, signal, attempt, Role.CONTEXT, f"{signal.source} {signal.kind}: {_summary(signal.data)}")


def _late(draft: Draft, signal: Signal, key: WorkerKey, use: Use, reason: str) -> None:
    """A witness of something that is over: it changes nothing and joins as evidence."""
    draft.use(signal, use, reason)
    is_of_attempt = signal.sequence is not None and signal.sequence == draft.job.attempt_sequence
    if signal.sequence is None:
        is_of_attempt = not came_before(signal, draft.attempt, draft.policy.late_uncertainty_seconds)
    attempt = draft.job.attempt if is_of_attempt else draft.job.attempt - 1
    fact = evidence.fact_of_end(signal, worker=key, node=draft.lives.node(key, signal), attempt=attempt)
    tells_why = signal.kind is SignalKind.INCARNATION_ENDED and draft.was_only_seen_replaced(signal, fact)
    role = fact.role if tells_why or signal.kind is SignalKind.ERROR else Role.CONTEXT
    _join(draft, signal, attempt, role, fact.text, like=fact)
    if tells_why:
        draft.retitle(fact)


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


# Actions and people.


def _action_go(draft: Draft, signal: Signal) -> None:
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
        draft.change_action(action, ActionState.SUPERSEDED, "its incident is not open any more")
        return
    result = draft.move(ev.RecoveryGo(), signal)
    draft.use(signal, result.use, result.reason)
    if result.use is not Use.USED:
        draft.change_action(action, ActionState.SUPERSEDED, f"nothing was sent: {result.reason}")
        if result.row == "go.departed":
            draft.entered_troubleshooting = True  # to be chosen anew
        return
    draft.change_action(
        action, ActionState.VERIFYING, f"all workers start, order {draft.job.attempt_sequence}",
        sequence=draft.job.attempt_sequence, signal=signal,
    )  # fmt: skip
    draft.bring_incident(IncidentState.RECOVERING, "training starts again", signal=signal)


def _action_ended(draft: Draft, signal: Signal) -> None:
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
    if not draft.change_action(action, state, detail or f"told by {signal.source}", signal=signal):
        draft.use(signal, Use.STALE, f"the action is {action.state} and cannot become {state}")
        return
    draft.use(signal, Use.USED, f"{action.kind} {state}")
    draft.settle(f"action.{state}", f"{action.kind} {state}: {detail}")


def _person_resolve(draft: Draft, signal: Signal) -> None:
    by, reason = _by(signal.data), str(signal.data.get("reason") or "")
    if not draft.incident.is_open:
        draft.use(signal, Use.REFUSED, "there is no open incident")
        return
    busy = [a for a in draft.open_actions() if a.state in {ActionState.RUNNING, ActionState.VERIFYING}]
    for action in draft.open_actions():
        if action not in busy:
            draft.change_action(action, ActionState.CANCELLED, f"incident resolved by {by}", signal=signal)
    if any(action.kind is not ActionKind.ASK_PERSON for action in busy):
        kinds = ", ".join(sorted({str(action.kind) for action in busy}))
        draft.use(signal, Use.REFUSED, f"{kinds} is being carried out; an incident never closes over that")
        draft.settle("person.resolve_refused", f"{kinds} is being carried out")
        return
    for action in busy:
        draft.change_action(action, ActionState.DONE, f"{by} has answered", signal=signal)
    draft.bring_incident(
        IncidentState.RESOLVED, f"by {by}{f': {reason}' if reason else ''}",
        resolution=Resolution.BY_PERSON, signal=signal,
    )  # fmt: skip
    draft.use(signal, Use.USED, f"resolved by {by}")
    draft.settle("person.resolve", f"resolved by {by}")


def _person_cancel(draft: Draft, signal: Signal) -> None:
    by = _by(signal.data)
    uid = signal.data.get("action_uid")
    chosen = [action for action in draft.open_actions() if not uid or action.uid == str(uid)]
    reason = f"cancelled by {by}: {signal.data.get('reason') or 'no reason given'}"
    cancelled = [
        action
        for action in chosen
        if draft.change_action(action, ActionState.CANCELLED, reason, signal=signal)
    ]
    if not cancelled:
        draft.use(signal, Use.REFUSED, "nothing of it waits: what is being carried out cannot be taken back")
        return
    draft.use(signal, Use.USED, reason)
    draft.settle("person.cancel", reason)
    is_remedy = any(action.kind is not ActionKind.ASK_PERSON for action in cancelled)
    if draft.incident.is_open and is_remedy:
        draft.bring_incident(IncidentState.NEEDS_PERSON, reason, signal=signal)


def _person_do_now(draft: Draft, signal: Signal) -> None:
    by = _by(signal.data)
    action = _action(draft, signal)
    if action is None or action.state not in {ActionState.PLANNED, ActionState.READY}:
        draft.use(signal, Use.REFUSED, "the action does not wait for its time")
        return
    if action.kind not in INSTALLED_ACTIONS or draft.is_observing:
        draft.use(signal, Use.REFUSED, f"it cannot be done here: {draft.observing_because}")
        return
    draft.change_action(action, ActionState.READY, f"now, by {by}", not_before=draft.now, signal=signal)
    draft.use(signal, Use.USED, f"{action.kind} begins now, by {by}")
    draft.settle("person.do_now", f"{action.kind} begins now, by {by}")


def _look(draft: Draft, signal: Signal) -> None:
    draft.use(signal, Use.USED, "looked again")


# Parts.


def _move_failure(
    draft: Draft, event: ev.Event, signal: Signal, key: WorkerKey, *, hidden: bool = False
) -> Any:
    """Move; if training stopped or a recovery was set back by it, keep what it says as evidence.

    ``hidden``: the end was ordered or comes with another report; it is context and not a cause.
    """
    before = draft.job
    node = draft.lives.node(key, signal)
    fact = evidence.fact_of_end(signal, worker=key, node=node, attempt=before.attempt)
    counts, lines = len(draft.counts), len(draft.timeline)
    result = draft.move(event, signal, end_cause=_end_cause(event, fact))
    if result.row not in FAILURE_ROWS:
        return result
    left_run = before.phase is Phase.RUN_COMMAND
    if hidden and not left_run:
        fact = Fact(
            fact.signal, fact.at, fact.attempt, Role.CONTEXT, fact.rule, fact.category, fact.text, 0.1,
            fact.order, fact.worker, fact.node,
        )  # fmt: skip
    if left_run or draft.failed_attempt is None or not draft.incident.is_open:
        if draft.failed_attempt != before.attempt:
            draft.checked = {}
        draft.failed_attempt = before.attempt
    draft.add_fact(fact)
    failure = Failure(
        signal, fact, key, counted=len(draft.counts) > counts, left_run=left_run, row=result.row
    )
    draft.failures.append(failure)
    late = (signal.received_at - signal.seen_at).total_seconds()
    draft.note(
        "failure_seen", fact.text, signal=signal, attempt=before.attempt, worker=key,
        step=_step(signal) if _step(signal) is not None else draft.last_step(),
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


def _is_of_now(draft: Draft, signal: Signal, key: WorkerKey) -> bool:
    worker = draft.job.worker(key)
    return worker is not None and signal.sequence == worker.last_sequence


def _phase_of(word: str | None) -> MessagePhase | None:
    try:
        return MessagePhase(word) if word else None
    except ValueError:
        return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _step(signal: Signal) -> int | None:
    return _whole(signal.data.get("step"))


def _action(draft: Draft, signal: Signal) -> ActionView | None:
    action = draft.actions.get(str(signal.data.get("action_uid")))
    return action if action in draft.open_actions() else None


def _cap(key: WorkerKey | None) -> str:
    return str(key or "worker").capitalize()


_HANDLERS: Mapping[SignalKind, Callable[[Draft, Signal], None]] = {
    SignalKind.ENROLLED: _enrolled,
    SignalKind.ACK: _message,
    SignalKind.ERROR: _message,
    SignalKind.FINISH: _message,
    SignalKind.MARK: _mark,
    SignalKind.HANG: _hang,
    SignalKind.QUIT: _quit,
    SignalKind.CHECKPOINT: _checkpoint,
    SignalKind.AGENT_SILENT: _silence,
    SignalKind.AGENT_BACK: _silence,
    SignalKind.INCARNATION_ENDED: _incarnation_ended,
    SignalKind.JOB_KNOWN: _job_event(
        lambda data: ev.JobKnown(data.get("suspended") is True), "job_known", "Job seen first"
    ),
    SignalKind.WORLD_RUNNING: _job_event(lambda _: ev.SeenRunning(), "world_running", "Every pod runs"),
    SignalKind.POD_WAITING: _job_event(_pod_waiting, "capacity_missing", "A pod cannot be placed"),
    SignalKind.CAPACITY_BACK: _job_event(lambda _: ev.CapacityBack(), "capacity_back", "All pods are placed"),
    SignalKind.JOB_SUSPENDED: _job_event(
        lambda data: ev.Suspended(_by(data)), "job_suspended", "The job was suspended"
    ),
    SignalKind.JOB_RESUMED: _job_event(
        lambda data: ev.Resumed(_by(data)), "job_resumed", "The job was resumed"
    ),
    SignalKind.JOB_DELETED: _job_event(lambda _: ev.Deleted(), "job_deleted", "The job was deleted"),
    SignalKind.JOB_ENDED: _job_event(_controller_ended, "job_ended", "The controller ended the job"),
    SignalKind.BARRIER_EXPIRED: _job_event(
        lambda _: ev.BarrierExpired(), "barrier_expired", "Not every agent came in time"
    ),
    SignalKind.PROTECTION: _protection,
    SignalKind.MAX_RETRY_CHANGED: _max_retry,
    SignalKind.ACTION_GO: _action_go,
    SignalKind.ACTION_ENDED: _action_ended,
    SignalKind.PERSON_RESOLVE: _person_resolve,
    SignalKind.PERSON_CANCEL: _person_cancel,
    SignalKind.PERSON_DO_NOW: _person_do_now,
    SignalKind.LOOK: _look,
}
