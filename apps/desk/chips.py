"""Filter chips: links that switch one value of the address on or off and start again at the first page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.http import QueryDict

from apps.desk.words import Mark, mark_for

PAGE_KEYS = ("after", "before", "held")


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip: its mark, where it leads, and whether it is on."""

    mark: Mark
    url: str
    is_on: bool


def toggle_chips(query: QueryDict, name: str, kind: str, values: Iterable[object]) -> list[Chip]:
    """A chip for each value of the parameter ``name``; several may be on."""
    on = set(query.getlist(name))
    chips = []
    for value in map(str, values):
        changed = query.copy()
        for key in PAGE_KEYS:
            changed.pop(key, None)
        wanted = [word for word in query.getlist(name) if word != value]
        if value not in on:
            wanted.append(value)
        changed.setlist(name, wanted)
        chips.append(Chip(mark=mark_for(kind, value), url=f"?{changed.urlencode()}", is_on=value in on))
    return chips
