"""Trigram indexes for searches by a part of a text, made by migrations where PostgreSQL has ``pg_trgm``.

It comes with PostgreSQL (contrib) and is trusted: whoever owns the database may switch it on. Some
packagings leave it out, and some accounts may not; searching works there too and reads every row.
"""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger(__name__)


def add_trigram_index(schema_editor: Any, *, table: str, column: str, name: str) -> bool:
    """Index ``UPPER(column)``, which is what ``icontains`` compares. Not inside a transaction.

    Returns whether it is there now. An index that a broken attempt left invalid is made anew.
    """
    quote = schema_editor.quote_name
    with schema_editor.connection.cursor() as cursor:
        if not _has_trigrams(cursor):
            _log.warning("trigrams.missing index=%s: pg_trgm cannot be had, searches read every row", name)
            return False
        cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {quote(name)}")
        cursor.execute(
            f"CREATE INDEX CONCURRENTLY {quote(name)} ON {quote(table)}"
            f" USING gin (UPPER({quote(column)}::text) gin_trgm_ops)"
        )
        cursor.execute(
            f"ANALYZE {quote(table)}"
        )  # how rare a word is decides between this index and the newest rows
    return True


def drop_trigram_index(schema_editor: Any, *, name: str) -> None:
    """Take it away again; the extension stays, others may use it."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(name)}")


def _has_trigrams(cursor: Any) -> bool:
    """Switch the extension on where it may be had."""
    cursor.execute("SELECT 1 FROM pg_extension WHERE extname = 'pg_trgm'")
    if cursor.fetchone():
        return True
    cursor.execute(
        "SELECT has_database_privilege(current_database(), 'CREATE') AND EXISTS"
        " (SELECT 1 FROM pg_available_extension_versions WHERE name = 'pg_trgm' AND (trusted OR"
        " (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)))"
    )
    if not cursor.fetchone()[0]:
        return False
    cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    return True
