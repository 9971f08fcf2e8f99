"""Messages that the desk has not confirmed yet, in the order in which they were seen.

A number belongs to a message from the first time it is sent until the desk confirms it, so that
repeating it changes nothing. Messages that were never sent have no number yet; where there are too
many, marks among those are dropped and counted, never what a decision hangs on.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Set

from agent import wire

MAX_WAITING = 2000
MAX_BATCH_BYTES = wire.MAX_BODY_BYTES // 2

_DROPPABLE = (wire.MARK, wire.CHECKPOINT, wire.HANG)


class Outbox:
    """May be used from any thread."""

    def __init__(self, encode: Callable[[Any], bytes], max_waiting: int = MAX_WAITING) -> None:
        self._encode = encode
        self._max_waiting = max_waiting
        self._wake = threading.Condition()
        self._numbered: Deque[wire.Message] = collections.deque()
        self._waiting: Deque[wire.Message] = collections.deque()
        self._next = 1
        self._incarnation: Optional[int] = None
        self._names: Dict[str, str] = {"job": "", "namespace": "", "pod": ""}
        self.dropped = 0

    def name(self, *, job: str, namespace: str, pod: str) -> None:
        """Whose messages these are; told by the desk at enrolment, for those that wait already too."""
        with self._wake:
            self._names = {"job": job, "namespace": namespace, "pod": pod}

    def begin_incarnation(self, incarnation: int) -> None:
        """Numbers belong to an incarnation: for a new one, what is unconfirmed is numbered anew."""
        with self._wake:
            if incarnation != self._incarnation:
                self._incarnation = incarnation
                self._waiting.extendleft(reversed(self._numbered))
                self._numbered.clear()
                self._next = 1
                self._wake.notify_all()

    def put(
        self, type_: str, phase: str, sequence: int, data: Dict[str, Any], at: Optional[float] = None
    ) -> None:
        """Keep a message and wake the sender. ``at``: when it was seen (Unix seconds), now by default."""
        message: wire.Message = {
            "type": type_,
            "phase": phase,
            "sequence": sequence,
            "data": data,
            "time": time.time() if at is None else at,
        }
        with self._wake:
            self._waiting.append(message)
            if len(self._waiting) > self._max_waiting:
                self._drop_one()
            self._wake.notify_all()

    def _drop_one(self) -> None:
        for place, message in enumerate(self._waiting):
            if message["type"] in _DROPPABLE:
                del self._waiting[place]
                self.dropped += 1
                return

    def batch(self) -> List[wire.Message]:
        """The oldest unconfirmed messages, numbered, as many as one report may hold."""
        with self._wake:
            found: List[wire.Message] = []
            size = 0
            for message in list(self._numbered):
                size += len(self._encode(message))
                if found and (size > MAX_BATCH_BYTES or len(found) >= wire.MAX_MESSAGES):
                    return found
                found.append(message)
            while self._waiting and len(found) < wire.MAX_MESSAGES:
                message = self._waiting[0]
                message.update(self._names)  # type: ignore[typeddict-item]
                message["n"] = self._next
                size += len(self._encode(message))
                if found and size > MAX_BATCH_BYTES:
                    break
                self._waiting.popleft()
                self._numbered.append(message)
                self._next += 1
                found.append(message)
            return found

    def settle(self, numbers: Iterable[int]) -> int:
        """Forget what the desk confirmed or turned away for ever; returns how many that were."""
        done: Set[int] = set(numbers)
        with self._wake:
            before = len(self._numbered)
            self._numbered = collections.deque(item for item in self._numbered if item["n"] not in done)
            self._wake.notify_all()
            return before - len(self._numbered)

    @property
    def unsent(self) -> int:
        with self._wake:
            return len(self._numbered) + len(self._waiting)

    def wait_for_some(self, seconds: Optional[float] = None) -> bool:
        """Wait until there is something to send."""
        with self._wake:
            return self._wake.wait_for(lambda: bool(self._numbered or self._waiting), seconds)

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until everything is confirmed, at most so long."""
        with self._wake:
            return self._wake.wait_for(lambda: not (self._numbered or self._waiting), seconds)
