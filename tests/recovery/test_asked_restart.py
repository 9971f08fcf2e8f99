"""A person asks for a restart in place: it is wanted like the ladder's, counts nothing, or is refused with advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from recovery.asked_restart import Standing, why_not
from recovery.decide import ActionView, Decision, Mode
from recovery.lifecycle import ActionKind, ActionState, IncidentState, WaitingFor
from recovery.phases import Phase
from recovery.records import GuardRefusal
from recovery.signals import EndCause, Signal, SignalKind, Source, Use
from recovery.timeline import WAITED_FOR_PERSON, from_entries, stages
from tests.recovery.desk import Desk

RESTART, STOP, ASK = ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB, ActionKind.ASK_PERSON


def ask(desk: Desk, reason: str = "") -> tuple[Signal, Decision]:
    said = {"by": "mei", "action": "restart_process", "reason": reason}
    signal = desk.signal(SignalKind.PERSON_DO_NOW, Source.PERSON, said)
    return signal, desk.decide()


def reason_of(decision: Decision, signal: Signal) -> str:
    return next(use.reason for use in decision.uses if use.signal == signal.id)


def standing_still(**fields: object) -> Desk:
    """All workers stand still after a failure and wait for a person, who has cancelled the restart."""
    desk = Desk(**fields)  # type: ignore[arg-type]
    desk.start()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    restart = next(action for action in desk.state.actions if action.kind is RESTART)
    desk.signal(SignalKind.PERSON_CANCEL, Source.PERSON, {"by": "mei", "action_uid": restart.uid})
    desk.decide()
    assert (desk.job.phase, desk.incident.state) == (Phase.TROUBLESHOOTING, IncidentState.NEEDS_PERSON)
    return desk


def test_all_start_again_and_nothing_is_counted() -> None:
    desk = standing_still()
    desk.state = replace(desk.state, gpus=24)
    before = (desk.retries, desk.counts)
    signal, decision = ask(desk, "the mount is back")
    assert desk.log[-1].use_of(signal) is Use.USED
    (wanted,) = decision.actions
    assert (wanted.kind, wanted.state, wanted.not_before) == (RESTART, ActionState.READY, desk.now)
    assert wanted.why == "Restart in place, asked by mei: the mount is back"
    assert wanted.price["options"], "it says what it costs"
    assert [(each.kind, each.target) for each in decision.reservations] == [(RESTART, "nlp/llm")]
    assert (desk.incident.state, desk.incident.rung) == (IncidentState.RECOVERING, "L1")
    assert (desk.retries, desk.counts) == before
    asked = next(line for line in decision.timeline if line.kind == "restart_asked")
    assert (asked.actor_kind, asked.actor) == ("person", "mei")

    desk.go()
    desk.decide()
    desk.started(0, 1, 2)
    desk.decide()
    desk.first_step(0, 1, 2, step=3301)
    desk.decide()
    assert (desk.job.phase, desk.job.attempt) == (Phase.RUN_COMMAND, 2)
    assert (desk.retries, len(desk.counts)) == ("1:1:1", 1)
    assert desk.incident.state is IncidentState.WATCHING


def test_time_until_a_person_speaks_is_waited_not_decided() -> None:
    desk = standing_still()
    desk.now += timedelta(seconds=600)
    ask(desk)
    desk.recover()
    found = stages(from_entries(entry for seen in desk.log for entry in seen.decision.timeline))
    assert found is not None
    assert found.stage(WAITED_FOR_PERSON).seconds == 600
    assert found.stage("decide").seconds < 1
    assert found.stage("wait").seconds < 1


@pytest.mark.parametrize(
    ("state", "end"),
    [(ActionState.READY, ActionState.CANCELLED), (ActionState.VERIFYING, ActionState.DONE)],
)
def test_question_that_was_open_is_answered_by_it(state: ActionState, end: ActionState) -> None:
    desk = standing_still()
    question = ActionView("question", ASK, "nlp/llm", 1, state)
    desk.state = replace(desk.state, actions=(question,))
    ask(desk)
    assert desk.ended_actions["question"].state is end


def test_restart_that_waits_begins_instead_of_a_second_one() -> None:
    desk = Desk(max_retry=9)
    desk.start()
    for _ in range(3):
        desk.kill(0)
        desk.decide()
        desk.recover()
        desk.now += timedelta(seconds=0.1)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    waiting = next(action for action in desk.state.actions if action.kind is RESTART)
    assert waiting.not_before is not None
    assert waiting.not_before > desk.now
    _, decision = ask(desk)
    assert not decision.actions
    (restart,) = [action for action in desk.state.actions if action.kind is RESTART]
    assert (restart.uid, restart.state, restart.not_before) == (waiting.uid, ActionState.READY, desk.now)


def test_it_is_a_yes_where_a_person_must_say_so() -> None:
    desk = Desk(mode=Mode.APPROVE)
    desk.start()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    ask(desk)
    (restart,) = [action for action in desk.state.actions if action.kind is RESTART]
    assert restart.state is ActionState.READY


def test_guard_without_room_refuses_a_person_too_and_says_its_numbers() -> None:
    desk = standing_still()
    full = GuardRefusal(RESTART, "cluster", "4 of 4 jobs restarted in 10 min")
    desk.state = replace(desk.state, guard_refusals=(full,))
    signal, decision = ask(desk)
    assert desk.log[-1].use_of(signal) is Use.REFUSED
    assert "4 of 4 jobs" in reason_of(decision, signal)
    assert (decision.actions, decision.reservations) == ((), ())
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert any("Not begun for mei" in line.text for line in decision.timeline)


def test_failed_restart_asks_a_person_again() -> None:
    desk = standing_still()
    ask(desk)
    desk.go()
    desk.decide()
    desk.started(0, 1)
    desk.decide()
    desk.wait(desk.policy.restart_process_deadline_seconds)
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    signal, decision = ask(desk)
    assert desk.log[-1].use_of(signal) is Use.REFUSED
    assert "end the process of one worker" in reason_of(decision, signal)


def _no_incident(desk: Desk) -> None:
    desk.start()


def _training(desk: Desk) -> None:
    desk.start()
    desk.kill(0)
    desk.decide()
    desk.recover()


def _stopping(desk: Desk) -> None:
    desk.start()
    desk.kill(0)
    desk.decide()


def _being_sent(desk: Desk) -> None:
    _stopping(desk)
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.claim()


def _away(desk: Desk) -> None:
    _stopping(desk)
    desk.end_pod(1)
    desk.decide()


def _over_budget(desk: Desk) -> None:
    desk.start()
    desk.kill(0)
    desk.decide()
    desk.recover()
    desk.kill(0)
    desk.decide()
    desk.recover()
    desk.kill(0)
    desk.decide()
    assert desk.job.phase is Phase.FAILED


def _stop_asked(desk: Desk) -> None:
    _stopping(desk)
    desk.signal(SignalKind.QUIT, Source.PERSON, {"by": "mei", "reason": "enough", "at_safe_point": False})
    desk.decide()


def _left(desk: Desk) -> None:
    desk.start()
    desk.agent(1, SignalKind.FINISH, {"code": 0}, phase="command")
    desk.decide()
    desk.end_pod(1, EndCause.COMPLETED)
    desk.decide()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 2)
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON


@pytest.mark.parametrize(
    ("way", "advice"),
    [
        (_no_incident, "no open incident"),
        (_training, "stop the job and resume it"),
        (_stopping, "as soon as every worker has stopped"),
        (_being_sent, "is being carried out"),
        (_away, "look at its pod"),
        (_over_budget, "its failures start at 0"),
        (_stop_asked, "resume it in the cluster"),
        (_left, "worker 1 finished and has left"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_do_instead(
    way: Callable[[Desk], None], advice: str
) -> None:
    desk = Desk(max_retry=2)
    way(desk)
    before = (desk.job, desk.state.actions, desk.incident if desk.state.incident else None)
    signal, decision = ask(desk)
    assert desk.log[-1].use_of(signal) is Use.REFUSED
    assert advice in reason_of(decision, signal)
    assert not decision.actions
    assert (desk.job, desk.state.actions, desk.incident if desk.state.incident else None) == before


def test_cluster_in_observe_obeys_no_person() -> None:
    desk = Desk(mode=Mode.OBSERVE)
    desk.start()
    desk.kill(0)
    desk.decide()
    signal, decision = ask(desk)
    assert desk.log[-1].use_of(signal) is Use.REFUSED
    assert "cluster is in observe" in reason_of(decision, signal)


STILL = Standing(Phase.TROUBLESHOOTING, 2, IncidentState.NEEDS_PERSON)


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (STILL, ""),
        (replace(STILL, incident=IncidentState.WAITING, waiting_for=WaitingFor.GUARD), ""),
        (replace(STILL, incident=IncidentState.WAITING, is_restart_wanted=True), ""),
        (replace(STILL, incident=IncidentState.RECOVERING), "the desk is at it"),
        (replace(STILL, incident=IncidentState.RESOLVED), "no open incident"),
        (replace(STILL, phase=Phase.SUCCEEDED), "has finished"),
        (replace(STILL, phase=Phase.PENDING), "has not begun"),
        (replace(STILL, phase=Phase.RESTARTING, missing="worker 1"), "worker 1 is not back"),
        (replace(STILL, missing="worker 1"), "worker 1 is gone"),
        (replace(STILL, is_stop_wanted=True), "cancel that first"),
        (replace(STILL, begun="the stop of the job"), "the stop of the job is being carried out"),
        (replace(STILL, is_held=True), "over budget"),
        (replace(STILL, observed_because="the job is unprotected"), "no agent obeys"),
    ],
)
def test_each_way_of_standing_has_its_answer(standing: Standing, words: str) -> None:
    found = why_not(standing)
    assert found == "" if not words else words in found
