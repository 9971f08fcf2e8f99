"""An elastic job that lost a worker: wait for the replacement or go on smaller, both priced. Source: DOMAIN section 12.

What is wanted here comes beside the ordinary recovery and never instead of it: a job that nobody calls elastic is
not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from recovery import wording
from recovery.decision_prices import (
    ASSUMED_CONTAINER_SECONDS,
    NEWEST_STARTS,
    start_seconds,
    step_seconds,
    steps_at_stake,
)
from recovery.draft import Draft
from recovery.draft_actions import want
from recovery.figures import Basis, Figure, assumed, quantile, weakest
from recovery.ladder import NOT_INSTALLED
from recovery.lifecycle import INSTALLED_ACTIONS, ActionKind
from recovery.phases import WAITING_FOR_CAPACITY, JobState, Phase
from recovery.prices import ElasticChoice, ElasticLoss, ElasticOption, price_elastic
from recovery.records import AttemptView, Considered, ElasticTerms, PastAttempt
from recovery.rules import ends
from recovery.signals import EndCause, WorkerKey

#: Ends after which a container had to be made anew.
_LOST = frozenset(
    ends.BY_CAUSE[cause].category
    for cause in (
        EndCause.CRASHED, EndCause.DELETED, EndCause.NODE_LOST, EndCause.OUT_OF_MEMORY, EndCause.PREEMPTED,
        EndCause.MAINTENANCE, EndCause.EVICTED_BY_DESK, EndCause.EVICTED_AS_SLOW, EndCause.REPLACED,
    )
)  # fmt: skip
_KINDS: Mapping[str, ActionKind] = {
    ElasticOption.PAUSE_AND_RESUME: ActionKind.RESUME_JOB,
    ElasticOption.REPLICA_RESIZE: ActionKind.RESIZE_JOB,
}


class Wait(StrEnum):
    """What a replacement is waited for by now; each is dearer than the one before."""

    CONTAINER = "container"  # its pod is being made anew
    CAPACITY = "capacity"  # it cannot be placed
    LONG = "long"  # and not for longer than such waits are left unsaid


@dataclass(frozen=True, slots=True)
class ElasticTold:
    """What people were told of a loss, as the incident keeps it under ``elastic``."""

    attempt: int
    lost: tuple[str, ...]
    wait: Wait
    chosen: str  # "" = it could not be priced


def lost_workers(job: JobState) -> tuple[WorkerKey, ...]:
    """Workers whose replacement is waited for: gone and not back, or told to leave their machine."""
    return tuple(
        worker.key for worker in job.active if worker.must_exit or (worker.restarted and not worker.enrolled)
    )


def replacement_seconds(
    attempt: AttemptView | None, past: Iterable[PastAttempt], wait: Wait, *, waited: float, deadline: float
) -> Figure:
    """How long the replacement will still take.

    From the job's own losses before: from the end of an attempt whose container was gone to the next start. For lack of
    capacity that says nothing: ``deadline`` is assumed first, and later as long again as was ``waited`` (seconds).
    """
    if wait is Wait.LONG:
        return assumed(waited, "as long again as it has waited")
    if wait is Wait.CAPACITY:
        return assumed(deadline, "no place is free: the deadline for capacity")
    begun = {each.n: each.started_at for each in past}
    ended = {each.n: each for each in past}
    if attempt is not None:
        begun[attempt.n] = attempt.started_at
    took = [
        (n, (begun[after] - ended[n].ended_at).total_seconds())
        for n, after in pairwise(sorted(begun))
        if after == n + 1 and n in ended and ended[n].end_cause in _LOST
    ]
    newest = sorted(seconds for _, seconds in took[-NEWEST_STARTS:] if seconds >= 0)
    if not newest:
        return assumed(ASSUMED_CONTAINER_SECONDS, "no replacement in this job has been measured")
    return Figure(quantile(newest, 0.5), Basis.ESTIMATED, f"median of {len(newest)} replacements in this job")


def price_loss(
    terms: ElasticTerms,
    *,
    workers: int,
    gpus: int,
    lost: Iterable[WorkerKey],
    replacement: Figure,
    stake: Figure | None,
    step: Figure | None,
    start: Figure,
    tries: int,
    waited: float,
    now: datetime,
) -> tuple[ElasticChoice | None, str]:
    """Both prices of a loss; (None, what is not known) where they cannot be had.

    Args:
        workers, gpus: Of the whole job; 0 GPUs = not known.
        lost: Workers that are gone; a slice counts as lost with its first one.
        stake: Steps since the newest committed checkpoint.
        step, start: Time of one step; from the order to start until the last first step.
        tries: Of the framework's own retries that are used.
        waited: Seconds for which the replacement has been waited for.
    """
    size = terms.workers_per_slice
    if workers < size or workers % size:
        return None, f"{workers} workers are no whole number of slices of {size}"
    slices = workers // size
    if gpus < slices:
        return None, "how many GPUs the job holds is not known"
    if stake is None or step is None:
        return None, "the job's steps are not known"
    indexes = [worker.index for worker in lost]
    loss = ElasticLoss(
        replicas=slices,
        gpus_per_replica=gpus // slices,
        lost=min(slices, len({index // size for index in indexes})),
        replacement_seconds=replacement,
        since_checkpoint_seconds=Figure(
            stake.value * step.value, weakest(stake.basis, step.basis), stake.source
        ),
        restore_seconds=start,
        full_restart_seconds=assumed(start.value + ASSUMED_CONTAINER_SECONDS, "start, and new containers"),
        max_retries=terms.max_retries,
        tries=tries,
        timeout_seconds=terms.timeout_seconds,
        waited_seconds=waited,
        can_reshard=terms.can_reshard,
        min_replicas=terms.min_slices,
        is_head_lost=terms.head is not None and terms.head in indexes,
        batch_per_replica=terms.batch_per_slice,
    )
    return price_elastic(loss, now), ""


# Of a decision in the making.


def look_at_elastic(draft: Draft) -> None:
    """Price the loss once, and again when more is lost, when no place is free, and when that lasts."""
    terms, job = draft.before.elastic, draft.job
    if terms is None or job.phase is not Phase.RESTARTING or not draft.incident.is_open or job.attempt < 1:
        return
    lost = lost_workers(job)
    if not lost or draft.attempt is None:
        return
    waited = max(0.0, (draft.now - (draft.attempt.ended_at or draft.now)).total_seconds())
    wait = Wait.CONTAINER
    if job.reason.startswith(WAITING_FOR_CAPACITY):
        wait = Wait.LONG if waited >= draft.policy.capacity_deadline_seconds else Wait.CAPACITY
    names = tuple(str(key) for key in lost)
    told = told_from_stored(draft.elastic_told, job.attempt)
    if (
        told is not None
        and set(names) <= set(told.lost)
        and list(Wait).index(wait) <= list(Wait).index(told.wait)
    ):
        return
    priced, missing = price_loss(
        terms,
        workers=len(job.active),
        gpus=draft.before.gpus,
        lost=lost,
        replacement=replacement_seconds(
            draft.attempt, draft.past, wait, waited=waited, deadline=draft.policy.capacity_deadline_seconds
        ),
        stake=steps_at_stake(draft),
        step=step_seconds(draft.attempt, draft.before.incarnations),
        start=start_seconds(draft.attempt, draft.past),
        tries=sum(each.counted and each.run == job.run and each.n != job.attempt for each in draft.past),
        waited=waited,
        now=draft.now,
    )
    who = wording.workers(list(lost))
    if priced is None:
        draft.considered.append(Considered(str(ActionKind.RESIZE_JOB), f"not priced: {missing}"))
    elif told is not None and told.chosen == priced.chosen:
        draft.note("waiting", f"Still without {who}; {priced.chosen}, as before. Priced anew: {priced.words}")
    else:
        _tell(draft, priced, f"The job is elastic and has lost {who}")
    chosen = str(priced.chosen) if priced is not None else ""
    draft.elastic_told = to_stored(ElasticTold(job.attempt, names, wait, chosen))
    draft.is_evidence_new = True  # it is kept with the verdict


def _tell(draft: Draft, priced: ElasticChoice, what: str) -> None:
    kind = _KINDS.get(priced.chosen)
    why = f"{what}. {priced.chosen[:1].upper()}{priced.chosen[1:]}: {priced.why}"
    for price in priced.prices:
        other = _KINDS.get(price.option)
        if other is not None and other is not kind:
            because = price.refused_because or f"dearer: {priced.why}"
            draft.considered.append(Considered(str(other), because if kind else f"{because}; {priced.words}"))
    if kind is None:
        # The ordinary recovery starts all workers anew: that is the full restart, and needs no action of its own.
        draft.note("waiting", f"{why}. Costs: {priced.words}")
        return
    refused = "" if kind in INSTALLED_ACTIONS else NOT_INSTALLED
    want(
        draft,
        kind,
        why,
        priced=priced,
        refused_because=draft.observing_because if draft.is_observing else refused,
    )


def to_stored(told: ElasticTold) -> dict[str, Any]:
    """As plain JSON."""
    return {"attempt": told.attempt, "lost": list(told.lost), "wait": str(told.wait), "chosen": told.chosen}


def told_from_stored(stored: Any, attempt: int) -> ElasticTold | None:
    """What was told of the loss in this attempt; None where nothing was, or it cannot be read."""
    if not isinstance(stored, Mapping) or stored.get("attempt") != attempt:
        return None
    try:
        return ElasticTold(
            attempt, tuple(map(str, stored["lost"])), Wait(stored["wait"]), str(stored["chosen"])
        )
    except (KeyError, TypeError, ValueError):
        return None
