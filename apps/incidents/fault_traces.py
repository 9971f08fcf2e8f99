"""Published fault traces: files to the core's records. Which one it is, is read from the columns.

Two shapes are known: fault intervals in days (CSV, or JSON events of begin and end), and failures with local begin and
end times by system (the form in which LANL published its own).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from recovery.backtest import Fault, FaultTrace
from recovery.errors import BadInput
from recovery.figures import positive
from recovery.reliability import Exposure, Failure

#: Day 0 of traces that count days. Any origin would do: only differences matter.
DAY_ZERO = datetime(2024, 3, 30, tzinfo=UTC)
INTERVAL_COLUMNS = {"start_day", "end_day", "node"}
LOCAL_COLUMNS = {"system", "node", "started", "fixed"}
_LOCAL_TIME = "%m/%d/%Y %H:%M"
MOST_DAYS, MOST_NODES = 100_000.0, 1_000_000  # more is a slip of the finger

#: Published traces by the SHA-256 of their file: nodes of the cluster and length in days, which no column says.
#: InfiniteHBD: 400 servers of 8 GPUs, days 0 to 240, as intervals and as events.
PUBLISHED = {
    "bde3f1545ced5c6996314d03876d5eae9535fe5ef139ee0173429976ee0f76d9": (400, 240.0),
    "7eb022430f31c9be1e87c70f0bf5f06d1b6bbaa42c7d363fa614a89a3fb37e8e": (400, 240.0),
}


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """A trace with the name that people read, and what of its file is not in it, in words."""

    name: str
    trace: FaultTrace
    left_out: tuple[str, ...] = ()

    @property
    def quiet_nodes(self) -> int:
        """Nodes without a fault: the files do not name them."""
        return len(self.trace.nodes) - len({fault.node for fault in self.trace.faults})


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a table, or one fault of a list of events. ``place`` is where it stands, as people look for it."""

    place: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """What stands there, "" for nothing. A row that is cut short has None there."""
        value = self.fields.get(name)
        return "" if value is None else str(value).strip()

    def word(self, name: str) -> str:
        """The same, where something has to stand."""
        if text := self.text(name):
            return text
        raise self.wrong(name, "is empty")

    def day(self, name: str) -> float:
        """A number of days, 0 or more."""
        try:
            value = float(self.word(name))
        except ValueError:
            value = math.nan
        if not 0 <= value <= MOST_DAYS:
            raise self.wrong(name, f"is {self.text(name)[:40]!r}, but must be days since the trace began")
        return value

    def time(self, name: str) -> datetime:
        """A time as LANL wrote them."""
        try:
            return datetime.strptime(self.word(name), _LOCAL_TIME).replace(tzinfo=UTC)
        except ValueError as error:
            raise self.wrong(
                name, f"is {self.text(name)[:40]!r}, but must be a time such as 6/7/2002 16:00"
            ) from error

    def wrong(self, name: str, what: str) -> BadInput:
        """An error that says where."""
        return BadInput(f"{self.place}: {name} {what}", field="trace")


def read_trace(
    path: Path, *, nodes: int | None = None, days: float | None = None, system: str | None = None
) -> NamedTrace:
    """A fault trace from a file, or from the directory that holds one.

    Args:
        path: CSV or JSON, or a directory with one of them (CSV first).
        nodes: How many nodes the cluster had: files name only those that failed. None for a published trace, and
            for a file that says it itself.
        days: Length of a trace that counts days; what begins later is left out. None as for ``nodes``.
        system: Which one, where a file has several.
    Raises:
        BadInput: where there is no trace, or it cannot be read; the text says where and what to give.
    """
    if nodes is not None:
        positive("nodes", nodes, "the size of the cluster", "give the nodes that it has, failed or not")
        if nodes > MOST_NODES:
            raise BadInput(f"{nodes:,} nodes: give at most {MOST_NODES:,}", field="nodes")
    if days is not None:
        positive("days", days, "the length of the trace", "give the days from its begin to its end")
        if days > MOST_DAYS:
            raise BadInput(f"{days:,.0f} days: give at most {MOST_DAYS:,.0f}", field="days")
    file = _file(path)
    text, digest = _text(file)
    rows = _json_rows(file, text) if file.suffix == ".json" else _csv_rows(file, text)
    columns = set(rows[0].fields) if rows else set()
    if columns >= INTERVAL_COLUMNS:
        known_nodes, known_days = PUBLISHED.get(digest, (None, None))
        nodes, days = nodes or known_nodes, days or known_days
        if nodes is None or days is None:
            missing = [name for name, value in (("--nodes", nodes), ("--days", days)) if value is None]
            raise BadInput(
                f"{file} names only nodes that failed and tells no end: say with {' and '.join(missing)} how many "
                "nodes the cluster had and for how many days it was watched",
                field="trace",
            )
        return _from_intervals(file.stem, rows, nodes, days)
    if columns >= LOCAL_COLUMNS:
        if days is not None:
            raise BadInput(
                f"{file} has dates, from its first failure to its last: leave out --days", field="days"
            )
        return _from_systems(file, rows, nodes, system)
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


def _text(file: Path) -> tuple[str, str]:
    """Its text and the SHA-256 of its bytes."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}", field="trace") from error
    try:
        return content.decode("utf-8-sig"), hashlib.sha256(content).hexdigest()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{file}, line {line}: byte {content[error.start]:#04x} is no UTF-8; save the file as UTF-8",
            field="trace",
        ) from error


def _csv_rows(file: Path, text: str) -> list[_Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        return [_Row(f"{file}, line {reader.line_num}", fields) for fields in reader]
    except csv.Error as error:
        raise BadInput(f"{file}, line {reader.line_num}: {error}", field="trace") from error


def _json_rows(file: Path, text: str) -> list[_Row]:
    """Begin and end events to intervals: an end belongs to the oldest open fault of its node and type.

    At equal times begins come first, for a fault may take no time. An end without a begin is a row without one.
    """
    try:
        events = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{file}, line {error.lineno}: no JSON ({error.msg})", field="trace") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise BadInput(
            f"{file} is no list of events that can be read: give a fault trace", field="trace"
        ) from error
    if not isinstance(events, list):
        raise BadInput(f"{file} is no list of events: give a fault trace", field="trace")
    told = [_event(f"{file}, event {n}", each) for n, each in enumerate(events, 1)]
    rows: list[_Row] = []
    open_: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for at, is_end, place, event in sorted(told, key=lambda each: each[:2]):
        kind = event.get("fault_type")
        kind = kind if isinstance(kind, dict) else {}
        key = (str(event["node_id"]), json.dumps(kind, sort_keys=True))
        if is_end and open_.get(key):
            open_[key].pop(0)["end_day"] = str(at)
            continue
        fields = {
            "start_day": "" if is_end else str(at),
            "end_day": str(at) if is_end else "",
            "node": key[0],
        }
        fields |= {"class": kind.get("Class", ""), "desc": kind.get("Desc", "")}
        rows.append(_Row(place, fields))
        if not is_end:
            open_.setdefault(key, []).append(fields)
    return rows


def _event(place: str, event: Any) -> tuple[float, bool, str, dict[str, Any]]:
    """When it was, whether it is an end, where it stands, and itself."""
    if not isinstance(event, dict):
        raise BadInput(f"{place} is no object with node_id, event_time and event_type", field="trace")
    row = _Row(place, event)
    row.word("node_id")
    kind = row.word("event_type")
    if kind not in ("fault_start", "fault_end"):
        raise row.wrong("event_type", f"is {kind[:40]!r}, but must be fault_start or fault_end")
    return row.day("event_time"), kind == "fault_end", place, event


def _from_intervals(name: str, rows: Sequence[_Row], nodes: int, days: float) -> NamedTrace:
    faults, late, without_begin = [], 0, 0
    for row in rows:
        if not row.text("start_day") and row.text("end_day"):
            without_begin += 1
            continue
        begin = row.day("start_day")
        end = row.day("end_day") if row.text("end_day") else None
        if end is not None and end < begin:
            raise row.wrong("end_day", f"is {end:g}, before start_day {begin:g}: swap the two")
        if begin > days:
            late += 1
            continue
        faults.append(
            Fault(
                row.word("node"),
                DAY_ZERO + timedelta(days=begin),
                DAY_ZERO + timedelta(days=end) if end is not None and end <= days else None,
                row.text("class") or row.text("desc"),
            )
        )
    if not faults:
        what = f"all {late} faults begin after day {days:g}: give --days" if late else "it has no fault"
        raise BadInput(f"{name}: {what}; there is nothing to measure", field="trace")
    left_out = [f"{_faults(late)} after day {days:g}"] if late else []
    if without_begin:
        left_out.append(f"{_faults(without_begin)} whose begin is not told")
    trace = FaultTrace(
        _with_quiet([fault.node for fault in faults], nodes),
        tuple(faults),
        DAY_ZERO,
        DAY_ZERO + timedelta(days=days),
    )
    return NamedTrace(name, trace, tuple(left_out))


def _faults(count: int) -> str:
    return f"{count} fault{'s' if count > 1 else ''}"


def _from_systems(file: Path, rows: Sequence[_Row], nodes: int | None, system: str | None) -> NamedTrace:
    systems = sorted({row.word("system") for row in rows})
    if system is None and len(systems) > 1:
        raise BadInput(
            f"the file has the systems {', '.join(systems)}: say which with --system", field="system"
        )
    name = system or systems[0]
    mine = [row for row in rows if row.word("system") == name]
    if not mine:
        raise BadInput(f"system {name} is not in the file; it has {', '.join(systems)}", field="system")
    faults = []
    for row in mine:
        begin, end = row.time("started"), row.time("fixed") if row.text("fixed") else None
        if end is not None and end < begin:
            raise row.wrong(
                "fixed", f"is {row.text('fixed')}, before started {row.text('started')}: swap the two"
            )
        faults.append(Fault(f"node-{row.word('node')}", begin, end, row.text("category")))
    faults.sort(key=lambda fault: fault.start)
    trace = FaultTrace(
        _with_quiet([fault.node for fault in faults], _size_of_system(file, mine[0], name, nodes)),
        tuple(faults),
        faults[0].start,
        faults[-1].start,
    )
    return NamedTrace(f"system {name}", trace)


def _size_of_system(file: Path, row: _Row, name: str, nodes: int | None) -> int:
    """As the file says it, else as given."""
    text = row.text("nodes")
    if not text:
        if nodes is None:
            raise BadInput(
                f"{file} names only nodes that failed: say with --nodes how many system {name} had",
                field="nodes",
            )
        return nodes
    if nodes is not None:
        raise BadInput(
            f"{file} says itself that system {name} has {text} nodes: leave out --nodes", field="nodes"
        )
    if not text.isdecimal() or int(text) < 1:
        raise row.wrong("nodes", f"is {text[:40]!r}, but must be a number of nodes")
    return int(text)


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
