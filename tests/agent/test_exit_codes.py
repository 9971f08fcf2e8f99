"""Exit codes and transparency without a desk."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import wire
from agent.cli import UsageError, is_simple, parse
from tests.agent.conftest import AgentProcess, is_alive, until

Start = Callable[..., AgentProcess]

CODES = {
    "zero": (("--", "true"), 0),
    "one": (("--", "false"), 1),
    "without dashes": (("sh", "-c", "exit 3"), 3),
    "line": (("-c", "exit 42"), 42),
    "line with a list": (("-c", "true; false"), 1),
    "255": (("-c", "exit 255"), 255),
    "killed": (("-c", "kill -KILL $$"), 137),
    "terminated": (("-c", "kill -TERM $$"), 143),
    "aborted": (("-c", "kill -ABRT $$"), 134),
    "not found": (("--", "/no/such/program"), 127),
    "not executable": (("--", "/etc/passwd"), 126),
    "line not found": (("-c", "no-such-program-anywhere"), 127),
    "no command": ((), wire.EXIT_USAGE),
    "no command after dashes": (("--",), wire.EXIT_USAGE),
    "unknown option": (("--frobnicate",), wire.EXIT_USAGE),
    "ctl without word": (("ctl",), wire.EXIT_USAGE),
    "version": (("--version",), 0),
    "help": (("--help",), 0),
}


@pytest.mark.parametrize(("arguments", "code"), CODES.values(), ids=CODES.keys())
def test_exit_code(start: Start, arguments: tuple[str, ...], code: int) -> None:
    assert start(*arguments).wait() == code


@pytest.mark.parametrize(("arguments", "code"), [CODES["killed"], CODES["one"], CODES["not found"]])
def test_exit_code_with_python_3_8(
    start: Start, python_3_8: str, arguments: tuple[str, ...], code: int
) -> None:
    assert start(*arguments, python=python_3_8).wait() == code


def test_own_codes_collide_with_nobody() -> None:
    own = [value for name, value in vars(wire).items() if name.startswith("EXIT_")]
    assert len(set(own)) == len(own) == 5
    assert not set(own) & ({0, 1, 2, 255} | set(range(126, 166)))


def test_simple_line_leaves_no_shell_between(start: Start) -> None:
    agent = start("-c", f"{sys.executable} -c 'import os; print(os.getppid())' 2>&1")
    code, out, _err = agent.finish()
    assert (code, int(out)) == (0, agent.pid)


@pytest.mark.parametrize(
    ("line", "simple"),
    [
        ("python3 train.py --lr 0.1", True),
        ("python3 -c 'a; b | c'", True),
        ('python3 train.py "$CONFIG" > log 2>&1', True),
        ("FOO=1 python3 train.py", False),
        ("cd /w && python3 train.py", False),
        ("python3 a.py; python3 b.py", False),
        ("python3 a.py | tee log", False),
        ("python3 a.py &", False),
        ("(python3 a.py)", False),
        ("exit 3", False),
        ("if true; then x; fi", False),
        ("$COMMAND --x", False),
        ("python3 a.py `x`", False),
        ("python3 'open", False),
        ("cat <<E\nx\nE", False),
        ("python3 a.py\npython3 b.py", False),
    ],
)
def test_exec_goes_before_simple_lines_only(line: str, simple: bool) -> None:
    assert is_simple(line) is simple


def test_line_after_c_is_one_argument() -> None:
    with pytest.raises(UsageError):
        parse(["-c", "python3", "train.py"])


def test_agent_reaps_orphans_and_leaves_none_behind(start: Start, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # the orphan outlives its parent in a session of its own; the command ends by itself
    agent = start("-c", f"setsid sh -c 'echo $$ > {pids}.tmp; mv {pids}.tmp {pids}; exec sleep 1000' & "
                        f"while [ ! -e {pids} ]; do sleep 0.01; done; exit 5")  # fmt: skip
    assert agent.wait() == 5
    assert not is_alive(int(pids.read_text()))


def test_works_as_pid_1(archive: Path, tmp_path: Path) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.getuid() != 0:
        unshare.insert(1, "--map-root-user")
    probe = subprocess.run([*unshare, "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"no pid namespace here: {probe.stderr.decode().strip()}")
    ready = tmp_path / "ready"
    env = {**os.environ, "INCIDENTDESK_CONFIG_DIR": str(tmp_path)}
    line = f"trap 'exit 12' TERM; echo $$ > {ready}; (setsid sleep 1000 &); while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [*unshare, sys.executable, str(archive), "-c", line], env=env, stderr=subprocess.DEVNULL
    )
    until(lambda: ready.exists() and ready.read_text().strip())
    agent = int(next(iter(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())))
    os.kill(agent, signal.SIGTERM)  # a PID 1 without a handler would ignore it
    assert process.wait(20) == 12


def test_signals_are_passed_on(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    agent = start("-c", f"trap 'exit 21' USR1; echo > {ready}; while :; do sleep 0.05; done")
    until(ready.exists)
    agent.process.send_signal(signal.SIGUSR1)
    assert agent.wait() == 21


def test_enrolment_secret_is_kept_from_the_command(start: Start) -> None:
    agent = start("--", "env", INCIDENTDESK_ENROL_SECRET="very-secret", OTHER="kept")
    _code, out, _err = agent.finish()
    assert b"very-secret" not in out
    assert b"OTHER=kept" in out


def test_wrong_setting_is_said_and_the_command_runs(start: Start) -> None:
    agent = start("-c", "exit 3", INCIDENTDESK_STOP_GRACE_SECONDS="soon", INCIDENTDESK_STEP_PATTERN="(")
    code, _out, err = agent.finish()
    assert code == 3
    assert b"INCIDENTDESK_STOP_GRACE_SECONDS" in err
    assert b"INCIDENTDESK_STEP_PATTERN" in err
