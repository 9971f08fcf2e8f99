"""The restart queue of a shared store: who may read its checkpoint back now, and when the others will.

A failure of something shared ends many jobs in one second; all of them then want the same store, registry and
API server. The queue lets a restart begin only while every budget has room for it. It decides starts and nothing
else: a restore that has begun reads at its job's own cap until it is done. Source: DOMAIN section 8.

Who is next, first rule that names one:

1. ``length``: a restore that would end after all others, were it to wait longer;
2. ``fair_share``: a tenant that reads less than ``floor_share`` of its fair share, the neediest first, and of its
   highest priority one that fits now;
3. ``priority``: the highest priority; at equal ones the tenant that reads least for its weight, then the longest.

Within a tenant it is always the highest priority, then the longest (but for rule 1). Where the next one does not
fit yet, room is kept for it: others begin meanwhile only if they do not delay it (``backfill``). A failure that is
alone (``lone``) waits for no jitter while use is below ``lone_use_share``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from recovery.errors import BadInput
from recovery.ladder import fraction

# Amounts are sums of floats: what is over by less than this share is rounding, not room.
_ROUNDING = 1e-9
# A restore that should have ended by now is expected to take this share of its length more.
_OVERDUE_SHARE = 0.05
# What a calendar can hold: an end that it has not would stop the queue for all.
_LONGEST_SECONDS = 366 * 86_400.0
# A start that waits for tokens is looked at when they are there, and a microsecond later at the earliest.
_LEAST_WAIT = timedelta(microseconds=1)


class Dependency(StrEnum):
    """What restarts share besides the store's bandwidth: each is a bucket of tokens."""

    STORAGE_METADATA = "storage_metadata"  # operations
    IMAGE_REGISTRY = "image_registry"  # pulls
    API_SERVER = "api_server"  # requests
    RENDEZVOUS = "rendezvous"  # joins


class Why(StrEnum):
    """Which rule let a restart begin."""

    LONE = "lone"
    FAIR_SHARE = "fair_share"
    LENGTH = "length"
    PRIORITY = "priority"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A budget of tokens: ``per_second`` come in, at most ``burst`` are kept."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Budgets of one store and of what goes with it. Weights default to 1."""

    store_bytes_per_second: float
    buckets: Mapping[Dependency, Bucket] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    lone_use_share: float = 0.5
    floor_share: float = 0.85  # of the fair share: half must be had in any minute, the rest is for gaps
    floor_ahead_seconds: float = 10.0  # what ends within this is not counted on for the floor
    length_margin: float = 1.05  # a restore this much shorter than all that is left may still wait
    backoff_base_seconds: float = 5.0
    backoff_factor: float = 2.0
    backoff_cap_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Restart:
    """A job that waits to read its checkpoint back.

    ``bytes_per_second`` is its own cap: how fast it reads when nothing holds it back. ``tokens`` are what its
    start spends, by dependency. Higher ``priority`` first. Times are aware, UTC.
    """

    job: str
    tenant: str
    bytes: float
    bytes_per_second: float
    waits_since: datetime
    not_before: datetime
    priority: int = 0
    tokens: Mapping[Dependency, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """A restore that has begun. ``ends_at`` is predicted from its cap; it ends when it is seen to."""

    restart: Restart
    bytes_per_second: float
    started_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Level:
    """Tokens of a bucket at a time. Below zero: spent ahead by a start that is larger than the bucket."""

    tokens: float
    at: datetime


@dataclass(frozen=True, slots=True)
class Queue:
    """The state of a queue. A bucket without a level is full. ``waiting`` is in the order that ``join`` keeps."""

    waiting: tuple[Restart, ...] = ()
    reading: tuple[Reading, ...] = ()
    levels: Mapping[Dependency, Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A restart that begins now. Its token operations are to be spread over ``spread_seconds``."""

    job: str
    why: Why
    reason: str
    bytes_per_second: float
    ends_at: datetime
    spread_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """The restart that is next and does not fit yet.

    ``is_time_enough``: it waits for tokens alone; else for a restore to end, whenever that is.
    """

    job: str
    reason: str
    starts_at: datetime
    is_time_enough: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """What one look at the queue gave. ``next_look_at`` is None when nothing waits for time alone."""

    admitted: tuple[Admitted, ...]
    queue: Queue
    held: Held | None
    next_look_at: datetime | None


def not_before(died_at: datetime, *, failures: int, seed: str, policy: AdmissionPolicy) -> datetime:
    """When a job may begin again at the earliest: exponential backoff with full jitter.

    Args:
        failures: Failures of the job in the window, this one included (>= 1).
        seed: Jitter seed of the job (hexadecimal), so that a replay waits as long.
    """
    ceiling = min(
        policy.backoff_cap_seconds,
        policy.backoff_base_seconds * policy.backoff_factor ** min(max(failures, 1) - 1, 32),
    )
    return died_at + timedelta(seconds=ceiling * fraction(seed))


def check(policy: AdmissionPolicy) -> None:
    """Refuse budgets that nothing could ever pass. Raises BadInput with the number."""
    if not policy.store_bytes_per_second > 0:
        raise BadInput(
            f"the store's budget is {policy.store_bytes_per_second:g} bytes/s: nothing could be read"
        )
    for name, bucket in policy.buckets.items():
        if not (bucket.per_second > 0 and bucket.burst > 0):
            raise BadInput(
                f"{name}: {bucket.per_second:g} a second with a burst of {bucket.burst:g} lets nothing pass"
            )
    for tenant, weight in policy.weights.items():
        if not weight > 0:
            raise BadInput(f"tenant {tenant} has weight {weight:g}: it would wait for ever")


def join(queue: Queue, restart: Restart) -> Queue:
    """The queue with one more that waits; what was known of the same job is replaced.

    One that still reads has died while it read: it gives that back, and waits anew.

    Raises BadInput for a restart that could never end, or whose tokens no bucket could count.
    """
    if not (restart.bytes >= 0 and restart.bytes_per_second > 0 and math.isfinite(restart.bytes)):
        raise BadInput(
            f"{restart.job}: {restart.bytes:g} bytes at {restart.bytes_per_second:g} bytes/s cannot be read back"
        )
    if restart.bytes > restart.bytes_per_second * _LONGEST_SECONDS:
        raise BadInput(
            f"{restart.job}: {restart.bytes:g} bytes at {restart.bytes_per_second:g} bytes/s take over a year"
        )
    for name, amount in restart.tokens.items():
        if not (amount >= 0 and math.isfinite(amount)):
            raise BadInput(f"{restart.job}: {amount:g} tokens of {name} cannot be spent")
    waiting = [each for each in queue.waiting if each.job != restart.job]
    bisect.insort(waiting, restart, key=_order)
    reading = tuple(each for each in queue.reading if each.restart.job != restart.job)
    return replace(queue, waiting=tuple(waiting), reading=reading)


def ended(queue: Queue, jobs: Iterable[str]) -> Queue:
    """The queue after these jobs were seen restored, or left it for another reason."""
    gone = frozenset(jobs)
    return replace(
        queue,
        waiting=tuple(restart for restart in queue.waiting if restart.job not in gone),
        reading=tuple(reading for reading in queue.reading if reading.restart.job not in gone),
    )


def admit(queue: Queue, now: datetime, policy: AdmissionPolicy) -> Admission:
    """Let begin what may begin now. The same queue, time and policy give the same starts.

    No budget is exceeded: the caps of all that read add up to at most the store's bandwidth (a job whose cap is
    higher counts as the whole store), and in any time t a bucket spends at most burst + per_second * t, provided
    that starts spread their operations as told.
    """
    desk = _Look(queue, now, policy)
    admitted: list[Admitted] = []
    held: Held | None = None
    while (found := desk.next()) is not None:
        restart, why, reason = found
        if not desk.fits(restart):
            held = desk.hold(restart)
            break
        admitted.append(desk.begin(restart, why, reason))
    if held is not None:
        admitted += desk.backfill(held)
    looks = [restart.not_before for restart in desk.early]
    if held is not None and held.is_time_enough:
        looks.append(held.starts_at)
    return Admission(tuple(admitted), desk.after(), held, min(looks, default=None))


def predict(queue: Queue, now: datetime, policy: AdmissionPolicy) -> dict[str, datetime]:
    """When each waiting job will begin, if restores take as long as their caps say and nobody else comes."""
    starts: dict[str, datetime] = {}
    while queue.waiting:
        admission = admit(queue, now, policy)
        starts |= {each.job: now for each in admission.admitted}
        queue = admission.queue
        if not queue.waiting:
            break
        ends = [reading.ends_at for reading in queue.reading]
        looks = [*ends, *([admission.next_look_at] if admission.next_look_at else [])]
        now = max(min(looks), now + _LEAST_WAIT)
        queue = ended(queue, [reading.restart.job for reading in queue.reading if reading.ends_at <= now])
    return starts


class _Look:
    """One look at a queue: what is left of each budget while starts are chosen. Lives only inside ``admit``.

    A storm is looked at thousands of times with a thousand jobs in it, so sums are kept and not made anew.
    """

    def __init__(self, queue: Queue, now: datetime, policy: AdmissionPolicy) -> None:
        self.queue, self.now, self.policy = queue, now, policy
        self.store = policy.store_bytes_per_second
        self.reading = list(queue.reading)
        self.held_by_tenant: dict[str, float] = {}
        self.lasting_by_tenant: dict[str, float] = {}  # without what ends soon
        soon = now + timedelta(seconds=policy.floor_ahead_seconds)
        for reading in queue.reading:
            self._hold_rate(reading.restart.tenant, reading.bytes_per_second, lasts=reading.ends_at > soon)
        self.free = self.store - math.fsum(reading.bytes_per_second for reading in queue.reading)
        self.levels = {
            name: _refilled(queue.levels.get(name), bucket, now) for name, bucket in policy.buckets.items()
        }
        self.is_lone = len(queue.waiting) == 1 and self.use() < policy.lone_use_share
        self.early = [r for r in queue.waiting if not self.is_lone and r.not_before > now]
        self.ready: dict[str, list[Restart]] = {}  # by tenant, the next one first
        self.waiting_bytes = 0.0
        for restart in queue.waiting:
            if self.is_lone or restart.not_before <= now:
                self.ready.setdefault(restart.tenant, []).append(restart)
                self.waiting_bytes += restart.bytes
        self.begun: set[str] = set()
        self.present: tuple[str, ...] = ()  # tenants that wait or read; only more come during a look
        self.weights = 0.0

    def use(self) -> float:
        """The most used budget's share, 0 to 1."""
        shares = [1 - self.free / self.store]
        shares += [1 - self.levels[name] / bucket.burst for name, bucket in self.policy.buckets.items()]
        return max(shares)

    def rate(self, restart: Restart) -> float:
        """What it takes of the store while it reads."""
        return min(restart.bytes_per_second, self.store)

    def seconds(self, restart: Restart) -> float:
        """How long it reads."""
        return restart.bytes / self.rate(restart)

    def next(self) -> tuple[Restart, Why, str] | None:
        """Who is next, by which rule, and why in words."""
        if not self.ready:
            return None
        if self.is_lone:
            (restarts,) = self.ready.values()
            return restarts[0], Why.LONE, f"alone, and {self.use():.0%} is in use"
        longest = self._longest()
        rest = self._rest_seconds(self.seconds(longest))
        if self.seconds(longest) * self.policy.length_margin >= rest:
            reason = f"it reads for {self.seconds(longest):.0f} s, and all that is left takes {rest:.0f} s"
            return longest, Why.LENGTH, reason
        poorest = min(self.ready, key=lambda tenant: (self._lasting_for_weight(tenant), tenant))
        if self._is_below_floor(poorest):
            held, fair = self.lasting_by_tenant.get(poorest, 0.0), self._fair_rate(poorest)
            reason = f"tenant {poorest} will soon read at {_rate(held)}, its fair share is {_rate(fair)}"
            return self._first_that_fits(self.ready[poorest]), Why.FAIR_SHARE, reason
        restart = min(
            (restarts[0] for restarts in self.ready.values()),
            key=lambda each: (-each.priority, self._held_for_weight(each.tenant), _order(each)),
        )
        return restart, Why.PRIORITY, f"priority {restart.priority} is the highest that waits"

    def _first_that_fits(self, restarts: Sequence[Restart]) -> Restart:
        """Of the highest priority one that fits now, else the first: a narrow one does not wait for a wide one."""
        for restart in restarts:
            if restart.priority < restarts[0].priority:
                break
            if self.fits(restart):
                return restart
        return restarts[0]

    def fits(self, restart: Restart) -> bool:
        """Whether every budget has room for it now."""
        return self._fits_rate(restart, self.free) and all(
            self.levels[name] >= need * (1 - _ROUNDING) for name, need in self._needs(restart)
        )

    def begin(self, restart: Restart, why: Why, reason: str) -> Admitted:
        """Take its budgets."""
        restarts = self.ready[restart.tenant]
        restarts.remove(restart)
        if not restarts:
            del self.ready[restart.tenant]
        self.begun.add(restart.job)
        self.waiting_bytes -= restart.bytes
        rate = self.rate(restart)
        self.free -= rate
        self._hold_rate(restart.tenant, rate)
        spread = 0.0
        for name, amount in restart.tokens.items():
            if name in self.levels:
                self.levels[name] -= amount
                spread = max(spread, -self.levels[name] / self.policy.buckets[name].per_second)
        ends_at = self.now + timedelta(seconds=self.seconds(restart))
        self.reading.append(Reading(restart, rate, self.now, ends_at))
        return Admitted(restart.job, why, reason, rate, ends_at, spread)

    def hold(self, restart: Restart) -> Held:
        """When it will fit, if all that reads ends as predicted, and what it waits for."""
        at, reason = self.now, ""
        free = self.free
        if not self._fits_rate(restart, free):
            reason = f"{_rate(self.rate(restart))} of the store are needed, {_rate(max(free, 0.0))} are free"
            for end, rate in sorted((self._end(each), each.bytes_per_second) for each in self.reading):
                free += rate
                at = max(at, end)
                if self._fits_rate(restart, free):
                    break
        for name, need in self._needs(restart):
            short = need - self.levels[name]
            if short <= 0:
                continue
            filled = self.now + timedelta(seconds=short / self.policy.buckets[name].per_second)
            if filled > at or not reason:
                reason = f"{need:.0f} tokens of {name} are needed, {self.levels[name]:.0f} are there"
            at = max(at, filled)
        return Held(restart.job, reason, max(at, self.now + _LEAST_WAIT), self._fits_rate(restart, self.free))

    def backfill(self, held: Held) -> list[Admitted]:
        """Begin what fits now and takes nothing that the held one needs when its time comes."""
        head = next(r for restarts in self.ready.values() for r in restarts if r.job == held.job)
        ends = math.fsum(r.bytes_per_second for r in self.reading if self._end(r) <= held.starts_at)
        spare = self.free + ends - self.rate(head)
        wait = (held.starts_at - self.now).total_seconds()
        admitted: list[Admitted] = []
        reason = f"it fits beside, and {head.job} begins no later for it"
        for restart in self._for_backfill(head, wait, spare):
            rate = self.rate(restart)
            if rate > self.free:
                continue
            is_over_in_time = self.seconds(restart) <= wait
            if not is_over_in_time and rate > spare:
                continue
            if self.fits(restart) and self._spares_tokens(restart, head, wait):
                spare -= 0.0 if is_over_in_time else rate
                admitted.append(self.begin(restart, Why.BACKFILL, reason))
        return admitted

    def after(self) -> Queue:
        """The queue with what has begun."""
        return Queue(
            waiting=tuple(r for r in self.queue.waiting if r.job not in self.begun),
            reading=tuple(self.reading),
            levels={name: Level(tokens, self.now) for name, tokens in self.levels.items()},
        )

    def _for_backfill(self, head: Restart, wait: float, spare: float) -> Iterator[Restart]:
        """Who may begin beside the held one: of tenants below their floor while they are, then by priority."""
        for tenant in sorted(self.ready, key=lambda each: (self._lasting_for_weight(each), each)):
            if not self._is_below_floor(tenant):
                continue
            for restart in self._beside(self.ready[tenant], head, wait, spare):
                yield restart
                if not self._is_below_floor(tenant):
                    break
        rest = [r for restarts in self.ready.values() for r in self._beside(restarts, head, wait, spare)]
        yield from sorted(rest, key=_order)

    def _beside(self, restarts: Iterable[Restart], head: Restart, wait: float, spare: float) -> list[Restart]:
        """Those that the free bandwidth could take now, and that are over in time or narrow enough."""
        return [
            r
            for r in restarts
            if r.bytes_per_second <= self.free
            and (r.bytes_per_second <= spare or r.bytes <= wait * r.bytes_per_second * (1 + _ROUNDING))
            and r is not head
        ]

    def _is_below_floor(self, tenant: str) -> bool:
        """Whether it reads too little, or soon will: room for a wide restart takes time to come free."""
        floor = self.policy.floor_share * self._fair_rate(tenant)
        return self.lasting_by_tenant.get(tenant, 0.0) < floor * (1 - _ROUNDING)

    def _hold_rate(self, tenant: str, rate: float, *, lasts: bool = True) -> None:
        self.held_by_tenant[tenant] = self.held_by_tenant.get(tenant, 0.0) + rate
        self.lasting_by_tenant[tenant] = self.lasting_by_tenant.get(tenant, 0.0) + (rate if lasts else 0.0)

    def _weight(self, tenant: str) -> float:
        return self.policy.weights.get(tenant, 1.0)

    def _held_for_weight(self, tenant: str) -> float:
        return self.held_by_tenant.get(tenant, 0.0) / self._weight(tenant)

    def _lasting_for_weight(self, tenant: str) -> float:
        return self.lasting_by_tenant.get(tenant, 0.0) / self._weight(tenant)

    def _fair_rate(self, tenant: str) -> float:
        if len(self.present) != len(self.ready.keys() | self.held_by_tenant.keys()):
            self.present = tuple(sorted(self.ready.keys() | self.held_by_tenant.keys()))
            self.weights = math.fsum(self._weight(each) for each in self.present)
        return self.store * self._weight(tenant) / self.weights

    def _longest(self) -> Restart:
        """The restart that reads longest; of equal ones the first in order."""
        best: Restart | None = None
        seconds = -1.0
        for restarts in self.ready.values():
            for restart in restarts:
                if (length := restart.bytes / restart.bytes_per_second) > seconds:
                    best, seconds = restart, length
        assert best is not None
        return best

    def _rest_seconds(self, longest: float) -> float:
        """How long all that waits or reads takes at best: by the store's bandwidth, and by the longest one."""
        total = self.waiting_bytes
        for reading in self.reading:
            left = max(0.0, (reading.ends_at - self.now).total_seconds())
            total += reading.bytes_per_second * left
            longest = max(longest, left)
        return max(total / self.store, longest)

    def _end(self, reading: Reading) -> datetime:
        """When it is expected to end; one that is overdue, a little later than now."""
        length = reading.ends_at - reading.started_at
        return max(reading.ends_at, self.now + _OVERDUE_SHARE * length)

    def _fits_rate(self, restart: Restart, free: float) -> bool:
        return self.rate(restart) <= free + self.store * _ROUNDING

    def _needs(self, restart: Restart) -> list[tuple[Dependency, float]]:
        """Tokens that must be there; a start that is larger than the bucket needs it full."""
        return [
            (name, min(amount, self.policy.buckets[name].burst))
            for name, amount in restart.tokens.items()
            if name in self.levels
        ]

    def _spares_tokens(self, restart: Restart, head: Restart, wait: float) -> bool:
        """Whether the held one has its tokens in time although this one takes some."""
        for name, need in self._needs(head):
            bucket = self.policy.buckets[name]
            left = self.levels[name] - restart.tokens.get(name, 0.0)
            if left + bucket.per_second * wait < need * (1 - _ROUNDING):
                return False
        return True


def _order(restart: Restart) -> tuple[float, float, datetime, str]:
    """Within a tenant: the highest priority, then the longest, then who has waited longest."""
    return (
        -restart.priority,
        -restart.bytes / restart.bytes_per_second,
        restart.waits_since,
        restart.job,
    )


def _refilled(level: Level | None, bucket: Bucket, now: datetime) -> float:
    if level is None:
        return bucket.burst
    waited = max(0.0, (now - level.at).total_seconds())
    return min(bucket.burst, level.tokens + bucket.per_second * waited)


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s"
