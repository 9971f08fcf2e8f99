"""The secret key of an installation that was given none."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from incidentdesk.settings.secret import kept_secret


def test_all_that_start_at_once_get_the_same_secret(tmp_path: Path) -> None:
    for round_ in range(20):
        path = tmp_path / f"{round_}" / "secret_key"
        gate = Barrier(8)

        def start(path: Path = path, gate: Barrier = gate) -> str:
            gate.wait()
            return kept_secret(path)

        with ThreadPoolExecutor(8) as pool:
            secrets = {future.result() for future in [pool.submit(start) for _ in range(8)]}
        assert secrets == {path.read_text()}
        assert [found.name for found in path.parent.iterdir()] == ["secret_key"]
        assert path.stat().st_mode & 0o777 == 0o600


def test_secret_never_appears_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret_key"
    flush = os.fsync

    def look(descriptor: int) -> None:
        assert not path.exists()
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    assert len(kept_secret(path)) > 50


def test_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "secret_key").touch()
    with pytest.raises(RuntimeError, match="is empty; delete it"):
        kept_secret(tmp_path / "secret_key")
