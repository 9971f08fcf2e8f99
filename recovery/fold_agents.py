"""What agents tell: messages, marks, hangs, stops asked for, checkpoints, and their silence.

A message's sequence names the attempt that it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recovery import causes, decision_prices, evidence, wording
from recovery import phase_events as ev
from recovery.draft import Draft
from recovery.draft_job import move, resumed_from
from recovery.draft_verdict import observe
from recovery.failures import move_failure, take_late
from recovery.lifecycle import ActionKind
from recovery.phases import MessagePhase, MessageType, Phase
from recovery.records import Considered
from recovery.rules import ends
from recovery.signals import Signal, SignalKind, Use, WorkerKey

_TYPES = {
    SignalKind.ACK: MessageType.ACK,
    SignalKind.ERROR: MessageType.ERROR,
    SignalKind.FINISH: MessageType.FINISH,
}


def _message(draft: Draft, signal: Signal) -> None:
    key = signal.worker
    phase = _phase_of(signal.phase)
    if key is None or phase is None or signal.sequence is None:
        draft.use(signal, Use.REFUSED, "a message without worker, phase or sequence")
        return
    if draft.lives.is_fenced(key, signal.incarnation):
        take_late(draft, signal, key, Use.STALE, f"a newer incarnation of {key} is enrolled")
        return
    failed = evidence.failed_checks(signal.data, hardware_only=True)
    reason, is_symptom = failed, False
    if signal.kind is SignalKind.ERROR:
        rule, how = evidence.rule_of_process(signal.data)
        cause = how if rule is ends.UNKNOWN else rule.category  # "exit code 3" tells more than "unknown"
        reason = cause if phase is MessagePhase.COMMAND else failed or how
        is_symptom = rule is ends.SYMPTOM
    event = ev.Message(
        key, _TYPES[signal.kind], phase, signal.sequence,
        passed=not failed, reason=reason, is_symptom=is_symptom,
    )  # fmt: skip
    result = move_failure(draft, event, signal, key)
    if result.use is Use.LATE and signal.kind is SignalKind.ERROR:
        fact = take_late(draft, signal, key, result.use, result.reason)
        if (told := causes.explained_by_error(draft, fact)) is not None:
            causes.settle(draft, told, fact, signal)
        return
    draft.use(signal, result.use, result.reason)
    if result.use is not Use.USED:
        return
    if signal.kind is SignalKind.ACK:
        _acknowledged(draft, signal, key, phase)
    elif signal.kind is SignalKind.FINISH:
        draft.note("worker_finished", f"{wording.capitalized(key)} finished with exit 0", signal=signal)


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
        observe(draft, signal, key, node, draft.job.attempt, evidence.Role.CHECK)
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
            "process_started", f"{wording.capitalized(key)} started its training process", signal=signal,
            pids=dict(pids) if isinstance(pids, Mapping) else {}, sequence=signal.sequence,
        )  # fmt: skip
    elif phase is MessagePhase.TROUBLESHOOT:
        stopped = signal.data.get("stopped")
        text = (
            f"{wording.capitalized(key)} stopped, quick checks {said or ('clean' if checks else 'not run')}"
        )
        draft.note(
            "worker_stopped", text, signal=signal, checks=seconds, sequence=signal.sequence,
            stopped=dict(stopped) if isinstance(stopped, Mapping) else {}, step=signal.step,
        )  # fmt: skip
    else:
        draft.note(
            "boot_checked", f"{wording.capitalized(key)} passed its boot check{f' but {said}' if said else ''}",
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
    step = signal.step
    if mark == "first_step" and signal.sequence is not None:
        if not draft.job.protected and draft.job.phase is not Phase.RUN_COMMAND:
            move(draft, ev.SeenRunning(), signal)
        event = ev.Message(key, MessageType.MARK, MessagePhase.COMMAND, signal.sequence)
        result = move(draft, event, signal)
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
        resumed_from(draft, step)
    pids, seconds = signal.data.get("pids"), signal.data.get("seconds")
    words = {"started": "started its training process", "restored": f"restored step {step}",
             "rebuilt": "joined its peers", "first_step": f"did its first step, {step}",
             "steady": "did its first ten steps"}  # fmt: skip
    draft.note(
        kinds[mark], f"{wording.capitalized(key)} {words[mark]}", signal=signal, step=step,
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
        result = move_failure(draft, ev.HangConfirmed(key, signal.sequence), signal, key)
        draft.use(signal, result.use, result.reason)
        return
    result = move(draft, ev.HangSuspected(key, signal.sequence), signal)
    draft.use(signal, result.use, result.reason)
    if result.use is Use.USED:
        priced = decision_prices.price_of_standstill(draft, signal.data)
        if priced is not None:
            refused = f"nothing is killed on a suspicion. {priced.why}: {priced.words}"
            draft.considered.append(Considered(str(ActionKind.RESTART_PROCESS), refused))
        draft.suspicions.append(
            evidence.fact_of_end(
                signal, worker=key, node=draft.lives.node(key, signal), attempt=draft.job.attempt
            )
        )


def _quit(draft: Draft, signal: Signal) -> None:
    reason = str(signal.data.get("reason") or "no reason given")
    by = str(signal.data.get("by") or (f"{signal.worker} (ctl)" if signal.worker else "somebody"))
    result = move(
        draft,
        ev.Quit(at_safe_point=signal.data.get("at_safe_point") is True, reason=f"{reason} ({by})"),
        signal,
    )
    draft.use(signal, result.use, result.reason)
    if result.use is Use.USED:
        draft.asked_to_stop = f"Stop asked for by {by}: {reason}"
        draft.note("stop_asked", draft.asked_to_stop, signal=signal)


def _checkpoint(draft: Draft, signal: Signal) -> None:
    step = signal.step
    if signal.data.get("state") != "committed":
        draft.use(signal, Use.CONTEXT, f"checkpoint {step} is not committed")
        return
    result = move(draft, ev.SafePoint(), signal)
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
    text = (
        f"{wording.capitalized(key)}: no heartbeat"
        if is_silent
        else f"{wording.capitalized(key)}: heartbeats again"
    )
    draft.use(signal, Use.CONTEXT, "evidence, not an end: the pod may run and train")
    draft.note("agent_silent" if is_silent else "agent_back", text, signal=signal)


def _is_of_now(draft: Draft, signal: Signal, key: WorkerKey) -> bool:
    worker = draft.job.worker(key)
    return worker is not None and signal.sequence == worker.last_sequence


def _phase_of(word: str | None) -> MessagePhase | None:
    try:
        return MessagePhase(word) if word else None
    except ValueError:
        return None


HANDLERS: Mapping[SignalKind, Callable[[Draft, Signal], None]] = {
    SignalKind.ACK: _message,
    SignalKind.ERROR: _message,
    SignalKind.FINISH: _message,
    SignalKind.MARK: _mark,
    SignalKind.HANG: _hang,
    SignalKind.QUIT: _quit,
    SignalKind.CHECKPOINT: _checkpoint,
    SignalKind.AGENT_SILENT: _silence,
    SignalKind.AGENT_BACK: _silence,
}
