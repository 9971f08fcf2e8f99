"""What a page does by itself and under the reader's hands: live updates, pauses, keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from apps.access.clock import database_now
from apps.desk.management.commands.sample_data import Sample
from apps.incidents.models import Incident
from apps.incidents.services import feed
from apps.jobs.models import Job
from apps.nodes.models import Machine
from tests.browser.conftest import Reader, Site, sync_api

expect = sync_api.expect
POLL_EVERY = 5000  # static/js/live.js, milliseconds; the page's clock is put forward by them
BEAT_LATE = 16_000


@pytest.fixture
def incident(site: Site) -> Iterator[Incident]:
    """An open incident of its own, gone after the test."""

    def make() -> Incident:
        with transaction.atomic():
            sample = Sample.of_database(database_now())
            job = Job.objects.get(name="mt-en-de")
            made = sample.incident(
                job, "Process of worker 0 died on gpu-r10-01", "recovering", "high", age=5, rung="L1"
            )
            feed.publish(tenant_id=made.tenant_id, topic="incident", key=made.pk, now=database_now())
        return made

    made = site.rows(make)
    yield made
    site.rows(lambda: Incident.objects.filter(pk=made.pk).delete())


def change(site: Site, incident: Incident, **fields: Any) -> None:
    """Change the incident as a decision would: the row and its feed row in one transaction."""

    def commit() -> None:
        with transaction.atomic():
            Incident.objects.filter(pk=incident.pk).update(**fields)
            feed.publish(tenant_id=incident.tenant_id, topic="incident", key=incident.pk, now=database_now())

    site.rows(commit)


def mark(reader: Reader) -> None:
    """Leave a mark that a reload would wipe away."""
    reader.page.evaluate("window.untouched = true")


def is_untouched(reader: Reader) -> bool:
    return bool(reader.page.evaluate("window.untouched === true"))


def test_row_changes_in_place_when_a_change_is_committed(
    reader: Reader, site: Site, incident: Incident
) -> None:
    reader.open("/incidents/")
    mark(reader)
    row = reader.page.locator(f"#incident-{incident.pk}")
    row.evaluate("node => node.dataset.same = 'yes'")
    expect(row).to_contain_text("recovering")
    change(site, incident, state="watching")
    expect(row).to_contain_text("watching")
    assert row.evaluate("node => node.dataset.row") == str(incident.pk)
    assert is_untouched(reader)


def test_incident_page_follows_to_the_end(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open(f"/incidents/{incident.pk}/")
    mark(reader)
    change(site, incident, state="watching")
    expect(reader.page.locator("main .head")).to_contain_text("watching")
    change(site, incident, state="resolved", resolution="recovered", resolved_at=database_now_of(site))
    expect(reader.page.locator("main .head")).to_contain_text("resolved")
    expect(reader.page.locator("main .head")).to_contain_text("training runs well again")
    expect(reader.page).to_have_title(f"resolved: {incident.title} · INC-{incident.pk}")
    assert is_untouched(reader)


def database_now_of(site: Site) -> Any:
    return site.rows(database_now)


def test_new_rows_wait_behind_a_bar(reader: Reader, site: Site, incident: Incident) -> None:
    """D5: rows do not jump while one reads."""
    reader.open("/incidents/?tab=all")
    first = reader.page.locator("tbody tr").first
    shown = first.get_attribute("id")

    def make() -> Incident:
        with transaction.atomic():
            made = Sample.of_database(database_now()).incident(
                Job.objects.get(name="llm-7b-eval"), "Brand new", "open", "critical", age=0
            )
            feed.publish(tenant_id=made.tenant_id, topic="incident", key=made.pk, now=database_now())
        return made

    made = site.rows(make)
    try:
        bar = reader.page.locator("#new-rows")
        expect(bar).to_have_text("1 new")
        assert first.get_attribute("id") == shown
        assert "held" not in reader.page.url
        bar.click()
        expect(reader.page.locator(f"#incident-{made.pk}")).to_be_visible()
    finally:
        site.rows(made.delete)


def test_page_waits_while_a_dialog_is_open(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open(f"/incidents/{incident.pk}/")
    reader.page.get_by_role("link", name="Resolve").click()
    reader.page.get_by_role("textbox", name="Why").fill("half a sentence")
    change(site, incident, state="needs_person")
    expect(reader.page.locator("[data-live]")).to_contain_text("waits: a menu is open")
    expect(reader.page.locator("main .head")).to_contain_text("recovering")
    assert reader.page.get_by_role("textbox", name="Why").input_value() == "half a sentence"
    reader.page.keyboard.press("Escape")
    expect(reader.page.locator("main .head")).to_contain_text("needs a person")


def test_dialog_opened_during_a_refresh_stays_open(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open(f"/incidents/{incident.pk}/")
    held: list[Any] = []
    reader.page.route(
        f"**/incidents/{incident.pk}/",
        lambda route: held.append(route) if route.request.headers.get("hx-request") else route.continue_(),
    )
    with reader.page.expect_request(f"**/incidents/{incident.pk}/"):
        change(site, incident, state="needs_person")
    reader.page.get_by_role("link", name="Resolve").click()
    with reader.page.expect_response(f"**/incidents/{incident.pk}/"):
        held.pop().continue_()
    expect(reader.page.locator("[data-live]")).to_contain_text("waits: a menu is open")
    expect(reader.page.get_by_role("textbox", name="Why")).to_be_visible()
    reader.page.keyboard.press("Escape")
    reader.page.unroute_all()
    expect(reader.page.locator("main .head")).to_contain_text("needs a person")


def test_page_waits_while_text_is_selected(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open(f"/incidents/{incident.pk}/")
    reader.page.locator("h1").click(click_count=3)
    change(site, incident, state="needs_person")
    expect(reader.page.locator("[data-live]")).to_contain_text("waits: text is selected")
    expect(reader.page.locator("main .head")).to_contain_text("recovering")
    reader.page.evaluate("getSelection().removeAllRanges()")
    expect(reader.page.locator("main .head")).to_contain_text("needs a person")


def test_row_that_has_the_focus_changes_too(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open("/incidents/")
    row = reader.page.locator(f"#incident-{incident.pk}")
    row.locator("[data-row-link]").focus()
    change(site, incident, state="needs_person", title="Renamed meanwhile")
    expect(row).to_contain_text("needs a person")
    expect(row.locator("[data-row-link]")).to_contain_text("Renamed meanwhile")
    expect(row.locator("[data-row-link]")).to_be_focused()


def test_what_is_being_typed_survives_a_change(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open("/incidents/")
    reader.page.locator("#q").click()
    reader.page.keyboard.type("half a w")
    change(site, incident, state="needs_person")
    expect(reader.page.locator(f"#incident-{incident.pk}")).to_contain_text("needs a person")
    expect(reader.page.locator("#q")).to_have_value("half a w")
    expect(reader.page.locator("#q")).to_be_focused()


def test_what_was_typed_and_not_sent_survives_a_change(
    reader: Reader, site: Site, incident: Incident
) -> None:
    reader.open("/incidents/")
    reader.page.locator("#q").fill("half a w")
    reader.page.locator("h1").click()
    expect(reader.page.locator("#q")).not_to_be_focused()
    change(site, incident, state="needs_person")
    expect(reader.page.locator(f"#incident-{incident.pk}")).to_contain_text("needs a person")
    expect(reader.page.locator("#q")).to_have_value("half a w")


def test_node_changes_in_place_when_the_watch_has_seen_it(reader: Reader, site: Site) -> None:
    def cordon(is_cordoned: bool) -> Callable[[], Any]:
        def commit() -> int:
            with transaction.atomic():
                machine = Machine.objects.get(name="gpu-r08-03")
                Machine.objects.filter(pk=machine.pk).update(is_cordoned=is_cordoned)
                feed.publish_nodes(machine_ids=[machine.pk], now=database_now())
            return machine.pk

        return commit

    reader.open("/nodes/?q=gpu-r08")
    mark(reader)
    node = site.rows(cordon(True))
    try:
        expect(reader.page.locator(f"#node-{node}")).to_contain_text("cordoned", timeout=10_000)
        assert is_untouched(reader)
    finally:
        site.rows(cordon(False))


def test_reader_can_pause_and_go_on(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open(f"/incidents/{incident.pk}/")
    live = reader.page.locator("[data-live]")
    live.click()
    expect(live).to_contain_text("paused")
    change(site, incident, state="needs_person")
    expect(live).to_contain_text("paused, 1 s old")
    expect(reader.page.locator("main .head")).to_contain_text("recovering")
    live.click()
    expect(reader.page.locator("main .head")).to_contain_text("needs a person")


def test_unfolded_lines_stay_unfolded(reader: Reader, site: Site) -> None:
    recovered = site.rows(lambda: Incident.objects.get(job__name="llm-70b-pretrain"))
    reader.open(f"/incidents/{recovered.pk}/")
    reader.page.get_by_text("6 workers restored step 3300").click()
    opened = reader.page.locator("details[open]")
    expect(opened).to_contain_text("Worker 4 restored step 3300")
    change(site, recovered, title="Renamed meanwhile")
    expect(reader.page.locator("h1")).to_have_text("Renamed meanwhile")
    expect(opened).to_contain_text("Worker 4 restored step 3300")
    change(site, recovered, title="Process of worker 3 died on gpu-r01-04")


def test_without_a_stream_the_page_polls(
    make_reader: Callable[..., Reader], site: Site, incident: Incident
) -> None:
    """D4: polling is the fallback."""
    reader = make_reader()
    reader.page.route("**/live/**", lambda route: route.abort())
    reader.page.clock.install()
    reader.page.goto(f"{site.url}/incidents/{incident.pk}/")
    expect(reader.page.locator("[data-live]")).to_have_attribute("data-state", "polling")
    change(site, incident, state="needs_person")
    reader.page.clock.fast_forward(POLL_EVERY)
    expect(reader.page.locator("main .head")).to_contain_text("needs a person")
    reader.complaints[:] = [said for said in reader.complaints if "ERR_FAILED" not in said]


def test_page_says_how_old_it_is_when_nothing_answers(reader: Reader, site: Site) -> None:
    reader.page.clock.install()
    reader.open("/")
    live = reader.page.locator("[data-live]")
    with site.silent():
        reader.page.clock.fast_forward(BEAT_LATE + 2000)
        expect(live).to_have_attribute("data-state", "late")
        expect(live).to_contain_text("not updated for 1")
    reader.page.clock.fast_forward(POLL_EVERY)
    expect(live).to_have_attribute("data-state", "live", timeout=40_000)
    expect(live).to_contain_text("updated")


def test_acknowledge_in_the_list_shows_at_once(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open("/incidents/")
    mark(reader)
    row = reader.page.locator(f"#incident-{incident.pk}")
    row.hover()
    row.get_by_role("button", name="Acknowledge").click()
    expect(row).to_contain_text("mei.lin")
    expect(reader.page.locator("[data-toasts]")).to_contain_text(f"INC-{incident.pk} is yours now.")
    assert is_untouched(reader)


def test_resolve_needs_a_reason_and_shows_the_end(reader: Reader, site: Site, incident: Incident) -> None:
    reader.open(f"/incidents/{incident.pk}/")
    mark(reader)
    reader.page.keyboard.press("r")
    dialog = reader.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Resolve").click()
    expect(dialog).to_be_visible()  # the browser wants the reason first
    dialog.get_by_role("textbox", name="Why").fill("the node was swapped")
    dialog.get_by_role("button", name="Resolve").click()
    expect(reader.page.locator("main .head")).to_contain_text("resolved by a person")
    expect(dialog).to_be_hidden()
    assert is_untouched(reader)


def test_keys_move_open_and_go(reader: Reader, site: Site) -> None:
    reader.open("/incidents/?tab=all")
    reader.page.keyboard.press("j")
    reader.page.keyboard.press("j")
    rows = reader.page.locator("tbody tr")
    expect(rows.nth(1)).to_have_class("is-current")
    reader.page.keyboard.press("k")
    expect(rows.nth(0)).to_have_class("is-current")
    address = rows.nth(0).locator("[data-row-link]").get_attribute("href")
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_url(f"**{address}")
    reader.page.keyboard.press("g")
    reader.page.keyboard.press("j")
    reader.page.wait_for_url("**/jobs/")
    reader.page.keyboard.press("g")
    reader.page.keyboard.press("o")
    reader.page.wait_for_url(f"{site.url}/")
    reader.page.go_back()
    reader.page.wait_for_url("**/jobs/")


def test_slash_searches_and_typing_is_left_alone(reader: Reader, site: Site) -> None:
    reader.open("/jobs/")
    reader.page.keyboard.press("/")
    expect(reader.page.locator("#search")).to_be_focused()
    reader.page.keyboard.type("gjar?")
    assert reader.page.locator("#search").input_value() == "gjar?"
    assert reader.page.url.endswith("/jobs/")
    reader.page.keyboard.press("Escape")
    reader.page.locator("#search").fill("gpu-r12-01")
    reader.page.locator("#search").press("Enter")
    reader.page.wait_for_url("**/nodes/*/")


def test_sheet_lists_every_key_of_the_registry(reader: Reader) -> None:
    """D22: one registry feeds keys and sheet."""
    reader.open("/")
    reader.page.keyboard.press("?")
    sheet = reader.page.get_by_role("dialog", name="Keys")
    expect(sheet).to_be_visible()
    said = sheet.inner_text()
    for word in ("Search", "Next row", "Acknowledge", "Resolve", "Go to nodes", "This sheet"):
        assert word in said


def test_single_keys_can_be_switched_off(make_reader: Callable[..., Reader], site: Site) -> None:
    reader = make_reader("j.ortiz")
    reader.open("/jobs/")
    reader.page.get_by_text("j.ortiz").first.click()
    reader.page.get_by_role("button", name="Turn single keys off").click()
    reader.page.wait_for_selector('body[data-single-keys="off"]')
    reader.page.keyboard.press("j")
    assert reader.page.locator(".is-current").count() == 0
    reader.page.get_by_text("j.ortiz").first.click()
    reader.page.get_by_role("button", name="Turn single keys on").click()
    reader.page.wait_for_selector('body[data-single-keys="on"]')


def test_back_button_shows_a_page_and_not_a_fragment(reader: Reader, site: Site, incident: Incident) -> None:
    """D16: fragments have explicit targets and are never taken for pages."""
    reader.open("/incidents/")
    change(site, incident, state="watching")
    expect(reader.page.locator(f"#incident-{incident.pk}")).to_contain_text("watching")
    reader.page.locator(f"#incident-{incident.pk} [data-row-link]").click()
    reader.page.wait_for_url(f"**/incidents/{incident.pk}/")
    reader.page.go_back()
    reader.page.wait_for_url("**/incidents/")
    expect(reader.page.locator(".topbar")).to_be_visible()
    expect(reader.page.locator(f"#incident-{incident.pk}")).to_contain_text("watching")


def test_session_that_ended_is_said_with_a_way_back(make_reader: Callable[..., Reader], site: Site) -> None:
    reader = make_reader()
    reader.open("/incidents/?tab=all")
    reader.page.context.clear_cookies()
    reader.page.evaluate("htmx.trigger(document.getElementById('page'), 'desk:refresh')")
    told = reader.page.get_by_role("status", name="Messages")
    expect(told).to_contain_text("Your session has ended, this page stands still.")
    expect(reader.page.locator("[data-live-word]")).to_have_text("logged out")
    told.get_by_role("link", name="Log in").click()
    reader.page.wait_for_url("**/login/?next=/incidents/%3Ftab%3Dall")
    reader.complaints.clear()  # the browser's own line about the answer 401
