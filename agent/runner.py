"""Short helper programs for checks and reports, called from threads, spawned and reaped by the loop."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import Dict, List, Optional, Tuple

from agent.loop import Loop
from agent.process import Process, ProcessTable

OUTPUT_BYTES = 256 * 1024


class Runner:
    """Runs one program to its end or to a time-out. Never call it from the loop's own thread."""

    def __init__(self, loop: Loop, table: ProcessTable, env: Dict[str, str]) -> None:
        self._loop = loop
        self._table = table
        self._env = env

    def __call__(self, argv: List[str], timeout_seconds: float) -> Tuple[Optional[int], str]:
        """Exit code (128 + number after a signal) and output of both streams; None when time ran out.

        A program that hangs in the kernel is left behind: it holds nothing of ours.

        Raises:
            OSError: It could not be started.
        """
        deadline = time.monotonic() + timeout_seconds
        call = _Call()
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        try:
            self._loop.post(self._spawn, argv, write_fd, call)
            text = _read_until(read_fd, deadline)
            is_over = call.over.wait(max(0.0, deadline - time.monotonic()))
        finally:
            os.close(read_fd)
        if call.error is not None:
            raise call.error
        if not is_over:
            self._loop.post(self._kill, call)
            return None, text
        process = call.process
        if process is None or process.exit_code is None:
            return 128 + (process.signal_number or 0 if process is not None else 0), text
        return process.exit_code, text

    def _spawn(self, argv: List[str], write_fd: int, call: _Call) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            call.process = self._table.spawn(
                argv,
                env=self._env,
                stdin=null,
                stdout=write_fd,
                stderr=write_fd,
                own=True,
                on_exit=lambda _process: call.over.set(),
            )
        except OSError as error:
            call.error = error
            call.over.set()
        finally:
            os.close(null)
            os.close(write_fd)

    def _kill(self, call: _Call) -> None:
        if call.process is not None and not call.process.has_ended:
            try:
                os.killpg(call.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass


class _Call:
    __slots__ = ("error", "over", "process")

    def __init__(self) -> None:
        self.process: Optional[Process] = None
        self.error: Optional[OSError] = None
        self.over = threading.Event()


def _read_until(fd: int, deadline: float) -> str:
    """What comes until end of file or the deadline; more than ``OUTPUT_BYTES`` is thrown away."""
    kept: List[bytes] = []
    size = 0
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(int(left * 1000) + 1):
            break
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            continue
        if not chunk:
            break
        if size < OUTPUT_BYTES:
            kept.append(chunk)
            size += len(chunk)
    return b"".join(kept)[:OUTPUT_BYTES].decode("utf-8", "replace")
