"""Every page in a real browser: accessible in both themes, nothing refused by the policy, nothing off the screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.incidents.models import Incident
from apps.jobs.models import Job
from apps.nodes.models import Machine
from tests.browser.conftest import Reader, Site

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}


def addresses(site: Site) -> dict[str, str]:
    def find() -> dict[str, str]:
        recovered = Incident.objects.get(job__name="llm-70b-pretrain")
        waiting = Incident.objects.get(state="waiting")
        return {
            "overview": "/",
            "incidents": "/incidents/?tab=all",
            "incident recovered": f"/incidents/{recovered.pk}/",
            "incident waiting": f"/incidents/{waiting.pk}/",
            "attempts": f"/incidents/{recovered.pk}/?tab=attempts",
            "audit": f"/incidents/{recovered.pk}/?tab=audit",
            "jobs": "/jobs/?tab=all",
            "job": f"/jobs/{Job.objects.get(name='clip-vit-h').pk}/",
            "job failed": f"/jobs/{Job.objects.get(name='tts-finetune').pk}/",
            "events": f"/jobs/{recovered.job_id}/?tab=events",
            "nodes": "/nodes/",
            "racks": "/nodes/?view=racks",
            "node": f"/nodes/{Machine.objects.get(name='gpu-r03-05').pk}/",
            "search": "/search/?q=gpu-r0",
            "preferences": "/preferences/",
            "nothing found": "/incidents/?q=nonesuch",
        }

    return site.rows(find)  # type: ignore[no-any-return]


def violations(page: Any) -> list[str]:
    page.evaluate(AXE)
    found = page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for one in found
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(make_reader: Callable[..., Reader], site: Site, scheme: str) -> None:
    reader = make_reader(scheme=scheme)
    found = {}
    for name, address in addresses(site).items():
        reader.open(address)
        if bad := violations(reader.page):
            found[name] = bad
    assert found == {}


def test_narrow_pages_are_accessible_and_do_not_scroll_sideways(
    make_reader: Callable[..., Reader], site: Site
) -> None:
    reader = make_reader(width=375)
    found = {}
    for name, address in addresses(site).items():
        reader.open(address)
        wide = reader.page.evaluate("document.documentElement.scrollWidth")
        bad = violations(reader.page) + ([f"{wide} px wide"] if wide > 375 else [])
        if bad:
            found[name] = bad
    assert found == {}


@pytest.mark.parametrize("width", [640, 900, 1100])
def test_pages_between_do_not_scroll_sideways(
    make_reader: Callable[..., Reader], site: Site, width: int
) -> None:
    reader = make_reader(width=width)
    found = {}
    for name, address in addresses(site).items():
        reader.open(address)
        wide = reader.page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            found[name] = wide
    assert found == {}


def test_menus_and_dialogs_are_accessible(reader: Reader, site: Site) -> None:
    reader.open(addresses(site)["incident waiting"])
    reader.page.get_by_text("mei.lin").first.click()
    assert violations(reader.page) == []
    reader.page.keyboard.press("Escape")
    reader.page.get_by_role("link", name="Resolve").click()
    reader.page.get_by_role("dialog").get_by_role("textbox", name="Why").wait_for()
    assert violations(reader.page) == []


def test_pages_read_without_scripts(make_reader: Callable[..., Reader], site: Site) -> None:
    reader = make_reader(scripts=False)
    expected = {
        "overview": "5 open incidents",
        "incidents": "No progress: step 1200 after 3 restarts",
        "incident recovered": "Why this action",
        "job": "several versions",
        "nodes": "gpu-r01-01",
    }
    for name, said in expected.items():
        reader.page.goto(site.url + addresses(site)[name])
        assert said in reader.page.locator("main").inner_text()
    reader.page.goto(site.url + addresses(site)["incident waiting"])
    reader.page.get_by_role("link", name="Resolve").click()
    assert reader.page.get_by_role("textbox", name="Why").first.is_visible()


def test_login_page_and_errors_are_accessible(browser: Any, site: Site) -> None:
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        for address in ("/login/", "/nowhere/"):
            page.goto(site.url + address)
            assert violations(page) == []
        context.close()
