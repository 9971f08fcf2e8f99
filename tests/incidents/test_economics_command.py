from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from apps.incidents.economics import duration
from apps.incidents.gpu_prices import read_prices
from recovery.errors import BadInput
from tests.incidents.test_fault_traces import INTERVALS
from tests.traces import INFINITEHBD, LANL, needs_traces


def economics(*words: str) -> str:
    out = StringIO()
    call_command("economics", *words, stdout=out)
    return out.getvalue()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "faults.csv"
    file.write_text(INTERVALS)
    return str(file)


def test_interval_is_told_in_every_form_with_its_waste() -> None:
    told = economics(
        "checkpoint", "--checkpoint-seconds", "300", "--mtbf-seconds", "604800", "--step-seconds", "5"
    )
    rows = {line[:20].strip(): line.split() for line in told.splitlines()}
    assert {"19,049.4", "3.15%"} <= set(rows["Young"])
    assert {"18,849.9", "advised"} <= set(rows["Daly, higher order"])
    assert "19,051.8" in rows["save-inclusive"]
    assert "Save every 3,770 steps." in told
    assert "(as given)" in told
    assert "measured" not in told, "what was typed is not told as measured"
    assert "warning" not in told


def test_present_setting_is_compared_and_warned_of() -> None:
    told = economics(
        "checkpoint",
        "--checkpoint-seconds",
        "40",
        "--mtbf-seconds",
        "11124",
        "--present-interval-seconds",
        "10800",
    )
    (row,) = [line for line in told.splitlines() if line.startswith("present setting")]
    assert {"48.91%", "0.971"} <= set(row.split())
    assert "warning: present setting" in told


def test_new_cluster_gets_the_prior_and_is_told_so() -> None:
    told = economics(
        "checkpoint", "--checkpoint-seconds", "60", "--nodes", "128", "--checkpoint-bytes", "1e12"
    )
    assert "(assumed, 0 failures in 0 node-days; prior of 270 node-days weighs 100%)" in told
    assert "(all assumed;" in told
    assert "TB a day" in told


def test_drives_wear() -> None:
    told = economics(
        "checkpoint", "--checkpoint-seconds", "64", "--mtbf-seconds", "11124", "--checkpoint-bytes", "1e11",
        "--store-bytes-per-second", "1e9", "--store-bytes", "1e13", "--kept", "3", "--drives", "10",
        "--drive-bytes", "1e12", "--drive-endurance-bytes", "1e15",
    )  # fmt: skip
    for words in (
        "write bandwidth",
        "Store's room for what is kept: 3.00%",
        "times a day",
        "of the rated writes a year",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("checkpoint", "--checkpoint-seconds", "0", "--mtbf-seconds", "1"), "checkpoint_seconds is 0, but"),
        (("checkpoint", "--checkpoint-seconds", "1", "--nodes", "0"), "nodes is 0"),
        (
            ("checkpoint", "--checkpoint-seconds", "1"),
            "one of the arguments --mtbf-seconds --nodes is required",
        ),
        (("mtbf", "/nonexistent"), "holds no fault trace"),
        (
            ("mtbf", "/nonexistent", "--nodes", "-4"),
            "nodes is -4, but the size of the cluster must be above 0",
        ),
        (("spares", "/nonexistent", "--days", "0"), "days is 0, but the length of the trace must be above 0"),
        (
            ("checkpoint", "--checkpoint-seconds", "1", "--mtbf-seconds", "9", "--restart-seconds", "-1"),
            "below 0",
        ),
    ],
)
def test_figures_that_cannot_be_are_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        economics(*words)


def test_small_trace_is_told_with_its_prior_and_its_wide_interval(trace: str) -> None:
    told = economics("mtbf", trace, "--nodes", "10", "--days", "14", "--job-sizes", "4")
    assert "4 failures in 125 node-days" in told
    assert "prior of 270 node-days, as strong as 2 failures, weighs 81.2%" in told
    assert "3 gaps: too few to say" in told


def test_each_row_has_its_interval_and_its_flag_and_no_quiet_node_is_a_worst_one(tmp_path: Path) -> None:
    bursts = "".join(
        f"{day + n / 100},{day + n / 100 + 0.001},n{day % 7},GPU\n" for day in range(20, 50) for n in range(5)
    )
    file = tmp_path / "own.csv"
    file.write_text(f"start_day,end_day,node,class\n1,2,a,NIC\n{bursts}300,301,a,NIC\n")
    told = economics("mtbf", str(file), "--nodes", "20", "--days", "240")
    rows = {line[:28].strip(): line for line in told.splitlines()}
    assert re.search(r"150 +31\.9 days \(.* to .*\) +clustered, poor fit$", rows["GPU"])
    assert re.search(r"days \(.* to .*\) +too few gaps$", rows["NIC"])
    assert re.search(r"days \(.* to .*\) +clustered, poor fit$", rows["n1"])
    assert re.search(r"\(.* to .*\) +clustered, poor fit \(estimated\)$", rows["20"]), "a job on all nodes"
    assert "left out: 1 fault after day 240" in told
    assert "quiet-" not in told
    assert "down time taken off" in told


def test_no_interval_is_advised_to_a_job_that_cannot_get_on() -> None:
    told = economics(
        "checkpoint", "--checkpoint-seconds", "300", "--mtbf-seconds", "100", "--step-seconds", "5",
        "--checkpoint-bytes", "1e12",
    )  # fmt: skip
    assert (
        "No interval helps: saving, computing again and restarting take 3.5 times as long as training" in told
    )
    assert "advised" not in told
    assert "Save every" not in told
    assert "TB a day" not in told


def test_spares_are_told_by_median_mean_and_tail(trace: str) -> None:
    told = economics("spares", trace, "--nodes", "10", "--days", "14")
    assert "median" in told
    assert "1 of them not over" in told
    assert "advised" in told


def test_money_is_shown_where_a_price_is_given(trace: str, settings: Settings) -> None:
    words = ("spares", trace, "--nodes", "10", "--days", "14")
    assert "EUR" not in economics(*words)
    with pytest.raises(CommandError, match=r"no price is given for H100 \(given: none\)"):
        economics(*words, "--gpu-type", "H100")
    settings.GPU_PRICES = (
        '{"H100": {"per_gpu_hour": 2.5, "currency": "EUR", "as_of": "2026-11-01", "source": "contract"}}'
    )
    assert "EUR (H100 at 2.5 per GPU-hour, contract, 2026-11-01) a day" in economics(
        *words, "--gpu-type", "H100"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"H100": 2.5}',
        '{"H100": {"per_gpu_hour": 2.5, "currency": "EUR", "as_of": "soon", "source": ""}}',
    ],
)
def test_prices_that_cannot_be_read_are_refused_with_their_form(text: str) -> None:
    with pytest.raises(BadInput, match="give JSON such as"):
        read_prices(text)
    assert read_prices(" ") == {}


@needs_traces
def test_measured_cluster_is_told() -> None:
    told = economics("mtbf", str(INFINITEHBD))
    assert "381 failures in 94,442 node-days" in told
    assert "node MTBF 247.9 days (224.2 to 274.8)" in told
    assert "184 nodes hit; the worst 40 of them had 48.3% of the failures" in told
    assert "gaps are clustered" in told
    pool = economics("spares", str(INFINITEHBD))
    assert "6 by the median, 17 by the mean, 43 by the 90th percentile" in pool
    rows = {line[:6].strip(): line for line in pool.splitlines()}
    assert re.search(r"median 32\.6 h +mean 160\.5 h +90 % 484\.3 h", rows["spares"])
    assert rows["6"].split()[:4] == ["6", "97.6%", "4.3%", "0.0%"]
    assert rows["17"].endswith("by the mean, advised")


@needs_traces
@pytest.mark.parametrize(("system", "hours"), [("18", "7.33 h"), ("20", "13.16 h")])
def test_measured_systems_are_told_with_their_poor_fit(system: str, hours: str) -> None:
    told = economics("mtbf", str(LANL), "--system", system)
    assert f"whole system: one failure in {hours}" in told
    assert "exponential fit is poor" in told


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (943.36, "15.7 min"), (19_049, "5.29 h"), (604_800, "7.0 days")]
)
def test_durations_are_told_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
