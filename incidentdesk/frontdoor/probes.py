"""Ways to see that a process does its work."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from incidentdesk.frontdoor.errors import FrontDoorError

SERVER_ERROR = 500
NAMED_BY_THE_SYSTEM = 0


def answers_http(port: int, path: str = "/") -> bool:
    """Whether GET on loopback gives a page, a redirect or a refusal, but no server's error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < SERVER_ERROR
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class InBackground:
    """A probe that may take long, asked in a thread of its own so that nobody waits for it."""

    def __init__(self, probe: Callable[[], bool]) -> None:
        self._probe = probe
        self._thread: threading.Thread | None = None
        self._answer = False

    def __call__(self) -> bool:
        """Give the answer of the last finished question, once, and ask the next when it was no."""
        if self._thread is None:
            self._answer = False
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()
        elif not self._thread.is_alive():
            self._thread = None
            return self._answer
        return False

    def _ask(self) -> None:
        self._answer = self._probe()


class LogSays:
    """Whether a log holds some text behind the place where it ended when the process was started."""

    def __init__(self, log: Path, text: bytes) -> None:
        self._log = log
        self._text = text
        self._from = 0

    def remember_end(self) -> None:
        """Call before the start."""
        with contextlib.suppress(OSError):
            self._from = self._log.stat().st_size

    def __call__(self) -> bool:
        with contextlib.suppress(OSError), self._log.open("rb") as stream:
            stream.seek(self._from)
            return self._text in stream.read()
        return False


def free_port() -> int:
    """Give a loopback port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", NAMED_BY_THE_SYSTEM))
        return int(listener.getsockname()[1])


def refuse_used_port(port: int, *, asked_for: bool) -> None:
    """FrontDoorError, with what to do, when the loopback port is taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except PermissionError:
            raise FrontDoorError(
                f"Port {port} may only be used by root: choose one above 1023 with --port."
            ) from None
        except OSError:
            other = free_port()
            hint = "choose another" if asked_for else f"choose another with --port, such as --port {other}"
            raise FrontDoorError(f"Port {port} is in use by another program: {hint}.") from None
