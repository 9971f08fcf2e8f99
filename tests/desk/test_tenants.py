"""Nothing of another tenant shows, by page, export, search, live feed or error text. Source: DOMAIN 13."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.access.clock import database_now
from apps.access.models import Tenant
from apps.incidents.models import FeedRow, Incident
from apps.incidents.services import feed
from apps.jobs.models import Incarnation, Job
from apps.nodes.models import Machine
from tests.desk.conftest import incident_of, job, logged_in, text_of
from tests.factories import make_user


@pytest.mark.parametrize("address", ["/", "/incidents/?tab=all", "/jobs/?tab=all", "/nodes/", "/search/?q=e"])
def test_pages_show_only_the_readers_tenant(vision: Client, address: str) -> None:
    text = vision.get(address).content.decode()
    foreign = Job.objects.exclude(tenant__slug="vision").values_list("name", flat=True)
    assert [name for name in foreign if name in text] == []
    for title in Incident.objects.exclude(tenant__slug="vision").values_list("title", flat=True):
        assert title not in text


def test_foreign_rows_are_answered_as_if_they_were_not_there(vision: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    action = incident.actions.get()
    unseen = Machine.objects.get(name="gpu-r12-08")
    for address in (
        f"/incidents/{incident.pk}/",
        f"/incidents/{incident.pk}/timeline.json",
        f"/jobs/{job('llm-70b-pretrain').pk}/",
        f"/nodes/{unseen.pk}/",
        f"/incidents/?job={job('llm-70b-pretrain').pk}",
    ):
        missing = vision.get(address)
        assert missing.status_code == 404, address
        assert "llm-70b" not in missing.content.decode()
    for address in (
        f"/incidents/{incident.pk}/acknowledge/",
        f"/incidents/{incident.pk}/resolve/",
        f"/actions/{action.pk}/cancel/",
        f"/actions/{action.pk}/now/",
        f"/jobs/{job('llm-70b-pretrain').pk}/stop/",
    ):
        assert vision.post(address, {"reason": "x"}).status_code == 404, address
    assert not Incident.objects.get(pk=incident.pk).acknowledged_by


def test_download_holds_only_the_readers_tenant(vision: Client) -> None:
    body = b"".join(vision.get("/incidents.csv?tab=all").streaming_content).decode()
    assert "vision-moe" in body
    assert "llm-70b" not in body
    assert "tts-finetune" not in body


def test_search_by_number_does_not_find_a_foreign_incident(vision: Client) -> None:
    response = vision.get(f"/search/?q=INC-{incident_of('llm-70b-pretrain').pk}")
    assert response.status_code == 200
    assert "Nothing is called that" in text_of(response)


def test_changes_of_other_tenants_are_not_told(vision: Client, operator: Client) -> None:
    from apps.desk.views import feed as view

    own, foreign = incident_of("vision-moe", state="waiting"), incident_of("llm-70b-pretrain")
    for incident in (own, foreign):
        feed.publish(tenant_id=incident.tenant_id, topic="incident", key=incident.pk, now=database_now())
    # Inside a test's transaction nothing is below the snapshot; the selector's scope is what is looked at here.
    FeedRow.objects.update(transaction=5)
    told = vision.get("/changes/?cursor=1:0").json()["changes"]
    assert told == [["incident", str(own.pk)]]
    assert len(operator.get("/changes/?cursor=1:0").json()["changes"]) == 2
    assert view.read_cursor("1:0") == (1, 0)


def test_change_of_a_node_is_told_to_those_who_see_it_and_to_nobody_else(
    vision: Client, viewer: Client, operator: Client
) -> None:
    """Nodes are shared: a tenant hears of those on which its workers have run, the fleet's people of every one."""
    alone = logged_in(make_user(tenant=Tenant.objects.get(slug="unassigned")).username)
    mine = Machine.objects.filter(incarnations__tenant__slug="vision").exclude(
        incarnations__tenant__slug="nlp"
    )
    unused = Machine.objects.filter(incarnations=None).order_by("id")
    changed = [mine.distinct().order_by("id")[0].pk, unused[0].pk]
    feed.publish_nodes(machine_ids=changed, now=database_now())
    FeedRow.objects.update(transaction=5)
    told = {
        name: sorted(client.get("/changes/?cursor=1:0").json()["changes"])
        for name, client in (("vision", vision), ("nlp", viewer), ("unassigned", alone), ("fleet", operator))
    }
    assert told == {
        "vision": [["node", str(changed[0])]],
        "nlp": [],
        "unassigned": [],
        "fleet": sorted(["node", str(pk)] for pk in changed),
    }


def test_change_of_many_nodes_is_one_word_to_those_who_see_some(vision: Client, viewer: Client) -> None:
    lives = Incarnation.objects.filter(tenant__slug="vision", machine__isnull=False)
    mine = list(lives.values_list("machine_id", flat=True))
    others = range(10**9, 10**9 + feed.MOST_NODES_NAMED)
    feed.publish_nodes(machine_ids=[*mine, *others], now=database_now())
    FeedRow.objects.update(transaction=5)
    assert vision.get("/changes/?cursor=1:0").json()["changes"] == [["node", "*"]]
    assert viewer.get("/changes/?cursor=1:0").json()["changes"] == []


def test_shared_node_shows_only_the_readers_jobs(vision: Client, operator: Client) -> None:
    shared = Machine.objects.get(name="gpu-r02-03", cluster__slug="west-1")
    worker = job("llm-70b-pretrain").workers.get(index=0)
    worker.incarnations.update(machine=shared, node_name=shared.name)
    assert "llm-70b-pretrain" in operator.get(f"/nodes/{shared.pk}/").content.decode()
    seen = vision.get(f"/nodes/{shared.pk}/").content.decode()
    assert "vision-moe" in seen
    assert "llm-70b" not in seen


def test_fleet_people_see_every_node_and_tenants_those_of_their_jobs(
    operator: Client, vision: Client
) -> None:
    assert "112 in the clusters" in text_of(operator.get("/nodes/"))
    mine = Machine.objects.filter(incarnations__tenant__slug="vision").distinct().count()
    assert f"{mine} in the cluster" in text_of(vision.get("/nodes/"))


def test_person_without_tenant_sees_an_empty_desk(sample: None) -> None:
    client = Client()
    client.force_login(make_user(roles=()), backend="django.contrib.auth.backends.ModelBackend")
    text = client.get("/").content.decode()
    assert "Nothing is burning" in text
    assert "west-1" not in text
    assert client.get("/incidents/?tab=all").status_code == 200
