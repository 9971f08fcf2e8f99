"""The core reads no clock, no random source, no network, and loads without Django."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "recovery"
MODULES = sorted(PACKAGE.rglob("*.py"))
ALLOWED_MODULES = {
    "__future__", "array", "bisect", "collections", "dataclasses", "datetime", "enum", "functools", "hashlib",
    "itertools", "json", "math", "operator", "pathlib", "re", "tomllib", "types", "typing", "recovery", "agent",
}  # fmt: skip
CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter"}


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def impure_calls(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        if call in {"print", "open", "input", "hash", "id", "exec", "eval"} or (
            isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS
        ):
            found.append(f"{call} at line {node.lineno}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_what_cannot_look_outside(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert imported(tree) <= ALLOWED_MODULES
    assert impure_calls(tree) == []


def test_impure_code_would_be_found() -> None:
    tree = ast.parse("import random\nfrom datetime import datetime\nx = datetime.now()\nprint(hash(x))")
    assert not imported(tree) <= ALLOWED_MODULES
    assert impure_calls(tree) == ["datetime.now at line 3", "print at line 4", "hash at line 4"]


def test_core_loads_without_django_or_clients() -> None:
    code = (
        "import sys, recovery.decide, recovery.timeline, recovery.serialize, recovery.ports\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'django', 'kubernetes', 'celery', 'logging', 'random', 'socket', 'urllib3'}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
