"""Geometry of the small charts that the server draws as SVG: stages, meters, racks, workers.

Templates only place what is computed here. Widths are attributes of SVG elements, since the content
security policy allows no inline style.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from apps.desk.words import Mark, mark_for
from apps.nodes.models import Machine
from apps.nodes.selectors import NodeState, RackCount

NARROWEST_PERCENT = 0.7  # a stage of a few milliseconds must still be seen
# A label is drawn where it fits whole: its letters and margins in pixels, in the narrowest bar that has labels.
LETTER_PIXELS, LABEL_MARGIN_PIXELS, NARROWEST_BAR_PIXELS = 7.2, 18, 520
NODES_DRAWN_SINGLY = 240  # above it racks are drawn from counts, whatever the size
WORKERS_AS_CARDS = 48


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar: place and width in percent of the whole bar."""

    name: str
    css: str
    seconds: float
    x: float
    width: float
    has_label: bool


def segments(parts: Sequence[tuple[str, str, float]]) -> list[Segment]:
    """Lay (name, css word, seconds) out along a bar of 100 percent; parts of nothing are left out."""
    parts = [part for part in parts if part[2] > 0]
    total = sum(seconds for _, _, seconds in parts)
    if not total:
        return []
    widths = [max(NARROWEST_PERCENT, 100 * seconds / total) for _, _, seconds in parts]
    scale = 100 / sum(widths)
    laid, x = [], 0.0
    for (name, css, seconds), unscaled in zip(parts, widths, strict=True):
        width = unscaled * scale
        laid.append(Segment(name, css, seconds, round(x, 3), round(width, 3), _label_fits(name, width)))
        x += width
    return laid


def _label_fits(name: str, width_percent: float) -> bool:
    needed = LABEL_MARGIN_PIXELS + LETTER_PIXELS * len(name)
    return width_percent / 100 * NARROWEST_BAR_PIXELS >= needed


def percent(part: float, whole: float) -> float:
    """A share for a meter, between 0 and 100; 0 of nothing is 0."""
    return 0.0 if whole <= 0 else round(max(0.0, min(100.0, 100 * part / whole)), 2)


@dataclass(frozen=True, slots=True)
class Cell:
    """One square of a grid: its place in pixels, its mark, and what it stands for."""

    x: int
    y: int
    mark: Mark
    title: str
    url_id: int | None = None  # row id of the node; None for a cell that only counts


@dataclass(frozen=True, slots=True)
class Rack:
    """A drawn rack."""

    name: str
    cluster: str
    width: int
    height: int
    cell: int
    cells: list[Cell] = field(default_factory=list)
    summary: str = ""  # for those who do not see it


def racks_of_machines(machines: Sequence[Machine]) -> list[Rack]:
    """Racks with one linked cell for each machine (with ``state``), in the order given."""
    grouped: dict[tuple[str, str], list[Machine]] = {}
    for machine in machines:
        grouped.setdefault((machine.cluster.slug, machine.rack), []).append(machine)
    racks = []
    for (cluster, rack), members in grouped.items():
        columns = 2 if len(members) <= 8 else 4
        cells = [
            Cell(
                x=place % columns * 26,
                y=place // columns * 26,
                mark=mark_for("node", machine.state),  # type: ignore[attr-defined]  # annotated
                title=f"{machine.name}, {mark_for('node', machine.state).word}",  # type: ignore[attr-defined]
                url_id=machine.pk,
            )
            for place, machine in enumerate(members)
        ]
        rows = -(-len(members) // columns)
        by_state: dict[str, int] = {}
        for machine in members:
            by_state[machine.state] = by_state.get(machine.state, 0) + 1  # type: ignore[attr-defined]
        racks.append(Rack(rack, cluster, columns * 26 - 2, rows * 26 - 2, 24, cells, _summary(by_state)))
    return racks


def racks_of_counts(counts: Sequence[RackCount], limit: int = 400) -> list[Rack]:
    """Racks drawn from counts, worst state first: the cost does not grow with the fleet, only with its racks."""
    worst_first = [state for state in reversed(NodeState) if state is not NodeState.GONE]
    racks = []
    for count in counts[:limit]:
        columns = max(4, min(8, count.total // 8))
        drawn = min(count.total, columns * 16)
        cells: list[Cell] = []
        for state in worst_first:
            mark = mark_for("node", state)
            for _ in range(count.by_state.get(state, 0)):
                place = len(cells)
                if place < drawn:
                    cells.append(Cell(place % columns * 12, place // columns * 12, mark, ""))
        rows = -(-len(cells) // columns)
        racks.append(
            Rack(
                count.rack,
                count.cluster,
                columns * 12 - 2,
                max(1, rows) * 12 - 2,
                10,
                cells,
                _summary(count.by_state),
            )
        )
    return racks


def _summary(by_state: dict[str, int]) -> str:
    words = [
        f"{by_state[state]} {mark_for('node', state).word}" for state in NodeState if by_state.get(state)
    ]
    return ", ".join(words)


def grid(marks: Sequence[tuple[Mark, str]], columns: int = 50) -> Rack:
    """Cells of one size in rows: for workers of a large job. (mark, title) each, in order."""
    cells = [
        Cell(place % columns * 14, place // columns * 14, mark, title)
        for place, (mark, title) in enumerate(marks)
    ]
    rows = -(-len(marks) // columns)
    return Rack("", "", columns * 14 - 2, max(1, rows) * 14 - 2, 12, cells)
