"""What a decision reads of the world around a failing job: on rows, by statements that it counts."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.guard_models import GuardCounter
from apps.incidents.models import Action, Decision, Incident
from apps.incidents.policy import current_policy
from apps.incidents.services import acting
from apps.incidents.services.replaying import decisions_of, replay_all
from apps.incidents.services.world import read_world
from apps.jobs.models import FailureCount
from apps.nodes.models import Machine, WatchState
from recovery.decide import WorldView
from recovery.signals import Signal, SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db

DENIED = "ceph: mds0 reconnect denied"  # alone it asks for a new container and blames nobody
REGISTRY = "Failed to pull image: registry-b answers 503 Service Unavailable"


@pytest.fixture(autouse=True)
def _nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_app, "send_task", lambda *_, **__: None)


def training(cluster: Cluster, **job: Any) -> PlayedJob:
    played = PlayedJob(factories.make_job(**{"workers": 1, "max_retry": 5, "cluster": cluster, **job}))
    played.start_training()
    return played


def fail(job: PlayedJob, line: str, *, seen_at: datetime | None = None) -> None:
    body = {"exit_code": 1, "log_tail": ["step 30 | loss 2.0", line], "step": 30}
    sequence = job.fresh().attempt_sequence
    job.say(0, SignalKind.ERROR, "command", body, sequence=sequence, seen_at=seen_at)
    job.decide()


def found_in(job: PlayedJob) -> dict[str, Any]:
    return Incident.objects.get(job=job.job).verdict["diagnosis"]


def all_fail(cluster: Cluster, *lines: str, apart_seconds: float) -> list[PlayedJob]:
    """One job a line, each of another tenant; they fail one after the other, the last one just now."""
    jobs = [training(cluster) for _ in lines]
    begun = database_now()
    for n, (job, line) in enumerate(zip(jobs, lines, strict=True)):
        fail(job, line, seen_at=begun - timedelta(seconds=apart_seconds * (len(lines) - 1 - n)))
    return jobs


def test_five_jobs_that_lose_the_same_storage_within_half_a_minute_share_what_is_in_trouble() -> None:
    cluster = factories.make_cluster()
    jobs = all_fail(cluster, *[DENIED] * 5, apart_seconds=6)
    assert [found_in(job)["rule"] for job in jobs] == ["ceph.blocked"] * 4 + ["cluster.jobs-alike"]
    last = found_in(jobs[-1])
    assert (last["category"], last["blame"], last["culprit_node"]) == ("shared_storage", "shared", "")
    assert last["evidence"][0]["text"].startswith(
        "5 jobs of the cluster failed alike within 24 s: the storage"
    )
    for job in jobs:
        job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    assert {found_in(job)["rule"] for job in jobs} == {"cluster.jobs-alike"}  # the first one too, by now
    assert replay_all(decisions_of()) == (Decision.objects.count(), [])
    assert_only_counts_of_others(jobs[-1], jobs[:-1])


def assert_only_counts_of_others(mine: PlayedJob, others: list[PlayedJob]) -> None:
    """Nothing else of another tenant stands in a decision, or in what people read."""
    rows = Decision.objects.filter(subject=mine.subject).values_list("state_before", "outcome")
    text = json.dumps([list(rows), Incident.objects.get(job=mine.job).verdict])
    assert "5 jobs of the cluster failed alike" in text
    for other in others:
        for name in (f"{other.job.namespace}/{other.job.name}", other.job.tenant.slug):
            assert f'"{name}"' not in text
        assert str(other.lives[0].pod_uid) not in text


def test_job_that_shares_the_trouble_waits_and_trains_again() -> None:
    """What would wait for the dependency is refused as not installed; the job is not left standing for that."""
    jobs = all_fail(factories.make_cluster(), *[DENIED] * 5, apart_seconds=1)
    job = jobs[-1]
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    actions = {action.kind: action for action in Action.objects.filter(incident__job=job.job)}
    assert set(actions) == {"wait_shared", "restart_process"}
    assert actions["wait_shared"].refused_because == "remedy not installed"
    assert actions["restart_process"].not_before_at > actions["restart_process"].created_at
    incident = Incident.objects.get(job=job.job)
    assert (incident.state, incident.waiting_for) == ("waiting", "backoff")
    Action.objects.filter(incident__job=job.job).update(not_before_at=None)
    acting.run_action(
        action_id=actions["restart_process"].pk, cluster=lambda: pytest.fail("no cluster is needed")
    )
    assert job.fresh().phase == "RunCommand"
    job.begin_attempt()
    assert Incident.objects.get(job=job.job).state == "watching"


def test_lone_job_blames_nothing_shared() -> None:
    cluster = factories.make_cluster()
    all_fail(factories.make_cluster(), *[DENIED] * 4, apart_seconds=1)  # in another cluster
    (job,) = all_fail(cluster, DENIED, apart_seconds=0)
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    assert found_in(job)["rule"] == "ceph.blocked"
    assert not any(
        "jobs of the cluster" in line for line in Incident.objects.get(job=job.job).verdict["evidence"]
    )


def test_jobs_of_two_errors_do_not_make_one_trouble() -> None:
    jobs = all_fail(factories.make_cluster(), *[DENIED, REGISTRY] * 3, apart_seconds=1)
    for job in jobs:
        job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    assert {found_in(job)["category"] for job in jobs} == {"shared_storage", "image_registry"}
    assert "cluster.jobs-alike" not in {found_in(job)["rule"] for job in jobs}


def test_failures_outside_the_window_are_another_matter() -> None:
    window = current_policy().alike_window_seconds
    jobs = all_fail(factories.make_cluster(), *[DENIED] * 5, apart_seconds=window / 3)
    assert found_in(jobs[-1])["rule"] == "ceph.blocked"  # three others lie within the window


def test_job_that_fails_again_and_again_is_one_job() -> None:
    cluster = factories.make_cluster()
    first, second = training(cluster), training(cluster)
    for job in (first, second):
        fail(job, DENIED)
    row = Incident.objects.get(job=first.job)
    for _ in range(6):  # its closed incidents of the last minute
        Incident.objects.create(
            tenant=row.tenant, cluster=cluster, subject=row.subject, job=row.job, title="x", state="closed",
            state_since_at=row.opened_at, severity="low", opened_at=row.opened_at, resolved_at=row.opened_at,
            failed_at=row.failed_at, likeness=row.likeness,
        )  # fmt: skip
    second.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN})
    stored = Decision.objects.filter(subject=second.subject).latest("n").state_before["world"]
    assert stored["failures_in_window"] == {"shared_storage": 1}
    assert found_in(second)["rule"] == "ceph.blocked"


def test_lost_nodes_of_a_cluster_that_is_not_ready_are_no_machines_fault() -> None:
    """R23: pods end as lost with their nodes and without a word, while many nodes are NotReady at once."""
    cluster = factories.make_cluster()
    add_machines(cluster, ready=6, not_ready=4)
    job = training(cluster, workers=3)
    job.end(job.lives[1], cause="node_lost")
    job.decide()
    found = found_in(job)
    assert (found["rule"], found["blame"]) == ("cluster.many-not-ready", "shared")
    assert job.retries() == (0, 1, 0)
    assert FailureCount.objects.get(job=job.job).cause == "node_lost"
    assert not Action.objects.filter(kind="hold_node").exists()


def test_lost_node_is_suspected_of_ourselves_when_our_view_is_old() -> None:
    """R23: the control plane has told us nothing for minutes, so what we take for lost may be there."""
    cluster = factories.make_cluster()
    now = database_now()
    WatchState.objects.create(cluster=cluster, resource="pods", last_heard_at=now, lag_seconds=0.1)
    WatchState.objects.create(
        cluster=cluster, resource="nodes", last_heard_at=now - timedelta(seconds=400), lag_seconds=0.1
    )
    job = training(cluster, workers=3)
    job.end(job.lives[1], cause="node_lost", reason="")
    job.decide()
    assert found_in(job)["rule"] == "cluster.our-view-is-silent"
    assert "told us nothing for 40" in found_in(job)["reason"]


def test_lost_node_is_suspected_of_ourselves_while_our_calls_take_seconds() -> None:
    """R23: the API server answers our own small call after seconds; a measurement of long ago says nothing."""
    cluster = factories.make_cluster()
    for called, rule in ((5, "cluster.our-calls-are-slow"), (90, "node.unreachable-taint")):
        WatchState.objects.update_or_create(
            cluster=cluster, resource="leader",
            defaults={"call_seconds": 8.4, "called_at": database_now() - timedelta(seconds=called)},
        )  # fmt: skip
        job = training(cluster)
        job.end(job.lives[0], cause="node_lost", reason="DeletionByTaintManager")
        job.decide()
        found = found_in(job)
        assert found["rule"] == rule
        assert job.retries() == (1,)


# What is read.


def add_machines(cluster: Cluster, *, ready: int, not_ready: int) -> None:
    now = database_now()
    told = [{"type": "Ready", "status": "Unknown"}]
    Machine.objects.bulk_create(
        Machine(
            cluster=cluster, hardware_key=f"serial-{n}", name=f"gpu-{n}", first_seen_at=now, last_seen_at=now,
            is_ready=True if n < ready else (None, False)[n % 2], conditions=told,
        )
        for n in range(ready + not_ready)
    )  # fmt: skip


def world_of(job: PlayedJob, *kinds: SignalKind) -> tuple[WorldView, list[str]]:
    now = database_now()
    inbox = tuple(Signal(n, Source.AGENT, kind, now, now) for n, kind in enumerate(kinds, 1))
    held = job.subject
    held.job = job.fresh()
    incident = Incident.objects.filter(subject=held).first()
    with CaptureQueriesContext(connection) as queries:
        found = read_world(held, incident, inbox, now=now, policy=current_policy())
    return found, [query["sql"] for query in queries]


def test_world_is_counted_only_where_a_verdict_may_be_wanted() -> None:
    cluster = factories.make_cluster()
    add_machines(cluster, ready=1, not_ready=2)
    job = training(cluster)
    assert len(world_of(job, SignalKind.MARK, SignalKind.LOOK)[1]) == 1
    found, statements = world_of(job, SignalKind.ERROR)
    assert (found.not_ready_machines, found.not_ready_share) == (2, 0.0)
    assert len(statements) == 3
    fail(job, DENIED)
    assert len(world_of(job, SignalKind.ACK)[1]) == 3
    assert len(world_of(job, SignalKind.ACTION_GO, SignalKind.MARK)[1]) == 1


def test_share_is_of_the_machines_that_the_guards_have_counted() -> None:
    cluster = factories.make_cluster()
    add_machines(cluster, ready=7, not_ready=3)
    Machine.objects.create(  # gone, and one that has not reported yet: neither is missing
        cluster=cluster, hardware_key="old", name="old", is_ready=False, gone_at=database_now(),
        first_seen_at=database_now(), last_seen_at=database_now(),
    )  # fmt: skip
    Machine.objects.create(
        cluster=cluster, hardware_key="new", name="new", first_seen_at=database_now(),
        last_seen_at=database_now(),
    )  # fmt: skip
    job = training(cluster)
    found, statements = world_of(job, SignalKind.ERROR)
    assert (found.not_ready_machines, found.not_ready_share) == (3, 0.2727)
    assert len(statements) == 5
    fail(job, DENIED)
    job.everyone(
        SignalKind.ACK, "troubleshoot", {"checks": CLEAN}
    )  # a reservation has the guards counted out
    counted = GuardCounter.objects.filter(cluster=cluster, dimension="cluster").first()
    assert counted is not None
    assert counted.members == 11
    GuardCounter.objects.filter(cluster=cluster, dimension="cluster").update(members=12)
    found, statements = world_of(job, SignalKind.ERROR)
    assert found.not_ready_share == 0.25
    assert len(statements) == 4


def test_missing_machines_and_alike_failures_are_read_from_their_indexes() -> None:
    cluster = factories.make_cluster()
    add_machines(cluster, ready=500, not_ready=1)
    job = training(cluster)
    _, statements = world_of(job, SignalKind.ERROR)
    plans = []
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE nodes_machine")
        cursor.execute("SET LOCAL enable_seqscan = off")
        for statement in statements[1:]:
            cursor.execute(f"EXPLAIN {statement}")
            plans.append(" ".join(row[0] for row in cursor.fetchall()))
    assert "machine_not_ready" in plans[0]
    assert "incident_alike" in plans[1]
