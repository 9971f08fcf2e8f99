"""Replay policies for failed nodes on a fault trace: what they would have cost a job of N nodes. No look ahead.

Placements and draws come from outside, so the same input gives the same output. Policies use the functions that
production uses: ``spares.rank`` with ``lemons.score`` and ``lemons.probation``, ``lemons.blacklisted_until``, and the
cap of ``guards.Limit``.
A replay knows faults, no jobs: where a job ran, what it did and what made it fail by itself is not in such a trace.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from recovery.errors import BadInput
from recovery.figures import not_negative, positive, quantile
from recovery.guards import Limit
from recovery.lemons import DEFAULT_POLICY, LemonPolicy, Offence, Return, blacklisted_until
from recovery.spares import Candidate, best_of, rank

HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A node is down from ``start`` until ``end``; None = still down when the trace ends."""

    node: str
    start: datetime
    end: datetime | None
    reason: str = ""
    slot: str = ""


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """Faults of a cluster between two times. ``nodes`` are all of it, those without a fault too.

    Faults of one node may overlap: it is up again when the last of them has ended.
    """

    nodes: tuple[str, ...]
    faults: tuple[Fault, ...]
    begin: datetime
    end: datetime

    def __post_init__(self) -> None:
        known = set(self.nodes)
        for fault in self.faults:
            if fault.node not in known:
                raise BadInput(
                    f"{fault.node} has a fault but is no node of the trace: give all nodes", field="nodes"
                )
            if not self.begin <= fault.start <= self.end or (
                fault.end is not None and fault.end < fault.start
            ):
                raise BadInput(
                    f"fault of {fault.node} from {fault.start} to {fault.end} does not fit into the trace "
                    f"({self.begin} to {self.end}): cut it",
                    field="faults",
                )


@dataclass(frozen=True, slots=True)
class ReplacePolicy:
    """What becomes of a member that fails, and who may stand in for it.

    ``is_swapped`` false: the job waits until its own nodes are back. ``blacklist_days``: a node that failed is kept
    away for so long after its newest fault, however healthy. ``is_history_used``: stand-ins are taken by lemon score
    and probation, the best first; nobody is kept away. ``spare_share``: only so many of the cluster's nodes are there
    to stand in, all others are busy; None = every node outside of the job. ``guard``: who would be kept away above
    its cap is not.
    """

    name: str
    is_swapped: bool = True
    blacklist_days: float = 0.0
    is_history_used: bool = False
    spare_share: float | None = None
    guard: Limit | None = None
    lemons: LemonPolicy = DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class JobModel:
    """The job that is laid over the trace. Everything but its size is assumed: a fault trace knows no jobs.

    ``interval_seconds`` is compute time between saves of ``checkpoint_seconds``; a restart takes ``restart_seconds``
    whether the node is swapped or came back.
    """

    nodes: int
    gpus_per_node: int
    interval_seconds: float
    checkpoint_seconds: float
    restart_seconds: float

    def __post_init__(self) -> None:
        positive("nodes", self.nodes, "a job's size", "give the number of its nodes")
        positive("gpus_per_node", self.gpus_per_node, "the GPUs of a node", "give how many each has")
        positive(
            "interval_seconds", self.interval_seconds, "the time between two saves", "give the compute time"
        )
        not_negative(
            "checkpoint_seconds", self.checkpoint_seconds, "the time of a save", "give it as measured"
        )
        not_negative("restart_seconds", self.restart_seconds, "the time of a restart", "give it as measured")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job begins and how chance falls.

    ``order``: all nodes, at random; the first N are the members. ``draws``: in [0, 1). The n-th choice of a
    stand-in uses the n-th draw, so chance does not depend on what comes later.
    """

    order: tuple[str, ...]
    draws: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SwapDecision:
    """What was decided when a member failed, or a place was still open. ``taken`` "" = nobody was there."""

    at: datetime
    failed: str
    taken: str


@dataclass(frozen=True, slots=True)
class Replay:
    """What one policy cost one placement.

    ``interruptions``: faults that began on a member. ``lost_seconds`` of the whole job, split into time computed again,
    restarts, and waiting for a node. ``blocked_node_days``: healthy nodes that the policy kept away;
    ``avoided_node_days``: healthy ones that stood behind others, whoever used them. ``idle_spare_node_days``: spares
    that stood by.
    """

    interruptions: int
    again_seconds: float
    restart_seconds: float
    waiting_seconds: float
    blocked_node_days: float
    avoided_node_days: float
    idle_spare_node_days: float
    gpus: int
    gpus_per_node: int
    decisions: tuple[SwapDecision, ...] = ()

    @property
    def lost_seconds(self) -> float:
        """Time in which the job got nowhere."""
        return self.again_seconds + self.restart_seconds + self.waiting_seconds

    @property
    def lost_gpu_hours(self) -> float:
        """The same for all its GPUs."""
        return self.lost_seconds * self.gpus / HOUR_SECONDS

    @property
    def withheld_gpu_hours(self) -> float:
        """What the policy itself kept from work: blocked nodes and idle spares."""
        return (self.blocked_node_days + self.idle_spare_node_days) * 24 * self.gpus_per_node


class _Kind(IntEnum):
    """In the order of equal times: who comes back is there before the next one fails."""

    END = 0
    UNBLOCK = 1
    START = 2
    END_AT_ONCE = 3  # of a fault that took no time


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of the trace, and what history says at that time: it is the same for every placement.

    ``seconds`` since the trace began. ``is_usable``: after the event the node is healthy and not kept away.
    ``tiers`` of healthy nodes that are not in the best one.
    """

    at: datetime
    seconds: float
    is_failure: bool
    node: str
    is_usable: bool
    tiers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class History:
    """A trace in order of time, with a policy's view of every node at each event, made from what had happened by then.

    ``blocked_node_days`` and ``avoided_node_days``: see Replay.
    """

    trace: FaultTrace
    policy: ReplacePolicy
    moments: tuple[Moment, ...]
    blocked_node_days: float
    avoided_node_days: float


def read_history(trace: FaultTrace, policy: ReplacePolicy) -> History:
    """What the policy knows, event by event. Made once for each policy; every placement is replayed over it."""
    queue: list[tuple[datetime, _Kind, int, str]] = []
    for n, fault in enumerate(trace.faults):
        queue.append((fault.start, _Kind.START, n, fault.node))
        if fault.end is not None and fault.end <= trace.end:
            kind = _Kind.END if fault.end > fault.start else _Kind.END_AT_ONCE
            queue.append((fault.end, kind, n, fault.node))
    queue.sort()
    known = _Known(policy, len(trace.nodes))
    found = []
    before, blocked, avoided = trace.begin, 0, 0
    blocked_seconds = avoided_seconds = 0.0
    place = 0
    while place < len(queue):
        at, kind, n, node = queue[place]
        place += 1
        if at > trace.end:
            break
        seconds = (at - before).total_seconds()
        blocked_seconds += seconds * blocked
        avoided_seconds += seconds * avoided
        if kind is _Kind.START:
            until = known.fail(trace.faults[n])
            if until is not None:
                insort(queue, (until, _Kind.UNBLOCK, n, node), lo=place)
        elif kind is _Kind.UNBLOCK:
            known.unblock(node, at)
        else:
            known.end(node, at)
        tiers = known.tiers(at)
        found.append(
            Moment(
                at=at,
                seconds=(at - trace.begin).total_seconds(),
                is_failure=kind is _Kind.START,
                node=node,
                is_usable=known.is_usable(node),
                tiers=tiers,
            )
        )
        before, blocked, avoided = at, known.healthy_blocked, len(tiers)
    rest = (trace.end - before).total_seconds()
    return History(
        trace,
        policy,
        tuple(found),
        (blocked_seconds + rest * blocked) / DAY_SECONDS,
        (avoided_seconds + rest * avoided) / DAY_SECONDS,
    )


class _Known:
    """What has been seen of the nodes so far."""

    def __init__(self, policy: ReplacePolicy, nodes: int) -> None:
        self.policy = policy
        self.cap = nodes if policy.guard is None else policy.guard.cap(nodes)
        self.down: dict[str, int] = {}
        self.offences: dict[str, list[Offence]] = {}
        self.returns: dict[str, list[Return]] = {}
        self.blocked: dict[str, datetime] = {}

    def fail(self, fault: Fault) -> datetime | None:
        """A fault began; until when the node is kept away now, if the policy does that."""
        node = fault.node
        self.down[node] = self.down.get(node, 0) + 1
        mine = self.offences.setdefault(node, [])
        mine.append(Offence(fault.start, fault.reason, fault.slot))
        if not self.policy.blacklist_days or (node not in self.blocked and len(self.blocked) >= self.cap):
            return None
        until = blacklisted_until(mine, self.policy.blacklist_days)
        if until is not None:
            self.blocked[node] = until
        return until

    def end(self, node: str, at: datetime) -> None:
        self.down[node] -= 1
        if not self.down[node]:
            del self.down[node]
            self.returns.setdefault(node, []).append(Return(at))

    def unblock(self, node: str, at: datetime) -> None:
        if self.blocked.get(node) == at:
            del self.blocked[node]

    def is_usable(self, node: str) -> bool:
        return node not in self.down and node not in self.blocked

    @property
    def healthy_blocked(self) -> int:
        return sum(node not in self.down for node in self.blocked)

    def tiers(self, at: datetime) -> Mapping[str, int]:
        if not self.policy.is_history_used:
            return {}
        since = at - timedelta(days=self.policy.lemons.long_days)
        seen = [
            Candidate(node, tuple(mine), tuple(self.returns.get(node, ())))
            for node, mine in self.offences.items()
            if node not in self.down and (mine[-1].at > since or self.returns[node][-1].at > since)
        ]
        return {each.node: each.tier for each in rank(seen, at, self.policy.lemons) if each.tier}


def replay(history: History, placement: Placement, job: JobModel) -> Replay:
    """One placement under the policy of a history.

    Args:
        placement: Its first ``job.nodes`` nodes are the members; spares come next.
    Raises:
        BadInput: where the job does not fit.
    """
    if job.nodes > len(placement.order):
        raise BadInput(
            f"a job of {job.nodes} nodes does not fit on {len(placement.order)}: give a smaller one",
            field="nodes",
        )
    run = _Run(history, placement, job)
    for moment in history.moments:
        run.pass_moment(moment)
    return run.finished()


class _Run:
    """State of one replay. Times are seconds since the trace began."""

    def __init__(self, history: History, placement: Placement, job: JobModel) -> None:
        self.history, self.placement, self.job = history, placement, job
        trace, policy = history.trace, history.policy
        self.is_swapped = policy.is_swapped
        self.has_spares = policy.spare_share is not None
        self.members = set(placement.order[: job.nodes])
        others = placement.order[job.nodes :]
        if policy.spare_share is not None:
            others = others[: round(policy.spare_share * len(trace.nodes))]
        self.pool = set(others)  # who may stand in, healthy or not
        self.free = sorted(others)  # of those, healthy and not kept away
        self.members_down: set[str] = set()
        self.holes: list[str] = []  # failed members whose place is empty
        self.choices = 0
        self.interruptions = 0
        self.decisions: list[SwapDecision] = []
        self.before = 0.0
        self.idle = 0.0
        self.again = self.restarts = self.waited = 0.0
        self.stopped_at: float | None = None  # stands still since, waiting for a node
        self.restart_began: float | None = None
        self.resumed_at = 0.0  # trains from here on, or will when its restart is over

    def pass_moment(self, moment: Moment) -> None:
        if self.has_spares:
            self.idle += (moment.seconds - self.before) * len(self.free)
            self.before = moment.seconds
        if moment.is_failure:
            self._fail(moment)
        elif moment.is_usable:
            self._come_back(moment)

    def finished(self) -> Replay:
        end = (self.history.trace.end - self.history.trace.begin).total_seconds()
        if self.has_spares:
            self.idle += (end - self.before) * len(self.free)
        if self.stopped_at is not None:
            self.waited += end - self.stopped_at
        elif self.restart_began is not None:
            self.restarts += min(self.resumed_at, end) - self.restart_began
        return Replay(
            interruptions=self.interruptions,
            again_seconds=self.again,
            restart_seconds=self.restarts,
            waiting_seconds=self.waited,
            blocked_node_days=self.history.blocked_node_days,
            avoided_node_days=self.history.avoided_node_days,
            idle_spare_node_days=self.idle / DAY_SECONDS,
            gpus=self.job.nodes * self.job.gpus_per_node,
            gpus_per_node=self.job.gpus_per_node,
            decisions=tuple(self.decisions),
        )

    def _fail(self, moment: Moment) -> None:
        node = moment.node
        if node not in self.members:
            if node in self.pool:
                self._leave_free(node)
            return
        self.interruptions += 1
        self._stop(moment.seconds)
        if not self.is_swapped:
            self.members_down.add(node)
            return
        self.members.remove(node)
        self.pool.add(node)
        self.holes.append(node)
        self._fill(moment)

    def _come_back(self, moment: Moment) -> None:
        node = moment.node
        if node in self.members_down:
            self.members_down.remove(node)
            if not self.members_down:
                self._start(moment.seconds)
        elif node in self.pool:
            place = bisect_left(self.free, node)
            if place == len(self.free) or self.free[place] != node:
                self.free.insert(place, node)
            if self.holes:
                self._fill(moment)

    def _leave_free(self, node: str) -> None:
        place = bisect_left(self.free, node)
        if place < len(self.free) and self.free[place] == node:
            del self.free[place]

    def _fill(self, moment: Moment) -> None:
        while self.holes and self.free:
            best = best_of(self.free, moment.tiers)
            draw = self.placement.draws[self.choices % len(self.placement.draws)]
            taken = best[int(draw * len(best))]
            self.choices += 1
            self._leave_free(taken)
            self.pool.discard(taken)
            self.members.add(taken)
            self.decisions.append(SwapDecision(moment.at, self.holes.pop(0), taken))
        if self.holes:
            if moment.is_failure:
                self.decisions.append(SwapDecision(moment.at, moment.node, ""))
        elif self.stopped_at is not None:
            self._start(moment.seconds)

    def _stop(self, at: float) -> None:
        """Everything since the last save is lost, and a restart that had not come through."""
        if self.stopped_at is not None:
            return
        if self.restart_began is not None:
            self.restarts += min(at, self.resumed_at) - self.restart_began
        if at > self.resumed_at:
            cycle = self.job.interval_seconds + self.job.checkpoint_seconds
            self.again += (at - self.resumed_at) % cycle
        self.stopped_at = at

    def _start(self, at: float) -> None:
        if self.stopped_at is not None:
            self.waited += at - self.stopped_at
        self.stopped_at = None
        self.restart_began = at
        self.resumed_at = at + self.job.restart_seconds


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over placements: mean, 10th and 90th percentile, and the standard error of the mean."""

    mean: float
    p10: float
    p90: float
    error: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy beside another, placement by placement: negative = less.

    ``job_gpu_hours``: what the job loses. ``net_gpu_hours``: likewise with what the policies withhold, which matters
    only where somebody else would have used it.
    """

    interruptions: Spread
    job_gpu_hours: Spread
    net_gpu_hours: Spread

    @property
    def job_verdict(self) -> str:
        """For the job: pays, does not pay, or no difference (within two standard errors)."""
        return _verdict(self.job_gpu_hours)

    @property
    def net_verdict(self) -> str:
        """For the cluster, if the withheld nodes would have worked."""
        return _verdict(self.net_gpu_hours)


def _verdict(difference: Spread) -> str:
    if abs(difference.mean) <= 2 * difference.error:
        return "no difference"
    return "pays" if difference.mean < 0 else "does not pay"


def spread(values: Sequence[float]) -> Spread:
    """Over placements; raises BadInput for none."""
    if not values:
        raise BadInput("no placement was replayed: give at least one", field="placements")
    ordered = sorted(values)
    count = len(ordered)
    mean = sum(ordered) / count
    variance = sum((value - mean) ** 2 for value in ordered) / (count - 1) if count > 1 else 0.0
    return Spread(mean, quantile(ordered, 0.1), quantile(ordered, 0.9), (variance / count) ** 0.5)


def compare(mine: Sequence[Replay], other: Sequence[Replay]) -> Comparison:
    """The same placements, in the same order, under two policies."""
    pairs = list(zip(mine, other, strict=True))
    job = [one.lost_gpu_hours - two.lost_gpu_hours for one, two in pairs]
    withheld = [one.withheld_gpu_hours - two.withheld_gpu_hours for one, two in pairs]
    return Comparison(
        spread([float(one.interruptions - two.interruptions) for one, two in pairs]),
        spread(job),
        spread([lost + kept for lost, kept in zip(job, withheld, strict=True)]),
    )
