"""The one clock: the database's. Call it as ``clock.database_now()``, so that tests can replace it."""

from __future__ import annotations

from datetime import datetime

from django.db import connection


def database_now() -> datetime:
    """The database's wall clock, aware, UTC.

    ``clock_timestamp()`` and not ``now()``: the latter is the transaction's start, which may be long before
    the lock that a service waited for.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now
