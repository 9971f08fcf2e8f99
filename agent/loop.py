"""The agent's main loop: one thread that runs callbacks, timers and signals, one after the other.

Everything that decides or touches processes runs here, so nothing of it needs a lock. Other threads
(output, channel, checks) hand over their findings with ``post`` and never wait for the loop.
"""

from __future__ import annotations

import collections
import heapq
import os
import select
import signal
import sys
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple


class Timer:
    """One callback at a monotonic time; ``cancel`` may be called at any time, also twice."""

    __slots__ = ("args", "call", "when")

    def __init__(self, when: float, call: Callable[..., None], args: Tuple[Any, ...]) -> None:
        self.when = when
        self.call: Optional[Callable[..., None]] = call
        self.args = args

    def cancel(self) -> None:
        self.call = None


class Once:
    """Runs a call at its first invitation only."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Optional[Callable[[], None]] = call

    def call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class Loop:
    """Callbacks in the order in which they were posted; a timer that is due runs after them.

    So an order that was handed over is heard before the waiting time that ran out at the same moment.
    """

    def __init__(self) -> None:
        self._posted: Deque[Tuple[Callable[..., None], Tuple[Any, ...]]] = collections.deque()
        self._signals: Deque[int] = collections.deque()
        self._handlers: Dict[int, Callable[[int], None]] = {}
        self._timers: List[Tuple[float, int, Timer]] = []
        self._timer_count = 0
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._running = True

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Run ``call`` in the loop's thread, soon. May be called from any thread."""
        self._posted.append((call, args))
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:
            pass  # the pipe is full, so the loop is about to look anyway

    def later(self, seconds: float, call: Callable[..., None], *args: Any) -> Timer:
        """Run ``call`` in ``seconds``. Only from the loop's own thread."""
        timer = Timer(time.monotonic() + max(0.0, seconds), call, args)
        self._timer_count += 1
        heapq.heappush(self._timers, (timer.when, self._timer_count, timer))
        return timer

    def on_signal(self, number: int, call: Callable[[int], None]) -> None:
        """Run ``call`` in the loop for each arrival of a signal. Only from the main thread."""
        self._handlers[number] = call
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # whoever started us may have blocked it
        signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, _frame: Any) -> None:
        self._signals.append(number)

    def stop(self) -> None:
        """Leave ``run`` after the callback that runs now."""
        self._running = False

    def run(self) -> None:
        """Work until ``stop``. An error in a callback is printed and the loop goes on.

        The agent stands between a training job and its container: a mistake in one callback must
        not end the training, so this is the one place that catches everything.
        """
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._read_fd, select.POLLIN)
        while self._running:
            if not self._signals and not self._posted:
                poller.poll(self._wait_milliseconds())
            self._empty_pipe()
            while self._signals and self._running:
                number = self._signals.popleft()
                self._call(self._handlers[number], (number,))
            for _ in range(len(self._posted)):
                if self._running:
                    call, args = self._posted.popleft()
                    self._call(call, args)
            self._run_due()

    def _wait_milliseconds(self) -> Optional[int]:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0, int((self._timers[0][0] - time.monotonic()) * 1000) + 1)

    def _empty_pipe(self) -> None:
        try:
            while len(os.read(self._read_fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._running and self._timers and self._timers[0][0] <= now and not self._posted:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                self._call(timer.call, timer.args)

    def _call(self, call: Callable[..., None], args: Tuple[Any, ...]) -> None:
        try:
            call(*args)
        except Exception:  # noqa: BLE001 - the outermost loop, see run
            import traceback

            text = "deskagent: internal error, going on\n" + traceback.format_exc()
            try:
                sys.stderr.write(text)
                sys.stderr.flush()
            except OSError:
                pass
