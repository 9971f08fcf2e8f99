"""The command's output: passed through unharmed, and a copy of it looked at on the side.

Each stream of the command is a pipe with a thread of its own that copies it to ours. A reader who
takes nothing blocks that thread, and through the full pipe the command, exactly as it would without
an agent; nothing else in the agent waits for it. Looking at lines happens in one more thread behind
a bounded queue; what comes faster than ``SAMPLE_BYTES_PER_SECOND`` is passed on but not looked at,
and counted.
"""

from __future__ import annotations

import collections
import errno
import os
import select
import threading
import time
from typing import Callable, Deque, Dict, List, Optional, Tuple

from agent import wire

CHUNK_BYTES = 64 * 1024
SAMPLE_BYTES_PER_SECOND = 2 * 1000 * 1000
SAMPLE_BURST_BYTES = 2 * 1000 * 1000
QUEUE_BYTES = 4 * 1000 * 1000
TAIL_LINES = 100
TAIL_BYTES = 512 * 1024  # raw bytes kept for the tail
TAIL_REPORT_BYTES = 256 * 1024  # of the tail in a report, so that a message stays well below MAX_BODY_BYTES
NOTES_KEPT = 200

STDOUT = 1
STDERR = 2

LineSink = Callable[[bytes, float], None]


class Terminal:
    """Our own stdout or stderr: whole chunks only, so that a note never lands inside one."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lost_bytes = 0
        self._lock = threading.Lock()
        self._is_at_line_start = True

    def write(self, chunk: bytes) -> bool:
        """Write all of it, waiting for the reader as long as it takes. False: the reader is gone."""
        with self._lock:
            return self._write(chunk)

    def note(self, text: str) -> None:
        """Write a line of the agent's own."""
        with self._lock:
            start = b"" if self._is_at_line_start else b"\n"
            self._write(start + b"deskagent: " + text.encode("utf-8", "replace") + b"\n")

    def _write(self, chunk: bytes) -> bool:
        view = memoryview(chunk)
        while view:
            try:
                written = os.write(self.fd, view)
            except BlockingIOError:  # somebody made the shared description non-blocking
                poller = select.poll()
                poller.register(self.fd, select.POLLOUT)
                poller.poll()
                continue
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EBADF):
                    return False
                self.lost_bytes += len(view)  # a full disk: the command could not have known either
                return True
            view = view[written:]
        self._is_at_line_start = chunk.endswith(b"\n")
        return True


class Notes:
    """The agent's own lines on stderr, written by a thread so that nothing waits for a blocked reader."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._lines: Deque[str] = collections.deque(maxlen=NOTES_KEPT)
        self._wake = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._busy = False

    def say(self, text: str) -> None:
        with self._wake:
            self._lines.append(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="notes", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until everything said so far stands on stderr, at most so long."""
        with self._wake:
            self._wake.wait_for(lambda: not self._lines and not self._busy, seconds)

    def _work(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: bool(self._lines))
                line = self._lines.popleft()
                self._busy = True
            self._terminal.note(line)


class Matcher:
    """Looks at copies of the output, never faster than it may, never in the way of anybody."""

    def __init__(self) -> None:
        self.skipped_bytes = 0
        self._queue: Deque[Tuple[LineSink, Tuple[int, int], bytes, float, bool]] = collections.deque()
        self._added = self._taken = 0  # chunks, since the start
        self._waiting: Deque[Tuple[int, Callable[[], None]]] = collections.deque()
        self._queued_bytes = 0
        self._gaps: Dict[Tuple[int, int], bool] = {}
        self._partial: Dict[Tuple[int, int], bytes] = {}
        self._allowance = float(SAMPLE_BURST_BYTES)
        self._refilled_at = time.monotonic()
        self._wake = threading.Condition()
        self._thread: Optional[threading.Thread] = None

    def offer(self, sink: LineSink, stream: Tuple[int, int], chunk: bytes, at: float) -> None:
        """Hand over a copy; skipped and counted when there is too much. An empty chunk ends the stream."""
        with self._wake:
            now = time.monotonic()
            self._allowance = min(
                SAMPLE_BURST_BYTES, self._allowance + (now - self._refilled_at) * SAMPLE_BYTES_PER_SECOND
            )
            self._refilled_at = now
            size = len(chunk)
            if size > self._allowance or self._queued_bytes + size > QUEUE_BYTES:
                self.skipped_bytes += size
                self._gaps[stream] = True
                return
            self._allowance -= size
            self._queued_bytes += size
            self._queue.append((sink, stream, chunk, at, self._gaps.pop(stream, False)))
            self._added += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="matcher", daemon=True)
                self._thread.start()
            self._wake.notify()

    def when_seen(self, call: Callable[[], None]) -> None:
        """Run ``call`` (in any thread, or at once) when all that was offered so far was looked at."""
        with self._wake:
            if self._taken < self._added:
                self._waiting.append((self._added, call))
                return
        call()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    self._wake.wait()
                sink, stream, chunk, at, after_gap = self._queue.popleft()
                self._queued_bytes -= len(chunk)
            self._split(sink, stream, chunk, at, after_gap)
            due: List[Callable[[], None]] = []
            with self._wake:
                self._taken += 1
                while self._waiting and self._waiting[0][0] <= self._taken:
                    due.append(self._waiting.popleft()[1])
            for call in due:
                call()

    def _split(
        self, sink: LineSink, stream: Tuple[int, int], chunk: bytes, at: float, after_gap: bool
    ) -> None:
        partial = self._partial.pop(stream, b"")
        if not chunk:
            if partial:
                sink(partial, at)
            return
        # Progress bars redraw their line with a carriage return: each state is a line to us.
        lines = chunk.replace(b"\r", b"\n").split(b"\n")
        if after_gap:
            lines[0] = b""  # the end of a line whose beginning was skipped
        else:
            lines[0] = partial + lines[0]
        for line in lines[:-1]:
            if line:
                sink(line[: wire.MAX_LINE_BYTES], at)
        if lines[-1]:
            self._partial[stream] = lines[-1][: wire.MAX_LINE_BYTES]


class Tail:
    """The newest output of one run, kept whole however fast it came."""

    def __init__(self) -> None:
        self._chunks: Deque[Tuple[int, bytes]] = collections.deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, stream: int, chunk: bytes) -> None:
        with self._lock:
            self._chunks.append((stream, chunk))
            self._bytes += len(chunk)
            while self._bytes > TAIL_BYTES and len(self._chunks) > 1:
                self._bytes -= len(self._chunks.popleft()[1])

    def lines(self, count: int = TAIL_LINES) -> List[str]:
        """The last lines of both streams, oldest first, in the order in which they were completed."""
        with self._lock:
            chunks = list(self._chunks)
        open_lines: Dict[int, bytes] = {}
        done: Deque[bytes] = collections.deque(maxlen=count)
        for stream, chunk in chunks:
            parts = (open_lines.pop(stream, b"") + chunk).split(b"\n")
            done.extend(parts[:-1])
            open_lines[stream] = parts[-1]
        done.extend(line for line in open_lines.values() if line)
        kept: List[str] = []
        size = 0
        for line in reversed(done):
            text = line[: wire.MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
            text = "".join(char if char >= " " or char == "\t" else " " for char in text)
            size += len(text.encode("utf-8")) + 8
            if size > TAIL_REPORT_BYTES:
                break
            kept.append(text)
        kept.reverse()
        return kept


class Pump(threading.Thread):
    """Copies one pipe of the command to one stream of ours until its last writer is gone."""

    def __init__(
        self,
        source_fd: int,
        terminal: Terminal,
        look: Callable[[bytes, float], None],
        after: Optional[Pump] = None,
    ) -> None:
        """``after`` is the pump of the run before: its last bytes go out first."""
        super().__init__(name="output-%d" % terminal.fd, daemon=True)
        self._source_fd = source_fd
        self._terminal = terminal
        self._look = look
        self._after = after
        self._ask_read_fd, self._ask_write_fd = os.pipe()
        self._asked: Deque[Callable[[], None]] = collections.deque()
        self._lock = threading.Lock()
        self._is_done = False
        os.set_blocking(source_fd, False)

    def when_empty(self, call: Callable[[], None]) -> None:
        """Run ``call`` (in this thread, or at once) when all that was written so far went through."""
        with self._lock:
            if not self._is_done:
                self._asked.append(call)
                os.write(self._ask_write_fd, b"\0")
                return
        call()

    def run(self) -> None:
        if self._after is not None:
            self._after.join(1.0)
            self._after = None
        poller = select.poll()
        poller.register(self._source_fd, select.POLLIN)
        poller.register(self._ask_read_fd, select.POLLIN)
        is_open = True
        while is_open:
            asked = any(fd == self._ask_read_fd for fd, _event in poller.poll())
            is_open = self._copy()
            if asked and is_open:
                os.read(self._ask_read_fd, 1)
                self._asked.popleft()()
        with self._lock:
            self._is_done = True
            os.close(self._source_fd)  # a command that goes on writing gets its SIGPIPE, as without us
            os.close(self._ask_read_fd)
            os.close(self._ask_write_fd)
        self._look(b"", time.time())
        while self._asked:
            self._asked.popleft()()

    def _copy(self) -> bool:
        """Pass on what is there. False when nothing can come any more, or nobody takes it."""
        while True:
            try:
                chunk = os.read(self._source_fd, CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._look(chunk, time.time())
            if not self._terminal.write(chunk):
                return False


class RunOutput:
    """Both streams of one run of the command."""

    def __init__(
        self,
        number: int,
        terminals: Tuple[Terminal, Terminal],
        matcher: Matcher,
        sink: LineSink,
        before: Optional[RunOutput] = None,
    ) -> None:
        """Make the pipes. ``number`` tells runs apart, ``before`` is the run before this one."""
        self.tail = Tail()
        self._matcher = matcher
        self._sink = sink
        self._number = number
        self._terminals = terminals
        self._before = before
        self.pumps: List[Pump] = []
        self._out_read, self.stdout_fd = os.pipe()
        # One pipe for both where both go to one place: their order is kept as without an agent.
        self._is_joined = _is_same_file(terminals[0].fd, terminals[1].fd)
        if self._is_joined:
            self._err_read, self.stderr_fd = -1, self.stdout_fd
        else:
            self._err_read, self.stderr_fd = os.pipe()

    def begin(self) -> None:
        """Start copying, after the command was started: closes our copies of its ends."""
        self._close_command_ends()
        before = self._before.pumps if self._before is not None else []
        self._before = None
        ends = [(STDOUT, self._out_read)]
        if not self._is_joined:
            ends.append((STDERR, self._err_read))
        for place, (stream, fd) in enumerate(ends):
            pump = Pump(
                fd,
                self._terminals[place],
                self._looker(stream),
                before[place] if place < len(before) else None,
            )
            self.pumps.append(pump)
            pump.start()

    def discard(self) -> None:
        """Close the pipes of a command that could not be started."""
        self._close_command_ends()
        os.close(self._out_read)
        if not self._is_joined:
            os.close(self._err_read)
        self._before = None

    def when_seen(self, call: Callable[[], None]) -> None:
        """Run ``call`` once, in any thread, when all output until now went through and was looked at."""
        self.when_empty(lambda: self._matcher.when_seen(call))

    def when_empty(self, call: Callable[[], None]) -> None:
        """Run ``call`` once, in any thread, when all output written until now went through."""
        missing = [len(self.pumps)]
        lock = threading.Lock()

        def one_done() -> None:
            with lock:
                missing[0] -= 1
                is_last = missing[0] == 0
            if is_last:
                call()

        if not self.pumps:
            call()
        for pump in self.pumps:
            pump.when_empty(one_done)

    def _looker(self, stream: int) -> Callable[[bytes, float], None]:
        key = (self._number, stream)

        def look(chunk: bytes, at: float) -> None:
            if chunk:
                self.tail.add(stream, chunk)
            self._matcher.offer(self._sink, key, chunk, at)

        return look

    def _close_command_ends(self) -> None:
        os.close(self.stdout_fd)
        if not self._is_joined:
            os.close(self.stderr_fd)


def _is_same_file(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
