"""The commands of `./desk`; each is imported only when it is asked for."""

import os
import sys

from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT

DISK_FULL = 28  # ENOSPC


def run_module(*words: str) -> int:
    """Become `python -m words…` in the checkout."""
    os.chdir(CHECKOUT)
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)  # whoever runs chooses the settings
    os.execv(sys.executable, [sys.executable, "-m", *words])


def test(arguments: list[str]) -> int:
    """Run pytest: its own last line and exit code. `--long` and everything else is pytest's to read."""
    from incidentdesk.frontdoor import chromium

    if not {"--collect-only", "--co", "--help", "--version"} & set(arguments):
        chromium.ensure()
    return run_module("pytest", *arguments)


def check(arguments: list[str]) -> int:
    from incidentdesk.frontdoor.check import main

    return main(arguments)


def demo(arguments: list[str]) -> int:
    from incidentdesk.frontdoor.stack import run_demo

    return run_demo(arguments)


def up(arguments: list[str]) -> int:
    from incidentdesk.frontdoor.stack import run_up

    return run_up(arguments)


def drill(arguments: list[str]) -> int:
    return run_module("incidentdesk.drills", *arguments)


def bench(arguments: list[str]) -> int:
    return run_module("incidentdesk.bench", *arguments)


def manage(arguments: list[str]) -> int:
    from incidentdesk.frontdoor.manage import run_manage

    run_manage(arguments)


COMMANDS = {
    "demo": demo,
    "up": up,
    "manage": manage,
    "test": test,
    "check": check,
    "drill": drill,
    "bench": bench,
}


def main() -> int:
    name, arguments = sys.argv[1], sys.argv[2:]
    return COMMANDS[name](arguments)  # bootstrap.py has refused what is not among them


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FrontDoorError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno != DISK_FULL:
            raise
        print(f"The disk that holds {CHECKOUT} is full: make room and start again.", file=sys.stderr)
        sys.exit(1)
