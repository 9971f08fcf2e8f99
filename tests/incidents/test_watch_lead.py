"""Who leads the watch: one at a time, by lease and epoch, and whoever lost it writes nothing more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError
from pytest_django import Settings

import incidentdesk.celery  # noqa: F401 - the app that wakes workers
from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.models import InboxEntry, Signal
from apps.incidents.services import watching
from apps.incidents.services.watching import LeadershipLost, Seen
from apps.jobs.models import Job, Pod
from apps.nodes.models import Machine, WatchState
from recovery.signals import SignalKind
from tests.factories import make_cluster
from tests.facts import (
    added,
    at,
    ended,
    make_job_fact,
    make_node_fact,
    make_pod_fact,
    modified,
    over,
    running,
)

# Valkey runs, so that wake-ups after a commit find their broker.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

DEADLINE_SECONDS = 20


@pytest.fixture
def cluster(settings: Settings) -> Cluster:
    settings.TIMINGS = {**settings.TIMINGS, "WATCH_LEASE_SECONDS": 30.0}
    return make_cluster()


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[], Any]], threading.Thread]]:
    """Run something in a thread, which has a database connection of its own."""
    threads = []

    def start(what: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                what()
            finally:
                connection.close()

        thread = threading.Thread(target=run)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(DEADLINE_SECONDS)


def expire(cluster: Cluster) -> None:
    """The lease runs out."""
    past = database_now() - timedelta(seconds=1)
    WatchState.objects.filter(cluster=cluster, resource="leader").update(lease_until=past)


def lead(cluster: Cluster, owner: str = "one") -> watching.Lead:
    taken = watching.take_lead(cluster=cluster, owner=owner)
    assert taken is not None
    return taken


def test_lease_is_one_process_at_a_time(cluster: Cluster) -> None:
    first = lead(cluster)
    assert watching.take_lead(cluster=cluster, owner="two") is None
    assert watching.renew_lead(first)
    watching.give_up_lead(first)
    second = lead(cluster, "two")
    assert second.epoch == first.epoch + 1


def test_lease_that_ran_out_is_not_renewed_even_if_nobody_took_it(cluster: Cluster) -> None:
    first = lead(cluster)
    expire(cluster)
    assert not watching.renew_lead(first)
    with pytest.raises(LeadershipLost):
        watching.import_seen(first, Seen(nodes=(added(make_node_fact()),)))
    assert not Machine.objects.exists()


def test_former_leader_writes_nothing_more(cluster: Cluster) -> None:
    first = lead(cluster)
    expire(cluster)
    second = lead(cluster, "two")
    for write in (
        lambda: watching.import_seen(first, Seen(nodes=(added(make_node_fact()),))),
        lambda: watching.write_freshness(first, [watching.Freshness("nodes", "watching")]),
        lambda: watching.store_token_keys(first, issuer="x", keys={}),
        lambda: watching.fill_restart_counts(first),
    ):
        with pytest.raises(LeadershipLost):
            write()
    assert not Machine.objects.exists()
    assert not WatchState.objects.filter(resource="nodes").exists()
    assert watching.import_seen(second, Seen(nodes=(added(make_node_fact()),))).nodes_written == 1


def test_giving_up_a_lost_lead_leaves_the_new_leader_alone(cluster: Cluster) -> None:
    first = lead(cluster)
    expire(cluster)
    second = lead(cluster, "two")
    watching.give_up_lead(first)
    assert watching.renew_lead(second)


def test_take_over_waits_for_a_write_that_is_under_way(
    cluster: Cluster, elsewhere: Callable[[Callable[[], Any]], threading.Thread]
) -> None:
    first = lead(cluster)
    taken: list[watching.Lead | None] = []
    with transaction.atomic():
        watching.hold_lead(first)
        assert watching.renew_lead(first), "its own renewals pass"
    with transaction.atomic():
        watching.hold_lead(first)
        # From a connection of its own, for this transaction must stay without a change of the row.
        elsewhere(lambda: expire(cluster)).join(DEADLINE_SECONDS)
        thread = elsewhere(lambda: taken.append(watching.take_lead(cluster=cluster, owner="two")))
        _wait_until_blocked()
        Machine.objects.create(
            cluster=cluster, hardware_key="m", name="m", first_seen_at=at(0), last_seen_at=at(0)
        )
    thread.join(DEADLINE_SECONDS)
    assert taken
    assert taken[0] is not None
    assert taken[0].epoch == first.epoch + 1
    assert Machine.objects.exists(), "what was written before the take-over stands"


def _wait_until_blocked() -> None:
    """Until some session waits for a lock of ours."""
    done = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.05)):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            if cursor.fetchone():
                return
        done.wait(0.05)
    raise AssertionError("the take-over did not wait")


def test_leader_stopped_in_the_middle_of_a_write_is_ended_by_the_server(
    cluster: Cluster,
    settings: Settings,
    elsewhere: Callable[[Callable[[], Any]], threading.Thread],
) -> None:
    settings.TIMINGS = {**settings.TIMINGS, "WATCH_LEASE_SECONDS": 0.3}
    first = lead(cluster)
    began, woken, outcome = threading.Event(), threading.Event(), []

    def stopped() -> None:
        try:
            with transaction.atomic():
                watching.hold_lead(first)
                Machine.objects.create(
                    cluster=cluster, hardware_key="m", name="m", first_seen_at=at(0), last_seen_at=at(0)
                )
                began.set()
                woken.wait(DEADLINE_SECONDS)  # SIGSTOP
                Machine.objects.create(
                    cluster=cluster, hardware_key="n", name="n", first_seen_at=at(0), last_seen_at=at(0)
                )
        except DatabaseError as error:
            outcome.append(error)

    thread = elsewhere(stopped)
    assert began.wait(DEADLINE_SECONDS)
    second = None
    for _ in range(100):
        second = watching.take_lead(cluster=cluster, owner="two")
        if second is not None:
            break
        threading.Event().wait(0.05)
    assert second is not None
    woken.set()
    thread.join(DEADLINE_SECONDS)
    assert outcome, "its transaction was ended"
    assert not Machine.objects.exists()


# What an import records


def signals() -> list[tuple[str, str]]:
    return list(Signal.objects.order_by("id").values_list("kind", "source_key"))


def test_rows_and_signals_come_together_and_reach_the_inbox(cluster: Cluster) -> None:
    holder = lead(cluster)
    pods = [running(make_pod_fact(index)) for index in range(3)]
    watching.import_seen(holder, Seen(jobs=(added(make_job_fact()),), pods=tuple(map(added, pods))))
    watching.import_seen(holder, Seen(pods=(modified(ended(pods[2])),)))
    assert [kind for kind, _ in signals()] == ["job_known", "world_running", "incarnation_ended"]
    job = Job.objects.get()
    assert InboxEntry.objects.filter(subject__job=job, decision_n=None).count() == 3
    end = Signal.objects.get(kind=SignalKind.INCARNATION_ENDED)
    assert (end.source, end.source_key, end.index) == ("watch", "uid-llm-2/train/0", 2)
    assert end.incarnation_id is not None


def test_failed_write_leaves_neither_row_nor_signal_and_is_whole_the_next_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = lead(cluster)
    pod = running(make_pod_fact())
    watching.import_seen(holder, Seen(jobs=(added(make_job_fact()),), pods=(added(pod),)))
    seen = Seen(pods=(modified(ended(pod)),))
    with monkeypatch.context() as patch:

        def broken(**_: Any) -> None:
            raise DatabaseError("connection lost")

        patch.setattr(watching, "record_signals", broken)
        with pytest.raises(DatabaseError):
            watching.import_seen(holder, seen)
    assert Pod.objects.get().phase == "Running"
    watching.import_seen(holder, seen)
    watching.import_seen(holder, seen)
    assert [kind for kind, _ in signals()].count("incarnation_ended") == 1


def test_reworded_news_under_a_known_key_is_not_a_conflict(cluster: Cluster) -> None:
    holder = lead(cluster)

    fact = make_job_fact()
    failed = over(fact, "Failed", "BackoffLimitExceeded")
    again = replace(over(fact, "Failed", "DeadlineExceeded"), resource_version="40")
    for change in (added(fact), modified(failed), modified(again)):
        watching.import_seen(holder, Seen(jobs=(change,)))
    assert [kind for kind, _ in signals()] == ["job_known", "job_ended"]
