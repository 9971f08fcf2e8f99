"""Keyset pages: as fast on the last page of 100,000 rows as on the first, and stable while rows come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import BadRequest
from django.db.models import Case, Count, Model, Q, QuerySet, Sum, Value, When

SIZE = 50
CAP = 10_000  # counts stop here and say "10,000+"


@dataclass(frozen=True, slots=True)
class Page[Row: Model]:
    """Rows and where the neighbouring pages begin; a cursor is None where there is no such page."""

    rows: list[Row]
    older: str | None  # the next page
    newer: str | None  # the one before
    is_first: bool


def keyset_page[Row: Model](
    queryset: QuerySet[Row],
    *,
    order: Sequence[str] = ("-id",),
    after: str = "",
    before: str = "",
    size: int = SIZE,
) -> Page[Row]:
    """One page of ``queryset`` in ``order`` (the last field must be unique).

    ``after`` and ``before`` are cursors from a page's ``older`` and ``newer``. A cursor that cannot be
    read is a BadRequest.
    """
    backwards = bool(before) and not after
    fields = [field.removeprefix("-") for field in order]
    cursor = after or before
    if cursor:
        queryset = queryset.filter(_beyond(order, fields, _read(cursor, fields), backwards=backwards))
    turned = [_turn(field) for field in order] if backwards else list(order)
    found = list(queryset.order_by(*turned)[: size + 1])
    more = len(found) > size
    found = found[:size]
    if backwards:
        found.reverse()
    older = _write(found[-1], fields) if found and (more or backwards) else None
    newer = _write(found[0], fields) if found and (more if backwards else bool(after)) else None
    return Page(rows=found, older=older, newer=newer, is_first=not cursor or (backwards and not more))


def capped_count(queryset: QuerySet[Any], cap: int = CAP) -> int:
    """How many rows, counted to ``cap + 1`` at most: a list must not pay for all that ever happened."""
    return queryset.order_by()[: cap + 1].count()


def capped_counts(queryset: QuerySet[Any], which: Q, cap: int = CAP) -> tuple[int, int]:
    """As ``capped_count``, and how many of the rows counted are so: one query for both."""
    rows = queryset.order_by().annotate(is_so=Case(When(which, then=Value(1)), default=Value(0)))
    found = rows.values("pk", "is_so")[: cap + 1].aggregate(total=Count("pk"), so=Sum("is_so"))
    return found["total"], found["so"] or 0


def capped_word(count: int, cap: int = CAP) -> str:
    """A capped count for people: ``1,188`` or ``10,000+``."""
    return f"{cap:,}+" if count > cap else f"{count:,}"


def _turn(field: str) -> str:
    return field[1:] if field.startswith("-") else f"-{field}"


def _write(row: Model, fields: Sequence[str]) -> str:
    return "~".join(str(getattr(row, field)) for field in fields)


def _read(cursor: str, fields: Sequence[str]) -> list[Any]:
    values: list[Any] = cursor.rsplit("~", len(fields) - 1)
    try:
        values[-1] = int(values[-1])
    except ValueError:
        values = []
    if len(values) != len(fields) or not -(2**63) < values[-1] < 2**63:
        raise BadRequest(f"The page address {cursor!r} cannot be read; go back to the first page.")
    return values


def _beyond(order: Sequence[str], fields: Sequence[str], values: Sequence[Any], *, backwards: bool) -> Q:
    condition = Q()
    for depth, field in enumerate(fields):
        falling = order[depth].startswith("-") != backwards
        same = Q(**dict(zip(fields[:depth], values[:depth], strict=True)))
        condition |= same & Q(**{f"{field}__{'lt' if falling else 'gt'}": values[depth]})
    return condition
