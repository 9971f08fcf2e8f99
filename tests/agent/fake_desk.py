"""A desk that speaks agent.wire over HTTP and remembers what it heard, for tests of the agent."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agent import wire

DEADLINE_SECONDS = 20.0


class FakeDesk:
    """One job, any number of agents. Attributes may be set while agents speak to it.

    Attributes:
        enrol_answers: Answers to the next enrolments, then ``enrolled`` for ever.
        messages: Confirmed messages in the order of arrival, each number once an incarnation.
        repeats: Messages that came again with a number known already.
    """

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        """``certificate``: paths of a PEM certificate and its key, to speak HTTPS."""
        self.changed = threading.Condition()
        self.enrol_answers: list[dict[str, Any]] = []
        self.enrolments: list[dict[str, Any]] = []
        self.bearers: list[str] = []
        self.polls: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.repeats: list[dict[str, Any]] = []
        self.orders: list[dict[str, Any]] = []
        self.protected = True
        self.directive: dict[str, Any] = {}
        self.limits: dict[str, float] = {"poll_seconds": 1.0}
        self.statuses: dict[str, list[int]] = {"poll": [], "report": [], "enrol": []}
        self.swallow_report_answers = 0
        self.tokens = 0
        self.open_polls = 0
        self._known: set[tuple[int, int]] = set()
        self._sockets: set[socket.socket] = set()
        self._is_cut = False
        desk = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with desk.changed:
                    desk._sockets.add(self.connection)

            def finish(self) -> None:
                with desk.changed:
                    desk._sockets.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def do_POST(self) -> None:
                try:
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                    desk._serve(self, self.path, body)
                except (OSError, ValueError):
                    self.close_connection = True

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._server.handle_error = lambda *_args: None  # type: ignore[method-assign]
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def close(self) -> None:
        self.cut()
        self._server.shutdown()
        self._server.server_close()

    # What tests do

    def cut(self) -> None:
        """Reset every connection and refuse to answer until ``restore``."""
        with self.changed:
            self._is_cut = True
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self.changed.notify_all()

    def restore(self) -> None:
        with self.changed:
            self._is_cut = False

    def order(self, phase: str, **data: Any) -> int:
        """Write an order and wake the polls; returns its sequence."""
        with self.changed:
            sequence = len(self.orders) + 1
            self.orders.append(
                {
                    "job": "llama", "namespace": "team-a", "pod": "*", "type": wire.ORDER, "phase": phase,
                    "sequence": sequence, "data": data, "time": time.time(),
                }
            )  # fmt: skip
            self.changed.notify_all()
            return sequence

    def tell(self, **what: Any) -> None:
        """Set attributes and answer open polls."""
        with self.changed:
            for name, value in what.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def wait_for(self, holds: Callable[[], Any], what: str = "") -> Any:
        """Wait until ``holds()`` is true and return it; fails the test after a deadline."""
        with self.changed:
            found = self.changed.wait_for(holds, DEADLINE_SECONDS)
        assert found, f"never seen: {what or holds}; messages: {[short(item) for item in self.messages]}"
        return found

    def wait_for_message(
        self, type_: str, phase: str | None = None, count: int = 1, **data: Any
    ) -> dict[str, Any]:
        """The ``count``-th message of this type (and phase, and data)."""
        return self.wait_for(
            lambda: (self.of(type_, phase, **data)[count - 1 : count] or [None])[0], f"{type_} {phase} {data}"
        )

    def of(self, type_: str, phase: str | None = None, **data: Any) -> list[dict[str, Any]]:
        return [
            item
            for item in self.messages
            if item["type"] == type_
            and phase in (None, item["phase"])
            and all(item["data"].get(name) == value for name, value in data.items())
        ]

    def run_command(self, **data: Any) -> dict[str, Any]:
        """Boot check and command orders, as the desk gives them; returns the command's ACK."""
        self.wait_for(lambda: self.polls, "a poll")
        self.order(wire.BOOTCHECK, environment=True, checks=["quick"])
        self.wait_for_message(wire.ACK, wire.BOOTCHECK)
        count = len(self.of(wire.ACK, wire.COMMAND))
        self.order(wire.COMMAND, attempt=count + 1, resume=None, **data)
        return self.wait_for_message(wire.ACK, wire.COMMAND, count + 1)

    # What agents do

    def _serve(self, handler: BaseHTTPRequestHandler, path: str, body: dict[str, Any]) -> None:
        name = path.rsplit("/", 1)[-1]
        with self.changed:
            if self._is_cut:
                handler.close_connection = True
                return None
            status = self.statuses[name].pop(0) if self.statuses[name] else 200
            self.bearers.append(handler.headers["Authorization"])
        if status != 200:
            with self.changed:
                self.changed.notify_all()
            return _answer(handler, status, {"code": "test", "detail": "as told"})
        if name == "enrol":
            return _answer(handler, 200, self._enrol(body))
        if name == "report":
            answer = self._report(body)
            with self.changed:
                if self.swallow_report_answers > 0:
                    self.swallow_report_answers -= 1
                    handler.close_connection = True
                    handler.connection.shutdown(socket.SHUT_RDWR)
                    return None
            return _answer(handler, 200, answer)
        answer = self._poll(body)
        if answer is None:
            handler.close_connection = True
            return None
        return _answer(handler, 200, answer)

    def _enrol(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            self.enrolments.append(body)
            self.tokens += 1
            self.changed.notify_all()
            if self.enrol_answers:
                return self.enrol_answers.pop(0)
            return self.enrolled()

    def enrolled(self, **changes: Any) -> dict[str, Any]:
        return {
            "version": 1, "status": wire.ENROLLED, "token": f"token-{self.tokens}", "incarnation": 7,
            "job": "team-a/llama", "worker": {"role": "worker", "index": 0}, "world_size": 1,
            "protected": self.protected, "limits": self.limits, "sequence": 0, **changes,
        }  # fmt: skip

    def _report(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            accepted = []
            for message in body["messages"]:
                key = (body["incarnation"], message["n"])
                accepted.append(message["n"])
                if key in self._known:
                    self.repeats.append(message)
                else:
                    self._known.add(key)
                    self.messages.append(message)
            self.changed.notify_all()
            return {"version": 1, "accepted": accepted, "rejected": []}

    def _poll(self, body: dict[str, Any]) -> dict[str, Any] | None:
        told = (self.protected, dict(self.directive))

        def news() -> bool:
            return (
                self._is_cut
                or any(order["sequence"] > body["cursor"] for order in self.orders)
                or (self.protected, self.directive) != told
            )

        with self.changed:
            self.polls.append(body)
            self.open_polls += 1
            self.changed.notify_all()
            self.changed.wait_for(news, body["wait_seconds"])
            self.open_polls -= 1
            if self._is_cut:
                return None
            return {
                "version": 1,
                "orders": [order for order in self.orders if order["sequence"] > body["cursor"]],
                "protected": self.protected,
                "directive": wire.CONTINUE,
                "limits": self.limits,
                **self.directive,
            }


def short(message: dict[str, Any]) -> str:
    words = [message[name] for name in ("n", "type", "phase", "sequence")]
    return " ".join(str(word) for word in [*words, message["data"].get("mark", "")])


def _answer(handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
    payload = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(payload)))
    handler.end_headers()
    handler.wfile.write(payload)
