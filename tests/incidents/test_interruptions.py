from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from pytest_django import DjangoAssertNumQueries

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.incidents.checkpoint_advice import checkpoint_advice
from apps.incidents.interruptions import Interruptions, exposure_of_nodes, interruptions
from apps.incidents.models import Incident
from apps.jobs.models import Attempt, Checkpoint, FailureCount, Incarnation, Job, Worker
from recovery.reliability import SizeClass, by_job_size
from tests import factories
from tests.factories import PlayedJob
from tests.incidents.lives import recover_in_place

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def attempt(
    job: Job,
    n: int,
    *,
    began: float,
    ended: float | None,
    nodes: int | None = 4,
    cause: str = "",
    node: str = "",
) -> Attempt:
    """An attempt by hours ago; with a cause it ended in a failure that counts."""
    now = database_now()
    row = Attempt.objects.create(
        tenant=job.tenant, job=job, n=n, sequence=2 * n, nodes=nodes, started_at=now - began * HOUR,
        ended_at=None if ended is None else now - ended * HOUR, end_cause=cause,
    )  # fmt: skip
    if cause:
        FailureCount.objects.create(
            tenant=job.tenant, job=job, attempt=n, worker=job.workers.all()[0], cause="killed", node_name=node,
            at=row.ended_at,
        )  # fmt: skip
    return row


def look(job: Job, **narrowed: object) -> Interruptions:
    return interruptions(cluster_id=job.cluster_id, now=database_now(), **narrowed)  # type: ignore[arg-type]


def node_hours(found: Interruptions) -> float:
    return sum(each.node_days for each in found.exposures) * 24


@pytest.fixture
def job() -> Job:
    return factories.make_job(workers=4, gpus_per_worker=8)


def test_failure_of_a_real_recovery_is_seen_with_its_node_and_the_nodes_of_its_job(
    training: PlayedJob,
) -> None:
    before = look(training.job)
    assert (before.failures, [each.nodes for each in before.exposures]) == ((), [3])
    training.kill(1)
    training.decide()
    found = look(training.job)
    (failure,) = found.failures
    assert (failure.node, failure.fault_class, failure.job_nodes) == ("node-1", "process_killed", 3)
    assert failure.by_machine
    (exposure,) = found.exposures
    assert exposure.until == failure.at, "while it is recovered nothing can be interrupted"


def test_workers_on_one_node_are_one_node(training: PlayedJob) -> None:
    Incarnation.objects.filter(worker__job=training.job).update(node_name="node-0")
    recover_in_place(training)
    assert [row.nodes for row in Attempt.objects.filter(job=training.job)] == [3, 1]


def test_time_of_attempts_times_their_nodes_is_the_exposure(job: Job) -> None:
    attempt(job, 1, began=30, ended=20, cause="process_killed", node="a")
    attempt(job, 2, began=19, ended=None)
    attempt(job, 3, began=9, ended=8, nodes=None, cause="process_killed")
    found = look(job)
    assert node_hours(found) == pytest.approx(4 * (10 + 19), abs=0.01)
    assert len(found.failures) == 1
    assert found.without_nodes == 1
    assert found.days == pytest.approx(30 / 24, abs=0.01)


def test_what_was_before_the_window_is_in_neither(job: Job) -> None:
    attempt(job, 1, began=100, ended=50, cause="process_killed")
    attempt(job, 2, began=40, ended=10, cause="process_killed")
    found = look(job, days=1)
    assert len(found.failures) == 1
    assert node_hours(found) == pytest.approx(4 * 14, abs=0.01)


def test_only_the_newest_are_read_and_the_window_begins_with_them(job: Job) -> None:
    for n in range(1, 6):
        attempt(job, n, began=60 - 10 * n, ended=51 - 10 * n, cause="process_killed")
    found = look(job, most=2)
    # The newest two ended 11 h and 1 h ago: from the end of the older one on there is one whole attempt of 9 h.
    assert len(found.failures) == 2
    assert node_hours(found) == pytest.approx(4 * 9, abs=0.01)


def test_size_tenant_and_cluster_narrow_it(job: Job) -> None:
    large = factories.make_job(workers=2, tenant=job.tenant, cluster=job.cluster)
    others = factories.make_job(workers=2, cluster=job.cluster)
    elsewhere = factories.make_job(workers=2, tenant=job.tenant)
    for each, nodes in ((job, 4), (large, 9), (others, 4), (elsewhere, 4)):
        attempt(each, 1, began=2, ended=1, nodes=nodes, cause="process_killed")
    assert len(look(job).failures) == 3
    assert [each.job_nodes for each in look(job, tenant_id=job.tenant_id).failures] == [4, 9]
    assert [
        each.job_nodes for each in look(job, tenant_id=job.tenant_id, size=SizeClass(9, 64)).failures
    ] == [9]
    assert [each.job_nodes for each in look(job, size=SizeClass(9, None)).failures] == [9]
    sizes = by_job_size(look(job).failures, look(job).exposures)
    assert {name: each.failures for name, each in sizes.items()} == {"1-8": 2, "9-64": 1}


def blame_on_the_job(job: Job, n: int) -> None:
    now = database_now()
    incident = Incident.objects.create(
        tenant=job.tenant, cluster=job.cluster, subject=PlayedJob(job).subject, job=job, title="bug", state="closed",
        state_since_at=now, severity="high", opened_at=now, resolved_at=now,
        closed_at=now, resolution="recovered", verdict={"diagnosis": {"blame": "job"}},
    )  # fmt: skip
    FailureCount.objects.filter(job=job, attempt=n).update(incident_uid=incident.uid)


def test_failure_that_the_job_made_is_none_of_a_machine(job: Job) -> None:
    attempt(job, 1, began=3, ended=2, cause="process_crashed")
    attempt(job, 2, began=2, ended=1, cause="process_killed")
    blame_on_the_job(job, 1)
    assert [(each.fault_class, each.by_machine) for each in look(job).failures] == [
        ("process_killed", True),
        ("process_crashed", False),
    ]


def test_node_that_failed_has_the_time_that_was_trained_on_it(
    training: PlayedJob, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    Attempt.objects.filter(job=training.job).update(started_at=database_now() - 5 * HOUR)
    Incarnation.objects.filter(worker__job=training.job, worker__index__gt=0).update(node_name="node-1")
    training.kill(1)
    training.decide()
    with django_assert_num_queries(2):  # the clock
        found = look(training.job)
    with django_assert_num_queries(1):
        (exposure,) = exposure_of_nodes(cluster_id=training.job.cluster_id, found=found)
    assert exposure.node == "node-1"
    assert exposure.node_days * 24 == pytest.approx(5, abs=0.01), "two workers on it make it no two nodes"


def economics(*words: str) -> str:
    out = StringIO()
    call_command("economics", "mtbf", *words, stdout=out)
    return out.getvalue()


def test_command_tells_what_the_desk_has_seen(job: Job) -> None:
    life = Incarnation(
        tenant=job.tenant, pod_uid="u", pod_name="p", container="c", first_attempt=1, last_attempt=3
    )
    life.worker, life.node_name = Worker.objects.filter(job=job)[0], "gpu-1"
    life.save()
    attempt(job, 1, began=50, ended=40, cause="process_killed", node="gpu-1")
    attempt(job, 2, began=40, ended=20, cause="process_crashed", node="gpu-2")
    attempt(job, 3, began=10, ended=None)
    attempt(job, 4, began=9, ended=8, nodes=None)
    blame_on_the_job(job, 2)
    told = economics("--cluster", job.cluster.slug, "--job-sizes", "4")
    lines = told.splitlines()
    assert lines[0] == f"cluster {job.cluster.slug}: 1 failure in 7 node-days"
    assert lines[1].startswith("(3 attempts since ")
    assert "left out: 1 failure that the verdict blames on the job itself" in lines
    assert "left out: 1 attempt of which it is not known on how many nodes" in lines
    rows = {line[:28].strip(): line.split() for line in lines}
    assert rows["process_killed"][1] == rows["1-8"][1] == "1"
    assert rows["gpu-1"][1] == "1"
    assert rows["gpu-1"][-3:] == ["too", "few", "gaps"]
    assert "process_crashed" not in rows
    assert rows["4"][-1] == "(estimated)"


def test_cluster_without_history_has_the_prior(job: Job) -> None:
    told = economics("--cluster", job.cluster.slug)
    assert "0 failures in 0 node-days" in told
    assert "with the prior 270.0 days" in told
    assert "(assumed)" in told
    assert "measured" not in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cluster", "nowhere"), r"there is no cluster 'nowhere' \(there are: none\)"),
        (("--cluster", "nowhere", "--nodes", "4"), "--nodes is about a trace"),
        (("--cluster", "nowhere", "--days", "0"), "days is 0, but how far to look back"),
        (("trace.csv", "--cluster", "nowhere"), "not allowed with argument"),
    ],
)
def test_what_the_command_cannot_tell_is_refused(words: tuple[str, ...], says: str) -> None:
    Cluster.objects.all().delete()
    with pytest.raises(CommandError, match=says):
        economics(*words)


def saves(job: Job, *seconds: float | None) -> None:
    now = database_now()
    for n, each in enumerate(seconds):
        Checkpoint.objects.create(
            tenant=job.tenant, job=job, step=100 * n, path=f"/c/{n}", state="committed", attempt=1, seconds=each,
            committed_at=now - (len(seconds) - n) * HOUR,
        )  # fmt: skip


def test_job_is_advised_from_its_saves_and_what_interrupted_its_like(
    job: Job, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    like = factories.make_job(workers=2, tenant=job.tenant, cluster=job.cluster)
    others = factories.make_job(workers=2, cluster=job.cluster)
    attempt(job, 1, began=240, ended=None)
    attempt(like, 1, began=200, ended=100, nodes=8, cause="process_killed")
    attempt(others, 1, began=200, ended=100, nodes=8, cause="process_killed")
    saves(job, 30, 30, None)
    now = database_now()
    with django_assert_num_queries(3):
        found = checkpoint_advice(job, now=now)
    assert found is not None
    assert (found.nodes, str(found.size)) == (4, "1-8")
    assert found.plan.checkpoint_seconds.value == 30
    assert found.mtbf.failures == 1, "nothing of another tenant shows"
    assert found.rests_on == "1 failure in 10 days, prior weighs 88%"
    assert found.plan.present is not None


def test_nothing_is_advised_where_a_part_is_not_known(job: Job) -> None:
    now = database_now()
    assert checkpoint_advice(job, now=now) is None, "no save has told its time"
    saves(job, 30)
    assert checkpoint_advice(job, now=now) is None, "it is not known on how many nodes it runs"
    attempt(job, 1, began=2, ended=None)
    assert checkpoint_advice(job, now=now) is not None
    job.gpus_per_worker = 0
    assert checkpoint_advice(job, now=now) is None, "the prior is of nodes with GPUs"
    attempt(job, 2, began=2, ended=1, cause="process_killed")
    found = checkpoint_advice(job, now=now)
    assert found is not None
    assert found.rests_on == "1 failure in 2 hours"
