"""A storm, played: many jobs die in one second, and each must read its checkpoint back from one store.

Three ways to begin again: by the admission queue (`recovery.admission`, the production code), by plain exponential
backoff with full jitter, and all at once.

The store: while the caps of all that read add up to at most its limit, each reads at its cap. Above that, what it
serves falls: limit / (1 + kappa * (load / limit - 1)), shared by the caps. That is Gunther's universal scalability
law (N. J. Gunther, "A General Theory of Computational Scalability Based on Rational Functions", arXiv:0808.1431)
with the load in units of the limit and a contention of 1, that is, the limit itself; kappa, the cost of keeping
ever more readers coherent (seeks between streams, cache thrash, retries in the network), is assumed, not measured.
With kappa 0 the store never slows down. A restore that is not done after ``timeout_seconds`` is given up by its job's
collective time-out (600 s is the default of PyTorch's NCCL backend) and begins anew: what it had read is lost.

Backoff: Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from recovery.admission import (
    AdmissionPolicy,
    Bucket,
    Dependency,
    Queue,
    Restart,
    Why,
    admit,
    ended,
    join,
    not_before,
    predict,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
STORE_BYTES_PER_SECOND = 200e9
LEAST_BYTES, MOST_BYTES = 10e9, 2.3e12
BYTES_OF_A_NODE = 80e9  # share of a checkpoint that one node reads back
NODE_BYTES_PER_SECOND = (0.2e9, 2.0e9)  # own cap of one node, drawn evenly on a log scale
TENANT_WEIGHTS = {"ads": 1.0, "code": 2.0, "eval": 1.0, "llm": 4.0, "rl": 2.0, "speech": 1.0, "vision": 2.0}
PRIORITIES = (0, 1, 2, 3)
LEAST_SPEED = 0.95  # what a restore really reads at, of its cap: evenly between this and 1
GIVE_UP_SECONDS = 6 * 3600.0  # the storm is watched so long
BUCKETS = {
    Dependency.STORAGE_METADATA: Bucket(per_second=2_000, burst=20_000),
    Dependency.IMAGE_REGISTRY: Bucket(per_second=20, burst=200),
    Dependency.API_SERVER: Bucket(per_second=50, burst=500),
    Dependency.RENDEZVOUS: Bucket(per_second=500, burst=2_000),
}


@dataclass(frozen=True, slots=True)
class Store:
    """How a store behaves above its limit, and how long jobs have patience with it."""

    kappa: float
    timeout_seconds: float


COLLAPSING = Store(kappa=0.1, timeout_seconds=600.0)
#: The kindest there could be: it never slows, and no job ever gives up.
IDEAL = Store(kappa=0.0, timeout_seconds=math.inf)


@dataclass(frozen=True, slots=True)
class Job:
    """A job that died: its restart, and the share of its cap at which it really reads."""

    restart: Restart
    speed: float


@dataclass(frozen=True, slots=True)
class Start:
    """A restore that began, until it was completed or given up. Seconds since the storm began."""

    job: Job
    begins: float
    ends: float
    why: Why | None = None
    spread: Mapping[Dependency, float] = field(default_factory=dict)


@dataclass
class Play:
    """How a storm went. ``starts`` are the restores that were completed, ``begun`` those that were given up too.

    Where the queue decides, both are the same, in the order in which they began.
    """

    starts: list[Start] = field(default_factory=list)
    begun: list[Start] = field(default_factory=list)
    lost: int = 0  # jobs that were not restored when the watch ended
    wasted_bytes: float = 0.0
    peak_load: float = 0.0  # most asked of the store at once, as a share of its limit
    overloaded_seconds: float = 0.0
    predicted: Mapping[str, float] = field(default_factory=dict)

    @property
    def all_restored(self) -> float:
        """When the last job was restored; infinite if one never was."""
        return math.inf if self.lost else max((start.ends for start in self.starts), default=0.0)


def storm(jobs: int, seed: int) -> list[Job]:
    """Jobs that die in the same second, with checkpoints from 10 GB to 2.3 TB, evenly on a log scale."""
    draw = random.Random(seed)
    policy = storm_policy()
    tenants = sorted(TENANT_WEIGHTS)
    made = []
    for n in range(jobs):
        size = {0: LEAST_BYTES, jobs - 1: MOST_BYTES}.get(n, _evenly_on_log(draw, LEAST_BYTES, MOST_BYTES))
        nodes = math.ceil(size / BYTES_OF_A_NODE)
        cap = nodes * _evenly_on_log(draw, *NODE_BYTES_PER_SECOND)
        died_at = BEGIN + timedelta(seconds=draw.random())
        is_image_gone = draw.random() < 0.05
        restart = Restart(
            job=f"job-{n:04d}",
            tenant=draw.choice(tenants),
            bytes=size,
            bytes_per_second=cap,
            waits_since=died_at,
            not_before=not_before(died_at, failures=1, seed=f"{draw.getrandbits(64):016x}", policy=policy),
            priority=draw.choice(PRIORITIES),
            tokens={
                Dependency.STORAGE_METADATA: 8.0 * nodes * 8,
                Dependency.IMAGE_REGISTRY: float(nodes) if is_image_gone else 0.0,
                Dependency.API_SERVER: 2.0 * nodes,
                Dependency.RENDEZVOUS: 8.0 * nodes,
            },
        )
        made.append(Job(restart, draw.uniform(LEAST_SPEED, 1.0)))
    return made


def storm_policy() -> AdmissionPolicy:
    """Budgets of the one store and of what goes with it."""
    return AdmissionPolicy(
        store_bytes_per_second=STORE_BYTES_PER_SECOND, buckets=BUCKETS, weights=TENANT_WEIGHTS
    )


def bound_seconds(jobs: Sequence[Job], policy: AdmissionPolicy) -> float:
    """No way to restore all is faster: all bytes through the store, or the longest at its job's own cap."""
    total = math.fsum(job.restart.bytes for job in jobs)
    longest = max(job.restart.bytes / job.restart.bytes_per_second for job in jobs)
    return max(total / policy.store_bytes_per_second, longest)


def play_queue(jobs: Sequence[Job], policy: AdmissionPolicy, *, predicts: bool = True) -> Play:
    """The admission queue decides each start; a restore ends when its job has read all."""
    by_name = {job.restart.job: job for job in jobs}
    queue = Queue()
    for job in jobs:
        queue = join(queue, job.restart)
    now = min(job.restart.waits_since for job in jobs)
    first = max(job.restart.waits_since for job in jobs)
    predicted = predict(queue, first, policy) if predicts else {}
    play = Play(predicted={name: seconds_of(at) for name, at in predicted.items()})
    play.begun = play.starts
    ends: list[tuple[datetime, str]] = []
    now = first
    while queue.waiting or ends:
        done = []
        while ends and ends[0][0] <= now:
            done.append(heapq.heappop(ends)[1])
        admission = admit(ended(queue, done), now, policy)
        queue = admission.queue
        for each in admission.admitted:
            job = by_name[each.job]
            seconds = job.restart.bytes / (each.bytes_per_second * job.speed)
            end = now + timedelta(seconds=seconds)
            heapq.heappush(ends, (end, each.job))
            play.starts.append(Start(job, seconds_of(now), seconds_of(end), each.why, each.spread_seconds))
        load = sum(reading.bytes_per_second for reading in queue.reading) / policy.store_bytes_per_second
        play.peak_load = max(play.peak_load, load)
        looks = [ends[0][0]] if ends else []
        if admission.next_look_at is not None:
            looks.append(admission.next_look_at)
        if looks:
            now = max(min(looks), now)
    return play


def play_backoff(jobs: Sequence[Job], policy: AdmissionPolicy, *, store: Store, seed: int) -> Play:
    """Each job begins by itself after a wait of full jitter, longer after each restore that was given up."""
    draw = random.Random(seed)

    def wait(failures: int) -> float:
        drawn = not_before(BEGIN, failures=failures, seed=f"{draw.getrandbits(64):016x}", policy=policy)
        return seconds_of(drawn)

    return _play_alone(jobs, policy.store_bytes_per_second, wait, store)


def play_at_once(jobs: Sequence[Job], policy: AdmissionPolicy, *, store: Store) -> Play:
    """Each job begins at once, and again at once when its restore was given up."""
    return _play_alone(jobs, policy.store_bytes_per_second, lambda failures: 0.0, store)


def _play_alone(jobs: Sequence[Job], limit: float, wait: Callable[[int], float], store: Store) -> Play:
    """Nobody decides for all. All that read slow down by one factor, so one clock of work serves for all.

    ``work`` is the integral of that factor: a restore ends when it has grown by what the restore takes alone.
    """
    play = Play()
    at = work = load = 0.0
    failures = [1] * len(jobs)
    begun: dict[int, tuple[float, float]] = {}  # job -> when, and the work then
    starts = [(seconds_of(job.restart.waits_since) + wait(1), n) for n, job in enumerate(jobs)]
    heapq.heapify(starts)
    finishes: list[tuple[float, int]] = []  # by work; an entry that is not the job's present one is skipped
    timeouts: list[tuple[float, int]] = []
    while (starts or begun) and at < GIVE_UP_SECONDS:
        while finishes and not _is_present(begun, finishes[0], jobs):
            heapq.heappop(finishes)
        while (
            timeouts and begun.get(timeouts[0][1], (-1.0, 0.0))[0] + store.timeout_seconds != timeouts[0][0]
        ):
            heapq.heappop(timeouts)
        factor = 1.0 if load <= 1 else 1 / (load * (1 + store.kappa * (load - 1)))
        until_done = at + (finishes[0][0] - work) / factor if finishes else math.inf
        nexts = (until_done, starts[0][0] if starts else math.inf, timeouts[0][0] if timeouts else math.inf)
        then = min(*nexts, GIVE_UP_SECONDS)
        play.overloaded_seconds += (then - at) if load > 1 else 0.0
        work += (then - at) * factor
        at = then
        if at >= GIVE_UP_SECONDS:
            break
        if then == nexts[0]:
            work, n = heapq.heappop(finishes)
            play.starts.append(Start(jobs[n], begun.pop(n)[0], at))
            play.begun.append(play.starts[-1])
        elif then == nexts[1]:
            n = heapq.heappop(starts)[1]
            begun[n] = (at, work)
            heapq.heappush(finishes, (work + _alone_seconds(jobs[n]), n))
            heapq.heappush(timeouts, (at + store.timeout_seconds, n))
        else:
            n = heapq.heappop(timeouts)[1]
            began, since = begun.pop(n)
            play.begun.append(Start(jobs[n], began, at))
            play.wasted_bytes += jobs[n].restart.bytes * (work - since) / _alone_seconds(jobs[n])
            failures[n] += 1
            heapq.heappush(starts, (at + wait(failures[n]), n))
        rate = jobs[n].restart.bytes_per_second / limit
        load = load + rate if n in begun else (load - rate if begun else 0.0)
        play.peak_load = max(play.peak_load, load)
    play.begun += [Start(jobs[n], began, at) for n, (began, _) in begun.items()]
    play.lost = len(jobs) - len(play.starts)
    return play


def _is_present(
    begun: Mapping[int, tuple[float, float]], entry: tuple[float, int], jobs: Sequence[Job]
) -> bool:
    target, n = entry
    return n in begun and begun[n][1] + _alone_seconds(jobs[n]) == target


def _alone_seconds(job: Job) -> float:
    return job.restart.bytes / (job.restart.bytes_per_second * job.speed)


def least_share_of_fair(
    starts: Sequence[Start], weights: Mapping[str, float], *, window: float = 60.0
) -> float:
    """The worst any tenant fared: bytes read in a window in which it waited all the time, over its fair share.

    The fair share of a window's bytes is by the weights of the tenants that waited or read in it. Bytes are
    linear between starts and ends, so only windows that begin or end at one can be the worst. 1 when nobody waited
    for a whole window.
    """
    moments = sorted({moment for start in starts for moment in (start.begins, start.ends)})
    by_tenant: dict[str, list[Start]] = {}
    for start in starts:
        by_tenant.setdefault(start.job.restart.tenant, []).append(start)
    read = {tenant: _Bytes(of_tenant) for tenant, of_tenant in by_tenant.items()}
    waits = {tenant: _LastBegin(of_tenant) for tenant, of_tenant in by_tenant.items()}
    worst = 1.0
    for begin in (begin for moment in moments for begin in (moment, moment - window)):
        end = begin + window
        served = {tenant: bytes_.between(begin, end) for tenant, bytes_ in read.items()}
        waiting = {tenant for tenant, last in waits.items() if last.of_ready_at(begin) >= end}
        total = math.fsum(served.values())
        present = sorted(waiting | {tenant for tenant, bytes_ in served.items() if bytes_ > 0})
        all_weights = math.fsum(weights.get(tenant, 1.0) for tenant in present)
        for tenant in sorted(waiting) if total > 0 else ():
            fair = weights.get(tenant, 1.0) / all_weights
            worst = min(worst, served[tenant] / total / fair)
    return worst


class _LastBegin:
    """When the last of those restores began that might begin at a moment."""

    def __init__(self, starts: Sequence[Start]) -> None:
        ready = sorted((seconds_of(start.job.restart.not_before), start.begins) for start in starts)
        self.moments = [moment for moment, _ in ready]
        self.last = list(itertools.accumulate((begins for _, begins in ready), max))

    def of_ready_at(self, moment: float) -> float:
        n = bisect.bisect_right(self.moments, moment) - 1
        return self.last[n] if n >= 0 else -math.inf


class _Bytes:
    """Bytes that some restores have read until a moment: linear between their begins and ends."""

    def __init__(self, starts: Sequence[Start]) -> None:
        changes: dict[float, float] = {}
        for start in starts:
            rate = start.job.restart.bytes / max(start.ends - start.begins, 1e-6)
            changes[start.begins] = changes.get(start.begins, 0.0) + rate
            changes[start.ends] = changes.get(start.ends, 0.0) - rate
        self.moments = sorted(changes)
        self.rates: list[float] = []
        self.until: list[float] = []
        rate = total = 0.0
        for n, moment in enumerate(self.moments):
            total += rate * (moment - self.moments[n - 1]) if n else 0.0
            rate += changes[moment]
            self.rates.append(rate)
            self.until.append(total)

    def between(self, begin: float, end: float) -> float:
        return self._at(end) - self._at(begin)

    def _at(self, moment: float) -> float:
        n = bisect.bisect_right(self.moments, moment) - 1
        return 0.0 if n < 0 else self.until[n] + self.rates[n] * (moment - self.moments[n])


def _evenly_on_log(draw: random.Random, least: float, most: float) -> float:
    return math.exp(draw.uniform(math.log(least), math.log(most)))


def seconds_of(at: datetime) -> float:
    return (at - BEGIN).total_seconds()
