"""Supervisor of one container, a program of its own: what containerd-shim and a PID namespace are to a kubelet.

It adopts every orphan of the container (child subreaper), so no descendant escapes, whichever session it put
itself in. When the container's main process ends, all others are killed, as the kernel does with a PID
namespace. When the kubelet goes away (its end of the socket closes, even by SIGKILL), everything is killed.

Protocol: JSON lines over a socket at fd 0.

- in, first line: ``{"argv", "env", "cwd", "log"}``
- out: ``{"started": pid, "at": unix seconds}`` or ``{"failed": text}``
- in: ``{"stop": grace seconds}`` (SIGTERM to the main process, SIGKILL to all after the grace; 0 = at once)
- out, last line: ``{"exited": code, "signal": number or 0, "at": unix seconds}``, when no process is left

Standard library only, and few modules of it: the start is part of every pod's start.
"""

# os.path, because importing pathlib would take a third of the start.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CONTROL = 0


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


class Shim:
    def __init__(self) -> None:
        self._buffer = b""
        self._connected = True
        self._kill_at: float | None = None
        self._woken, waker = os.pipe()
        for fd in (self._woken, waker):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The kubelet decides when a container ends; a signal meant for the whole terminal does not.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        spec = self._read_spec()
        main, failure = start(spec)
        if failure:
            self._say({"failed": failure})
            return
        self._say({"started": main, "at": time.time()})
        status = self._watch(main)
        at = time.time()
        kill_all()
        number = -status if status < 0 else 0
        self._say({"exited": 128 + number if number else status, "signal": number, "at": at})

    def _read_spec(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            chunk = os.read(CONTROL, 65536)
            if not chunk:
                sys.exit(0)
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        spec: dict[str, Any] = json.loads(line)
        return spec

    def _watch(self, main: int) -> int:
        """Reap until the main process has ended; returns its exit code, or minus the signal's number."""
        self._obey_lines(main)
        while True:
            try:
                while True:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    if pid == main:
                        return os.waitstatus_to_exitcode(status)
            except ChildProcessError:
                raise SystemExit("the container's main process was reaped by somebody else") from None
            wait = None if self._kill_at is None else max(self._kill_at - time.monotonic(), 0.0)
            sources = [self._woken, CONTROL] if self._connected else [self._woken]
            ready, _, _ = select.select(sources, [], [], wait)
            if self._woken in ready:
                os.read(self._woken, 4096)
            if CONTROL in ready:
                self._obey(main)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                os.kill(main, signal.SIGKILL)

    def _obey(self, main: int) -> None:
        try:
            chunk = os.read(CONTROL, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            self._connected = False
            self._kill_at = time.monotonic()
            return
        self._buffer += chunk
        self._obey_lines(main)

    def _obey_lines(self, main: int) -> None:
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            grace = float(json.loads(line)["stop"])
            deadline = time.monotonic() + grace
            # A later order may shorten the grace, never lengthen it.
            if self._kill_at is None or deadline < self._kill_at:
                self._kill_at = deadline
            if grace > 0:
                os.kill(main, signal.SIGTERM)

    def _say(self, message: dict[str, Any]) -> None:
        try:
            os.write(CONTROL, json.dumps(message).encode() + b"\n")
        except OSError:
            self._connected = False


def start(spec: dict[str, Any]) -> tuple[int, str]:
    """Fork and exec the main process in a session of its own. Returns its pid, or why it did not start."""
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(spec, parent)
        except OSError as error:
            os.write(
                writing,
                f"{error.strerror}: {error.filename or spec['argv'][0]}".encode(),
            )
        os._exit(127)
    os.close(writing)
    failure = b""
    while chunk := os.read(reading, 4096):
        failure += chunk
    os.close(reading)
    if failure:
        os.waitpid(pid, 0)
    return pid, failure.decode()


def _become(spec: dict[str, Any], parent: int) -> NoReturn:
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)
    for number in (
        signal.SIGPIPE,
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGCHLD,
    ):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(spec["cwd"])
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


def kill_all() -> None:
    """SIGKILL every descendant, again and again, until none is left."""
    while True:
        for pid in _living_descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _living_descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    raw = file.read()
            except OSError:
                continue
            parent = int(raw[raw.rindex(b")") + 2 :].split()[1])
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    frontier = [os.getpid()]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


if __name__ == "__main__":
    Shim().run()
