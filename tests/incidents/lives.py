"""What comes again and again in the life of a played job, in one call each."""

from __future__ import annotations

import pytest

from apps.incidents.models import Action
from apps.incidents.services.acting import run_action
from recovery.signals import SignalKind, Source
from tests.factories import CLEAN, PlayedJob


def watch(job: PlayedJob, kind: SignalKind, n: int, **body: object) -> None:
    """The watch tells of the job, as of its resource version ``n``."""
    job.record(kind, Source.WATCH, f"{job.job.owner_uid}@{n}:{kind}", {"by": "kubectl", **body})


def recover_in_place(job: PlayedJob, index: int = 0) -> None:
    """A process of ``index`` dies; all stop, start again and step."""
    job.kill(index)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    go_on(job)


def go_on(job: PlayedJob) -> Action:
    """The restart that the ladder chose is carried out, and every rank steps."""
    action = Action.objects.get(incident__job=job.job, kind="restart_process", state="ready")
    Action.objects.filter(pk=action.pk).update(not_before_at=None)
    run_action(action_id=action.pk, cluster=lambda: pytest.fail("a restart needs no cluster"))
    job.begin_attempt()
    action.refresh_from_db()
    assert action.state == "done"
    return action


def come_back(job: PlayedJob, index: int) -> None:
    """The others have stopped; a successor enrols, passes its boot check, and all confirm the stop."""
    for other in job.lives:
        if other != index:
            job.say(other, SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    job.enrol(index)
    job.decide()
    job.say(index, SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {}})
    job.decide()
    assert job.fresh().phase == "Troubleshooting"
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
