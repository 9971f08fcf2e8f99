"""The list of incidents: tabs, filters, pages, rows held in place, export."""

from __future__ import annotations

import csv
import io
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.clock import database_now
from apps.desk.management.commands.sample_data import Sample
from apps.incidents.models import Incident
from tests.desk.conftest import incident_of, job, text_of


def rows(html: str) -> list[int]:
    return [int(n) for n in re.findall(r'<tr id="incident-(\d+)"', html)]


def listed(client: Client, query: str = "") -> list[int]:
    return rows(client.get(f"/incidents/?{query}").content.decode())


def downloaded(client: Client, query: str = "") -> list[dict[str, str]]:
    response = client.get(f"/incidents.csv?{query}")
    assert response.status_code == 200
    return list(csv.DictReader(io.StringIO(b"".join(response.streaming_content).decode())))


def test_tabs_count_what_they_show(operator: Client) -> None:
    html = operator.get("/incidents/?tab=all").content.decode()
    tabs = dict(re.findall(r'(\w+) <span class="count">([\d,+]+)</span>', html))
    for tab, name in (
        ("open", "Open"),
        ("acknowledged", "Acknowledged"),
        ("resolved", "Resolved"),
        ("all", "All"),
    ):
        assert int(tabs[name]) == len(listed(operator, f"tab={tab}"))
    assert tabs == {"Open": "5", "Acknowledged": "1", "Resolved": "3", "All": "8"}


def test_newest_stands_first(operator: Client) -> None:
    found = listed(operator, "tab=all")
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("severity=critical", {"bert-distil"}),
        ("severity=critical&severity=low", {"bert-distil", "clip-vit-h"}),
        ("state=waiting", {"vision-moe"}),
        ("q=rlhf", {"rlhf-ppo"}),
        ("q=no+progress", {"bert-distil"}),
        ("tab=all&q=Failed", {"tts-finetune"}),
        ("severity=critical&state=waiting", set()),
    ],
)
def test_filters_narrow(operator: Client, query: str, expected: set[str]) -> None:
    found = set(Incident.objects.filter(id__in=listed(operator, query)).values_list("job__name", flat=True))
    assert found == expected


def test_number_finds_its_incident(operator: Client) -> None:
    wanted = incident_of("asr-large", state="watching")
    assert wanted.pk in listed(operator, f"q=INC-{wanted.pk}")


def test_pages_hold_fifty_and_meet_without_gap(operator: Client) -> None:
    Sample(database_now(), password="").make_history(120)
    seen: list[int] = []
    query = "tab=all"
    for _ in range(10):
        html = operator.get(f"/incidents/?{query}").content.decode()
        seen += rows(html)
        assert len(rows(html)) <= 50
        older = re.search(r'href="\?([^"]*)" rel="next"', html)
        if older is None:
            break
        query = older[1].replace("&amp;", "&")
    assert seen == list(Incident.objects.order_by("-id").values_list("id", flat=True))
    newer = re.search(r'href="\?([^"]*)" rel="prev"', html)
    assert newer is not None
    assert listed(operator, newer[1].replace("&amp;", "&")) == seen[-len(rows(html)) - 50 : -len(rows(html))]


def test_more_rows_cost_no_more_queries(operator: Client) -> None:
    """D1: cost per page is flat."""
    with CaptureQueriesContext(connection) as few:
        operator.get("/incidents/?tab=all")
    Sample(database_now(), password="").make_history(300)
    with CaptureQueriesContext(connection) as many:
        operator.get("/incidents/?tab=all")
    assert len(many) == len(few)


def test_open_list_keeps_its_rows_and_counts_newer_ones(operator: Client) -> None:
    """D5: rows do not jump while one reads."""
    before = listed(operator, "tab=all")
    Sample(database_now(), password="").make_history(3)
    held = ",".join(map(str, before))
    html = operator.get(f"/incidents/?tab=all&held={held}", headers={"HX-Request": "true"}).content.decode()
    assert rows(html) == before
    assert re.search(r'id="new-rows"[^>]*>3 new<', html)
    assert "held=" not in re.search(r'hx-get="([^"]*)"', html)[1]  # type: ignore[index]


def test_row_that_left_the_view_stays_in_place_and_says_so(operator: Client) -> None:
    before = listed(operator)
    gone = incident_of("vision-moe", state="waiting")
    Incident.objects.filter(pk=gone.pk).update(
        state="resolved", resolved_at=database_now(), resolution="recovered"
    )
    html = operator.get(f"/incidents/?held={','.join(map(str, before))}").content.decode()
    assert rows(html) == before
    row = re.search(rf'<tr id="incident-{gone.pk}".*?</tr>', html, re.DOTALL)
    assert row is not None
    assert "is-outdated" in row[0]
    assert "resolved" in row[0]


def test_held_rows_of_other_tenants_do_not_show(vision: Client) -> None:
    foreign = incident_of("llm-70b-pretrain")
    assert rows(vision.get(f"/incidents/?tab=all&held={foreign.pk}").content.decode()) == []


@pytest.mark.parametrize(
    "query", ["", "tab=all", "severity=high&severity=medium&tab=all", "q=worker&tab=all", "tab=resolved"]
)
def test_download_equals_the_filter_on_screen(operator: Client, query: str) -> None:
    """D15: the export does not ignore the filter."""
    assert [int(row["incident"].removeprefix("INC-")) for row in downloaded(operator, query)] == listed(
        operator, query
    )


def test_download_holds_every_page_in_utc(operator: Client) -> None:
    Sample(database_now(), password="").make_history(1100)
    found = downloaded(operator, "tab=all")
    assert len(found) == Incident.objects.count()
    assert all(row["opened_at"].endswith("Z") for row in found)


def test_download_link_carries_the_filter(operator: Client) -> None:
    html = operator.get("/incidents/?tab=all&severity=high&q=worker").content.decode()
    assert re.search(r'href="/incidents\.csv\?tab=all&amp;severity=high&amp;q=worker" download', html)


def test_download_gives_spreadsheets_no_formula(operator: Client) -> None:
    Incident.objects.filter(pk=incident_of("asr-large", state="watching").pk).update(
        title='=HYPERLINK("http://x")'
    )
    assert any(row["title"].startswith("'=HYPERLINK") for row in downloaded(operator))


def test_job_filter_names_its_job(operator: Client) -> None:
    wanted = job("rlhf-ppo")
    response = operator.get(f"/incidents/?tab=all&job={wanted.pk}")
    assert "job rlhf-ppo" in text_of(response)
    assert Incident.objects.filter(id__in=rows(response.content.decode()), job=wanted).count() == 1


def test_column_says_outcome_where_nothing_comes_next(operator: Client) -> None:
    ended = operator.get("/incidents/?tab=resolved").content.decode()
    assert ">Outcome</th>" in ended
    assert ">Next</th>" not in ended
    both = operator.get("/incidents/?tab=all").content.decode()
    assert ">Next, or outcome</th>" in both
    assert 'data-label="Next"' in both
    assert 'data-label="Outcome"' in both


def test_next_step_is_said_for_each_state(operator: Client) -> None:
    text = text_of(operator.get("/incidents/?tab=all"))
    for said in (
        "a person decides",
        "restart process in 29 min",
        "restart process: sent, its effect not seen yet",
        "trains again, steady after 5 steps",
        "a second witness",
    ):
        assert said in text
