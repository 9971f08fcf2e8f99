"""Processes that the front door starts: each in a session of its own, none outlives us."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

LAUNCH = Path(__file__).with_name("launch.py")
POLL_SECONDS = 0.02

# The kernel's parent-death signal follows the *thread* that forked, so every fork is made by this one,
# which lives as long as the interpreter.
_forks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="frontdoor-fork")


def spawn(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    output: IO[bytes] | int | None = subprocess.DEVNULL,
    run_as: str = "same",
    parent_death_signal: signal.Signals = signal.SIGTERM,
) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, ended by the kernel when this process dies.

    `run_as`: see launch.py. Both output streams go to `output`; standard input is empty.
    """
    argv = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), str(int(parent_death_signal)), run_as]
    return _forks.submit(
        subprocess.Popen,
        argv + [str(word) for word in command],
        env=None if env is None else dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ).result()


def signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Signal everything in the process's session group; nothing there is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def end(
    process: "subprocess.Popen[bytes]",
    *,
    first: signal.Signals = signal.SIGTERM,
    grace_seconds: float = 10.0,
    whole_group: bool = True,
) -> int:
    """Ask a process to end, then insist; afterwards its group is empty. Returns its exit status.

    `whole_group`: whether a leftover of the group is killed too once the leader is gone.
    """
    if process.poll() is None:
        process.send_signal(first)
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if whole_group:
        signal_group(process, signal.SIGKILL)
    return process.returncode


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # pid (name) state …: the name may hold spaces and parentheses, so read behind the last one
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return not Path("/proc/self").exists() or Path(f"/proc/{pid}").exists()


def wait_gone(pids: Iterable[int], *, timeout_seconds: float) -> bool:
    """Wait until none of the processes is alive; False when the time is up first."""
    deadline = time.monotonic() + timeout_seconds
    waiting = set(pids)
    while waiting := {pid for pid in waiting if is_alive(pid)}:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
