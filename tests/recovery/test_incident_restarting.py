"""Workers were replaced: their return, or capacity for it, is waited for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from recovery.lifecycle import ActionKind, IncidentState, Severity, WaitingFor
from recovery.phases import MessagePhase, Phase
from recovery.signals import EndCause, SignalKind, Source
from tests.recovery.desk import Desk, started
from tests.recovery.jobs import W

RESTART = ActionKind.RESTART_PROCESS


def test_pod_deleted_waits_for_the_new_pod_then_all_start_together() -> None:
    desk = started()
    desk.now += timedelta(seconds=30)
    desk.end_pod(0)
    first = desk.decide()
    assert [(order.phase, order.targets) for order in first.orders] == [
        (MessagePhase.TROUBLESHOOT, (W[1], W[2]))
    ]
    assert (desk.job.phase, desk.incident.state) == (Phase.RESTARTING, IncidentState.RECOVERING)
    desk.stopped(1, 2)
    desk.decide()
    desk.now += timedelta(seconds=5)
    desk.enrol(0)
    assert [order.targets for order in desk.decide().orders] == [(W[0],)]
    desk.boot_check(0)
    desk.decide()
    assert desk.job.phase is Phase.TROUBLESHOOTING
    desk.recover()
    desk.keep_stepping(3.0, 3320)
    assert desk.incident.state is IncidentState.RESOLVED
    assert (desk.counts, desk.retries) == ([(1, 0, "deleted")], "1:1:1")
    assert len(desk.wanted(RESTART)) == 1


@pytest.mark.parametrize("reason", ["Deleted", "Vanished"])
def test_pod_deleted_again_on_the_same_node_blames_no_machine(reason: str) -> None:
    """Whoever deletes pods through the API says nothing about the machine, however often."""
    desk = started(max_retry=5)
    for step in (3_320, 3_390, 3_450):
        desk.now += timedelta(seconds=30)
        desk.end_pod(0, reason=reason)
        desk.decide()
        desk.stopped(1, 2)
        desk.decide()
        desk.enrol(0)
        desk.decide()
        desk.boot_check(0)
        desk.decide()
        desk.recover()
        desk.keep_stepping(1.0, step)
    assert [cause for _, _, cause in desk.counts] == ["deleted"] * 3
    found = desk.incident.verdict["diagnosis"]
    assert (found["rule"], found["blame"], found["remedy"], found["times"]) == (
        "pod.deleted", "none", "restart_container", 3,
    )  # fmt: skip
    assert not desk.wanted(ActionKind.HOLD_NODE)
    assert "node (pod.deleted)" not in "".join(restart.why for restart in desk.wanted(RESTART))


def test_preempted_pod_is_not_counted_and_waits_for_capacity() -> None:
    """R37, D20: waiting for capacity and preemption are not charged."""
    desk = started()
    desk.end_pod(2, EndCause.PREEMPTED)
    desk.signal(
        SignalKind.POD_WAITING, Source.WATCH, {"reason": "Unschedulable", "message": "0/4 nodes free"}
    )
    desk.decide()
    assert desk.counts == []
    assert (desk.incident.state, desk.incident.waiting_for, desk.incident.severity) == (
        IncidentState.WAITING,
        WaitingFor.CAPACITY,
        Severity.LOW,
    )
    assert desk.job.reason == "waiting for capacity: 0/4 nodes free"
    desk.wait(21)
    assert desk.incident.severity is Severity.HIGH
    desk.signal(SignalKind.CAPACITY_BACK, Source.WATCH)
    desk.enrol(2)
    desk.decide()
    assert desk.incident.state is IncidentState.RECOVERING
    desk.boot_check(2)
    desk.decide()
    desk.stopped(1, 0, 2)
    desk.decide()
    desk.go()
    desk.decide()
    assert desk.retries == "0:0:0"


def test_new_place_in_the_world_restarts_all_without_a_count() -> None:
    desk = started(workers=2)
    more = Desk(workers=3).job.workers
    assert desk.state.job is not None
    desk.state = replace(desk.state, job=replace(desk.job, workers=(*desk.job.workers, more[2])))
    desk.enrol(2)
    decision = desk.decide()
    assert decision.job is not None
    assert decision.job.phase is Phase.RESTARTING
    assert desk.counts == []
    assert [(order.phase, order.targets) for order in decision.orders] == [
        (MessagePhase.TROUBLESHOOT, (W[0], W[1])),
        (MessagePhase.BOOTCHECK, (W[2],)),
    ]
