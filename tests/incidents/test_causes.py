"""A failure is counted by its cause, in whatever order its witnesses are heard."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from apps.incidents.models import Action, Incident
from apps.incidents.services.acting import run_action
from apps.incidents.services.deciding import decide_subject
from apps.jobs.models import Attempt, FailureCount, Incarnation
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db

RESET = {"exit_code": 1, "pid": 102, "step": 30, "log_tail": ["[rank2]: Connection reset by peer"]}
CATEGORIES = {"evicted_by_desk": "evicted", "stopped_by_user": "stopped"}


@pytest.fixture
def training() -> PlayedJob:
    return train()


def train(max_retry: int = 2) -> PlayedJob:
    job = PlayedJob(factories.make_job(workers=3, max_retry=max_retry))
    job.start_training()
    return job


def reset(job: PlayedJob, index: int) -> None:
    """A survivor dies at once of its connection's reset, as gloo makes it."""
    job.say(index, SignalKind.ERROR, "command", RESET, sequence=job.fresh().attempt_sequence)


def come_back(job: PlayedJob) -> None:
    """From wherever it stands to all stepping again."""
    for index in job.lives:
        job.say(
            index,
            SignalKind.ACK,
            "bootcheck",
            {"checks": CLEAN, "environment": {}},
            sequence=newest(job, index),
        )
    job.decide()
    for index in job.lives:
        body = {"checks": CLEAN, "stopped": {"seconds": 0.1}}
        job.say(index, SignalKind.ACK, "troubleshoot", body, sequence=newest(job, index))
    job.decide()
    action = Action.objects.get(incident__job=job.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    job.begin_attempt()
    assert job.fresh().phase == "RunCommand"


def newest(job: PlayedJob, index: int) -> int:
    return job.job.workers.get(index=index).last_sequence


def counted(job: PlayedJob) -> tuple[tuple[int, ...], int, int]:
    """(retries of the workers, recover count, rows)."""
    fresh = job.fresh()
    return job.retries(), fresh.recover_count, FailureCount.objects.filter(job=fresh).count()


NOTHING = ((0, 0, 0), 0, 0)


@pytest.mark.parametrize("cause", ["preempted", "stopped_by_user"])
def test_end_told_after_the_successor_enrolled_is_taken_by_its_own_cause(
    training: PlayedJob, cause: str
) -> None:
    old = training.lives[1]
    training.enrol(1)
    training.decide()
    assert training.fresh().phase == "Restarting"
    training.end(old, cause=cause)
    training.decide()
    assert counted(training) == NOTHING
    attempt = Attempt.objects.get(job=training.job)
    category = CATEGORIES.get(cause, cause)
    assert (attempt.is_counted, attempt.end_cause) == (False, category)
    incident = Incident.objects.get(job=training.job)
    assert list(incident.causes.values_list("category", flat=True)) == [category]
    assert incident.verdict["category"] == category
    assert "replaced" not in incident.title
    assert incident.timeline.filter(kind="count_taken_back").count() == 1
    assert incident.failures_used is None
    old.refresh_from_db()
    assert old.end_cause == cause
    come_back(training)
    assert counted(training) == NOTHING


@pytest.mark.parametrize("cause", ["maintenance", "evicted_by_desk"])
def test_survivors_heard_before_the_end_that_made_them_die(training: PlayedJob, cause: str) -> None:
    reset(training, 2)
    training.decide()
    assert training.fresh().phase == "Troubleshooting"
    reset(training, 0)
    training.end(training.lives[1], cause=cause)
    training.decide()
    assert training.fresh().phase == "Restarting"
    assert counted(training) == NOTHING
    incident = Incident.objects.get(job=training.job)
    category = CATEGORIES.get(cause, cause)
    assert incident.verdict["category"] == category
    assert (Attempt.objects.get(job=training.job).end_cause, incident.causes.count()) == (category, 1)
    training.enrol(1)
    training.decide()
    come_back(training)
    assert counted(training) == NOTHING


def test_count_of_a_later_attempt_stays_when_an_earlier_one_is_taken_back(training: PlayedJob) -> None:
    old = training.lives[1]
    training.enrol(1)
    training.decide()
    come_back(training)
    training.kill(0)
    training.decide()
    assert counted(training) == ((2, 1, 1), 2, 2)
    training.end(old, cause="maintenance")
    training.decide()
    assert counted(training) == ((1, 0, 0), 1, 1)
    come_back(training)
    assert counted(training) == ((1, 1, 1), 1, 1)


def test_late_end_of_a_replaced_life_gives_its_own_cause_to_the_count(training: PlayedJob) -> None:
    old = training.lives[1]
    training.enrol(1, pod_uid=old.pod_uid, restart_count=1)
    training.decide()
    assert FailureCount.objects.get(job=training.job).cause == "replaced"
    told = {"cause": "out_of_memory", "exit_code": 137, "reason": "OOMKilled"}
    training.end(old, **told)
    training.decide()
    count = FailureCount.objects.get(job=training.job)
    assert (count.cause, count.worker.index) == ("out_of_memory", 1)
    assert training.retries() == (0, 1, 0)
    incident = Incident.objects.get(job=training.job)
    assert [(c.category, "ran out of memory" in c.text) for c in incident.causes.all()] == [
        ("out_of_memory", True)
    ]
    assert "ran out of memory" in incident.title
    assert Attempt.objects.get(job=training.job).end_cause == "out_of_memory"


def test_hook_without_a_row_id_speaks_of_the_life_by_its_pod(training: PlayedJob) -> None:
    """The hook's end is recorded before the watch gave the life its restart count."""
    old = training.lives[1]
    training.enrol(1)
    training.decide()
    body = {"pod_uid": old.pod_uid, "container": "train", "restart": 0, "cause": "preempted"}
    training.record(SignalKind.INCARNATION_ENDED, Source.HOOK, f"{old.pod_uid}/train/0", body, index=1)
    training.decide()
    assert counted(training) == NOTHING


def test_reset_heard_before_the_kill_that_made_it_counts_once_for_that_cause(training: PlayedJob) -> None:
    reset(training, 2)
    training.decide()
    training.kill(0)
    training.decide()
    assert counted(training)[1:] == (1, 1)
    assert Attempt.objects.get(job=training.job).end_cause == "process_killed"
    assert Incident.objects.get(job=training.job).verdict["worker"] == "worker 0"


# The last retry.


def replaced(job: PlayedJob) -> Callable[[], object]:
    old = job.lives[1]
    job.enrol(1)
    return lambda: job.end(old, cause="preempted")


def lost_peer(job: PlayedJob) -> Callable[[], object]:
    old = job.lives[1]
    reset(job, 2)
    return lambda: job.end(old, cause="preempted")


OPEN = pytest.mark.parametrize("fail", [replaced, lost_peer], ids=lambda fail: fail.__name__)


@OPEN
def test_job_is_not_given_up_while_the_cause_is_open(
    fail: Callable[[PlayedJob], Callable[[], object]],
) -> None:
    job = train(max_retry=0)
    tell_end = fail(job)
    job.decide()
    fresh = job.fresh()
    assert fresh.phase in ("Restarting", "Troubleshooting")
    assert not Action.objects.filter(incident__job=fresh).exists()
    assert job.subject.next_look_at is not None
    tell_end()
    job.decide()
    assert counted(job) == NOTHING
    if fail is lost_peer:
        job.enrol(1)
        job.decide()
    come_back(job)


@OPEN
def test_job_is_given_up_when_the_hold_has_passed(fail: Callable[[PlayedJob], Callable[[], object]]) -> None:
    job = train(max_retry=0)
    tell_end = fail(job)
    job.decide()
    if fail is replaced:  # nothing of the recovery waits for the hold but its end
        job.say(1, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}}, sequence=newest(job, 1))
        job.decide()
        assert job.fresh().phase == "Troubleshooting"
    for index in job.lives:
        job.say(index, SignalKind.ACK, "troubleshoot", {"checks": CLEAN}, sequence=newest(job, index))
    job.decide()
    assert not Action.objects.filter(incident__job=job.job).exists()
    pass_hold(job)
    fresh = job.fresh()
    assert (fresh.phase, fresh.recover_count) == ("Failed", 1)
    assert Action.objects.filter(incident__job=fresh, kind="stop_job").count() == 1
    assert "Failed" in Incident.objects.get(job=fresh).title
    tell_end()
    job.decide()
    fresh = job.fresh()
    assert (fresh.phase, fresh.recover_count, FailureCount.objects.filter(job=fresh).count()) == (
        "Failed",
        1,
        1,
    )


def pass_hold(job: PlayedJob) -> None:
    """The hold's time has come: the attempt ended long ago, and the subject is looked at."""
    long_ago = job.now() - timedelta(hours=1)
    Attempt.objects.filter(job=job.job, ended_at__isnull=False).update(ended_at=long_ago, started_at=long_ago)
    subject = job.subject
    assert subject.next_look_at is not None
    type(subject).objects.filter(pk=subject.pk).update(next_look_at=long_ago)
    decide_subject(subject_id=subject.pk)


def test_user_stops_the_job_before_its_pods_ends_are_told(training: PlayedJob) -> None:
    reset(training, 2)
    training.decide()
    training.record(SignalKind.JOB_SUSPENDED, Source.WATCH, f"{training.job.owner_uid}@9", {"by": "kubectl"})
    training.decide()
    assert training.fresh().phase == "Stopped"
    for life in training.lives.values():
        training.end(life, cause="stopped_by_user")
    training.decide()
    assert counted(training) == NOTHING
    training.record(SignalKind.JOB_RESUMED, Source.WATCH, f"{training.job.owner_uid}@10", {"by": "kubectl"})
    training.decide()
    assert (training.fresh().phase, training.fresh().recover_count) == ("Pending", 0)


def test_preemption_told_twice_and_last_of_all_is_one(training: PlayedJob) -> None:
    """tests/recovery plays every order; this is the longest, with its rows."""
    old = training.lives[1]
    reset(training, 2)
    training.decide()
    training.enrol(1)
    training.decide()
    for source in (Source.HOOK, Source.WATCH):
        training.end(old, cause="preempted", source=source)
        training.decide()
    assert counted(training) == NOTHING
    assert training.fresh().preempted_count == 1
    assert Incident.objects.get(job=training.job).verdict["category"] == "preempted"
    assert Incarnation.objects.get(pk=old.pk).end_cause == "preempted"
    come_back(training)
    assert counted(training) == NOTHING
    assert training.fresh().attempt == 2
