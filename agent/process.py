"""Processes: spawning, reaping and stopping, all in the loop's thread.

Exit statuses are collected in one place only, so none is ever stolen. As PID 1, or as child
subreaper, every orphan of the command becomes a child of the agent; so "no child left" means "no
descendant left", however the launcher forked, and every death on the way raises SIGCHLD.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from agent.loop import Loop, Timer

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

# How long the dead are waited for after SIGKILL. Longer means uninterruptible sleep (a hung mount):
# the desk must hear about that instead of waiting with us.
KILL_WAIT_SECONDS = 10.0

# After SIGKILL each death wakes us. This only covers what was forked between a look and its kill by
# a parent that lives on, which a machine without /proc/…/children shows late.
KILL_AGAIN_SECONDS = 0.05

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class Process:
    """One child that the agent started. ``exit_code`` is None after a signal, and the other way round."""

    __slots__ = ("exit_code", "own", "on_exit", "pid", "popen", "signal_number", "started_at")

    def __init__(
        self, popen: subprocess.Popen[bytes], own: bool, on_exit: Optional[Callable[[Process], None]]
    ) -> None:
        self.popen = popen
        self.pid: int = popen.pid
        self.own = own
        self.on_exit = on_exit
        self.started_at = time.time()
        self.exit_code: Optional[int] = None
        self.signal_number: Optional[int] = None

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None or self.signal_number is not None


class Stopped:
    """What a stop found and did. ``left`` are pids that outlived SIGKILL (uninterruptible)."""

    __slots__ = ("killed", "left", "pids", "seconds")

    def __init__(self, seconds: float, pids: List[int], killed: int, left: List[int]) -> None:
        self.seconds = seconds
        self.pids = pids
        self.killed = killed
        self.left = left

    def report(self) -> Dict[str, Any]:
        """For the desk; of many pids the first 200."""
        found: Dict[str, Any] = {
            "seconds": round(self.seconds, 4),
            "killed": self.killed,
            "pids": self.pids[:200],
        }
        if self.left:
            found["left"] = self.left[:200]
        return found


class _Stop:
    __slots__ = ("began", "callbacks", "kill_at", "killed", "pids", "timer")

    def __init__(self, began: float) -> None:
        self.began = began
        self.kill_at = began
        self.pids: Set[int] = set()
        self.killed: Set[int] = set()
        self.callbacks: List[Callable[[Stopped], None]] = []
        self.timer: Optional[Timer] = None


class ProcessTable:
    """The agent's children. Every method belongs to the loop's thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._processes: Dict[int, Process] = {}
        self._stop: Optional[_Stop] = None
        self._adopts_orphans = os.getpid() == 1
        loop.on_signal(signal.SIGCHLD, lambda _number: self.reap())

    def become_subreaper(self) -> Optional[str]:
        """Adopt orphaned descendants. Returns what cannot work where that is impossible, else None."""
        problem = _become_subreaper()
        self._adopts_orphans = problem is None
        return problem

    @property
    def is_stopping(self) -> bool:
        return self._stop is not None

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Dict[str, str],
        stdin: Optional[int] = None,
        stdout: Optional[int] = None,
        stderr: Optional[int] = None,
        own: bool = False,
        on_exit: Optional[Callable[[Process], None]] = None,
    ) -> Process:
        """Start a program in a session of its own.

        Args:
            own: A helper of the agent (a check): never stopped together with the training.
            on_exit: Called once in the loop, after the status was collected.
        Raises:
            OSError: It could not be executed.
        """
        popen = subprocess.Popen(
            list(argv),
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            close_fds=own,  # the command inherits what the container's runtime handed to us
        )
        process = Process(popen, own, on_exit)
        self._processes[process.pid] = process
        return process

    def reap(self) -> None:
        """Collect every child that has ended. May be called at any time."""
        ended: List[Process] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            process = self._processes.pop(pid, None)
            if process is None:
                continue  # an orphan of the command
            if os.WIFSIGNALED(status):
                process.signal_number = os.WTERMSIG(status)
                process.popen.returncode = -process.signal_number
            else:
                process.exit_code = os.WEXITSTATUS(status)
                process.popen.returncode = process.exit_code
            ended.append(process)
        for process in ended:
            if process.on_exit is not None:
                process.on_exit(process)
        self._look_at_stop()

    def descendants(self) -> List[int]:
        """Pids of everything below the agent except its own checks, parents first."""
        own = {pid for pid, process in self._processes.items() if process.own}
        children = _children_reader()
        found: List[int] = []
        seen: Set[int] = {os.getpid()}
        queue = [os.getpid()]
        while queue:
            for pid in children(queue.pop(0)):
                if pid in own or pid in seen:
                    continue
                seen.add(pid)
                found.append(pid)
                queue.append(pid)
        if not found and not os.path.isdir("/proc/self"):
            found = [pid for pid, process in self._processes.items() if not process.own]
        return found

    def _children(self) -> List[int]:
        own = {pid for pid, process in self._processes.items() if process.own}
        return [pid for pid in _children_reader()(os.getpid()) if pid not in own]

    def send(self, number: int) -> List[int]:
        """Send a signal to the command's group and to every descendant, each process once."""
        pids = self.descendants()
        groups = {pid for pid, process in self._processes.items() if not process.own}
        for group in groups:
            try:
                os.killpg(group, number)  # each child of ours leads its own group
            except (ProcessLookupError, PermissionError):
                pass
        for pid in pids:
            try:
                if os.getpgid(pid) not in groups:
                    os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass
        return pids

    def stop(self, grace_seconds: float, on_done: Callable[[Stopped], None]) -> None:
        """SIGTERM, grace, then SIGKILL until no descendant is left; then ``on_done``.

        A second call while a stop runs joins it and may only shorten its grace.
        """
        now = time.monotonic()
        if self._stop is None:
            stop = self._stop = _Stop(now)
            stop.callbacks.append(on_done)
            stop.kill_at = now + grace_seconds
            if grace_seconds > 0:
                stop.pids.update(self.send(signal.SIGTERM))
        else:
            stop = self._stop
            stop.callbacks.append(on_done)
            if now + grace_seconds >= stop.kill_at:
                return
            stop.kill_at = now + grace_seconds
        if stop.timer is not None:
            stop.timer.cancel()
        stop.timer = self._loop.later(stop.kill_at - now, self._kill, stop)
        self.reap()

    def _look_at_stop(self) -> None:
        """After deaths: is the stop over, or is there somebody new to kill?

        Where orphans come to us, our own children tell both: as long as anything lives below, one of
        them does; and what escaped a kill becomes our child when its parent dies. Looking through the
        whole tree at each death would take quadratic time with hundreds of ranks.
        """
        stop = self._stop
        if stop is None:
            return
        left = self._children() if self._adopts_orphans else self.descendants()
        if not left:
            left = self.descendants()
        if not left:
            self._end_stop(stop, [])
        elif stop.killed and not stop.killed.issuperset(left):
            self._kill_pids(stop, self.descendants())

    def _kill(self, stop: _Stop) -> None:
        if stop is not self._stop:
            return
        left = self.descendants()
        if not left or time.monotonic() > stop.kill_at + KILL_WAIT_SECONDS:
            self._end_stop(stop, left)
            return
        self._kill_pids(stop, left)
        stop.timer = self._loop.later(KILL_AGAIN_SECONDS, self._kill, stop)

    def _kill_pids(self, stop: _Stop, pids: List[int]) -> None:
        for pid in pids:
            stop.pids.add(pid)
            stop.killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def _end_stop(self, stop: _Stop, left: List[int]) -> None:
        self._stop = None
        if stop.timer is not None:
            stop.timer.cancel()
        stopped = Stopped(time.monotonic() - stop.began, sorted(stop.pids), len(stop.killed), left)
        for callback in stop.callbacks:
            callback(stopped)


def _children_reader() -> Callable[[int], List[int]]:
    """How to list a process's children here: the kernel's own list, else one pass over /proc."""
    if os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return _children_from_kernel
    by_parent: Dict[int, List[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        names = []
    for name in names:
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    # the command's name stands in parentheses and may hold anything
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            by_parent.setdefault(parent, []).append(int(name))
    return lambda pid: by_parent.get(pid, [])


def _children_from_kernel(pid: int) -> List[int]:
    """Children of every thread of a process (each thread that forks has its own list)."""
    found: List[int] = []
    try:
        tasks = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return found
    for task in tasks:
        try:
            with open("/proc/%d/task/%s/children" % (pid, task), "rb") as file:
                found.extend(int(child) for child in file.read().split())
        except OSError:
            continue
    return found


def _become_subreaper() -> Optional[str]:
    if os.getpid() == 1:
        return None
    sentence = "a process that leaves the command's group cannot be stopped here (%s)"
    if not sys.platform.startswith("linux"):
        return sentence % "only Linux has child subreapers"
    try:
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            return sentence % os.strerror(ctypes.get_errno())
    except (ImportError, OSError, AttributeError) as error:
        return sentence % error
    return None


def exit_status(error: OSError) -> Tuple[int, str]:
    """Exit code and sentence for a command that could not be executed, as a shell gives them."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return EXIT_NOT_FOUND, "not found"
    return EXIT_NOT_EXECUTABLE, error.strerror or "cannot be executed"
