"""The built agent, agents as processes, and a desk for them."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.build import build
from tests.agent.fake_desk import DEADLINE_SECONDS, FakeDesk

SECRET = "enrolment-secret"


class AgentProcess:
    """A running agent."""

    def __init__(self, process: "subprocess.Popen[bytes]", state_dir: Path) -> None:
        self.process = process
        self.state_dir = state_dir

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def finish(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, out, err

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def descendants(self) -> list[int]:
        found: list[int] = []
        queue = [self.pid]
        while queue:
            children = children_of(queue.pop())
            found += children
            queue += children
        return found


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def until(holds: Callable[[], Any], what: str = "") -> Any:
    """Look again and again until ``holds()`` is true; fails the test after a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"never seen: {what or holds}")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as it is shipped."""
    path = tmp_path_factory.mktemp("agent") / "deskagent.pyz"
    build(path, [sys.executable])
    return path


@pytest.fixture(scope="session")
def python_3_8() -> str:
    """Oldest Python that the agent supports."""
    candidates = [shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8")]
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return str(candidate)
    pytest.skip("no Python 3.8 on this machine")


@pytest.fixture
def desk() -> Iterator[FakeDesk]:
    desk = FakeDesk()
    yield desk
    desk.close()


@pytest.fixture
def start(archive: Path, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start an agent: ``start(*arguments, desk=…, stdout=…, python=…, NAME=value …)``."""
    running: list[AgentProcess] = []

    def start(
        *arguments: str,
        desk: FakeDesk | None = None,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        python: str = sys.executable,
        **variables: str,
    ) -> AgentProcess:
        env = {name: value for name, value in os.environ.items() if not name.startswith("INCIDENTDESK_")}
        state_dir = tmp_path / f"state-{len(running)}"
        env.update(
            INCIDENTDESK_CONFIG_DIR=str(tmp_path / "none"),
            INCIDENTDESK_STATE_DIR=str(state_dir),
            INCIDENTDESK_POD_NAME="llama-0",
            INCIDENTDESK_NAMESPACE="team-a",
            INCIDENTDESK_POD_UID="uid-1",
        )
        if desk is not None:
            env.update(INCIDENTDESK_URL=desk.url, INCIDENTDESK_ENROL_SECRET=SECRET)
        env.update(variables)
        process = subprocess.Popen(
            [python, str(archive), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        agent = AgentProcess(process, state_dir)
        running.append(agent)
        return agent

    yield start
    for agent in running:
        pids = [*agent.descendants(), agent.pid] if agent.process.poll() is None else []
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.process.wait(DEADLINE_SECONDS)
        for stream in (agent.process.stdout, agent.process.stderr):
            if stream is not None:
                stream.close()
