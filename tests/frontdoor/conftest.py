"""What the tests of the front door share: a temporary directory for sockets that does not outlive the test."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def short_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sockets of a server under `tmp_path` lie here, for that path is too long for them."""
    directory = tempfile.mkdtemp(prefix="desk-")
    monkeypatch.setenv("TMPDIR", directory)
    monkeypatch.setattr(tempfile, "tempdir", directory)
    yield
    shutil.rmtree(directory)
