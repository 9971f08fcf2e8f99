"""Guards on rows: reservations of many at once, releases, limits that are set, and the recount."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.guard_models import GuardCounter, GuardedMachine, GuardLimit, GuardUse
from apps.incidents.services import guarding
from apps.incidents.services.guarding import Refusal, Want
from apps.nodes.models import Machine
from recovery.errors import BadInput
from recovery.guards import Dimension, Limit, Measure
from recovery.lifecycle import ActionKind
from tests import factories

pytestmark = pytest.mark.django_db
at_once_needs_commits = pytest.mark.django_db(transaction=True)

IN_RACK = Limit(
    "isolated-of-rack",
    Dimension.RACK,
    Measure.STANDING,
    (ActionKind.HOLD_NODE,),
    number=3,
    share=0.1,
    at_least=3,
)
A_MINUTE = Limit(
    "actions-a-minute",
    Dimension.CLUSTER,
    Measure.WINDOW,
    (ActionKind.RESTART_PROCESS,),
    number=4,
    window_seconds=60.0,
)


def make_fleet(*, racks: int = 1, in_rack: int = 10) -> tuple[Cluster, list[Machine]]:
    cluster = factories.make_cluster()
    now = database_now()
    machines = Machine.objects.bulk_create(
        Machine(
            cluster=cluster,
            hardware_key=f"hw-{rack}-{n}",
            name=f"gpu-r{rack:02d}-{n:02d}",
            pool="train",
            rack=f"r{rack:02d}",
            labels={"incidentdesk.io/power-unit": f"pu-{rack % 2}"},
            is_ready=True,
            first_seen_at=now,
            last_seen_at=now,
        )
        for rack in range(1, racks + 1)
        for n in range(in_rack)
    )
    return cluster, machines


def only(cluster: Cluster, *limits: Limit) -> None:
    """These limits and no others."""
    guarding.ensure_default_limits(cluster, database_now())
    GuardLimit.objects.filter(cluster=cluster).update(is_enabled=False)
    for limit in limits:
        guarding.set_limit(cluster=cluster, limit=limit, by="test", now=database_now())


def hold(cluster: Cluster, machine: Machine, holder: str = "") -> Refusal | None:
    want = Want(ActionKind.HOLD_NODE, holder or f"INC-{machine.pk}", "llm", machine)
    with transaction.atomic():
        (refusal,) = guarding.reserve(cluster=cluster, wants=[want], now=database_now())
    return refusal


def restart(cluster: Cluster, holder: str, *, at: Any = None) -> Refusal | None:
    want = Want(ActionKind.RESTART_PROCESS, holder, "llm")
    with transaction.atomic():
        (refusal,) = guarding.reserve(cluster=cluster, wants=[want], now=at or database_now())
    return refusal


def used(cluster: Cluster, limit: Limit, group: str = "r01") -> int:
    return GuardCounter.objects.get(limit__cluster=cluster, limit__name=limit.name, group=group).used


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Each in a thread with a connection of its own, all let go together. What one raises is its result."""
    gate = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def run(n: int, work: Callable[[], Any]) -> None:
        try:
            gate.wait(10)
            results[n] = work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[n] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(n, work)) for n, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@at_once_needs_commits
def test_limit_is_never_exceeded_by_many_at_once() -> None:
    cluster, machines = make_fleet()
    only(cluster, IN_RACK)
    results = at_once(*(lambda machine=machine: hold(cluster, machine) for machine in machines[:8]))
    assert [result for result in results if isinstance(result, Exception)] == []
    refused = [result for result in results if result is not None]
    assert len(refused) == 5
    assert used(cluster, IN_RACK) == 3
    assert GuardedMachine.objects.exclude(holders={}).count() == 3
    assert str(refused[0]) == (
        "held by guard isolated-of-rack: 3 of 3 machines of rack r01 are isolated now; "
        "limit 10 % of 10, at least 3 or 3"
    )


@pytest.mark.parametrize("rack", ['r"1', "a,b", "{}", "back\\\\slash", "NULL", "two words", "räck"])
def test_group_of_any_name_is_counted(rack: str) -> None:
    cluster, machines = make_fleet(in_rack=4)
    Machine.objects.update(rack=rack)
    only(cluster, IN_RACK)
    for machine in machines[:3]:
        machine.refresh_from_db()
        assert hold(cluster, machine) is None
    assert used(cluster, IN_RACK, rack) == 3
    assert GuardUse.objects.latest("id").groups["rack"] == rack
    machines[3].refresh_from_db()
    assert hold(cluster, machines[3]) is not None


def test_reservation_that_rolls_back_leaves_nothing() -> None:
    cluster, machines = make_fleet()
    only(cluster, IN_RACK)
    want = Want(ActionKind.HOLD_NODE, "INC-1", "llm", machines[0])
    with transaction.atomic():
        assert guarding.reserve(cluster=cluster, wants=[want], now=database_now()) == (None,)
        assert used(cluster, IN_RACK) == 1
        transaction.set_rollback(True)
    assert used(cluster, IN_RACK) == 0
    assert not GuardedMachine.objects.exclude(holders={}).exists()
    assert not GuardUse.objects.exists()


@at_once_needs_commits
def test_second_reservation_waits_for_the_first_and_sees_it() -> None:
    """Two connections, the last machine: the second looks at what the first has committed, not before."""
    cluster, machines = make_fleet()
    only(cluster, IN_RACK)
    for machine in machines[:2]:
        assert hold(cluster, machine) is None
    reserved, may_commit = threading.Event(), threading.Event()

    def first() -> Refusal | None:
        want = Want(ActionKind.HOLD_NODE, "INC-a", "llm", machines[2])
        with transaction.atomic():
            (refusal,) = guarding.reserve(cluster=cluster, wants=[want], now=database_now())
            reserved.set()
            assert may_commit.wait(20)
        return refusal

    def second() -> Refusal | None:
        assert reserved.wait(20)
        threading.Timer(0.05, may_commit.set).start()
        return hold(cluster, machines[3])

    one, two = at_once(first, second)
    assert one is None
    assert isinstance(two, Refusal)
    assert used(cluster, IN_RACK) == 3


def test_release_is_not_held_back_by_a_full_guard() -> None:
    """R5: what gives back is never blocked."""
    cluster, machines = make_fleet()
    only(cluster, IN_RACK)
    for machine in machines[:3]:
        hold(cluster, machine)
    limit = GuardLimit.objects.get(cluster=cluster, name=IN_RACK.name)
    GuardCounter.objects.filter(limit=limit).update(cap=1)  # lowered below what stands
    assert hold(cluster, machines[4]) is not None
    assert guarding.release(machine=machines[0], holder=f"INC-{machines[0].pk}")
    assert used(cluster, IN_RACK) == 2
    assert not guarding.release(machine=machines[0], holder=f"INC-{machines[0].pk}")
    assert used(cluster, IN_RACK) == 2


def test_machine_is_counted_once_whoever_holds_it() -> None:
    cluster, machines = make_fleet()
    only(cluster, IN_RACK)
    assert hold(cluster, machines[0], "INC-1") is None
    assert hold(cluster, machines[0], "INC-2") is None
    assert hold(cluster, machines[0], "INC-2") is None
    assert used(cluster, IN_RACK) == 1
    guarding.release(machine=machines[0], holder="INC-1")
    assert used(cluster, IN_RACK) == 1
    guarding.release(machine=machines[0], holder="INC-2")
    assert used(cluster, IN_RACK) == 0


@at_once_needs_commits
def test_one_machine_held_and_released_by_many_at_once_is_counted_right() -> None:
    cluster, machines = make_fleet()
    only(cluster, IN_RACK)
    machine = machines[0]
    hold(cluster, machine, "INC-0")
    works: list[Callable[[], Any]] = [lambda: guarding.release(machine=machine, holder="INC-0")]
    works += [lambda n=n: hold(cluster, machine, f"INC-{n}") for n in range(1, 5)]
    results = at_once(*works)
    assert [result for result in results if isinstance(result, Exception)] == []
    assert used(cluster, IN_RACK) == 1
    for n in range(1, 5):
        guarding.release(machine=machine, holder=f"INC-{n}")
    assert used(cluster, IN_RACK) == 0
    assert guarding.recount(cluster=cluster, now=database_now()) == []


def test_want_is_reserved_in_all_guards_or_in_none() -> None:
    cluster, machines = make_fleet(racks=2, in_rack=10)
    in_cluster = Limit(
        "isolated-of-cluster", Dimension.CLUSTER, Measure.STANDING, (ActionKind.HOLD_NODE,), number=4
    )
    only(cluster, IN_RACK, in_cluster)
    for machine in [*machines[:2], *machines[10:12]]:
        assert hold(cluster, machine) is None
    refusal = hold(cluster, machines[12])
    assert refusal is not None
    assert refusal.guard == "isolated-of-cluster"
    assert used(cluster, IN_RACK, "r02") == 2
    assert used(cluster, in_cluster, guarding.WHOLE) == 4


def test_wants_of_one_decision_are_judged_one_by_one() -> None:
    cluster, machines = make_fleet()
    only(cluster, IN_RACK)
    wants = [Want(ActionKind.HOLD_NODE, f"INC-{n}", "llm", machines[n]) for n in (4, 2, 3, 1, 0)]
    with transaction.atomic():
        refusals = guarding.reserve(cluster=cluster, wants=wants, now=database_now())
    assert [refusal is None for refusal in refusals] == [True, True, True, False, False]
    assert used(cluster, IN_RACK) == 3


@at_once_needs_commits
def test_wants_of_two_decisions_over_the_same_groups_do_not_wait_for_each_other_for_ever() -> None:
    cluster, machines = make_fleet(racks=2)
    only(cluster, IN_RACK)

    def take(order: list[int]) -> tuple[Refusal | None, ...]:
        wants = [Want(ActionKind.HOLD_NODE, f"INC-{n}", "llm", machines[n]) for n in order]
        with transaction.atomic():
            return guarding.reserve(cluster=cluster, wants=wants, now=database_now())

    results = at_once(*(lambda order=order: take(order) for order in ([0, 10], [11, 1], [2, 12], [13, 3])))
    assert [result for result in results if isinstance(result, Exception)] == []
    assert used(cluster, IN_RACK, "r01") == 3
    assert used(cluster, IN_RACK, "r02") == 3


def test_window_is_never_exceeded_and_has_room_again_when_it_is_over() -> None:
    cluster, _ = make_fleet()
    only(cluster, A_MINUTE)
    now = database_now()
    for n in range(4):
        assert restart(cluster, f"a-{n}", at=now + timedelta(seconds=10 * n)) is None
    refusal = restart(cluster, "a-4", at=now + timedelta(seconds=59))
    assert refusal is not None
    assert refusal.numbers.startswith("4 of 4 actions of cluster ")
    assert refusal.numbers.endswith("began in the last minute; limit 4 a minute")
    assert refusal.frees_at is not None
    frees = (refusal.frees_at - now).total_seconds()
    assert 60.0 <= frees <= 65.0
    assert restart(cluster, "a-5", at=refusal.frees_at) is None
    assert restart(cluster, "a-6", at=refusal.frees_at) is not None


@at_once_needs_commits
def test_window_holds_for_many_at_once() -> None:
    cluster, _ = make_fleet()
    only(cluster, A_MINUTE)
    results = at_once(*(lambda n=n: restart(cluster, f"a-{n}") for n in range(10)))
    assert [result for result in results if isinstance(result, Exception)] == []
    assert sum(result is None for result in results) == 4
    assert GuardUse.objects.filter(cluster=cluster).count() == 4


def test_new_cluster_is_guarded_before_its_first_recount() -> None:
    cluster, machines = make_fleet(in_rack=8)
    assert hold(cluster, machines[0]) is None
    refusal = hold(cluster, machines[1])
    assert refusal is not None
    assert refusal.guard == "isolated-of-cluster"
    assert "1 of 1 machine of cluster" in refusal.numbers


def test_rack_that_nobody_has_counted_yet_is_guarded() -> None:
    cluster, _ = make_fleet()
    only(cluster, IN_RACK)
    now = database_now()
    new = [
        Machine.objects.create(
            cluster=cluster, hardware_key=f"new-{n}", name=f"new-{n}", rack="r77",
            first_seen_at=now, last_seen_at=now,
        )
        for n in range(4)
    ]  # fmt: skip
    assert [hold(cluster, machine) is None for machine in new] == [True, True, True, False]


def test_label_of_power_units_makes_groups() -> None:
    cluster, machines = make_fleet(racks=3, in_rack=4)
    unit = Limit(
        "isolated-of-power-unit", Dimension.POWER_UNIT, Measure.STANDING, (ActionKind.HOLD_NODE,), number=1
    )
    only(cluster, unit)
    assert hold(cluster, machines[0]) is None  # rack 1, power unit 1
    refusal = hold(cluster, machines[8])  # rack 3, power unit 1
    assert refusal is not None
    assert "1 of 1 machine of power unit pu-1 is isolated now" in refusal.numbers
    assert hold(cluster, machines[4]) is None


def test_slow_drip_is_held_back_by_the_standing_limit() -> None:
    """R2: one machine an hour is under every rate, and still does not take the fleet."""
    cluster, machines = make_fleet(in_rack=20)
    an_hour = Limit(
        "isolated-an-hour",
        Dimension.CLUSTER,
        Measure.WINDOW,
        (ActionKind.HOLD_NODE,),
        number=2,
        window_seconds=3600.0,
    )
    only(cluster, IN_RACK, an_hour)
    now = database_now()
    taken = 0
    for n, machine in enumerate(machines):
        want = Want(ActionKind.HOLD_NODE, f"INC-{n}", "llm", machine)
        with transaction.atomic():
            (refusal,) = guarding.reserve(cluster=cluster, wants=[want], now=now + timedelta(hours=2 * n))
        taken += refusal is None
    assert taken == 3
    assert used(cluster, IN_RACK) == 3


def test_counter_that_drifted_is_seen_corrected_and_counted() -> None:
    """R12: a count that differs from what is so is an alarm, and is not believed."""
    cluster, machines = make_fleet()
    only(cluster, IN_RACK, A_MINUTE)
    for machine in machines[:2]:
        hold(cluster, machine)
    restart(cluster, "a-1")
    assert guarding.recount(cluster=cluster, now=database_now()) == []
    GuardCounter.objects.filter(cluster=cluster, group="r01").update(used=6)
    GuardCounter.objects.filter(cluster=cluster, limit__name=A_MINUTE.name).update(totals=[0] * 14)
    drifts = guarding.recount(cluster=cluster, now=database_now())
    assert sorted((drift.guard, drift.counted, drift.found) for drift in drifts) == [
        ("actions-a-minute", 0, 1),
        ("isolated-of-rack", 6, 2),
    ]
    assert used(cluster, IN_RACK) == 2
    row = GuardCounter.objects.get(cluster=cluster, group="r01")
    assert (row.drifts, row.drift) == (1, "guard isolated-of-rack of rack r01 counted 6, there are 2")
    assert guarding.recount(cluster=cluster, now=database_now()) == []


def test_recount_takes_in_what_changed_of_the_fleet() -> None:
    cluster, machines = make_fleet(in_rack=40)
    share = Limit("isolated-of-rack", Dimension.RACK, Measure.STANDING, (ActionKind.HOLD_NODE,), share=0.1)
    only(cluster, share)
    row = GuardCounter.objects.get(cluster=cluster, group="r01")
    assert (row.members, row.cap) == (40, 4)
    Machine.objects.filter(pk__in=[machine.pk for machine in machines[:20]]).update(gone_at=database_now())
    assert guarding.recount(cluster=cluster, now=database_now()) == []
    row.refresh_from_db()
    assert (row.members, row.cap) == (20, 2)
    Machine.objects.filter(cluster=cluster).update(gone_at=database_now())
    guarding.recount(cluster=cluster, now=database_now())
    assert not GuardCounter.objects.filter(pk=row.pk).exists()


def test_changed_limit_counts_at_once_what_is_out_already() -> None:
    cluster, machines = make_fleet(in_rack=30)
    only(cluster, IN_RACK)
    for machine in machines[:3]:
        hold(cluster, machine)
    in_pool = Limit("isolated-of-pool", Dimension.POOL, Measure.STANDING, (ActionKind.HOLD_NODE,), number=3)
    guarding.set_limit(cluster=cluster, limit=in_pool, by="ann", now=database_now())
    assert used(cluster, in_pool, "train") == 3
    guarding.release(machine=machines[0], holder=f"INC-{machines[0].pk}")
    assert used(cluster, in_pool, "train") == 2


def test_limit_that_can_never_let_one_through_is_refused_when_it_is_set() -> None:
    cluster, _ = make_fleet(in_rack=8)
    share = Limit("isolated-of-rack", Dimension.RACK, Measure.STANDING, (ActionKind.HOLD_NODE,), share=0.1)
    with pytest.raises(BadInput, match=r"10 % of rack r01 with 8 machines is 0.8: it can never admit one"):
        guarding.set_limit(cluster=cluster, limit=share, by="ann", now=database_now())
    assert not GuardLimit.objects.filter(cluster=cluster).exists()
