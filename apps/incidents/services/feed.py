"""The live feed: which row changed, for pages that fetch their fragment again."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection

from apps.incidents.models import FeedRow

LIVE_CHANNEL = "incidentdesk_live"
ORDERS_CHANNEL = "incidentdesk_orders"


def publish(*, tenant_id: int, topic: str, key: int | str, now: datetime) -> None:
    """Tell the live pages that ``topic``/``key`` changed. Part of the caller's transaction.

    The row is numbered by its transaction, because sequences become visible at commit; NOTIFY is
    delivered with the commit too, and only wakes the readers.
    """
    FeedRow.objects.create(tenant_id=tenant_id, topic=topic, key=str(key), created_at=now)
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
