from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper

from apps.incidents import backtesting
from apps.incidents.fault_traces import read_trace
from apps.incidents.management.commands.backtest import ProgressLine
from incidentdesk.frontdoor.places import CHECKOUT
from recovery.backtest import Replay
from tests.incidents.test_fault_traces import INTERVALS
from tests.traces import INFINITEHBD, needs_traces


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "faults.csv"
    file.write_text(INTERVALS)
    return file


def backtest(trace: Path, *words: str, **options: Any) -> str:
    out = StringIO()
    call_command(
        "backtest", str(trace), "--nodes", "10", "--days", "14", "--job-sizes", "4", "--placements", "5", "--full",
        "0.9", *words, stdout=out, stderr=options.pop("stderr", StringIO()), **options,
    )  # fmt: skip
    return out.getvalue()


def test_says_what_it_is_and_what_was_assumed(trace: Path) -> None:
    told = backtest(trace)
    assert told.startswith(
        "Replayed on a fault trace: faults, 10 nodes, 7 of them\nwithout a fault, 4 faults in 14 days."
    )
    assert "Jobs are synthetic: 5 random placements, seed 1. Assumed:" in told
    assert "job history" not in told
    assert "9 of 10 nodes (90%)" in told


def test_progress_is_shown_apart_from_the_figures(trace: Path) -> None:
    progress = StringIO()
    backtest(trace, stderr=progress)
    assert progress.getvalue().startswith("replaying 1 of 15: 4 nodes, wait\n")
    assert "\r" not in progress.getvalue()


def test_progress_is_sparse_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    now, out = [0.0], StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    line = ProgressLine(OutputWrapper(out))
    for second in range(25):
        now[0] = second
        line.tell(second, 25, "wait")
    line.clear()
    assert out.getvalue().splitlines() == [f"replaying {n} of 25: wait" for n in (1, 11, 21)]


def test_progress_is_one_line_on_a_terminal() -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    line = ProgressLine(OutputWrapper(out))
    line.tell(0, 2, "wait")
    line.tell(1, 2, "swap")
    line.clear()
    assert out.getvalue() == "\rreplaying 1 of 2: wait\x1b[K\rreplaying 2 of 2: swap\x1b[K\r\x1b[K"


def test_same_seed_gives_the_same_figures_and_another_one_others(trace: Path) -> None:
    assert backtest(trace) == backtest(trace)
    assert backtest(trace, "--seed", "2") != backtest(trace).replace("seed 1", "seed 2")


def test_figures_can_be_had_as_json(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    backtest(trace, "--json", str(file), "--policies", "wait, swap")
    found = json.loads(file.read_text())
    assert found["kind"] == "replayed on a fault trace"
    (size,) = found["sizes"]
    assert list(size["policies"]) == ["wait", "swap"]
    assert set(size["policies"]["wait"]["interruptions"]) == {"mean", "p10", "p90", "error"}
    assert found["nearly_full"][0]["policies"]["blacklist:7"]["beside_swap"]["job_verdict"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policies", "pray"), "'pray' is no policy"),
        (("--policies", "blacklist:0"), "'blacklist:0' is no policy"),
        (("--policies", "spares:200"), "'spares:200' is no policy"),
        (("--policies", "guarded:soon"), "'guarded:soon' is no policy"),
        (("--policies", ","), "no policy was given"),
        (("--job-sizes", "11"), "job of 11 nodes does not fit on 10"),
        (("--job-sizes", "many"), "'many' is no list of numbers"),
        (("--full", "1.5"), "shares between 0 and 1"),
        (("--placements", "0"), "0 placements: give at least one"),
        (("--json", "/nonexistent/f.json"), "could not be written"),
    ],
)
def test_what_cannot_be_is_refused(trace: Path, words: tuple[str, str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        backtest(trace, *words)


def test_runs_without_a_database(trace: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}
    }
    result = subprocess.run(
        [sys.executable, "manage.py", "backtest", str(trace), "--nodes", "10", "--days", "14", "--job-sizes", "4"],
        cwd=CHECKOUT, env=environment | {"SECRET_KEY": "for-tests-only"}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "Replayed on a fault trace" in result.stdout


@pytest.fixture(scope="module")
def measured_cluster() -> backtesting.Backtest:
    return backtesting.run(
        read_trace(INFINITEHBD),
        sizes=[64, 128, 256],
        full_shares=[0.8, 0.95],
        policies="wait,swap,history",
        full_policies="swap,history,blacklist:1,blacklist:14",
        placements=60,
        seed=1,
        assumptions=backtesting.JobAssumptions(),
        tell=lambda done, total, what: None,
    )


def mean(replays: tuple[Replay, ...]) -> float:
    return sum(each.interruptions for each in replays) / len(replays)


@needs_traces
@pytest.mark.parametrize(
    ("place", "waiting", "swapping"), [(0, 61.5, 39.5), (1, 120.7, 80.2), (2, 247.9, 162.9)]
)
def test_interruptions_are_those_that_others_found(
    measured_cluster: backtesting.Backtest, place: int, waiting: float, swapping: float
) -> None:
    table = measured_cluster.sizes[place]
    assert mean(table.replays["wait"]) == pytest.approx(waiting, rel=0.05)
    assert mean(table.replays["swap"]) == pytest.approx(swapping, rel=0.05)


@needs_traces
def test_blacklist_pays_for_the_job_where_there_is_room_and_not_on_a_nearly_full_cluster(
    measured_cluster: backtesting.Backtest,
) -> None:
    figures = backtesting.as_plain(measured_cluster)["nearly_full"]
    room, full = (
        {name: each["beside_swap"] for name, each in table["policies"].items() if name != "swap"}
        for table in figures
    )
    assert room["blacklist:14"]["job_verdict"] == "pays"
    assert full["blacklist:14"]["job_verdict"] == "does not pay"
    assert full["blacklist:1"]["job_verdict"] == "does not pay"
    assert {each["net_verdict"] for each in (room["blacklist:14"], full["blacklist:14"])} == {"does not pay"}
    assert [each["history"]["job_verdict"] for each in (room, full)] == ["pays", "pays"]


@needs_traces
def test_swapping_beats_waiting_and_the_record_is_never_worse(measured_cluster: backtesting.Backtest) -> None:
    for table in backtesting.as_plain(measured_cluster)["sizes"]:
        beside = {name: each.get("beside_swap") for name, each in table["policies"].items()}
        assert beside["wait"]["job_verdict"] == "does not pay"
        assert beside["history"]["job_verdict"] in {"pays", "no difference"}


def test_spares_are_set_beside_waiting_with_their_idle_hours(trace: Path) -> None:
    told = backtest(trace, "--policies", "wait,swap,spares:20")
    (row,) = [line for line in told.splitlines() if line.startswith("spares:20")]
    assert "(beside wait, idle spares counted)" in row
