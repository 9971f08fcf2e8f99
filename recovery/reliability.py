"""Time between failures from what was seen: exposure, interval of confidence, clustering, and a prior.

The model is a constant rate λ per node-day. With n failures in an exposure E that was not stopped by a failure,
2E/χ² gives the exact interval (Epstein and Sobel 1953); n = 0 has a lower bound only. Sources: DOMAIN section 11;
Greenwood 1946 and Moran 1947 for the spread of gaps; Stephens 1974 for the fit with an estimated mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from recovery.distributions import chi_square_quantile, gamma_quantile, normal_share_above
from recovery.errors import BadInput
from recovery.figures import Basis, Figure, positive

DAY_SECONDS = 86_400.0
#: Node MTBF of a cluster without history. 2,048 nodes met 419 unplanned interruptions in 54 days: 264 node-days.
PRIOR_NODE_DAYS = 270.0
#: The prior weighs like so many failures. Published clusters lie within about a factor of two of it.
PRIOR_FAILURES = 2.0
LEAST_SHARE = 0.01  # what was watched tells nothing of its own below
FEWEST_GAPS = 8  # below, nothing is said about how gaps spread
#: Approximate chance below which gaps are called clustered. The approximation is short in the far tail: simulated
#: gaps of a constant rate are called so in about 1 % of cases, for 8 gaps and for 2,000.
CLUSTERED_CHANCE = 0.005
_STEPHENS_1_PERCENT = 1.308
#: The largest job, in nodes, of each class of sizes but the last: each eight times the one before.
SIZE_BORDERS = (8, 64, 512)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure. ``fault_class`` as the cluster names it; ``job_nodes`` = size of the job that it hit.

    ``by_machine`` is false for what the job did to itself: such a failure says nothing about machines.
    """

    at: datetime
    node: str
    fault_class: str = ""
    job_nodes: int | None = None
    by_machine: bool = True


@dataclass(frozen=True, slots=True)
class Exposure:
    """One node under watch from ``since`` until ``until``; ``job_nodes`` = size of the job it served, if any.

    ``nodes`` is above 1 where several were watched together and ``node`` names none of them, such as those of an
    attempt. Times of one node may come added up in one, of the right length: only sums of node-days are used.
    """

    node: str
    since: datetime
    until: datetime
    job_nodes: int | None = None
    nodes: int = 1

    @property
    def node_days(self) -> float:
        """How long, in days, times the nodes. BadInput where it ends before it begins."""
        seconds = (self.until - self.since).total_seconds()
        if seconds < 0:
            raise BadInput(
                f"{self.node} was watched until {self.until}, before {self.since} when it began: swap the two",
                field="until",
            )
        return self.nodes * seconds / DAY_SECONDS


@dataclass(frozen=True, slots=True)
class GapTest:
    """Whether gaps between failures look like those of a constant rate.

    ``spread`` is the coefficient of variation: 1 for a constant rate, above it the gaps are clustered.
    ``is_clustered``: Greenwood's statistic (sum of squared shares) is above what a constant rate gives in all but
    about 1 % of cases, by its exact mean and variance. ``is_fit_poor``: Kolmogorov's distance from the exponential
    with the same mean exceeds Stephens' 1 % point. Both are None for fewer than 8 gaps: too few to say.
    """

    gaps: int
    spread: float | None = None
    is_clustered: bool | None = None
    clustered_chance: float | None = None  # chance of so large a statistic under a constant rate
    is_fit_poor: bool | None = None
    distance: float | None = None

    @property
    def sentence(self) -> str:
        """For people."""
        if self.is_clustered is None:
            return f"{self.gaps} gap{'' if self.gaps == 1 else 's'}: too few to say whether failures come in clusters"
        parts = []
        if self.is_clustered:
            parts.append(
                "gaps are clustered: the interval of confidence is too narrow, and quiet times prove little"
            )
        if self.is_fit_poor:
            parts.append("exponential fit is poor")
        return "; ".join(parts) or "gaps look like those of a constant rate"

    @property
    def flag(self) -> str:
        """The same in a row of a table: "clustered, poor fit", "constant rate", "too few gaps"."""
        if self.is_clustered is None:
            return "too few gaps"
        parts = [
            *(["clustered"] if self.is_clustered else []),
            *(["poor fit"] if self.is_fit_poor else []),
        ]
        return ", ".join(parts) or "constant rate"


@dataclass(frozen=True, slots=True)
class Mtbf:
    """Time between failures of one node, in days, with what it rests on.

    ``node_days`` is None without failures; then only ``low_node_days`` is known. ``high_node_days`` None = no bound.
    ``left_out`` counts failures that jobs made themselves.
    """

    failures: int
    exposure_node_days: float
    node_days: float | None
    low_node_days: float
    high_node_days: float | None
    confidence: float
    basis: Basis
    gaps: GapTest
    left_out: int = 0
    prior_node_days: float | None = None
    prior_failures: float | None = None

    @property
    def prior_share(self) -> float:
        """How much of the rate is the prior, in [0, 1]: its exposure over all; 0 without one."""
        if not self.prior_failures or not self.prior_node_days:
            return 0.0
        mine = self.prior_failures * self.prior_node_days
        return mine / (mine + self.exposure_node_days)

    @property
    def rate_per_node_day(self) -> float:
        """Failures per node and day; 0 without failures."""
        return 1 / self.node_days if self.node_days else 0.0

    def job_seconds(self, nodes: int) -> Figure:
        """M of a job on so many nodes (node MTBF / nodes), in seconds.

        Raises:
            BadInput: without a node, or without failures and prior.
        """
        positive("nodes", nodes, "a job's number of nodes", "give the machines of its world")
        if self.node_days is None:
            raise BadInput(
                f"no failure in {self.exposure_node_days:.0f} node-days, so there is no mean: use with_prior",
                field="mtbf",
            )
        source = f"{self.failures} failures in {self.exposure_node_days:.0f} node-days"
        if self.prior_share:
            source += f"; prior of {self.prior_node_days:.0f} node-days weighs {self.prior_share:.0%}"
        return Figure(self.node_days * DAY_SECONDS / nodes, self.basis, source)

    def job_bounds_seconds(self, nodes: int) -> tuple[float, float | None]:
        """The interval of confidence of that M; no upper bound without a failure. BadInput without a node."""
        positive("nodes", nodes, "a job's number of nodes", "give the machines of its world")
        high = None if self.high_node_days is None else self.high_node_days * DAY_SECONDS / nodes
        return self.low_node_days * DAY_SECONDS / nodes, high


def spread_of_gaps(times: Iterable[datetime]) -> GapTest:
    """How the gaps between failures spread, in any order of the times; see GapTest."""
    ordered = sorted(times)
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(ordered)]
    return judge_gaps(gaps)


def judge_gaps(gaps: Sequence[float]) -> GapTest:
    """The same for gaps (>= 0) in any unit."""
    count, total = len(gaps), math.fsum(gaps)
    if count < FEWEST_GAPS or total <= 0:
        return GapTest(count)
    mean = total / count
    squares = math.fsum((gap / total) ** 2 for gap in gaps)
    spread = math.sqrt(max(0.0, squares * count - 1))
    chance = _greenwood_chance(count, squares)
    distance = _exponential_distance(sorted(gaps), mean)
    root = math.sqrt(count)
    is_fit_poor = (distance - 0.2 / count) * (root + 0.26 + 0.5 / root) > _STEPHENS_1_PERCENT
    return GapTest(count, spread, chance < CLUSTERED_CHANCE, chance, is_fit_poor, distance)


def _greenwood_chance(count: int, squares: float) -> float:
    """Chance of such a sum of squared shares or more, for ``count`` exponential gaps scaled to add up to 1.

    Mean 2/(n+1), variance 4(n-1)/((n+1)²(n+2)(n+3)); the logarithm of the statistic is nearly normal.
    """
    mean = 2 / (count + 1)
    variance = 4 * (count - 1) / ((count + 1) ** 2 * (count + 2) * (count + 3))
    sigma = math.sqrt(math.log1p(variance / mean**2))
    middle = math.log(mean) - sigma**2 / 2
    return normal_share_above((math.log(squares) - middle) / sigma)


def _exponential_distance(ordered: Sequence[float], mean: float) -> float:
    count = len(ordered)
    widest = 0.0
    for n, gap in enumerate(ordered):
        expected = -math.expm1(-gap / mean)
        widest = max(widest, expected - n / count, (n + 1) / count - expected)
    return widest


def estimate(failures: Iterable[Failure], exposures: Iterable[Exposure], *, confidence: float = 0.95) -> Mtbf:
    """Node MTBF from failures and exposure alone, with the exact interval.

    Args:
        failures: In any order; those outside of every exposure count too, so give matching ones.
        exposures: Node times, which may be cut where nodes were down: see ``without_down``.
        confidence: Two-sided, in (0, 1).
    Raises:
        BadInput: without exposure, or for a confidence outside of (0, 1).
    """
    seen, left_out = _machine_failures(failures)
    node_days = math.fsum(each.node_days for each in exposures)
    positive(
        "exposures", node_days, "the time under watch",
        "give for each node since when and until when it was watched",
    )  # fmt: skip
    tail = _tail(confidence)
    count = len(seen)
    high = 2 * node_days / chi_square_quantile(tail, 2 * count) if count else None
    return Mtbf(
        failures=count,
        exposure_node_days=node_days,
        node_days=node_days / count if count else None,
        low_node_days=2 * node_days / chi_square_quantile(1 - tail, 2 * count + 2),
        high_node_days=high,
        confidence=confidence,
        basis=Basis.MEASURED,
        gaps=spread_of_gaps(failure.at for failure in seen),
        left_out=left_out,
    )


def with_prior(
    failures: Iterable[Failure],
    exposures: Iterable[Exposure],
    *,
    confidence: float = 0.95,
    prior_node_days: float = PRIOR_NODE_DAYS,
    prior_failures: float = PRIOR_FAILURES,
) -> Mtbf:
    """Node MTBF where there may be little history: gamma prior, Poisson failures, credible interval.

    The prior counts as ``prior_failures`` failures in as many times ``prior_node_days``; its weight is said as
    ``prior_share`` and shrinks as exposure comes. Where no failure was seen and what was watched weighs under 1 %, the
    answer is the prior, and assumed.

    Raises:
        BadInput: for a prior that is not above 0, or a confidence outside of (0, 1).
    """
    positive("prior_node_days", prior_node_days, "the prior's MTBF", f"leave it at {PRIOR_NODE_DAYS:g}")
    positive("prior_failures", prior_failures, "the prior's strength", f"leave it at {PRIOR_FAILURES:g}")
    seen, left_out = _machine_failures(failures)
    node_days = math.fsum(each.node_days for each in exposures)
    tail = _tail(confidence)
    shape = prior_failures + len(seen)
    time = prior_failures * prior_node_days + node_days
    return Mtbf(
        failures=len(seen),
        exposure_node_days=node_days,
        node_days=time / shape,
        low_node_days=time / gamma_quantile(shape, 1 - tail),
        high_node_days=time / gamma_quantile(shape, tail),
        confidence=confidence,
        basis=Basis.ESTIMATED if seen or node_days >= LEAST_SHARE * time else Basis.ASSUMED,
        gaps=spread_of_gaps(failure.at for failure in seen),
        left_out=left_out,
        prior_node_days=prior_node_days,
        prior_failures=prior_failures,
    )


def _tail(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise BadInput(
            f"confidence is {confidence:g}, but it lies between 0 and 1: 0.95 is usual", field="confidence"
        )
    return (1 - confidence) / 2


def _machine_failures(failures: Iterable[Failure]) -> tuple[list[Failure], int]:
    every = list(failures)
    seen = [failure for failure in every if failure.by_machine]
    return seen, len(every) - len(seen)


def by_node(
    failures: Sequence[Failure], exposures: Sequence[Exposure], *, confidence: float = 0.95
) -> dict[str, Mtbf]:
    """For each node that was watched, with the prior: one node alone has seen little."""
    return _grouped(
        failures, exposures, lambda each: each.node, lambda each: each.node, confidence, is_prior_used=True
    )


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Jobs of ``low`` to ``high`` nodes, which are judged together; ``high`` None = and more."""

    low: int
    high: int | None

    def __str__(self) -> str:
        return f"{self.low}-{self.high}" if self.high is not None else f"{self.low} and more"


def size_class(nodes: int, borders: Sequence[int] = SIZE_BORDERS) -> SizeClass:
    """The class that a job of so many nodes belongs to; ``borders`` are the largest of each class, ascending."""
    low = 1
    for border in borders:
        if nodes <= border:
            return SizeClass(low, border)
        low = border + 1
    return SizeClass(low, None)


def by_job_size(
    failures: Sequence[Failure],
    exposures: Sequence[Exposure],
    borders: Sequence[int] = SIZE_BORDERS,
    *,
    confidence: float = 0.95,
) -> dict[str, Mtbf]:
    """By size of the job that nodes served: "1-8", "9-64", …, "513 and more", "no job", the smallest first.

    Of one node, in days.
    """

    def size(each: Failure | Exposure) -> SizeClass | None:
        return None if each.job_nodes is None else size_class(each.job_nodes, borders)

    found = _grouped(failures, exposures, size, size, confidence)
    ordered = sorted(found, key=lambda size: (size is None, size.low if size is not None else 0))
    return {"no job" if size is None else str(size): found[size] for size in ordered}


def by_class(
    failures: Sequence[Failure], exposures: Sequence[Exposure], *, confidence: float = 0.95
) -> dict[str, Mtbf]:
    """By class of fault, most frequent first: every node was exposed to every class all the time."""
    classes = [failure.fault_class for failure in failures]
    counts = {name: classes.count(name) for name in set(classes)}
    return {
        name: estimate(
            [failure for failure in failures if failure.fault_class == name], exposures, confidence=confidence
        )
        for name in sorted(counts, key=lambda name: (-counts[name], name))
    }


def _grouped[Key: Hashable](
    failures: Sequence[Failure],
    exposures: Sequence[Exposure],
    failure_key: Callable[[Failure], Key],
    exposure_key: Callable[[Exposure], Key],
    confidence: float,
    *,
    is_prior_used: bool = False,
) -> dict[Key, Mtbf]:
    failed: dict[Key, list[Failure]] = {}
    for failure in failures:
        failed.setdefault(failure_key(failure), []).append(failure)
    exposed: dict[Key, list[Exposure]] = {}
    for exposure in exposures:
        exposed.setdefault(exposure_key(exposure), []).append(exposure)
    judge = with_prior if is_prior_used else estimate
    return {
        key: judge(failed.get(key, []), mine, confidence=confidence)
        for key, mine in exposed.items()
        if is_prior_used or sum(each.node_days for each in mine) > 0
    }


def without_down(
    exposures: Iterable[Exposure], down: Iterable[tuple[str, datetime, datetime]]
) -> tuple[Exposure, ...]:
    """The exposures less the times (node, since, until) in which nodes were down; those may overlap."""
    gone: dict[str, list[tuple[datetime, datetime]]] = {}
    for node, since, until in down:
        gone.setdefault(node, []).append((since, until))
    left = []
    for exposure in exposures:
        begin = exposure.since
        for since, until in sorted(gone.get(exposure.node, [])):
            if until <= begin or since >= exposure.until:
                continue
            if since > begin:
                left.append(Exposure(exposure.node, begin, since, exposure.job_nodes))
            begin = max(begin, until)
        if begin < exposure.until:
            left.append(Exposure(exposure.node, begin, exposure.until, exposure.job_nodes))
    return tuple(left)


def worst_share(failures: Iterable[Failure], nodes: int) -> float:
    """Share of the failures that the ``nodes`` worst nodes had, in [0, 1]; 0 without failures."""
    counts: dict[str, int] = {}
    for failure in failures:
        counts[failure.node] = counts.get(failure.node, 0) + 1
    ordered = sorted(counts.values(), reverse=True)
    return sum(ordered[:nodes]) / sum(ordered) if ordered else 0.0
