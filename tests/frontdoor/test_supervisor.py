"""The supervisor with small real processes: order, return of the dead, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from incidentdesk.frontdoor import keeper, processes
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT
from incidentdesk.frontdoor.supervisor import Service, State, Supervisor

SLEEPER = ["sleep", "600"]
# Starts a child in a session of its own, as launchers do with their ranks, and ignores polite requests.
STUBBORN = ["sh", "-c", "trap '' TERM; setsid sleep 600 & setsid sleep 600 & wait; wait"]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


@contextmanager
def running(tmp_path: Path, *services: Service) -> Iterator[tuple[Supervisor, list[str]]]:
    said: list[str] = []
    supervisor = Supervisor(services, logs=tmp_path / "logs", say=said.append)
    try:
        supervisor.start()
        yield supervisor, said
    finally:
        supervisor.stop()


def test_killed_process_comes_back_and_it_is_said(tmp_path: Path) -> None:
    with running(tmp_path, Service("worker", lambda: SLEEPER)) as (supervisor, said):
        first = supervisor.kill("worker", signal.SIGKILL)
        second = supervisor.wait_ready("worker", other_than=first)
        assert second != first
        assert processes.is_alive(second)
    assert any("worker died (SIGKILL)" in line for line in said)
    assert any("worker runs again" in line for line in said)
    assert not processes.is_alive(second)


def test_each_early_death_doubles_the_wait(tmp_path: Path) -> None:
    with running(tmp_path, Service("worker", lambda: SLEEPER)) as (supervisor, said):
        pid = 0
        for _ in range(3):
            pid = supervisor.wait_ready("worker", other_than=pid)
            supervisor.kill("worker")
        wait_until(lambda: sum("died" in line for line in said) == 3)
    waits = [line.rpartition(" in ")[2] for line in said if "died" in line]
    assert waits == ["0.25 s", "0.5 s", "1 s"]


def test_service_waits_for_what_it_needs(tmp_path: Path) -> None:
    made = tmp_path / "made"
    step = Service("step", lambda: ["sh", "-c", f"sleep 0.2; : > '{made}'"], once=True)
    user = Service("user", lambda: ["sh", "-c", f"test -e '{made}' && exec sleep 600"], after=("step",))
    with running(tmp_path, user, step) as (supervisor, said):
        assert supervisor.state("step") is State.DONE
        assert [line.split()[0] for line in said] == ["step", "user"]
        assert processes.is_alive(supervisor.pid("user"))


def test_step_is_done_again_when_what_it_depends_on_came_back(tmp_path: Path) -> None:
    done = tmp_path / "done"
    step = Service(
        "step", lambda: ["sh", "-c", f"echo x >> '{done}'"], once=True, after=("base",), again_after=("base",)
    )
    with running(tmp_path, step, Service("base", lambda: SLEEPER)) as (supervisor, said):
        assert done.read_text().split() == ["x"]
        supervisor.kill("base")
        wait_until(lambda: any("step is done again" in line for line in said))
        assert done.read_text().split() == ["x", "x"]


def test_process_starts_anew_when_what_it_knew_has_changed(tmp_path: Path) -> None:
    user = Service("user", lambda: SLEEPER, after=("base",), again_after=("base",))
    with running(tmp_path, user, Service("base", lambda: SLEEPER)) as (supervisor, said):
        first = supervisor.pid("user")
        supervisor.kill("base")
        assert supervisor.wait_ready("user", other_than=first) != first
        assert supervisor.deaths("user") == 0
    assert not any("user died" in line for line in said)


def test_failed_step_ends_everything_with_one_sentence_and_its_last_lines(tmp_path: Path) -> None:
    step = Service("step", lambda: ["sh", "-c", "echo the reason; exit 3"], once=True)
    said: list[str] = []
    supervisor = Supervisor(
        [Service("other", lambda: SLEEPER), step], logs=tmp_path / "logs", say=said.append
    )
    with pytest.raises(FrontDoorError, match=r"^Step failed \(exit code 3\); its log is .*step\.log\.$"):
        supervisor.start()
    assert any("the reason" in line for line in said)
    assert supervisor.members() == []


def test_missing_program_is_said(tmp_path: Path) -> None:
    supervisor = Supervisor(
        [Service("x", lambda: ["no-such-program-here"])], logs=tmp_path / "l", say=lambda _: None
    )
    with pytest.raises(FrontDoorError, match=r"X did not start \(exit code 125\)"):
        supervisor.start()
    assert "no-such-program-here" in supervisor.log("x").read_text()


def test_full_disk_is_said_as_such(tmp_path: Path) -> None:
    step = Service(
        "step",
        lambda: [sys.executable, "-c", "print('x', file=open('/dev/full', 'w'), flush=True)"],
        once=True,
    )
    with pytest.raises(FrontDoorError, match="is full: make room"):
        Supervisor([step], logs=tmp_path / "logs", say=lambda _: None).start()


def test_stop_leaves_nothing_even_of_processes_with_sessions_of_their_own(tmp_path: Path) -> None:
    service = Service("stubborn", lambda: STUBBORN, stop_seconds=0.1)
    with running(tmp_path, service) as (supervisor, _):
        wait_until(lambda: len(supervisor.members()) == 3)
        members = supervisor.members()
        supervisor.hurry()
    assert processes.wait_gone(members, timeout_seconds=5)
    assert supervisor.members() == []


def test_halted_service_stays_down_until_resumed(tmp_path: Path) -> None:
    with running(tmp_path, Service("worker", lambda: SLEEPER), Service("other", lambda: SLEEPER)) as (
        supervisor,
        _,
    ):
        first = supervisor.pid("worker")
        supervisor.halt("worker")
        assert not processes.is_alive(first)
        supervisor.kill("other")
        supervisor.wait_ready("other", other_than=0)  # the loop goes on meanwhile
        assert supervisor.state("worker") is State.HALTED
        supervisor.resume("worker")
        assert supervisor.wait_ready("worker", other_than=first) != first


def test_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from incidentdesk.frontdoor.supervisor import Service, Supervisor
services = [Service("polite", lambda: ["sleep", "600"]), Service("stubborn", lambda: {STUBBORN!r})]
supervisor = Supervisor(services, logs=Path({str(tmp_path)!r}), say=lambda line: None)
supervisor.start()
print(supervisor.mark, flush=True)
supervisor.wait(600)
"""
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        mark = process.stdout.readline().strip()
        wait_until(lambda: len(keeper.marked(mark)) == 4)
        members = keeper.marked(mark)
        process.kill()
    assert processes.wait_gone(members, timeout_seconds=keeper.GRACE_SECONDS + keeper.INSIST_SECONDS)
    assert keeper.marked(mark) == []


def test_unknown_need_is_refused() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        Supervisor([Service("worker", lambda: SLEEPER, after=("nowhere",))], logs=Path("unused"))
