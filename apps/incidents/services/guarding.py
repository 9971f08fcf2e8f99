"""Reserve in guards, release, set limits, recount (DESIGN rule 3: limits across subjects).

A reservation is part of the transaction that writes the action: both are there, or none. Machines are locked first,
then counters, each in the order of their keys, so that no two reservations wait for each other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, F, Q, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, NullIf

from apps.access.models import Cluster
from apps.incidents.guard_models import GuardCounter, GuardedMachine, GuardLimit, GuardUse
from apps.incidents.services.guard_truth import Truth
from apps.jobs.models import Pod
from apps.nodes.models import Machine
from recovery import guards
from recovery.errors import BadInput
from recovery.guards import Dimension, Limit, Measure, Unreachable
from recovery.lifecycle import ActionKind

_log = logging.getLogger(__name__)

#: The group of a whole cluster.
WHOLE = "*"
KEEP_USES = timedelta(days=1)  # beyond the longest window, for whoever asks what used a guard


@dataclass(frozen=True, slots=True)
class Want:
    """One action to be reserved. ``holder`` names what it is for; ``machine`` is what it takes out of service."""

    kind: ActionKind
    holder: str
    tenant: str
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a want was refused: the first guard that was full. ``frees_at`` is None when only a release helps."""

    guard: str
    numbers: str
    frees_at: datetime | None
    full: tuple[int, ...] = ()  # the counters that had no room

    def __str__(self) -> str:
        return guards.held_by(self.guard, self.numbers)


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that a recount corrected."""

    guard: str
    group: str
    counted: int
    found: int

    def __str__(self) -> str:
        return f"guard {self.guard} of {self.group} counted {self.counted}, there are {self.found}"


# Reservations.

# Counts a want in all of its guards or in none, in one statement: migration 0016 has it, and 0012 why it is a function.
_TAKE = "SELECT incidents_guard_take(%s, %s, %s, %s, %s, %s, %s)"

_GIVE_BACK = """
WITH held AS MATERIALIZED (
    SELECT id FROM incidents_guardcounter
    WHERE cluster_id = %(cluster)s AND ({groups}) AND slot_seconds IS NULL
        AND %(kind)s = ANY(actions) AND NOT actions && %(counted)s::varchar[]
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE incidents_guardcounter AS c SET used = greatest(c.used - 1, 0) FROM held WHERE c.id = held.id
"""


_LOCK = """
SELECT id FROM incidents_guardcounter
WHERE cluster_id = %(cluster)s AND ({groups}) AND actions && %(kinds)s::varchar[]
ORDER BY id FOR NO KEY UPDATE
"""


def reserve(*, cluster: Cluster, wants: Sequence[Want], now: datetime) -> tuple[Refusal | None, ...]:
    """Reserve each want in every guard that counts it, or in none. Part of the caller's transaction.

    A machine that is counted already is not counted again, whoever holds it. The same want twice is one.

    Returns:
        None for a want that was reserved, else why not; in the order of ``wants``.
    """
    refusals = _reserve_each(cluster, wants, now)
    _count_refusals([refusal for refusal in refusals if refusal], now)
    return refusals


def reserve_all(
    *, cluster: Cluster, wants: Sequence[Want], now: datetime
) -> tuple[tuple[Want, Refusal], ...]:
    """Reserve all of a decision's wants, or none of them. Part of the caller's transaction.

    Returns:
        Each want that was refused with the reason; empty when all are reserved.
    """
    if len(wants) < 2:
        refusals = _reserve_each(cluster, wants, now)
    else:
        with transaction.atomic():
            refusals = _reserve_each(cluster, wants, now)
            if any(refusals):
                transaction.set_rollback(True)
    refused = [(want, refusal) for want, refusal in zip(wants, refusals, strict=True) if refusal]
    _count_refusals([refusal for _, refusal in refused], now)
    return tuple(refused)


def _reserve_each(cluster: Cluster, wants: Sequence[Want], now: datetime) -> tuple[Refusal | None, ...]:
    assert connection.in_atomic_block, "a reservation is part of the transaction that writes its action"
    machines = _locked_machines(cluster, wants)
    if len(wants) > 1:
        _lock_counters(cluster, wants)
    return tuple(
        _reserve(cluster, want, machines.get(want.machine.pk) if want.machine else None, now)
        for want in wants
    )


def _count_refusals(refusals: Sequence[Refusal], now: datetime) -> None:
    for refusal in refusals:
        GuardCounter.objects.filter(pk__in=refusal.full).update(refusals=F("refusals") + 1, refused_at=now)


def release(*, machine: Machine, holder: str) -> bool:
    """Give back what a holder took. Never refused, whatever the limits are; the second time changes nothing.

    The machine counts until its last holder has released it. Returns whether there was something to give back.
    """
    with transaction.atomic():
        row = GuardedMachine.objects.select_for_update(no_key=True).filter(pk=machine.pk).first()
        if row is None or holder not in row.holders:
            return False
        kind = row.holders.pop(holder)
        if not row.holders:
            row.since_at = None
        row.save(update_fields=["holders", "since_at"])
        if kind not in row.holders.values():
            where, values = _where_groups(row.groups.items())
            values |= {
                "cluster": row.cluster_id,
                "kind": kind,
                "counted": sorted(set(row.holders.values())),
            }
            with connection.cursor() as cursor:
                cursor.execute(_GIVE_BACK.format(groups=where), values)
    return True


def groups_of(*, tenant: str, machine: Machine | None) -> dict[str, str]:
    """The groups that count an action: its cluster and tenant, and those of the machine that it takes.

    A machine without a label for a dimension is in no group of it.
    """
    groups = {Dimension.CLUSTER: WHOLE, Dimension.TENANT: tenant}
    if machine is not None:
        groups |= machine_groups(machine)
    return {str(dimension): group[:100] for dimension, group in groups.items() if group}


def machine_groups(machine: Machine) -> dict[Dimension, str]:
    """The groups that a machine is a member of, by its pool, rack and the labels that the settings name."""
    groups = {Dimension.CLUSTER: WHOLE, Dimension.POOL: machine.pool, Dimension.RACK: machine.rack}
    for dimension, keys in settings.GUARD_LABELS.items():
        groups[Dimension(dimension)] = next(
            (str(machine.labels[key]) for key in keys if machine.labels.get(key)), ""
        )
    return {dimension: group[:100] for dimension, group in groups.items() if group}


def _reserve(cluster: Cluster, want: Want, row: GuardedMachine | None, now: datetime) -> Refusal | None:
    if want.kind not in guards.GUARDED_KINDS:
        return None
    if row is not None and want.holder in row.holders:
        return None
    is_out = row is not None and bool(row.holders)
    groups = row.groups if row is not None and is_out else groups_of(tenant=want.tenant, machine=want.machine)
    counted = sorted(set(row.holders.values())) if row is not None else []
    refusal = _take(cluster, want, groups, counted, now)
    if refusal is None and row is not None:
        if not is_out:
            row.groups, row.since_at = groups, now
        row.holders[want.holder] = str(want.kind)
        row.save(update_fields=["groups", "holders", "since_at"])
    return refusal


def _take(
    cluster: Cluster, want: Want, groups: Mapping[str, str], counted: Sequence[str], now: datetime
) -> Refusal | None:
    values: list[Any] = [
        cluster.pk, str(want.kind), _array(counted), _array(groups), _array(groups.values()), now.timestamp(),
        want.holder[:200],
    ]  # fmt: skip
    for _ in range(2):
        with connection.cursor() as cursor:
            cursor.execute(_TAKE, values)
            if cursor.fetchone() == (True,):
                return None
        asked = _asked(cluster, want.kind, groups, counted, now)
        refusal = _refusal(cluster, asked, now)
        if refusal is not None:
            return refusal
        _add_missing(cluster, groups, now)
    raise AssertionError(
        f"{cluster}: {want.kind} in {groups} was neither counted nor refused:"
        f" limits want {asked.wanted} counters, {len(asked.live)} are there, {len(asked.full)} full"
    )


def _array(texts: Iterable[str]) -> str:
    """An array of texts as PostgreSQL reads it. A reservation takes half a millisecond, and adapters would add 7 %."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """How many counters the limits want for an action, and those that are there, with what is used of each."""

    wanted: int
    live: Mapping[GuardCounter, int]

    @property
    def full(self) -> list[GuardCounter]:
        return [row for row, used in self.live.items() if used >= row.cap]


def _asked(
    cluster: Cluster, kind: ActionKind, groups: Mapping[str, str], counted: Sequence[str], now: datetime
) -> _Asked:
    """The counters of an action, by id. Their rows are locked already."""

    def counts(measure: str, actions: Sequence[str]) -> bool:
        again = kind in counted if measure == Measure.WINDOW else bool({*actions} & {*counted})
        return not again

    asked = {"cluster": cluster, "actions__contains": [kind], "dimension__in": list(groups)}
    limits = GuardLimit.objects.filter(is_enabled=True, **asked).values_list("measure", "actions")
    wanted = sum(counts(*limit) for limit in limits)
    found = GuardCounter.objects.filter(**asked).select_related("limit").order_by("id")
    rows = [
        row for row in found if row.group == groups[row.dimension] and counts(row.limit.measure, row.actions)
    ]
    newest = max((row.newest_slot * row.slot_seconds for row in rows if row.slot_seconds), default=0.0)
    moment = max(now, datetime.fromtimestamp(newest + 0.001, tz=now.tzinfo))
    return _Asked(wanted, {row: used_now(row, row.limit.as_limit(), moment) for row in rows})


def _refusal(cluster: Cluster, asked: _Asked, now: datetime) -> Refusal | None:
    """The first full counter's numbers, in words; None where counters are missing or none is full."""
    full = asked.full
    if len(asked.live) != asked.wanted or not full:
        return None
    first, limit = full[0], full[0].limit.as_limit()
    frees_at = None
    if limit.measure is Measure.WINDOW:
        frees_at = guards.frees_at(limit, first.cap, first.totals, first.newest_slot, now)
    numbers = guards.refusal(
        limit, first.group, used=asked.live[first], members=first.members, cluster=cluster.slug
    )
    return Refusal(limit.name, numbers, frees_at, tuple(row.pk for row in full))


def _locked_machines(cluster: Cluster, wants: Sequence[Want]) -> dict[int, GuardedMachine]:
    """Rows of the machines that are to be taken, locked in order; made where there is none yet."""
    ids = sorted({want.machine.pk for want in wants if want.machine is not None})
    if not ids:
        return {}
    GuardedMachine.objects.bulk_create(
        [GuardedMachine(machine_id=machine_id, cluster=cluster) for machine_id in ids], ignore_conflicts=True
    )
    rows = GuardedMachine.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk")
    return {row.pk: row for row in rows}


def _lock_counters(cluster: Cluster, wants: Sequence[Want]) -> None:
    """All counters of all wants, in order, before the first is changed."""
    groups = {item for want in wants for item in groups_of(tenant=want.tenant, machine=want.machine).items()}
    where, values = _where_groups(groups)
    values |= {"cluster": cluster.pk, "kinds": sorted({str(want.kind) for want in wants})}
    with connection.cursor() as cursor:
        cursor.execute(_LOCK.format(groups=where), values)


def _where_groups(groups: Iterable[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """A condition over dimension and group, with its values: placeholders only, no value in the text."""
    clauses: list[str] = []
    values: dict[str, Any] = {}
    for n, (dimension, group) in enumerate(sorted(groups)):
        clauses.append(f'(dimension = %(d{n})s AND "group" = %(g{n})s)')
        values |= {f"d{n}": dimension, f"g{n}": group}
    return " OR ".join(clauses), values


# Limits.


def set_limit(
    *, cluster: Cluster, limit: Limit, by: str, now: datetime, is_enabled: bool = True
) -> GuardLimit:
    """Set a guard of a cluster, new or changed, and count at once what it counts.

    Switching one off as it is asks nothing: it is how a limit that cannot work is mended, whoever let it in.

    Raises:
        BadInput: It could never let anything through, or never hold anything back; or a known guard would count
            something else, standing machines or a window's actions, than it did. The text says why.
    """
    with transaction.atomic():
        known = GuardLimit.objects.select_for_update().filter(cluster=cluster, name=limit.name).first()
        if known is not None and known.measure != limit.measure:
            raise BadInput(
                f"{limit.name} is a {known.measure} limit, {_MEASURES[Measure(known.measure)]}, and stays one; a "
                f"{limit.measure} limit protects from other things: give it a name of its own",
                field="window_seconds",
            )
        if known is None:
            guards.check_name(limit.name)
        members = count_members(cluster)
        if is_enabled:
            fleet = members[Dimension.CLUSTER][WHOLE]
            guards.check_limit(limit, members[limit.dimension], fleet=fleet, cluster=cluster.slug)
        elif known is None or limit != known.as_limit():
            guards.check_form(limit)
        row, _ = GuardLimit.objects.select_for_update().get_or_create(
            cluster=cluster, name=limit.name, defaults=_columns(limit) | {"changed_at": now}
        )
        for name, value in _columns(limit).items():
            setattr(row, name, value)
        row.is_enabled, row.changed_by, row.changed_at = is_enabled, by[:200], now
        row.save()
        # What was counted under the old limit is counted anew: from the machines that are out, and the uses.
        GuardCounter.objects.filter(limit=row).delete()
        if is_enabled:
            _add_counters(cluster, [row], members, now)
    return row


_MEASURES = {
    Measure.STANDING: "of the machines that are out now",
    Measure.WINDOW: "of the actions that begin in a while",
}


def unreachable_limits(cluster: Cluster) -> dict[str, Unreachable]:
    """The enabled guards of a cluster, by name, that could never work on its fleet as it is now, with why."""
    members = count_members(cluster)
    fleet = members[Dimension.CLUSTER][WHOLE]
    unreachable = {}
    for row in GuardLimit.objects.filter(cluster=cluster, is_enabled=True):
        limit = row.as_limit()
        groups = members[limit.dimension]
        if found := guards.find_unreachable(limit, groups, fleet=fleet, cluster=cluster.slug):
            unreachable[row.name] = found
    return unreachable


def ensure_default_limits(cluster: Cluster, now: datetime) -> None:
    """Give a cluster the limits that it has none of, by name. One that was changed or switched off stays so."""
    known = set(GuardLimit.objects.filter(cluster=cluster).values_list("name", flat=True))
    GuardLimit.objects.bulk_create(
        [
            GuardLimit(
                cluster=cluster, name=limit.name, changed_by="default", changed_at=now, **_columns(limit)
            )
            for limit in guards.DEFAULT_LIMITS
            if limit.name not in known
        ],
        ignore_conflicts=True,
    )


def copy_limits(*, source: Cluster, target: Cluster) -> None:
    """Give a new cluster the guards of another, as people set them. The next recount makes their counters."""
    rows = list(GuardLimit.objects.filter(cluster=source).order_by("pk"))
    for row in rows:
        row.pk, row.cluster = None, target
    GuardLimit.objects.bulk_create(rows, ignore_conflicts=True)


def count_members(cluster: Cluster) -> dict[Dimension, Counter[str]]:
    """Machines of each group: the denominators. A tenant's are those that its pods are on."""
    members: dict[Dimension, Counter[str]] = {dimension: Counter() for dimension in Dimension}
    columns = {Dimension.POOL: F("pool"), Dimension.RACK: F("rack")} | {
        Dimension(dimension): _first_label(keys) for dimension, keys in settings.GUARD_LABELS.items()
    }
    machines = Machine.objects.filter(cluster=cluster, gone_at__isnull=True).order_by()
    named = machines.annotate(**{f"of_{dimension}": column for dimension, column in columns.items()})
    rows = named.values_list(*(f"of_{dimension}" for dimension in columns)).annotate(n=Count("pk"))
    for *groups, n in rows:
        members[Dimension.CLUSTER][WHOLE] += n
        for dimension, group in zip(columns, groups, strict=True):
            if group:
                members[dimension][group[:100]] += n
    members[Dimension.TENANT] = _count_tenants(cluster)
    return members


def _first_label(keys: Sequence[str]) -> Coalesce:
    text = TextField()
    labels = [NullIf(KeyTextTransform(key, "labels"), Value(""), output_field=text) for key in keys]
    return Coalesce(*labels, Value(""), output_field=text)


def _count_tenants(cluster: Cluster) -> Counter[str]:
    pods = Pod.objects.filter(cluster=cluster, gone_at__isnull=True).exclude(node_name="").order_by()
    rows = pods.values("tenant__slug").annotate(n=Count("node_name", distinct=True))
    return Counter({row["tenant__slug"]: row["n"] for row in rows})


def _columns(limit: Limit) -> dict[str, Any]:
    return {
        "dimension": limit.dimension,
        "measure": limit.measure,
        "actions": [str(kind) for kind in limit.actions],
        "number": limit.number,
        "share": limit.share,
        "at_least": limit.at_least,
        "window_seconds": limit.window_seconds,
    }


def _add_missing(cluster: Cluster, groups: Mapping[str, str], now: datetime) -> None:
    """Counters of a group that no recount has seen yet: a new cluster, rack or tenant."""
    _forget_left_behind(cluster)
    is_new = not GuardCounter.objects.filter(cluster=cluster).exists()
    ensure_default_limits(cluster, now)
    if is_new or not groups.keys() <= {Dimension.CLUSTER, Dimension.TENANT}:
        members = count_members(cluster)
    else:
        members = {dimension: Counter() for dimension in Dimension}
        members[Dimension.TENANT] = _count_tenants(cluster)
    for dimension, group in groups.items():
        members[Dimension(dimension)].setdefault(group, 0)
    _add_counters(cluster, list(GuardLimit.objects.filter(cluster=cluster, is_enabled=True)), members, now)


def _add_counters(
    cluster: Cluster,
    rows: Sequence[GuardLimit],
    members: Mapping[Dimension, Mapping[str, int]],
    now: datetime,
) -> None:
    """The counters that these limits have none of, with what is counted already."""
    known = set(GuardCounter.objects.filter(cluster=cluster).values_list("limit_id", "group"))
    truth = Truth(cluster, now)
    new = []
    for row in rows:
        limit = row.as_limit()
        for group in sorted({*members[limit.dimension], *truth.groups(limit)}):
            if (row.pk, group) not in known:
                counter = GuardCounter(
                    limit=row,
                    cluster=cluster,
                    dimension=row.dimension,
                    group=group,
                    actions=row.actions,
                    slot_seconds=row.window_seconds / guards.SLOTS if row.window_seconds else None,
                    totals=guards.totals_of({}, 0),
                )
                _measure(counter, limit, members[limit.dimension].get(group, 0))
                truth.fill(counter, limit)
                new.append(counter)
    GuardCounter.objects.bulk_create(new, ignore_conflicts=True, batch_size=500)


def _measure(counter: GuardCounter, limit: Limit, members: int) -> None:
    counter.members, counter.cap = members, limit.cap(members)


def used_now(counter: GuardCounter, limit: Limit, now: datetime) -> int:
    """How much of a guard is used now; of a window, without what it has left behind."""
    if limit.measure is Measure.STANDING:
        return counter.used
    slot = guards.slot_of(now, limit.window_seconds)
    return sum(guards.live_slots(counter.totals, counter.newest_slot, slot).values())


# The recount.


def recount(*, cluster: Cluster, now: datetime) -> list[Drift]:
    """Compare each counter with what is so, and correct it: an alarm each time, for it should never differ.

    Takes in what has changed of the fleet as well: new groups, and how many machines each has. What seems to
    differ is looked at once more under its lock, for a reservation may have come between.
    """
    ensure_default_limits(cluster, now)
    _forget_left_behind(cluster)
    members = count_members(cluster)
    _add_counters(cluster, list(GuardLimit.objects.filter(cluster=cluster, is_enabled=True)), members, now)
    truth = Truth(cluster, now)
    suspects, resized, empty = [], [], []
    # Each with the limit that it has now: one that was changed meanwhile has other counters.
    for counter in GuardCounter.objects.filter(cluster=cluster).select_related("limit").order_by("id"):
        limit = counter.limit.as_limit()
        count = members[limit.dimension].get(counter.group, 0)
        if truth.differs(counter, limit) is not None:
            suspects.append(counter.pk)
        if (counter.members, counter.cap) != (count, limit.cap(count)):
            resized.append((counter.pk, limit, count))
        if count == 0 and not used_now(counter, limit, now):
            empty.append(counter.pk)
    for pk, limit, count in resized:
        GuardCounter.objects.filter(pk=pk).update(members=count, cap=limit.cap(count))
    _forget_empty(empty, now)
    return _correct(cluster, suspects, now)


def _forget_left_behind(cluster: Cluster) -> None:
    """Counters of a limit that is off or counts other things by now.

    Whoever added them had read the limit before it was changed. They would count for nobody, and a reservation
    that finds more counters than limits cannot tell which guard.
    """
    is_as_its_limit = Q(
        limit__is_enabled=True,
        dimension=F("limit__dimension"),
        actions=F("limit__actions"),
    ) & (
        Q(limit__window_seconds=0, slot_seconds__isnull=True)
        | Q(limit__window_seconds=F("slot_seconds") * Value(float(guards.SLOTS)))
    )
    stray = GuardCounter.objects.filter(cluster=cluster).exclude(is_as_its_limit)
    GuardCounter.objects.filter(pk__in=list(stray.values_list("pk", flat=True))).delete()


def _forget_empty(ids: Sequence[int], now: datetime) -> None:
    """Groups that are gone with their last machine, unless something is counted in them."""
    if not ids:
        return
    with transaction.atomic():
        rows = GuardCounter.objects.filter(pk__in=ids, members=0).select_related("limit").order_by("id")
        free = [
            counter.pk
            for counter in rows.select_for_update(skip_locked=True, of=("self",))
            if not used_now(counter, counter.limit.as_limit(), now)
        ]
        GuardCounter.objects.filter(pk__in=free).delete()


def _correct(cluster: Cluster, suspects: Sequence[int], now: datetime) -> list[Drift]:
    drifts: list[Drift] = []
    if not suspects:
        return drifts
    with transaction.atomic():
        rows = GuardCounter.objects.filter(pk__in=suspects).select_related("limit").order_by("id")
        counters = list(rows.select_for_update(no_key=True, of=("self",)))
        truth = Truth(cluster, now)
        for counter in counters:
            limit = counter.limit.as_limit()
            found = truth.differs(counter, limit)
            if found is None:
                continue
            drift = Drift(limit.name, f"{limit.dimension} {counter.group}", *found)
            truth.fill(counter, limit)
            counter.drifts += 1
            counter.drift_at, counter.drift = now, str(drift)[:100]
            counter.save(update_fields=["used", "totals", "newest_slot", "drifts", "drift_at", "drift"])
            drifts.append(drift)
    for drift in drifts:
        _log.error("guard.drift cluster=%s guard=%s group=%s counted=%d found=%d; corrected",
                   cluster, drift.guard, drift.group, drift.counted, drift.found)  # fmt: skip
    return drifts


def recount_all(*, now: datetime) -> list[Drift]:
    """Recount the guards of every cluster that is there. Two at once do no harm."""
    drifts = []
    for cluster in Cluster.objects.order_by("pk"):
        if not cluster.is_retired:
            drifts += recount(cluster=cluster, now=now)
    return drifts


def forget_old_uses(*, now: datetime) -> int:
    """Forget uses that no window counts any more and that are older than a day."""
    longest = max(GuardLimit.objects.values_list("window_seconds", flat=True), default=0.0)
    before = now - KEEP_USES - timedelta(seconds=2 * longest)
    return GuardUse.objects.filter(at__lt=before).delete()[0]
