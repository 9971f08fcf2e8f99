"""What earlier attempts and the machines involved say, on rows: kept beyond the incident, read by a decision."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.models import Action, Decision, Incident, Subject
from apps.incidents.services import acting, people
from apps.incidents.services.machine_past import read_machines
from apps.incidents.services.replaying import replay_after
from apps.jobs.models import Attempt, Incarnation
from apps.nodes.models import Machine
from recovery.decide import IncarnationView
from recovery.signals import Signal, SignalKind, Source, WorkerKey
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_app, "send_task", lambda *_, **__: None)


def fail(job: PlayedJob, *lines: str, index: int = 0, **body: Any) -> None:
    """A worker's process ends with these lines, and all workers stop."""
    told = {"exit_code": 1, "log_tail": list(lines), "step": 30, **body}
    job.say(index, SignalKind.ERROR, "command", told, sequence=job.fresh().attempt_sequence)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {}})


def restart(job: PlayedJob) -> None:
    action = Action.objects.get(incident__job=job.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    acting.run_action(action_id=action.pk, cluster=lambda: pytest.fail("no cluster"))
    job.begin_attempt()


def an_hour_passes(job: PlayedJob) -> None:
    """The job's incident is resolved, an hour goes by, and the incident closes."""
    incident = Incident.objects.get(job=job.job, resolved_at=None)
    people.resolve_incident(incident_id=incident.pk, by=factories.make_user(), reason="it trains")
    Incident.objects.filter(pk=incident.pk).update(resolved_at=F("resolved_at") - HOUR)
    rows = Attempt.objects.filter(job=job.job)
    rows.update(started_at=F("started_at") - HOUR, first_step_at=F("first_step_at") - HOUR)
    rows.filter(ended_at__isnull=False).update(ended_at=F("ended_at") - HOUR)
    Subject.objects.filter(job=job.job).update(next_look_at=database_now())
    job.decide()
    incident.refresh_from_db()
    assert incident.state == "closed"


def found_in(job: PlayedJob) -> dict[str, Any]:
    return dict(Incident.objects.filter(job=job.job).latest("id").verdict["diagnosis"])


def test_job_that_fails_alike_each_hour_is_stopped_though_its_incident_closed_between() -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=9))
    job.start_training()
    fail(job, "KeyError: 'lr_schedule'")
    assert (found_in(job)["remedy"], found_in(job)["times"]) == ("fail_fast", 1)
    restart(job)
    an_hour_passes(job)
    fail(job, "KeyError: 'lr_schedule'")
    assert Incident.objects.filter(job=job.job).count() == 2
    assert found_in(job)["times"] == 2
    stop = Action.objects.get(incident__job=job.job, kind="stop_job")
    assert "in 2 attempts in a row" in stop.why
    assert Decision.objects.filter(subject=job.subject).latest("n").rule == "ladder.fail_fast"
    rows = Attempt.objects.filter(job=job.job).order_by("n")
    assert (
        list(rows.values_list("found_rule", "found_node", "found_rank"))
        == [("program.plain", "node-0", 0)] * 2
    )
    assert replay_after(0)[1] == []


def test_another_error_an_hour_later_is_no_row() -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=9))
    job.start_training()
    fail(job, "KeyError: 'lr_schedule'")
    restart(job)
    an_hour_passes(job)
    fail(job, "OSError: [Errno 116] Stale file handle")
    assert found_in(job)["times"] == 1
    assert not Action.objects.filter(incident__job=job.job, kind="stop_job").exists()


# Machines.


@pytest.fixture
def cluster() -> Cluster:
    """A cluster of 40 machines, node-0 to node-39."""
    cluster, now = factories.make_cluster(), database_now()
    Machine.objects.bulk_create(
        Machine(
            cluster=cluster, hardware_key=f"key-{n}", name=f"node-{n}", is_ready=True, first_seen_at=now,
            last_seen_at=now,
        )
        for n in range(40)
    )  # fmt: skip
    return cluster


def training(cluster: Cluster, slug: str, **job: Any) -> PlayedJob:
    """A job of a tenant of its own, of two workers on node-0 and node-1."""
    tenant = factories.make_tenant(slug=slug, name=slug.title())
    played = PlayedJob(
        factories.make_job(**{"workers": 2, "max_retry": 9, "cluster": cluster, "tenant": tenant, **job})
    )
    played.start_training()
    for index, life in played.lives.items():
        machine = Machine.objects.get(cluster=cluster, name=f"node-{index}")
        Incarnation.objects.filter(pk=life.pk).update(machine=machine)
    return played


def crash(job: PlayedJob, *lines: str, index: int = 0) -> None:
    fail(job, *lines, index=index, exit_code=None, signal="SIGSEGV")


def days_pass(days: float) -> None:
    """All that has ended so far is so many days older."""
    ended = Attempt.objects.filter(ended_at__isnull=False)
    ended.update(ended_at=F("ended_at") - timedelta(days=days))


def test_second_tenants_job_that_fails_alike_on_a_node_blames_the_node_and_names_nobody(
    cluster: Cluster,
) -> None:
    first = training(cluster, "zeppelin", namespace="airships", name="hindenburg")
    crash(first, "lakehurst: mooring mast 42 gave way")
    assert (found_in(first)["blame"], found_in(first)["remedy"]) == ("none", "restart_process")
    days_pass(3)
    second = training(cluster, "submarine", namespace="boats", name="nautilus")
    crash(second, "ballast pump stopped")
    found = found_in(second)
    assert (found["blame"], found["remedy"], found["category"]) == ("node", "isolate_node", "host_hw")
    told = "Other jobs failed alike on node-0 within 30 days, and none trained well there since"
    assert told in found["compared"]
    verdict = Incident.objects.get(job=second.job).verdict
    assert told in verdict["evidence"]
    kept = json.dumps(
        [
            verdict,
            *Decision.objects.filter(subject=second.subject).values_list("state_before", "inbox", "outcome"),
        ]
    ).lower()
    assert "nautilus" in kept
    for word in ("zeppelin", "airships", "hindenburg", "lakehurst", "mooring", str(first.job.owner_uid)):
        assert word not in kept
    assert replay_after(0)[1] == []


def test_machine_on_which_another_job_trained_since_is_cleared(cluster: Cluster) -> None:
    crash(training(cluster, "first"))
    days_pass(3)
    between = training(cluster, "second")
    Incarnation.objects.filter(worker__job=between.job).update(
        enrolled_at=database_now() - timedelta(hours=30),
        step=9000,
        step_at=database_now() - timedelta(hours=28),
    )
    third = training(cluster, "third")
    crash(third)
    assert found_in(third)["blame"] == "none"
    others = "Other jobs failed alike on node-0 within 30 days"
    assert found_in(third)["compared"] == [f"{others}; another trained well there since, which clears it"]


@pytest.mark.parametrize(("days", "index"), [(31, 0), (3, 1)], ids=["longer-ago", "on-another-machine"])
def test_failure_of_no_concern_blames_nothing(cluster: Cluster, days: float, index: int) -> None:
    crash(training(cluster, "first"), index=index)
    days_pass(days)
    second = training(cluster, "second")
    crash(second)
    assert (found_in(second)["blame"], "compared" in found_in(second)) == ("none", False)


@pytest.mark.parametrize("is_same_owner", [True, False])
def test_job_made_anew_under_its_name_has_its_past_unless_it_was_another_tenants(
    cluster: Cluster, is_same_owner: bool
) -> None:
    first = training(cluster, "owner", name="llm")
    crash(first)
    days_pass(1)
    tenant = first.job.tenant if is_same_owner else factories.make_tenant()
    again = PlayedJob(
        factories.make_job(
            workers=2, max_retry=9, cluster=cluster, tenant=tenant, lineage=first.job, name="llm"
        )
    )
    again.start_training()
    crash(again)
    compared = found_in(again)["compared"]
    own = ["The attempt before this one ended by the same rule"]
    assert (compared == own) is is_same_owner
    assert any("Other jobs failed alike on node-0" in each for each in compared) is not is_same_owner
    assert found_in(again)["times"] == 1


def test_numbers_of_a_machine_are_counted_by_kind_device_owner_and_elsewhere(cluster: Cluster) -> None:
    crash(training(cluster, "first"))
    crash(training(cluster, "second"))
    crash(training(cluster, "third"), index=1)
    Attempt.objects.filter(job__tenant__slug="second").update(found_device="pci/0000:a1:00")
    job = training(cluster, "fourth")
    (machine,), statements = machines_of(job)
    assert len(statements) == 1
    assert (machine.node, machine.own_attempts, machine.machines) == ("node-0", (1,), 40)
    numbers = [
        (
            each.rule,
            each.device,
            each.jobs,
            each.owners,
            each.fine_since,
            each.jobs_elsewhere,
        )
        for each in machine.findings
    ]
    assert numbers == [
        ("", "", 2, 2, 0, 0),
        ("end.crash-signal", "", 2, 2, 0, 1),
        ("end.crash-signal", "pci/0000:a1:00", 1, 1, 0, 0),
    ]


def machines_of(job: PlayedJob) -> tuple[tuple[Any, ...], list[str]]:
    """What a decision about a failure of worker 0 would read, and the statements of it."""
    now, life = database_now(), job.lives[0]
    failed = Signal(
        id=1, source=Source.AGENT, kind=SignalKind.ERROR, seen_at=now, received_at=now, data={},
        worker=WorkerKey("worker", 0), incarnation=life.pk,
    )  # fmt: skip
    view = IncarnationView(
        id=life.pk, worker=WorkerKey("worker", 0), pod_uid=life.pod_uid, restart_count=0, node=life.node_name,
        enrolled_at=now,
    )  # fmt: skip
    with CaptureQueriesContext(connection) as queries:
        found = read_machines(job.subject, None, (failed,), (view,), now=now)
    return found, [each["sql"] for each in queries if "nodes_machine" in each["sql"]]


def test_past_of_a_machine_is_read_from_its_indexes(cluster: Cluster) -> None:
    job, other, now = training(cluster, "first"), training(cluster, "second"), database_now()
    machines = list(Machine.objects.filter(cluster=cluster))
    Attempt.objects.bulk_create(
        Attempt(
            tenant=other.job.tenant, job=other.job, n=100 + n, sequence=1, started_at=now, ended_at=now,
            found_rule=f"rule-{n % 50}", found_category="host_hw", found_machine=machines[n % 40],
        )
        for n in range(4000)
    )  # fmt: skip
    Incarnation.objects.bulk_create(
        Incarnation(
            tenant=other.job.tenant, worker=other.lives[0].worker, pod_uid=f"pod-{n}", pod_name="pod",
            enrolled_at=now, machine=machines[n % 40],
        )
        for n in range(4000)
    )  # fmt: skip
    _, (statement,) = machines_of(job)
    with connection.cursor() as cursor:
        for table in ("jobs_attempt", "jobs_incarnation", "nodes_machine"):
            cursor.execute(f"ANALYZE {table}")
        cursor.execute(f"EXPLAIN {statement}")
        plan = " ".join(row[0] for row in cursor.fetchall())
    for index in ("attempt_found_on_machine", "attempt_found_by_rule", "incarnation_on_machine"):
        assert index in plan
