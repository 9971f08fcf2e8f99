"""What the counters of guards should say: read from the machines that are out, and from what has begun."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from apps.access.models import Cluster
from apps.incidents.guard_models import GuardCounter, GuardedMachine, GuardLimit, GuardUse
from recovery import guards
from recovery.guards import KEPT_SLOTS, Limit, Measure


class Truth:
    """What the counters of a cluster should say: read from the machines that are out, and from the uses.

    By group, so that a recount looks at what a counter's own group has and not at all there is for each counter.
    """

    def __init__(self, cluster: Cluster, now: datetime) -> None:
        self.now = now
        self.out: dict[tuple[str, str], list[set[str]]] = {}
        for row in GuardedMachine.objects.filter(cluster=cluster).exclude(holders={}):
            for item in row.groups.items():
                self.out.setdefault(item, []).append(set(row.holders.values()))
        self.uses: dict[tuple[str, str], list[tuple[str, datetime]]] = {}
        enabled = GuardLimit.objects.filter(cluster=cluster, is_enabled=True)
        longest = max(enabled.values_list("window_seconds", flat=True), default=0.0)
        since = now - timedelta(seconds=longest * KEPT_SLOTS / guards.SLOTS)
        uses = GuardUse.objects.filter(cluster=cluster, at__gte=since).values_list("groups", "kind", "at")
        for groups, kind, at in uses.iterator(5000):
            for item in groups.items():
                self.uses.setdefault(item, []).append((kind, at))

    def groups(self, limit: Limit) -> set[str]:
        """Groups in which there is something to count."""
        kinds = set(limit.actions)
        found = {item for item, out in self.out.items() if any(held & kinds for held in out)}
        found |= {item for item, uses in self.uses.items() if any(kind in kinds for kind, _ in uses)}
        return {group for dimension, group in found if dimension == limit.dimension}

    def used(self, limit: Limit, group: str) -> int:
        """Machines that are out now."""
        kinds = set(limit.actions)
        return sum(bool(held & kinds) for held in self.out.get((str(limit.dimension), group), ()))

    def slots(self, limit: Limit, group: str, newest: int) -> tuple[int, Counter[int]]:
        """The newest slot, and by slot number what began in the window up to it."""
        newest = max(newest, guards.slot_of(self.now, limit.window_seconds))
        counts: Counter[int] = Counter()
        for kind, at in self.uses.get((str(limit.dimension), group), ()):
            slot = min(guards.slot_of(at, limit.window_seconds), newest)
            if kind in limit.actions and slot > newest - KEPT_SLOTS:
                counts[slot] += 1
        return newest, counts

    def fill(self, counter: GuardCounter, limit: Limit) -> None:
        """Make a counter say what is so."""
        if limit.measure is Measure.STANDING:
            counter.used = self.used(limit, counter.group)
        else:
            newest, counts = self.slots(limit, counter.group, counter.newest_slot)
            counter.newest_slot, counter.totals = newest, guards.totals_of(counts, newest)
            counter.used = counts.total()

    def differs(self, counter: GuardCounter, limit: Limit) -> tuple[int, int] | None:
        """What a counter says and what is so, where these differ."""
        if limit.measure is Measure.STANDING:
            says, is_so = counter.used, self.used(limit, counter.group)
        else:
            newest, counts = self.slots(limit, counter.group, counter.newest_slot)
            says = sum(guards.live_slots(counter.totals, counter.newest_slot, newest).values())
            is_so = counts.total()
        return None if says == is_so else (says, is_so)
