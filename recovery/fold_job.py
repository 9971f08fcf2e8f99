"""What is told of a job as a whole: known, suspended, ended, its limit and its protection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recovery import phase_events as ev
from recovery.draft import Draft
from recovery.draft_job import move
from recovery.signals import Signal, SignalKind, Use

Handler = Callable[[Draft, Signal], None]


def _job_event(make: Callable[[Signal], ev.Event], kind: str, text: str) -> Handler:
    """A handler that turns a signal's data into one event."""

    def handle(draft: Draft, signal: Signal) -> None:
        result = move(draft, make(signal), signal)
        draft.use(signal, result.use, result.reason)
        if result.use is Use.USED:
            draft.note(kind, text, signal=signal, reason=str(signal.data.get("reason") or ""))

    return handle


def _pod_waiting(signal: Signal) -> ev.Event:
    words = [str(signal.data[name]) for name in ("message", "reason") if signal.data.get(name)]
    return ev.CapacityMissing(words[0][:200] if words else "")


def _controller_ended(signal: Signal) -> ev.Event:
    data = signal.data
    succeeded = str(data.get("condition")) in {"Complete", "SuccessCriteriaMet"}
    return ev.ControllerEnded(succeeded, str(data.get("reason") or data.get("message") or "no reason told"))


def _max_retry(draft: Draft, signal: Signal) -> None:
    value = signal.data.get("max_retry")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100_000:
        draft.use(signal, Use.REFUSED, f"max retry {value!r} is not a number from 0 to 100000")
        return
    result = move(draft, ev.MaxRetryChanged(value), signal)
    draft.settle(result.row, result.reason)
    draft.use(signal, result.use, result.reason)


def _protection(draft: Draft, signal: Signal) -> None:
    wanted = signal.data.get("protected") is True
    if draft.is_mode_observe:
        draft.wish_for_protection = wanted
        draft.use(signal, Use.USED, "kept for the time when the cluster is armed: it is in observe")
        return
    result = move(draft, ev.Protection(wanted, str(signal.data.get("reason") or "")), signal)
    draft.settle(result.row, result.reason)
    draft.use(signal, result.use, result.reason)


HANDLERS: Mapping[SignalKind, Handler] = {
    SignalKind.JOB_KNOWN: _job_event(
        lambda signal: ev.JobKnown(signal.data.get("suspended") is True), "job_known", "Job seen first"
    ),
    SignalKind.WORLD_RUNNING: _job_event(lambda _: ev.SeenRunning(), "world_running", "Every pod runs"),
    SignalKind.POD_WAITING: _job_event(_pod_waiting, "capacity_missing", "A pod cannot be placed"),
    SignalKind.CAPACITY_BACK: _job_event(lambda _: ev.CapacityBack(), "capacity_back", "All pods are placed"),
    SignalKind.JOB_SUSPENDED: _job_event(
        lambda signal: ev.Suspended(signal.by), "job_suspended", "The job was suspended"
    ),
    SignalKind.JOB_RESUMED: _job_event(
        lambda signal: ev.Resumed(signal.by), "job_resumed", "The job was resumed"
    ),
    SignalKind.JOB_DELETED: _job_event(lambda _: ev.Deleted(), "job_deleted", "The job was deleted"),
    SignalKind.JOB_ENDED: _job_event(_controller_ended, "job_ended", "The controller ended the job"),
    SignalKind.BARRIER_EXPIRED: _job_event(
        lambda _: ev.BarrierExpired(), "barrier_expired", "Not every agent came in time"
    ),
    SignalKind.PROTECTION: _protection,
    SignalKind.MAX_RETRY_CHANGED: _max_retry,
}
