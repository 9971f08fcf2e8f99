"""The whole desk as processes on one machine: for `./desk demo`, `./desk up`, drills and browser tests.

stack = Stack(directory, profile="drill")
stack.start()
stack.kill("worker")
stack.stop()
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Self

from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT, ENVIRONMENT_NOTE, make_private, take_lock
from incidentdesk.frontdoor.probes import InBackground, LogSays, answers_http, free_port, refuse_used_port
from incidentdesk.frontdoor.servers import EmbeddedServers
from incidentdesk.frontdoor.supervisor import Service, Supervisor

STATE = CHECKOUT / ".desk"
DEFAULT_PORT = 8080
LAST_PORT = 2**16 - 1
NEEDED_BYTES = 300 * 2**20  # a fresh database with its log takes 80 MB
PYTHON = sys.executable
# The demo's jobs fill its cluster of four nodes with eight GPUs each; they train for hours.
DEMO_JOBS = (
    ("training/llama-8b", "--workers 3 --gpus 8 --steps 100000 --step-seconds 0.5 --checkpoint-every 20"),
    ("training/vision-2b", "--workers 2 --gpus 4 --steps 100000 --step-seconds 1 --checkpoint-every 10"),
)


@dataclass(frozen=True)
class Profile:
    """What differs between the uses of a stack."""

    timings: str
    has_cluster: bool
    """Whether a simulated cluster is part of it."""
    durable: bool
    cluster_timings: str = "short"
    has_jobs: bool = False
    """Whether training jobs are submitted once all is up."""


PROFILES = {
    "demo": Profile(timings="demo", has_cluster=True, durable=True, has_jobs=True),
    "drill": Profile(timings="short", has_cluster=True, durable=False),
    "drill-long": Profile(timings="production", has_cluster=True, durable=True, cluster_timings="real"),
    "up": Profile(timings="production", has_cluster=False, durable=True),
}


class Stack:
    """Database, Valkey, simulated cluster, web, workers, beat and watch under one supervisor.

    Args:
        root: Directory of everything it writes: data, logs, the cluster's files.
        profile: Name of a row of PROFILES.
        port: Loopback port of the web process; 0 takes a free one.
        env: Further variables for every process (fault points, single timings).
        cluster_options: Further words for `python -m sim serve`.
        say: Takes the progress lines.

    FrontDoorError, in one sentence, when it cannot start.
    """

    def __init__(
        self,
        root: Path,
        *,
        profile: str,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        cluster_options: Sequence[str] = (),
        use_environment: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.root = root.absolute()
        self.profile = PROFILES[profile]
        self.port = port or free_port()
        self.logs = self.root / "logs"
        self.cluster = self.root / "cluster"
        self._cluster_options = list(cluster_options)
        self._extra = dict(env or {})
        self._lock: IO[str] | None = None
        self.servers = EmbeddedServers(
            self.root, durable=self.profile.durable, use_environment=use_environment
        )
        self.supervisor = Supervisor(self._services(), logs=self.logs, say=say)

    # -- what callers ask ------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def urls(self) -> dict[str, str]:
        """URLs of `web`, `database` and `redis`."""
        return {"web": self.url, "database": self.servers.database_url, "redis": self.servers.redis_url}

    @property
    def env(self) -> dict[str, str]:
        """The variables that every process of the stack gets beyond the caller's own."""
        values = {
            **self.servers.environment(),
            "DJANGO_SETTINGS_MODULE": "incidentdesk.settings.dev",
            "INCIDENTDESK_STATE": str(self.root),
            "INCIDENTDESK_TIMINGS": self.profile.timings,
            "INCIDENTDESK_PUBLIC_URL": self.url,
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONUNBUFFERED": "1",
        }
        if self.profile.has_cluster:
            values["INCIDENTDESK_KUBECONFIG"] = str(self.cluster / "kubeconfig")
            # The pods reach the desk by a loopback address each. We listen on loopback only, and a page that
            # got here under a name of its own would have no cookie of ours.
            values["ALLOWED_HOSTS"] = "*"
            values["INCIDENTDESK_SIM_ENDPOINT"] = str(self.cluster / "endpoint.json")
        return values | self._extra

    @property
    def greeting(self) -> str:
        """What the set-up said to a person: the logins."""
        path = self.root / "greeting.txt"
        return path.read_text() if path.exists() else ""

    def forget_greeting(self) -> None:
        """Remove what the set-up said."""
        (self.root / "greeting.txt").unlink(missing_ok=True)

    def start(self) -> None:
        """Start everything and wait until it works; FrontDoorError, with all ended again, otherwise."""
        make_private(self.root)
        self._lock = take_lock(self.root / "desk.lock")
        if self._lock is None:
            raise FrontDoorError(f"A desk runs in {self.root} already; ./desk clean ends it.")
        try:
            if shutil.disk_usage(self.root).free < NEEDED_BYTES:
                raise FrontDoorError(
                    f"The disk that holds {self.root} has less than 300 MB left: make room first."
                )
            self._note_environment()
            self.supervisor.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything; nothing that it started is left. May be called twice."""
        self.supervisor.stop()
        self.servers.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal one process as a fault would; the supervisor starts it again. Returns the id it had."""
        return self.supervisor.kill(name, number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _note_environment(self) -> None:
        """Write down, for `./desk manage`, what the processes get; the directory is closed to others."""
        ours = {name: value for name, value in os.environ.items() if name.startswith("INCIDENTDESK_")}
        ours.pop("INCIDENTDESK_PROCESS", None)  # names one of the processes, not the desk
        note = self.root / ENVIRONMENT_NOTE
        note.touch(mode=0o600)
        note.write_text(json.dumps(ours | self.env))

    # -- the processes ---------------------------------------------------------------------------

    def _services(self) -> list[Service]:
        """List what runs. What imports for long comes first, so it does so while PostgreSQL is made ready."""
        # What is needed is also ended later: the cluster's end must not be seen as its pods' failure.
        servers = ["cluster"] if self.profile.has_cluster else []
        servers += ["postgres"] if self.servers.postgres else []
        servers += ["valkey"] if self.servers.valkey else []
        after = ("setup", *servers)
        services = [
            self._setup(),
            Service(
                "static",
                lambda: self._python("incidentdesk.frontdoor.static", str(self.root)),
                env=self.env,
                once=True,
            ),
        ]
        if self.profile.has_cluster:
            services += self._cluster_services()
        if self.servers.valkey is not None:
            valkey = self.servers.valkey
            services.append(
                Service(
                    "valkey", valkey.command, prepare=valkey.prepare, ready=valkey.is_ready, stop_seconds=5.0
                )
            )
        if self.servers.postgres is not None:
            postgres = self.servers.postgres
            services.append(
                Service(
                    "postgres",
                    postgres.command,
                    env=postgres.environment(),
                    full_environment=True,
                    prepare=postgres.prepare,
                    ready=postgres.has_database,
                    run_as=lambda: postgres.run_as,
                    stop_signal=signal.SIGINT,  # its fast shutdown
                    stop_seconds=20.0,
                )
            )
        services.append(
            Service(
                "web",
                lambda: self._python(
                    *("granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", str(self.port)),
                    *("--workers", "1", "--no-ws", "incidentdesk.asgi:application"),
                ),
                env=self.env,
                after=("static", *servers),  # it imports while `setup` makes the tables
                ready=InBackground(
                    lambda: answers_http(self.port, "/readyz") and answers_http(self.port, "/")
                ),
            )
        )
        for name, queues, size in (("decide", "decide", 1), ("worker", "act,import,notify", 2)):
            services.append(self._worker(name, queues, size, after=after))
        services.append(
            Service(
                "beat",
                lambda: self._python(
                    *(
                        "celery",
                        "-A",
                        "incidentdesk",
                        "beat",
                        "--pidfile=",
                        "-s",
                        str(self.root / "beat-schedule"),
                    ),
                    *("-l", "INFO"),
                ),
                env=self.env,
                after=after,
            )
        )
        services.append(
            Service(
                "watch",
                lambda: [PYTHON, str(CHECKOUT / "manage.py"), "watch", "--cluster", self.cluster_slug],
                env=self.env,
                after=after,
                again_after=("setup",),  # it knows the cluster's address and keys from its start
            )
        )
        if self.profile.has_jobs:
            services.append(self._training())
        return services

    def _training(self) -> Service:
        """Submit the demo's jobs to the cluster, which forgets them with each start."""
        submits = (f'"$0" -m sim submit --dir "$1" --job {job} --protect {words}' for job, words in DEMO_JOBS)
        script = " && ".join(submits)
        return Service(
            "training",
            lambda: ["sh", "-c", script, PYTHON, str(self.cluster)],
            env=self.env,
            once=True,
            after=("web", "decide", "worker", "watch"),
            again_after=("setup",),
        )

    def _setup(self) -> Service:
        words = ["incidentdesk.frontdoor.setup", "--greeting", str(self.root / "greeting.txt")]
        if self.profile.has_cluster:
            words += ["--endpoint", str(self.cluster / "endpoint.json")]
        else:
            words += ["--cluster", self.cluster_slug]
        return Service(
            "setup",
            lambda: self._python(*words),
            env=self.env,
            once=True,
            # A simulated cluster that starts again is another cluster, which has to be made known.
            again_after=("cluster",),
            start_seconds=120.0,
        )

    def _cluster_services(self) -> list[Service]:
        agent = self.root / "agent.pyz"

        def forget_last() -> None:
            self.cluster.mkdir(parents=True, exist_ok=True)
            for name in ("endpoint.json", "kubeconfig"):
                (self.cluster / name).unlink(missing_ok=True)

        return [
            Service(
                "agent", lambda: self._python("agent.build", "--out", str(agent)), env=self.env, once=True
            ),
            Service(
                "cluster",
                lambda: self._python(
                    *("sim", "serve", "--dir", str(self.cluster), "--port", "0", "--agent", str(agent)),
                    *("--desk-url", self.url, "--timings", self.profile.cluster_timings),
                    *self._cluster_options,
                ),
                env=self.env,
                after=("agent",),
                prepare=forget_last,
                ready=(self.cluster / "endpoint.json").exists,
            ),
        ]

    def _worker(self, name: str, queues: str, size: int, *, after: tuple[str, ...]) -> Service:
        ready = LogSays(self.logs / f"{name}.log", b" ready.")
        return Service(
            name,
            lambda: self._python(
                *(
                    "celery",
                    "-A",
                    "incidentdesk",
                    "worker",
                    "-Q",
                    queues,
                    "-c",
                    str(size),
                    "-n",
                    f"{name}@%h",
                ),
                *("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO"),
            ),
            env=self.env,
            after=after,
            again_after=("setup",),
            prepare=ready.remember_end,
            ready=ready,
        )

    @property
    def cluster_slug(self) -> str:
        """Short name of the cluster that is watched."""
        return "demo" if self.profile.has_cluster else os.environ.get("INCIDENTDESK_CLUSTER", "default")

    @staticmethod
    def _python(*words: str) -> list[str]:
        return [PYTHON, "-m", *words]


# -- the two commands ------------------------------------------------------------------------------


def run_demo(arguments: list[str]) -> int:
    """`./desk demo`: the whole desk with a simulated cluster, until Ctrl-C."""
    port = _port("demo", arguments)
    stack = _open(STATE, profile="demo", port=port)
    return _run(
        stack,
        lambda: (
            f"{stack.greeting.rstrip()}\n"
            "Break something: press a red button on the overview or a job's page, or in another terminal:\n"
            f"  .venv/bin/python -m sim fault kill-process --dir {_shown(stack.cluster)}"
            f" --job {DEMO_JOBS[0][0]} --index 1\n"
            "Ctrl-C ends everything. Incidents, logins, tokens and the cluster's settings stay for the next start;"
            " its cluster and jobs are new."
        ),
    )


def run_up(arguments: list[str]) -> int:
    """`./desk up`: the desk for a cluster of yours, with production's waiting times, until Ctrl-C."""
    port = _port("up", arguments)
    kubeconfig = os.environ.get("INCIDENTDESK_KUBECONFIG", "")
    if not kubeconfig or not Path(kubeconfig).is_file():
        raise FrontDoorError(
            "./desk up needs INCIDENTDESK_KUBECONFIG, the path of your cluster's kubeconfig."
        )
    stack = _open(STATE / "up", profile="up", port=port)

    def goodbye() -> str:
        text = stack.greeting.rstrip()
        stack.forget_greeting()  # it may hold the first person's password
        return f"{text}\nCtrl-C ends everything here, and nothing in your cluster; the data stay for the next start."

    return _run(stack, goodbye)


def _port(command: str, arguments: list[str]) -> tuple[int, bool]:
    """Read --port, else INCIDENTDESK_PORT, else the default; and whether it was asked for."""
    parser = argparse.ArgumentParser(prog=f"./desk {command}")
    parser.add_argument("--port", metavar="N", help=f"loopback port of the pages (default {DEFAULT_PORT})")
    name, text = "--port", parser.parse_args(arguments).port
    if text is None:
        name, text = "INCIDENTDESK_PORT", os.environ.get("INCIDENTDESK_PORT")
        if not text:
            return DEFAULT_PORT, False
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > LAST_PORT:
        raise FrontDoorError(
            f"{name} is {text or 'empty'}: a port is a number from 1 to {LAST_PORT}, and 0 takes a free one."
        )
    return int(text), True


def _open(root: Path, *, profile: str, port: tuple[int, bool]) -> Stack:
    """Make a stack, unless one runs in that directory or the port is taken."""
    note = root / "url.txt"
    root.mkdir(parents=True, exist_ok=True)
    lock = take_lock(root / "desk.lock")
    if lock is None:
        where = note.read_text().strip() if note.exists() else "another port"
        raise FrontDoorError(f"It runs already, at {where}; end that one with Ctrl-C, or with ./desk clean.")
    lock.close()
    number, asked_for = port
    if number:
        refuse_used_port(number, asked_for=asked_for)
    stack = Stack(root, profile=profile, port=number, use_environment=True)
    note.write_text(stack.url + "\n")
    return stack


def _run(stack: Stack, goodbye: Callable[[], str]) -> int:
    """Start, say where it is, wait for Ctrl-C or SIGTERM, end everything."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            stack.supervisor.hurry()
        asked.set()

    def start() -> None:
        try:
            stack.start()
        except FrontDoorError as error:
            failures.append(error)

    failures: list[FrontDoorError] = []
    begun = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask)
    starter = threading.Thread(target=start, daemon=True)
    starter.start()
    while starter.is_alive() and not asked.is_set():
        starter.join(0.1)
    try:
        if not asked.is_set() and not failures:
            print(
                f"IncidentDesk is at {stack.url} after {time.monotonic() - begun:.1f} s.\n{goodbye()}",
                flush=True,
            )
        while not asked.is_set() and not failures and not stack.supervisor.wait(0.2):
            pass
    finally:
        if asked.is_set():
            print("\nEnding everything ...", flush=True)
        stack.stop()
        starter.join()
        stack.stop()  # a start that was under way may have begun after the first
    if failures:
        raise failures[0]
    return 0


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
