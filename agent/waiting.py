"""Waiting: for an order, or for the others to finish. The desk may grant more time, also ahead."""

from __future__ import annotations

import time
from typing import Callable, Optional

from agent.loop import Loop, Timer

PAUSED_SECONDS = 2.0  # a wait that ran out so much too late is granted so much again


class Waiting:
    """One wait at a time. Belongs to the loop's thread.

    Attributes:
        what: What is waited for, None = nothing. It stays when the time has run out, until ``stop``.
    """

    def __init__(self, loop: Loop, on_over: Callable[[str], None]) -> None:
        self._loop = loop
        self._on_over = on_over
        self.what: Optional[str] = None
        self._until = 0.0
        self._extended_until = 0.0
        self._timer: Optional[Timer] = None

    def begin(self, what: str, seconds: float) -> None:
        self.what = what
        self._until = max(time.monotonic() + seconds, self._extended_until)
        self._timer = self._loop.later(seconds, self._look)

    def stop(self) -> None:
        self.what = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def extend(self, seconds: float) -> None:
        """Grant so long from now, also to a wait that has not begun yet."""
        self.extend_next(seconds)
        self._until = max(self._until, self._extended_until)

    def extend_next(self, seconds: float) -> None:
        """Grant so long from now to the next wait only."""
        self._extended_until = time.monotonic() + seconds

    def forget_extension(self) -> None:
        """Grant nothing ahead any more."""
        self._extended_until = 0.0

    @property
    def seconds_left(self) -> Optional[float]:
        return self._until - time.monotonic() if self.what is not None else None

    def _look(self) -> None:
        if self.what is None:
            return
        left = self._until - time.monotonic()
        if left > 0:
            self._timer = self._loop.later(left, self._look)
            return
        if left < -PAUSED_SECONDS:
            # The agent itself stood still (stopped, or its machine asleep): what came meanwhile is unread.
            self._until = time.monotonic() + PAUSED_SECONDS
            self._timer = self._loop.later(PAUSED_SECONDS, self._look)
            return
        self._on_over(self.what)
