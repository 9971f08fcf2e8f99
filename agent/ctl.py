"""``deskagent ctl``: talk to the agent of this container, over a socket that only its user can open.

One line of JSON each way. The server reads in threads and asks the session in the loop's thread.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from agent import wire

SOCKET_NAME = "ctl.sock"
SOCKET_PATH_BYTES = 107  # sun_path less its final zero
ANSWER_SECONDS = 10.0
CONFIRM_SECONDS = 5.0
LINE_BYTES = 65536

COMMANDS = ("status", "stop", "check")


class Controlled:
    """What the socket may ask of a session; all but ``unsent`` is called in the loop's thread."""

    def __init__(
        self,
        *,
        status: Callable[[], Dict[str, Any]],
        quit_: Callable[[str, bool], Optional[str]],
        check: Callable[[Callable[[List[wire.CheckResult]], None]], None],
        wait_until_sent: Callable[[float], bool],
    ) -> None:
        self.status = status
        self.quit = quit_
        self.check = check
        self.wait_until_sent = wait_until_sent


class Server:
    """Listens in the state directory. Where that is impossible the agent works on without it."""

    def __init__(self, directory: str, session: Controlled, post: Callable[..., None]) -> None:
        self._path = os.path.join(directory, SOCKET_NAME)
        self._session = session
        self._post = post

    def start(self) -> Optional[str]:
        """Returns why ``ctl`` cannot work here, else None."""
        if len(os.fsencode(self._path)) > SOCKET_PATH_BYTES:
            return "path of the control socket is too long: %s" % self._path
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            if os.stat(os.path.dirname(self._path)).st_uid != os.getuid():
                return "%s belongs to somebody else; no control socket there" % os.path.dirname(self._path)
            if os.path.exists(self._path):
                if _answers(self._path):
                    return "another agent answers at %s" % self._path
                os.unlink(self._path)
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.bind(self._path)
            os.chmod(self._path, 0o600)
            server.listen(4)
        except OSError as error:
            return "control socket %s: %s" % (self._path, error.strerror or error)
        threading.Thread(target=self._serve, args=(server,), name="ctl", daemon=True).start()
        return None

    def remove(self) -> None:
        try:
            os.unlink(self._path)
        except OSError:
            pass

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                client, _address = server.accept()
            except OSError:
                time.sleep(0.1)
                continue
            threading.Thread(target=self._answer, args=(client,), name="ctl-client", daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            client.settimeout(ANSWER_SECONDS)
            try:
                with client.makefile("rb") as lines:
                    asked = json.loads(lines.readline(LINE_BYTES) or b"null")
                answer = self._do(asked if isinstance(asked, dict) else {})
                client.sendall(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError):
                pass  # the client is gone, or said nothing sensible

    def _do(self, asked: Dict[str, Any]) -> Dict[str, Any]:
        command = asked.get("command")
        if command == "status":
            return {"ok": True, "status": self._ask(lambda give: give(self._session.status()))}
        if command == "check":
            return {"ok": True, "checks": self._ask(self._session.check)}
        if command == "stop":
            reason = str(asked.get("reason") or "asked by deskagent ctl stop")
            is_safe = bool(asked.get("at_safe_point"))
            refusal = self._ask(lambda give: give(self._session.quit(reason, is_safe)))
            if refusal:
                return {"ok": False, "detail": refusal}
            if self._session.wait_until_sent(CONFIRM_SECONDS):
                return {"ok": True, "detail": "the desk has the request to stop the job"}
            return {"ok": False, "detail": "the desk does not answer; the request is kept and sent later"}
        return {"ok": False, "detail": "unknown command"}

    def _ask(self, question: Callable[[Callable[[Any], None]], None]) -> Any:
        """Ask in the loop's thread, wait for the answer here."""
        answered = threading.Event()
        box: List[Any] = []

        def give(value: Any) -> None:
            box.append(value)
            answered.set()

        self._post(question, give)
        if not answered.wait(ANSWER_SECONDS):
            raise OSError("the agent's loop does not answer")
        return box[0]


def ask(directory: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Send one request to the agent of this container.

    Raises:
        OSError: No agent answers. ValueError: It answered nonsense.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_SECONDS + CONFIRM_SECONDS)
        client.connect(os.path.join(directory, SOCKET_NAME))
        client.sendall(json.dumps(request).encode() + b"\n")
        with client.makefile("rb") as lines:
            found = json.loads(lines.readline(1024 * 1024) or b"null")
    if not isinstance(found, dict):
        raise ValueError("no answer")
    return found


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
