"""Drills as tests: one run of the drill program on a stack of its own, judged drill by drill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


@pytest.fixture(scope="session")
def drill_results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each drill measured or why it failed, by name; run once, in the order of EVERY_RUN."""
    names = EVERY_RUN + (LONG_RUN if request.config.getoption("--long") else ())
    return run_drills(names, tmp_path_factory.mktemp("drills"))


@pytest.fixture(scope="session")
def production_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same for PRODUCTION_RUN with production's waiting times: a few minutes each."""
    return run_drills(PRODUCTION_RUN, tmp_path_factory.mktemp("production"), "--long")


def run_drills(names: tuple[str, ...], place: Path, *options: str) -> dict[str, Any]:
    """Run the drill program once; results by name, with its code and the end of what it printed."""
    results = place / "results.jsonl"
    output = place / "output.txt"
    # The drills have servers of their own: the test run's must not be taken.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
    }
    with output.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "incidentdesk.drills", *names, *options, "--json", str(results)],
            cwd=CHECKOUT,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
            timeout=3000,
        )
    lines = results.read_text().splitlines() if results.exists() else []
    found = {row["drill"]: row for row in map(json.loads, lines)}
    found["_output"] = _tail(output)
    found["_code"] = done.returncode
    return found


def _tail(path: Path, lines: int = 60) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
