"""Pages of a list: what follows the first page shows the state in which the first was taken."""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from sim.errors import BadRequest, Gone
from sim.watch import Entry, Key

MAX_SNAPSHOTS = 32
SNAPSHOT_SECONDS = 300.0
"""etcd forgets after five minutes, and a continue token with it."""
INCONSISTENT = -1
"""The revision in the token of a 410: go on from its key, but in the present state."""

Selection = tuple[str, str | None, str, str]
"""(kind, namespace, label selector, field selector) of a list."""


@dataclass(frozen=True)
class ListResult:
    """One page. `remaining` counts what follows the page, None when selectors make it unknown."""

    entries: list[Entry]
    resource_version: str
    continue_token: str | None
    remaining: int | None

    @cached_property
    def items(self) -> list[dict[str, Any]]:
        return [entry.object() for entry in self.entries]


class Snapshots:
    """Lists that have further pages. The store's lock guards them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[Selection, int], tuple[list[Entry], float]] = OrderedDict()

    def keep(self, selection: Selection, revision: int, entries: list[Entry]) -> None:
        """Remember a whole list for its later pages; the least used one goes when there are too many."""
        key = (selection, revision)
        if key not in self._kept:
            self._kept[key] = (entries, self._clock())
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_SNAPSHOTS:
            self._kept.popitem(last=False)

    def find(self, selection: Selection, revision: int, start: Key) -> list[Entry]:
        """The list of a token. Raises Gone, with a token that goes on in the present state."""
        kept = self._kept.get((selection, revision))
        if kept is None or self._clock() - kept[1] > SNAPSHOT_SECONDS:
            raise Gone(
                "The provided continue parameter is too old to display a consistent list result. You can start a "
                "new list without the continue parameter, or use the continue token in this response to retrieve "
                "the remainder of the results. Continuing with the provided token results in an inconsistent list",
                continue_token=write_token(INCONSISTENT, start),
            )
        return kept[0]

    def forget(self, to_revision: int) -> None:
        """Drop lists taken at that revision or before."""
        for key in [key for key in self._kept if key[1] <= to_revision]:
            del self._kept[key]


def write_token(revision: int, start: Key) -> str:
    """A continue token: the list's revision and the last key that was given."""
    token = {"v": "meta.k8s.io/v1", "rv": revision, "start": "/".join(start)}
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def read_token(token: str) -> tuple[int, Key]:
    """Raises BadRequest."""
    try:
        decoded = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, _, name = decoded["start"].partition("/")
        return int(decoded["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error, msgspec.DecodeError):
        raise BadRequest("continue key is not valid") from None
