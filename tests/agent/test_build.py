"""The zipapp."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

from agent.build import build

AGENT = Path(__file__).parents[2] / "agent"


def test_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    build(tmp_path / "one.pyz", [sys.executable])
    build(tmp_path / "two.pyz", [sys.executable])
    assert (tmp_path / "one.pyz").read_bytes() == (tmp_path / "two.pyz").read_bytes()


def test_start_loads_bytecode_and_neither_tls_nor_http(archive: Path) -> None:
    names = zipfile.ZipFile(archive).namelist()
    assert f"{sys.implementation.cache_tag}/agent/session.pyc" in names
    done = subprocess.run(
        [sys.executable, "-v", str(archive), "--", "true"], capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0
    loaded = {line.split("'")[1] for line in done.stderr.splitlines() if line.startswith("import '")}
    assert "agent.session" in loaded
    assert not loaded & {
        "ssl",
        "http.client",
        "email",
        "urllib",
        "dataclasses",
        "inspect",
        "random",
        "tempfile",
    }


def test_other_interpreter_runs_the_sources(archive: Path, python_3_8: str) -> None:
    done = subprocess.run([python_3_8, str(archive), "-c", "exit 9"], capture_output=True)
    assert done.returncode == 9, done.stderr


def test_sources_are_python_3_8_and_import_nothing_but_the_standard_library() -> None:
    for path in AGENT.glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in {*sys.stdlib_module_names, "agent"}, (
                    f"{path.name} imports {name}"
                )
