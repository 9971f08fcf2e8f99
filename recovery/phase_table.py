"""The table of the phase machine, as data. Source: DOMAIN section 3.

For an event, the first row of its type whose phases and guard fit gives the answer; each type ends with a row
that fits always, so every event has an answer in every state. Automatic rows (no event) are tried after
each event until none fits. ``markdown`` prints the table; docs and explorer read the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from recovery import phase_events as ev
from recovery import phase_moves as do
from recovery.phase_state import (
    LIVE_PHASES,
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    WorkerState,
)
from recovery.signals import EndCause, Use


@dataclass(frozen=True, slots=True)
class Row:
    """One row. ``to`` None = the phase stays; ``event`` None = automatic.

    ``says`` is the reason for people, with fields of ``event`` and ``state``.
    """

    id: str
    event: type[ev.Event] | None
    phases: frozenset[Phase]
    guard: str
    to: Phase | None
    counts: str
    says: str
    when: Callable[[JobState, Any], bool]
    effect: Callable[[JobState, Any], do.Effect]
    use: Use = Use.USED


P = Phase
ANY = frozenset(Phase)
RUN = frozenset({P.RUN_COMMAND})
PENDING = frozenset({P.PENDING})
RESTARTING = frozenset({P.RESTARTING})
RECOVERING = frozenset({P.RESTARTING, P.TROUBLESHOOTING})
BEFORE_RUN = frozenset({P.PENDING, P.BOOT_CHECKING, P.TROUBLESHOOTING})
CHECKING = frozenset({P.BOOT_CHECKING, P.RESTARTING, P.TROUBLESHOOTING})
WAITING = frozenset({P.PENDING, P.RESTARTING})
BARRED = frozenset({P.PENDING, P.BOOT_CHECKING, P.RESTARTING})
NOT_RUN = LIVE_PHASES - RUN


def _always(state: JobState, event: Any) -> bool:
    return True


def _stay(state: JobState, event: Any) -> do.Effect:
    return do.Effect(state)


def _worker(state: JobState, event: ev.WorkerEvent) -> WorkerState:
    """The worker that the event is about; the rows of unknown workers come first."""
    return state.worker(event.worker) or WorkerState(event.worker, retired=True)


def _unknown(state: JobState, event: ev.WorkerEvent) -> bool:
    return state.worker(event.worker) is None


def _retired(state: JobState, event: ev.WorkerEvent) -> bool:
    return _worker(state, event).retired


def _not_of_this_job(name: str, event: type[ev.WorkerEvent]) -> tuple[Row, ...]:
    """The rows that every event about a worker begins with."""
    return (
        Row(
            f"{name}.unknown", event, ANY, "no such worker in the job", None, "no",
            "{event.worker} is not a worker of this job", _unknown, _stay, Use.REFUSED,
        ),
        Row(
            f"{name}.retired", event, ANY, "worker is outside the present world", None, "no",
            "{event.worker} is outside the present world", _retired, _stay, Use.LATE,
        ),
        Row(
            f"{name}.over", event, TERMINAL_PHASES, "", None, "no",
            "the job is over ({state.phase})", _always, _stay, Use.LATE,
        ),
    )  # fmt: skip


# Guards of messages. A message is current when its sequence is the newest order set of its worker, and
# fits when its phase is what that order set asked for, which the worker's inner phase tells.

_INNER_PHASES = {
    MessagePhase.BOOTCHECK: frozenset({P.BOOT_CHECKING, P.RESTARTING}),
    MessagePhase.COMMAND: frozenset({P.RUN_COMMAND}),
    MessagePhase.TROUBLESHOOT: frozenset({P.RUN_COMMAND, P.TROUBLESHOOTING}),
}


def _fits(state: JobState, event: ev.Message) -> bool:
    return _worker(state, event).inner_phase in _INNER_PHASES[event.phase]


def _is(type_: MessageType, *phases: MessagePhase) -> Callable[[JobState, ev.Message], bool]:
    return lambda state, event: event.type is type_ and event.phase in phases and _fits(state, event)


_ACK_CHECK = _is(MessageType.ACK, MessagePhase.BOOTCHECK)
_ACK_RUN = _is(MessageType.ACK, MessagePhase.COMMAND)
_ACK_STOP = _is(MessageType.ACK, MessagePhase.TROUBLESHOOT)
_ERROR_RUN = _is(MessageType.ERROR, MessagePhase.COMMAND)
_ERROR_CHECK = _is(MessageType.ERROR, MessagePhase.BOOTCHECK, MessagePhase.TROUBLESHOOT)
_FINISH = _is(MessageType.FINISH, MessagePhase.COMMAND)
_MARK = _is(MessageType.MARK, MessagePhase.COMMAND)


def _from_the_future(state: JobState, event: ev.Message) -> bool:
    return event.sequence > _worker(state, event).last_sequence


def _older(state: JobState, event: ev.Message) -> bool:
    return event.sequence < _worker(state, event).last_sequence


def _handled(state: JobState, event: ev.Message) -> bool:
    return _worker(state, event).has_answered(event.type, event.phase)


def _gone(state: JobState, event: ev.Message) -> bool:
    return not _worker(state, event).enrolled


def _finish_of_pending(state: JobState, event: ev.Message) -> bool:
    return (
        event.type is MessageType.FINISH
        and event.phase is MessagePhase.COMMAND
        and _worker(state, event).inner_phase is P.PENDING
        and not _worker(state, event).finished
        and event.sequence == state.attempt_sequence > 0
    )


def _fails(of: Callable[[JobState, ev.Message], bool]) -> Callable[[JobState, ev.Message], bool]:
    return lambda state, event: of(state, event) and not event.passed and not _worker(state, event).must_exit


def _stays(of: Callable[[JobState, ev.Message], bool]) -> Callable[[JobState, ev.Message], bool]:
    return lambda state, event: of(state, event) and event.passed and not _worker(state, event).must_exit


def _error_of_check(state: JobState, event: ev.Message) -> bool:
    return _ERROR_CHECK(state, event) and not _worker(state, event).must_exit


def _error_of_run(state: JobState, event: ev.Message) -> bool:
    return _ERROR_RUN(state, event) and not _worker(state, event).finished


def _ack_of_leaver(state: JobState, event: ev.Message) -> bool:
    ack = event.type is MessageType.ACK and event.phase is MessagePhase.TROUBLESHOOT
    return ack and _worker(state, event).must_exit


MESSAGE_ROWS = (
    *_not_of_this_job("message", ev.Message),
    Row(
        "message.future", ev.Message, ANY, "sequence was never given to this worker", None, "no",
        "sequence {event.sequence} was never given to {event.worker}", _from_the_future, _stay, Use.REFUSED,
    ),
    Row(
        "message.finish_late", ev.Message, RECOVERING, "Finish of a Pending worker", None, "no",
        "{event.worker} had finished before its container went", _finish_of_pending, do.note_finish,
    ),
    Row(
        "message.older", ev.Message, ANY, "older sequence", None, "no",
        "{event.type} of sequence {event.sequence}, which is over", _older, _stay, Use.LATE,
    ),
    Row(
        "message.duplicate", ev.Message, ANY, "handled before", None, "no",
        "this {event.type} was handled before", _handled, _stay, Use.DUPLICATE,
    ),
    Row(
        "message.gone", ev.Message, LIVE_PHASES, "its incarnation is over, or never came", None, "no",
        "{event.type} of an incarnation of {event.worker} that is over", _gone, _stay, Use.LATE,
    ),
    Row(
        "message.boot_check_failed", ev.Message, CHECKING, "ACK bootcheck, a hardware check failed", None,
        "no: the worker exits", "boot check of {event.worker} failed, it must leave: {event.reason}",
        _fails(_ACK_CHECK), do.send_away,
    ),
    Row(
        "message.boot_checked", ev.Message, frozenset({P.BOOT_CHECKING, P.RESTARTING}), "ACK bootcheck",
        None, "no", "{event.worker} passed its boot check", _stays(_ACK_CHECK), do.note_boot_check,
    ),
    Row(
        "message.started", ev.Message, RUN, "ACK command", None, "no",
        "{event.worker} started its training process", _ACK_RUN, do.note_message,
    ),
    Row(
        "message.check_failed", ev.Message, RECOVERING, "ACK troubleshoot, a hardware check failed", None,
        "no: the worker exits", "a check of {event.worker} failed, it must leave: {event.reason}",
        _fails(_ACK_STOP), do.send_away,
    ),
    Row(
        "message.stopped", ev.Message, RECOVERING, "ACK troubleshoot", None, "no",
        "{event.worker} stopped and its checks are in", _stays(_ACK_STOP), do.note_message,
    ),
    Row(
        "message.leaves", ev.Message, CHECKING, "ACK troubleshoot of a worker that must exit", None, "no",
        "{event.worker} leaves its container", _ack_of_leaver, do.note_message,
    ),
    Row(
        "message.error", ev.Message, RUN, "Error command", P.TROUBLESHOOTING, "that worker +1",
        "a process of {event.worker} ended in error", _error_of_run, do.take_error,
    ),
    Row(
        "message.error_in_check", ev.Message, CHECKING, "Error bootcheck or troubleshoot", None,
        "no: the worker exits", "{event.worker} failed while it was checked, it must leave: {event.reason}",
        _error_of_check, do.send_away,
    ),
    Row(
        "message.finish", ev.Message, RUN, "Finish command", None, "no",
        "{event.worker} finished", _FINISH, do.note_finish,
    ),
    Row(
        "message.first_step", ev.Message, RUN, "Mark first_step", None, "no",
        "{event.worker} steps", _MARK, do.note_message,
    ),
    Row(
        "message.other", ev.Message, ANY, "phase is not the job's", None, "no",
        "{event.type} {event.phase} does not fit {state.phase}", _always, _stay, Use.LATE,
    ),
)  # fmt: skip


# Incarnations.


def _old_incarnation(state: JobState, event: ev.IncarnationEnded) -> bool:
    return not event.is_current


def _exit_zero(state: JobState, event: ev.IncarnationEnded) -> bool:
    return event.cause is EndCause.COMPLETED and event.in_attempt


def _finished_left(state: JobState, event: ev.IncarnationEnded) -> bool:
    return _worker(state, event).finished


def _finished_done(state: JobState, event: ev.IncarnationEnded) -> bool:
    return _worker(state, event).finished and event.cause is EndCause.COMPLETED


def _gone_already(state: JobState, event: ev.IncarnationEnded) -> bool:
    worker = _worker(state, event)
    return worker.departed or (worker.restarted and not worker.enrolled)


def _charged(state: JobState, event: ev.IncarnationEnded) -> bool:
    return (
        event.in_attempt and event.cause.counts and not event.by_desk and not _worker(state, event).must_exit
    )


END_ROWS = (
    *_not_of_this_job("end", ev.IncarnationEnded),
    Row(
        "end.old", ev.IncarnationEnded, ANY, "an incarnation that was replaced", None, "no",
        "an older incarnation of {event.worker}, replaced by now", _old_incarnation, _stay, Use.LATE,
    ),
    Row(
        "end.known", ev.IncarnationEnded, ANY, "its end is known", None, "no",
        "the end of {event.worker} is known already", _gone_already, _stay, Use.DUPLICATE,
    ),
    Row(
        "end.finished", ev.IncarnationEnded, RUN, "exit 0", None, "no",
        "{event.worker} ended with exit 0", _exit_zero, do.leave_finished,
    ),
    Row(
        "end.finished_left", ev.IncarnationEnded, RUN, "the worker had finished", None, "no",
        "{event.worker} had finished and has left", _finished_left, do.leave_finished,
    ),
    Row(
        "end.finished_left_late", ev.IncarnationEnded, RECOVERING, "the worker had finished, exit 0", None,
        "no", "{event.worker} had finished and has left", _finished_done, do.leave_finished,
    ),
    Row(
        "end.counted", ev.IncarnationEnded, RUN, "part of the attempt, cause counts", P.RESTARTING,
        "that worker +1", "an incarnation of {event.worker} ended: {event.cause}",
        _charged, do.end_incarnation,
    ),
    Row(
        "end.not_counted", ev.IncarnationEnded, RUN,
        "by cause (preemption, maintenance, ordered, stop), or not part of the attempt", P.RESTARTING,
        "no", "an incarnation of {event.worker} ended: {event.cause}, which never counts or came before"
        " this attempt", _always, do.end_incarnation,
    ),
    Row(
        "end.in_recovery", ev.IncarnationEnded, BEFORE_RUN, "", P.RESTARTING, "no",
        "an incarnation of {event.worker} ended in {state.phase}: not punished twice", _always,
        lambda state, event: do.begin_restarting(state, event.worker),
    ),
    Row(
        "end.again", ev.IncarnationEnded, RESTARTING, "", None, "no",
        "an incarnation of {event.worker} ended during the restart: not punished twice", _always,
        do.lose_again,
    ),
)  # fmt: skip


def _first_contact(state: JobState, event: ev.Enrolled) -> bool:
    worker = _worker(state, event)
    return not worker.enrolled and not worker.departed


def _finished_back(state: JobState, event: ev.Enrolled) -> bool:
    return _worker(state, event).finished


def _was_there(state: JobState, event: ev.Enrolled) -> bool:
    return _worker(state, event).enrolled


def _was_there_counts(state: JobState, event: ev.Enrolled) -> bool:
    worker = _worker(state, event)
    return worker.enrolled and not event.by_desk and not worker.must_exit


def _waiting_to_be_checked(state: JobState, event: ev.Enrolled) -> bool:
    return not _worker(state, event).enrolled


ENROL_ROWS = (
    *_not_of_this_job("enrol", ev.Enrolled),
    Row(
        "enrol.finished_back", ev.Enrolled, RUN, "the worker had finished", None, "no",
        "{event.worker} had finished and is there again", _finished_back, do.enrol,
    ),
    Row(
        "enrol.replaced", ev.Enrolled, RUN, "the last incarnation was enrolled", P.RESTARTING,
        "that worker +1", "{event.worker} was replaced by a newer incarnation", _was_there_counts,
        do.replace_incarnation,
    ),
    Row(
        "enrol.replaced_ordered", ev.Enrolled, RUN, "the last one ended by our order", P.RESTARTING, "no",
        "{event.worker} was replaced, as ordered", _was_there, do.replace_incarnation,
    ),
    Row(
        "enrol.first", ev.Enrolled, PENDING | RUN, "first contact", None, "no",
        "{event.worker} is enrolled", _first_contact, do.enrol,
    ),
    Row(
        "enrol.returned", ev.Enrolled, RESTARTING, "it was gone", None, "no",
        "{event.worker} is back", _waiting_to_be_checked, do.enrol_replaced,
    ),
    Row(
        "enrol.replaced_again", ev.Enrolled, RESTARTING, "the last one was enrolled", None, "no",
        "{event.worker} was replaced during the restart: not punished twice", _always, do.replace_incarnation,
    ),
    Row(
        "enrol.replaced_in_recovery", ev.Enrolled, LIVE_PHASES, "", P.RESTARTING, "no",
        "{event.worker} was replaced in {state.phase}: not punished twice", _always, do.replace_incarnation,
    ),
)  # fmt: skip


def _of_now(state: JobState, event: ev.HangSuspected | ev.HangConfirmed) -> bool:
    worker = _worker(state, event)
    return event.sequence == worker.last_sequence and not worker.finished


HANG_ROWS = (
    *_not_of_this_job("hang_suspected", ev.HangSuspected),
    Row(
        "hang_suspected.flagged", ev.HangSuspected, RUN, "of this attempt", None, "no",
        "no progress on {event.worker}: suspected hang, nothing is killed", _of_now, _stay,
    ),
    Row(
        "hang_suspected.other", ev.HangSuspected, ANY, "of another attempt or phase", None, "no",
        "a suspected hang of an attempt or phase that is over", _always, _stay, Use.LATE,
    ),
    *_not_of_this_job("hang", ev.HangConfirmed),
    Row(
        "hang.confirmed", ev.HangConfirmed, RUN, "of this attempt", P.TROUBLESHOOTING, "that worker +1",
        "confirmed hang on {event.worker}", _of_now, do.take_hang,
    ),
    Row(
        "hang.other", ev.HangConfirmed, ANY, "of another attempt or phase", None, "no",
        "a hang of an attempt or phase that is over", _always, _stay, Use.LATE,
    ),
)  # fmt: skip


def _nobody_obeys(state: JobState, event: Any) -> bool:
    return not state.protected


def _someone_left(state: JobState, event: Any) -> bool:
    return any(worker.departed for worker in state.active)


def _someone_missing(state: JobState, event: Any) -> bool:
    return any(w.must_exit or w.restarted or not w.enrolled for w in state.present)


def _held(state: JobState, event: Any) -> bool:
    return state.protected and state.is_held


RECOVERY_ROWS = (
    Row(
        "go.unprotected", ev.RecoveryGo, ANY, "nobody obeys", None, "no",
        "nobody obeys here: the job is unprotected", _nobody_obeys, _stay, Use.REFUSED,
    ),
    Row(
        "go.departed", ev.RecoveryGo, frozenset({P.TROUBLESHOOTING}), "a finished worker has left", None,
        "no", "a worker that is needed has finished and left its container", _someone_left, _stay,
        Use.REFUSED,
    ),
    Row(
        "go.incomplete", ev.RecoveryGo, frozenset({P.TROUBLESHOOTING}), "a worker is gone or must exit",
        None, "no", "a worker is gone or about to leave", _someone_missing, _stay, Use.REFUSED,
    ),
    Row(
        "go.held", ev.RecoveryGo, frozenset({P.TROUBLESHOOTING}), "over budget, the cause is open", None,
        "no", "over budget, unless the last failure turns out not to count", _held, _stay, Use.REFUSED,
    ),
    Row(
        "go", ev.RecoveryGo, frozenset({P.TROUBLESHOOTING}), "", P.RUN_COMMAND,
        "no: every worker's retries = recover count", "recovery done, all start together", _always,
        lambda state, event: do.enter_run_command(state),
    ),
    Row(
        "go.stale", ev.RecoveryGo, ANY, "not in Troubleshooting", None, "no",
        "the job is in {state.phase} by now", _always, _stay, Use.STALE,
    ),
)  # fmt: skip


def _counts(state: JobState, event: ev.CauseKnown) -> bool:
    return event.counts


def _charged_last(state: JobState, event: ev.CauseKnown) -> bool:
    return event.attempt == state.attempt and do.is_charged(_worker(state, event), state)


def _charged_before(state: JobState, event: ev.CauseKnown) -> bool:
    return event.attempt < state.attempt and any(worker.retries for worker in state.active)


CAUSE_ROWS = (
    Row("cause.unknown", ev.CauseKnown, ANY, "no such worker in the job", None, "no",
        "{event.worker} is not a worker of this job", _unknown, _stay, Use.REFUSED),
    Row("cause.given_up", ev.CauseKnown, frozenset({P.FAILED}), "", None, "no",
        "the job was given up before this was known", _always, _stay, Use.LATE),
    Row("cause.counts", ev.CauseKnown, ANY, "it counts, or is waited for no longer", None, "no: it has counted",
        "{event.reason}", _counts, do.settle_cause),
    Row("cause.taken_back", ev.CauseKnown, NOT_RUN | TERMINAL_PHASES, "of the attempt that ended last", None,
        "that worker -1", "{event.reason}", _charged_last, do.take_back),
    Row("cause.taken_back_later", ev.CauseKnown, ANY, "of an attempt before", None, "every worker -1",
        "{event.reason}", _charged_before, do.take_back_aligned),
    Row("cause.nothing", ev.CauseKnown, ANY, "", None, "no",
        "nothing of it stands in the counters", _always, do.settle_cause, Use.LATE),
)  # fmt: skip


def _safe_point_wanted(state: JobState, event: ev.Quit) -> bool:
    return event.at_safe_point


def _quit_due(state: JobState, event: Any) -> bool:
    return state.quit_due


def _queued(state: JobState, event: Any) -> bool:
    return state.reason == do.QUEUED


def _suspended(state: JobState, event: ev.JobKnown) -> bool:
    return event.suspended


def _waits_for_capacity(state: JobState, event: Any) -> bool:
    return state.reason.startswith(do.WAITING_FOR_CAPACITY)


JOB_ROWS = (
    Row("known.queued", ev.JobKnown, PENDING, "created suspended", None, "no",
        "created suspended: queued", _suspended, do.queue),
    Row("known", ev.JobKnown, ANY, "", None, "no", "job known", _always, _stay),
    Row("capacity.missing", ev.CapacityMissing, WAITING, "", None, "no",
        "waits for capacity: {event.reason}", _always, do.wait_for_capacity),
    Row("capacity.missing_other", ev.CapacityMissing, ANY, "", None, "no",
        "a pod cannot be placed, which {state.phase} does not wait for", _always, _stay, Use.CONTEXT),
    Row("capacity.back", ev.CapacityBack, WAITING, "it waited for capacity", None, "no",
        "capacity is back", _waits_for_capacity, do.clear_reason),
    Row("capacity.back_other", ev.CapacityBack, ANY, "", None, "no",
        "all pods are placed", _always, _stay, Use.CONTEXT),
    Row("quit.over", ev.Quit, TERMINAL_PHASES, "", None, "no",
        "the job is over ({state.phase})", _always, _stay, Use.LATE),
    Row("quit.unprotected", ev.Quit, ANY, "nobody obeys", None, "no",
        "nobody obeys here: the job is unprotected", _nobody_obeys, _stay, Use.REFUSED),
    Row("quit.at_safe_point", ev.Quit, RUN, "at the safe point", None, "no",
        "stop asked for, at the next safe point", _safe_point_wanted, do.ask_for_stop),
    Row("quit", ev.Quit, LIVE_PHASES, "", P.STOPPED, "no",
        "stopped on request: {event.reason}", _always, lambda state, event: do.stop(state)),
    Row("safe_point.stop", ev.SafePoint, RUN, "a stop is due", P.STOPPED, "no",
        "stopped on request, at the safe point", _quit_due, lambda state, event: do.stop(state)),
    Row("safe_point", ev.SafePoint, ANY, "", None, "no",
        "a checkpoint was committed", _always, _stay, Use.CONTEXT),
    Row("suspended.over", ev.Suspended, TERMINAL_PHASES, "", None, "no",
        "the job is over ({state.phase})", _always, _stay, Use.LATE),
    Row("suspended.queued", ev.Suspended, PENDING, "created suspended", None, "no",
        "it is queued", _queued, _stay, Use.DUPLICATE),
    Row("suspended", ev.Suspended, LIVE_PHASES, "", P.STOPPED, "no",
        "suspended by {event.by}", _always, lambda state, event: do.stop_seen(state)),
    Row("resumed.queued", ev.Resumed, PENDING, "it was queued", None, "no",
        "admitted from the queue", _queued, do.clear_reason),
    Row("resumed.new_run", ev.Resumed, frozenset({P.STOPPED, P.FAILED}), "", P.PENDING,
        "Stopped: recover count goes on, at most max retry; Failed: starts at 0", "resumed by {event.by}: a new run",
        _always, do.begin_run),
    Row("resumed.other", ev.Resumed, ANY, "", None, "no",
        "nothing to resume in {state.phase}", _always, _stay, Use.LATE),
    Row("deleted.over", ev.Deleted, TERMINAL_PHASES, "", None, "no",
        "the job is over ({state.phase})", _always, _stay, Use.LATE),
    Row("deleted", ev.Deleted, LIVE_PHASES, "", P.STOPPED, "no",
        "the job was deleted", _always, lambda state, event: do.stop_seen(state)),
    Row("controller.over", ev.ControllerEnded, TERMINAL_PHASES, "", None, "no",
        "the job is over ({state.phase})", _always, _stay, Use.LATE),
    Row("controller.succeeded", ev.ControllerEnded, LIVE_PHASES, "Complete", P.SUCCEEDED, "no",
        "the controller says that the job is complete", lambda state, event: event.succeeded,
        lambda state, event: do.Effect(do.enter_terminal(state, P.SUCCEEDED))),
    Row("controller.failed", ev.ControllerEnded, LIVE_PHASES, "Failed", P.FAILED, "no",
        "the controller gave the job up: {event.reason}", _always,
        lambda state, event: do.Effect(do.enter_terminal(state, P.FAILED))),
    Row("world.empty", ev.WorldChanged, ANY, "no place at all", None, "no",
        "a world without workers", lambda state, event: not event.workers, _stay, Use.REFUSED),
    Row("world.grew", ev.WorldChanged, LIVE_PHASES - WAITING, "a new place", P.RESTARTING, "no",
        "the world has new places: all start together again", do.has_new_places, do.change_world),
    Row("world.changed", ev.WorldChanged, ANY, "", None, "no",
        "the world changed", _always, do.change_world),
    Row("max_retry", ev.MaxRetryChanged, ANY, "", None, "no",
        "max retry is {event.max_retry}", _always, do.change_max_retry),
)  # fmt: skip


def _protect_now(state: JobState, event: ev.Protection) -> bool:
    all_there = bool(state.present) and all(worker.enrolled for worker in state.present)
    return event.wanted and (state.phase is P.PENDING or state.is_terminal or all_there)


PROTECTION_ROWS = (
    Row("protection.on_already", ev.Protection, ANY, "wanted, and is", None, "no",
        "protected already", lambda state, event: event.wanted and state.protected, _stay, Use.DUPLICATE),
    Row("protection.on", ev.Protection, ANY, "wanted, all agents are there or none has begun", None, "no",
        "protected from now on", _protect_now, do.protect),
    Row("protection.later", ev.Protection, ANY, "wanted, agents are missing", None, "no",
        "protected from the next start on", lambda state, event: event.wanted, do.protect_later),
    Row("protection.off", ev.Protection, ANY, "", None, "no",
        "unprotected from now on: {event.reason}", _always, do.unprotect),
    Row("barrier.unprotected", ev.BarrierExpired, ANY, "nobody obeys", None, "no",
        "unprotected already", _nobody_obeys, _stay, Use.DUPLICATE),
    Row("barrier.held", ev.BarrierExpired, RESTARTING, "over budget, the cause is open", None, "no",
        "over budget, unless the last failure turns out not to count", _held, _stay, Use.LATE),
    Row("barrier", ev.BarrierExpired, BARRED, "", P.RUN_COMMAND, "no: unprotected until the next start",
        "not every agent came in time: all run unprotected until the next start", _always,
        do.give_up_protection),
    Row("barrier.late", ev.BarrierExpired, ANY, "", None, "no",
        "the agents came, the job is in {state.phase}", _always, _stay, Use.LATE),
    Row("seen_running.derived", ev.SeenRunning, NOT_RUN, "nobody obeys", P.RUN_COMMAND, "no",
        "seen running, without us", _nobody_obeys, lambda state, event: do.enter_run_command(state)),
    Row("seen_running", ev.SeenRunning, ANY, "", None, "no",
        "every pod runs", _always, _stay, Use.CONTEXT),
)  # fmt: skip


# Automatic rows.


def _all_enrolled(state: JobState, event: None) -> bool:
    return (
        state.protected
        and state.reason != do.QUEUED
        and bool(state.present)
        and all(worker.enrolled for worker in state.present)
    )


def _all_boot_checked(state: JobState, event: None) -> bool:
    return state.protected and all(do.has_passed_boot_check(worker) for worker in state.present)


def _all_finished(state: JobState, event: None) -> bool:
    return bool(state.active) and all(worker.finished for worker in state.active)


def _over_budget(state: JobState, event: None) -> bool:
    return state.protected and state.is_over_budget and not state.cause_open


def _all_back(state: JobState, event: None) -> bool:
    return state.protected and not _someone_missing(state, event)


def _all_started_anew(state: JobState, event: None) -> bool:
    return (
        not state.protected
        and state.protection_due
        and bool(state.present)
        and all(worker.restarted and worker.enrolled for worker in state.present)
    )


AUTOMATIC_ROWS = (
    Row("auto.restarting_over_budget", None, RESTARTING, "over budget, the cause is not open", P.TROUBLESHOOTING, "no",
        "over budget: no replacement is waited for", _over_budget,
        lambda state, event: do.enter_troubleshooting(state)),
    Row("auto.over_budget", None, frozenset({P.TROUBLESHOOTING}),
        "any worker's retries > max retry, the cause is not open",
        P.FAILED, "recover count = max retry + 1", "failures used are more than max retry allows",
        _over_budget, lambda state, event: do.fail_over_budget(state)),
    Row("auto.quit", None, NOT_RUN, "a stop at the safe point is due", P.STOPPED, "no",
        "stopped on request: training had ended anyway", _quit_due, lambda state, event: do.stop(state)),
    Row("auto.enrolled", None, PENDING, "every worker enrolled", P.BOOT_CHECKING, "no",
        "every worker is enrolled", _all_enrolled, lambda state, event: do.enter_boot_checking(state)),
    Row("auto.boot_checked", None, frozenset({P.BOOT_CHECKING}), "every worker passed", P.RUN_COMMAND, "no",
        "every worker passed its boot check", _all_boot_checked,
        lambda state, event: do.enter_run_command(state)),
    Row("auto.succeeded", None, RUN, "every worker finished", P.SUCCEEDED, "no",
        "every worker finished", _all_finished, lambda state, event: do.succeed(state)),
    Row("auto.started_anew", None, RESTARTING, "protection is due, every worker started anew",
        P.BOOT_CHECKING, "no", "every worker started anew: protected again", _all_started_anew,
        lambda state, event: do.rearm(state)),
    Row("auto.back", None, RESTARTING, "the replaced ones are back and passed their boot check",
        P.TROUBLESHOOTING, "no", "the replaced ones are back", _all_back,
        lambda state, event: do.enter_troubleshooting(state)),
)  # fmt: skip

EVENT_ROWS = (
    *MESSAGE_ROWS,
    *END_ROWS,
    *ENROL_ROWS,
    *HANG_ROWS,
    *RECOVERY_ROWS,
    *CAUSE_ROWS,
    *JOB_ROWS,
    *PROTECTION_ROWS,
)
TABLE = EVENT_ROWS + AUTOMATIC_ROWS


def markdown(rows: Iterable[Row] = TABLE) -> str:
    """The table as Markdown, one line a row, in the order in which rows are tried."""
    lines = ["| row | from | event | when | to | counts |", "|---|---|---|---|---|---|"]
    for row in rows:
        phases = "any"
        if row.phases == LIVE_PHASES:
            phases = "any live"
        elif row.phases == TERMINAL_PHASES:
            phases = "any terminal"
        elif row.phases != ANY:
            phases = ", ".join(phase for phase in Phase if phase in row.phases)
        event = row.event.__name__ if row.event else "(by itself)"
        cells = (row.id, phases, event, row.guard or "-", row.to or "(stays)", row.counts)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
