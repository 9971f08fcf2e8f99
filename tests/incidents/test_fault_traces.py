from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from apps.incidents.fault_traces import DAY_ZERO, exposures_of, failures_of, read_trace
from recovery.backtest import FaultTrace
from recovery.errors import BadInput
from recovery.reliability import by_class, estimate, worst_share
from tests.traces import INFINITEHBD, LANL, needs_traces

INTERVALS = """start_day,end_day,duration_h,node,level,class,desc
1.5,3.0,36.0,node-001,Hardware Failure,GPU,GPU xid Error
2.0,,,node-002,Hardware Failure,NIC,link down
8.0,11.0,72.0,node-001,Hardware Failure,Fan,Fan Speed
12.0,13.0,24.0,node-003,Hardware Failure,GPU,GPU xid Error
"""
SYSTEMS = """system,nodes,procs,node,started,fixed,down_min,category,subcause
18,4,16,0,6/7/2002 16:00,6/8/2002 0:00,480,Software,Other Software
18,4,16,3,6/7/2002 20:00,6/7/2002 21:00,60,Hardware,Fan
20,2,8,1,6/9/2002 16:00,,,Hardware,Fan
"""


@pytest.fixture
def intervals(tmp_path: Path) -> Path:
    file = tmp_path / "faults.csv"
    file.write_text(INTERVALS)
    return file


def test_intervals_in_days_are_cut_where_the_trace_ends(intervals: Path) -> None:
    named = read_trace(intervals, nodes=5, days=10)
    first, second, third = named.trace.faults
    assert (first.node, first.reason, first.start) == ("node-001", "GPU", DAY_ZERO + timedelta(days=1.5))
    assert second.end is None
    assert third.end is None, "it ends after the trace"
    assert named.trace.nodes == ("node-001", "node-002", "quiet-0001", "quiet-0002", "quiet-0003")
    assert named.quiet_nodes == 3
    assert named.trace.end == DAY_ZERO + timedelta(days=10)


def test_exposure_is_every_node_from_the_first_fault_on(intervals: Path) -> None:
    trace = read_trace(intervals, nodes=5, days=10).trace
    assert sum(each.node_days for each in exposures_of(trace)) == pytest.approx(5 * 8.5)
    assert [failure.fault_class for failure in failures_of(trace)] == ["GPU", "NIC", "Fan"]


def test_events_of_begin_and_end_are_the_same_trace(tmp_path: Path, intervals: Path) -> None:
    def event(node: str, at: float, kind: str, what: str) -> dict[str, object]:
        return {"node_id": node, "event_time": at, "event_type": kind, "fault_type": {"Class": what}}

    events = [
        event("node-001", 1.5, "fault_start", "GPU"), event("node-001", 3.0, "fault_end", "GPU"),
        event("node-002", 2.0, "fault_start", "NIC"), event("node-001", 8.0, "fault_start", "Fan"),
        event("node-001", 11.0, "fault_end", "Fan"), event("node-003", 12.0, "fault_start", "GPU"),
        event("node-009", 0.5, "fault_end", "GPU"),
    ]  # fmt: skip
    file = tmp_path / "events.json"
    file.write_text(json.dumps(events))
    assert read_trace(file, nodes=5, days=10).trace == read_trace(intervals, nodes=5, days=10).trace


def test_file_with_several_systems_wants_to_know_which(tmp_path: Path) -> None:
    file = tmp_path / "systems.csv"
    file.write_text(SYSTEMS)
    with pytest.raises(BadInput, match="systems 18, 20: say which with --system"):
        read_trace(file)
    with pytest.raises(BadInput, match="system 7 is not in the file; it has 18, 20"):
        read_trace(file, system="7")
    named = read_trace(file, system="18")
    assert len(named.trace.nodes) == 4
    assert [fault.node for fault in named.trace.faults] == ["node-0", "node-3"]
    assert named.trace.end - named.trace.begin == timedelta(hours=4)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "one,two\n1,2\n", "no fault trace that is known"),
        ("a.csv", "", "no fault trace that is known"),
        ("a.csv", "start_day,end_day,node\n1,,x\nsoon,,x\n", "line 3: start_day is 'soon', but must be days"),
        (
            "a.csv",
            "start_day,end_day,node\n5,4,x\n",
            "line 2: end_day is 4, before start_day 5: swap the two",
        ),
        ("a.csv", "start_day,end_day,node\n1,,\n", "line 2: node is empty"),
        ("a.csv", "start_day,end_day,node\n1\n", "line 2: node is empty"),
        ("a.csv", "start_day,end_day,node\n1,2,\udcff\n", "line 2: byte 0xff is no UTF-8"),
        ("a.csv", "start_day,end_day,node\n300,,x\n", "all 1 faults begin after day 240"),
        ("a.csv", "start_day,end_day,node\n-1,,x\n", "start_day is '-1', but must be days"),
        ("a.csv", "start_day,end_day,node\n1,nan,x\n", "end_day is 'nan', but must be days"),
        ("a.json", "[\n{", "line 2: no JSON"),
        ("a.json", "{}", "no list of events"),
        ("a.json", "[" * 100_000, "no list of events"),
        ("a.json", '[{"event_time": 1}]', "event 1: node_id is empty"),
        (
            "a.json",
            '[{"node_id": "x", "event_time": 1, "event_type": "end"}]',
            "event 1: event_type is 'end'",
        ),
        ("a.json", "[7]", "event 1 is no object"),
        ("a.bin", "x", "no fault trace"),
    ],
)
def test_what_is_no_trace_is_refused_with_advice(tmp_path: Path, name: str, content: str, says: str) -> None:
    file = tmp_path / name
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(BadInput, match=says):
        read_trace(file, nodes=400, days=240)


def test_size_and_length_are_asked_for_and_not_assumed(tmp_path: Path, intervals: Path) -> None:
    with pytest.raises(BadInput, match="say with --nodes and --days"):
        read_trace(intervals)
    with pytest.raises(BadInput, match="say with --days"):
        read_trace(intervals, nodes=5)
    with pytest.raises(BadInput, match="nodes is -4, but the size of the cluster must be above 0"):
        read_trace(intervals, nodes=-4, days=10)
    systems = tmp_path / "systems.csv"
    systems.write_text(SYSTEMS)
    with pytest.raises(BadInput, match=r"has dates, .*: leave out --days"):
        read_trace(systems, days=10, system="18")
    with pytest.raises(BadInput, match="system 18 has 4 nodes: leave out --nodes"):
        read_trace(systems, nodes=10, system="18")
    systems.write_text(SYSTEMS.replace("18,4,", "18,,"))
    with pytest.raises(BadInput, match="say with --nodes how many system 18 had"):
        read_trace(systems, system="18")
    assert len(read_trace(systems, nodes=10, system="18").trace.nodes) == 10


def test_what_of_a_file_is_not_in_the_trace_is_counted(tmp_path: Path, intervals: Path) -> None:
    assert read_trace(intervals, nodes=5, days=14).left_out == ()
    assert read_trace(intervals, nodes=5, days=2).left_out == ("2 faults after day 2",)
    file = tmp_path / "events.json"
    events = [
        {"node_id": "a", "event_time": at, "event_type": kind}
        for at, kind in [(1, "fault_end"), (2, "fault_start")]
    ]
    file.write_text(json.dumps(events))
    assert read_trace(file, nodes=5, days=9).left_out == ("1 fault whose begin is not told",)


def test_place_without_a_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no fault trace"):
        read_trace(tmp_path, nodes=400, days=240)


def test_more_nodes_with_faults_than_there_are_is_refused(intervals: Path) -> None:
    with pytest.raises(BadInput, match="give --nodes"):
        read_trace(intervals, nodes=1, days=10)


@needs_traces
def test_measured_cluster_of_400_nodes() -> None:
    trace = read_trace(INFINITEHBD).trace
    failures = failures_of(trace)
    found = estimate(failures, exposures_of(trace))
    assert found.failures == 381
    assert (min(each.at for each in failures) - DAY_ZERO).total_seconds() / 86_400 == pytest.approx(3.8955)
    assert found.exposure_node_days == pytest.approx(400 * (240 - 3.8955))
    assert round(found.node_days or 0, 1) == 247.9
    assert found.low_node_days < 247.9 < (found.high_node_days or 0)
    assert len({failure.node for failure in failures}) == 184
    assert round(worst_share(failures, 40), 3) == 0.483
    assert found.gaps.is_clustered
    assert next(iter(by_class(failures, exposures_of(trace)))) == "Unknown Error"


@needs_traces
def test_events_of_the_measured_cluster_are_its_intervals() -> None:
    (events,) = INFINITEHBD.glob("*.json")
    from_events = read_trace(events).trace
    from_intervals = read_trace(INFINITEHBD).trace

    def shape(trace: FaultTrace) -> list[tuple[str, str, str]]:
        return sorted((str(each.start), str(each.end), each.reason) for each in trace.faults)

    assert shape(from_events) == shape(from_intervals)


@needs_traces
@pytest.mark.parametrize(("system", "hours"), [("18", 7.33), ("20", 13.16)])
def test_measured_systems_fail_that_often_and_the_exponential_fits_poorly(system: str, hours: float) -> None:
    trace = read_trace(LANL, system=system).trace
    found = estimate(failures_of(trace), exposures_of(trace))
    assert found.job_seconds(len(trace.nodes)).value / 3600 == pytest.approx(hours, abs=0.005)
    assert found.gaps.is_fit_poor
    assert found.gaps.is_clustered
