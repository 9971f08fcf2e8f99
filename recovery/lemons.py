"""Which nodes fail over and over: score over 7 and 30 days, flaps, probation. Pure functions of a node's history.

Sources: DOMAIN section 9; complaints R21 (passes idle, fails under load), R22 (flapping), R45 (few nodes fail over
and over, per node and per slot).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Offence:
    """One failure for which a node was to blame. ``slot`` = the GPU or port, "" where it was the whole node.

    ``weight`` 1 for what a check or a device error proved; less for a suspicion.
    """

    at: datetime
    reason: str
    slot: str = ""
    job: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LemonPolicy:
    """Thresholds, by pool: each pool may have its own."""

    short_days: float = 7.0
    long_days: float = 30.0
    short_limit: float = 2.0  # weighted offences within the short window that make a lemon
    long_limit: float = 3.0  # and within the long one
    slot_limit: float = 2.0  # of one slot, within the long window: the same part again
    probation_days: float = 7.0  # after a first return
    probation_factor: float = 2.0  # longer for each relapse within the long window
    most_probation_days: float = 28.0
    flap_limit: int = 3  # returns within the short window after which only a person brings it back
    hold_down_seconds: float = 600.0  # healthy without a break before a node counts as back


DEFAULT_POLICY = LemonPolicy()


@dataclass(frozen=True, slots=True)
class LemonScore:
    """How a node has done. ``short`` and ``long`` are weighted offences; ``worst_slot`` the slot with most, if any.

    ``score`` is the larger of its shares of the limits: from 1 on it is a lemon. ``reasons`` say which limit.
    """

    short: float
    long: float
    jobs: int  # different jobs that it failed, within the long window
    worst_slot: str
    worst_slot_weight: float
    score: float
    reasons: tuple[str, ...]

    @property
    def is_lemon(self) -> bool:
        """Whether it should get no more work before somebody has looked."""
        return self.score >= 1


def score(offences: Iterable[Offence], now: datetime, policy: LemonPolicy = DEFAULT_POLICY) -> LemonScore:
    """The lemon score of one node.

    Args:
        offences: Of this node, in any order; older than the long window, or after ``now``, they do not matter.
        now: Aware, or naive like the offences.
        policy: Of the node's pool.
    """
    since = now - timedelta(days=policy.long_days)
    lately = [offence for offence in offences if since < offence.at <= now]
    if not lately:
        return NO_OFFENCE
    recent = now - timedelta(days=policy.short_days)
    short = sum(offence.weight for offence in lately if offence.at > recent)
    long = sum(offence.weight for offence in lately)
    slots: dict[str, float] = {}
    for offence in lately:
        if offence.slot:
            slots[offence.slot] = slots.get(offence.slot, 0.0) + offence.weight
    slot = min(slots, key=lambda name: (-slots[name], name), default="")
    on_slot = slots.get(slot, 0.0)
    reasons = []
    if short >= policy.short_limit:
        reasons.append(f"{short:g} failures in {policy.short_days:g} days (limit {policy.short_limit:g})")
    if long >= policy.long_limit:
        reasons.append(f"{long:g} failures in {policy.long_days:g} days (limit {policy.long_limit:g})")
    if on_slot >= policy.slot_limit:
        reasons.append(f"{on_slot:g} of them on {slot} (limit {policy.slot_limit:g})")
    return LemonScore(
        short=short,
        long=long,
        jobs=len({offence.job for offence in lately if offence.job}),
        worst_slot=slot,
        worst_slot_weight=on_slot,
        score=max(short / policy.short_limit, long / policy.long_limit, on_slot / policy.slot_limit),
        reasons=tuple(reasons),
    )


NO_OFFENCE = LemonScore(0.0, 0.0, 0, "", 0.0, 0.0, ())


@dataclass(frozen=True, slots=True)
class Return:
    """A node came back into service."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Probation:
    """The time after a return in which a relapse goes straight back. ``until`` None = no return yet.

    ``level`` is how often it relapsed within the long window: 0 after a first return.
    """

    until: datetime | None
    level: int
    is_on: bool
    needs_person: bool
    why: str


def probation(
    offences: Sequence[Offence],
    returns: Sequence[Return],
    now: datetime,
    policy: LemonPolicy = DEFAULT_POLICY,
) -> Probation:
    """Whether a node is on probation.

    A relapse is an offence after a return, within the probation that it began. Each doubles the next probation, up to a
    bound. Too many returns within the short window (``flap_limit``) need a person.

    Args:
        offences: Of this node, in any order.
        returns: Likewise. What came after ``now`` does not matter.
    """
    since = now - timedelta(days=policy.long_days)
    back = sorted(each.at for each in returns if since < each.at <= now)
    if not back:
        return Probation(None, 0, is_on=False, needs_person=False, why="no return in the long window")
    failed = sorted(offence.at for offence in offences if since < offence.at <= now)
    level = 0
    until = back[0]
    for n, at in enumerate(back):
        until = at + timedelta(days=_probation_days(level, policy))
        next_return = back[n + 1] if n + 1 < len(back) else None
        if any(
            at < offence <= until and (next_return is None or offence <= next_return) for offence in failed
        ):
            level += 1
    recent = now - timedelta(days=policy.short_days)
    flaps = sum(at > recent for at in back)
    why = f"returned {flaps} times in {policy.short_days:g} days" if flaps >= policy.flap_limit else ""
    if not why:
        why = f"{level} relapses in {policy.long_days:g} days" if level else "first return"
    return Probation(until, level, is_on=now < until, needs_person=flaps >= policy.flap_limit, why=why)


def _probation_days(level: int, policy: LemonPolicy) -> float:
    return min(policy.most_probation_days, policy.probation_days * policy.probation_factor ** min(level, 32))


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A node was seen to become healthy or not."""

    at: datetime
    is_healthy: bool


@dataclass(frozen=True, slots=True)
class Flaps:
    """How often a node became unhealthy within the window, and whether it counts as back.

    ``back_at`` is when it will have been healthy for the hold-down without a break; None while it is not healthy.
    """

    count: int
    is_back: bool
    back_at: datetime | None
    needs_person: bool


def flaps(changes: Iterable[HealthChange], now: datetime, policy: LemonPolicy = DEFAULT_POLICY) -> Flaps:
    """Flap counter with hold-down: a moment of health is no recovery, and repeated reports reset nothing.

    Args:
        changes: Reports of one node in any order; repeats of the same state are no change, later ones than ``now``
            do not matter.
    """
    since = now - timedelta(days=policy.short_days)
    count = 0
    healthy_at: datetime | None = None
    was_healthy: bool | None = None
    for change in sorted(changes, key=lambda each: each.at):
        if change.at > now:
            break
        if change.is_healthy != was_healthy:
            if not change.is_healthy and was_healthy and change.at > since:
                count += 1
            healthy_at = change.at if change.is_healthy else None
            was_healthy = change.is_healthy
    back_at = healthy_at + timedelta(seconds=policy.hold_down_seconds) if healthy_at else None
    return Flaps(
        count=count,
        is_back=back_at is not None and now >= back_at,
        back_at=back_at,
        needs_person=count >= policy.flap_limit,
    )


def blacklisted_until(offences: Sequence[Offence], days: float) -> datetime | None:
    """Until when a plain blacklist keeps a node away: so many days after its newest offence; None without one."""
    newest = max((offence.at for offence in offences), default=None)
    return newest + timedelta(days=days) if newest else None
