"""Drills as tests: one run of the drill program on a stack of its own, judged drill by drill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from incidentdesk.frontdoor.places import CHECKOUT

EVERY_RUN = (
    "kill-process",
    "kill-process-reset",
    "pod-deleted",
    "desk-cut-off",
    "max-retry",
    "finish",
    "crash-points",
    "kill-each",
    "sleeping-executor",
    "sleeping-watch",
)
LONG_RUN = ("random-moments", "crash-matrix")
PRODUCTION_RUN = ("kill-process", "max-retry")


class DrillRun:
    """The drill program with a stack of its own, as a child that runs beside the tests."""

    def __init__(self, names: tuple[str, ...], *options: str) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="incidentdesk-drills-"))
        # The drills have servers of their own: the test run's must not be taken.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
        }
        command = [sys.executable, "-m", "incidentdesk.drills", *names, *options]
        with (self.place / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--json", str(self.place / "results.jsonl")],
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def results(self) -> dict[str, Any]:
        """Wait for its end: results by name, its exit code and the end of what it printed."""
        code = self.process.wait(timeout=3000)
        results = self.place / "results.jsonl"
        lines = results.read_text().splitlines() if results.exists() else []
        found = {row["drill"]: row for row in map(json.loads, lines)}
        printed = (self.place / "output.txt").read_text(errors="replace").splitlines()
        found["_output"] = "\n".join(printed[-60:])
        found["_code"] = code
        return found

    def end(self) -> None:
        """End it with everything that it started, if it still runs, and remove what it wrote."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)


_run = pytest.StashKey[DrillRun]()


def _begin(config: pytest.Config) -> DrillRun:
    if _run not in config.stash:
        config.stash[_run] = DrillRun(EVERY_RUN + (LONG_RUN if config.getoption("--long") else ()))
    return config.stash[_run]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drills mostly wait, so they run beside the other tests and are judged after them."""
    items.sort(key=_needs_drills)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin the drills when some are asked for."""
    config = session.config
    if (
        not config.option.collectonly
        and not hasattr(config, "workerinput")
        and any(map(_needs_drills, session.items))
    ):
        _begin(config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if run := session.config.stash.get(_run, None):
        run.end()


def _needs_drills(item: pytest.Item) -> bool:
    return "drill_results" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def drill_results(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What each drill measured or why it failed, by name; run once, in the order of EVERY_RUN."""
    return _begin(request.config).results()


@pytest.fixture(scope="session")
def production_results() -> Iterator[dict[str, Any]]:
    """The same for PRODUCTION_RUN with production's waiting times: a few minutes each."""
    run = DrillRun(PRODUCTION_RUN, "--long")
    try:
        yield run.results()
    finally:
        run.end()
