"""Max retry is changed while the job trains."""

from __future__ import annotations

import pytest

from apps.incidents.models import Action
from recovery.signals import SignalKind
from tests.factories import CLEAN, PlayedJob
from tests.incidents.lives import go_on, recover_in_place, watch

pytestmark = pytest.mark.django_db(transaction=True)


def test_limit_lowered_below_the_present_count(training: PlayedJob) -> None:
    recover_in_place(training, 0)
    recover_in_place(training, 0)
    assert training.fresh().recover_count == 2
    watch(training, SignalKind.MAX_RETRY_CHANGED, 5, max_retry=0)
    training.decide()
    job = training.fresh()
    assert (job.phase, job.max_retry, job.recover_count) == ("RunCommand", 0, 1)
    training.kill(1)
    training.decide()
    job = training.fresh()
    assert (job.phase, job.recover_count) == ("Failed", 1)
    assert Action.objects.filter(incident__job=job, kind="stop_job").exists()


def test_limit_lowered_then_raised_again(training: PlayedJob) -> None:
    recover_in_place(training, 0)
    recover_in_place(training, 1)
    watch(training, SignalKind.MAX_RETRY_CHANGED, 5, max_retry=0)
    training.decide()
    assert (training.fresh().phase, training.fresh().recover_count) == ("RunCommand", 1)
    watch(training, SignalKind.MAX_RETRY_CHANGED, 6, max_retry=5)
    training.decide()
    job = training.fresh()
    assert (job.max_retry, job.recover_count, training.retries()) == (5, 2, (2, 2, 2))
    training.kill(2)
    training.decide()
    job = training.fresh()
    assert (job.phase, training.retries()) == ("Troubleshooting", (2, 2, 3))
    training.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    go_on(training)
    job = training.fresh()
    assert (job.phase, job.recover_count, training.retries()) == ("RunCommand", 3, (3, 3, 3))
