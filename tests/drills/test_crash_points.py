"""Points at which a drill may hold a process, and that the matrix of drills leaves none out."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, get_args

import pytest

from apps import crash_points
from incidentdesk.drills.crash_matrix import ELSEWHERE, ROWS, Cell, table
from incidentdesk.drills.field import wait_for
from incidentdesk.drills.one_recovery import VICTIMS


def pass_point(point: crash_points.Point) -> threading.Thread:
    thread = threading.Thread(target=crash_points.reach, args=(point,), daemon=True)
    thread.start()
    return thread


@pytest.fixture
def points(tmp_path: Path, settings: Any) -> Path:
    settings.FAULT_POINTS = str(tmp_path)
    return tmp_path


def test_point_that_is_not_armed_is_passed(points: Path) -> None:
    pass_point("order_read").join(10)
    assert not list(points.iterdir())


def test_first_to_reach_an_armed_point_stands_there_until_released(points: Path) -> None:
    (points / "order_read").touch()
    first = pass_point("order_read")
    wait_for("somebody to stand there", lambda: list(points.glob("order_read.taken-*")), seconds=10)
    second = pass_point("order_read")
    second.join(10)
    assert not second.is_alive()
    assert first.is_alive()
    (taken,) = points.iterdir()
    assert taken.name == f"order_read.taken-{os.getpid()}-{first.native_id}"
    taken.unlink()
    first.join(10)
    assert not first.is_alive()


def test_nobody_stands_for_ever(points: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_points, "HOLD_SECONDS", 0.02)
    (points / "action_sent").touch()
    thread = pass_point("action_sent")
    thread.join(10)
    assert not thread.is_alive()


def test_without_the_setting_an_armed_point_holds_nobody(tmp_path: Path, settings: Any) -> None:
    settings.FAULT_POINTS = ""
    (tmp_path / "order_read").touch()
    crash_points.reach("order_read")
    assert [path.name for path in tmp_path.iterdir()] == ["order_read"]


def test_matrix_has_every_named_point_but_the_one_before_a_write_to_the_cluster() -> None:
    # A restart in place writes nothing there; the sleeping executor is held at that one.
    assert {row.point for row in ROWS} == set(get_args(crash_points.Point)) - {"action_sending"}


def test_each_victim_is_killed_once_in_every_run_where_another_stands() -> None:
    assert sorted(victim for _, victim in ELSEWHERE) == sorted(VICTIMS)
    by = {row.point: row.by for row in reversed(ROWS)}
    assert all(victim not in by[point] or len(by[point]) > 1 for point, victim in ELSEWHERE)


def test_table_shows_which_cell_failed() -> None:
    cells = [
        Cell(ROWS[0], "web", "web", 1.0),
        Cell(ROWS[0], "beat", "web", 2.0, "two failures were counted"),
    ]
    lines = table(cells)
    assert lines[0].split() == ["point", *VICTIMS]
    assert "ok 1.0*" in lines[1]
    assert "FAILED 2.0" in lines[1]
