"""What the log of a played storm shows of the promises: budgets, and the order of priority.

Nothing here asks the queue or reads the rule that it gives with a start (``Start.why``): who waited, what was free
and what was to come free is worked out anew, from when restores began and ended and from what each needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from incidentdesk.bench.storm_play import Job, Play, Start, seconds_of
from recovery.admission import AdmissionPolicy, Dependency

STORE = "storage"
# A restore that should have ended by now is expected to take this share of its length more, as the queue expects.
_OVERDUE_SHARE = 0.05
# Amounts are sums of floats, and times have microseconds: less than this is rounding.
_SHARE_ROUNDING = 1e-9
_SECONDS_ROUNDING = 2e-6


@dataclass(frozen=True, slots=True)
class Passed:
    """A start while one of higher priority of the same tenant waited, past its jitter.

    ``could_begin``: every budget had room for the other right before this start. ``put_off_seconds``: by how much
    the first moment moved at which every budget has room for the other. The two exceptions: ``is_longest``, this
    restore would have ended after all others, had it waited longer; ``is_hungry``, the tenant read less than the
    policy's ``hungry_share`` of its fair share, or soon would have.
    """

    job: str
    other: str
    at: float
    could_begin: bool
    put_off_seconds: float
    is_longest: bool
    is_hungry: bool

    @property
    def is_harmless(self) -> bool:
        """Whether the other could not have begun and begins no later for it."""
        return not self.could_begin and self.put_off_seconds <= _SECONDS_ROUNDING

    @property
    def is_excused(self) -> bool:
        """Whether an exception covers it. Hunger covers putting off, never beginning before one that could."""
        return self.is_longest or (self.is_hungry and not self.could_begin)


def use_of_budgets(play: Play, policy: AdmissionPolicy) -> dict[str, float]:
    """The most that was asked of each budget, as a share of what it allows: more than 1 is too much.

    Of the store: the caps of all that read at once. Of a bucket: at most burst + per_second * t is spent in any
    time t exactly where a level that begins full, refills and is drawn down never falls below nothing.
    """
    limit = policy.store_bytes_per_second
    edges = [(start.begins, 1, _rate(start.job, limit)) for start in play.begun]
    edges += [(start.ends, 0, -_rate(start.job, limit)) for start in play.begun]
    used = {STORE: max(itertools.accumulate(rate for *_, rate in sorted(edges)), default=0.0) / limit}
    for name, bucket in policy.buckets.items():
        level = least = bucket.burst
        drain = at = 0.0
        for moment, at_once, rate in _spending(play.begun, name):
            level = min(bucket.burst, level + (bucket.per_second - drain) * (moment - at)) - at_once
            least = min(least, level)
            drain += rate
            at = moment
        used[str(name)] = 1 - least / bucket.burst
    return used


def _spending(begun: Iterable[Start], name: Dependency) -> list[tuple[float, float, float]]:
    """(seconds, tokens at once, change of tokens a second), in order: a start that is told to spread its own does."""
    found = []
    for start in begun:
        amount = start.job.restart.tokens.get(name, 0.0)
        if (spread := start.spread.get(name, 0.0)) > _SECONDS_ROUNDING:
            found.append((start.begins, 0.0, amount / spread))
            found.append((start.begins + spread, 0.0, -amount / spread))
        else:
            found.append((start.begins, amount, 0.0))
    return sorted(found)


def passed(starts: Sequence[Start], policy: AdmissionPolicy) -> list[Passed]:
    """Every pair of one tenant in which the lower priority began first although the higher one waited for its turn.

    ``starts`` are in the order in which they happened, also within one moment.
    """
    found = []
    field = _Field(policy)
    for n, start in enumerate(starts):
        restart, now = start.job.restart, start.begins
        field.move(now)
        higher = [
            other.job
            for other in itertools.islice(starts, n + 1, None)
            if other.job.restart.tenant == restart.tenant
            and other.job.restart.priority > restart.priority
            and other.begins > now
            and seconds_of(other.job.restart.not_before) <= now
        ]
        if higher:
            waits = [s.job for s in starts[n:] if seconds_of(s.job.restart.not_before) <= now]
            is_longest = field.would_end_last(start.job, waits)
            is_hungry = field.is_hungry(restart.tenant, waits)
            for other in higher:
                alone = field.first_room(other)
                beside = field.first_room(other, beside=start.job)
                could = alone <= now
                found.append(
                    Passed(
                        restart.job,
                        other.restart.job,
                        now,
                        could_begin=could,
                        put_off_seconds=beside - alone,
                        is_longest=is_longest,
                        is_hungry=is_hungry,
                    )
                )
        field.begin(start)
    return found


class _Field:
    """What reads and what is left of each budget while a log is read from its begin."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy = policy
        self.store = policy.store_bytes_per_second
        self.now = 0.0
        self.reading: list[Start] = []
        self.levels = {name: bucket.burst for name, bucket in policy.buckets.items()}

    def move(self, now: float) -> None:
        for name, bucket in self.policy.buckets.items():
            refilled = self.levels[name] + bucket.per_second * (now - self.now)
            self.levels[name] = min(bucket.burst, refilled)
        self.reading = [start for start in self.reading if start.ends > now]
        self.now = now

    def begin(self, start: Start) -> None:
        self.reading.append(start)
        for name in self.levels:
            self.levels[name] -= start.job.restart.tokens.get(name, 0.0)

    def first_room(self, job: Job, beside: Job | None = None) -> float:
        """When every budget has room for it, if nobody else begins but the one ``beside`` it, now."""
        ends = [(self._expected_end(start), _rate(start.job, self.store)) for start in self.reading]
        levels = dict(self.levels)
        if beside is not None:
            ends.append((self.now + _seconds(beside, self.store), _rate(beside, self.store)))
            for name in levels:
                levels[name] -= beside.restart.tokens.get(name, 0.0)
        at = self.now
        free = self.store - math.fsum(rate for _, rate in ends)
        ends.sort(reverse=True)
        while free < _rate(job, self.store) - _SHARE_ROUNDING * self.store:
            at, rate = ends.pop()
            free += rate
        for name, bucket in self.policy.buckets.items():
            amount = min(job.restart.tokens.get(name, 0.0), bucket.burst)
            if amount > 0 and (short := amount * (1 - _SHARE_ROUNDING) - levels[name]) > 0:
                at = max(at, self.now + short / bucket.per_second)
        return at

    def would_end_last(self, job: Job, waiting: Sequence[Job]) -> bool:
        """Whether it reads as long as all that waits or reads takes at best, within the policy's margin."""
        left = [
            (max(0.0, self._planned_end(start) - self.now), _rate(start.job, self.store))
            for start in self.reading
        ]
        total = math.fsum(each.restart.bytes for each in waiting) + math.fsum(s * rate for s, rate in left)
        rest = max([total / self.store, *(seconds for seconds, _ in left)])
        return _seconds(job, self.store) * self.policy.length_margin >= rest * (1 - _SECONDS_ROUNDING)

    def is_hungry(self, tenant: str, waiting: Sequence[Job]) -> bool:
        """Whether what it reads for a while yet is less than the policy's least share of its fair share."""
        soon = self.now + self.policy.floor_ahead_seconds
        lasting = math.fsum(
            _rate(start.job, self.store)
            for start in self.reading
            if start.job.restart.tenant == tenant
            and (self._planned_end(start) > soon or start.begins == self.now)
        )
        jobs = [*waiting, *(start.job for start in self.reading)]
        weights = {job.restart.tenant: self.policy.weights.get(job.restart.tenant, 1.0) for job in jobs}
        fair = self.store * weights[tenant] / math.fsum(weights.values())
        return lasting < self.policy.hungry_share * fair

    def _planned_end(self, start: Start) -> float:
        return start.begins + _seconds(start.job, self.store)

    def _expected_end(self, start: Start) -> float:
        length = _seconds(start.job, self.store)
        return max(self._planned_end(start), self.now + _OVERDUE_SHARE * length)


def _rate(job: Job, store: float) -> float:
    return min(job.restart.bytes_per_second, store)


def _seconds(job: Job, store: float) -> float:
    return job.restart.bytes / _rate(job, store)
