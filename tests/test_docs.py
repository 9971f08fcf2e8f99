"""The documents say what is so: tables made by the program, names that exist, pages that can be found."""

from __future__ import annotations

import re

import pytest

from incidentdesk import generated_docs
from incidentdesk.frontdoor.links import broken_links
from incidentdesk.frontdoor.places import CHECKOUT
from incidentdesk.settings.timings import TIMINGS
from sim.faults import FAULTS

DOCS = CHECKOUT / "docs"


@pytest.mark.parametrize("name", sorted(generated_docs.TABLES))
def test_table_is_in_the_documents_as_the_program_has_it(name: str) -> None:
    holders = [
        path for path in DOCS.rglob("*.md") if f"<!-- made by the program: {name} -->" in path.read_text()
    ]
    assert len(holders) == 1
    text = holders[0].read_text()
    assert generated_docs.filled(text) == text, "run: python -m incidentdesk.generated_docs"
    assert generated_docs.TABLES[name]().strip() in text


def test_changed_table_is_replaced_and_the_text_around_it_stays() -> None:
    text = "before\n<!-- made by the program: timings -->\nold\n<!-- end -->\nafter\n"
    filled = generated_docs.filled(text)
    assert filled.startswith("before\n")
    assert filled.endswith("\nafter\n")
    assert "old" not in filled
    assert all(f"`{name}`" in filled for name in TIMINGS)


def test_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text()
    linked = set(re.findall(r"\]\(([^)#]+)", index))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert linked >= pages


def test_links_lead_somewhere() -> None:
    images = [found for found in broken_links(CHECKOUT) if found.startswith("docs/")]
    assert images == []


def test_faults_of_the_simulated_cluster_are_those_that_there_are() -> None:
    text = (DOCS / "design" / "simulated-cluster.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == set(FAULTS)


def test_variables_in_the_documents_are_read_somewhere() -> None:
    documents = [CHECKOUT / "README.md", *DOCS.rglob("*.md")]
    named = {
        name for path in documents for name in re.findall(r"INCIDENTDESK_[A-Z_]*[A-Z]", path.read_text())
    }
    code = [
        path
        for folder in ("agent", "apps", "incidentdesk", "sim")
        for path in (CHECKOUT / folder).rglob("*.py")
    ]
    read = "\n".join(path.read_text() for path in code)
    times = {f"INCIDENTDESK_{name}" for name in TIMINGS}
    assert {name for name in named - times if name not in read} == set()
