"""Limits of the fleet: how much may be out of service at once, and how much may be begun in a while.

A guard counts machines, not holds, and it limits both what stands now and what a window has seen: a limit of a
rate alone lets a slow drip take the whole fleet. What gives back (release, resume) is never counted and never held
back. The numbers live in counters of the database; here is what they mean. Source: DOMAIN section 8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import accumulate, pairwise

from recovery.errors import BadInput
from recovery.lifecycle import ActionKind


class Dimension(StrEnum):
    """By what machines or actions are grouped. Each group has a counter of its own."""

    CLUSTER = "cluster"
    POOL = "pool"
    RACK = "rack"
    POWER_UNIT = "power_unit"
    SWITCH = "switch"
    TENANT = "tenant"


class Measure(StrEnum):
    """What is counted: machines that are out of service now, or actions that began in a window."""

    STANDING = "standing"
    WINDOW = "window"


#: Kinds that take a machine out of service until it is released.
STANDING_KINDS = frozenset({ActionKind.HOLD_NODE, ActionKind.FORCE_VACATE, ActionKind.REBOOT_NODE})
#: Kinds that are about one machine, so that its rack, pool, power unit and switch count them.
MACHINE_KINDS = STANDING_KINDS | {ActionKind.EVICT_WORKER}
#: Kinds that a guard may count: those that interrupt somebody. No other is ever held back.
GUARDED_KINDS = STANDING_KINDS | {
    ActionKind.RESTART_PROCESS,
    ActionKind.RESTART_CONTAINER,
    ActionKind.EVICT_WORKER,
    ActionKind.RESIZE_JOB,
    ActionKind.STOP_JOB,
}

#: A window is counted in so many slots. One that is partly inside counts whole: never above the limit in any
#: window, and at most one slot too strict.
SLOTS = 12
KEPT_SLOTS = SLOTS + 1  # the present one is not over yet
#: What a window counts is kept until it is over.
LEAST_WINDOW_SECONDS = 1.0
MOST_WINDOW_SECONDS = 31 * 86_400.0
MOST_NUMBER = 2**31 - 1  # what a counter holds
MOST_NAME = 63
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MOST_NAME}}}")
#: "No more than 110 pods per node": kubernetes.io/docs/setup/best-practices/cluster-large.
MOST_PODS_OF_A_MACHINE = 110


@dataclass(frozen=True, slots=True)
class Limit:
    """One guard. Where ``number`` and ``share`` are both given, the smaller binds.

    ``share`` is of the machines of the group, over 0 up to 1. ``at_least`` keeps a share of a small group from
    being less than that. ``window_seconds`` is 0 for a standing limit.
    """

    name: str
    dimension: Dimension
    measure: Measure
    actions: tuple[ActionKind, ...]
    number: int | None = None
    share: float | None = None
    at_least: int = 0
    window_seconds: float = 0.0

    def cap(self, members: int) -> int:
        """The limit of a group of so many machines."""
        caps = [] if self.number is None else [self.number]
        if self.share is not None:
            caps.append(max(_floor_share(self.share, members), self.at_least))
        return min(caps)


def _floor_share(share: float, members: int) -> int:
    """Machines that a share allows. As the decimal that was written: 0.29 of 100 is 29, though as a float less."""
    return math.floor(share * members + 1e-9)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Why a limit could never work on a fleet, and one near to it that could; None where it must be another guard."""

    why: str
    field: str
    mended: Limit | None


def check_limit(limit: Limit, groups: Mapping[str, int], *, fleet: int = 0, cluster: str = "") -> None:
    """Refuse a limit that could never let anything through, or never hold anything back, in any mode.

    Args:
        groups: Machines of each group that there is, by its name. Empty = not known yet, then shares and
            numbers are not compared with it.
        fleet: Machines of the whole cluster, which one tenant may come to take.
    Raises:
        BadInput: With the field, and what to set instead.
    """
    if found := find_unreachable(limit, groups, fleet=fleet, cluster=cluster):
        raise BadInput(found.why, field=found.field)


def find_unreachable(
    limit: Limit, groups: Mapping[str, int], *, fleet: int = 0, cluster: str = ""
) -> Unreachable | None:
    """Why a limit could never work on this fleet; None where it can. Takes what `check_limit` takes."""
    try:
        check_form(limit)
    except BadInput as error:
        return Unreachable(str(error), error.field, None)
    found = _find(limit, groups, fleet, cluster)
    if found is None:
        return None
    why, field, mends = found
    last = replace(limit, number=1, share=None, at_least=0)  # 1 works on any fleet
    mended = next((mend for mend in mends if _find(mend, groups, fleet, cluster) is None), last)
    return Unreachable(why, field, mended)


def most_in_window(limit: Limit, machines: int) -> int:
    """The most of a window's actions that so many machines could take: what a limit must be under.

    A machine is taken out of service, and the pods of a machine are interrupted, at most once a second each: the
    next action on the same begins only when the one before has been seen to end. Far more than ever happens, on
    purpose: what is at or above it is wrong for certain.
    """
    of_machine = 1 if STANDING_KINDS.issuperset(limit.actions) else MOST_PODS_OF_A_MACHINE
    return math.floor(machines * of_machine * limit.window_seconds)


type _Found = tuple[str, str, tuple[Limit, ...]]


def _find(limit: Limit, groups: Mapping[str, int], fleet: int, cluster: str) -> _Found | None:
    """Why, the field, and limits that may work instead, the nearest first."""
    if limit.number == 0:
        per = "" if limit.measure is Measure.STANDING else f" {_per(limit.window_seconds)}"
        what = "action could ever begin" if per else "machine could ever be isolated"
        why = f"limit 0{per}: no {what}; set at least 1, or mode observe to do nothing"
        return why, "number", (replace(limit, number=1),)
    sizes = {group: members for group, members in groups.items() if members > 0}
    never = sorted(group for group, members in sizes.items() if limit.cap(members) < 1)
    if never:
        assert limit.share is not None
        group, members = never[0], sizes[never[0]]
        others = f", and {len(never) - 1} more" if len(never) > 1 else ""
        why = (
            f"{_percent(limit.share)} of {_place(limit.dimension, group, cluster)} with {_machines(members)} is "
            f"{limit.share * members:.2g}{others}: it can never admit one; set at_least 1, or a share of "
            f"{math.ceil(100 / members)} %"
        )
        return why, "share", (replace(limit, at_least=1),)
    every = {*sizes.values()}
    if limit.dimension is Dimension.TENANT and fleet:
        every.add(fleet)  # one tenant may come to take all
    return _find_idle(limit, every) if every else None


def _find_idle(limit: Limit, sizes: Set[int]) -> _Found | None:
    """Where a limit is so high that it never holds anything back."""
    largest = max(sizes)
    if limit.measure is Measure.WINDOW:
        if limit.cap(largest) <= 1 or any(limit.cap(size) < most_in_window(limit, size) for size in sizes):
            return None
        bound = most_in_window(limit, largest)
        most = max(1, bound - 1)
        why = f"limit {limit_words(limit)} is not under the {bound} that {_machines(largest)} could ever take"
    else:
        several = [size for size in sizes if size > 1]  # one machine is all or nothing
        if limit.cap(largest) <= largest and not (
            several and all(limit.cap(size) >= size for size in several)
        ):
            return None
        most = max(1, largest - 1)
        where = "the fleet" if limit.dimension is Dimension.CLUSTER else f"every {_word(limit.dimension)}"
        why = (
            f"limit {limit_words(limit)} lets {where} be isolated whole, the largest has {_machines(largest)}"
        )
    field = "number" if limit.number is not None else "at_least" if limit.at_least > 1 else "share"
    mends = [replace(limit, number=most, share=None, at_least=0)]
    if limit.share is not None:
        mends.insert(0, replace(limit, number=None, at_least=1))
    return f"{why}: it would never hold anything back; set at most {most}", field, tuple(mends)


def check_name(name: str) -> None:
    """Refuse what no new guard can be called. Raises BadInput."""
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= MOST_NAME else f"{name[:MOST_NAME]}…"
        raise BadInput(
            f"{shown!r} is no name of a guard: give 1 to {MOST_NAME} letters, digits, - and _", field="name"
        )


def check_form(limit: Limit) -> None:
    """Refuse what is no limit, on any fleet. Raises BadInput with the field."""
    if not limit.actions:
        raise BadInput("a guard that counts no action guards nothing", field="actions")
    free = sorted(set(limit.actions) - GUARDED_KINDS)
    if free:
        raise BadInput(
            f"{', '.join(free)} cannot be guarded: what gives back, looks or tells is never held back",
            field="actions",
        )
    if limit.measure is Measure.STANDING and not STANDING_KINDS.issuperset(limit.actions):
        others = ", ".join(sorted(set(limit.actions) - STANDING_KINDS))
        raise BadInput(f"{others} leaves no machine out of service: limit it by a window", field="actions")
    of_job = sorted(set(limit.actions) - MACHINE_KINDS)
    if of_job and limit.dimension not in (Dimension.CLUSTER, Dimension.TENANT):
        raise BadInput(
            f"{', '.join(of_job)} is of a job and not of one machine, so no {_word(limit.dimension)} counts it: "
            "limit it by cluster or tenant",
            field="dimension",
        )
    _check_numbers(limit)


def _check_numbers(limit: Limit) -> None:
    if limit.number is None and limit.share is None:
        raise BadInput("give a number, a share, or both", field="number")
    if limit.number is not None and not 0 <= limit.number <= MOST_NUMBER:
        raise BadInput(f"a limit of {limit.number} is no number of {_what(limit)}", field="number")
    if limit.share is not None and not 0 < limit.share <= 1:
        raise BadInput(f"a share of {limit.share:g} is not over 0 up to 1", field="share")
    if not 0 <= limit.at_least <= MOST_NUMBER or (limit.at_least and limit.share is None):
        raise BadInput("at_least is a number of machines that goes with a share", field="at_least")
    if (limit.measure is Measure.WINDOW) != (limit.window_seconds > 0):
        needs = "needs a window over 0 s" if limit.measure is Measure.WINDOW else "has no window"
        raise BadInput(f"a {limit.measure} limit {needs}", field="window_seconds")
    if limit.window_seconds and not LEAST_WINDOW_SECONDS <= limit.window_seconds <= MOST_WINDOW_SECONDS:
        raise BadInput(
            f"a window of {limit.window_seconds:g} s is not from {LEAST_WINDOW_SECONDS:g} s to 31 days",
            field="window_seconds",
        )


# Windows in slots.


def slot_of(at: datetime, window_seconds: float) -> int:
    """Number of the slot that a moment lies in."""
    return math.floor(at.timestamp() / (window_seconds / SLOTS))


def live_slots(totals: Sequence[int], newest: int, slot: int) -> dict[int, int]:
    """Counts by slot number that still matter in ``slot``.

    Args:
        totals: What has ever begun by the end of slot ``newest``, of the slot before it, and so on; KEPT_SLOTS + 1
            numbers, so that each kept slot is the difference of two.
        newest: Slot of the last count.
    """
    slot = max(slot, newest)
    counts = {newest - back: after - before for back, (after, before) in enumerate(pairwise(totals))}
    return {n: count for n, count in counts.items() if n > slot - KEPT_SLOTS and count}


def totals_of(counts: Mapping[int, int], newest: int) -> list[int]:
    """Totals up to slot ``newest`` of a window with these counts by slot number; the other way of `live_slots`."""
    kept = [counts.get(n, 0) for n in range(newest - KEPT_SLOTS + 1, newest + 1)]
    return list(accumulate(kept, initial=0))[::-1]


def frees_at(limit: Limit, cap: int, totals: Sequence[int], newest: int, now: datetime) -> datetime | None:
    """When a full window has room again, if nothing else begins; None when it never has."""
    if cap < 1:
        return None
    live = live_slots(totals, newest, slot_of(now, limit.window_seconds))
    over = sum(live.values()) - cap + 1
    for n in sorted(live):
        over -= live[n]
        if over <= 0:
            seconds = (n + KEPT_SLOTS) * (limit.window_seconds / SLOTS)
            return max(now, datetime.fromtimestamp(seconds, tz=now.tzinfo))
    return now


# Words for people.


def refusal(limit: Limit, group: str, *, used: int, members: int, cluster: str = "") -> str:
    """Why an action is held back, with its numbers: "3 of 3 machines of rack r01 are isolated now; limit …".

    More than the limit may be in use, where it was lowered or its group shrank: then what is, and the limit.
    """
    cap, place = limit.cap(members), _place(limit.dimension, group, cluster)
    of_cap = f"{used} of {cap}" if used <= cap else f"{used}"
    many = max(cap, used)
    if limit.measure is Measure.STANDING:
        are = "is" if used == 1 else "are"
        machines = "machine" if many == 1 else "machines"
        return f"{of_cap} {machines} of {place} {are} isolated now; limit {limit_words(limit, members)}"
    actions = "action" if many == 1 else "actions"
    return (
        f"{of_cap} {actions} of {place} began in the last {_window(limit.window_seconds)}; "
        f"limit {limit_words(limit, members)}"
    )


def limit_words(limit: Limit, members: int | None = None) -> str:
    """The limit itself: "10 % of 30 or 3", "20 a minute"."""
    words = []
    if limit.share is not None:
        least = f", at least {limit.at_least}" if limit.at_least else ""
        words.append(_percent(limit.share) + ("" if members is None else f" of {members}") + least)
    if limit.number is not None:
        words.append(str(limit.number))
    text = " or ".join(words)
    return text if limit.measure is Measure.STANDING else f"{text} {_per(limit.window_seconds)}"


#: How the reason of every action begins that a guard has held back.
HELD_BY_GUARD = "held by guard "


def held_by(name: str, numbers: str) -> str:
    """The sentence that an action, a timeline and a page carry."""
    return f"{HELD_BY_GUARD}{name}: {numbers}"


def _place(dimension: Dimension, group: str, cluster: str) -> str:
    if dimension is Dimension.CLUSTER:
        return f"cluster {cluster or group}"
    return f"{_word(dimension)} {group}"


def _word(dimension: Dimension) -> str:
    return str(dimension).replace("_", " ")


def _what(limit: Limit) -> str:
    return "machines" if limit.measure is Measure.STANDING else "actions"


def _machines(number: int) -> str:
    return f"{number} machine{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def _window(seconds: float) -> str:
    return {60.0: "minute", 3600.0: "hour"}.get(seconds, f"{seconds:g} s")


def _per(seconds: float) -> str:
    return {60.0: "a minute", 3600.0: "an hour"}.get(seconds, f"in {seconds:g} s")


def retry_at(frees: datetime | None, now: datetime, *, jitter: float, look_seconds: float = 60.0) -> datetime:
    """When a held action is looked at again: when its window has room, else each minute; spread over 5 s.

    Args:
        jitter: In [0, 1), from the decision's seed, so that those that wait do not come back in one second.
    """
    at = now + timedelta(seconds=look_seconds) if frees is None else max(frees, now)
    return at + timedelta(seconds=0.05 + 5.0 * jitter)


# Limits of a new cluster.

_ACTING = tuple(sorted(GUARDED_KINDS))
_ISOLATING = (ActionKind.HOLD_NODE,)

DEFAULT_LIMITS: tuple[Limit, ...] = (
    Limit("isolated-of-cluster", Dimension.CLUSTER, Measure.STANDING, _ISOLATING, share=0.05, at_least=1),
    Limit("isolated-of-pool", Dimension.POOL, Measure.STANDING, _ISOLATING, share=0.1, at_least=1),
    Limit("isolated-of-rack", Dimension.RACK, Measure.STANDING, _ISOLATING, share=0.25, at_least=1),
    Limit("isolated-of-power-unit", Dimension.POWER_UNIT, Measure.STANDING, _ISOLATING, share=0.25, at_least=1),
    Limit("isolated-of-switch", Dimension.SWITCH, Measure.STANDING, _ISOLATING, share=0.25, at_least=1),
    Limit("isolated-of-tenant", Dimension.TENANT, Measure.STANDING, _ISOLATING, share=0.1, at_least=1),
    Limit(
        "isolated-an-hour", Dimension.CLUSTER, Measure.WINDOW, _ISOLATING,
        share=0.02, at_least=2, window_seconds=3600.0,
    ),
    Limit("actions-a-minute", Dimension.CLUSTER, Measure.WINDOW, _ACTING, number=120, window_seconds=60.0),
    Limit("actions-a-minute-of-tenant", Dimension.TENANT, Measure.WINDOW, _ACTING, number=60, window_seconds=60.0),
)  # fmt: skip


def markdown(limits: Iterable[Limit] = DEFAULT_LIMITS) -> str:
    """The limits as a Markdown table, for the docs."""
    lines = ["| guard | counts | by | limit | actions |", "|---|---|---|---|---|"]
    for limit in limits:
        counts = "machines isolated now" if limit.measure is Measure.STANDING else "actions that began"
        actions = "all that interrupt" if set(limit.actions) == GUARDED_KINDS else ", ".join(limit.actions)
        lines.append(
            f"| `{limit.name}` | {counts} | {_word(limit.dimension)} | {limit_words(limit)} | {actions} |"
        )
    lines += ["", "| what may be guarded | standing | window |", "|---|---|---|"]
    for kind in ActionKind:
        standing = "yes" if kind in STANDING_KINDS else "no"
        window = "yes" if kind in GUARDED_KINDS else "never held back"
        lines.append(f"| {kind} | {standing} | {window} |")
    return "\n".join(lines) + "\n"
