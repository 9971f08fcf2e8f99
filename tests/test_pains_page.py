"""The page of what others suffered names tests that there are, and no row is left out."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from incidentdesk.frontdoor.places import CHECKOUT

TESTS = CHECKOUT / "tests"
NUMBER = re.compile(r"\b[RD][1-9]\d?\b")
ROW = re.compile(r"^\| ([RD]\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS = {
    number: (does, shown)
    for number, does, shown in ROW.findall((CHECKOUT / "docs" / "design" / "pains.md").read_text())
}
NAMED = [
    (number, *test)
    for number, (_, shown) in ROWS.items()
    for test in re.findall(r"`([\w/]+\.py)::(\w+)`", shown)
]


@cache
def docstrings_of(path: str) -> dict[str, str]:
    """By test of a file, its docstring."""
    tree = ast.parse((TESTS / path).read_text())
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {test.name: ast.get_docstring(test) or "" for test in tests}


@cache
def numbers_of(path: str) -> dict[str, set[str]]:
    """By test of a file, the rows that its docstring carries."""
    return {name: set(NUMBER.findall(docstring)) for name, docstring in docstrings_of(path).items()}


def test_every_named_test_exists_and_carries_its_row() -> None:
    wrong = [
        f"{number}: {path}::{name}"
        for number, path, name in NAMED
        if number not in numbers_of(path).get(name, set())
    ]
    assert wrong == []
    assert len({number for number, _, _ in NAMED}) > 45


def test_row_that_is_had_in_part_is_called_so_by_its_tests_too() -> None:
    in_part = {number for number, (does, _) in ROWS.items() if does.startswith("Partly: ")}
    assert {"R40", "R47"} <= in_part
    wrong = [
        f"{number}: {path}::{name}"
        for number, path, name in NAMED
        if number in in_part and "in part" not in docstrings_of(path)[name]
    ]
    assert wrong == []


def test_row_without_a_test_says_what_it_waits_for() -> None:
    tested = {number for number, _, _ in NAMED}
    waiting = {number: shown for number, (_, shown) in ROWS.items() if number not in tested}
    assert all(shown.startswith("waits for: ") for shown in waiting.values()), waiting
    assert not [number for number in tested if "waits for" in ROWS[number][1]]


def test_every_number_in_a_test_is_a_row_that_names_a_test() -> None:
    """Who builds what a row waits for finds out here that the page is to be told."""
    tested = {number for number, _, _ in NAMED}
    files = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))
    carried = {
        number
        for path in files
        if path != "test_pains_page.py"
        for found in numbers_of(path).values()
        for number in found
    }
    assert carried == tested


def test_page_has_every_row_that_was_told() -> None:
    told = CHECKOUT.parent / "shared" / "pains.md"
    if not told.exists():
        pytest.skip("the rows as they were told are not beside this checkout")
    assert list(ROWS) == re.findall(r"^\| ([RD]\d+) \|", told.read_text(), re.MULTILINE)
