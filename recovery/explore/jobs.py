"""What must hold of a job, whatever happens to it, and how its states are kept small.

Beside the job as the phase machine sees it a model keeps a *record*: what an onlooker knows who reads every
event and every order, and trusts no field of the machine. The properties are judged against the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from recovery import phase_events as ev
from recovery.phase_moves import OrderKind
from recovery.phase_state import place_of
from recovery.phases import (
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    Step,
)
from recovery.signals import Use, WorkerKey

#: Inner phases that an unfinished worker may have in a phase of its job. While a job restarts, those who
#: were not replaced stand where they stood.
ALLOWED_BEHIND: Mapping[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.PENDING}),
    Phase.BOOT_CHECKING: frozenset({Phase.BOOT_CHECKING}),
    Phase.RUN_COMMAND: frozenset({Phase.RUN_COMMAND}),
    Phase.RESTARTING: frozenset(
        {
            Phase.PENDING,
            Phase.BOOT_CHECKING,
            Phase.RESTARTING,
            Phase.RUN_COMMAND,
            Phase.TROUBLESHOOTING,
        }
    ),
    Phase.TROUBLESHOOTING: frozenset({Phase.TROUBLESHOOTING}),
}

LIVENESS = "trains_or_ends"

PROPERTIES: Mapping[str, str] = {
    "valid_phase": "the job's phase is a known one",
    "valid_inner_phase": "every worker's inner phase is a known one, and the job's own once the run is over",
    "recover_count_bound": "recover count is from 0 to max retry + 1",
    "retries_bound": "every worker's retries are from 0 to max retry + 1",
    "consistency": "an unfinished worker is in the phase of its job; while that restarts it may be behind",
    "finish_once": "no Finish of a worker is handled twice in one attempt",
    "sequence_monotonic": "the number of the newest order set never goes down, and each set has its own",
    "worker_sequence_bound": "no worker's sequence is over the job's",
    "stale_finish_refused": "a Finish of an older order set changes nothing",
    "future_refused": "a message of an order set that its worker was never given changes nothing",
    "late_finish_allowed": "a Pending worker's Finish of the present attempt is taken while the job recovers",
    "counted_once": "an attempt counts at most one failure, whatever witness of it comes how late",
    "counted_by_cause": "preemption, maintenance, our own ends, suspicion, capacity and stops never count",
    "counted_in_run": "only what happens in RunCommand counts: a death during recovery is not punished twice",
    "count_kept": (
        "recover count is the number of failures counted in this run and not taken back, with those that a stop"
        " took over, at most max retry"
    ),
    "late_cause_taken_back": "a count whose cause is told later, and never counts, is taken back, once",
    "over_budget_fails": (
        "a job with more failures than max retry is Failed at once, or as soon as it is no longer open whether"
        " the last one counts; it never trains again"
    ),
    "aligned_start": "when all start together, every worker's retries are the recover count",
    "leaver_never_starts": "a worker that was told to leave is never told to train before it has left",
    "terminal_stays": "nothing leaves a terminal phase but a resume, which begins a new run",
    LIVENESS: (
        "every failed job comes to RunCommand, Succeeded, Failed or Stopped once the environment rests and"
        " gives capacity"
    ),
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the properties are measured with. A mutant of the tester brings wrong measures.

    ``knows_spent``: whether the onlooker's own count of failures is compared, too; without it only the bounds are
    left to find a count that runs away.
    """

    behind: Mapping[Phase, frozenset[Phase]] = field(default_factory=lambda: ALLOWED_BEHIND)
    inner_phases: frozenset[Phase] = frozenset(Phase)
    knows_spent: bool = True


SOUND = Judgement()


class WorkerRecord(NamedTuple):
    """What the onlooker keeps of one worker.

    ``order``: the kind of the newest order set that its present life was given, None for none.
    ``finish_taken``: a Finish of the present attempt was taken from it. ``is_open``: the present attempt was
    counted against it by a witness that does not know the cause.
    """

    order: OrderKind | None = None
    finish_taken: bool = False
    is_open: bool = False


class Record(NamedTuple):
    """What the onlooker keeps of a job. ``counted``: the present attempt has had its count.

    ``spent``: failures counted in this run and not taken back, with those that a stop took over, never told above
    max retry + 2. ``open_before``: earlier attempts of this run whose cause may still be told.
    """

    workers: tuple[WorkerRecord, ...]
    counted: bool = False
    spent: int = 0
    open_before: int = 0


def remember(record: Record, before: JobState, event: ev.Event, result: Step) -> Record:
    """The record after a step, the very same where it has nothing new."""
    after = result.state
    is_used = result.use is Use.USED
    is_end, is_finish = _is_end(event, result), is_used and _is_finish(event)
    is_cause = is_used and isinstance(event, ev.CauseKnown) and not event.counts
    if not (is_end or is_finish or is_cause or result.orders or result.count is not None) and (
        after.attempt == before.attempt and after.run == before.run
    ):
        return record
    workers = list(record.workers)
    if is_end or is_finish:
        assert isinstance(event, ev.WorkerEvent)
        place = _place(before, event.worker)
        known = workers[place]
        workers[place] = known._replace(order=None) if is_end else known._replace(finish_taken=True)
    for order in result.orders:
        for place, worker in enumerate(after.workers):
            if (order.targets is None or worker.key in order.targets) and workers[place].order != order.kind:
                workers[place] = workers[place]._replace(order=order.kind)
    counted, spent, open_before = record.counted, record.spent, record.open_before
    if result.count is not None:
        counted, spent = True, min(spent + 1, after.max_retry + 2)
        place = _place(before, result.count.worker)
        workers[place] = workers[place]._replace(is_open=result.count.witness is not None)
    if is_cause:
        assert isinstance(event, ev.CauseKnown)
        spent -= 1
        if event.attempt == before.attempt:
            place = _place(before, event.worker)
            workers[place] = workers[place]._replace(is_open=False)
        else:
            open_before -= 1
    if after.attempt > before.attempt:
        counted = False
        open_before += any(worker.is_open for worker in workers)
        workers = [WorkerRecord(worker.order) for worker in workers]
    if after.run > before.run:
        counted, open_before = False, 0  # the counters of the run before stand
        spent = min(spent, after.max_retry) if before.phase is Phase.STOPPED else 0
        workers = [WorkerRecord() for _ in workers]
    return Record(tuple(workers), counted, spent, open_before)


def judge_step(judgement: Judgement, record: Record, before: JobState, event: ev.Event, result: Step) -> str:
    """The first property of a step that is broken, "" when all hold. ``record`` is the one before it."""
    after = result.state
    if before.phase in TERMINAL_PHASES and (
        after.phase is not before.phase or result.orders or result.count is not None
    ):
        is_resume = isinstance(event, ev.Resumed) and after.run == before.run + 1
        if not is_resume or after.phase is not Phase.PENDING:
            return "terminal_stays"
    sequence = before.sequence
    for order in result.orders:
        if order.sequence <= sequence:
            return "sequence_monotonic"
        sequence = order.sequence
    if after.sequence != before.sequence + len(result.orders):
        return "sequence_monotonic"
    if broken := _judge_message(record, before, event, result):
        return broken
    if broken := _judge_count(record, before, event, result):
        return broken
    if judgement.knows_spent and (broken := _judge_budget(record, before, event, result)):
        return broken
    if after.attempt > before.attempt:
        for worker, known in zip(after.workers, record.workers, strict=True):
            if not worker.retired and worker.retries != after.recover_count:
                return "aligned_start"
            if known.order is OrderKind.EXIT and not _is_end_of(event, worker.key):
                return "leaver_never_starts"
    return ""


def _judge_message(record: Record, before: JobState, event: ev.Event, result: Step) -> str:
    if not isinstance(event, ev.Message):
        return ""
    worker = before.worker(event.worker)
    if worker is None:
        return ""
    is_taken = result.use is Use.USED
    if event.sequence > worker.last_sequence and (is_taken or result.state != before):
        return "future_refused"
    if not _is_finish(event):
        return ""
    known = record.workers[_place(before, event.worker)]
    is_of_attempt = event.sequence == before.attempt_sequence > 0
    if is_taken and known.finish_taken and is_of_attempt:
        return "finish_once"
    is_pending = worker.inner_phase is Phase.PENDING and before.phase in {
        Phase.RESTARTING,
        Phase.TROUBLESHOOTING,
    }
    if is_of_attempt and is_pending and not worker.finished and not is_taken:
        return "late_finish_allowed"
    is_stale = event.sequence < worker.last_sequence and not (is_of_attempt and is_pending)
    if is_stale and (is_taken or result.state != before):
        return "stale_finish_refused"
    return ""


def _judge_count(record: Record, before: JobState, event: ev.Event, result: Step) -> str:
    after = result.state
    if result.count is None:
        if after is before or after.attempt != before.attempt or after.run != before.run:
            return ""
        for then, now in zip(before.workers, after.workers, strict=True):
            if now.retries > then.retries:
                return "counted_once"
        return ""
    if record.counted or _is_late(before, event) or result.count.attempt != before.attempt:
        return "counted_once"
    if before.phase is not Phase.RUN_COMMAND:
        return "counted_in_run"
    if after.phase is Phase.RUN_COMMAND:
        return "counted_once"
    if not _may_count(record, before, event):
        return "counted_by_cause"
    return ""


def _judge_budget(record: Record, before: JobState, event: ev.Event, result: Step) -> str:
    after = result.state
    if isinstance(event, ev.CauseKnown) and not event.counts:
        is_taken = result.use is Use.USED
        return "" if is_taken is (before.phase is not Phase.FAILED) else "late_cause_taken_back"
    if record.spent + (result.count is not None) <= after.max_retry:
        return ""
    is_open = result.count is not None and result.count.witness is not None
    is_settled = isinstance(event, ev.CauseKnown) or (result.count is not None and not is_open)
    if (is_settled and after.phase not in TERMINAL_PHASES) or after.attempt > before.attempt:
        return "over_budget_fails"
    return ""


def is_judged_alike(before: JobState, event: ev.Event, result: Step) -> bool:
    """Whether the judgement of a step, and the record after it, are the same for every record before it.

    So it is where nothing happens, but for what is owed to a Finish and to a cause that is told.
    """
    if result.state is not before or result.orders or result.count is not None:
        return False
    return not _is_finish(event) and not isinstance(event, ev.CauseKnown)


def judge_state(judgement: Judgement, record: Record, state: JobState) -> str:
    """The first property of a state that does not hold, "" when all do."""
    return judge_job(judgement, state) or judge_kept(judgement, record, state)


def judge_kept(judgement: Judgement, record: Record, state: JobState) -> str:
    """The first property of a state that does not hold against the record."""
    if not judgement.knows_spent or state.phase is Phase.FAILED:
        return ""
    return "" if state.recover_count == min(record.spent, state.max_retry + 1) else "count_kept"


def judge_job(judgement: Judgement, state: JobState) -> str:
    """The first property of a state that does not hold whatever the record says."""
    behind = judgement.behind.get(state.phase)
    is_over = state.phase in TERMINAL_PHASES
    if behind is None and not is_over:
        return "valid_phase"
    if not 0 <= state.recover_count <= state.max_retry + 1:
        return "recover_count_bound"
    for worker in state.workers:
        if not 0 <= worker.retries <= state.max_retry + 1:
            return "retries_bound"
        if worker.inner_phase not in judgement.inner_phases or (
            is_over and not worker.retired and worker.inner_phase is not state.phase
        ):
            return "valid_inner_phase"
        if worker.last_sequence > state.sequence:
            return "worker_sequence_bound"
        is_working = worker.is_present and not worker.finished
        if behind is not None and is_working and worker.inner_phase not in behind:
            return "consistency"
    return ""


# What the onlooker reads from an event.


def _place(state: JobState, key: WorkerKey) -> int:
    place = place_of(state.workers, key)
    assert place is not None, f"the job has no {key}"
    return place


def _is_finish(event: ev.Event) -> bool:
    return (
        isinstance(event, ev.Message)
        and event.type is MessageType.FINISH
        and event.phase is MessagePhase.COMMAND
    )


def _is_end(event: ev.Event, result: Step) -> bool:
    """Whether the worker's life is over by this."""
    if isinstance(event, ev.IncarnationEnded):
        return event.is_current and result.use is Use.USED
    return isinstance(event, ev.Enrolled) and result.use is Use.USED


def _is_end_of(event: ev.Event, key: WorkerKey) -> bool:
    return isinstance(event, ev.IncarnationEnded | ev.Enrolled) and event.worker == key


def _is_late(before: JobState, event: ev.Event) -> bool:
    """Whether the event is a witness of something that was over before this attempt, or of an older life."""
    if isinstance(event, ev.Message | ev.HangConfirmed):
        return event.sequence < before.attempt_sequence
    return isinstance(event, ev.IncarnationEnded) and not (event.is_current and event.in_attempt)


def _may_count(record: Record, before: JobState, event: ev.Event) -> bool:
    """Whether this kind of event, for this cause, may count at all."""
    if isinstance(event, ev.Message):
        return event.type is MessageType.ERROR and event.phase is MessagePhase.COMMAND
    if isinstance(event, ev.HangConfirmed):
        return True
    if not isinstance(event, ev.IncarnationEnded | ev.Enrolled) or event.by_desk:
        return False
    if record.workers[_place(before, event.worker)].order is OrderKind.EXIT:
        return False  # it leaves because we told it to
    return isinstance(event, ev.Enrolled) or event.cause.counts


def describe(state: JobState, record: Record) -> dict[str, str]:
    """A job as a row of a trace."""
    cells = {
        "job": str(state.phase),
        "recover": f"{state.recover_count} of {state.max_retry}",
        "waits": state.reason or ("stop due" if state.quit_due else ""),
    }
    if state.cause_open:
        cells["waits"] = "cause open"
    for place, (worker, known) in enumerate(zip(state.workers, record.workers, strict=True)):
        words = [str(worker.inner_phase), f"retries {worker.retries}"]
        words += [
            name.replace("_", " ")
            for name in ("finished", "restarted", "must_exit", "departed", "retired")
            if getattr(worker, name)
        ]
        if not worker.enrolled and state.phase not in TERMINAL_PHASES:
            words.append("away")
        if known.order is not None:
            words.append(f"order {known.order}")
        cells[f"worker {place}"] = ", ".join(words)
    return cells


def workers_in_words(number: int) -> str:
    """How many workers."""
    return f"{number} worker{'' if number == 1 else 's'}"


def words_of(event: ev.Event) -> str:
    """An event in words."""
    match event:
        case ev.Message():
            failed = "" if event.passed else ", a hardware check failed"
            symptom = " that tells only of lost peers" if event.is_symptom else ""
            return f"{event.worker} sends {event.type} {event.phase} of sequence {event.sequence}{failed}{symptom}"
        case ev.CauseKnown():
            which = "this attempt" if event.attempt == 0 else "an earlier attempt"
            says = "counts, or is waited for no longer" if event.counts else "is one that never counts"
            return f"the cause of {which}, charged to {event.worker}, {says}"
        case ev.IncarnationEnded():
            extra = [
                text
                for is_so, text in (
                    (not event.is_current, "an older life"),
                    (not event.in_attempt, "not of this attempt"),
                    (event.by_desk, "ordered by us"),
                )
                if is_so
            ]
            return f"{event.worker} ends: {', '.join([event.cause.replace('_', ' '), *extra])}"
        case ev.Enrolled():
            return f"{event.worker} enrolls a new life{', the last one ended by us' if event.by_desk else ''}"
        case ev.HangSuspected():
            return f"{event.worker} suspects a hang in sequence {event.sequence}"
        case ev.HangConfirmed():
            return f"{event.worker} confirms a hang in sequence {event.sequence}"
        case ev.Quit():
            return f"stop asked for, {'at the safe point' if event.at_safe_point else 'now'}"
        case ev.ControllerEnded():
            return f"the controller ends the job: {'Complete' if event.succeeded else 'Failed'}"
    return {
        ev.RecoveryGo: "the desk lets all start together",
        ev.CapacityMissing: "capacity is missing",
        ev.CapacityBack: "capacity is back",
        ev.SafePoint: "a checkpoint is committed",
        ev.Suspended: "the job is suspended",
        ev.Resumed: "the job is resumed",
        ev.Deleted: "the job is deleted",
    }.get(type(event), type(event).__name__)
