"""What `./desk demo`, `up` and `clean` say and do before and after the processes run."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from incidentdesk.frontdoor import processes, stack
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT, take_lock
from incidentdesk.frontdoor.postgres import PostgresServer
from incidentdesk.frontdoor.probes import LogSays
from incidentdesk.frontdoor.stack import Stack


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stack, "STATE", tmp_path / "state")
    for name in ("INCIDENTDESK_PORT", "INCIDENTDESK_KUBECONFIG", "DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_port_in_use_is_one_sentence(state: Path, taken_port: int) -> None:
    with pytest.raises(
        FrontDoorError, match=rf"^Port {taken_port} is in use by another program: choose another\.$"
    ):
        stack.run_demo(["--port", str(taken_port)])


def test_default_port_in_use_says_how_to_choose_another(
    state: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "DEFAULT_PORT", taken_port)
    with pytest.raises(FrontDoorError, match=r"choose another with --port, such as --port \d+\.$"):
        stack.run_demo([])


def test_port_of_the_environment_counts(
    state: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INCIDENTDESK_PORT", str(taken_port))
    with pytest.raises(FrontDoorError, match=f"Port {taken_port} is in use"):
        stack.run_demo([])
    monkeypatch.setenv("INCIDENTDESK_PORT", "eighty")
    with pytest.raises(
        FrontDoorError, match=r"^INCIDENTDESK_PORT is eighty: a port is a number from 1 to 65535"
    ):
        stack.run_demo([])


@pytest.mark.parametrize("port", ["99999", "65536", "-1", "x", "", "٣", "1" * 5000])
def test_no_port_is_told_what_a_port_is(state: Path, port: str) -> None:
    with pytest.raises(
        FrontDoorError, match=r"^--port is .+: a port is a number from 1 to 65535, and 0 takes"
    ):
        stack.run_demo([f"--port={port}"])
    assert not state.exists(), "nothing was begun"


def test_second_demo_says_where_the_first_is(state: Path) -> None:
    lock = take_lock(state / "desk.lock")
    assert lock is not None
    (state / "url.txt").write_text("http://127.0.0.1:8123\n")
    with pytest.raises(FrontDoorError, match=r"^It runs already, at http://127\.0\.0\.1:8123; "):
        stack.run_demo([])
    lock.close()


def test_up_needs_a_cluster(state: Path) -> None:
    with pytest.raises(FrontDoorError, match="needs INCIDENTDESK_KUBECONFIG"):
        stack.run_up([])


def test_little_disk_is_said_before_anything_starts(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "NEEDED_BYTES", 2**62)
    desk = Stack(state, profile="drill")
    with pytest.raises(FrontDoorError, match="make room first"):
        desk.start()
    assert not (state / "postgres" / "data").exists()
    assert Stack(state, profile="drill").env["INCIDENTDESK_TIMINGS"] == "short"


def test_processes_get_the_stack_and_not_the_callers_servers(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://them@there/theirs")
    desk = Stack(state, profile="drill", port=8123, env={"INCIDENTDESK_FAULT_POINTS": "x"})
    assert desk.env["DATABASE_URL"].startswith("postgresql://incidentdesk@/")
    assert desk.env["INCIDENTDESK_FAULT_POINTS"] == "x"
    assert desk.urls["web"] == desk.env["INCIDENTDESK_PUBLIC_URL"] == "http://127.0.0.1:8123"
    assert desk.env["INCIDENTDESK_KUBECONFIG"] == str(state / "cluster" / "kubeconfig")


def test_log_probe_looks_only_at_what_this_start_wrote(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("celery@x ready.\n")
    probe = LogSays(log, b" ready.")
    probe.remember_end()
    assert not probe()
    with log.open("a") as stream:
        stream.write("celery@x ready.\n")
    assert probe()


# -- clean -----------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of nothing but clean.py, with something in .desk/ and .venv/."""
    root = tmp_path / "check out"
    script = root / "incidentdesk" / "frontdoor" / "clean.py"
    script.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / "incidentdesk" / "frontdoor" / "clean.py", script)
    for name in (".desk/logs", ".venv/bin"):
        (root / name).mkdir(parents=True)
    return root


def clean(root: Path) -> subprocess.CompletedProcess[str]:
    script = root / "incidentdesk" / "frontdoor" / "clean.py"
    return subprocess.run(
        [sys.executable, "-I", "-B", str(script)], capture_output=True, text=True, check=False
    )


def test_clean_removes_both_directories_after_saying_so(checkout: Path) -> None:
    answer = clean(checkout)
    assert answer.returncode == 0
    assert f"Removing {checkout / '.desk'}" in answer.stdout
    assert sorted(path.name for path in checkout.iterdir()) == ["incidentdesk"]
    assert clean(checkout).stdout == "Nothing to remove.\n"


def test_clean_ends_what_runs_with_its_servers(checkout: Path) -> None:
    program = f"""
import time
from pathlib import Path
from incidentdesk.frontdoor.places import take_lock
from incidentdesk.frontdoor.postgres import PostgresServer
lock = take_lock(Path({str(checkout / ".desk" / "desk.lock")!r}))
server = PostgresServer(Path({str(checkout / ".desk" / "postgres")!r}), durable=False)
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout is not None
        server = int(holder.stdout.readline())
        elsewhere = (checkout / ".desk" / "postgres" / "run.elsewhere").read_text().strip()
        assert Path(elsewhere).is_dir()
        answer = clean(checkout)
        assert answer.returncode == 0, answer.stderr
        assert f"Ending process {holder.pid}" in answer.stdout
        assert holder.wait(10) != 0
    assert processes.wait_gone([server], timeout_seconds=10)
    assert not (checkout / ".desk").exists()
    assert not Path(elsewhere).exists()


def test_clean_keeps_its_hands_off_directories_that_are_not_ours(checkout: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (checkout / ".desk" / "run.elsewhere").write_text(f"{precious}\n")
    assert clean(checkout).returncode == 0
    assert precious.is_dir()


def test_database_is_found_where_the_checkout_has_an_awkward_path(checkout: Path) -> None:
    server = PostgresServer(checkout / ".desk" / "postgres", durable=False)
    assert " " not in server.url()
    assert server.url() == PostgresServer(checkout / ".desk" / "postgres", durable=False).url()
