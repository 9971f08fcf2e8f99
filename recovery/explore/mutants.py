"""Faults that the explorer must find: the test of the tester.

A mutant replaces a named seam: a row of the phase table, a measure of the properties, a rule of a small model.
Production has no switch for it; the walk is made over the changed copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recovery import phase_events as ev
from recovery import phase_moves as do
from recovery.explore import actions, holds, requests, wakeups
from recovery.explore.jobs import ALLOWED_BEHIND, SOUND, Judgement
from recovery.lifecycle import ActionState, RequestState
from recovery.phase_state import (
    LIVE_PHASES,
    TERMINAL_PHASES,
    JobState,
    MessagePhase,
    MessageType,
    Phase,
    recover_count_of,
    update,
)
from recovery.phase_table import TABLE, Row

Table = tuple[Row, ...]
COUNTING = ("message.error", "end.counted", "enrol.replaced", "hang.confirmed")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. ``models``: where it must be found; ``broken``: the property that is named then.

    ``table``, ``judgement`` are for the models of jobs, ``rules`` for small ones. ``settings``: what its model is
    made with beyond the setting.
    """

    name: str
    sentence: str
    models: tuple[str, ...]
    broken: str
    table: Callable[[Table], Table] = lambda table: table
    judgement: Judgement = SOUND
    rules: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)


# Seams of the table.


def _changed(ids: Iterable[str], change: Callable[[Row], Row | None]) -> Callable[[Table], Table]:
    """A table with these rows changed, or without them where the change is None. KeyError: no such row."""
    wanted = set(ids)

    def mutate(table: Table) -> Table:
        if missing := wanted - {row.id for row in table}:
            raise KeyError(f"the phase table has no row {', '.join(sorted(missing))}")
        rows = ((change(row) if row.id in wanted else row) for row in table)
        return tuple(row for row in rows if row is not None)

    return mutate


def _without(*ids: str) -> Callable[[Table], Table]:
    return _changed(ids, lambda row: None)


def _both(*changes: Callable[[Table], Table]) -> Callable[[Table], Table]:
    def mutate(table: Table) -> Table:
        for change in changes:
            table = change(table)
        return table

    return mutate


def _effect(row: Row, after: Callable[[JobState, ev.Event, do.Effect], do.Effect]) -> Row:
    return replace(row, effect=lambda state, event: after(state, event, row.effect(state, event)))


def _when(row: Row, also: Callable[[JobState, Any], bool]) -> Row:
    return replace(row, when=lambda state, event: row.when(state, event) and also(state, event))


def _before(place: str, new: Row) -> Callable[[Table], Table]:
    """A table with one more row, right before another."""

    def mutate(table: Table) -> Table:
        n = next(n for n, row in enumerate(table) if row.id == place)
        return (*table[:n], new, *table[n:])

    return mutate


def _row(id_: str) -> Row:
    return next(row for row in TABLE if row.id == id_)


_ENDING = tuple(row.id for row in TABLE if row.to in TERMINAL_PHASES)


def _inner_phases_stay(state: JobState, event: ev.Event, effect: do.Effect) -> do.Effect:
    inner = {worker.key: worker.inner_phase for worker in state.workers}
    workers = tuple(replace(worker, inner_phase=inner[worker.key]) for worker in effect.state.workers)
    return replace(effect, state=replace(effect.state, workers=workers))


def _no_bound(state: JobState, event: Any, effect: do.Effect) -> do.Effect:
    worker = state.worker(event.worker)
    used = worker.retries + 1 if worker else 1
    after = update(effect.state, event.worker, retries=used)
    return replace(effect, state=replace(after, recover_count=used, cause_open=False))


def _no_bound_of_a_worker(state: JobState, event: Any, effect: do.Effect) -> do.Effect:
    effect = _no_bound(state, event, effect)
    return replace(effect, state=replace(effect.state, recover_count=recover_count_of(effect.state)))


_NO_BUDGET = ("auto.over_budget", "auto.restarting_over_budget", "go.held")


def _lower_cap(state: JobState, event: Any, effect: do.Effect) -> do.Effect:
    after = effect.state
    worker = after.worker(event.worker)
    retries = min(worker.retries if worker else 0, after.max_retry)
    after = replace(
        update(after, event.worker, retries=retries), recover_count=min(after.recover_count, after.max_retry)
    )
    return replace(effect, state=after)


def _retries_stay(state: JobState, event: ev.Event, effect: do.Effect) -> do.Effect:
    used = {worker.key: worker.retries for worker in state.workers}
    workers = tuple(replace(worker, retries=used[worker.key]) for worker in effect.state.workers)
    return replace(effect, state=replace(effect.state, workers=workers))


def _only_is_away(state: JobState, event: ev.Event) -> bool:
    return any(worker.restarted or not worker.enrolled for worker in state.present)


def _charged(state: JobState, event: Any, effect: do.Effect) -> do.Effect:
    """The effect, and a count."""
    return do.then(do.charge(state, event.worker, "mutant"), lambda _: _carry(effect, event))


def _carry(effect: do.Effect, event: Any) -> do.Effect:
    """What an effect did, with one more retry of the worker: the charge came before it."""
    worker = effect.state.worker(event.worker)
    retries = min((worker.retries if worker else 0) + 1, effect.state.max_retry + 1)
    after = update(effect.state, event.worker, retries=retries)
    return replace(effect, state=replace(after, recover_count=recover_count_of(after)))


def _one_number_lower(state: JobState, event: ev.Event, effect: do.Effect) -> do.Effect:
    return replace(effect, state=replace(effect.state, sequence=state.sequence))


def _noted_too_high(state: JobState, event: Any, effect: do.Effect) -> do.Effect:
    after = effect.state
    return replace(effect, state=update(after, event.worker, last_sequence=after.sequence + 1))


def _checked_again(state: JobState, event: Any, effect: do.Effect) -> do.Effect:
    """A replaced one that passed is told to check its machine once more."""
    if state.phase is not Phase.RESTARTING:
        return effect
    after = update(
        effect.state, event.worker, restarted=True, handled=frozenset(), inner_phase=Phase.BOOT_CHECKING
    )
    return replace(effect, state=after)


def _is_error_of_command(state: JobState, event: ev.Message) -> bool:
    return event.type is MessageType.ERROR and event.phase is MessagePhase.COMMAND


def _is_of_attempt(state: JobState, event: ev.Message) -> bool:
    return _is_error_of_command(state, event) and event.sequence == state.attempt_sequence > 0


def _no_order(state: JobState, event: ev.Event, effect: do.Effect) -> do.Effect:
    """Nothing is ordered: the worker is there, and is not told to check its machine."""
    last = {worker.key: worker.last_sequence for worker in state.workers}
    workers = tuple(
        replace(worker, last_sequence=last[worker.key], inner_phase=Phase.PENDING)
        if worker.key == getattr(event, "worker", None)
        else worker
        for worker in effect.state.workers
    )
    return do.Effect(replace(effect.state, workers=workers, sequence=state.sequence), (), effect.count)


_ERROR = _row("message.error")

_JOBS = ("processes", "channels")
_PROCESSES = ("processes",)

_OF_JOBS = (
    Mutant(
        "terminal-inner-phases-forgotten", "the end of a run leaves its workers where they were", _JOBS,
        "valid_inner_phase",
        table=_changed(_ENDING, lambda row: _effect(row, _inner_phases_stay)),
    ),
    Mutant(
        "inner-phases-without-terminal", "the tester's set of inner phases lacks the terminal ones", _JOBS,
        "valid_inner_phase", judgement=Judgement(inner_phases=LIVE_PHASES),
    ),
    Mutant(
        "troubleshooting-unknown", "the tester does not know a phase that the job may be in", _JOBS,
        "valid_phase",
        judgement=Judgement(behind={phase: allowed for phase, allowed in ALLOWED_BEHIND.items()
                                    if phase is not Phase.TROUBLESHOOTING}),
    ),
    Mutant(
        "consistency-too-strict", "the tester allows nobody to be behind while a job restarts", _JOBS,
        "consistency",
        judgement=Judgement(behind={**ALLOWED_BEHIND, Phase.RESTARTING: frozenset({Phase.RESTARTING})}),
    ),
    Mutant(
        "unbounded-count", "failures are added up without a cap, and nobody looks at the budget", _PROCESSES,
        "recover_count_bound",
        table=_both(_changed(COUNTING, lambda row: _effect(row, _no_bound)), _without(*_NO_BUDGET)),
        judgement=Judgement(knows_spent=False),
        settings={"workers": 1, "max_retry": 2},
    ),
    Mutant(
        "unbounded-retries", "a worker's failures are added up without a cap, the job's count is not", _PROCESSES,
        "retries_bound",
        table=_both(
            _changed(COUNTING, lambda row: _effect(row, _no_bound_of_a_worker)), _without(*_NO_BUDGET)
        ),
        judgement=Judgement(knows_spent=False),
        settings={"workers": 1, "max_retry": 2},
    ),
    Mutant(
        "late-finish-refused", "a Pending worker's late Finish is refused", _JOBS,
        "late_finish_allowed", table=_without("message.finish_late"),
    ),
    Mutant(
        "lower-cap-before-aligning", "counts are capped at max retry, so that aligning erases the excess", _JOBS,
        "count_kept", table=_changed(COUNTING, lambda row: _effect(row, _lower_cap)),
    ),
    Mutant(
        "second-witness-counts", "an Error that comes after the job left RunCommand counts once more", _JOBS,
        "counted_once",
        table=_before(
            "message.older",
            replace(
                _ERROR, id="mutant.second_witness", phases=frozenset({Phase.RESTARTING, Phase.TROUBLESHOOTING}),
                when=_is_of_attempt, effect=lambda state, event: do.charge(state, event.worker, "mutant"),
            ),
        ),
    ),
    Mutant(
        "late-witness-counts", "an Error of an attempt that is over counts in the next one", _JOBS,
        "counted_once",
        table=_changed(
            ("message.older",),
            lambda row: _when(row, lambda state, event: not _is_error_of_command(state, event)),
        ),
    ),
    Mutant(
        "alignment-forgotten", "all start together, each with its own retries", _JOBS,
        "aligned_start", table=_changed(("go",), lambda row: _effect(row, _retries_stay)),
        settings={"workers": 2, "max_retry": 1},
    ),
    Mutant(
        "must-exit-ignored", "all start together while one is about to leave", _JOBS,
        "leaver_never_starts",
        table=_changed(("go.incomplete",), lambda row: replace(row, when=_only_is_away)),
    ),
    Mutant(
        "recovery-punished", "a death during the recovery counts", _JOBS,
        "counted_in_run",
        table=_changed(("end.again",), lambda row: _effect(row, _charged)),
    ),
    Mutant(
        "preemption-counts", "an end counts whatever its cause", _PROCESSES,
        "counted_by_cause",
        table=_changed(("end.not_counted",), lambda row: _effect(row, _charged)),
    ),
    Mutant(
        "suspicion-counts", "a suspected hang counts", _PROCESSES, "counted_once",
        table=_changed(("hang_suspected.flagged",), lambda row: _effect(row, _charged)),
    ),
    Mutant(
        "late-cause-ignored", "a preemption that is told late leaves the count as it is", _PROCESSES,
        "late_cause_taken_back",
        table=_without("cause.taken_back", "cause.taken_back_later"),
        settings={"late_causes": True},
    ),
    Mutant(
        "held-job-goes", "a job that is over budget starts while it is open whether that counts", _PROCESSES,
        "over_budget_fails", table=_without("go.held"),
    ),
    Mutant(
        "terminal-left", "a container that ends wakes up a run that is over", _JOBS,
        "terminal_stays",
        table=_both(
            _without("end.over"),
            _changed(("end.in_recovery",), lambda row: replace(row, phases=row.phases | TERMINAL_PHASES)),
        ),
    ),
    Mutant(
        "number-goes-down", "a stop is ordered under the number of the order set before it", _JOBS,
        "sequence_monotonic",
        table=_changed(("message.error",), lambda row: _effect(row, _one_number_lower)),
    ),
    Mutant(
        "number-noted-too-high", "a worker that enrolls is noted with the number that the next order set will have",
        _JOBS, "worker_sequence_bound",
        table=_changed(("enrol.first",), lambda row: _effect(row, _noted_too_high)),
    ),
    Mutant(
        "future-believed", "a message of an order set that was never given is taken", _PROCESSES,
        "future_refused", table=_without("message.future"),
    ),
    Mutant(
        "stale-finish-taken", "a Finish of an older order set is taken", _JOBS,
        "stale_finish_refused",
        table=_changed(
            ("message.older",),
            lambda row: _when(row, lambda state, event: event.type is not MessageType.FINISH),
        ),
    ),
    Mutant(
        "finish-taken-twice", "a repeated Finish is handled again", _JOBS,
        "finish_once", table=_without("message.duplicate"), settings={"workers": 2, "max_retry": 1},
    ),
    Mutant(
        "replacement-not-checked", "a replaced worker is never told to check its machine", _JOBS,
        "trains_or_ends",
        table=_changed(("enrol.returned",), lambda row: _effect(row, _no_order)),
        settings={"workers": 1, "max_retry": 1},
    ),
    Mutant(
        "checked-again-and-again", "a replaced worker that passed is checked once more, for ever", _PROCESSES,
        "trains_or_ends",
        table=_changed(("message.boot_checked",), lambda row: _effect(row, _checked_again)),
        settings={"workers": 1, "max_retry": 1},
    ),
)  # fmt: skip

_OF_SMALL_MODELS = (
    Mutant(
        "claimed-after-cancel", "a claim does not look whether somebody asked to cancel", ("actions",),
        "no_claim_after_cancel",
        rules=actions.Rules(
            may_claim=lambda row: row.state is ActionState.READY and row.is_incident_open
        ),
    ),
    Mutant(
        "harmful-repeated", "a harmful action whose lease ran out is tried again", ("actions",),
        "harmful_once", rules=actions.Rules(after_lapse=lambda rule: ActionState.READY),
        settings={"harmful": True},
    ),
    Mutant(
        "unknown-repeated", "a harmful action that was not seen by its deadline is tried again", ("actions",),
        "harmful_once", rules=actions.Rules(after_deadline=lambda rule: ActionState.READY),
        settings={"harmful": True},
    ),
    Mutant(
        "unfenced", "a try whose lease ran out writes its outcome over that of a newer one", ("actions",),
        "fenced", rules=actions.Rules(may_finish=lambda row, executor: True),
    ),
    Mutant(
        "no-precondition", "a send names nothing that it read before", ("actions",),
        "safe_once", rules=actions.Rules(has_precondition=False),
    ),
    Mutant(
        "closed-over-an-action", "an incident closes while its action runs", ("actions",),
        "close_waits", rules=actions.Rules(may_close=lambda row: True),
    ),
    Mutant(
        "back-to-planned", "what was not seen by its deadline is planned anew", ("actions",),
        "table", rules=actions.Rules(after_deadline=lambda rule: ActionState.PLANNED),
    ),
    Mutant(
        "lapsed-not-found", "nobody looks for actions whose executor has died", ("actions",),
        "ends", rules=actions.Rules(finds_lapsed=False),
    ),
    Mutant(
        "lock-passed-over", "a worker decides a subject that another holds", ("wakeups",),
        "one_writer", rules=wakeups.Rules(locks=False),
    ),
    Mutant(
        "read-before-lock", "what is undecided is read before the subject is locked", ("wakeups",),
        "decided_once", rules=wakeups.Rules(reads_under_lock=False),
    ),
    Mutant(
        "no-second-look", "the holder leaves after its commit without looking once more", ("wakeups",),
        "no_wake_lost", rules=wakeups.Rules(looks_again=False),
    ),
    Mutant(
        "look-before-commit", "the holder looks once more while it still holds the lock", ("wakeups",),
        "no_wake_lost", rules=wakeups.Rules(looks_before_commit=True),
    ),
    Mutant(
        "insert-hides-subject", "the lock conflicts with the open insert of another report", ("wakeups",),
        "no_wake_lost", rules=wakeups.Rules(insert_hides=True),
    ),
    Mutant(
        "no-tick", "nobody looks for what is undecided when wakes are lost", ("wakeups",),
        "no_wake_lost", rules=wakeups.Rules(has_tick=False), settings={"faults": True},
    ),
    Mutant(
        "requester-counts", "who asked may say yes, too", ("requests",), "needed_yeses",
        rules=requests.Rules(may_vote=lambda person: True),
    ),
    Mutant(
        "late-yes-taken", "only the tick looks whether the time has passed", ("requests",),
        "none_after_expiry", rules=requests.Rules(takes_late=True),
    ),
    Mutant(
        "old-yeses-kept", "evidence that changed leaves the yeses as they are", ("requests",),
        "needed_yeses", rules=requests.Rules(after_change=lambda case: case),
    ),
    Mutant(
        "no-recheck", "it is carried out without looking whether it is still so", ("requests",),
        "rechecked", rules=requests.Rules(rechecks=False),
    ),
    Mutant(
        "denied-by-change", "evidence that changes denies what was approved", ("requests",),
        "table",
        rules=requests.Rules(after_change=lambda case: case._replace(state=RequestState.DENIED)),
    ),
    Mutant(
        "time-not-noted", "nobody notes that the time of a request is over", ("requests",),
        "ends", rules=requests.Rules(has_tick=False),
    ),
    Mutant(
        "guard-read-first", "the limit is compared before the counter is locked", ("holds",),
        "limit", rules=holds.Rules(checks_while_locked=False),
    ),
    Mutant(
        "guards-in-any-order", "some decisions reserve their guards in another order", ("holds",),
        "decisions_end",
        rules=holds.Rules(guards_of=lambda place: holds.guards_of(place)[:: -1 if place else 1]),
    ),
    Mutant(
        "release-waits-for-room", "a release is held back by a full guard", ("holds",),
        "release_never_blocked", rules=holds.Rules(release_waits=True),
    ),
    Mutant(
        "release-uncordons-others", "a release takes away somebody else's cordon, too", ("holds",),
        "none_on_isolated", rules=holds.Rules(release_uncordons_others=True),
    ),
    Mutant(
        "nothing-given-back", "a release leaves the counters as they are", ("holds",),
        "counters_true", rules=holds.Rules(gives_back=False),
    ),
    Mutant(
        "isolated-takes-worker", "a worker is placed on an isolated machine", ("holds",),
        "none_on_isolated", rules=holds.Rules(may_place=lambda machine: True),
    ),
    Mutant(
        "slow-evicted-at-once", "a slow machine is left whenever it is found", ("holds",),
        "slow_leaves_cheaply", rules=holds.Rules(may_evict=lambda since: True),
    ),
)  # fmt: skip

MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for mutant in (*_OF_JOBS, *_OF_SMALL_MODELS)}
