"""The live feed: which row changed, for pages that fetch their fragment again."""

from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection

from apps.access.services import unassigned_tenant
from apps.incidents.models import FeedRow
from apps.jobs.models import Incarnation

LIVE_CHANNEL = "incidentdesk_live"
ORDERS_CHANNEL = "incidentdesk_orders"
NODE_TOPIC = "node"
FLEET_TOPIC = "fleet_node"  # a node, for those who see every one; told to their pages as "node"
MOST_NODES_NAMED = 500  # of more, a page is told to look again without saying at which
ANY = "*"  # the key that stands for them


def publish(*, tenant_id: int, topic: str, key: int | str, now: datetime) -> None:
    """Tell the live pages that ``topic``/``key`` changed. Part of the caller's transaction.

    The row is numbered by its transaction, because sequences become visible at commit; NOTIFY is
    delivered with the commit too, and only wakes the readers.
    """
    publish_all(tenant_id=tenant_id, rows=[(topic, key)], now=now)


_PUBLISH = """
WITH told AS (
    INSERT INTO incidents_feedrow (tenant_id, topic, key, created_at)
    SELECT %s, topic, key, %s FROM unnest(%s::text[], %s::text[]) AS row(topic, key)
)
SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS call(channel, payload)
"""


def publish_all(
    *, tenant_id: int, rows: Collection[tuple[str, int | str]], now: datetime, ordered: int | None = None
) -> None:
    """Tell the live pages of several rows at once, as (topic, key), and the agents of job ``ordered`` to ask.

    One statement: each decision says something, and holds its subject's lock meanwhile.
    """
    calls = [(LIVE_CHANNEL, "")] if rows else []
    calls += [(ORDERS_CHANNEL, str(ordered))] if ordered is not None else []
    with connection.cursor() as cursor:
        cursor.execute(
            _PUBLISH,
            [
                tenant_id,
                now,
                [topic for topic, _ in rows],
                [str(key) for _, key in rows],
                [channel for channel, _ in calls],
                [payload for _, payload in calls],
            ],
        )


def publish_nodes(*, machine_ids: Collection[int], now: datetime) -> None:
    """Tell the live pages that nodes changed. Part of the caller's transaction.

    Nodes have no tenant. Each tenant whose workers ever ran on one gets a row about it, which is who may see
    its page; one more, whose topic tells it apart, is for those who see the whole fleet. So nobody learns even
    that something happened on a node that is not theirs to see.
    """
    if not machine_ids:
        return
    lives = Incarnation.objects.filter(machine__in=machine_ids).order_by()
    seen_by = {
        (tenant, NODE_TOPIC, machine)
        for tenant, machine in lives.distinct().values_list("tenant_id", "machine_id")
    }
    nobodys = unassigned_tenant().pk
    seen_by |= {(nobodys, FLEET_TOPIC, machine_id) for machine_id in machine_ids}
    if len(machine_ids) > MOST_NODES_NAMED:
        rows = sorted({(tenant_id, topic, ANY) for tenant_id, topic, _ in seen_by})
    else:
        rows = [(tenant_id, topic, str(machine_id)) for tenant_id, topic, machine_id in sorted(seen_by)]
    FeedRow.objects.bulk_create(
        [
            FeedRow(tenant_id=tenant_id, topic=topic, key=key, created_at=now)
            for tenant_id, topic, key in rows
        ],
        batch_size=500,
    )
    notify(LIVE_CHANNEL, "")


def notify(channel: str, payload: str) -> None:
    """Send a PostgreSQL notification with this transaction's commit."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])


def forget_old_rows(*, now: datetime) -> int:
    """Delete feed rows older than FEED_KEEP_SECONDS. Returns how many."""
    oldest = now - timedelta(seconds=settings.TIMINGS["FEED_KEEP_SECONDS"])
    deleted, _ = FeedRow.objects.filter(created_at__lt=oldest).delete()
    return deleted
