"""The training user's page: phase, counters sentence, workers, attempts, environment, limits."""

from __future__ import annotations

import gzip
import re
from datetime import timedelta

import pytest
from django.test import Client

from apps.access.clock import database_now
from apps.desk.management.commands.sample_data import Sample
from apps.incidents.models import InboxEntry, Signal, Subject
from apps.jobs.models import Attempt, Checkpoint, FailureCount, Incarnation, Job, Worker
from tests.desk.conftest import job, text_of


def page(client: Client, name: str, query: str = "") -> str:
    return text_of(client.get(f"/jobs/{job(name).pk}/{query}"))


def test_counters_sentence_links_each_number_to_its_events(operator: Client) -> None:
    """D20, R38: separate counters, each linked to its events."""
    llm = job("llm-70b-pretrain")
    Job.objects.filter(pk=llm.pk).update(preempted_count=2, evicted_slow_count=1, waiting_seconds=240)
    FailureCount.objects.filter(job=llm, attempt=1).update(ended_in_reschedule=True)
    html = operator.get(f"/jobs/{llm.pk}/").content.decode()
    assert (
        "Failures used 2 of 10, 1 of them ended in a reschedule to healthy hardware. Not counted: preempted 2, "
        "evicted as slow 1, waited for capacity 4 min."
    ) in page(operator, "llm-70b-pretrain").replace(" ,", ",").replace(" .", ".")
    for show in ("failures", "rescheduled", "preempted", "evicted", "waiting"):
        assert f"?tab=events&amp;show={show}" in html


def test_each_counter_lists_its_own_events(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    FailureCount.objects.filter(job=llm, attempt=1).update(ended_in_reschedule=True)
    gone = Incarnation.objects.filter(worker__job=llm).order_by("id")
    gone.filter(worker__index=0).update(ended_at=database_now(), end_cause="preempted")
    gone.filter(worker__index=1).update(ended_at=database_now(), end_cause="evicted_by_desk")
    assert page(operator, "llm-70b-pretrain", "?tab=events&show=failures").count("process died") == 2
    assert page(operator, "llm-70b-pretrain", "?tab=events&show=rescheduled").count("process died") == 1
    assert "worker 0 llm-70b-pretrain-0-x7k2p" in page(
        operator, "llm-70b-pretrain", "?tab=events&show=preempted"
    )
    assert "worker 1 llm-70b-pretrain-1-x7k2p" in page(
        operator, "llm-70b-pretrain", "?tab=events&show=evicted"
    )


def test_waits_for_capacity_are_listed_with_their_reason(operator: Client) -> None:
    waiting = job("diffusion-xl")
    subject = Subject.objects.create(
        kind="job", key=str(waiting.pk), tenant=waiting.tenant, cluster=waiting.cluster, job=waiting
    )
    signal = Signal.objects.create(
        tenant=waiting.tenant,
        source="watch",
        source_key="w1",
        kind="pod_waiting",
        body={"message": "0/96 nodes have 8 free GPUs"},
        body_sha256="",
        seen_at=database_now(),
        received_at=database_now(),
    )
    InboxEntry.objects.create(signal=signal, subject=subject)
    assert "pod waiting 0/96 nodes have 8 free GPUs" in page(
        operator, "diffusion-xl", "?tab=events&show=waiting"
    )


def test_failed_job_says_why(operator: Client) -> None:
    text = page(operator, "tts-finetune")
    assert "Failed: failures 3 of 2" in text
    assert "Failed since" in text
    assert "Stop …" not in text


def test_observed_job_says_what_would_count(operator: Client) -> None:
    """In observe nobody obeys, and counts read "would count"."""
    probe = job("wav2vec-probe")
    FailureCount.objects.create(
        tenant=probe.tenant,
        job=probe,
        attempt=1,
        worker=Worker.objects.filter(job=probe)[0],
        cause="crashed",
        would=True,
        at=database_now(),
    )
    text = page(operator, "wav2vec-probe")
    assert "Would count 1 failure" in text
    assert "unprotected" in text
    assert "cluster east-2 is in observe" in text
    assert "would count" in page(operator, "wav2vec-probe", "?tab=events")


def test_waiting_job_says_what_for(operator: Client) -> None:
    assert "waiting for capacity: 0/96 nodes have 8 free GPUs" in page(operator, "diffusion-xl")


def test_stopped_job_says_how_it_is_resumed(operator: Client) -> None:
    command = """kubectl -n nlp-train patch job bert-distil -p '{"spec":{"suspend":false}}'"""
    assert command not in page(operator, "bert-distil")
    Job.objects.filter(name="bert-distil").update(phase="Stopped", ended_at=database_now())
    assert command in page(operator, "bert-distil")
    Job.objects.filter(name="bert-distil").update(gone_at=database_now())
    assert command not in page(operator, "bert-distil"), "an object that is gone cannot be resumed"


def test_count_of_a_worker_that_never_failed_is_explained(operator: Client) -> None:
    html = operator.get(f"/jobs/{job('llm-70b-pretrain').pk}/").content.decode()
    assert re.search(r'title="[^"]*also one that never failed[^"]*">counts 2</span>', html)


def test_workers_show_phase_retries_step_and_node(operator: Client) -> None:
    text = page(operator, "llm-70b-pretrain")
    assert "worker 3 counts 2 RunCommand step 3,541 gpu-r01-04" in text
    assert "6 RunCommand" in text


def test_silent_and_slow_workers_stand_out(operator: Client) -> None:
    Incarnation.objects.filter(worker__job__name="clip-vit-h", worker__index=2).update(step=3500)
    text = page(operator, "clip-vit-h")
    assert "worker 5 counts 0 silent" in text
    assert "41 behind" in text


def test_step_of_a_silent_worker_is_not_known(operator: Client) -> None:
    """It may train on: what it told last is no step behind the others, and not the job's lowest."""
    silent = Incarnation.objects.filter(worker__job__name="clip-vit-h", worker__index=5)
    silent.update(step=3514)
    text = page(operator, "clip-vit-h")
    assert "attempt 1, step 3,541" in text
    assert "silent step not known" in text
    assert "27 behind" not in text
    table = page(operator, "clip-vit-h", "?workers=table")
    assert "3,514" not in table
    assert "not known" in table
    silent.update(is_silent=False)
    assert "attempt 1, step 3,514" in page(operator, "clip-vit-h")
    assert "27 behind" in page(operator, "clip-vit-h")


def test_step_of_an_attempt_before_is_none_of_this_one(operator: Client) -> None:
    """After a restart from a checkpoint the one that has not stepped yet is not ahead of all others."""
    clip = job("clip-vit-h")
    Attempt.objects.filter(job=clip, n=clip.attempt).update(started_at=database_now() - timedelta(seconds=9))
    lives = Incarnation.objects.filter(worker__job=clip)
    lives.update(step=3301, step_at=database_now(), is_silent=False)
    lives.filter(worker__index=4).update(step=3388, step_at=database_now() - timedelta(seconds=20))
    text = page(operator, "clip-vit-h")
    assert "attempt 1, step 3,301" in text
    assert "3,388" not in text
    assert "87 behind" not in text


def test_attempt_that_nothing_explains_says_how_it_ended(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    Attempt.objects.filter(job=llm, n=1).update(end_cause="unknown")
    FailureCount.objects.filter(job=llm, attempt=1).update(cause="exit code 3")
    text = page(operator, "llm-70b-pretrain")
    assert "exit code 3" in text
    assert "unknown" not in text
    FailureCount.objects.filter(job=llm, attempt=1).delete()
    assert "unknown" in page(operator, "llm-70b-pretrain"), (
        "a failure that did not count has no words but these"
    )


def test_several_versions_are_marked_with_who_has_them(operator: Client) -> None:
    text = page(operator, "clip-vit-h")
    assert "nccl several versions 2.28.9 7 workers, from worker 0 2.27.3 1 worker, from worker 5" in text
    assert text.count("several versions") == 1


def test_unclean_check_is_shown(operator: Client) -> None:
    Worker.objects.filter(job__name="llm-70b-pretrain", index=2).update(
        checks=[{"check": "disk", "result": "fail", "detail": "/scratch is read-only"}]
    )
    assert "worker 2: disk /scratch is read-only" in page(operator, "llm-70b-pretrain")


def test_check_that_could_not_run_is_no_evidence(operator: Client) -> None:
    Worker.objects.filter(job__name="llm-70b-pretrain", index=2).update(
        checks=[{"check": "rdma", "result": "could_not_run", "detail": "no RDMA device on this machine"}]
    )
    assert "no RDMA device" not in page(operator, "llm-70b-pretrain")


def test_environment_lists_read_as_words_and_durations_do_not_count_as_versions(operator: Client) -> None:
    for worker in Worker.objects.filter(job__name="llm-70b-pretrain"):
        worker.environment |= {"absent": ["jax", "cudnn"], "seconds": 0.3 + worker.index}
        worker.save()
    text = page(operator, "llm-70b-pretrain")
    assert "absent jax, cudnn" in text
    assert "several versions" not in text


def test_attempts_tell_steps_lost_and_time_back(operator: Client) -> None:
    text = page(operator, "llm-70b-pretrain")
    assert "3,300 – 3,388 88 3.4 s yes" in text
    assert "process died" in text


def test_limits_warn_where_an_outer_one_is_tighter(operator: Client) -> None:
    text = page(operator, "bert-distil")
    assert "Desk, max retry 0 of 10" in text
    assert "Job backoffLimit ends the job before max retry does" in text


def test_uncommitted_checkpoint_is_listed_as_such(operator: Client) -> None:
    Checkpoint.objects.filter(job__name="llm-70b-pretrain", step=3500).update(
        state="written", committed_at=None, shards=4
    )
    assert "3,500 written 4 of 6 shards" in page(operator, "llm-70b-pretrain")


def test_thousand_workers_fit_into_a_page(operator: Client) -> None:
    sample = Sample.of_database(database_now())
    large = sample.make_large_job(1000)
    silent = large.workers.get(index=17).incarnation_id
    Incarnation.objects.filter(pk=silent).update(
        is_silent=True
    )  # by key: the planner knows nothing of these rows yet
    response = operator.get(f"/jobs/{large.pk}/")
    html = response.content.decode()
    assert html.count('class="cell cell--good"') == 999
    assert "1 silent" in text_of(response)
    assert "1 unlike the others" in text_of(response)
    assert len(re.findall(r'<tr id="worker-', html)) == 1
    assert len(gzip.compress(response.content, 9)) < 30_000
    table = operator.get(f"/jobs/{large.pk}/?workers=table").content.decode()
    assert len(re.findall(r'<tr id="worker-', table)) == 1000


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("phase=Pending", {"diffusion-xl"}),
        ("protection=unprotected", {"wav2vec-probe"}),
        ("tab=ended", {"tts-finetune", "ocr-small", "mt-en-de"}),
        ("q=nlp-train/bert", {"bert-distil"}),
        ("cluster=east-2", {"wav2vec-probe"}),
    ],
)
def test_list_filters(operator: Client, query: str, names: set[str]) -> None:
    html = operator.get(f"/jobs/?{query}").content.decode()
    ids = re.findall(r'<tr id="job-(\d+)"', html)
    assert set(Job.objects.filter(id__in=ids).values_list("name", flat=True)) == names


def test_workers_of_a_job_that_is_over_are_no_alarm(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    Incarnation.objects.filter(worker__job=llm).update(ended_at=database_now(), end_cause="ordered")
    alive = operator.get(f"/jobs/{llm.pk}/").content.decode()
    assert "worker--critical" in alive or "cell--critical" in alive
    Job.objects.filter(pk=llm.pk).update(phase="Stopped", ended_at=database_now())
    over = operator.get(f"/jobs/{llm.pk}/").content.decode()
    assert "worker--critical" not in over
    assert "cell--critical" not in over
    assert "ended" in over


def advice_of(client: Client, name: str) -> str:
    text = page(client, name)
    assert "How often to save" in text
    return text[text.index("How often to save") : text.index("Limits, inside out")]


def test_page_says_how_often_to_save_and_what_that_rests_on(operator: Client) -> None:
    now = database_now()
    llm = job("llm-70b-pretrain")
    Attempt.objects.filter(job__tenant=llm.tenant).exclude(job=llm).delete()
    FailureCount.objects.filter(job__tenant=llm.tenant).exclude(job=llm).delete()
    Attempt.objects.filter(job=llm, n=1).update(started_at=now - timedelta(days=40))
    Attempt.objects.filter(job=llm, n=1).update(ended_at=now - timedelta(days=20))
    told = advice_of(operator, "llm-70b-pretrain")
    # M = (540 + 6 nodes * 20 days) / 4 / 6 nodes = 27.5 d: sqrt(2 * 5.3 s * M), less a bit.
    assert re.search(r"Advised every 1 h 2[34] min about 31,000 steps \S.* to .*, 95% sure", told)
    assert "Now every 11 s as its checkpoints came" in told
    assert "A save 5.3 s measured, median of 3 saves" in told
    assert re.search(
        r"A failure in 27 d 1\d h estimated .* to .*, 95% sure 2 failures in 40 days, prior weighs 82%", told
    )
    assert "A restart" in told
    assert "a day if saved as advised" in told
    assert "what interrupted jobs of nlp with 1-8 nodes in this cluster" in told


def test_prior_is_told_where_no_failure_was_seen(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    FailureCount.objects.all().delete()
    Attempt.objects.filter(job=llm).exclude(n=llm.attempt).delete()
    told = advice_of(operator, "llm-70b-pretrain")
    assert "prior: no failure seen yet" in told
    assert "A restart not known none seen yet, left out" in told


def test_job_that_saves_too_seldom_is_warned(operator: Client) -> None:
    now = database_now()
    llm = job("llm-70b-pretrain")
    Attempt.objects.filter(job=llm).update(nodes=2_000)
    for hours, point in enumerate(Checkpoint.objects.filter(job=llm)):
        Checkpoint.objects.filter(pk=point.pk).update(committed_at=now - timedelta(hours=hours))
    told = advice_of(operator, "llm-70b-pretrain")
    assert re.search(
        r"Present setting: the interval is 0\.\d\d of the time between failures; above 0\.2", told
    )


def test_no_interval_is_advised_where_none_helps(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    Attempt.objects.filter(job=llm).update(nodes=100_000)
    Checkpoint.objects.filter(job=llm).update(seconds=1_000)
    told = advice_of(operator, "llm-70b-pretrain")
    assert "Advised no interval helps" in told
    assert "the job does not get on" in told
    assert "if saved as advised" not in told


def test_nothing_is_said_of_saving_where_no_save_told_its_time(operator: Client) -> None:
    llm = job("llm-70b-pretrain")
    Checkpoint.objects.filter(job=llm).update(seconds=None)
    assert "How often to save" not in page(operator, "llm-70b-pretrain")
    Checkpoint.objects.filter(job=llm).update(seconds=5)
    Attempt.objects.filter(job=llm).update(nodes=None)
    assert "How often to save" not in page(operator, "llm-70b-pretrain")
