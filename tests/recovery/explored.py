"""Walks of the small settings, each made once in a test run."""

from __future__ import annotations

from functools import cache
from typing import Any

from recovery.explore.catalog import SMALL, TITLES, model
from recovery.explore.engine import Model, Walk, walk

SETTINGS = [(name, n) for name in TITLES for n in range(len(SMALL[name]))]


@cache
def walked(name: str, n: int) -> tuple[Walk, Model[Any]]:
    """The n-th small setting of a model, walked with its reductions."""
    made = model(name, SMALL[name][n])
    return walk(made), made


def rows_met() -> frozenset[str]:
    """Rows of the phase table that the small settings of ``processes`` meet."""
    return frozenset().union(*(walked("processes", n)[1].rows for n in range(len(SMALL["processes"]))))  # type: ignore[attr-defined]
