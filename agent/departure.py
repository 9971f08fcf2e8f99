"""The agent's last moments: the last output is passed on, what may be sent quickly is sent, the loop ends."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

from agent.loop import Loop, Once
from agent.outbox import Outbox
from agent.output import Notes, RunOutput

FLUSH_SECONDS = 0.5  # the exit is delayed by reports for so long at most
DRAIN_STOPPED_SECONDS = 2.0  # output after a stop: somebody waits for us, so not for a stuck reader
NOTES_SECONDS = 0.1


class Departure:
    """Begun once, in the loop's thread, when no process is left."""

    def __init__(
        self,
        *,
        loop: Loop,
        notes: Notes,
        outbox: Outbox,
        can_send: Callable[[], bool],
        flush_seconds: Optional[float],
    ) -> None:
        """``can_send``: whether the desk is heard; called from a thread. ``flush_seconds``: None = ours."""
        self._loop = loop
        self._notes = notes
        self._outbox = outbox
        self._can_send = can_send
        self._flush_seconds = FLUSH_SECONDS if flush_seconds is None else flush_seconds

    def begin(self, output: Optional[RunOutput], is_waited_for: bool) -> None:
        """Drain the output, then flush.

        Args:
            is_waited_for: Somebody waits for the container to end: a stuck reader may not hold it.
        """
        flush_until = time.monotonic() + self._flush_seconds
        once = Once(lambda: self._flush(flush_until))
        if output is not None:
            output.when_empty(lambda: self._loop.post(once.call))
        else:
            once.call()
        if is_waited_for:
            self._loop.later(DRAIN_STOPPED_SECONDS, once.call)

    def hurry(self) -> None:
        """Somebody waits for us now: a reader who takes no output is not waited for any longer."""
        self._loop.later(DRAIN_STOPPED_SECONDS, self._flush, 0.0)

    def _flush(self, until: float) -> None:
        def work() -> None:
            if self._can_send():
                self._outbox.wait_until_empty(max(0.0, until - time.monotonic()))
            self._notes.flush(NOTES_SECONDS)
            self._loop.post(self._loop.stop)

        threading.Thread(target=work, name="flush", daemon=True).start()
