"""A slow machine on rows: whether another place is free, and an eviction that people were told to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.incidents.models import Action, Decision, Incident
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.replaying import decisions_of, replay_all
from apps.jobs.models import Attempt, FailureCount, Incarnation, Pod
from apps.nodes.models import Machine
from recovery.comparisons import NEEDED
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import PlayedJob
from tests.incidents.lives import come_back, go_on

pytestmark = pytest.mark.django_db(transaction=True)

H100 = "NVIDIA-H100-80GB-HBM3"


@pytest.fixture(autouse=True)
def _nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_app, "send_task", lambda *_, **__: None)


def training(**fields: Any) -> PlayedJob:
    """A job whose workers ask for 8 GPUs each; worker n runs on node-n."""
    job = PlayedJob(factories.make_job(**{"workers": 2, "max_retry": 5, "gpus_per_worker": 8, **fields}))
    job.start_training()
    begun = {
        "started_at": job.now() - timedelta(seconds=130),
        "first_step_at": job.now() - timedelta(seconds=120),
    }
    Attempt.objects.filter(job=job.job).update(**begun)
    return job


def add_node(job: PlayedJob, name: str, **fields: Any) -> Machine:
    now = job.now()
    return Machine.objects.create(
        **{
            "cluster": job.job.cluster, "hardware_key": name, "name": name, "gpu_type": H100, "gpu_count": 8,
            "is_ready": True, "first_seen_at": now, "last_seen_at": now, **fields,
        }
    )  # fmt: skip


def compare(job: PlayedJob, n: int, node: str = "node-1") -> None:
    body = {"name": "step_time_ratio", "value": 1.5, "node": node}
    job.record(SignalKind.METRIC, Source.PROMETHEUS, f"{job.job.pk}/{node}/{n}", body)
    job.decide()


def asked(job: PlayedJob) -> str:
    return Action.objects.filter(incident__job=job.job, kind="ask_person").latest("id").why


@pytest.mark.parametrize(
    ("spare", "is_free"),
    [
        pytest.param({}, True, id="a node as the job's own"),
        pytest.param({"gpu_count": 4}, False, id="too few GPUs"),
        pytest.param({"is_cordoned": True}, False, id="cordoned"),
        pytest.param({"is_ready": None}, False, id="silent"),
        pytest.param({"gpu_type": "NVIDIA-L4"}, False, id="another type of GPU"),
        pytest.param({"taints": [{"key": "held", "effect": "NoSchedule"}]}, False, id="tainted"),
        pytest.param(
            {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, True, id="a pool's taint"
        ),
    ],
)
def test_place_is_free_where_a_new_pod_may_go(spare: dict[str, Any], is_free: bool) -> None:
    job = training()
    for index in (0, 1):
        add_node(job, f"node-{index}")
    add_node(job, "node-9", **spare)
    for n in range(NEEDED):
        compare(job, n)
    evict = Action.objects.get(incident__job=job.job, kind="evict_worker")
    if is_free:
        assert "A node with 8 free GPUs is there, as far as the desk sees" in asked(job)
        assert evict.refused_because == "remedy not installed"
    else:
        assert "No other node has 8 free GPUs: keep it there until that changes" in asked(job)
        assert evict.refused_because == "no other node has 8 free GPUs"
    count, differences = replay_all(decisions_of(subject=str(job.subject)))
    assert count > NEEDED
    assert not differences


def test_pods_of_other_jobs_take_places_and_those_that_have_ended_give_them_back() -> None:
    job = training()
    other = PlayedJob(factories.make_job(workers=1, gpus_per_worker=1, cluster=job.job.cluster))
    other.start_training()
    Pod.objects.filter(job=other.job).update(node_name="node-9")
    for name in ("node-0", "node-1", "node-9"):
        add_node(job, name)
    for n in range(NEEDED):
        compare(job, n)
    assert "No other node has 8 free GPUs" in asked(job)
    Pod.objects.filter(job=other.job).update(phase="Succeeded")
    compare(job, NEEDED)
    assert "A node with 8 free GPUs is there" in asked(job)


def test_free_room_on_the_slow_machine_itself_is_none() -> None:
    job = training()
    add_node(job, "node-0")
    add_node(job, "node-1", gpu_count=32)
    for n in range(NEEDED):
        compare(job, n)
    assert "No other node has 8 free GPUs" in asked(job)
    world = Decision.objects.filter(subject=job.subject).latest("n").state_before["world"]
    assert (world["free_places"], world["free_places_on"]) == (3, {"node-1": 3})


def test_only_a_decision_that_may_tell_of_a_slow_machine_reads_for_a_place_and_in_one_statement() -> None:
    job = training()
    add_node(job, "node-1")
    told = []
    for n in range(NEEDED):
        body = {"name": "step_time_ratio", "value": 1.5, "node": "node-1"}
        job.record(SignalKind.METRIC, Source.PROMETHEUS, str(n), body)
        with CaptureQueriesContext(connection) as queries:
            decide_subject(subject_id=job.subject.pk)
        told.append(sum("nodes_machine" in query["sql"] for query in queries.captured_queries))
    assert told == [0, 0, 1]


def test_worker_evicted_as_people_were_told_is_counted_as_slow_and_as_no_failure() -> None:
    job = training()
    Incarnation.objects.filter(pk=job.lives[0].pk).update(node_name="node-1")
    for n in range(NEEDED):
        compare(job, n)
    incident = Incident.objects.get(job=job.job)
    assert incident.title == "Workers 0 and 1 on node-1 are slow"
    job.end(job.lives[1], cause="maintenance", reason="EvictionByEvictionAPI")
    job.decide()
    come_back(job, 1)
    go_on(job)
    fresh = job.fresh()
    assert (fresh.evicted_slow_count, fresh.recover_count, fresh.preempted_count) == (1, 0, 0)
    assert not FailureCount.objects.filter(job=job.job).exists()
    ended = Incarnation.objects.get(worker__job=job.job, ended_at__isnull=False)
    assert (ended.end_cause, ended.is_end_ordered) == ("evicted_as_slow", False)
    incident.refresh_from_db()
    assert incident.title == "Pod of worker 1 was evicted as slow on node-1"
