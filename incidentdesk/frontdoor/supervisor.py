"""Keeps a set of processes running: starts them in order of need, brings back the dead, ends them all.

Everything happens in one thread of its own; the public methods may be called from any other.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from incidentdesk.frontdoor import processes
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.keeper import marked, sweep

BUSY_POLL_SECONDS = 0.02  # while something starts or ends
IDLE_POLL_SECONDS = 0.1
FIRST_BACKOFF_SECONDS = 0.25
LONGEST_BACKOFF_SECONDS = 30.0
HEALTHY_SECONDS = 20.0  # a process that ran this long starts again with the first back-off
SETTLED_SECONDS = 0.3  # longer than a program needs to find that it cannot run
FULL_BYTES = 2**20
LAST_LINES = 12


@dataclass(frozen=True)
class Service:
    """One process, or with `once` one step that has to end well.

    `ready` says whether it does its work yet (polled; None: when it has run for SETTLED_SECONDS). `after`
    names what has to be ready first. `prepare` runs before every start. `command` is asked at every start too.
    """

    name: str
    command: Callable[[], Sequence[str]]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] | None = None
    after: tuple[str, ...] = ()
    once: bool = False
    again_after: tuple[str, ...] = ()
    """Whose return from the dead makes a step necessary again, or a new start of the process."""
    prepare: Callable[[], None] | None = None
    start_seconds: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    run_as: Callable[[], str] = lambda: "same"
    full_environment: bool = False
    """Whether `env` is all of the environment, not additions to ours."""


class State(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    BACKING_OFF = "backing off"
    HALTED = "halted"


@dataclass
class _Run:
    service: Service
    state: State = State.WAITING
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    ready_at: float = 0.0
    due_at: float = 0.0
    deaths: int = 0
    was_ready: bool = False
    is_renewed: bool = False
    """Whether it was told to end so that it starts again with what has changed."""


class Supervisor:
    """Runs services until `stop`. `say` takes the progress lines."""

    def __init__(
        self, services: Sequence[Service], *, logs: Path, say: Callable[[str], None] = print
    ) -> None:
        self.logs = logs
        self.mark = uuid.uuid4().hex
        self._say = say
        self._runs = {service.name: _Run(service) for service in services}
        self._changed = threading.Condition()
        self._stopping = False
        self._hurry = False
        self._failure: FrontDoorError | None = None
        self._thread: threading.Thread | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        unknown = {name for run in self._runs.values() for name in run.service.after} - set(self._runs)
        if unknown:
            raise ValueError(f"services wait for unknown ones: {sorted(unknown)}")

    # -- for callers -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and return when all is ready; FrontDoorError, with all ended again, otherwise."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self._keeper = self._start_keeper()
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._stopping or self._all_up())
        if self._failure:
            self.stop()
            raise self._failure

    def stop(self) -> None:
        """End everything, the last started first; afterwards no process of ours is left. May be called twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._keeper is not None:
            sweep(self.mark, 0.0)
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper = None

    def hurry(self) -> None:
        """Kill instead of asking, from now on."""
        self._hurry = True

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the end, at most so long; whether `stop` was called. FrontDoorError when it ended by itself."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._failure, timeout_seconds)
        if self._failure:
            raise self._failure
        return self._stopping

    def pid(self, name: str) -> int:
        """Process id of a running service; FrontDoorError when it does not run."""
        process = self._runs[name].process
        if process is None or process.poll() is not None:
            raise FrontDoorError(f"{name} is not running.")
        return process.pid

    def state(self, name: str) -> State:
        return self._runs[name].state

    def deaths(self, name: str) -> int:
        """How often the service died unasked since it was last healthy."""
        return self._runs[name].deaths

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal the service's own process (not its children), as a fault would; its id."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def wait_ready(self, name: str, *, other_than: int = 0, timeout_seconds: float = 60.0) -> int:
        """Wait until a service is ready, with another process id than the given one; the new id."""
        run = self._runs[name]

        def is_back() -> bool:
            return run.state is State.READY and run.process is not None and run.process.pid != other_than

        with self._changed:
            if not self._changed.wait_for(is_back, timeout_seconds):
                raise FrontDoorError(
                    f"{name} was not ready after {timeout_seconds:.0f} s (log: {self.log(name)})."
                )
        return self.pid(name)

    def halt(self, name: str) -> None:
        """End one service and keep it down until `resume`."""
        with self._changed:
            run = self._runs[name]
            run.state = State.HALTED
            process, run.process = run.process, None
        if process is not None:
            self._end(run.service, process)

    def resume(self, name: str) -> None:
        """Start a halted service again; returns at once."""
        with self._changed:
            run = self._runs[name]
            if run.state is State.HALTED:
                run.state, run.due_at, run.deaths = State.BACKING_OFF, 0.0, 0
            self._changed.notify_all()

    def log(self, name: str) -> Path:
        """Path of the service's log; it is appended to by every start."""
        return self.logs / f"{name}.log"

    # -- the thread ------------------------------------------------------------------------------

    def _loop(self) -> None:
        # A broad except, since a supervisor that dies of its own error would leave processes behind.
        try:
            while True:
                with self._changed:
                    if self._stopping:
                        break
                    before = [(run.state, run.process) for run in self._runs.values()]
                    for run in self._runs.values():
                        self._advance(run)
                    if before != [(run.state, run.process) for run in self._runs.values()]:
                        self._changed.notify_all()
                    starting = any(
                        run.state in (State.WAITING, State.STARTING) for run in self._runs.values()
                    )
                    self._changed.wait(BUSY_POLL_SECONDS if starting else IDLE_POLL_SECONDS)
                    if self._failure:
                        break
        except FrontDoorError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - shown, and everything is ended
            self._failure = FrontDoorError(f"The supervisor failed: {error!r}.")
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            with self._changed:
                self._changed.notify_all()
            self._end_all()

    def _advance(self, run: _Run) -> None:
        now = time.monotonic()
        match run.state:
            case State.WAITING:
                if all(self._runs[name].state in (State.READY, State.DONE) for name in run.service.after):
                    self._start(run)
            case State.BACKING_OFF:
                if now >= run.due_at:
                    self._start(run)
            case State.STARTING:
                self._advance_starting(run, now)
            case State.READY:
                assert run.process is not None
                if run.process.poll() is not None:
                    self._bury(run, now)

    def _advance_starting(self, run: _Run, now: float) -> None:
        assert run.process is not None
        status = run.process.poll()
        if run.service.once:
            if status == 0:
                self._mark_up(run, State.DONE, now)
            elif status is not None:
                self._fail(run, f"{run.service.name} failed ({ending(status)})")
        elif status is not None:
            if run.was_ready:
                self._bury(run, now)
            else:
                self._fail(run, f"{run.service.name} did not start ({ending(status)})")
        elif run.service.ready() if run.service.ready else now - run.started_at > SETTLED_SECONDS:
            self._mark_up(run, State.READY, now)
        if run.state is State.STARTING and now - run.started_at > run.service.start_seconds:
            if run.was_ready and not run.service.once:
                self._say(
                    f"{run.service.name} was not ready after {run.service.start_seconds:.0f} s; it is ended"
                )
                self._end(run.service, run.process)
            else:
                self._fail(run, f"{run.service.name} was not ready after {run.service.start_seconds:.0f} s")

    def _start(self, run: _Run) -> None:
        service = run.service
        run.started_at = time.monotonic()
        if service.prepare is not None:
            service.prepare()
        env = {} if service.full_environment else dict(os.environ)
        env |= dict(service.env) | {"INCIDENTDESK_STACK": self.mark}
        with self.log(service.name).open("ab") as log:
            run.process = processes.spawn(
                service.command(),
                env=env,
                output=log,
                run_as=service.run_as(),
                parent_death_signal=service.stop_signal,
            )
        run.state = State.STARTING

    def _mark_up(self, run: _Run, state: State, now: float) -> None:
        run.state, run.ready_at = state, now
        seconds = now - run.started_at
        if run.was_ready:
            self._say(
                f"{run.service.name} {'is done' if run.service.once else 'runs'} again after {seconds:.1f} s"
            )
            for other in self._runs.values():
                if run.service.name not in other.service.again_after:
                    continue
                if other.state is State.DONE:
                    other.state = State.WAITING
                elif other.state is State.READY and other.process is not None:
                    other.is_renewed = True
                    other.process.send_signal(other.service.stop_signal)
        else:
            self._say(f"  {run.service.name:<14}{seconds:5.1f} s")
        run.was_ready = True

    def _bury(self, run: _Run, now: float) -> None:
        """A process died unasked: clear what it left and set the time of the next start."""
        assert run.process is not None
        status = run.process.returncode
        processes.signal_group(run.process, signal.SIGKILL)
        if run.is_renewed:
            run.process, run.state, run.due_at, run.is_renewed = None, State.BACKING_OFF, now, False
            return
        if run.state is State.READY and now - run.ready_at >= HEALTHY_SECONDS:
            run.deaths = 0
        wait = min(FIRST_BACKOFF_SECONDS * 2**run.deaths, LONGEST_BACKOFF_SECONDS)
        run.deaths += 1
        run.process, run.state, run.due_at = None, State.BACKING_OFF, now + wait
        full = ": the disk is full" if self._says_disk_full(run) else ""
        self._say(f"{run.service.name} died ({ending(status)}{full}); starting it again in {wait:g} s")

    def _fail(self, run: _Run, what: str) -> None:
        if self._says_disk_full(run):
            self._failure = FrontDoorError(
                f"The disk that holds {self.logs} is full: make room and start again."
            )
            return
        lines = self._last_lines(run)
        for line in lines:
            self._say(f"    {line}")
        self._failure = FrontDoorError(
            f"{what[0].upper()}{what[1:]}; its log is {self.log(run.service.name)}."
        )

    def _last_lines(self, run: _Run) -> list[str]:
        try:
            return self.log(run.service.name).read_text(errors="replace").splitlines()[-LAST_LINES:]
        except OSError:
            return []

    def _says_disk_full(self, run: _Run) -> bool:
        if any("No space left on device" in line for line in self._last_lines(run)):
            return True
        return shutil.disk_usage(self.logs).free < FULL_BYTES  # then the log could not take the reason either

    def _all_up(self) -> bool:
        return all(run.state in (State.READY, State.DONE) for run in self._runs.values())

    # -- ending ----------------------------------------------------------------------------------

    def _end(self, service: Service, process: "subprocess.Popen[bytes]") -> None:
        grace = 0.0 if self._hurry else service.stop_seconds
        first = (
            signal.SIGKILL if self._hurry and service.stop_signal is signal.SIGTERM else service.stop_signal
        )
        processes.end(process, first=first, grace_seconds=max(grace, 2.0))

    def _end_all(self) -> None:
        """End what nobody waits for first, all such at once; then what they needed, and so on."""
        remaining = dict(self._runs)
        while remaining:
            needed = {name for run in remaining.values() for name in run.service.after}
            last = {name: run for name, run in remaining.items() if name not in needed} or remaining
            threads = []
            for name, run in last.items():
                remaining.pop(name, None)
                if run.process is not None:
                    threads.append(threading.Thread(target=self._end, args=(run.service, run.process)))
                    threads[-1].start()
            for thread in threads:
                thread.join()

    def _start_keeper(self) -> "subprocess.Popen[bytes]":
        script = Path(__file__).with_name("keeper.py")
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def members(self) -> list[int]:
        """List the ids of all processes that belong to this supervisor, also of those they started."""
        with contextlib.suppress(OSError):
            return list(marked(self.mark))
        return []


def ending(status: int) -> str:
    """Say how a process ended, from Popen's return code."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"
    return f"exit code {status}"
