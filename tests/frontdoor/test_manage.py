"""`./desk manage`: which desk it talks to, and what it says where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from django.core.exceptions import ImproperlyConfigured

from incidentdesk import env
from incidentdesk.frontdoor import manage, stack
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT, ENVIRONMENT_NOTE, take_lock
from incidentdesk.frontdoor.stack import Stack


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stack, "STATE", tmp_path / "state")
    for name in ("DATABASE_URL", "REDIS_URL", "INCIDENTDESK_STATE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


def note(root: Path, database: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / ENVIRONMENT_NOTE).write_text(json.dumps({"DATABASE_URL": database}))


def running(root: Path) -> IO[str]:
    """The lock that a desk holds while it runs in `root`."""
    lock = take_lock(root / "desk.lock")
    assert lock is not None
    return lock


def test_nothing_runs_gives_no_variables(state: Path) -> None:
    assert manage.environment_of_running_desk() == {}
    note(state, "postgresql:///of-a-desk-that-has-ended")
    assert manage.environment_of_running_desk() == {}


def test_running_desk_is_found(state: Path) -> None:
    note(state, "postgresql:///demo")
    note(state / "up", "postgresql:///ended")
    with running(state):
        assert manage.environment_of_running_desk() == {"DATABASE_URL": "postgresql:///demo"}


def test_two_desks_need_a_name(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note(state, "postgresql:///demo")
    note(state / "up", "postgresql:///up")
    with running(state), running(state / "up"):
        with pytest.raises(FrontDoorError, match=rf"say which with INCIDENTDESK_STATE={state} or "):
            manage.environment_of_running_desk()
        monkeypatch.setenv("INCIDENTDESK_STATE", str(state / "up"))
        assert manage.environment_of_running_desk() == {"DATABASE_URL": "postgresql:///up"}
    with pytest.raises(FrontDoorError, match=rf"^No desk runs in {state / 'up'}, which INCIDENTDESK_STATE"):
        manage.environment_of_running_desk()


def test_database_of_the_environment_goes_first(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://them@there/theirs")
    note(state, "postgresql:///demo")
    with running(state):
        assert manage.environment_of_running_desk() == {}


def test_starting_desk_notes_its_variables_for_its_owner_only(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INCIDENTDESK_RULES", "/etc/site.toml")
    monkeypatch.setenv("INCIDENTDESK_PROCESS", "watch")
    desk = Stack(state, profile="drill")
    monkeypatch.setattr(desk.supervisor, "start", lambda: None)
    with desk:
        found = manage.environment_of_running_desk()
        assert found == desk.env | {"INCIDENTDESK_RULES": "/etc/site.toml"}
        assert (state / ENVIRONMENT_NOTE).stat().st_mode & 0o077 == 0
    assert manage.environment_of_running_desk() == {}


@pytest.mark.parametrize(
    ("variables", "typed"), [({}, "manage.py"), ({"INCIDENTDESK_TYPED": "./desk manage"}, "./desk manage")]
)
def test_unknown_command_names_what_was_typed(variables: dict[str, str], typed: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(CHECKOUT / "manage.py"), "bogus"],
        env=os.environ | variables | {"DATABASE_URL": "postgresql:///none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr == f"Unknown command: 'bogus'\nType '{typed} help' for usage.\n"


@pytest.mark.parametrize(
    ("variables", "words", "says"),
    [
        ({}, ["guards"], "DATABASE_URL is not set. Beside a desk that runs here"),
        (
            {"DATABASE_URL": "postgresql://x@127.0.0.1:1/x"},
            ["replay"],
            "The database of DATABASE_URL cannot be asked: connection failed: ",
        ),
        ({}, ["guards", "--cluster", b"\xff"], "'\\udcff' is not UTF-8"),
    ],
    ids=["no database", "no server", "no UTF-8"],
)
def test_command_that_cannot_begin_says_why_and_ends_with_2(
    variables: dict[str, str], words: list[str | bytes], says: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    ran = subprocess.run(
        [sys.executable, str(CHECKOUT / "manage.py"), *words],
        env=environment | {"DJANGO_SETTINGS_MODULE": "incidentdesk.settings.dev"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(says), ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_url_of_a_database_that_is_none_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://desk:se/cret@host/desk")
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL is no URL of a database: give ") as caught:
        env.database()
    assert "'se'" not in str(caught.value)


def test_reader_that_leaves_ends_a_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [sys.executable, str(CHECKOUT / "manage.py"), "explore", "--mutants"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_closed_streams_are_no_fault() -> None:
    ran = subprocess.run(
        ["sh", "-c", 'exec "$0" "$1" explore --mutants <&- >&-', sys.executable, str(CHECKOUT / "manage.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
