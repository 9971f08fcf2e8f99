"""Every page answers, reads without scripts, keeps its budgets and its number of queries."""

from __future__ import annotations

import gzip
import re
from html import unescape
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents import rules
from apps.incidents.models import Incident
from apps.incidents.selectors import OPEN_WORDS
from apps.incidents.services.retiring import retire_cluster
from apps.jobs.models import Incarnation, Job
from apps.nodes.models import Machine
from tests.desk.conftest import incident_of, job, text_of

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = {
    "overview": lambda: "/",
    "incidents": lambda: "/incidents/",
    "all incidents": lambda: "/incidents/?tab=all",
    "incident": lambda: f"/incidents/{incident_of('llm-70b-pretrain').pk}/",
    "incident attempts": lambda: f"/incidents/{incident_of('llm-70b-pretrain').pk}/?tab=attempts",
    "incident audit": lambda: f"/incidents/{incident_of('llm-70b-pretrain').pk}/?tab=audit",
    "jobs": lambda: "/jobs/",
    "job": lambda: f"/jobs/{job('llm-70b-pretrain').pk}/",
    "job events": lambda: f"/jobs/{job('llm-70b-pretrain').pk}/?tab=events",
    "nodes": lambda: "/nodes/",
    "racks": lambda: "/nodes/?view=racks",
    "node": lambda: f"/nodes/{Machine.objects.get(name='gpu-r01-04', cluster__slug='west-1').pk}/",
    "search": lambda: "/search/?q=gpu-r01",
    "preferences": lambda: "/preferences/",
}
# Queries of a whole page, session and reader included. A page that needs more says why in the commit that raises it.
QUERIES = {
    "overview": 20,
    "incidents": 14,
    "all incidents": 14,
    "incident": 19,
    "incident attempts": 15,
    "incident audit": 16,
    "jobs": 13,
    "job": 18,
    "job events": 14,
    "nodes": 12,
    "racks": 10,
    "node": 12,
    "search": 12,
    "preferences": 8,
}


@pytest.mark.parametrize("name", PAGES)
def test_page_answers_within_its_queries(operator: Client, name: str) -> None:
    address = PAGES[name]()
    with CaptureQueriesContext(connection) as queries:
        response = operator.get(address)
    assert response.status_code == 200
    assert len(queries) <= QUERIES[name], "\n".join(query["sql"][:160] for query in queries)


@pytest.mark.parametrize("name", PAGES)
def test_page_has_one_heading_and_nothing_inline(operator: Client, name: str) -> None:
    response = operator.get(PAGES[name]())
    html = response.content.decode()
    assert len(re.findall(r"<h1", html)) == 1
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", html)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))
    assert "default-src 'none'" in response["Content-Security-Policy"]
    assert response["Cache-Control"] == "no-store, private"


@pytest.mark.parametrize("name", PAGES)
def test_fragment_is_the_page_without_its_frame(operator: Client, name: str) -> None:
    address = PAGES[name]()
    whole = operator.get(address).content.decode()
    fragment = operator.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "<title>" in fragment
    assert 'id="page"' in fragment
    assert "<html" not in fragment
    assert "topbar" not in fragment
    assert len(fragment) < len(whole)


@pytest.mark.parametrize("query", ["tab=all", "tab=all&held=1,2,3"])
def test_fifty_incidents_stay_under_30_kilobytes(sample: None, operator: Client, query: str) -> None:
    from apps.access.clock import database_now
    from apps.desk.management.commands.sample_data import Sample

    Sample(database_now(), password="").make_history(60)
    html = operator.get(f"/incidents/?{query}").content
    if "held" not in query:
        assert html.count(b"data-row=") == 50
    assert len(gzip.compress(html, 9)) < 30_000


def test_styles_and_scripts_of_a_page_stay_under_60_kilobytes(operator: Client) -> None:
    html = operator.get("/").content.decode()
    files = re.findall(r'(?:href|src)="/static/([^"#]+\.(?:css|js))"', html)
    assert len(files) > 10
    assert sum(len(gzip.compress((CHECKOUT / "static" / name).read_bytes(), 9)) for name in files) < 60_000


def test_nothing_comes_from_another_host(operator: Client) -> None:
    for make in PAGES.values():
        html = operator.get(make()).content.decode()
        assert not re.findall(r'(?:href|src|action)="(?:https?:)?//[^"]*"', html)


def test_every_symbol_that_pages_use_is_in_the_sprite(operator: Client) -> None:
    known = set(re.findall(r'<symbol id="([^"]+)"', (CHECKOUT / "static/icons.svg").read_text()))
    for make in PAGES.values():
        used = set(re.findall(r"icons\.svg#([a-z-]+)", operator.get(make()).content.decode()))
        assert used <= known


def test_zone_stands_in_every_head_with_a_time_column(operator: Client) -> None:
    """D17: one zone per reader, printed in each table head."""
    for make in PAGES.values():
        for table in re.findall(r"<table.*?</table>", operator.get(make()).content.decode(), re.DOTALL):
            head, _, body = table.partition("</thead>")
            if 'data-absolute="' in body and re.search(r"<time[^>]*>\d\d:\d\d", body):
                assert re.search(r"CES?T", head), head


def test_cluster_that_is_retired_is_no_source_and_its_agents_are_not_missed(operator: Client) -> None:
    gone = Cluster.objects.get(slug="west-1")
    Incarnation.objects.filter(worker__job__cluster=gone).update(is_silent=True)
    assert "Watch of west-1" in text_of(operator.get("/"))
    retire_cluster(cluster_id=gone.pk, actor_kind="desk", actor="setup", reason="replaced")
    text = text_of(operator.get("/"))
    assert "Watch of west-1" not in text
    assert "no agent enrolled" in text


def test_overview_of_one_cluster_leaves_the_others_out(operator: Client) -> None:
    text = text_of(operator.get("/?cluster=east-2"))
    assert "Nothing is burning" in text
    assert "1 of 1 live jobs training, 0 protected" in text
    assert "16 of 16 nodes ready" in text
    assert "no agent enrolled" in text
    assert "west-1" not in text


def test_address_that_is_not_there_is_a_page_of_its_own(operator: Client) -> None:
    for address in ("/incidents/999999/", "/jobs/999999/", "/nodes/999999/", "/nowhere/", "/?cluster=mars"):
        response = operator.get(address)
        assert response.status_code == 404
        assert "There is nothing here" in text_of(response)


@pytest.mark.parametrize(
    "address",
    [
        "/incidents/?severity=dreadful",
        "/incidents/?after=x",
        "/jobs/?phase=Dancing",
        "/nodes/?after=a",
        "/changes/?cursor=1",
        "/incidents/?job=x",
    ],
)
def test_address_that_cannot_be_read_is_refused_with_its_reason(operator: Client, address: str) -> None:
    response = operator.get(address)
    assert response.status_code == 400
    assert "cannot be read" in text_of(response)


def test_cluster_that_is_gone_is_offered_no_more_and_still_read(operator: Client) -> None:
    gone = Cluster.objects.get(slug="east-2")
    Cluster.objects.filter(pk=gone.pk).update(slug=f"east-2-{gone.system_uid[:8]}", name="east-2 (gone)")
    gone.refresh_from_db()
    assert gone.is_retired
    html = operator.get("/").content.decode()
    assert gone.slug not in html
    assert "all clusters" not in html  # there is but one to choose
    chosen = operator.get(f"/jobs/?cluster={gone.slug}&tab=all").content.decode()
    assert "wav2vec-probe" in chosen
    assert gone.slug in chosen


def test_job_that_stands_without_an_incident_is_not_called_fine(operator: Client) -> None:
    open_ones = Incident.objects.filter(state__in=OPEN_WORDS)
    open_ones.update(state="resolved", resolution="by_person", resolved_at=database_now())
    assert "2 jobs stand still No incident is open, but training does not run" in text_of(operator.get("/"))
    Job.objects.filter(phase="Troubleshooting").update(phase="RunCommand")
    assert "1 job stands still" in text_of(operator.get("/"))
    Job.objects.filter(phase="Restarting").update(phase="RunCommand")
    assert "Nothing is burning" in text_of(operator.get("/"))


def test_rule_file_that_is_wrong_is_called_out_to_those_who_can_mend_it(
    operator: Client, vision: Client, tmp_path: Path, settings: Settings
) -> None:
    wrong = tmp_path / "rules.toml"
    wrong.write_text("[[rule]]\nid = 'mine'\nmatch = ['a']\n")
    settings.RULES_FILE = str(wrong)
    rules.forget()
    try:
        said = unescape(operator.get("/").content.decode())
        assert f"Your rule file is not used, the built-in rules hold: {wrong}, line 1" in said
        assert b"Your rule file" not in vision.get("/").content
    finally:
        settings.RULES_FILE = ""
        rules.forget()
    assert b"Your rule file" not in operator.get("/").content
