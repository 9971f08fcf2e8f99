"""What a decision's own options cost, from what its state knows. None where that is not enough.

Known must be: GPUs of the job, the time of a step, and the step that was reached. How long a restart takes is read from
the job's own starts; where there are none it is assumed, and said to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from recovery.draft import Draft
from recovery.figures import Basis, Figure, assumed, estimated, measured, modelled, quantile, weakest
from recovery.lifecycle import ActionKind
from recovery.prices import (
    Hang,
    Price,
    PricedChoice,
    Room,
    SlowNode,
    price_hang,
    price_slow_node,
    restart_price,
)
from recovery.records import AttemptView, CheckpointView, IncarnationView, PastAttempt

#: From the order to start until the last first step, where the job has no start of its own to go by: the
#: state's restore and the first step of an elastic run that was measured took 18 s together.
ASSUMED_START_SECONDS = 18.0
#: How long a new container takes to be back, where nobody has measured it: the same run waited 50 s.
ASSUMED_CONTAINER_SECONDS = 50.0
#: The chance that a suspected standstill is a hang, as long as there is no record of such suspicions.
ASSUMED_HANG_CHANCE = 0.5
#: A suspicion counts as confirmed after so many times its own allowance.
CONFIRM_AFTER_ALLOWANCES = 2.0
NEWEST_STARTS = 5
#: A checkpoint that far away is none that a job waits for: the steps that were told make no sense.
FARTHEST_CHECKPOINT_SECONDS = 365 * 86_400.0


def step_seconds(attempt: AttemptView | None, lives: Iterable[IncarnationView]) -> Figure | None:
    """Time of a step: the attempt's, else the median of what its workers tell; None = nobody does."""
    if attempt is not None and attempt.step_seconds:
        return measured(attempt.step_seconds, "this attempt")
    told = sorted(life.step_seconds for life in lives if life.is_current and life.step_seconds)
    return measured(quantile(told, 0.5), f"median of {len(told)} workers") if told else None


def steps_lost(reached: int, newest: CheckpointView | None) -> Figure:
    """Steps since the newest committed checkpoint. Without one the job begins anew, as far as anybody knows."""
    if newest is None:
        return assumed(float(reached), "no committed checkpoint is known")
    return measured(float(max(0, reached - newest.step)), f"checkpoint at step {newest.step}")


def start_seconds(attempt: AttemptView | None, past: Iterable[PastAttempt]) -> Figure:
    """From the order to start until the last first step: the median of the newest starts of this job.

    The very first start compiles and loads more than a restart does, so it counts only while it is alone.
    """
    starts = [(each.n, each.started_at, each.first_step_at) for each in past]
    if attempt is not None:
        starts.append((attempt.n, attempt.started_at, attempt.first_step_at))
    taken = {
        n: (first_step_at - started_at).total_seconds()
        for n, started_at, first_step_at in starts
        if first_step_at is not None and first_step_at >= started_at
    }
    again = {n: seconds for n, seconds in taken.items() if n > 1} or taken
    newest = sorted(seconds for _, seconds in sorted(again.items())[-NEWEST_STARTS:])
    if not newest:
        return assumed(ASSUMED_START_SECONDS, "no start of this job has been measured")
    return Figure(
        quantile(newest, 0.5),
        Basis.ESTIMATED,
        f"median of {len(newest)} start{'s' if len(newest) > 1 else ''} of this job",
    )


def price_restart(
    *, gpus: int, lost: Figure | None, step: Figure | None, start: Figure, wait_seconds: float, why: str
) -> PricedChoice | None:
    """A restart in place beside the next rung, a new container for it. None while steps or their time are not known.

    Args:
        gpus: Of the whole job; 0 = not known.
        wait_seconds: Back-off before the restart.
        why: The ladder's reason; the price does not overrule evidence.
    """
    if gpus <= 0 or lost is None or step is None:
        return None

    def price(option: ActionKind, seconds: Figure) -> Price:
        return restart_price(
            gpus=gpus, steps_lost=lost, step_seconds=step, restart_seconds=seconds, wait_seconds=wait_seconds,
            option=str(option),
        )  # fmt: skip

    container = assumed(start.value + ASSUMED_CONTAINER_SECONDS, "start, and a new container")
    in_place = price(ActionKind.RESTART_PROCESS, start)
    return PricedChoice(in_place.option, why, (in_place, price(ActionKind.RESTART_CONTAINER, container)))


def price_standstill(
    *,
    gpus: int,
    lost: Figure | None,
    step: Figure | None,
    start: Figure,
    still_seconds: object,
    allowed_seconds: object,
    judged_as: str,
    now: datetime,
) -> PricedChoice | None:
    """A suspected hang: stop and restart now, or wait until it is confirmed. None while that cannot be priced.

    Args:
        still_seconds: Without progress, as the agent tells; what is no number cannot be priced.
        allowed_seconds: What the stage of training allows.
        judged_as: That stage.
    """
    still, allowed = _seconds(still_seconds), _seconds(allowed_seconds)
    if gpus <= 0 or lost is None or step is None or still is None or allowed is None:
        return None
    progress = Figure(lost.value * step.value, lost.basis, lost.source)
    hang = Hang(
        gpus=gpus,
        since_checkpoint_seconds=progress,
        restart_seconds=start,
        still_seconds=measured(still),
        confirm_after_seconds=assumed(CONFIRM_AFTER_ALLOWANCES * allowed),
        hang_chance=assumed(ASSUMED_HANG_CHANCE),
        judged_as=judged_as or "step",
    )
    return price_hang(hang, now)


def steps_to_checkpoint(reached: int, committed: Iterable[int]) -> Figure | None:
    """Steps until the next checkpoint is committed, if they come as far apart as the newest ones did.

    One that is overdue may be as far away as any other. None while fewer than two are known.
    """
    steps = sorted(set(committed))
    gaps = sorted(float(later - earlier) for earlier, later in pairwise(steps))
    if not gaps:
        return None
    interval = quantile(gaps, 0.5)
    left = steps[-1] + interval - reached
    if left <= 0:
        return assumed(interval, "the next one is overdue")
    return estimated(left, f"they came {interval:g} steps apart")


def price_slow_machine(
    *,
    gpus: int,
    reached: int | None,
    checkpoints: Iterable[CheckpointView],
    step: Figure | None,
    start: Figure,
    slowdown: Figure | None,
    seen: int,
    looked: int,
    needed: int,
    room: Room | None,
    now: datetime,
) -> tuple[PricedChoice | None, str]:
    """A slow machine: evict its worker now, or at the next safe point. (None, what is not known) where it is not.

    Args:
        gpus: Of the whole job; 0 = not known.
        reached: The step that training has reached.
        step: Time of a step at the present, slow pace.
        slowdown: The share of the job's time that the machine costs, in [0, 1].
        seen: So many of the last ``looked`` comparisons found it slow; ``needed`` of them confirm it.
        room: For its workers elsewhere.
    """
    committed = [point for point in checkpoints if point.state in {"committed", "verified"}]
    if gpus <= 0:
        return None, "how many GPUs the job holds is not known"
    if slowdown is None:
        return None, "how much time it costs the job is not told: that takes its step time beside its peers'"
    if step is None or reached is None:
        return None, "the job's steps are not known"
    left = steps_to_checkpoint(reached, (point.step for point in committed))
    if left is None:
        return None, "when the next checkpoint comes is not known before two are committed"
    to_checkpoint = Figure(left.value * step.value, weakest(left.basis, step.basis), left.source)
    if to_checkpoint.value > FARTHEST_CHECKPOINT_SECONDS:
        return None, "the next checkpoint would come in more than a year, by those that were told"
    newest = max(committed, key=lambda point: (point.step, point.at))
    lost = steps_lost(reached, newest)
    share = min(1.0, max(0.0, slowdown.value))
    # What an eviction throws away is computed again at the pace of a job without the slow machine.
    again = Figure(lost.value * step.value * (1 - share), modelled(lost.basis, step.basis, slowdown.basis))
    slow = SlowNode(
        gpus=gpus,
        slowdown_share=slowdown,
        since_checkpoint_seconds=again,
        to_checkpoint_seconds=to_checkpoint,
        restart_seconds=assumed(start.value + ASSUMED_CONTAINER_SECONDS, "start, and a new container"),
        seen=seen,
        looked=looked,
        needed=needed,
        room=room,
    )
    return price_slow_node(slow, now), ""


def _seconds(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < float("inf") else None  # type: ignore[arg-type,operator]


# Of a decision in the making.


def price_of_restart(draft: Draft, why: str, wait_seconds: float = 0.0) -> PricedChoice | None:
    """What a restart in place costs from here on, beside the next rung. None where too little is known."""
    return price_restart(
        gpus=draft.before.gpus,
        lost=steps_at_stake(draft),
        step=step_seconds(draft.attempt, draft.before.incarnations),
        start=start_seconds(draft.attempt, draft.past),
        wait_seconds=wait_seconds,
        why=why,
    )


def price_of_standstill(draft: Draft, told: Mapping[str, Any]) -> PricedChoice | None:
    """What acting on a suspected hang now would cost, beside waiting for more. ``told``: the agent's report."""
    return price_standstill(
        gpus=draft.before.gpus,
        lost=steps_at_stake(draft),
        step=step_seconds(draft.attempt, draft.before.incarnations),
        start=start_seconds(draft.attempt, draft.past),
        still_seconds=told.get("seconds_since_progress"),
        allowed_seconds=told.get("allowed_seconds"),
        judged_as=str(told.get("judged_as") or ""),
        now=draft.now,
    )


def price_of_slow_machine(
    draft: Draft, *, slowdown: Figure | None, seen: int, looked: int, needed: int, room: Room
) -> tuple[PricedChoice | None, str]:
    """What evicting a slow machine's worker costs now and at the next safe point; or None and what is not known."""
    return price_slow_machine(
        gpus=draft.before.gpus,
        reached=_reached(draft),
        checkpoints=draft.before.checkpoints,
        step=step_seconds(draft.attempt, draft.before.incarnations),
        start=start_seconds(draft.attempt, draft.past),
        slowdown=slowdown,
        seen=seen,
        looked=looked,
        needed=needed,
        room=room,
        now=draft.now,
    )


def _reached(draft: Draft) -> int | None:
    """The step of the present attempt, at least where it resumed. None = it is not known to have got anywhere."""
    reached = draft.last_step()
    if reached is None and draft.attempt is not None:
        reached = draft.attempt.resumed_from_step
    return reached


def steps_at_stake(draft: Draft) -> Figure | None:
    """Steps that a restart does again. None while the present attempt is not known to have got anywhere."""
    reached = _reached(draft)
    return None if reached is None else steps_lost(reached, draft.newest_committed())
