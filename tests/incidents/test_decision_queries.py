"""What a decision costs: statements of each decision of one recovery, and how many rows go in one statement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.db import DataError, connection
from django.test.utils import CaptureQueriesContext

from apps.incidents.models import Action, InboxEntry, TimelineEvent
from apps.incidents.services import acting
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.many_rows import update_rows
from apps.jobs.models import Worker
from recovery.signals import SignalKind
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db(transaction=True)

#: Statements of each decision, with BEGIN, COMMIT and the look for signals that came meanwhile.
#: Those that may judge (report, stop ACKs) read two of the world beside the watch: how many machines are not Ready,
#: and how many other jobs failed about then; and one of the machines involved. The others, a go among them, read none.
MOST = {
    "report": 30,
    "some stop ACKs": 26,
    "last stop ACK": 29,
    "go": 49,
    "some started": 22,
    "last started": 23,
    "restored": 22,
    "first step": 23,
}


@pytest.fixture(autouse=True)
def _nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_app, "send_task", lambda *_, **__: None)


def recover(job: PlayedJob, watched: Callable[[str, Callable[[], Any]], None]) -> None:
    """One restart in place after a killed process, decision by decision."""
    subject_id = job.subject.pk

    def decide() -> None:
        decide_subject(subject_id=subject_id)

    def some_then_last(kind: SignalKind, phase: str, body: dict[str, Any], some: str, last: str) -> None:
        for index in (0, 1):
            job.say(index, kind, phase, body)
        watched(some, decide)
        job.say(2, kind, phase, body)
        watched(last, decide)

    job.kill(1)
    watched("report", decide)
    some_then_last(
        SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {}}, "some stop ACKs", "last stop ACK"
    )
    action = Action.objects.get(incident__job=job.job, state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    watched("go", lambda: acting.run_action(action_id=action.pk, cluster=lambda: pytest.fail("no cluster")))
    some_then_last(
        SignalKind.ACK, "command", {"pids": {"agent": 1, "command": 100}}, "some started", "last started"
    )
    for name, body in (("restored", {"step": 20, "seconds": 0.1}), ("first step", {"step": 21})):
        for index in job.lives:
            job.say(index, SignalKind.MARK, "command", {"mark": name.replace(" ", "_"), **body})
        watched(name, decide)


def test_each_decision_of_a_recovery_costs_so_many_statements() -> None:
    job = PlayedJob(factories.make_job(workers=3, max_retry=9))
    job.start_training()
    recover(job, lambda _, decide: decide())  # the cluster's guards are counted out the first time
    told: dict[str, int] = {}

    def count(name: str, decide: Callable[[], Any]) -> None:
        with CaptureQueriesContext(connection) as queries:
            decide()
        told[name] = len(queries)

    recover(job, count)
    assert job.fresh().attempt == 3
    assert told == MOST


def test_statements_do_not_grow_with_the_workers() -> None:
    counts = []
    for workers in (3, 9):
        job = PlayedJob(factories.make_job(workers=workers))
        job.start_training()
        job.kill(0)
        job.decide()
        for index in job.lives:
            job.say(index, SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {}})
        subject_id = job.subject.pk
        with CaptureQueriesContext(connection) as queries:
            decide_subject(subject_id=subject_id)
        assert Worker.objects.filter(job=job.job, checks=CLEAN).count() == workers
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_rows_are_set_to_their_own_values_and_others_left_alone() -> None:
    job = factories.make_job(workers=4)
    first, second, third, _ = Worker.objects.filter(job=job).order_by("index")
    Worker.objects.filter(pk=second.pk).update(environment={"python": "3.12"})
    words = ['it\'s \\ "quoted", {1}', "", "zwölf"]
    update_rows(
        Worker,
        key="id",
        keys=[third.pk, first.pk, second.pk],
        values={
            "handled": [[["ACK", "command"]], [["ACK", "command"], ["Error", "command"]], []],
            "environment": [{"python": "3.13"}, None, None],
            "last_failure_reason": words,
        },
        same={"retries": 2},
        keeping={"environment"},
    )
    rows = list(Worker.objects.filter(job=job).order_by("index"))
    assert [row.retries for row in rows] == [2, 2, 2, 0]
    assert [row.environment for row in rows] == [{}, {"python": "3.12"}, {"python": "3.13"}, {}]
    assert [row.last_failure_reason for row in rows] == [words[1], words[2], words[0], ""]
    assert [len(row.handled) for row in rows] == [2, 0, 1, 0]


def test_rows_for_which_something_else_does_not_hold_are_left_alone() -> None:
    job = factories.make_job(workers=2)
    keys = list(Worker.objects.filter(job=job).order_by("index").values_list("pk", flat=True))
    update_rows(Worker, key="id", keys=keys, values={"retries": [3, 4]}, where={"job": job.pk, "index": 1})
    assert list(Worker.objects.filter(job=job).order_by("index").values_list("retries", flat=True)) == [0, 4]


def test_value_that_is_too_long_is_refused_and_not_cut() -> None:
    worker = Worker.objects.get(job=factories.make_job(workers=1))
    with pytest.raises(DataError):
        update_rows(Worker, key="id", keys=[worker.pk], values={"inner_phase": ["RunCommand" * 3]})


def test_timeline_log_names_pod_and_node_of_each_line(settings: Any, tmp_path: Path) -> None:
    settings.TIMELINE_LOG = str(tmp_path / "timeline.jsonl")
    job = PlayedJob(factories.make_job(workers=3))
    job.start_training()
    job.kill(1)
    job.decide()
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert [line["message"] for line in lines] == list(
        TimelineEvent.objects.filter(incident__job=job.job).values_list("text", flat=True)
    )
    assert {(line["pod"], line["node"]) for line in lines} >= {(job.lives[1].pod_name, "node-1"), ("", "")}
    assert {line["job"] for line in lines} == {str(job.job)}


def test_every_signal_of_a_burst_is_told_what_became_of_it() -> None:
    job = PlayedJob(factories.make_job(workers=3))
    job.start_training()
    recorded = [job.kill(index).signal_id for index in (2, 0, 1)]
    job.decide()
    entries = {entry.signal_id: entry for entry in InboxEntry.objects.filter(signal__in=recorded)}
    assert {entry.decision_n for entry in entries.values()} == {job.subject.decision_n}
    assert sorted(entry.use for entry in entries.values()) == ["late", "late", "used"]
    assert all(entry.reason for entry in entries.values())
