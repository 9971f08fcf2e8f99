"""The restart queue of a shared store: who may read its checkpoint back now, and when the others will.

A failure of something shared ends many jobs in one second; all of them then want the same store, registry and
API server. The queue lets a restart begin only while every budget has room for it. It decides starts and nothing
else: a restore that has begun reads at its job's own cap until it is done. Source: DOMAIN section 8.

Who is next, first rule that names one:

1. ``fair_share``: a tenant that reads less than ``hungry_share`` of its fair share, the neediest first, and of its
   highest priority one that fits now;
2. ``length``: a restore that would end after all others, were it to wait longer;
3. ``fair_share``: the same for a tenant that reads less than ``floor_share``;
4. ``priority``: the highest priority; at equal ones the tenant that reads least for its weight, then the longest.

Where the next one does not fit yet, room is kept for it: others begin meanwhile only if they do not delay it
(``backfill``). A failure that is alone (``lone``) waits for no jitter while use is below ``lone_use_share``.

Order of priority: while one of a tenant waits, past its jitter, none of a lower priority of that tenant begins if
every budget has room for the higher one, or if the higher one would have room later for it. Two exceptions: rule 2,
and a tenant that reads less than ``hungry_share``: its narrow ones may put its own wide one off. Without the first,
all would end later; without the second, a tenant would read nothing while room comes free for its wide one.
"""

from __future__ import annotations

import bisect
import itertools
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
    hungry_share: float = 0.6  # of the fair share: below it nothing but the budgets goes before it
    floor_ahead_seconds: float = 20.0  # what ends within this is not counted on for either
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
    """A restart that begins now. What it spends of a dependency in ``spread_seconds`` is to be spread so long."""

    job: str
    why: Why
    reason: str
    bytes_per_second: float
    ends_at: datetime
    spread_seconds: Mapping[Dependency, float] = field(default_factory=dict)


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
        self.wronged: dict[str, Restart] = {}  # by tenant, who last kept another from its start: asked first
        self.coming_free: tuple[list[datetime], list[float]] | None = None
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
        poorest = min(self.ready, key=lambda tenant: (self._lasting_for_weight(tenant), tenant))
        longest = self._longest()
        if longest.tenant != poorest and self._reads_below(self.policy.hungry_share, poorest):
            return self._of_poorest(poorest)
        rest = self._rest_seconds(self.seconds(longest))
        if self.seconds(longest) * self.policy.length_margin >= rest:
            reason = f"it reads for {self.seconds(longest):.0f} s, and all that is left takes {rest:.0f} s"
            return longest, Why.LENGTH, reason
        if self._reads_below(self.policy.floor_share, poorest):
            return self._of_poorest(poorest)
        restart = min(
            (restarts[0] for restarts in self.ready.values()),
            key=lambda each: (-each.priority, self._held_for_weight(each.tenant), _order(each)),
        )
        return restart, Why.PRIORITY, f"priority {restart.priority} is the highest that waits"

    def _of_poorest(self, tenant: str) -> tuple[Restart, Why, str]:
        held, fair = self.lasting_by_tenant.get(tenant, 0.0), self._fair_rate(tenant)
        reason = f"tenant {tenant} will soon read at {_rate(held)}, its fair share is {_rate(fair)}"
        return self._first_that_fits(self.ready[tenant]), Why.FAIR_SHARE, reason

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
        spread: dict[Dependency, float] = {}
        for name, amount in restart.tokens.items():
            if name in self.levels:
                self.levels[name] -= amount
                over = -self.levels[name]
                if over > _ROUNDING * amount:
                    spread[name] = over / self.policy.buckets[name].per_second
        ends_at = self.now + timedelta(seconds=self.seconds(restart))
        self.reading.append(Reading(restart, rate, self.now, ends_at))
        self.coming_free = None
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
        spare = self._free_at(held.starts_at) - self.rate(head)
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
            if self.fits(restart) and self._spares_tokens(restart, head, wait) and self._keeps_order(restart):
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
            if not self._reads_below(self.policy.floor_share, tenant):
                continue
            for restart in self._beside(self.ready[tenant], head, wait, spare):
                yield restart
                if not self._reads_below(self.policy.floor_share, tenant):
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

    def _reads_below(self, share: float, tenant: str) -> bool:
        """Whether it reads less of its fair share, or soon will: room for a wide restart takes time to come free."""
        least = share * self._fair_rate(tenant)
        return self.lasting_by_tenant.get(tenant, 0.0) < least * (1 - _ROUNDING)

    def _keeps_order(self, restart: Restart) -> bool:
        """Whether its start wrongs nobody of a higher priority of its tenant."""
        tenant = restart.tenant
        wronged = self.wronged.get(tenant)
        if wronged is not None and wronged.priority > restart.priority and self._wrongs(restart, wronged):
            return False
        for other in self.ready[tenant]:
            if other.priority <= restart.priority:
                return True
            if self._wrongs(restart, other):
                self.wronged[tenant] = other
                return False
        return True

    def _wrongs(self, restart: Restart, other: Restart) -> bool:
        """Whether the other could begin now, or would have room later for this one's start."""
        if other.job in self.begun:
            return False
        if self.fits(other):
            return True
        if self._reads_below(self.policy.hungry_share, restart.tenant):
            return False
        at = max(self._bandwidth_comes(other), self._tokens_come(other))
        wait = (at - self.now).total_seconds()
        if not self._spares_tokens(restart, other, wait):
            return True
        return self.seconds(restart) > wait and not self._fits_rate(
            other, self._free_at(at) - self.rate(restart)
        )

    def _bandwidth_comes(self, restart: Restart) -> datetime:
        """When the store has room for it, if all that reads ends as predicted."""
        if self._fits_rate(restart, self.free):
            return self.now
        ends, free = self._coming_free()
        return ends[min(bisect.bisect_left(free, self._needed_rate(restart)), len(ends) - 1)]

    def _tokens_come(self, restart: Restart) -> datetime:
        """When every bucket has its tokens."""
        short = [
            (need - self.levels[name]) / self.policy.buckets[name].per_second
            for name, need in self._needs(restart)
        ]
        return self.now + timedelta(seconds=max([0.0, *short]))

    def _free_at(self, at: datetime) -> float:
        """What of the store is free then, of what is free now and what ends as predicted."""
        ends, free = self._coming_free()
        n = bisect.bisect_right(ends, at)
        return free[n - 1] if n else self.free

    def _coming_free(self) -> tuple[list[datetime], list[float]]:
        """(expected ends in order, what of the store is free from each on)."""
        if self.coming_free is None:
            order = sorted((self._end(each), each.bytes_per_second) for each in self.reading)
            free = itertools.accumulate((rate for _, rate in order), initial=self.free)
            self.coming_free = [end for end, _ in order], list(free)[1:]
        return self.coming_free

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
        return self._needed_rate(restart) <= free

    def _needed_rate(self, restart: Restart) -> float:
        return self.rate(restart) - self.store * _ROUNDING

    def _needs(self, restart: Restart) -> list[tuple[Dependency, float]]:
        """Tokens that must be there; a start that is larger than the bucket needs it full."""
        return [
            (name, min(amount, self.policy.buckets[name].burst))
            for name, amount in restart.tokens.items()
            if amount > 0 and name in self.levels
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
