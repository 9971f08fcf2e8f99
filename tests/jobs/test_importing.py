"""Jobs and pods become rows, and what happened becomes news: each piece once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from adapters.facts import Change, Disruption, JobFact
from apps.access import services as access
from apps.access.models import Cluster
from apps.jobs.models import Incarnation, Job, Pod, Run, Worker
from apps.jobs.services.importing import News, import_jobs, known_jobs, review_protection
from apps.jobs.services.pods import PodsImported, fill_restart_counts, import_pods, known_pods, leaving_jobs
from apps.nodes.models import Machine
from recovery.decide import Mode
from recovery.signals import SignalKind, WorkerKey
from tests import facts
from tests.factories import make_cluster, make_tenant
from tests.facts import (
    added,
    at,
    deleted,
    deleting,
    ended,
    later,
    make_end,
    make_job_fact,
    make_pod_fact,
    modified,
    over,
    running,
    unplaceable,
    vanished,
)

pytestmark = pytest.mark.django_db

NOW = at(0)


@pytest.fixture
def cluster() -> Cluster:
    return make_cluster(slug="prod")


def take_jobs(
    cluster: Cluster, *changes: Change[JobFact], namespaces: Mapping[str, dict[str, str]] | None = None
) -> list[News]:
    return import_jobs(cluster=cluster, changes=changes, namespaces=namespaces or {}, now=NOW).news


def take_pods(
    cluster: Cluster,
    *changes: Change[Any],
    jobs_now: Mapping[str, JobFact | None] | None = None,
    seconds: float = 100,
) -> PodsImported:
    return import_pods(cluster=cluster, changes=changes, jobs_now=jobs_now or {}, now=at(seconds))


def kinds(news: list[News]) -> list[SignalKind]:
    return [each.kind for each in news]


def ends(result: PodsImported) -> list[News]:
    return [each for each in result.news if each.kind is SignalKind.INCARNATION_ENDED]


def enrol(cluster: Cluster, index: int = 0, *, seconds: float = 10.4, **overrides: Any) -> Incarnation:
    worker = Worker.objects.get(job__cluster=cluster, index=index)
    life = Incarnation.objects.create(
        tenant=worker.tenant,
        worker=worker,
        **{
            "pod_uid": f"uid-llm-{index}",
            "pod_name": "llm",
            "container": "train",
            "nonce": f"nonce-{index}-{seconds}",
            "enrolled_at": at(seconds),
            **overrides,
        },
    )
    worker.incarnation = life
    worker.save(update_fields=["incarnation"])
    return life


# Jobs


def test_new_job_gets_its_row_workers_run_and_tenant(cluster: Cluster) -> None:
    tenant = make_tenant()
    access.map_namespace(
        cluster_id=cluster.pk, pattern="train", tenant_id=tenant.pk, actor_kind="command", actor="test"
    )
    news = take_jobs(cluster, added(make_job_fact()))
    job = Job.objects.get()
    assert (job.tenant_id, job.owner_uid, job.world_size) == (tenant.pk, "uid-llm", 3)
    assert list(job.workers.values_list("role", "index")) == [("worker", 0), ("worker", 1), ("worker", 2)]
    assert Run.objects.get().started_at == NOW
    assert [(each.kind, each.body, each.source_key) for each in news] == [
        (SignalKind.JOB_KNOWN, {"suspended": False}, "uid-llm@10:job_known")
    ]


def test_same_version_again_changes_and_tells_nothing(cluster: Cluster) -> None:
    take_jobs(cluster, added(make_job_fact()))
    assert take_jobs(cluster, added(make_job_fact()), modified(make_job_fact())) == []


def test_older_version_does_not_undo_a_newer_one(cluster: Cluster) -> None:
    take_jobs(cluster, added(make_job_fact(is_suspended=True, resource_version="11")))
    assert take_jobs(cluster, modified(make_job_fact(resource_version="9"))) == []
    assert Job.objects.get().is_suspended


def test_suspend_and_resume_are_told_once_with_who_did_it(cluster: Cluster) -> None:
    fact = make_job_fact()
    take_jobs(cluster, added(fact))
    off = replace(fact, is_suspended=True, suspend_set_by="kubectl-patch", resource_version="11")
    news = take_jobs(cluster, modified(off), modified(replace(off, failed_pods=1, resource_version="12")))
    assert [(each.kind, each.body) for each in news] == [(SignalKind.JOB_SUSPENDED, {"by": "kubectl-patch"})]
    on = replace(fact, suspend_set_by="kueue", resource_version="13")
    assert [each.body for each in take_jobs(cluster, modified(on))] == [{"by": "kueue"}]


def test_suspend_by_the_desk_names_its_incident(cluster: Cluster) -> None:
    """R48, in part: what the desk stopped says why and for which incident. A reason on a node comes with holds."""
    fact = make_job_fact()
    take_jobs(cluster, added(fact))
    off = replace(
        fact,
        is_suspended=True,
        suspend_set_by="incidentdesk",
        annotations={"stopped-by": "incidentdesk, INC-7"},
        resource_version="11",
    )
    assert [each.body for each in take_jobs(cluster, modified(off)) if each.kind == "job_suspended"] == [
        {"by": "incidentdesk, INC-7"}
    ]


def test_deleted_job_is_told_once_and_its_successor_is_linked(cluster: Cluster) -> None:
    fact = make_job_fact()
    take_jobs(cluster, added(fact))
    assert kinds(take_jobs(cluster, deleted(fact), vanished(fact))) == [SignalKind.JOB_DELETED]
    take_jobs(cluster, added(make_job_fact(uid="uid-again")))
    again = Job.objects.get(owner_uid="uid-again")
    assert again.lineage is not None
    assert again.lineage.owner_uid == "uid-llm"
    assert known_jobs(cluster)[0] == {"uid-again": "10"}


def test_end_by_the_controller_keeps_one_key(cluster: Cluster) -> None:
    fact = make_job_fact()
    take_jobs(cluster, added(fact))
    failed = over(fact, "Failed", "BackoffLimitExceeded")
    news = take_jobs(
        cluster, modified(failed), modified(replace(failed, failed_pods=9, resource_version="12"))
    )
    assert {(each.kind, each.source_key) for each in news} == {
        (SignalKind.JOB_ENDED, "uid-llm@Failed:job_ended")
    }
    assert news[0].body["reason"] == "BackoffLimitExceeded"


def test_batch_job_that_trains_nothing_gets_no_row(cluster: Cluster) -> None:
    fact = make_job_fact(is_indexed=False, gpus_per_worker=0, annotations={})
    result = import_jobs(cluster=cluster, changes=[added(fact)], namespaces={}, now=NOW)
    assert result.ignored == {"uid-llm"}
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("own", "namespace", "mode", "reason"),
    [
        pytest.param({"protect": "true"}, {}, Mode.AUTO, "", id="job asks"),
        pytest.param({}, {"protect": "true"}, Mode.AUTO, "", id="namespace asks"),
        pytest.param({"protect": "false"}, {"protect": "true"}, Mode.AUTO, "annotation", id="job declines"),
        pytest.param({}, {}, Mode.AUTO, "annotation", id="nobody asks"),
        pytest.param({"protect": "true"}, {}, Mode.OBSERVE, "in observe", id="cluster observes"),
        pytest.param(
            {"protect": "true", "mode": "observe"}, {}, Mode.AUTO, "observed only", id="job is to be observed"
        ),
    ],
)
def test_protection_and_why_not(
    own: dict[str, str], namespace: dict[str, str], mode: Mode, reason: str
) -> None:
    cluster = make_cluster(mode=mode)
    take_jobs(cluster, added(make_job_fact(annotations=own)), namespaces={"train": namespace})
    job = Job.objects.get()
    assert job.is_protected is (reason == "")
    assert reason in job.protection_reason


def test_annotation_of_a_namespace_and_arming_are_told_as_edges(cluster: Cluster) -> None:
    take_jobs(cluster, added(make_job_fact(annotations={})))
    asked = {"train": {"protect": "true"}}
    news = review_protection(cluster=cluster, namespaces=asked, now=NOW)
    assert [(each.kind, each.body["protected"]) for each in news] == [(SignalKind.PROTECTION, True)]
    assert review_protection(cluster=cluster, namespaces=asked, now=NOW) == []
    cluster.mode = Mode.OBSERVE
    news = review_protection(cluster=cluster, namespaces=asked, now=NOW + timedelta(seconds=1))
    assert news[0].body == {"protected": False, "reason": "cluster prod is in observe"}


def test_max_retry_is_read_changed_and_doubted(cluster: Cluster) -> None:
    fact = make_job_fact(annotations={"protect": "true", "max-retry": "3", "stop-grace-seconds": "12"})
    take_jobs(cluster, added(fact))
    job = Job.objects.get()
    assert (job.max_retry, job.stop_grace_seconds) == (3, 12)
    more = replace(fact, annotations={"protect": "true", "max-retry": "5"}, resource_version="11")
    assert [(each.kind, each.body) for each in take_jobs(cluster, modified(more))] == [
        (SignalKind.MAX_RETRY_CHANGED, {"max_retry": 5})
    ]
    wrong = replace(fact, annotations={"protect": "true", "max-retry": "many"}, resource_version="12")
    take_jobs(cluster, modified(wrong))
    warnings = {row["name"]: row["warning"] for row in Job.objects.get().limits}
    assert "'many'" in warnings["max-retry"]
    assert Job.objects.get().max_retry == 3, "a decision changes it, by the signal"


# Pods


@pytest.fixture
def job(cluster: Cluster) -> Job:
    take_jobs(cluster, added(make_job_fact()))
    Machine.objects.create(
        cluster=cluster,
        hardware_key="m1",
        name="gpu-r01-01",
        is_ready=True,
        first_seen_at=NOW,
        last_seen_at=NOW,
    )
    return Job.objects.get()


def test_pod_whose_job_is_not_known_is_given_back(cluster: Cluster) -> None:
    result = take_pods(cluster, added(make_pod_fact()))
    assert [change.uid for change in result.pending] == ["uid-llm-0"]
    assert not Pod.objects.exists()


def test_world_runs_when_its_last_pod_does(cluster: Cluster, job: Job) -> None:
    pods = [running(make_pod_fact(index)) for index in range(3)]
    assert take_pods(cluster, added(pods[0]), added(pods[1])).news == []
    news = take_pods(cluster, added(pods[2]), seconds=30).news
    assert kinds(news) == [SignalKind.WORLD_RUNNING]
    job.refresh_from_db()
    assert job.world_running_at == at(30)
    assert take_pods(cluster, modified(later(pods[2], ip="10.0.0.9"))).news == []


def test_world_is_told_again_after_a_pod_came_back(cluster: Cluster, job: Job) -> None:
    pods = [running(make_pod_fact(index)) for index in range(3)]
    take_pods(cluster, *map(added, pods))
    assert kinds(take_pods(cluster, deleted(later(pods[1]))).news) == [SignalKind.INCARNATION_ENDED]
    job.refresh_from_db()
    assert job.world_running_at is None
    back = running(make_pod_fact(1, uid="uid-new"))
    assert kinds(take_pods(cluster, added(back)).news) == [SignalKind.WORLD_RUNNING]


def test_end_in_the_status_and_the_later_deletion_are_one_piece_of_news(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    life = enrol(cluster)
    over_now = ended(pod, make_end(code=137, seconds=60))
    (news,) = ends(take_pods(cluster, modified(over_now)))
    assert news.source_key == "uid-llm-0/train/0"
    assert (news.worker, news.incarnation_id, news.seen_at) == (WorkerKey("worker", 0), life.pk, at(60))
    assert (news.body["cause"], news.body["exit_code"], news.body["signal"]) == ("crashed", 137, 9)
    assert news.body["node"] == "gpu-r01-01"
    life.refresh_from_db()
    assert (life.restart_count, life.end_cause, life.exit_code, life.ended_at) == (0, "crashed", 137, at(60))
    assert ends(take_pods(cluster, deleted(deleting(over_now, seconds=70)))) == []
    assert Pod.objects.get().gone_at == at(100)


def test_status_and_deletion_in_one_batch_are_one_piece_of_news(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    over_now = ended(pod)
    result = take_pods(cluster, added(pod), modified(over_now), deleted(later(over_now)))
    assert [each.body["cause"] for each in ends(result)] == ["crashed"]


def test_forced_deletion_without_a_status_ends_the_life(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    life = enrol(cluster)
    (news,) = ends(take_pods(cluster, deleted(deleting(pod, seconds=61, grace=0))))
    assert (news.body["cause"], news.body["exit_code"], news.seen_at) == ("deleted", None, at(61))
    assert news.incarnation_id == life.pk


def test_pod_that_vanished_in_a_gap_ends_too(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    enrol(cluster)
    assert known_pods(cluster) == {pod.uid: pod.resource_version}
    (news,) = ends(take_pods(cluster, vanished(pod)))
    assert (news.source_key, news.body["cause"], news.body["reason"]) == (
        "uid-llm-0/train/0",
        "deleted",
        "Vanished",
    )
    assert known_pods(cluster) == {}
    assert take_pods(cluster, vanished(pod)).news == []


def test_container_restart_ends_the_life_before(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    first = enrol(cluster, seconds=10.4)
    again = running(pod, restart=1, seconds=62)
    (news,) = ends(take_pods(cluster, modified(again)))
    assert (news.source_key, news.incarnation_id) == ("uid-llm-0/train/0", first.pk)
    second = enrol(cluster, seconds=62.5)
    assert ends(take_pods(cluster, modified(later(again, ip="10.0.0.2")))) == []
    second.refresh_from_db()
    assert second.restart_count == 1
    assert second.machine is not None


def test_restart_missed_by_the_watch_ends_every_life_that_was_known(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    first = enrol(cluster, seconds=10.4)
    news = ends(take_pods(cluster, modified(running(pod, restart=3, seconds=90))))
    assert [each.source_key for each in news] == ["uid-llm-0/train/0", "uid-llm-0/train/2"]
    assert news[0].incarnation_id == first.pk
    assert news[0].body["exit_code"] is None


def test_enrolment_after_the_last_change_of_the_pod_learns_its_restart_count(
    cluster: Cluster, job: Job
) -> None:
    take_pods(cluster, added(running(make_pod_fact(), restart=2, seconds=50)))
    stale = enrol(cluster, seconds=20)
    life = enrol(cluster, seconds=50.8)
    assert fill_restart_counts(cluster) == 1
    life.refresh_from_db()
    stale.refresh_from_db()
    assert (life.restart_count, stale.restart_count) == (2, None)


def test_pod_found_dead_at_first_sight_is_history(cluster: Cluster) -> None:
    result = import_jobs(cluster=cluster, changes=[added(make_job_fact())], namespaces={}, now=at(500))
    assert kinds(result.news) == [SignalKind.JOB_KNOWN]
    pod = ended(running(make_pod_fact()), make_end(seconds=60))
    assert take_pods(cluster, added(pod), seconds=500).news == []
    assert take_pods(cluster, deleted(later(pod)), seconds=501).news == []


def test_pod_that_came_and_died_while_the_watch_was_away_is_told(cluster: Cluster, job: Job) -> None:
    pod = ended(running(make_pod_fact()), make_end(seconds=60))
    assert [each.body["cause"] for each in ends(take_pods(cluster, added(pod)))] == ["crashed"]


def test_pod_that_never_ran_ends_nothing(cluster: Cluster, job: Job) -> None:
    pod = make_pod_fact()
    assert take_pods(cluster, added(pod), deleted(later(pod))).news == []


def test_waiting_for_capacity_is_an_edge_of_the_job(cluster: Cluster, job: Job) -> None:
    one, two = unplaceable(make_pod_fact(0)), unplaceable(make_pod_fact(1))
    news = take_pods(cluster, added(one), added(two)).news
    assert kinds(news) == [SignalKind.POD_WAITING]
    assert news[0].body["pods"] == 2
    assert take_pods(cluster, modified(running(one, unschedulable=None))).news == []
    assert kinds(take_pods(cluster, modified(running(two, unschedulable=None))).news) == [
        SignalKind.CAPACITY_BACK
    ]


@pytest.mark.parametrize(
    ("job_now", "cause", "reason"),
    [
        pytest.param(make_job_fact(), "deleted", "Deleted", id="job runs on"),
        pytest.param(make_job_fact(is_suspended=True), "stopped_by_user", "JobSuspended", id="suspended"),
        pytest.param(None, "stopped_by_user", "JobDeleted", id="job is gone"),
        pytest.param(make_job_fact(world_size=0), "stopped_by_user", "JobScaledDown", id="scaled down"),
        pytest.param(
            over(make_job_fact(), "FailureTarget", "BackoffLimitExceeded"),
            "stopped_by_user",
            "BackoffLimitExceeded",
            id="controller gave up",
        ),
    ],
)
def test_deletion_is_seen_beside_the_job_as_it_is(
    cluster: Cluster, job: Job, job_now: JobFact | None, cause: str, reason: str
) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    gone = deleted(ended(deleting(pod, seconds=59), make_end(code=143, seconds=60)))
    assert leaving_jobs([gone], cluster) == {"uid-llm": ("train", "llm")}
    (news,) = ends(take_pods(cluster, gone, jobs_now={"uid-llm": job_now}))
    assert (news.body["cause"], news.body["reason"]) == (cause, reason)


def test_preempted_pod_is_told_as_such(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    leaving = deleting(pod, disruption=Disruption("PreemptionByScheduler", "higher priority"))
    (news,) = ends(take_pods(cluster, modified(ended(leaving, make_end(code=143, seconds=60)))))
    assert (news.body["cause"], news.body["reason"]) == ("preempted", "PreemptionByScheduler")


def test_pod_of_a_lost_node_is_told_as_such(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    Machine.objects.update(is_ready=None)
    (news,) = ends(take_pods(cluster, vanished(pod)))
    assert news.body["cause"] == "node_lost"


def test_unprotected_job_gets_lives_without_agent(cluster: Cluster) -> None:
    take_jobs(cluster, added(make_job_fact(annotations={})))
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    life = Incarnation.objects.get()
    assert (life.nonce, life.restart_count, life.worker.index) == ("", 0, 0)
    assert life.worker.incarnation == life
    (news,) = ends(take_pods(cluster, modified(ended(pod))))
    assert news.incarnation_id == life.pk


def test_agent_of_an_unprotected_job_takes_its_life_over(cluster: Cluster) -> None:
    take_jobs(cluster, added(make_job_fact(annotations={})))
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    life = enrol(cluster)
    (news,) = ends(take_pods(cluster, modified(ended(pod))))
    assert news.incarnation_id == life.pk
    assert not Incarnation.objects.filter(ended_at=None).exists()


def test_end_of_a_worker_whose_agent_never_came_belongs_to_the_attempt(cluster: Cluster, job: Job) -> None:
    pod = running(make_pod_fact())
    take_pods(cluster, added(pod))
    assert not Incarnation.objects.exists(), "a protected job's agents enrol by themselves"
    Job.objects.update(phase="RunCommand", attempt=4, is_protected=False)  # the barrier gave protection up
    (news,) = ends(take_pods(cluster, modified(ended(pod))))
    life = Incarnation.objects.get()
    assert (news.incarnation_id, life.first_attempt, life.last_attempt) == (life.pk, 4, 4)


def test_own_exit_code_of_the_agent_is_read_only_where_there_is_one(cluster: Cluster, job: Job) -> None:
    with_agent, without = running(make_pod_fact(0)), running(make_pod_fact(1))
    take_pods(cluster, added(with_agent), added(without))
    enrol(cluster, 0)
    result = take_pods(
        cluster, modified(ended(with_agent, make_end(code=78))), modified(ended(without, make_end(code=78)))
    )
    assert [each.body["cause"] for each in ends(result)] == ["ordered", "crashed"]


def test_pods_without_index_take_the_lowest_free_place(cluster: Cluster) -> None:
    take_jobs(cluster, added(make_job_fact(is_indexed=False)))
    pods = [running(make_pod_fact(number, index=None)) for number in range(3)]
    take_pods(cluster, *map(added, pods))
    take_pods(cluster, modified(ended(pods[1])))
    take_pods(cluster, added(running(make_pod_fact(9, index=None))))
    assert Pod.objects.get(uid="uid-llm-9").index == 1
    assert Pod.objects.get(uid="uid-llm-9").created_at >= facts.START
