"""Counters of guards stay true: what comes late, twice, or from a limit that is no more neither jams nor drifts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.guard_models import GuardCounter, GuardLimit, GuardUse
from apps.incidents.services import guarding
from apps.incidents.services.guarding import Refusal, Want
from apps.nodes.models import Machine
from recovery.errors import BadInput
from recovery.guards import Dimension, Limit, Measure
from recovery.lifecycle import ActionKind
from tests import factories

pytestmark = pytest.mark.django_db

RESTARTS = Limit(
    "restarts-a-minute", Dimension.CLUSTER, Measure.WINDOW, (ActionKind.RESTART_PROCESS,), number=9,
    window_seconds=60.0,
)  # fmt: skip
OF_TENANT = Limit(
    "restarts-a-minute-of-tenant", Dimension.TENANT, Measure.WINDOW, (ActionKind.RESTART_PROCESS,), number=9,
    window_seconds=60.0,
)  # fmt: skip
ISOLATED = Limit(
    "isolated-an-hour", Dimension.CLUSTER, Measure.WINDOW, (ActionKind.HOLD_NODE,), number=9,
    window_seconds=3600.0,
)  # fmt: skip
ACTING = Limit(
    "acting-an-hour", Dimension.CLUSTER, Measure.WINDOW, (ActionKind.HOLD_NODE, ActionKind.REBOOT_NODE),
    number=9, window_seconds=3600.0,
)  # fmt: skip


@pytest.fixture
def cluster() -> Cluster:
    return factories.make_cluster()


def only(cluster: Cluster, *limits: Limit) -> None:
    """These limits and no others."""
    now = database_now()
    guarding.ensure_default_limits(cluster, now)
    GuardLimit.objects.filter(cluster=cluster).update(is_enabled=False)
    for limit in limits:
        guarding.set_limit(cluster=cluster, limit=limit, by="test", now=now)


def take(
    cluster: Cluster,
    kind: ActionKind = ActionKind.RESTART_PROCESS,
    *,
    holder: str = "a",
    after_seconds: float = 0.0,
    machine: Machine | None = None,
    tenant: str = "llm",
) -> Refusal | None:
    want = Want(kind, holder, tenant, machine)
    with transaction.atomic():
        now = database_now() + timedelta(seconds=after_seconds)
        (refusal,) = guarding.reserve(cluster=cluster, wants=[want], now=now)
    return refusal


def make_machine(cluster: Cluster) -> Machine:
    now = database_now()
    return Machine.objects.create(
        cluster=cluster, hardware_key="hw-1", name="gpu-1", rack="r01", first_seen_at=now, last_seen_at=now
    )


def test_decision_that_waited_for_its_turn_is_counted_where_the_recount_finds_it(cluster: Cluster) -> None:
    """It read its clock before the counter was free: a later one was counted first."""
    only(cluster, RESTARTS)
    began = database_now()
    for seconds in (12.0, 0.0):
        assert take(cluster, after_seconds=seconds, holder=f"after {seconds}") is None
    for seconds in range(12, 90, 4):
        assert guarding.recount(cluster=cluster, now=began + timedelta(seconds=seconds)) == []


def test_windows_count_what_a_log_of_all_moments_counts(cluster: Cluster) -> None:
    """Two windows of other lengths, gaps from none to longer than both, and clocks that run back."""
    short = replace(RESTARTS, name="short", number=3, window_seconds=12.0)
    only(cluster, replace(RESTARTS, number=6, window_seconds=30.0), short)
    began, seconds, refused = database_now(), 0.0, 0
    for n, gap in enumerate(
        (0, 0.4, 0, 3, -2, 0.9, 5, 1.1, 13, 0, -0.5, 0, 2.4, 7, 8, 1, 1, 1, 40, 0, 12, 2, 2, 2, 2)
    ):
        seconds += gap
        refused += take(cluster, holder=f"{n}", after_seconds=seconds) is not None
        moment = began + timedelta(seconds=max(seconds, 0) + 1)
        assert guarding.recount(cluster=cluster, now=moment) == [], f"after take {n}"
    assert 3 < refused < 20
    counted = sorted(GuardUse.objects.filter(cluster=cluster).values_list("at", flat=True))
    for first, fourth in zip(counted, counted[3:], strict=False):
        assert fourth - first > timedelta(seconds=12)


def test_reservation_that_is_neither_counted_nor_refused_says_what_it_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(cluster, RESTARTS, OF_TENANT)
    assert take(cluster, holder="before") is None
    monkeypatch.setattr(guarding, "_TAKE", "SELECT (%s, %s, %s, %s, %s, %s, %s) IS NULL")  # never
    with pytest.raises(AssertionError, match="limits want 2 counters, 2 are there, 0 full"):
        take(cluster)


def test_second_kind_of_action_on_a_machine_that_is_out_is_counted_as_the_recount_does(
    cluster: Cluster,
) -> None:
    only(cluster, ISOLATED, ACTING)
    machine = make_machine(cluster)
    assert take(cluster, ActionKind.REBOOT_NODE, holder="a", machine=machine) is None
    assert take(cluster, ActionKind.HOLD_NODE, holder="b", machine=machine) is None
    assert take(cluster, ActionKind.HOLD_NODE, holder="c", machine=machine) is None
    assert guarding.recount(cluster=cluster, now=database_now()) == []
    used = dict(GuardCounter.objects.filter(cluster=cluster).values_list("limit__name", "used"))
    assert used == {"isolated-an-hour": 1, "acting-an-hour": 2}


@pytest.mark.parametrize("what", ["off", "other actions"])
def test_counter_that_its_limit_has_left_behind_holds_up_no_decision(cluster: Cluster, what: str) -> None:
    """A recount that read its limits before somebody changed one adds a counter of what was."""
    only(cluster, RESTARTS)
    assert take(cluster) is None
    changed = {"is_enabled": False} if what == "off" else {"actions": [str(ActionKind.STOP_JOB)]}
    GuardLimit.objects.filter(cluster=cluster, name=RESTARTS.name).update(**changed)
    assert take(cluster, holder="b") is None
    assert take(cluster, ActionKind.STOP_JOB, holder="c") is None
    guarding.recount(cluster=cluster, now=database_now())
    assert take(cluster, holder="d") is None
    left = GuardCounter.objects.filter(limit__cluster=cluster, limit__name=RESTARTS.name)
    assert [counter.actions for counter in left] == ([] if what == "off" else [["stop_job"]])


def test_recount_takes_away_the_counter_of_a_limit_that_is_off(cluster: Cluster) -> None:
    only(cluster, RESTARTS)
    assert take(cluster) is None
    GuardLimit.objects.filter(cluster=cluster, name=RESTARTS.name).update(is_enabled=False)
    guarding.recount(cluster=cluster, now=database_now())
    assert not GuardCounter.objects.filter(cluster=cluster).exists()


def test_group_that_is_gone_is_forgotten_when_its_window_is_over(cluster: Cluster) -> None:
    only(cluster, OF_TENANT)
    assert take(cluster, tenant="gone") is None
    later = database_now() + timedelta(seconds=30)
    guarding.recount(cluster=cluster, now=later)
    assert GuardCounter.objects.filter(cluster=cluster, group="gone").exists(), "still in its window"
    guarding.recount(cluster=cluster, now=later + timedelta(minutes=2))
    assert not GuardCounter.objects.filter(cluster=cluster, group="gone").exists()


def test_window_that_no_clock_can_count_is_refused(cluster: Cluster) -> None:
    for seconds in (float("inf"), 1e12, 1e-6):
        with pytest.raises(BadInput, match="window"):
            guarding.set_limit(
                cluster=cluster, limit=replace(RESTARTS, window_seconds=seconds), by="t", now=database_now()
            )


@pytest.mark.parametrize("is_enabled", [True, False])
def test_limit_that_is_changed_during_a_recount_holds_from_then_on(
    cluster: Cluster, is_enabled: bool
) -> None:
    """Whichever of its reads a person comes behind: no cap, count or counter of the old limit comes back."""
    make_machine(cluster)
    lowered = replace(RESTARTS, number=2)
    for nth in range(1, 20):
        only(cluster, RESTARTS)
        GuardCounter.objects.filter(cluster=cluster).update(cap=7, members=0)  # there is something to mend
        now = database_now()
        behind = Behind(
            nth,
            lambda: guarding.set_limit(
                cluster=cluster, limit=lowered, by="ann", now=database_now(), is_enabled=is_enabled
            ),
        )
        with connection.execute_wrapper(behind):
            guarding.recount(cluster=cluster, now=now)
        if not behind.statement:
            assert nth > 5, "a recount has more to read"
            return
        caps = set(GuardCounter.objects.filter(cluster=cluster).values_list("cap", flat=True))
        if is_enabled:
            assert caps == {2}, f"changed behind {behind.statement}"
        taken = [take(cluster, holder=f"{nth} {n}") is None for n in range(3)]
        assert taken == ([True, True, False] if is_enabled else [True] * 3)
        GuardUse.objects.filter(cluster=cluster).delete()
    pytest.fail("a recount of one guard needs more statements than were tried")


class Behind:
    """Does something right behind the nth statement."""

    def __init__(self, nth: int, do: Callable[[], object]) -> None:
        self.left, self.do = nth, do
        self.statement = ""

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        self.left -= 1
        if self.left == 0:
            self.statement = sql
            self.do()
        return answer
