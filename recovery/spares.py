"""How many spares to keep, what they cost and save, and which one to take.

Nodes in repair are a queue without waiting: with failures at a constant rate their number is Poisson, its mean the rate
times the time of a repair (Palm's theorem), however repairs are spread. Repairs have a long tail, so the mean alone
misleads: the answer is given for the median, the mean and the 90th percentile. Source: DOMAIN section 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from recovery.distributions import poisson_share_at_most
from recovery.errors import BadInput
from recovery.figures import Basis, positive, quantile
from recovery.lemons import LemonPolicy, LemonScore, Offence, Probation, Return, probation, score

DAY_HOURS = 24.0


@dataclass(frozen=True, slots=True)
class RepairTimes:
    """How long repairs take, in hours. ``open_repairs`` have no end yet: they are longer than what is said here."""

    count: int
    median_hours: float
    mean_hours: float
    p90_hours: float
    open_repairs: int = 0
    basis: Basis = Basis.MEASURED


def repair_times(hours: Sequence[float], *, open_hours: Sequence[float] = ()) -> RepairTimes:
    """Median, mean and 90th percentile of repairs.

    Args:
        hours: Of ended repairs, above or equal 0.
        open_hours: Of those that go on, so far: they count with what they have, so the tail is still too short.
    Raises:
        BadInput: without any repair, or for a negative one.
    """
    every = sorted([*hours, *open_hours])
    if not every:
        raise BadInput("no repair has been seen: give at least one, or assume a time", field="hours")
    if every[0] < 0:
        raise BadInput(f"a repair of {every[0]:g} hours: give its end after its begin", field="hours")
    return RepairTimes(
        count=len(every),
        median_hours=quantile(every, 0.5),
        mean_hours=sum(every) / len(every),
        p90_hours=quantile(every, 0.9),
        open_repairs=len(open_hours),
    )


@dataclass(frozen=True, slots=True)
class SpareRow:
    """One pool size. ``ready_share``: chance that a failure finds a spare, by repairs as long as the mean.

    ``ready_share_by_median`` and ``ready_share_by_p90``: the same if every repair took that long.
    ``saved_gpu_hours_a_day`` is what jobs would have lost to waiting without any spare, less what they still lose;
    ``idle_gpu_hours_a_day`` what the spares that are not in use cost.
    """

    spares: int
    ready_share: float
    idle_gpu_hours_a_day: float
    saved_gpu_hours_a_day: float
    ready_share_by_median: float
    ready_share_by_p90: float

    @property
    def net_gpu_hours_a_day(self) -> float:
        """What it brings."""
        return self.saved_gpu_hours_a_day - self.idle_gpu_hours_a_day


@dataclass(frozen=True, slots=True)
class SparePool:
    """Pool sizes that reach the target. ``advised`` is the largest of those by median and mean, and never above p90's.

    ``rows`` are every size from 0 to p90's; ``best_by_price`` the size that brings most.
    """

    nodes: int
    target_share: float
    failures_a_day: float
    repair: RepairTimes
    by_median: int
    by_mean: int
    by_p90: int
    rows: tuple[SpareRow, ...]
    basis: Basis

    @property
    def advised(self) -> int:
        """What to keep."""
        return min(max(self.by_median, self.by_mean), self.by_p90)

    @property
    def advised_share(self) -> float:
        """The same as a share of the nodes."""
        return self.advised / self.nodes

    @property
    def best_by_price(self) -> SpareRow:
        """The size with the highest net; the smaller one of equals."""
        return max(self.rows, key=lambda row: (row.net_gpu_hours_a_day, -row.spares))

    def row(self, spares: int) -> SpareRow:
        """One size."""
        return self.rows[spares]


def size_pool(
    *,
    nodes: int,
    failures_per_node_day: float,
    repair: RepairTimes,
    gpus_per_node: int,
    job_nodes: int,
    target_share: float = 0.99,
) -> SparePool:
    """How many spares a pool needs so that a failure finds one with this chance, and what each size costs and saves.

    Without a spare the whole job waits for a repair: that is what a spare saves, counted at the median repair, so the
    long tail does not make spares look better than they are.

    Args:
        nodes: In service, without the spares.
        failures_per_node_day: 1 / node MTBF in days.
        repair: How long a node is away.
        gpus_per_node: In each.
        job_nodes: Size of the job that would wait.
        target_share: In (0, 1).
    Raises:
        BadInput: for numbers that are not above 0, or a target outside of (0, 1).
    """
    positive("nodes", nodes, "the size of the pool", "give the nodes in service")
    positive("failures_per_node_day", failures_per_node_day, "the failure rate", "give 1 / node MTBF in days")
    positive("gpus_per_node", gpus_per_node, "the GPUs of a node", "give how many each has")
    positive("job_nodes", job_nodes, "the size of a job", "give the nodes of the job that would wait")
    if not 0 < target_share < 1:
        raise BadInput(
            f"target_share is {target_share:g}, but a chance below 1 can be reached: 0.99 is usual",
            field="target_share",
        )
    a_day = nodes * failures_per_node_day
    loads = [
        a_day * hours / DAY_HOURS for hours in (repair.median_hours, repair.mean_hours, repair.p90_hours)
    ]
    by_median, by_mean, by_p90 = (_needed(load, target_share) for load in loads)
    job_gpu_hours = a_day * min(job_nodes, nodes) * gpus_per_node * repair.median_hours
    rows = [SpareRow(0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    idle = 0.0
    for size in range(1, by_p90 + 1):
        at_median, ready, at_p90 = (poisson_share_at_most(size - 1, load) for load in loads)
        idle += ready  # so many stand by on average: the sum of P(fewer than k are away) for k = 1 … size
        rows.append(
            SpareRow(size, ready, idle * gpus_per_node * DAY_HOURS, job_gpu_hours * ready, at_median, at_p90)
        )
    return SparePool(
        nodes=nodes,
        target_share=target_share,
        failures_a_day=a_day,
        repair=repair,
        by_median=by_median,
        by_mean=by_mean,
        by_p90=by_p90,
        rows=tuple(rows),
        basis=Basis.ESTIMATED,
    )


def _needed(load: float, target_share: float) -> int:
    """Smallest pool in which a failure finds a spare: fewer nodes than that are away when it comes."""
    low, high = 0, 1  # low is too small; high may do
    while poisson_share_at_most(high - 1, load) < target_share:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if poisson_share_at_most(middle - 1, load) < target_share:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could take over. ``is_match``: same pool, hardware and rail as the one that it stands in for."""

    node: str
    offences: tuple[Offence, ...] = ()
    returns: tuple[Return, ...] = ()
    is_match: bool = True


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with what speaks about it; ``tier`` 0 is best, equal tiers are equally good."""

    node: str
    tier: int
    lemon: LemonScore
    probation: Probation


def rank(
    candidates: Iterable[Candidate], now: datetime, policy: LemonPolicy, *, is_probation_used: bool = True
) -> tuple[Ranked, ...]:
    """Candidates, the best first: same hardware before other, clean before probation before lemon; then by name.

    Nobody is left out: whether a lemon is better than waiting is for the caller to say.
    """
    ranked = []
    for candidate in candidates:
        lemon = score(candidate.offences, now, policy)
        on = probation(candidate.offences, candidate.returns, now, policy)
        tier = 2 if lemon.is_lemon else 1 if is_probation_used and on.is_on else 0
        ranked.append(Ranked(candidate.node, tier + (0 if candidate.is_match else 3), lemon, on))
    return tuple(sorted(ranked, key=lambda each: (each.tier, each.node)))


def best_of(nodes: Sequence[str], tiers: Mapping[str, int]) -> Sequence[str]:
    """The nodes of the lowest tier among these, in their order. ``tiers``: above 0, by node; others have tier 0."""
    best = [node for node in nodes if node not in tiers] if tiers else nodes
    if best or not nodes:
        return best
    lowest = min(tiers[node] for node in nodes)
    return [node for node in nodes if tiers[node] == lowest]
