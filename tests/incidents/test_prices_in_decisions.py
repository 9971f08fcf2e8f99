"""From a signal over the REST API, or an annotation, to a decision with both prices in its row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.services import SCOPES, create_token
from apps.incidents.models import Action, Incident, Signal
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.replaying import decisions_of, replay_all
from apps.jobs.models import Attempt, Checkpoint, Incarnation
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_app, "send_task", lambda *_, **__: None)


def training(**fields: Any) -> PlayedJob:
    """A job of 48 GPUs at step 350, 50 steps of 2 s after its newest checkpoint; they come 100 steps apart."""
    job = PlayedJob(factories.make_job(workers=3, gpus_per_worker=16, **fields))
    job.start_training()
    now = job.now()
    begun = {"started_at": now - timedelta(seconds=130), "first_step_at": now - timedelta(seconds=120)}
    Attempt.objects.filter(job=job.job).update(**begun)
    for step in (200, 300):
        Checkpoint.objects.create(
            tenant=job.job.tenant,
            job=job.job,
            step=step,
            path=f"/c/{step}",
            state="committed",
            committed_at=now,
        )
    lives = [life.pk for life in job.lives.values()]
    Incarnation.objects.filter(pk__in=lives).update(step=350, step_at=job.now(), step_seconds=2.0)
    return job


def program(job: PlayedJob) -> Client:
    _, plain = create_token(
        tenant_id=job.job.tenant_id, name="exporter", scopes=sorted(SCOPES), actor_kind="person", actor="test"
    )
    return Client(headers={"Authorization": f"Bearer {plain}"})


def compare(job: PlayedJob, client: Client, key: str, value: float, about: dict[str, str]) -> Signal:
    body = {
        "key": key,
        "source": "prometheus",
        "kind": "metric",
        "cluster": job.job.cluster.slug,
        "about": about,
        "body": {"name": "step_time_ratio", "value": value},
    }
    answer = client.post("/api/v1/signals/", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    assert not answer.json()["is_unplaced"]
    job.decide()
    return Signal.objects.get(uid=answer.json()["uid"])


def replays(job: PlayedJob) -> bool:
    count, found = replay_all(decisions_of(subject=str(job.subject)))
    return count > 3 and not found


@pytest.mark.parametrize("by", ["node", "pod"])
def test_metric_over_the_api_leads_to_a_decision_with_both_prices(by: str) -> None:
    job = training()
    client = program(job)
    life = job.lives[1]
    about = {"node": "node-1"} if by == "node" else {"namespace": "train", "pod": life.pod_name}
    first = compare(job, client, "1", 2.0, about)
    incident = Incident.objects.get(job=job.job)
    assert (incident.state, incident.severity) == ("suspected", "low")
    assert "not confirmed" in incident.considered[0]["refused_because"]
    assert first.inbox_entries.get().use == "used"
    compare(job, client, "2", 2.0, about)
    compare(job, client, "3", 2.0, about)

    evict = Action.objects.get(incident=incident, kind="evict_worker")
    assert (evict.state, evict.refused_because, evict.target) == (
        "refused",
        "remedy not installed",
        "worker 1",
    )
    assert evict.price["chosen"] == "evict at the next safe point"
    now, later = evict.price["options"]
    assert now["parts"][0]["seconds"] == pytest.approx(50)
    assert (later["parts"][0]["seconds"], later["parts"][0]["weight"]) == (pytest.approx(100), 0.5)
    assert evict.price["deadline"]
    told = client.get(f"/api/v1/incidents/{incident.pk}/").json()["actions"]
    assert [action["price"] for action in told if action["kind"] == "evict_worker"] == [evict.price]
    assert Action.objects.get(incident=incident, kind="mark_slow").target == "node-1"
    incident.refresh_from_db()
    assert incident.state == "needs_person"
    assert incident.title == "Worker 1 on node-1 is slow"
    assert incident.verdict["culprit"] == "worker 1 on node-1"
    (asked,) = Action.objects.filter(incident=incident, kind="ask_person")
    assert "Make sure first that a node with 16 free GPUs is there" in asked.why
    assert (
        "evict its pod right after the next checkpoint (kubectl drain node-1 --pod-selector=job-name="
        in asked.why
    ), "nodes are not known here"
    assert job.fresh().phase == "RunCommand"
    assert replays(job)


def test_machine_that_keeps_up_again_closes_the_question() -> None:
    job = training()
    client = program(job)
    for n, value in enumerate((2.0, 2.0, 2.0, 1.0, 1.0, 1.0)):
        compare(job, client, str(n), value, {"node": "node-1"})
    incident = Incident.objects.get(job=job.job)
    assert (incident.state, incident.resolution) == ("resolved", "recovered")
    assert not Action.objects.filter(incident=incident, state="ready").exists()
    assert replays(job)


def lose(job: PlayedJob) -> Incident:
    job.end(job.lives[1], cause="node_lost")
    job.decide()
    return Incident.objects.get(job=job.job)


ELASTIC = {
    "elastic": "true",
    "elastic-reshard": "true",
    "elastic-batch-per-slice": "32",
    "elastic-timeout-seconds": "300",
}


def test_lost_worker_of_an_elastic_job_has_both_prices_in_its_decision() -> None:
    job = training(annotations=ELASTIC)
    incident = lose(job)
    action = Action.objects.get(incident=incident, kind="resize_job")
    assert (action.state, action.refused_because) == ("refused", "remedy not installed")
    assert [option["option"] for option in action.price["options"]][:2] == [
        "pause and resume",
        "replica resize",
    ]
    assert (action.price["batch_before"], action.price["batch_after"]) == (96, 64)
    assert incident.verdict["elastic"]["chosen"] == "replica resize"
    assert job.fresh().phase == "Restarting"
    job.record(SignalKind.POD_WAITING, Source.WATCH, "w", {"message": "0/8 nodes are available"})
    job.decide()
    incident.refresh_from_db()
    assert incident.verdict["elastic"]["wait"] == "capacity"
    assert incident.timeline.filter(text__contains="Priced anew").count() == 1
    assert replays(job)


def test_lost_head_is_priced_as_a_full_restart() -> None:
    incident = lose(training(annotations={**ELASTIC, "elastic-head": "1"}))
    assert not Action.objects.filter(incident=incident, kind__in=["resize_job", "resume_job"]).exists()
    said = {each["remedy"]: each["refused_because"] for each in incident.considered}
    assert said["resize_job"].startswith("the head is lost; pause and resume ")
    assert "full restart " in said["resume_job"]


def test_elastic_facts_cost_no_statement_but_for_the_action_and_without_them_nothing_is_wanted() -> None:
    counts = []
    for terms in ({}, ELASTIC):
        job = training(annotations=terms)
        job.end(job.lives[1], cause="node_lost")
        with CaptureQueriesContext(connection) as queries:
            decide_subject(subject_id=job.subject.pk)
        wanted = Action.objects.filter(incident__job=job.job, kind__in=["resize_job", "resume_job"])
        counts.append((len(queries), wanted.count()))
    (without, none), (with_terms, one) = counts
    assert (none, one) == (0, 1)
    assert with_terms == without + 1
