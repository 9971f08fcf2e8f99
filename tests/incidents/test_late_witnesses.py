"""Late witnesses of one failure never count a second time, however late they come."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.access import clock
from apps.access.services import create_token
from apps.incidents.models import InboxEntry, Incident, Signal
from apps.incidents.services import acting, deciding, signals
from apps.jobs.models import FailureCount
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db

WITNESSES = ("watch", "hook", "alert", "survivor", "survivor_hang", "same_agent_again", "log", "all")


@pytest.fixture
def moved_clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, timedelta]:
    """The database's clock, moved on by what the test puts under ``by``."""
    moved = {"by": timedelta(0)}
    real = clock.database_now

    def database_now() -> datetime:
        return real() + moved["by"]

    for module in (clock, deciding, acting, factories):
        monkeypatch.setattr(module, "database_now", database_now)
    assert signals  # takes its time as an argument
    return moved


def recover(job: PlayedJob) -> None:
    """Every agent stops, the desk restarts in place, every rank steps again."""
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    action = Incident.objects.get(job=job.job).actions.get(kind="restart_process", state="ready")
    acting.run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart in place needs no cluster"))
    job.begin_attempt()


def post(job: PlayedJob, path: str, body: dict[str, Any]) -> None:
    """Tell it over the REST API, as a program of the job's tenant."""
    _, plain = create_token(
        tenant_id=job.job.tenant_id,
        name="witness",
        scopes=["signals:write"],
        actor_kind="command",
        actor="test",
        cluster_id=job.job.cluster_id,
    )
    answer = Client(headers={"Authorization": f"Bearer {plain}"}).post(
        f"/api/v1/{path}", body, content_type="application/json"
    )
    assert answer.status_code in (200, 201), answer.content


def deliver(
    job: PlayedJob, witness: str, *, seen_at: datetime, failed_sequence: int, lives: dict[int, Any]
) -> list[int]:
    """Late reports of the failure of worker 0, as their source would tell them. Gives their row ids."""
    newest = Signal.objects.order_by("-id").values_list("id", flat=True)[0]
    if witness in ("watch", "all"):
        job.record(
            SignalKind.INCARNATION_ENDED,
            Source.WATCH,
            f"late-{job.job.pk}/container/0",
            {
                "pod_uid": lives[0].pod_uid,
                "container": "train",
                "restart": 0,
                "cause": "crashed",
                "exit_code": 137,
            },
            index=0,
            seen_at=seen_at,
        )
    if witness in ("hook", "all"):
        # The hook speaks of the very life that still runs: its process was restarted in place.
        post(
            job,
            "hooks/pod-ends/",
            {
                "ends": [
                    {
                        "pod_uid": lives[0].pod_uid,
                        "container": "train",
                        "restart": 0,
                        "exit_code": 137,
                        "ended_at": seen_at.isoformat(),
                    }
                ]
            },
        )
    if witness in ("alert", "all"):
        post(
            job,
            "signals/",
            {
                "source": "alertmanager",
                "key": f"late-alert-{job.job.pk}",
                "kind": "alert",
                "about": {"namespace": job.job.namespace, "job": job.job.name},
                "seen_at": seen_at.isoformat(),
                "body": {"labels": {"alertname": "TrainingStalled"}, "status": "firing"},
            },
        )
    if witness in ("survivor", "all"):
        for index in (1, 2):
            job.say(
                index,
                SignalKind.ERROR,
                "command",
                {
                    "exit_code": 1,
                    "log_tail": ["Watchdog caught collective operation timeout: WorkNCCL(SeqNum=31)"],
                },
                sequence=failed_sequence,
                seen_at=seen_at + timedelta(seconds=1),
            )
    if witness in ("survivor_hang", "all"):
        job.say(
            1,
            SignalKind.HANG,
            "command",
            {"confirmed": True, "step": 30, "seconds_since_progress": 10},
            sequence=failed_sequence,
            seen_at=seen_at + timedelta(seconds=1),
        )
    if witness in ("same_agent_again", "all"):
        job.say(
            0,
            SignalKind.ERROR,
            "command",
            {"signal": 9, "pid": 100},
            sequence=failed_sequence,
            seen_at=seen_at,
        )
    if witness in ("log", "all"):
        job.record(
            SignalKind.LOG,
            Source.API,
            f"late-log-{job.job.pk}",
            {"lines": ["rank 0 was killed"]},
            seen_at=seen_at,
        )
    return list(Signal.objects.filter(id__gt=newest).values_list("id", flat=True))


@pytest.mark.parametrize("seconds", [1, 10, 120])
@pytest.mark.parametrize("witness", WITNESSES)
def test_witness_after_recovery_counts_nothing(
    witness: str, seconds: int, moved_clock: dict[str, timedelta]
) -> None:
    job = PlayedJob(factories.make_job(workers=3, max_retry=2))
    job.start_training()
    failed_sequence = job.fresh().attempt_sequence
    seen_at = job.now()
    job.kill(0)
    job.decide()
    assert job.retries() == (1, 0, 0)
    recover(job)
    assert job.retries() == (1, 1, 1)
    attempt = job.fresh().attempt

    moved_clock["by"] = timedelta(seconds=seconds)
    delivered = deliver(job, witness, seen_at=seen_at, failed_sequence=failed_sequence, lives=job.lives)
    job.decide()

    after = job.fresh()
    assert job.retries() == (1, 1, 1)
    assert (after.phase, after.attempt, after.recover_count) == ("RunCommand", attempt, 1)
    assert FailureCount.objects.filter(job=after).count() == 1
    entries = InboxEntry.objects.filter(signal_id__in=delivered)
    assert len(entries) == len(delivered) > 0
    for entry in entries:
        assert entry.use in ("late", "stale", "context", "duplicate"), f"{entry.signal.kind}: {entry.use}"
        assert entry.reason
    assert Incident.objects.filter(job=after).count() == 1


# An end that the watch tells in time is an end, and no witness of another.
@pytest.mark.parametrize("witness", [witness for witness in WITNESSES if witness not in ("watch", "all")])
def test_witness_before_recovery_joins_the_same_count(
    witness: str, moved_clock: dict[str, timedelta]
) -> None:
    job = PlayedJob(factories.make_job(workers=3, max_retry=2))
    job.start_training()
    failed_sequence = job.fresh().attempt_sequence
    seen_at = job.now()
    job.kill(0)
    job.decide()
    deliver(job, witness, seen_at=seen_at, failed_sequence=failed_sequence, lives=job.lives)
    job.decide()
    assert job.retries() == (1, 0, 0)
    assert FailureCount.objects.filter(job=job.job).count() == 1
    recover(job)
    assert job.retries() == (1, 1, 1)


def test_end_of_a_life_that_the_attempt_has_not_counts_nothing(moved_clock: dict[str, timedelta]) -> None:
    job = PlayedJob(factories.make_job(workers=3, max_retry=2))
    job.start_training()
    old = job.lives[0]
    job.end(old)
    job.decide()
    assert job.fresh().phase == "Restarting", [
        (entry.use, entry.reason) for entry in InboxEntry.objects.order_by("-id")[:2]
    ]
    assert job.retries() == (1, 0, 0)
    job.enrol(0)
    job.decide()
    job.say(0, SignalKind.ACK, "bootcheck", {"checks": CLEAN})
    job.decide()
    recover(job)
    assert job.retries() == (1, 1, 1)
    moved_clock["by"] = timedelta(seconds=120)
    again = job.end(old, source=Source.HOOK)
    job.decide()
    assert again.is_new
    assert job.retries() == (1, 1, 1)
    assert job.fresh().phase == "RunCommand"
