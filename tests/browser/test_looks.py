"""Every page in a real browser: accessible in both themes, nothing refused by the policy, nothing off the screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.incidents.models import Incident
from apps.jobs.models import Job
from apps.nodes.models import Machine, WatchState
from tests.browser.conftest import Reader, Site

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
RULES_OF_COLOR = {
    "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]},
    "resultTypes": ["violations"],
}  # of the same document in another theme nothing else can differ
WIDTHS = (1100, 900, 640, 375)
PAGES = (
    "overview", "incidents", "incident recovered", "incident waiting", "attempts", "audit", "jobs", "job", "job failed",
    "events", "nodes", "racks", "node", "search", "preferences", "nothing found",
)  # fmt: skip


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


def violations(page: Any, rules: dict[str, Any] = RULES) -> list[str]:
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate("rules => axe.run(document, rules)", rules)["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for one in found
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_fits_in_both_themes_and_at_every_width(
    make_reader: Callable[..., Reader], site: Site, name: str
) -> None:
    """One load: themes and widths are the style's, so they change under the loaded page."""
    reader = make_reader()
    page = reader.page
    reader.open(addresses(site)[name])
    bad = violations(page)
    page.emulate_media(color_scheme="dark")
    bad += [f"dark: {one}" for one in violations(page, RULES_OF_COLOR)]
    page.emulate_media(color_scheme="light")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth")
        bad += [f"{wide} px wide at {width}"] if wide > width else []
    bad += [f"narrow: {one}" for one in violations(page)]
    assert bad == []


def test_overview_fits_when_a_source_is_in_trouble(reader: Reader, site: Site) -> None:
    site.rows(lambda: WatchState.objects.filter(resource="pods").update(state="broken"))
    try:
        reader.open("/")
        assert "not up to date" in reader.page.locator("aside").inner_text()
        for width in WIDTHS:
            reader.page.set_viewport_size({"width": width, "height": 900})
            assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    finally:
        site.rows(lambda: WatchState.objects.filter(resource="pods").update(state="watching"))


def test_headings_show_on_a_narrow_screen(make_reader: Callable[..., Reader]) -> None:
    reader = make_reader("j.ortiz", width=375)
    reader.open("/")
    heading = reader.page.get_by_role("heading", name="Resolved lately")
    assert heading.bounding_box()["height"] > 10
    assert (
        reader.page.locator("[data-live]").evaluate("node => getComputedStyle(node, '::after').content")
        != "none"
    )


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
