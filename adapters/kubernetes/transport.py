"""How bytes come from and go to an API server, as protocols; ``client`` implements them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Query = Mapping[str, str]


class Lines(Protocol):
    """An open stream of lines. ``close`` may be called from another thread; the iteration then ends."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Transport(Protocol):
    """One API server.

    Everything raises ``recovery.errors``: ClusterUnavailable (``ambiguous`` for a write that may have
    happened), ClusterRefused, PreconditionFailed (409), WatchExpired (410); a read of what is not there
    raises NotFound.
    """

    def read(self, path: str, query: Query) -> bytes:
        """The body of a GET."""
        ...

    def stream(self, path: str, query: Query, *, read_timeout_seconds: float) -> Lines:
        """The body of a GET, line by line as it comes. Silence longer than the time-out is unavailability."""
        ...

    def ask(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The answer to a POST that changes nothing, such as a review. It may be sent again."""
        ...

    def merge_patch(self, path: str, body: Mapping[str, Any], query: Query) -> bytes:
        """Apply a JSON merge patch and return the object as it is then."""
        ...
