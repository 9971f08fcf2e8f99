"""`./desk manage`: the commands of manage.py, with the environment of the desk that runs in this checkout."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from incidentdesk.frontdoor import stack
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT, ENVIRONMENT_NOTE, take_lock


def run_manage(arguments: list[str]) -> NoReturn:
    """Become `manage.py arguments…` in the caller's directory, so that its files are found."""
    environment = os.environ | environment_of_running_desk() | {"INCIDENTDESK_TYPED": "./desk manage"}
    program = str(CHECKOUT / "manage.py")
    os.execve(sys.executable, [sys.executable, program, *arguments], environment)


def environment_of_running_desk() -> dict[str, str]:
    """The variables of the desk that runs here.

    Empty where none runs, or where DATABASE_URL is set and so names the desk. INCIDENTDESK_STATE, the directory
    of a desk, says which where a demo and a desk for a cluster of yours run both; FrontDoorError without it.
    """
    if os.environ.get("DATABASE_URL"):
        return {}
    asked = os.environ.get("INCIDENTDESK_STATE")
    roots = [Path(asked).absolute()] if asked else [stack.STATE, stack.STATE / "up"]
    running = [root for root in roots if _runs_in(root)]
    if len(running) > 1:
        names = " or ".join(f"INCIDENTDESK_STATE={root}" for root in running)
        raise FrontDoorError(f"A demo and a desk for a cluster of yours run both: say which with {names}.")
    if asked and not running:
        raise FrontDoorError(f"No desk runs in {roots[0]}, which INCIDENTDESK_STATE names.")
    if not running:
        return {}
    noted: dict[str, str] = json.loads((running[0] / ENVIRONMENT_NOTE).read_text())
    return noted


def _runs_in(root: Path) -> bool:
    if not (root / ENVIRONMENT_NOTE).exists():
        return False
    lock = take_lock(root / "desk.lock")
    if lock is None:
        return True
    lock.close()
    return False
