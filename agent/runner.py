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

    def keep(self, argv: List[str]) -> Helper:
        """A program that stays and answers questions; started with the first one."""
        return Helper(self, argv)

    def start(self, argv: List[str], stdin: int, stdout: int) -> _Call:
        """Start a program that stays; the loop closes our copies of its ends. Does not wait for the start."""
        call = _Call()
        self._loop.post(self._spawn, argv, stdout, call, stdin)
        return call

    def kill(self, call: _Call) -> None:
        self._loop.post(self._kill, call)

    def _spawn(self, argv: List[str], write_fd: int, call: _Call, stdin: int = -1) -> None:
        null = os.open(os.devnull, os.O_RDWR) if stdin < 0 else stdin
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


class Helper:
    """One program that stays between questions: a line in, lines out, an empty line last.

    A check that runs while the training is being restarted must not pay for starting an interpreter.
    A program that does not answer in time is killed and left behind; the next question starts a new one.
    """

    def __init__(self, runner: Runner, argv: List[str]) -> None:
        self._runner = runner
        self._argv = argv
        self._lock = threading.Lock()
        self._call: Optional[_Call] = None
        self._in_fd = self._out_fd = -1

    def ask(self, question: str, timeout_seconds: float) -> Tuple[bool, List[str]]:
        """Whether it answered in full, and the lines that came. Never from the loop's own thread.

        Raises:
            OSError: It could not be started, or ended instead of answering.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            if self._call is None or self._call.over.is_set():
                self._forget()
                self._begin()
            try:
                os.write(self._in_fd, question.encode("utf-8", "surrogateescape") + b"\n")
                text, is_open = self._read(deadline)
            except OSError as problem:
                error = self._call.error if self._call is not None else None
                self._forget()
                raise error or problem from None
            lines = text.decode("utf-8", "replace").split("\n")
            if text.endswith(b"\n\n") or text == b"\n":
                return True, lines[:-2]
            error = self._call.error if self._call is not None else None
            self._forget()
            if not is_open:
                raise error or OSError(0, "the helper ended without an answer: %s" % " ".join(lines[-2:]))
            return False, lines[:-1]

    def _begin(self) -> None:
        child_in, self._in_fd = os.pipe()
        self._out_fd, child_out = os.pipe()
        os.set_blocking(self._out_fd, False)
        self._call = self._runner.start(self._argv, child_in, child_out)

    def _forget(self) -> None:
        if self._call is not None:
            self._runner.kill(self._call)
            self._call = None
            os.close(self._in_fd)
            os.close(self._out_fd)

    def _read(self, deadline: float) -> Tuple[bytes, bool]:
        """What came until the empty line, and whether more could still come."""
        text = b""
        poller = select.poll()
        poller.register(self._out_fd, select.POLLIN)
        while not (text.endswith(b"\n\n") or text == b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(int(left * 1000) + 1):
                return text, True
            try:
                chunk = os.read(self._out_fd, 65536)
            except BlockingIOError:
                continue
            if not chunk:
                return text, False
            text += chunk
        return text, True


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
