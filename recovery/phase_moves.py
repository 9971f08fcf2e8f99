"""What a row of the phase table does to the state: pure functions, put together in recovery.phase_table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from recovery import phase_events as ev
from recovery.phase_state import (
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    WorkerState,
    recover_count_of,
    update,
    update_each,
)
from recovery.signals import EndCause, OnlyWitness, WorkerKey

WAITING_FOR_CAPACITY = "waiting for capacity"
QUEUED = "queued"


class OrderKind(StrEnum):
    """What an order set asks for."""

    CHECK = "check"  # boot check
    RUN = "run"  # start the training command
    STOP = "stop"  # stop training, run the quick checks beside it
    EXIT = "exit"  # stop everything and leave the container
    FINISH = "finish"  # all workers finished: leave with 0

    @property
    def phase(self) -> MessagePhase:
        """The wire phase that carries it."""
        return _ORDER_PHASES[self]


_ORDER_PHASES = {
    OrderKind.CHECK: MessagePhase.BOOTCHECK,
    OrderKind.RUN: MessagePhase.COMMAND,
    OrderKind.STOP: MessagePhase.TROUBLESHOOT,
    OrderKind.EXIT: MessagePhase.TROUBLESHOOT,
    OrderKind.FINISH: MessagePhase.TROUBLESHOOT,
}


@dataclass(frozen=True, slots=True)
class Order:
    """An order set to be written. ``targets`` None = every worker."""

    sequence: int
    kind: OrderKind
    targets: tuple[WorkerKey, ...] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """A failure that counts; ``would``: it would, if anybody obeyed. ``witness`` None = its cause is known."""

    attempt: int
    worker: WorkerKey
    cause: str
    would: bool = False
    witness: OnlyWitness | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """State after, and what else follows."""

    state: JobState
    orders: tuple[Order, ...] = ()
    count: Count | None = None


Picker = Callable[[WorkerState], bool]


def is_worker(key: WorkerKey) -> Picker:
    """Picks the worker at this place."""
    return lambda worker: worker.key == key


def give_order(state: JobState, kind: OrderKind, to: Picker, reason: str = "") -> Effect:
    """A new order set for the reachable workers that ``to`` picks; nothing when nobody obeys or hears it."""
    hearers = tuple(worker.key for worker in state.workers if worker.is_reachable and to(worker))
    if not hearers or not state.protected:
        return Effect(state)
    sequence = state.sequence + 1
    state = replace(state, sequence=sequence)
    state = update_each(
        state, lambda worker: worker.key in hearers, last_sequence=sequence, handled=frozenset()
    )
    targets = None if len(hearers) == len(state.workers) else hearers
    return Effect(state, (Order(sequence, kind, targets, reason),))


def then(effect: Effect, move: Callable[[JobState], Effect]) -> Effect:
    """One effect after another."""
    following = move(effect.state)
    return Effect(following.state, effect.orders + following.orders, effect.count or following.count)


def everyone(worker: WorkerState) -> bool:
    """Picks all."""
    return True


# Entering a phase.


def enter(state: JobState, phase: Phase) -> JobState:
    """The job in another phase; why it waited is over."""
    return replace(state, phase=phase, reason="")


def enter_boot_checking(state: JobState) -> Effect:
    """Every worker checks its machine."""
    state = update_each(
        enter(state, Phase.BOOT_CHECKING),
        lambda worker: worker.is_present,
        inner_phase=Phase.BOOT_CHECKING,
        restarted=False,
        must_exit=False,
    )
    return give_order(state, OrderKind.CHECK, everyone)


def enter_run_command(state: JobState) -> Effect:
    """All start together: a new attempt, and every worker's retries become the recover count."""
    state = replace(enter(state, Phase.RUN_COMMAND), attempt=state.attempt + 1, cause_open=False)
    state = update_each(
        state,
        lambda worker: worker.is_present,
        inner_phase=Phase.RUN_COMMAND,
        finished=False,
        restarted=False,
        must_exit=False,
        handled=frozenset(),
    )
    state = update_each(state, lambda worker: not worker.retired, retries=state.recover_count)
    ordered = give_order(state, OrderKind.RUN, everyone)
    return replace(ordered, state=replace(ordered.state, attempt_sequence=ordered.state.sequence))


def enter_troubleshooting(state: JobState) -> Effect:
    """Training stops on all workers first; quick checks run beside the stop."""
    state = update_each(
        enter(state, Phase.TROUBLESHOOTING),
        lambda worker: worker.is_present,
        inner_phase=Phase.TROUBLESHOOTING,
        restarted=False,
    )
    return give_order(state, OrderKind.STOP, everyone)


def enter_terminal(state: JobState, phase: Phase) -> JobState:
    """The run is over."""
    state = replace(enter(state, phase), quit_due=False, cause_open=False)
    return update_each(state, lambda worker: not worker.retired, inner_phase=phase, must_exit=False)


def succeed(state: JobState) -> Effect:
    """All finished: they may leave their containers."""
    return give_order(enter_terminal(state, Phase.SUCCEEDED), OrderKind.FINISH, everyone)


def fail_over_budget(state: JobState) -> Effect:
    """No replacement is asked for any more."""
    state = enter_terminal(state, Phase.FAILED)
    return Effect(replace(state, recover_count=state.max_retry + 1))


def stop(state: JobState) -> Effect:
    """Stopped by a request: whoever trains stops."""
    return give_order(enter_terminal(state, Phase.STOPPED), OrderKind.STOP, everyone)


def stop_seen(state: JobState) -> Effect:
    """Stopped by the controller, which takes the pods down itself."""
    return Effect(enter_terminal(state, Phase.STOPPED))


# Failures.


def charge(state: JobState, key: WorkerKey, cause: str, witness: OnlyWitness | None = None) -> Effect:
    """Count one failure of the present attempt; where nobody obeys it is only said."""
    if not state.protected:
        return Effect(
            update(state, key, last_failure_reason=cause),
            count=Count(state.attempt, key, cause, would=True, witness=witness),
        )
    worker = state.worker(key)
    used = worker.retries if worker else 0
    # Over budget is over budget: a limit that was lowered meanwhile must not let the number grow for ever.
    retries = max(used, min(used + 1, state.max_retry + 1))
    state = update(state, key, retries=retries, last_failure_reason=cause)
    state = replace(state, recover_count=recover_count_of(state), cause_open=witness is not None)
    return Effect(state, count=Count(state.attempt, key, cause, witness=witness))


def is_charged(worker: WorkerState, state: JobState) -> bool:
    """Whether the present attempt's failure was counted against this worker: all others began it alike."""
    others = [other.retries for other in state.active if other.key != worker.key]
    return not worker.retired and worker.retries > max(others, default=0)


def settle_cause(state: JobState, event: ev.CauseKnown) -> Effect:
    """The cause of the attempt that ended last is not waited for any longer."""
    return Effect(replace(state, cause_open=state.cause_open and event.attempt != state.attempt))


def take_back(state: JobState, event: ev.CauseKnown) -> Effect:
    """The charge of the attempt that ended last never was one."""
    worker = state.worker(event.worker)
    used = worker.retries if worker else 1
    state = update(state, event.worker, retries=used - 1, last_failure_reason="")
    return Effect(replace(state, cause_open=False, recover_count=recover_count_of(state)))


def take_back_aligned(state: JobState, event: ev.CauseKnown) -> Effect:
    """All have started together since, with the charge in everyone's retries: it leaves everyone's."""
    workers = tuple(
        worker if worker.retired else replace(worker, retries=max(0, worker.retries - 1))
        for worker in state.workers
    )
    state = replace(state, workers=workers)
    return Effect(replace(state, recover_count=recover_count_of(state)))


def lose_incarnation(state: JobState, key: WorkerKey) -> JobState:
    """Only this worker is reset; its place waits for the next incarnation."""
    return update(
        state,
        key,
        inner_phase=Phase.PENDING,
        enrolled=False,
        restarted=True,
        must_exit=False,
        departed=False,
        handled=frozenset(),
    )


def has_passed_boot_check(worker: WorkerState) -> bool:
    """Whether its newest order set was a boot check that it has answered."""
    return worker.has_answered(MessageType.ACK, MessagePhase.BOOTCHECK) and not worker.must_exit


def is_unchecked(worker: WorkerState) -> bool:
    """Whether it is there and has still to pass a boot check."""
    return worker.is_present and not has_passed_boot_check(worker)


def begin_restarting(state: JobState, key: WorkerKey) -> Effect:
    """Leave the phase because the incarnation at ``key`` is over.

    Survivors stop training, or go on with a boot check that they have not passed yet.
    """

    def others(worker: WorkerState) -> bool:
        return worker.key != key and worker.is_present

    before = state.phase
    state = lose_incarnation(enter(state, Phase.RESTARTING), key)
    if before is Phase.RUN_COMMAND:
        return give_order(state, OrderKind.STOP, others)
    if before is Phase.BOOT_CHECKING:
        return Effect(update_each(state, is_unchecked, restarted=True))
    if before is Phase.PENDING:
        state = update_each(state, others, restarted=True)
        state = update_each(
            state, lambda worker: others(worker) and worker.enrolled, inner_phase=Phase.BOOT_CHECKING
        )
        return give_order(state, OrderKind.CHECK, others)
    return Effect(state)


def end_incarnation(state: JobState, event: ev.IncarnationEnded) -> Effect:
    """An incarnation of the present attempt ended while training: by cause it counts, or not."""
    worker = state.worker(event.worker)
    ordered = event.by_desk or (worker is not None and worker.must_exit)
    if event.in_attempt and event.cause.counts and not ordered:
        witness = OnlyWitness.SUCCESSOR if event.cause is EndCause.REPLACED else None
        return then(
            charge(state, event.worker, str(event.cause), witness),
            lambda state: begin_restarting(state, event.worker),
        )
    return begin_restarting(state, event.worker)


def lose_again(state: JobState, event: ev.IncarnationEnded) -> Effect:
    """Another incarnation ended during the recovery: not punished twice."""
    return Effect(lose_incarnation(state, event.worker))


def leave_finished(state: JobState, event: ev.IncarnationEnded) -> Effect:
    """A finished worker's container is gone: it is not missed unless a restart needs it."""
    return Effect(update(state, event.worker, finished=True, departed=True, enrolled=False))


def take_error(state: JobState, event: ev.Message) -> Effect:
    """A process of the present attempt ended in error; its agent lives."""
    witness = OnlyWitness.SYMPTOM if event.is_symptom else None
    return then(charge(state, event.worker, event.reason or "process_error", witness), enter_troubleshooting)


def take_hang(state: JobState, event: ev.HangConfirmed) -> Effect:
    """A confirmed hang counts once."""
    return then(charge(state, event.worker, "hang"), enter_troubleshooting)


# Messages.


def mark_handled(state: JobState, event: ev.Message) -> JobState:
    """The state in which this message was handled once."""
    worker = state.worker(event.worker)
    handled = worker.handled if worker else frozenset()
    return update(state, event.worker, handled=handled | {(event.type, event.phase)})


def note_message(state: JobState, event: ev.Message) -> Effect:
    """An answer is in; nothing else changes."""
    return Effect(mark_handled(state, event))


def note_finish(state: JobState, event: ev.Message) -> Effect:
    """The command of one worker ended with 0."""
    return Effect(update(mark_handled(state, event), event.worker, finished=True))


def note_boot_check(state: JobState, event: ev.Message) -> Effect:
    """A worker passed its boot check; a replaced one is back with that."""
    state = mark_handled(state, event)
    if state.phase is Phase.RESTARTING:
        state = update(state, event.worker, restarted=False, inner_phase=Phase.RESTARTING)
    return Effect(state)


def send_away(state: JobState, event: ev.Message) -> Effect:
    """This worker must leave its machine: it exits, and its controller places it anew."""
    state = update(mark_handled(state, event), event.worker, must_exit=True)
    return give_order(state, OrderKind.EXIT, is_worker(event.worker), event.reason or "a check failed")


# Enrolment.


def enrol(state: JobState, event: ev.Enrolled) -> Effect:
    """A first or returning worker is there."""
    return Effect(update(state, event.worker, enrolled=True, departed=False))


def enrol_replaced(state: JobState, event: ev.Enrolled) -> Effect:
    """A replaced worker is back and checks its machine before it may train again."""
    state = update(
        state,
        event.worker,
        enrolled=True,
        departed=False,
        restarted=True,
        must_exit=False,
        inner_phase=Phase.BOOT_CHECKING if state.protected else Phase.PENDING,
    )
    return give_order(state, OrderKind.CHECK, is_worker(event.worker))


def replace_incarnation(state: JobState, event: ev.Enrolled) -> Effect:
    """The enrolment of a newer agent is the first that we hear of the old one's end."""
    if state.phase is Phase.RUN_COMMAND:
        ended = ev.IncarnationEnded(event.worker, EndCause.REPLACED, by_desk=event.by_desk)
        effect = end_incarnation(state, ended)
    elif state.phase is Phase.RESTARTING:
        effect = Effect(lose_incarnation(state, event.worker))
    else:
        effect = begin_restarting(state, event.worker)
    return then(effect, lambda state: enrol_replaced(state, event))


# The rest.


def wait_for_capacity(state: JobState, event: ev.CapacityMissing) -> Effect:
    """Stays, and says what it waits for."""
    reason = f"{WAITING_FOR_CAPACITY}: {event.reason}" if event.reason else WAITING_FOR_CAPACITY
    return Effect(replace(state, reason=reason))


def queue(state: JobState, event: ev.JobKnown) -> Effect:
    """It waits to be admitted."""
    return Effect(replace(state, reason=QUEUED))


def ask_for_stop(state: JobState, event: ev.Quit) -> Effect:
    """A stop is due, at the safe point."""
    return Effect(replace(state, quit_due=True))


def clear_reason(state: JobState, event: ev.Event) -> Effect:
    """Nothing is waited for any more."""
    return Effect(replace(state, reason=""))


def begin_run(state: JobState, event: ev.Resumed) -> Effect:
    """A new run of the same object. A stop keeps the recover count, a failure had used it up.

    Not what is over the budget: the job was stopped before it was known whether that counts, and would be failed
    by the next preemption.
    """
    recover_count = min(state.recover_count, state.max_retry) if state.phase is Phase.STOPPED else 0
    state = replace(
        enter(state, Phase.PENDING),
        run=state.run + 1,
        recover_count=recover_count,
        attempt_sequence=0,
        protected=state.protected or state.protection_due,
        protection_due=False,
    )
    return Effect(
        update_each(
            state,
            lambda worker: not worker.retired,
            inner_phase=Phase.PENDING,
            enrolled=False,
            finished=False,
            departed=False,
            restarted=False,
            must_exit=False,
            handled=frozenset(),
            retries=recover_count,
        )
    )


def change_max_retry(state: JobState, event: ev.MaxRetryChanged) -> Effect:
    """The limit moves; what was used stays with the workers."""
    state = replace(state, max_retry=max(0, event.max_retry))
    if state.is_terminal:
        return Effect(replace(state, recover_count=min(state.recover_count, state.max_retry + 1)))
    return Effect(replace(state, recover_count=recover_count_of(state)))


def has_new_places(state: JobState, event: ev.WorldChanged) -> bool:
    """Whether the world has places that it did not have before."""
    return bool(set(event.workers) - {worker.key for worker in state.active})


def change_world(state: JobState, event: ev.WorldChanged) -> Effect:
    """Places outside the present world retire; new ones start at the recover count."""
    before = state.phase
    known = {worker.key: worker for worker in state.workers}
    fresh = set(event.workers) - {worker.key for worker in state.active}
    inner = before if state.is_terminal else Phase.PENDING
    workers = [replace(worker, retired=worker.key not in event.workers) for worker in state.workers]
    workers = [worker for worker in workers if worker.key not in fresh]
    for key in fresh:
        workers.append(
            WorkerState(
                key,
                inner_phase=inner,
                retries=state.recover_count,
                restarted=before is not Phase.PENDING and not state.is_terminal,
                last_sequence=known[key].last_sequence if key in known else 0,
            )
        )
    state = replace(state, workers=tuple(sorted(workers, key=lambda worker: worker.key)))
    if not state.is_terminal:
        state = replace(state, recover_count=recover_count_of(state))
    if not fresh or before in {Phase.PENDING, Phase.RESTARTING} or state.is_terminal:
        return Effect(state)
    state = enter(state, Phase.RESTARTING)
    if before is Phase.RUN_COMMAND:
        return give_order(state, OrderKind.STOP, lambda worker: worker.key not in fresh)
    if before is Phase.BOOT_CHECKING:
        state = update_each(state, is_unchecked, restarted=True)
    return Effect(state)


def protect(state: JobState, event: ev.Protection) -> Effect:
    """Agents obey from now on."""
    return Effect(replace(state, protected=True, protection_due=False))


def protect_later(state: JobState, event: ev.Protection) -> Effect:
    """Agents obey from the next start on."""
    return Effect(replace(state, protection_due=True))


def unprotect(state: JobState, event: ev.Protection) -> Effect:
    """Nobody obeys from now on."""
    return Effect(replace(state, protected=False, protection_due=False, quit_due=False))


def give_up_protection(state: JobState, event: ev.BarrierExpired) -> Effect:
    """Training must not wait for us: all start by themselves, protected again from the next start on."""
    return enter_run_command(replace(state, protected=False, protection_due=True))


def rearm(state: JobState) -> Effect:
    """Every worker started anew and is there: the next start is a protected one."""
    return enter_boot_checking(replace(state, protected=True, protection_due=False))
