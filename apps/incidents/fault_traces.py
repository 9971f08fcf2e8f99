"""Published fault traces: files to the core's records. Which one it is, is read from the columns.

Two shapes are known: fault intervals in days (CSV, or JSON events of begin and end), and failures with local begin and
end times by system (the form in which LANL published its own).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from recovery.backtest import Fault, FaultTrace
from recovery.errors import BadInput
from recovery.reliability import Exposure, Failure

#: Day 0 of traces that count days. Any origin would do: only differences matter.
DAY_ZERO = datetime(2024, 3, 30, tzinfo=UTC)
INTERVAL_COLUMNS = {"start_day", "end_day", "node"}
LOCAL_COLUMNS = {"system", "node", "started", "fixed"}
_LOCAL_TIME = "%m/%d/%Y %H:%M"


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """A trace with the name that people read, and how many of its nodes had no fault."""

    name: str
    trace: FaultTrace

    @property
    def quiet_nodes(self) -> int:
        """Nodes without a fault: the files do not name them."""
        return len(self.trace.nodes) - len({fault.node for fault in self.trace.faults})


def read_trace(path: Path, *, nodes: int, days: float, system: str | None = None) -> NamedTrace:
    """A fault trace from a file, or from the directory that holds one.

    Args:
        path: CSV or JSON, or a directory with one of them (CSV first).
        nodes: How many nodes the cluster had: files name only those that failed. For failures by system, the
            file says it itself.
        days: Length of a trace that counts days; what begins later is left out.
        system: Which one, where a file has several.
    Raises:
        BadInput: where there is no trace, or it cannot be read; the text says what to give.
    """
    file = _file(path)
    try:
        rows = _json_rows(file) if file.suffix == ".json" else _csv_rows(file)
        columns = set(rows[0]) if rows else set()
        if columns >= INTERVAL_COLUMNS:
            return NamedTrace(file.stem, _from_intervals(rows, nodes, days))
        if columns >= LOCAL_COLUMNS:
            return _from_systems(rows, system)
    except (OSError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A file from elsewhere can be wrong in any of these ways; what is wrong is in the error's own words.
        raise BadInput(f"{file} cannot be read as a fault trace: {error!r}", field="trace") from error
    raise BadInput(
        f"{file} is no fault trace that is known: give a CSV with {', '.join(sorted(INTERVAL_COLUMNS))} or with "
        f"{', '.join(sorted(LOCAL_COLUMNS))}, or JSON events with node_id, event_time, event_type",
        field="trace",
    )


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted([*path.glob("*.csv"), *path.glob("*.json")], key=lambda each: (each.suffix, each.name))
    if not found:
        raise BadInput(
            f"{path} holds no fault trace: give a CSV or JSON file, or its directory", field="trace"
        )
    return found[0]


def _csv_rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _json_rows(file: Path) -> list[dict[str, str]]:
    """Begin and end events to intervals: an end belongs to the oldest open fault of its node and type.

    At equal times begins come first, for a fault may take no time.
    """
    events = json.loads(file.read_text())
    if not isinstance(events, list):
        raise BadInput(f"{file} is no list of events: give a fault trace", field="trace")
    rows: list[dict[str, str]] = []
    open_: dict[tuple[str, str], list[dict[str, str]]] = {}
    for event in sorted(events, key=lambda each: (each["event_time"], each["event_type"] != "fault_start")):
        kind: Any = event.get("fault_type") or {}
        key = (event["node_id"], json.dumps(kind, sort_keys=True))
        if event["event_type"] == "fault_start":
            row = {
                "start_day": str(event["event_time"]),
                "end_day": "",
                "node": event["node_id"],
                "class": str(kind.get("Class", "")),
                "desc": str(kind.get("Desc", "")),
            }
            rows.append(row)
            open_.setdefault(key, []).append(row)
        elif open_.get(key):
            open_[key].pop(0)["end_day"] = str(event["event_time"])
    return rows


def _from_intervals(rows: Sequence[dict[str, str]], nodes: int, days: float) -> FaultTrace:
    def at(day: str) -> datetime:
        return DAY_ZERO + timedelta(days=float(day))

    faults = []
    for row in rows:
        if float(row["start_day"]) > days:
            continue
        is_ended = bool(row["end_day"]) and float(row["end_day"]) <= days
        reason = row.get("class") or row.get("desc") or ""
        faults.append(
            Fault(row["node"], at(row["start_day"]), at(row["end_day"]) if is_ended else None, reason)
        )
    return FaultTrace(
        _with_quiet([fault.node for fault in faults], nodes),
        tuple(faults),
        DAY_ZERO,
        DAY_ZERO + timedelta(days=days),
    )


def _from_systems(rows: Sequence[dict[str, str]], system: str | None) -> NamedTrace:
    systems = sorted({row["system"] for row in rows})
    if system is None and len(systems) > 1:
        raise BadInput(
            f"the file has the systems {', '.join(systems)}: say which with --system", field="system"
        )
    name = system or systems[0]
    mine = [row for row in rows if row["system"] == name]
    if not mine:
        raise BadInput(f"system {name} is not in the file; it has {', '.join(systems)}", field="system")

    def at(text: str) -> datetime:
        return datetime.strptime(text, _LOCAL_TIME).replace(tzinfo=UTC)

    faults = []
    for row in mine:
        begin, end = at(row["started"]), at(row["fixed"]) if row["fixed"] else None
        if end is not None and end < begin:
            end = begin
        faults.append(Fault(f"node-{row['node']}", begin, end, row.get("category") or ""))
    faults.sort(key=lambda fault: fault.start)
    nodes = int(mine[0]["nodes"]) if mine[0].get("nodes") else len({fault.node for fault in faults})
    last = max(fault.start for fault in faults)
    return NamedTrace(
        f"system {name}",
        FaultTrace(
            _with_quiet([fault.node for fault in faults], nodes), tuple(faults), faults[0].start, last
        ),
    )


def _with_quiet(named: Iterable[str], nodes: int) -> tuple[str, ...]:
    """Every node: those with a fault, and as many without one as there were."""
    failed = sorted(set(named))
    if len(failed) > nodes:
        raise BadInput(
            f"{len(failed)} nodes have faults, but the cluster is said to have {nodes}: give --nodes",
            field="nodes",
        )
    return (*failed, *(f"quiet-{n:04}" for n in range(1, nodes - len(failed) + 1)))


def failures_of(trace: FaultTrace) -> tuple[Failure, ...]:
    """The faults as failures of machines, for MTBF."""
    return tuple(Failure(fault.start, fault.node, fault.reason) for fault in trace.faults)


def exposures_of(trace: FaultTrace) -> tuple[Exposure, ...]:
    """Every node from the first fault until the end, down time not taken off: before it nobody may have looked.

    Raises:
        BadInput: for a trace without a fault.
    """
    if not trace.faults:
        raise BadInput("the trace has no fault: there is nothing to measure", field="trace")
    first = min(fault.start for fault in trace.faults)
    return tuple(Exposure(node, first, trace.end) for node in trace.nodes)
