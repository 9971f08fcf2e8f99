"""Walks in words: what was met, a shortest trace as a table, and the tables of the core for the documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from recovery.explore.catalog import FIRST_PROOF_STATES, SMALL, TITLES, full, model
from recovery.explore.engine import Violation, Walk
from recovery.explore.mutants import MUTANTS
from recovery.lifecycle import ACTION_TABLE, INCIDENT_TABLE, REQUEST_TABLE
from recovery.phase_state import LIVE_PHASES, Phase
from recovery.phase_table import ANY, TABLE, Row


def met(walk: Walk, seconds: float | None = None) -> str:
    """One walk in a line. ``seconds``: processor time that it took, None where nobody looked."""
    states = f"{walk.states:,} states"
    if walk.concrete != walk.states:
        states += f" for {walk.concrete:,} that differ by the names of workers"
    cut = f", {walk.cut:,} cut at the bound" if walk.cut else ""
    end = "" if walk.is_complete else " (stopped before the end)"
    took = "" if seconds is None else f", {seconds:.1f} s"
    return f"{states}, {walk.transitions:,} transitions, depth {walk.depth}{cut}{took}{end}"


def beside_first_proof(walk: Walk) -> str:
    """The number of states beside the one that the first proof of the design met, "" where it met none."""
    first = FIRST_PROOF_STATES.get(walk.model)
    if first is None:
        return ""
    more = walk.concrete >= first
    why = "" if more else "; fewer, because this setting is smaller or was not walked to its end"
    return (
        f"the first proof of this design met {first:,} states in this model, this walk {walk.concrete:,}{why}"
    )


def trace(violation: Violation) -> str:
    """A violation with its shortest trace as a table; a cell that did not change is left empty."""
    columns = list(violation.trace[0].cells)
    header = ["", "what happened", *columns]
    rows: list[list[str]] = []
    before: Mapping[str, str] = {}
    for n, line in enumerate(violation.trace):
        cells = [line.cells[name] if line.cells[name] != before.get(name) else "" for name in columns]
        mark = ">" if violation.cycle_from is not None and n >= violation.cycle_from else ""
        rows.append([f"{mark}{n}", line.event or "(start)", *cells])
        before = line.cells
    widths = [max(len(row[n]) for row in [header, *rows]) for n in range(len(header))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in [header, ["-" * width for width in widths], *rows]]  # fmt: skip
    end = ""
    if violation.cycle_from is not None:
        end = f"\nThe rows marked > repeat for ever, from row {violation.cycle_from} on."
    elif not violation.trace[1:]:
        end = "\nIt does not hold at the start."
    return f"BROKEN: {violation.name}: {violation.sentence}\n\n" + "\n".join(lines) + end + "\n"


# For the documents.


def properties() -> str:
    """Every property of every model as Markdown."""
    lines = ["| model | property | sentence |", "|---|---|---|"]
    seen = set()
    for name in TITLES:
        for property_, sentence in model(name, SMALL[name][0]).properties.items():
            if (property_, sentence) not in seen:
                seen.add((property_, sentence))
                which = "processes, channels" if name in FIRST_PROOF_STATES else name
                lines.append(f"| {which} | {property_} | {sentence} |")
    return "\n".join(lines) + "\n"


def bounds() -> str:
    """What each model leaves out, small and full, as Markdown."""
    lines = ["| model | about | walked by each test run | full size |", "|---|---|---|---|"]
    for name, title in TITLES.items():
        sizes = [
            "<br>".join("; ".join(model(name, setting).bounds) for setting in settings)
            for settings in (SMALL[name], full(name, workers=3, max_retry=2))
        ]
        lines.append(f"| {name} | {title} | {' | '.join(sizes)} |")
    return "\n".join(lines) + "\n"


def mutants() -> str:
    """Every fault that the explorer must find, as Markdown."""
    lines = ["| mutant | fault | found in | as |", "|---|---|---|---|"]
    lines += [
        f"| {mutant.name} | {mutant.sentence} | {', '.join(mutant.models)} | {mutant.broken} |"
        for mutant in MUTANTS.values()
    ]
    return "\n".join(lines) + "\n"


def phase_diagram(rows: Iterable[Row] = TABLE) -> str:
    """The phase table as a Mermaid state diagram: the rows that lead to another phase."""
    between: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.to is None:
            continue
        sources = (
            ["Live"]
            if row.phases in {LIVE_PHASES, ANY}
            else [phase for phase in Phase if phase in row.phases]
        )
        for source in sources:
            if source != row.to:
                between.setdefault((source, row.to), []).append(_shown(row))
    inner = [way for way in between if way[0] in LIVE_PHASES and way[1] in LIVE_PHASES]
    lines = ["stateDiagram-v2", "    [*] --> Pending", "    state Live {"]
    lines += [f"        {source} --> {to}: {_label(between[source, to])}" for source, to in inner]
    lines += ["    }"]
    lines += [
        f"    {source} --> {to}: {_label(names)}"
        for (source, to), names in between.items()
        if (source, to) not in inner
    ]
    return _fenced(lines)


def _shown(row: Row) -> str:
    counts = " (+1)" if row.counts == "that worker +1" else ""
    return f"{row.id.replace('.', ' ').replace('_', ' ')}{counts}"


def _label(names: list[str]) -> str:
    return ", ".join(names)


def lifecycle_diagrams() -> str:
    """The tables of incidents, actions and requests as Mermaid state diagrams."""
    parts = []
    for title, table in (("Incident", INCIDENT_TABLE), ("Action", ACTION_TABLE), ("Request", REQUEST_TABLE)):
        parts += [f"#### {title}", "", _fenced(["stateDiagram-v2", *_ways(table)])]
    return "\n".join(parts)


def _ways(table: Mapping[Any, frozenset[Any]]) -> Iterator[str]:
    kind: type[StrEnum] = type(next(iter(table)))
    states = list(kind)
    yield f"    [*] --> {states[0]}"
    for state, following in table.items():
        for to in states:
            if to in following and to is not state:
                yield f"    {state} --> {to}"
    for state in states:
        if not table.get(state):
            yield f"    {state} --> [*]"


def _fenced(lines: Iterable[str]) -> str:
    return "\n".join(["```mermaid", *lines, "```"]) + "\n"
