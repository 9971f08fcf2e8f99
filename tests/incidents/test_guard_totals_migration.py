"""Counters keep their counts when their windows become running totals; back, they are counted anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from recovery import guards
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

RING, TOTALS = ("incidents", "0015_signal_alert_of_node"), ("incidents", "0016_guard_totals")
INDEXES = "SELECT indexname FROM pg_indexes WHERE tablename = 'incidents_guarduse' AND indexdef LIKE '%%(cluster_id)'"

#: Counts by slot number and the newest slot of it; 13 slots are kept.
WINDOWS = [
    ({n: n % 5 for n in range(1_000_000_001, 1_000_000_014)}, 1_000_000_013),
    ({12: 3}, 12),
    ({26: 1, 38: 2}, 38),
    ({5: 4}, 17),
    ({}, 7),
]


def migrate(*targets: tuple[str, str]) -> None:
    MigrationExecutor(connection).migrate(list(targets))


@pytest.fixture
def tables_of_today() -> Iterator[None]:
    leaves = MigrationExecutor(connection).loader.graph.leaf_nodes()
    yield
    migrate(*leaves)


@pytest.mark.usefixtures("tables_of_today")
def test_counts_in_windows_become_totals_and_the_index_goes_and_comes() -> None:
    cluster = factories.make_cluster()
    migrate(RING)
    with connection.cursor() as cursor:
        cursor.execute(INDEXES)
        (index,) = cursor.fetchall()
        cursor.execute(
            """INSERT INTO incidents_guardlimit (cluster_id, name, dimension, measure, actions, number, at_least,
                window_seconds, is_enabled, changed_by, changed_at)
            VALUES (%s, 'a-minute', 'tenant', 'window', '{restart_process}', 9, 0, 60, true, '', now()) RETURNING id""",
            [cluster.pk],
        )
        (limit,) = cursor.fetchone() or ()
        for n, (counts, newest) in enumerate(WINDOWS):
            ring = [0] * 13
            for slot, count in counts.items():
                ring[slot % 13] = count
            cursor.execute(
                """INSERT INTO incidents_guardcounter (limit_id, cluster_id, dimension, "group", actions, members, cap,
                    used, slot_seconds, slots, newest_slot, refusals, drifts, drift)
                VALUES (%s, %s, 'tenant', %s, '{restart_process}', 1, 9, 0, 5, %s, %s, 0, 0, '')""",
                [limit, cluster.pk, str(n), ring, newest],
            )
    migrate(TOTALS)
    with connection.cursor() as cursor:
        cursor.execute('SELECT totals, newest_slot FROM incidents_guardcounter ORDER BY "group"')
        held = [(guards.live_slots(totals, newest, newest), newest) for totals, newest in cursor.fetchall()]
        assert held == [({n: k for n, k in counts.items() if k}, newest) for counts, newest in WINDOWS]
        cursor.execute(INDEXES)
        assert cursor.fetchall() == []
    migrate(RING)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(slots) FROM incidents_guardcounter")
        assert cursor.fetchone() == (0, 0), "what has begun is counted anew when the first is asked"
        cursor.execute(INDEXES)
        assert cursor.fetchall() == [index]
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'incidents_guarduse'::regclass AND contype = 'f'"
        )
        assert len(cursor.fetchall()) == 1
