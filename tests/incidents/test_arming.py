"""Armed and disarmed: what observe holds back, and from when on a job is protected."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from apps.access.clock import database_now
from apps.incidents.models import Action
from apps.incidents.services.acting import run_action
from apps.jobs.models import FailureCount, Order
from apps.jobs.services.importing import review_protection
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob
from tests.incidents.lives import recover_in_place, watch

pytestmark = pytest.mark.django_db(transaction=True)


def test_observe_orders_nothing_acts_nothing_and_says_what_it_would_do() -> None:
    job = PlayedJob(factories.make_job(workers=2, cluster=factories.make_cluster(mode="observe")))
    for index in range(2):
        job.enrol(index)
    watch(job, SignalKind.WORLD_RUNNING, 1)
    job.decide()
    for index in range(2):
        job.say(index, SignalKind.MARK, "command", {"mark": "first_step", "step": 1}, sequence=0)
    job.decide()
    assert job.fresh().phase == "RunCommand"
    job.say(0, SignalKind.ERROR, "command", {"code": 1, "step": 9}, sequence=0)
    job.decide()
    job.end(job.lives[0], cause="exit_error", exit_code=1)
    job.decide()
    fresh = job.fresh()
    assert job.retries() == (0, 0)
    assert fresh.recover_count == 0
    count = FailureCount.objects.get(job=fresh)
    assert count.would
    assert not Order.objects.filter(job=fresh).exists()
    states = set(Action.objects.filter(incident__job=fresh).values_list("state", flat=True))
    assert states == {"refused"}
    assert "observe" in Action.objects.filter(incident__job=fresh)[0].refused_because


def test_mode_back_to_observe_takes_what_waits(training: PlayedJob) -> None:
    """Disarmed while a stop of the job is ready: it is refused, and the cluster is left alone."""
    recover_in_place(training, 0)
    recover_in_place(training, 1)
    training.kill(2)
    training.decide()
    stop = Action.objects.get(incident__job=training.job, kind="stop_job")
    assert stop.state == "ready"
    cluster = training.job.cluster
    cluster.mode = "observe"
    cluster.save(update_fields=["mode"])
    run_action(action_id=stop.pk, cluster=lambda: pytest.fail("the cluster was touched in observe"))
    stop.refresh_from_db()
    assert (stop.state, stop.try_n) == ("refused", 0)
    assert "observe" in stop.end_reason


def test_armed_while_it_trains_without_all_agents(client: Client) -> None:
    """One agent never came: it is protected from the next start on, and its page says so."""
    cluster = factories.make_cluster(mode="observe")
    fields = {
        "annotations": {"protect": "true"},
        "protection_reason": f"cluster {cluster.slug} is in observe",
    }
    job = PlayedJob(factories.make_job(workers=2, cluster=cluster, is_protected=False, **fields))
    job.enrol(0)
    watch(job, SignalKind.WORLD_RUNNING, 1)
    job.decide()
    assert job.fresh().phase == "RunCommand"
    cluster.mode = "auto"
    cluster.save(update_fields=["mode"])
    for news in review_protection(cluster=cluster, namespaces={}, now=database_now()):
        job.record(news.kind, Source.WATCH, news.source_key, news.body, seen_at=news.seen_at)
    job.decide()
    fresh = job.fresh()
    assert (fresh.is_protected, fresh.is_protection_due, fresh.phase) == (False, True, "RunCommand")
    client.force_login(factories.make_user(tenant=fresh.tenant))
    address = reverse("desk:job_detail", args=[fresh.pk])
    assert "protected from its next start on" in client.get(address).content.decode()
    job.end(job.lives[0], cause="crashed", exit_code=1)
    job.decide()
    assert job.retries() == (0, 0)
    action = Action.objects.get(incident__job=fresh)
    assert (action.state, action.refused_because) == (
        "refused",
        "the job runs unprotected until its next start",
    )
    for index in range(2):
        job.enrol(index)
    job.decide()
    assert job.fresh().phase == "BootChecking"
    job.everyone(SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    job.begin_attempt()
    fresh = job.fresh()
    assert (fresh.phase, fresh.is_protected, fresh.is_protection_due) == ("RunCommand", True, False)
    assert "protected from its next start on" not in client.get(address).content.decode()
    job.kill(1)
    job.decide()
    assert (job.fresh().phase, job.retries()) == ("Troubleshooting", (0, 1))


def test_disarmed_while_all_stand_still(training: PlayedJob) -> None:
    """The restart that waits is refused with the reason, and agents are told to run by themselves."""
    training.kill(0)
    training.decide()
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    action = Action.objects.get(incident__job=training.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    cluster = training.job.cluster
    cluster.mode = "observe"
    cluster.save(update_fields=["mode"])
    before = training.order()
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("the cluster was touched in observe"))
    action.refresh_from_db()
    assert (action.state, action.try_n, action.end_reason) == ("refused", 0, "cluster is in observe")
    assert training.order() == before
    job = training.fresh()
    assert job.directive == "run_unprotected"
    for index in range(3):
        training.say(index, SignalKind.MARK, "command", {"mark": "first_step", "step": 31})
    training.decide()
    assert training.fresh().phase == "RunCommand"
    assert training.retries() == (1, 1, 1)
