"""Every page answers, reads without scripts, keeps its budgets and its number of queries."""

from __future__ import annotations

import gzip
import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents import rules
from apps.incidents.models import Incident, Signal
from apps.incidents.selectors import OPEN_WORDS
from apps.incidents.services.retiring import retire_cluster
from apps.jobs.models import Incarnation, Job, Pod
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
    "job": 19,
    "job events": 14,
    "nodes": 12,
    "racks": 10,
    "node": 14,
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


def test_node_that_is_gone_tells_what_ran_there_until_when(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    life = Incarnation.objects.filter(worker__job=llm, machine__isnull=False)[0]
    node = Machine.objects.get(pk=life.machine_id)
    assert f"{llm.name} running worker {life.worker.index}" in text_of(operator.get(f"/nodes/{node.pk}/"))
    Incarnation.objects.filter(machine=node).update(is_silent=True)
    retire_cluster(cluster_id=node.cluster_id, actor_kind="desk", actor="setup", reason="replaced")
    page = text_of(operator.get(f"/nodes/{node.pk}/"))
    node.refresh_from_db()
    assert node.gone_at is not None
    assert "Running here Nothing: the node is gone." in page
    assert "silent" not in page
    ran = page[page.index("Ran here") : page.index("Conditions")]
    assert f"{llm.name} worker {life.worker.index} {life.pod_name} the node went" in ran
    assert f"{timezone.localtime(node.gone_at, ZoneInfo('Europe/Berlin')):%H:%M:%S}" in ran
    assert "as Kubernetes last reported them" in page
    assert llm.name not in text_of(operator.get(f"/nodes/?state=gone&q={node.name}"))


def test_end_that_nobody_told_is_that_of_the_job_once_no_pod_is_left(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    life = Incarnation.objects.filter(worker__job=llm, machine__isnull=False)[0]
    Job.objects.filter(pk=llm.pk).update(phase="Failed", ended_at=database_now())
    page = text_of(operator.get(f"/nodes/{life.machine_id}/"))
    assert f"{llm.name} failed worker {life.worker.index}" in page, "its pod is there and may train on"
    assert "Ran here" not in page
    Pod.objects.filter(uid=life.pod_uid).update(gone_at=database_now())
    page = text_of(operator.get(f"/nodes/{life.machine_id}/"))
    assert "No worker of your tenants runs here." in page
    assert f"{life.pod_name} the job ended" in page
    Incarnation.objects.filter(pk=life.pk).update(ended_at=database_now(), end_cause="completed")
    assert f"{life.pod_name} completed" in text_of(operator.get(f"/nodes/{life.machine_id}/"))


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
    Incarnation.objects.update(is_silent=False)
    assert "2 jobs stand still No incident is open, but training does not run" in text_of(operator.get("/"))
    Job.objects.filter(phase="Troubleshooting").update(phase="RunCommand")
    assert "1 job stands still" in text_of(operator.get("/"))
    Job.objects.filter(phase="Restarting").update(phase="RunCommand")
    waits = text_of(operator.get("/"))
    assert waits.startswith(
        "diffusion-xl waits for capacity diffusion-xl waits for capacity (0/96 nodes have 8"
    )
    assert "a person may have to free a node or uncordon one" in waits
    Job.objects.filter(phase="Pending").update(phase_reason="queued")
    assert text_of(operator.get("/")).startswith("Nothing is burning")


def test_silent_agent_is_said_where_the_eye_falls_first(operator: Client) -> None:
    """A green page over an agent that the desk cannot reach is a false one."""
    Incident.objects.filter(state__in=OPEN_WORDS).update(
        state="resolved", resolution="by_person", resolved_at=database_now()
    )
    Job.objects.filter(phase__in=["Restarting", "Troubleshooting"]).update(phase="RunCommand")
    Job.objects.filter(phase="Pending").update(phase_reason="queued")
    clip = job("clip-vit-h")
    lives = Incarnation.objects.filter(worker__job=clip)
    lives.update(step_at=database_now())
    said = text_of(operator.get("/"))
    assert said.startswith("Worker 5 of clip-vit-h is silent Silent since ")
    goes_on = "training goes on as far as known, the others step; the desk cannot act on it until it is heard"
    assert goes_on in said
    assert goes_on in text_of(operator.get(f"/jobs/{clip.pk}/"))
    assert "Nothing is burning" not in said
    lives.filter(worker__index=3).update(is_silent=True)
    assert "Worker 3 and worker 5 of clip-vit-h are silent" in text_of(operator.get("/"))
    lives.exclude(worker__index__in=[3, 5]).update(step_at=None)
    assert "whether training goes on is not known, no other worker has told a step" in text_of(
        operator.get("/")
    )
    lives.update(is_silent=True)
    assert "8 workers of clip-vit-h are silent" in text_of(operator.get("/"))
    assert "no agent of the job is heard" in text_of(operator.get("/"))
    Job.objects.filter(pk=clip.pk).update(phase="Stopped", ended_at=database_now())
    assert "Nothing is burning" in text_of(operator.get("/")), "nobody misses agents of a job that is over"


def test_open_incidents_are_not_called_looked_after_while_a_person_has_to_come(operator: Client) -> None:
    Incident.objects.exclude(job__name="rlhf-ppo").update(
        state="closed", resolution="by_person", resolved_at=database_now()
    )
    Incarnation.objects.update(is_silent=False)
    rlhf = incident_of("rlhf-ppo")
    rlhf.actions.all().delete()
    opened = Incident.objects.filter(pk=rlhf.pk)
    assert "The desk works on it; nobody is needed." in text_of(operator.get("/"))
    Incarnation.objects.filter(worker__job=rlhf.job_id, worker__index=0).update(is_silent=True)
    for address in ("/", f"/incidents/{rlhf.pk}/", f"/incidents/{rlhf.pk}/?tab=audit"):
        said = text_of(operator.get(address))
        assert "nobody is needed" not in said
        assert "silent since" in said
        assert "the desk cannot act on it" in said
    opened.update(state="watching", state_since_at=database_now())
    assert "waits until a silent worker is heard again" in text_of(operator.get("/"))
    assert "waits until a silent worker is heard again" in text_of(operator.get("/incidents/"))
    assert "Next: waits until worker 0 is heard again" in text_of(operator.get(f"/incidents/{rlhf.pk}/"))
    Incarnation.objects.update(is_silent=False)
    page = text_of(operator.get(f"/incidents/{rlhf.pk}/"))
    assert re.search(r"trains again , steady at best (in|after \d+ steps)", page)
    opened.update(state_since_at=database_now() - timedelta(hours=1))
    page = text_of(operator.get(f"/incidents/{rlhf.pk}/"))
    assert re.search(r"Next: trains again, steady after \d+ steps Acknowledge", page), (
        "of the steps no time is known"
    )
    opened.update(state="needs_person")
    assert "1 open incident It needs a person." in text_of(operator.get("/"))


def test_waiting_for_capacity_says_what_is_missing_and_who_may_help(operator: Client) -> None:
    Incident.objects.exclude(job__name="rlhf-ppo").update(
        state="closed", resolution="by_person", resolved_at=database_now()
    )
    Incarnation.objects.update(is_silent=False)
    rlhf = incident_of("rlhf-ppo")
    rlhf.actions.all().delete()
    Job.objects.filter(pk=rlhf.job_id).update(phase_reason="waiting for capacity: 0/4 nodes are available.")
    Incident.objects.filter(pk=rlhf.pk).update(
        state="waiting", waiting_for="capacity", waiting_until_at=database_now() + timedelta(seconds=52)
    )
    said = text_of(operator.get("/"))
    assert "nobody is needed" not in said
    assert f"{rlhf} waits for capacity: a person may have to free a node or uncordon one." in said
    assert re.search(r"waits for capacity, deadline in \d+ s : 0/4 nodes are available ", said)
    page = text_of(operator.get(f"/incidents/{rlhf.pk}/"))
    assert re.search(r"Next: waits for capacity , deadline in \d+ s", page)
    assert "0/4 nodes are available: a person may have to free a node or uncordon one" in page
    assert "uncordon" in text_of(operator.get(f"/jobs/{rlhf.job_id}/"))
    Incident.objects.filter(pk=rlhf.pk).update(waiting_until_at=database_now() - timedelta(seconds=1))
    assert "deadline passed" in text_of(operator.get("/"))


def test_alert_shows_on_the_node_that_it_names(operator: Client, viewer: Client, vision: Client) -> None:
    node = Machine.objects.get(name="gpu-r01-04", cluster__slug="west-1")
    told = {
        "kind": "alert", "source": "alertmanager", "cluster": node.cluster, "seen_at": database_now(),
        "received_at": database_now(), "tenant": job("clip-vit-h").tenant,
    }  # fmt: skip
    said = {
        "status": "firing",
        "labels": {"alertname": "GpuHot"},
        "annotations": {"summary": "GPU 3 at 91 C"},
    }
    Signal.objects.create(**told, source_key="a/1/firing", body=said | {"node": node.name})
    Signal.objects.create(
        **told,
        source_key="b/1/firing",
        body=said | {"node": "gpu-r02-01", "annotations": {"summary": "other"}},
    )
    page = text_of(operator.get(f"/nodes/{node.pk}/"))
    assert "GpuHot firing GPU 3 at 91 C" in page
    assert "other" not in page.partition("Alerts about it")[2].partition("Conditions")[0]
    assert "GpuHot" not in text_of(viewer.get(f"/nodes/{node.pk}/")), "of another tenant"
    namesake = Machine.objects.get(name=node.name, cluster__slug="east-2")
    assert "GpuHot" not in text_of(operator.get(f"/nodes/{namesake.pk}/")), "of another cluster"


def test_age_that_only_grows_is_no_sign_of_a_healthy_source(operator: Client) -> None:
    said = text_of(operator.get("/"))
    assert re.search(r"Agents 1 silent \d+ of \d+ Decisions", said)
    node = Machine.objects.get(name="gpu-r01-04", cluster__slug="west-1")
    head, _, rest = text_of(operator.get(f"/nodes/{node.pk}/")).partition("Running here")
    assert "ago" not in head
    assert "heard" in rest
    assert "Last event" in rest


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
