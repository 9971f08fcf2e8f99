"""Faults by the control API: success only when the simulator says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from adapters.sim_faults import FaultRefused, SimulatorAway, inject_fault


class Simulator:
    """A control API that answers what the test says and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, {"done": True, "what": "killed rank 1 (pid 4130)"})
        self.asked: list[tuple[str, str, Any]] = []
        simulator = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                simulator.asked.append((self.path, self.headers["Authorization"], body))
                status, answer = simulator.answer
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    made = Simulator()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(5)


@pytest.fixture
def endpoint(simulator: Simulator, tmp_path: Path) -> Path:
    path = tmp_path / "endpoint.json"
    path.write_text(json.dumps({"url": simulator.url, "admin_token": "secret", "pid": 1}))
    return path


def test_fault_is_asked_for_with_the_admin_token(simulator: Simulator, endpoint: Path) -> None:
    said = inject_fault(endpoint, "kill-process", {"namespace": "nlp", "job": "llm", "index": 1})
    assert said == "Killed rank 1 (pid 4130)."
    assert simulator.asked == [
        (
            "/sim/v1/faults",
            "Bearer secret",
            {"fault": "kill-process", "namespace": "nlp", "job": "llm", "index": 1},
        )
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((409, {"code": "conflict", "detail": "no process runs"}), "no process runs"),
        ((500, b"oops"), "500"),
        ((200, {"done": False, "detail": "nothing to kill"}), "nothing to kill"),
        ((200, []), "without sense"),
    ],
)
def test_anything_but_done_is_said_to_be_refused(
    simulator: Simulator, endpoint: Path, answer: Any, said: str
) -> None:
    """D25: success is said only when the effect was seen."""
    simulator.answer = answer
    with pytest.raises(FaultRefused, match=said):
        inject_fault(endpoint, "kill-process", {})


def test_answer_that_is_no_json_leaves_the_outcome_unknown(simulator: Simulator, endpoint: Path) -> None:
    simulator.answer = (200, b"<html>")
    with pytest.raises(SimulatorAway):
        inject_fault(endpoint, "kill-process", {})


def test_endpoint_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(SimulatorAway, match="cannot be read"):
        inject_fault(tmp_path / "none.json", "kill-process", {})
    closed = tmp_path / "closed.json"
    closed.write_text('{"url": "http://127.0.0.1:9", "admin_token": "x"}')
    with pytest.raises(SimulatorAway, match="did not answer"):
        inject_fault(closed, "kill-process", {})


def test_only_a_simulator_on_this_machine_is_asked(tmp_path: Path) -> None:
    far = tmp_path / "far.json"
    far.write_text('{"url": "http://cluster.example:80", "admin_token": "x"}')
    with pytest.raises(SimulatorAway, match="not a simulated cluster on this machine"):
        inject_fault(far, "kill-process", {})
