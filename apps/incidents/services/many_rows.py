"""Many rows changed by one statement, each to values of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db import connection, models


def update_rows(
    model: type[models.Model],
    *,
    key: str,
    keys: Sequence[Any],
    values: Mapping[str, Sequence[Any]],
    same: Mapping[str, Any] | None = None,
    where: Mapping[str, Any] | None = None,
    keeping: Collection[str] = (),
) -> None:
    """Set columns of the rows that ``keys`` name: one statement and one plan, for a row or for thousands.

    Django's ``bulk_update`` builds a CASE per column and row: with it a decision about 1,000 workers took 2.9 s
    of the processor, with this 0.5 s.

    Args:
        key: Field whose value names a row.
        keys: One per row; without any nothing is sent.
        values: By field, as long as ``keys``.
        same: Fields that become the same in every row, with their value.
        where: What must hold of a row besides, as field and value.
        keeping: Fields of ``values`` in which None leaves the row's own value.
    """
    if not keys or not values:
        return
    same, where = same or {}, where or {}
    quote = connection.ops.quote_name
    fields: dict[str, Any] = {name: model._meta.get_field(name) for name in (key, *values, *same, *where)}  # noqa: SLF001
    columns = {name: quote(field.column) for name, field in fields.items()}
    given = [key, *values]
    sets = [
        f"{columns[name]} = COALESCE(given.{columns[name]}, present.{columns[name]})"
        if name in keeping
        else f"{columns[name]} = given.{columns[name]}"
        for name in values
    ]
    sets += [f"{columns[name]} = %s" for name in same]
    holds = [f"present.{columns[key]} = given.{columns[key]}"]
    holds += [f"present.{columns[name]} = %s" for name in where]
    arrays = [f"%s::{_type_of(fields[name])}[]" for name in given]
    statement = (
        f"UPDATE {quote(model._meta.db_table)} AS present SET {', '.join(sets)} "  # noqa: S608, SLF001 - our names
        f"FROM unnest({', '.join(arrays)}) AS given({', '.join(columns[name] for name in given)}) "
        f"WHERE {' AND '.join(holds)}"
    )
    with connection.cursor() as cursor:
        cursor.execute(
            statement,
            [
                *(_prepared(fields[name], value) for name, value in same.items()),
                [_prepared(fields[key], value) for value in keys],
                *([_prepared(fields[name], value) for value in each] for name, each in values.items()),
                *(_prepared(fields[name], value) for name, value in where.items()),
            ],
        )


def _type_of(field: Any) -> str:
    """Without its length: a cast would cut what is too long, the assignment refuses it."""
    return str(field.rel_db_type(connection)).partition("(")[0]


def _prepared(field: Any, value: Any) -> Any:
    return None if value is None else field.get_db_prep_save(value, connection)
