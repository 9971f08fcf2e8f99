"""How lives of workers end, and how their successors come back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from apps.incidents.models import Action, InboxEntry, Incident
from apps.incidents.policy import current_policy
from apps.incidents.services.acting import run_action
from apps.incidents.services.deciding import decide_subject
from apps.jobs.models import Attempt, FailureCount, Job, Worker
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob
from tests.incidents.lives import come_back, go_on

pytestmark = pytest.mark.django_db(transaction=True)

OUT_OF_MEMORY = {"cause": "out_of_memory", "exit_code": 137, "signal": 9, "reason": "OOMKilled"}


def test_drained_pod_is_not_counted_and_comes_back(training: PlayedJob) -> None:
    training.end(training.lives[1], cause="preempted", reason="EvictionByEvictionAPI")
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (0, 0, 0)
    training.say(0, SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    training.say(2, SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    training.enrol(1)
    training.decide()
    training.say(1, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    training.decide()
    assert training.fresh().phase == "Troubleshooting"
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    action = Action.objects.get(incident__job=training.job, kind="restart_process")
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    training.begin_attempt()
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 2, 0)
    assert not FailureCount.objects.filter(job=job).exists()


def test_pod_deleted_twice_by_hand_blames_no_machine() -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=5))
    job.start_training()
    for _ in range(2):
        job.end(job.lives[1], reason="Deleted")
        job.decide()
        come_back(job, 1)
        go_on(job)
    assert job.fresh().recover_count == 2
    found = Incident.objects.get(job=job.job).verdict["diagnosis"]
    assert (found["rule"], found["times"], found["blame"]) == ("pod.deleted", 2, "none")
    assert not Action.objects.filter(incident__job=job.job, kind="hold_node").exists()


def test_killed_agent_counts_once_whoever_tells_first(training: PlayedJob) -> None:
    """The container restarts: its successor enrols before the watch tells of the end."""
    old = training.lives[0]
    training.enrol(0, pod_uid=old.pod_uid, restart_count=1)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (1, 0, 0)
    training.end(old, cause="exit_error", exit_code=137)
    training.decide()
    assert training.retries() == (1, 0, 0)
    assert FailureCount.objects.filter(job=training.job).count() == 1


def test_replacement_that_never_comes_is_said(training: PlayedJob) -> None:
    """An image that cannot be pulled: the pod is placed and never runs, so no barrier ends the wait."""
    training.end(training.lives[1])
    training.decide()
    incident = Incident.objects.get(job=training.job)
    assert incident.state == "recovering"
    subject = training.subject
    assert subject.next_look_at is not None
    Incident.objects.filter(pk=incident.pk).update(state_since_at=incident.state_since_at - timedelta(days=1))
    type(subject).objects.filter(pk=subject.pk).update(next_look_at=incident.state_since_at)
    decide_subject(subject_id=subject.pk)
    incident.refresh_from_db()
    assert incident.severity == "high"
    told = incident.timeline.filter(kind="waiting")
    assert told.count() == 1
    assert "worker 1" in told.get().text
    type(subject).objects.filter(pk=subject.pk).update(next_look_at=incident.state_since_at)
    decide_subject(subject_id=subject.pk)
    assert told.count() == 1


def test_container_out_of_memory_counts_once_and_promises_nothing(training: PlayedJob) -> None:
    old = training.lives[1]
    training.end(old, **OUT_OF_MEMORY)
    training.decide()
    training.end(old, source=Source.HOOK, **OUT_OF_MEMORY)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (0, 1, 0)
    assert FailureCount.objects.get(job=training.job).cause == "out_of_memory"
    incident = Incident.objects.get(job=training.job)
    assert incident.title == "Container of worker 1 ran out of memory on node-1"
    assert incident.verdict["category"] == "out_of_memory"
    come_back(training, 1)
    assert training.retries() == (0, 1, 0)
    why = Action.objects.get(incident=incident, kind="restart_process").why
    assert why.startswith("A container ran out of memory")
    assert "the same may come again" in why
    go_on(training)
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 2, 1)
    assert training.retries() == (1, 1, 1)


def test_out_of_memory_is_said_although_the_successor_came_first(training: PlayedJob) -> None:
    """The kubelet starts the container again before the watch tells why the last life of it ended."""
    Attempt.objects.filter(job=training.job).update(started_at=training.now() - timedelta(minutes=5))
    old = training.lives[1]
    ended_at = training.now()
    training.enrol(1, pod_uid=old.pod_uid, restart_count=1)
    training.decide()
    training.end(old, seen_at=ended_at, **OUT_OF_MEMORY)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (0, 1, 0)
    assert FailureCount.objects.filter(job=training.job).count() == 1
    incident = Incident.objects.get(job=training.job)
    assert incident.verdict["category"] == "out_of_memory"
    assert "ran out of memory" in incident.title


def test_process_killed_then_another_pod_ends_in_one_attempt(training: PlayedJob) -> None:
    training.kill(0)
    training.decide()
    assert training.fresh().phase == "Troubleshooting"
    training.end(training.lives[2], cause="crashed", exit_code=1)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert training.retries() == (1, 0, 0)
    come_back(training, 2)
    assert training.retries() == (1, 0, 0)
    go_on(training)
    job = training.fresh()
    assert (job.phase, job.attempt, job.recover_count) == ("RunCommand", 2, 1)
    assert training.retries() == (1, 1, 1)
    assert FailureCount.objects.get(job=job).worker.index == 0
    incident = Incident.objects.get(job=job)
    assert (incident.verdict["category"], incident.verdict["worker"]) == ("process_killed", "worker 0")
    assert Attempt.objects.filter(job=job, is_counted=True).count() == 1


def test_error_of_a_boot_check_sends_the_worker_away_and_asks() -> None:
    job = PlayedJob(factories.make_job(workers=2, max_retry=2))
    for index in range(2):
        job.enrol(index)
    job.decide()
    assert job.fresh().phase == "BootChecking"
    job.say(0, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    failed = {"check": "gpu", "result": "fail", "detail": "device 3 does not answer", "seconds": 0.2}
    job.say(1, SignalKind.ERROR, "bootcheck", {"exit_code": 1, "checks": [failed]})
    job.decide()
    assert job.fresh().phase == "BootChecking"
    assert Worker.objects.get(job=job.job, index=1).must_exit
    assert job.retries() == (0, 0)
    order = job.order()
    assert order is not None
    assert (order.targets, order.content["exit"]) == (["worker/1"], True)
    incident = Incident.objects.get(job=job.job)
    assert "device 3 does not answer" in incident.title
    assert incident.rung == "L3"
    hold = Action.objects.get(incident=incident, kind="hold_node")
    assert (hold.state, hold.refused_because, hold.target) == ("refused", "remedy not installed", "node-1")
    question = Action.objects.get(incident=incident, kind="ask_person")
    assert "isolation is not installed" in question.why
    job.end(job.lives[1], cause="crashed", exit_code=1)
    job.decide()
    assert job.fresh().phase == "Restarting"
    job.enrol(1)
    job.decide()
    assert not Worker.objects.get(job=job.job, index=1).must_exit
    job.say(1, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    job.decide()
    assert job.fresh().phase == "Troubleshooting"
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.0}})
    go_on(job)
    assert job.fresh().phase == "RunCommand"
    assert job.retries() == (0, 0)
    assert not FailureCount.objects.filter(job=job.job).exists()


def test_error_with_exit_code_zero_is_a_failure_of_unknown_cause(training: PlayedJob) -> None:
    """No agent of ours says so; whoever does has no process any more, and it said Error."""
    told = training.say(1, SignalKind.ERROR, "command", {"exit_code": 0, "pid": 101, "step": 30})
    training.decide()
    assert training.fresh().phase == "Troubleshooting"
    assert training.retries() == (0, 1, 0)
    assert InboxEntry.objects.get(signal_id=told.signal_id).use == "used"
    incident = Incident.objects.get(job=training.job)
    assert incident.verdict["category"] == "unknown"
    assert "exit code 0" in incident.title
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    assert "The cause is not known" in go_on(training).why
    assert training.fresh().phase == "RunCommand"


def test_barrier_holds_also_when_all_of_it_is_decided_at_once(training: PlayedJob) -> None:
    """Nobody decided for a while: failure, ends and successors come in one inbox, with the world whole again.

    One successor had lost patience and runs unprotected: it answers no order, and is waited for only so long.
    """
    training.kill(1)
    for index in (1, 0, 2):
        training.end(training.lives[index], cause="crashed", exit_code=1)
        training.enrol(index)
    job = training.fresh()
    job.world_running_at = training.now()
    job.save(update_fields=["world_running_at"])
    training.decide()
    assert training.fresh().phase == "Restarting"
    for index in (0, 2):
        training.say(
            index, SignalKind.ACK, "bootcheck", {"checks": CLEAN}, sequence=last_sequence(job, index)
        )
    training.decide()
    subject = training.subject
    assert subject.next_look_at is not None
    type(subject).objects.filter(pk=subject.pk).update(next_look_at=training.now())
    decide_subject(subject_id=subject.pk, policy=replace(current_policy(), enrol_barrier_seconds=0.0))
    job = training.fresh()
    assert (job.phase, job.is_protected, job.is_protection_due) == ("RunCommand", False, True)
    assert FailureCount.objects.filter(job=job).count() == 1


def last_sequence(job: Job, index: int) -> int:
    return Worker.objects.get(job=job, index=index).last_sequence
