"""List and watch one resource for ever, with nothing missed.

A list comes in pages. Then a watch is followed from the list's resource version; at its end it is
resumed where it stopped. When that version is too old (410, as HTTP status, as ERROR event or for a
page), everything is listed again and compared with what is known: what is missing by then has vanished.
The first list is compared in the same way with what the caller knew from before, so that a restart of
the watch and a gap in it are one case.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from adapters.facts import Change, ChangeType
from adapters.kubernetes import objects
from adapters.kubernetes.transport import Lines, Transport
from recovery.errors import ClusterError, ClusterUnavailable, WatchExpired

_log = logging.getLogger(__name__)

PAGE_SIZE = 500
READ_MARGIN_SECONDS = 30.0  # the server ends a watch by itself; only silence beyond that is a dead connection
BACKOFF_BASE_SECONDS = 0.5
BACKOFF_CAP_SECONDS = 30.0
QUICK_END_SECONDS = 1.0  # a watch that ends sooner, without an event, is followed by a wait


class Versioned(Protocol):
    """What a watcher must know of a fact."""

    @property
    def uid(self) -> str: ...

    @property
    def resource_version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Page[T]:
    """One page of a list. Objects that are of no interest are left out."""

    facts: tuple[T, ...]
    resource_version: str
    continue_token: str


@dataclass(frozen=True, slots=True)
class Resource[T: Versioned]:
    """A resource to follow: its name with us, its path, and how its bytes become facts.

    ``decode_object`` gives the fact (None when of no interest) and the object's resource version.
    """

    name: str
    path: str
    decode_page: Callable[[bytes], Page[T]]
    decode_object: Callable[[msgspec.Raw], tuple[T | None, str]]


@dataclass(frozen=True, slots=True)
class Batch[T]:
    """What was heard. Without changes it is an accepted watch, a bookmark, the end of a list, or ``trouble``.

    ``resource_version`` is set where the stream may be resumed. ``gap`` says why everything was listed
    again, ``trouble`` why nothing is heard at present.
    """

    resource: str
    changes: tuple[Change[T], ...] = ()
    resource_version: str = ""
    from_list: bool = False
    completes_list: bool = False
    gap: str = ""
    trouble: str = ""


class Watcher[T: Versioned]:
    """Follows one resource and hands batches to ``sink``, which may block (that is the back-pressure).

    Args:
        known: uid -> resource version of what the caller's rows hold; becomes this watcher's own memory.
        timeout_seconds: Length of one watch request; each is drawn from 90 to 110 % of it.
        stop: Set from outside to end ``run``; call ``close`` then to wake a silent connection.
    """

    def __init__(
        self,
        transport: Transport,
        resource: Resource[T],
        sink: Callable[[Batch[T]], None],
        *,
        known: dict[str, str],
        timeout_seconds: float,
        stop: threading.Event,
        chance: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self._transport = transport
        self._sink = sink
        self._known = known
        self._timeout_seconds = timeout_seconds
        self._stop = stop
        self._chance = chance or random.Random()
        self._version = ""
        self._failures = 0
        self._lines: Lines | None = None
        self._guard = threading.Lock()

    def run(self) -> None:
        """List, then watch, until stopped. Errors of the cluster are waited out; others are raised."""
        gap = ""
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list(gap)
                self._follow()
            except WatchExpired as error:
                gap = f"resource version {self._version or '(page)'} is too old: {error}"
                _log.warning("watch.gap resource=%s %s; listing again", self.resource.name, gap)
                if not self._version:  # a list expired under way: not at once again and again
                    self._wait(str(error))
                self._version = ""
            except ClusterError as error:
                self._sink(Batch(self.resource.name, trouble=str(error)))
                self._wait(str(error))

    def close(self) -> None:
        """End the present request from another thread. Set ``stop`` before."""
        with self._guard:
            if self._lines is not None:
                self._lines.close()

    def _list(self, gap: str) -> None:
        seen: set[str] = set()
        query = {"limit": str(PAGE_SIZE)}
        while True:
            page = self.resource.decode_page(self._transport.read(self.resource.path, query))
            seen.update(fact.uid for fact in page.facts)
            changes = [
                Change(self._type_of(fact.uid), fact.uid, fact)
                for fact in page.facts
                if self._known.get(fact.uid) != fact.resource_version
            ]
            if not page.continue_token:
                break
            self._hand_over(Batch(self.resource.name, tuple(changes), from_list=True))
            if self._stop.is_set():
                return
            query = {"limit": str(PAGE_SIZE), "continue": page.continue_token}
        vanished = sorted(self._known.keys() - seen)
        changes.extend(Change(ChangeType.VANISHED, uid, None) for uid in vanished)
        self._hand_over(
            Batch(
                self.resource.name,
                tuple(changes),
                resource_version=page.resource_version,
                from_list=True,
                completes_list=True,
                gap=gap,
            )
        )
        self._version = page.resource_version
        self._failures = 0

    def _follow(self) -> None:
        timeout = self._timeout_seconds * self._chance.uniform(0.9, 1.1)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(timeout))),
        }
        begun = time.monotonic()
        lines = self._transport.stream(
            self.resource.path, query, read_timeout_seconds=timeout + READ_MARGIN_SECONDS
        )
        with self._guard:
            self._lines = lines
        self._hand_over(Batch(self.resource.name))  # an answer is a sign of life, also when nothing happens
        heard = False
        try:
            for line in lines:
                if self._stop.is_set():
                    return
                if line:
                    self._hear(line)
                    heard = True
                    self._failures = 0
        finally:
            with self._guard:
                self._lines = None
            lines.close()
        if not heard and time.monotonic() - begun < QUICK_END_SECONDS:
            self._wait("the watch ended at once")

    def _hear(self, line: bytes) -> None:
        try:
            event = _decode_event(line)
            if event.type == "ERROR":
                raise _error_of(msgspec.json.decode(event.object, type=objects.Status))
            if event.type == "BOOKMARK":
                bookmark = msgspec.json.decode(event.object, type=objects.BookmarkObject)
                fact, version = None, bookmark.metadata.resource_version
            else:
                fact, version = self.resource.decode_object(event.object)
        except msgspec.DecodeError as error:
            # Half a line of a cut connection, or an object unlike what it says: resume, it comes again.
            raise ClusterUnavailable(f"watch of {self.resource.name}: unreadable event: {error}") from error
        changes: tuple[Change[T], ...] = ()
        if fact is not None:
            type_ = ChangeType.DELETED if event.type == "DELETED" else self._type_of(fact.uid)
            changes = (Change(type_, fact.uid, fact),)
        if changes or event.type == "BOOKMARK":
            self._hand_over(Batch(self.resource.name, changes, resource_version=version))
        self._version = version

    def _type_of(self, uid: str) -> ChangeType:
        return ChangeType.MODIFIED if uid in self._known else ChangeType.ADDED

    def _hand_over(self, batch: Batch[T]) -> None:
        self._sink(batch)
        for change in batch.changes:
            if change.is_gone or change.fact is None:
                self._known.pop(change.uid, None)
            else:
                self._known[change.uid] = change.fact.resource_version

    def _wait(self, reason: str) -> None:
        """Exponential backoff with full jitter: many watchers must not come back in one moment."""
        ceiling = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        seconds = self._chance.uniform(0.1, 1.0) * ceiling
        if not self._stop.is_set():
            _log.warning("watch.wait resource=%s seconds=%.2f: %s", self.resource.name, seconds, reason)
        self._stop.wait(seconds)


_event_decoder = msgspec.json.Decoder(objects.WatchEvent)


def _decode_event(line: bytes) -> objects.WatchEvent:
    return _event_decoder.decode(line)


def _error_of(status: objects.Status) -> ClusterError:
    text = status.message or status.reason or "error without a text"
    if status.code == 410:
        return WatchExpired(text)
    return ClusterUnavailable(f"watch ended with {status.code}: {text}")
