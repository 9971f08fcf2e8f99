"""The quick set: is this machine still sound? Everything at once, each part under its own deadline.

Results are facts for the desk, which decides. "could_not_run" is never evidence against hardware.
``INCIDENTDESK_CHECK_FAIL`` makes checks fail for exercises: ``gpu``, ``gpu:detail,io`` or ``@FILE``
with such a text, read each time (absent or empty file: nothing fails).
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
import threading
import time
from typing import Callable, Dict, List, Optional, Protocol, Set, Tuple

from agent import wire
from agent.environment import Runner, find_program, read_text

DEADLINE_SECONDS = 0.95  # "under 1 s", DOMAIN 6
HELPER_SECONDS = 0.85
MIN_FREE_BYTES = 16 * 1024 * 1024
KERNEL_LINES_KEPT = 20

PASS = "pass"
FAIL = "fail"
TIMEOUT = "timeout"
COULD_NOT_RUN = "could_not_run"

Outcome = Tuple[str, str]  # result, detail

# Kernel messages that mean a sick device. What the kernel did to a process (OOM) is told, not blamed.
_DEVICE_ERROR = re.compile(
    r"NVRM: Xid|\bSXid\b|Machine check|\[Hardware Error\]|EDAC .*\bUE\b|Uncorrected error|"
    r"amdgpu.*(?:uncorrectable|GPU reset|ring \S+ timeout)|mlx5.*(?:fatal|health compromised)|"
    r"nvme.*(?:controller is down|I/O \d+.* timeout)|EXT4-fs error|XFS.*(?:corruption|Shutting down)|"
    r"Buffer I/O error|blk_update_request: I/O error",
    re.IGNORECASE,
)
_KILLED_FOR_MEMORY = re.compile(r"Out of memory: Killed process|Memory cgroup out of memory", re.IGNORECASE)

# A program of its own, because a hung mount never lets go of the thread that touched it. Reads lists of
# directories, prints one JSON line for each, memory first, so that what answered is known if a later one
# hangs, then an empty line.
MOUNT_PROBE = r"""
import json, os, sys, time
def probe(path):
    found = {"path": path}
    began = time.monotonic()
    try:
        state = os.statvfs(path)
        found.update(free=state.f_bavail * state.f_frsize, files=state.f_files, files_free=state.f_favail)
        name = os.path.join(path, ".incidentdesk-probe-%s-%d" % (os.uname().nodename, os.getpid()))
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, b"probe")
            os.lseek(handle, 0, 0)
            if os.read(handle, 5) != b"probe":
                found["wrong"] = True
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        found.update(errno=error.errno, error=error.strerror)
    found["seconds"] = round(time.monotonic() - began, 4)
    print(json.dumps(found), flush=True)
for line in iter(sys.stdin.readline, ""):
    for path in json.loads(line):
        probe(path)
    print(flush=True)
"""


MOUNT_PROBE_ARGV = [sys.executable, "-I", "-S", "-c", MOUNT_PROBE]


class Asked(Protocol):
    """A helper that answers a line with lines; whether in full is told first."""

    def ask(self, question: str, timeout_seconds: float) -> Tuple[bool, List[str]]: ...


class KernelLog:
    """Device errors in the kernel's log since the agent started; opened once, read without waiting."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._fd = -1
        self._lock = threading.Lock()
        self._errors: List[str] = []
        self._kills: List[str] = []
        self._told = 0
        self.problem: Optional[str] = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.problem = "%s: %s" % (path, error.strerror)

    def look(self, keep: bool = False) -> Tuple[List[str], List[str]]:
        """Device errors since the last look (``keep``: and do not count this as one), memory kills so far."""
        with self._lock:
            self._read()
            new = self._errors[self._told :]
            if not keep:
                self._told = len(self._errors)
            return new[-KERNEL_LINES_KEPT:], self._kills[-KERNEL_LINES_KEPT:]

    def _read(self) -> None:
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before we read them; the next read goes on
            except OSError as error:
                self.problem = str(error.strerror)
                return
            if not record:
                return
            text = record.partition(b";")[2].split(b"\n", 1)[0].decode("utf-8", "replace")
            if _DEVICE_ERROR.search(text):
                self._errors.append(text[:500])
            elif _KILLED_FOR_MEMORY.search(text):
                self._kills.append(text[:500])


class QuickSet:
    """The quick checks of one container. What was there at the first look must be there later."""

    def __init__(
        self,
        run: Runner,
        mounts: Asked,
        env: Dict[str, str],
        kernel_log: KernelLog,
        checkpoint_dir: Optional[str],
    ) -> None:
        """``mounts`` runs ``MOUNT_PROBE_ARGV`` and answers questions, as runner.Helper does."""
        self._mounts = mounts
        self._run = run
        self._env = env
        self._kernel_log = kernel_log
        self._checkpoint_dir = checkpoint_dir
        self._devices: Optional[int] = None
        self._active_ports: Optional[Set[str]] = None

    def kernel_lines(self) -> Tuple[List[str], List[str]]:
        """Device errors not yet told by a check, and memory kills, both from the kernel's log."""
        return self._kernel_log.look(keep=True)

    def results(self, keep: bool = False) -> List[wire.CheckResult]:
        """Run all; takes at most about a second. Call it from a thread of its own.

        Args:
            keep: A person looks: what counts as new for the desk stays new.
        """
        mounts = _Once(self._probe_mounts)
        checks: List[Tuple[str, Callable[[], Outcome]]] = [
            ("gpu", self._gpu),
            ("runtime", lambda: self._kernel(keep)),
            ("rdma", self._rdma),
            ("io", lambda: self._io(mounts)),
            ("disk", lambda: self._disk(mounts)),
        ]
        made_to_fail = _made_to_fail(self._env.get("INCIDENTDESK_CHECK_FAIL", ""))
        began = time.monotonic()
        found: Dict[str, wire.CheckResult] = {}
        threads = []
        for name, check in checks:
            thread = threading.Thread(
                target=_run_check, args=(name, check, found, made_to_fail.get(name)), daemon=True
            )
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join(max(0.0, DEADLINE_SECONDS - (time.monotonic() - began)))
        late: Outcome = (TIMEOUT, "no answer within %.2f s" % DEADLINE_SECONDS)
        return [found.get(name) or _result(name, late, began) for name, _check in checks]

    def _gpu(self) -> Outcome:
        paths = glob.glob("/dev/nvidia[0-9]*")
        kind = "NVIDIA device"
        if not paths:
            paths = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/accel/accel[0-9]*")
            kind = "accelerator"
        if not paths and os.path.exists("/dev/kfd"):
            paths, kind = glob.glob("/dev/dri/renderD*"), "AMD device"
        count = len(paths)
        if kind == "NVIDIA device" and paths:
            smi = find_program("nvidia-smi", self._env)
            if smi is not None:
                code, text = self._run([smi, "-L"], HELPER_SECONDS)
                if code is None:
                    return TIMEOUT, "nvidia-smi -L did not answer within %.2f s" % HELPER_SECONDS
                if code != 0:
                    return FAIL, "nvidia-smi -L ended with %d: %s" % (code, text.strip()[:300])
                count = sum(1 for line in text.splitlines() if line.startswith("GPU "))
        if self._devices is None:
            self._devices = count
        if count < self._devices:
            return FAIL, "%d of %d %ss left" % (count, self._devices, kind)
        if count == 0:
            return COULD_NOT_RUN, "no accelerator on this machine"
        return PASS, "%d %s%s" % (count, kind, "s" if count != 1 else "")

    def _kernel(self, keep: bool) -> Outcome:
        errors, kills = self._kernel_log.look(keep)
        if errors:
            return FAIL, "kernel log: " + " | ".join(errors)[:2000]
        if self._kernel_log.problem is not None:
            return COULD_NOT_RUN, "kernel log not readable: %s" % self._kernel_log.problem
        if kills:
            return PASS, "no new device error in the kernel log; memory kill: %s" % kills[-1]
        return PASS, "no new device error in the kernel log"

    def _rdma(self) -> Outcome:
        states = {}
        for path in sorted(glob.glob("/sys/class/infiniband/*/ports/*/state")):
            parts = path.split("/")
            states["%s/%s" % (parts[4], parts[6])] = read_text(path).strip()
        if not states:
            return COULD_NOT_RUN, "no RDMA device on this machine"
        active = {port for port, state in states.items() if state.endswith("ACTIVE")}
        if self._active_ports is None:
            self._active_ports = active
        lost = sorted(self._active_ports - active)
        if lost:
            return FAIL, "link down: " + ", ".join(
                "%s (%s)" % (port, states.get(port, "gone")) for port in lost
            )
        if not active:
            return FAIL, "no link is up: " + ", ".join("%s %s" % item for item in sorted(states.items()))
        return PASS, "%d of %d links up" % (len(active), len(states))

    def _probe_mounts(self) -> Tuple[List[Dict[str, object]], List[str]]:
        """What each directory answered, and those that did not answer in time."""
        paths = ["/dev/shm"] if os.path.isdir("/dev/shm") else []
        if self._checkpoint_dir:
            paths.append(self._checkpoint_dir)
        if not paths:
            return [], []
        is_whole, lines = self._mounts.ask(json.dumps(paths), HELPER_SECONDS)
        answers: List[Dict[str, object]] = []
        for line in lines:
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict) and "path" in answer:
                answers.append(answer)
        answered = {answer["path"] for answer in answers}
        silent = [path for path in paths if path not in answered]
        if silent and is_whole:
            raise OSError(0, "the probe said nothing of %s: %s" % (silent[0], " ".join(lines)[-300:]))
        return answers, silent

    def _io(self, mounts: _Once) -> Outcome:
        answers, silent = mounts.get()
        if silent:
            return TIMEOUT, "no answer from %s within %.2f s" % (silent[0], HELPER_SECONDS)
        failed: List[str] = []
        unknown: List[str] = []
        passed: List[str] = []
        for answer in answers:
            where = "%s (%s s)" % (answer["path"], answer["seconds"])
            if answer.get("wrong"):
                failed.append("%s: read back other bytes than were written" % where)
            elif "error" in answer:
                text = "%s: %s" % (where, answer["error"])
                (unknown if answer.get("errno") in (2, 13, 1) else failed).append(
                    text
                )  # ENOENT, EACCES, EPERM
            else:
                passed.append(where)
        if failed:
            return FAIL, "; ".join(failed)
        if unknown:
            return COULD_NOT_RUN, "; ".join(unknown)
        if not passed:
            return COULD_NOT_RUN, "no checkpoint directory told, no /dev/shm"
        return PASS, "written, read and removed: " + ", ".join(passed)

    def _disk(self, mounts: _Once) -> Outcome:
        answers, silent = mounts.get()
        if silent:
            return TIMEOUT, "no answer from %s within %.2f s" % (silent[0], HELPER_SECONDS)
        failed, passed = [], []
        for answer in answers:
            free = answer.get("free")
            if not isinstance(free, int):
                continue
            text = "%s: %d MiB free" % (answer["path"], free // (1024 * 1024))
            if free < MIN_FREE_BYTES:
                failed.append(text)
            elif answer.get("files") and answer.get("files_free") == 0:
                failed.append("%s: no inode free" % answer["path"])
            else:
                passed.append(text)
        if failed:
            return FAIL, "; ".join(failed)
        if not passed:
            return COULD_NOT_RUN, "no directory to look at"
        return PASS, "; ".join(passed)


class _Once:
    """One probe whose answer two checks share."""

    def __init__(self, probe: Callable[[], Tuple[List[Dict[str, object]], List[str]]]) -> None:
        self._probe = probe
        self._lock = threading.Lock()
        self._answer: Optional[Tuple[List[Dict[str, object]], List[str]]] = None

    def get(self) -> Tuple[List[Dict[str, object]], List[str]]:
        with self._lock:
            if self._answer is None:
                self._answer = self._probe()
            return self._answer


def _run_check(
    name: str,
    check: Callable[[], Outcome],
    found: Dict[str, wire.CheckResult],
    made_to_fail: Optional[str],
) -> None:
    began = time.monotonic()
    try:
        outcome = check() if made_to_fail is None else (FAIL, made_to_fail)
    except OSError as error:
        outcome = (COULD_NOT_RUN, str(error.strerror or error))
    found[name] = _result(name, outcome, began)


def _result(name: str, outcome: Outcome, began: float) -> wire.CheckResult:
    return {
        "check": name,
        "result": outcome[0],
        "seconds": round(time.monotonic() - began, 4),
        "detail": outcome[1],
    }


def _made_to_fail(text: str) -> Dict[str, str]:
    """Checks that an exercise makes fail, with their details."""
    if text.startswith("@"):
        text = read_text(text[1:])
    found: Dict[str, str] = {}
    for part in text.split(","):
        name, _colon, detail = part.strip().partition(":")
        if name:
            found[name] = detail or "made to fail by INCIDENTDESK_CHECK_FAIL"
    return found
