"""`./desk check`: everything that can be said about the source without running the tests."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from incidentdesk.frontdoor import imports, links, wording
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT

PYTHON = sys.executable
OLD_PYTHON = "python3.8"

Check = Callable[[], tuple[bool, str]]
"""A check answers whether all is well, and what to read when it is not."""


def environment() -> dict[str, str]:
    """Give an environment in which Django's settings load; no check needs a database."""
    given = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    given.setdefault("DATABASE_URL", "postgresql://nobody@/none?host=/nonexistent")
    return given | {
        "DJANGO_SETTINGS_MODULE": "incidentdesk.settings.test",
        "PYTHONPATH": str(CHECKOUT),
        # makemigrations looks for the applied ones too, and says that there is no database
        "PYTHONWARNINGS": "ignore::RuntimeWarning",
    }


def command(*words: str) -> Check:
    """Make a check of a program's exit code."""

    def run() -> tuple[bool, str]:
        answer = subprocess.run(
            words,
            cwd=CHECKOUT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return answer.returncode == 0, answer.stdout

    return run


def findings(find: Callable[[], Iterable[str]]) -> Check:
    """Make a check of a list that has to be empty."""

    def run() -> tuple[bool, str]:
        found = list(find())
        return not found, "\n".join(found)

    return run


def import_faults() -> list[str]:
    graph = imports.read_graph(CHECKOUT)
    circles = [
        f"these import each other in a circle: {', '.join(group)}"
        for group in imports.cycles(imports.read_graph(CHECKOUT, for_types=False))
    ]
    return [*imports.wrong_directions(graph), *circles, *imports.core_impurities(CHECKOUT, graph)]


def agent_faults() -> list[str]:
    """List what Python 3.8 would not take, by the source, and by such a Python itself where there is one."""
    found = list(imports.agent_faults(CHECKOUT, imports.read_graph(CHECKOUT)))
    if old := find_old_python():
        modules = sorted(imports.module_name(path, CHECKOUT) for path in (CHECKOUT / "agent").rglob("*.py"))
        program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
        words = [old, "-B", "-S", "-c", program, *(name for name in modules if not name.endswith("__main__"))]
        answer = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            found.append(f"{old} cannot import the agent:\n{answer.stderr}")
    return found


def find_old_python() -> str | None:
    """Find a Python 3.8 that runs, on PATH or in pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in (OLD_PYTHON, *map(str, sorted(pyenv.glob(f"versions/3.8.*/bin/{OLD_PYTHON}")))):
        try:
            if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
                return candidate
        except OSError:
            continue
    return None


# The longest first, so that it runs beside the others.
CHECKS: dict[str, Check] = {
    "types": command(PYTHON, "-m", "mypy"),
    "migrations": command(PYTHON, "manage.py", "makemigrations", "--check", "--dry-run"),
    "django": command(PYTHON, "manage.py", "check", "--fail-level", "WARNING"),
    "templates": command(PYTHON, "-m", "incidentdesk.frontdoor.templates"),
    "template style": command(PYTHON, "-m", "djlint", "templates", "--lint", "--quiet"),
    "format": command(PYTHON, "-m", "ruff", "format", "--check", "--quiet", "--diff", "."),
    "lint": command(PYTHON, "-m", "ruff", "check", "--quiet", "."),
    "imports": findings(import_faults),
    "agent": findings(agent_faults),
    "docs links": findings(lambda: links.broken_links(CHECKOUT)),
    "wording": findings(lambda: wording.faults(CHECKOUT)),
}


def main(arguments: list[str]) -> int:
    """Run the named checks, or all; one line each, the output of those that fail. Exit code 1 if any does."""
    parser = argparse.ArgumentParser(prog="./desk check")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(CHECKS)}")
    names = parser.parse_args(arguments).names or list(CHECKS)
    if unknown := [name for name in names if name not in CHECKS]:
        raise FrontDoorError(f"There is no check `{unknown[0]}`; there are: {', '.join(CHECKS)}.")

    def timed(name: str) -> tuple[str, bool, str, float]:
        begun = time.monotonic()
        well, output = CHECKS[name]()
        return name, well, output, time.monotonic() - begun

    failed = []
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done in as_completed([pool.submit(timed, name) for name in names]):
            name, well, output, seconds = done.result()
            print(f"{'ok    ' if well else 'FAILED'}  {name:<16}{seconds:6.1f} s", flush=True)
            if not well:
                failed.append(name)
                print("\n".join(f"    {line}" for line in output.strip().splitlines()), flush=True)
    if failed:
        print(f"{len(failed)} of {len(names)} checks failed: {', '.join(failed)}.")
    return 1 if failed else 0
