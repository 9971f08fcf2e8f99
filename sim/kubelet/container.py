"""One run of one container: a shim process and what it says."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sim import processes

SHIM = Path(__file__).with_name("shim.py")
MARK = "SIM_CONTAINER"
START_SECONDS = 30.0


class StartFailed(Exception):
    """The container's command could not be started."""


@dataclass(frozen=True)
class Exit:
    """How a run ended. ``signal`` is 0 unless the main process died of one; then ``code`` is 128 + it."""

    code: int
    signal: int
    at: float


class Container:
    """A started container. ``pid`` is its main process, ``shim_pid`` the supervisor of the whole tree."""

    def __init__(
        self,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        on_exit: Callable[[Exit], None],
    ) -> None:
        """Start it. ``on_exit`` is called once, from a thread, when no process of the container is left.

        Raises:
            StartFailed: The command does not exist or may not be run.
        """
        self.id = secrets.token_hex(32)
        self._on_exit = on_exit
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        # -I and -S: nothing of the environment or of site-packages takes part in the supervisor's start.
        # The log's name is only for whoever reads a process list.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SHIM), str(log)],
            stdin=theirs.fileno(),
            close_fds=True,
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._lines = ours.makefile("r", encoding="utf-8")
        spec = {
            "argv": list(argv),
            "env": {**env, MARK: self.id},
            "cwd": str(cwd),
            "log": str(log),
        }
        ours.settimeout(None)
        ours.sendall(json.dumps(spec).encode() + b"\n")
        answer = json.loads(self._lines.readline() or '{"failed": "the container\'s supervisor ended"}')
        if "failed" in answer:
            self._close()
            raise StartFailed(str(answer["failed"]))
        self.pid = int(answer["started"])
        self.started_at = float(answer["at"])
        self.shim_pid = self._process.pid
        threading.Thread(target=self._listen, name=f"sim-container-{self.id[:8]}", daemon=True).start()

    def stop(self, grace_seconds: float) -> None:
        """SIGTERM to the main process now, SIGKILL to all after the grace; 0 kills at once. May be called again."""
        with self._lock:
            with suppress(OSError):  # ended already: `on_exit` says so
                self._socket.sendall(json.dumps({"stop": grace_seconds}).encode() + b"\n")

    def tree(self) -> list[processes.Process]:
        """Every living process of the container, the main one first."""
        return processes.descendants(self.shim_pid)

    def _listen(self) -> None:
        line = ""
        with suppress(OSError):
            line = self._lines.readline()
        if line:
            report = json.loads(line)
            ended = Exit(int(report["exited"]), int(report["signal"]), float(report["at"]))
        else:
            # The supervisor itself was killed: end what it left behind.
            processes.kill_marked(f"{MARK}={self.id}")
            ended = Exit(137, 9, time.time())
        self._close()
        self._on_exit(ended)

    def _close(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait()
