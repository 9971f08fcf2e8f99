"""The barrier: agents wait for each other only so long, and training never waits for us. ADR 6."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from recovery.phases import Phase
from recovery.signals import SignalKind, Source
from tests.recovery.desk import Desk


def test_one_agent_that_cannot_enrol_lets_all_run_unprotected_and_says_so() -> None:
    desk = Desk()
    desk.enrol(0, 1)
    desk.decide()
    desk.state = replace(desk.state, world_running_at=desk.now)
    desk.signal(SignalKind.WORLD_RUNNING, Source.WATCH)
    desk.decide()
    assert desk.last.next_look_at == desk.now + timedelta(seconds=5)
    desk.wait(6)
    assert desk.last.directive == "run_unprotected"
    assert (desk.job.protected, desk.job.protection_due, desk.job.phase) == (False, True, Phase.RUN_COMMAND)
    assert not any(seen.decision.orders for seen in desk.log)


def test_barrier_does_not_run_while_the_world_is_not_whole() -> None:
    desk = Desk()
    desk.enrol(0, 1)
    desk.decide()
    desk.wait(600)
    assert desk.job.protected
    assert desk.last.next_look_at is None


def test_agent_that_never_answers_the_boot_check_does_not_hold_training() -> None:
    desk = Desk()
    desk.state = replace(desk.state, world_running_at=desk.now)
    desk.enrol(0, 1, 2)
    desk.decide()
    desk.boot_check(0, 1)
    desk.decide()
    desk.wait(6)
    assert (desk.job.protected, desk.job.phase) == (False, Phase.RUN_COMMAND)
