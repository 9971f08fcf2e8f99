"""How often a job of the desk should save, from its own record and that of jobs of its size. Source: DOMAIN section 11.

C is the median of what its saves took, M the node MTBF of jobs of its size over its nodes, R the median of how long it
took to step again after a failure. Where C or M is not known there is no advice: none is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from recovery.checkpointing import CheckpointPlan, daly_seconds, plan_checkpoints
from recovery.figures import Figure, assumed, measured, quantile
from recovery.reliability import Mtbf, SizeClass

#: A prior that weighs less is not worth a word.
LEAST_SHARE_TOLD = 0.01
#: Shorter times are no measurement: a save is told to the millisecond, and nothing trains a step in a microsecond.
LEAST_SAVE_SECONDS, LEAST_STEP_SECONDS = 1e-3, 1e-6


@dataclass(frozen=True, slots=True)
class SavedPoint:
    """A checkpoint as it was told. ``seconds`` that its save took and ``at`` when it was there: None = not told."""

    step: int
    attempt: int
    at: datetime | None = None
    seconds: float | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """An attempt: when it ended, and when its first step came; None = not yet, or not told."""

    n: int
    ended_at: datetime | None = None
    first_step_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CheckpointAdvice:
    """A plan with the interval of confidence that follows from that of M, and what M rests on.

    ``low_seconds`` and ``high_seconds``: the advised interval at the bounds of M, ``confidence`` in (0, 1).
    """

    plan: CheckpointPlan
    nodes: int
    size: SizeClass
    mtbf: Mtbf
    low_seconds: float
    high_seconds: float | None
    low_mtbf_seconds: float
    high_mtbf_seconds: float | None
    rests_on: str

    @property
    def confidence(self) -> float:
        """How sure the bounds are."""
        return self.mtbf.confidence

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against relying on it."""
        clustered = "Failures come in clusters: the bounds are too narrow, and a quiet time proves little."
        return (*self.plan.warnings, *([clustered] if self.mtbf.gaps.is_clustered else []))


def save_seconds(points: Iterable[SavedPoint]) -> Figure | None:
    """C: the median of what saves took; None where none told one."""
    told = sorted(
        point.seconds for point in points if point.seconds is not None and point.seconds >= LEAST_SAVE_SECONDS
    )
    return measured(quantile(told, 0.5), f"median of {_count(len(told), 'save')}") if told else None


def present_seconds(points: Iterable[SavedPoint], save: Figure) -> Figure | None:
    """T as it is: the median compute time between neighbors of one attempt; None while it has no two."""
    ordered = sorted(points, key=lambda point: (point.attempt, point.step))
    gaps = sorted(
        seconds
        for earlier, later in pairwise(ordered)
        if earlier.attempt == later.attempt
        and earlier.step < later.step
        and earlier.at is not None
        and later.at is not None
        and (seconds := (later.at - earlier.at).total_seconds() - save.value) > 0
    )
    return measured(quantile(gaps, 0.5), f"median of {_count(len(gaps), 'interval')}") if gaps else None


def restart_seconds(starts: Iterable[Start]) -> Figure:
    """R: the median time from an attempt's end to the next one's first step; left out where none is known."""
    ordered = sorted(starts, key=lambda start: start.n)
    taken = sorted(
        seconds
        for earlier, later in pairwise(ordered)
        if later.n == earlier.n + 1
        and earlier.ended_at is not None
        and later.first_step_at is not None
        and (seconds := (later.first_step_at - earlier.ended_at).total_seconds()) >= 0
    )
    if not taken:
        return assumed(0.0, "none seen yet, left out")
    return measured(quantile(taken, 0.5), f"median of {_count(len(taken), 'restart')}")


def advise(
    *,
    points: Sequence[SavedPoint],
    starts: Sequence[Start],
    nodes: int,
    size: SizeClass,
    mtbf: Mtbf,
    days: float,
    step_seconds: Figure | None = None,
) -> CheckpointAdvice | None:
    """What to set; None where no save has told its time, or M has neither a failure nor a prior.

    Args:
        points: The newest checkpoints, in any order.
        starts: The newest attempts, in any order.
        nodes: That the job runs on.
        mtbf: Of jobs of this ``size``.
        days: Over how long their failures were counted.
    """
    save = save_seconds(points)
    if save is None or mtbf.node_days is None:
        return None
    step = step_seconds if step_seconds is not None and step_seconds.value >= LEAST_STEP_SECONDS else None
    sizes = [(point.attempt, point.step, point.size_bytes) for point in points if point.size_bytes]
    low, high = mtbf.job_bounds_seconds(nodes)
    plan = plan_checkpoints(
        save,
        mtbf.job_seconds(nodes),
        restart_seconds(starts),
        step_seconds=step,
        present_interval_seconds=present_seconds(points, save),
        checkpoint_bytes=measured(float(max(sizes)[2]), "newest checkpoint") if sizes else None,
    )
    return CheckpointAdvice(
        plan=plan,
        nodes=nodes,
        size=size,
        mtbf=mtbf,
        low_seconds=daly_seconds(save.value, low),
        high_seconds=None if high is None else daly_seconds(save.value, high),
        low_mtbf_seconds=low,
        high_mtbf_seconds=high,
        rests_on=rests_on(mtbf, days),
    )


def rests_on(mtbf: Mtbf, days: float) -> str:
    """What M rests on: "prior: no failure seen yet", "12 failures in 40 days, prior weighs 9%"."""
    if not mtbf.failures:
        watched = f" in {mtbf.exposure_node_days:,.0f} node-days" if mtbf.exposure_node_days >= 1 else ""
        return f"prior: no failure seen yet{watched}"
    seen = f"{_count(mtbf.failures, 'failure')} in {_days(days)}"
    return seen + (f", prior weighs {mtbf.prior_share:.0%}" if mtbf.prior_share >= LEAST_SHARE_TOLD else "")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _days(days: float) -> str:
    if days >= 2:
        return f"{days:,.0f} days"
    return _count(max(1, round(days * 24)), "hour")
