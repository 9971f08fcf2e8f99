"""What is told of actions: a go, an effect, or that none came, and a person's word."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from recovery.decide import Mode
from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution, WaitingFor
from recovery.phases import MessagePhase, Phase
from recovery.signals import SignalKind, Source, Use
from tests.recovery.desk import started

RESTART, ASK = ActionKind.RESTART_PROCESS, ActionKind.ASK_PERSON


def test_go_after_a_pod_died_is_stale_and_nothing_starts() -> None:
    """R17: an older order is not carried out on what has changed since."""
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    go = desk.go()
    desk.end_pod(1, seen_at=desk.now - timedelta(seconds=0.1))
    decision = desk.decide()
    assert desk.log[-1].use_of(go) is Use.STALE
    assert desk.job.phase is Phase.RESTARTING
    assert [change.state for change in decision.action_changes] == [ActionState.SUPERSEDED]
    assert not any(order.phase is MessagePhase.COMMAND for order in decision.orders)


def test_go_of_an_older_try_is_stale() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    first = desk.go()
    desk.inbox.clear()
    action = desk.state.actions[0]
    desk.state = replace(desk.state, actions=(replace(action, state=ActionState.READY),))
    desk.go()
    desk.inbox.append(first)
    desk.decide()
    assert desk.log[-1].use_of(first) is Use.STALE
    assert (desk.job.attempt, desk.job.phase) == (2, Phase.RUN_COMMAND)


def test_go_whose_lease_ran_out_before_it_was_decided_is_still_good() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    action = desk.state.actions[0]
    desk.state = replace(desk.state, actions=(replace(action, state=ActionState.VERIFYING),))
    desk.decide()
    assert desk.job.phase is Phase.RUN_COMMAND
    assert desk.state.actions[0].sequence == 4


def test_restart_that_nobody_confirms_goes_to_the_next_rung_which_asks() -> None:
    """R19: a failed action ends at its deadline."""
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    desk.decide()
    desk.started(0, 1)
    desk.decide()
    desk.wait(16)
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert desk.incident.rung == "L2"
    refused = desk.wanted(ActionKind.RESTART_CONTAINER)
    assert [(action.state, action.refused_because, action.target) for action in refused] == [
        (ActionState.REFUSED, "remedy not installed", "worker 2")
    ]
    assert len(desk.wanted(ASK)) == 1
    desk.started(2)
    desk.first_step(0, 1, 2, step=3301)
    desk.decide()
    assert desk.incident.state is IncidentState.WATCHING, "it came after all"


def test_approve_mode_plans_and_waits_for_a_persons_word() -> None:
    desk = started(mode=Mode.APPROVE)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    decision = desk.decide()
    assert [action.state for action in decision.actions] == [ActionState.PLANNED]
    assert desk.incident.waiting_for is WaitingFor.APPROVAL
    uid = desk.state.actions[0].uid
    desk.signal(SignalKind.PERSON_DO_NOW, Source.PERSON, {"by": "mei", "action_uid": uid})
    desk.decide()
    assert desk.state.actions[0].state is ActionState.READY
    desk.go()
    desk.decide()
    assert desk.job.phase is Phase.RUN_COMMAND


def test_person_resolves_what_waits_and_is_refused_while_it_runs() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    desk.decide()
    refused = desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "mei", "reason": "seen to it"})
    desk.decide()
    assert desk.log[-1].use_of(refused) is Use.REFUSED
    assert desk.incident.state is IncidentState.RECOVERING
    desk.started(0, 1, 2)
    desk.decide()
    desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "mei", "reason": "seen to it"})
    desk.decide()
    assert desk.incident.resolution is Resolution.BY_PERSON


def test_person_cancels_a_waiting_restart_and_gets_the_incident() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    uid = desk.state.actions[0].uid
    desk.signal(SignalKind.PERSON_CANCEL, Source.PERSON, {"by": "mei", "action_uid": uid, "reason": "wait"})
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    desk.wait(300)
    assert len(desk.wanted(RESTART)) == 1, "the machine does not want again what a person took back"
