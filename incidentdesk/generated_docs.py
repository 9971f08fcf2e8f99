"""Tables in the documents that are made from the program: `python -m incidentdesk.generated_docs` writes them.

A document has a pair of comments for each; what stands between them is replaced. A test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from incidentdesk.settings.timings import TIMINGS
from recovery import guards, lifecycle, phases, price_tables
from recovery.explore import report
from recovery.rules import table
from recovery.rules.builtin import builtin_rules

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"<!-- made by the program: (?P<name>[a-z-]+) -->\n.*?<!-- end -->", re.DOTALL)


def timings() -> str:
    """Every waiting time with its three columns."""
    lines = ["| name | production | demo | short | what waits |", "|---|---|---|---|---|"]
    lines += [
        f"| `{name}` | {row.production:g} | {row.demo:g} | {row.short:g} | {row.meaning} |"
        for name, row in TIMINGS.items()
    ]
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "verdict-categories": table.category_table,
    "verdict-classes": table.class_table,
    "verdict-exits": lambda: table.exit_table(builtin_rules()),
    "verdict-rules": lambda: table.rule_table(builtin_rules()),
    "phases": phases.markdown,
    "phase-diagram": report.phase_diagram,
    "lifecycle": lifecycle.markdown,
    "lifecycle-diagrams": report.lifecycle_diagrams,
    "explored-models": report.bounds,
    "explored-properties": report.properties,
    "explored-mutants": report.mutants,
    "guards": guards.markdown,
    "timings": timings,
    "checkpoint-intervals": price_tables.checkpoint_intervals,
    "slow-node-moments": price_tables.slow_node_moments,
    "hang-chances": price_tables.hang_chances,
    "elastic-choices": price_tables.elastic_choices,
}


def filled(text: str) -> str:
    """A document's text with its tables as they are now. KeyError where a table is not known."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- made by the program: {name} -->\n{TABLES[name]().strip()}\n<!-- end -->"

    return BLOCK.sub(table, text)


def main() -> None:
    """Write every document whose tables have changed, and say which."""
    for document in sorted(DOCS.rglob("*.md")):
        before = document.read_text()
        after = filled(before)
        if after != before:
            document.write_text(after)
            print(f"written: {document.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
