"""`./desk manage`: which desk it talks to, and what it says where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

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


def test_command_without_database_says_what_to_do() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    ran = subprocess.run(
        [sys.executable, str(CHECKOUT / "manage.py"), "guards"],
        env=environment | {"DJANGO_SETTINGS_MODULE": "incidentdesk.settings.dev"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("DATABASE_URL is not set. Beside a desk that runs here"), ran.stderr
    assert "Traceback" not in ran.stderr
