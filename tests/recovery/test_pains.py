"""What users of such systems suffered, played on the core. The letter and number name the complaint."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from recovery.evidence import fact_of_end
from recovery.lifecycle import (
    ACTION_RULES,
    ACTION_TABLE,
    ENDED_ACTION_STATES,
    INSTALLED_ACTIONS,
    ActionKind,
    ActionState,
    IncidentState,
    Severity,
)
from recovery.phases import MessagePhase, Phase
from recovery.records import ActionView, CheckpointView, Mode
from recovery.signals import EndCause, Signal, SignalKind, Source, Use, WorkerKey
from tests.recovery.desk import START, Desk, committed

RESTART, STOP, ASK = ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB, ActionKind.ASK_PERSON


def started(*, max_retry: int = 2) -> Desk:
    desk = Desk(max_retry=max_retry)
    desk.start()
    return desk


def test_backlog_of_an_outage_is_folded_into_one_decision_about_the_present() -> None:
    """R1: after days without decisions nothing acts on what is long over."""
    desk = started(max_retry=9)
    desk.kill(0)
    desk.decide()
    desk.recover()
    began = desk.state.attempt
    assert began is not None
    was = (desk.retries, len(desk.log))
    desk.now += timedelta(days=2)
    old = [desk.kill(index, sequence=2, seen_at=START + timedelta(seconds=index)) for index in (1, 2)]
    old.append(
        desk.signal(
            SignalKind.ALERT, Source.ALERTMANAGER, {"labels": {"alertname": "TrainingStalled"}}, seen_at=START
        )
    )
    new = desk.kill(2)
    decision = desk.decide()
    assert len(desk.log) == was[1] + 1
    assert [desk.log[-1].use_of(signal) for signal in old] == [Use.LATE] * 3
    assert desk.log[-1].use_of(new) is Use.USED
    assert [(count.attempt, count.worker.index) for count in decision.counts] == [(2, 2)]
    assert desk.retries == "1:1:2"
    assert desk.incidents == 1


def test_fault_during_an_open_repair_replaces_the_repair_that_no_longer_fits() -> None:
    """R18: a new fault is not dropped because a repair is open."""
    desk = started(max_retry=9)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    first = desk.state.actions[0]
    gone = desk.end_pod(1)
    desk.decide()
    assert desk.log[-1].use_of(gone) is Use.USED
    assert str(desk.ended_actions[first.uid].state) == "superseded"
    assert desk.job.phase is Phase.RESTARTING
    desk.enrol(1)
    desk.decide()
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    assert len(desk.wanted(RESTART)) == 2
    assert desk.incident.state is IncidentState.WATCHING
    assert desk.incidents == 1
    assert desk.counts == [(1, 0, "process_killed")], "a death during recovery is not punished twice"


def test_fault_while_a_restart_is_being_verified_ends_it_and_is_repaired_itself() -> None:
    """R18: same session is covered, later is a new action."""
    desk = started(max_retry=9)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    desk.decide()
    desk.started(0, 1)
    desk.decide()
    first = desk.state.actions[0]
    desk.kill(2)
    desk.decide()
    assert str(desk.ended_actions[first.uid].state) == "failed"
    assert [attempt for attempt, _, _ in desk.counts] == [1, 2]
    desk.recover()
    assert len(desk.wanted(RESTART)) == 2
    assert desk.incident.state is IncidentState.WATCHING


def test_every_action_that_is_begun_has_a_deadline() -> None:
    """R19: no action looks in progress for ever."""
    desk = started(max_retry=0)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    again = started()
    again.kill(0)
    again.decide()
    again.stopped(0, 1, 2)
    again.decide()
    wanted = [action for one in (desk, again) for kind in INSTALLED_ACTIONS for action in one.wanted(kind)]
    assert {action.kind for action in wanted} == INSTALLED_ACTIONS
    assert all(action.deadline_seconds > 0 for action in wanted if action.state not in ENDED_ACTION_STATES)


def test_checkpoint_begun_in_an_attempt_that_ended_troubles_no_later_one() -> None:
    """R33: a checkpoint that was begun and never ended belongs to its attempt."""
    desk = started()
    dangling = CheckpointView(3400, "/checkpoints/step-00003400", "written", START)
    desk.state = replace(desk.state, checkpoints=(dangling, committed(3300)))
    desk.kill(0)
    desk.decide()
    desk.recover(step=3301)
    order = [order for seen in desk.log for order in seen.decision.orders][-1]
    assert (order.phase, order.data["resume"]["step"]) == (MessagePhase.COMMAND, 3300)
    told = desk.agent(0, SignalKind.CHECKPOINT, {"step": 3400, "state": "written", "path": dangling.path})
    desk.decide()
    assert desk.log[-1].use_of(told) is Use.CONTEXT
    for minutes in range(1, 4):
        desk.keep_stepping(30 * 60, step=3301 + 1000 * minutes)
    assert len(desk.counts) == 1
    assert len(desk.wanted(RESTART)) == 1
    assert desk.state.incident is None, "resolved, and closed since"
    assert desk.incidents == 1


def test_suspected_standstill_says_what_it_was_judged_as() -> None:
    """R34: the phase of training that was judged is shown."""
    data = {"seconds_since_progress": 1900, "step": 40, "judged_as": "evaluation", "allowed_seconds": 1800}
    signal = Signal(
        id=1, source=Source.AGENT, kind=SignalKind.HANG, seen_at=START, received_at=START, data=data
    )
    fact = fact_of_end(signal, worker=WorkerKey("worker", 1), node="", attempt=1)
    assert "no progress since step 40 for 1900 s (evaluation, allowed 1800 s)" in fact.text


def test_thirty_failures_at_once_are_one_incident_and_one_restart() -> None:
    """R35: failures of one cause are not handled one by one."""
    desk = Desk(workers=6, max_retry=2)
    desk.start()
    for index in range(5):
        desk.fail(index, "RuntimeError: Connection reset by peer")
    desk.kill(5)
    desk.decide()
    desk.recover()
    assert (desk.incidents, len(desk.counts), len(desk.wanted(RESTART))) == (1, 1, 1)
    assert desk.incident.verdict["worker"] == "worker 5"


def test_pending_pod_restarts_nobody_else() -> None:
    """R37: waiting for capacity is no failure; the others do not restart again and again."""
    desk = started()
    desk.end_pod(2, EndCause.NODE_LOST)
    desk.decide()
    orders = len([order for seen in desk.log for order in seen.decision.orders])
    counts = list(desk.counts)
    for n in range(5):
        desk.signal(SignalKind.POD_WAITING, Source.WATCH, {"message": f"0/4 nodes are available ({n})"})
        desk.decide()
        desk.wait(15)
    assert len([order for seen in desk.log for order in seen.decision.orders]) == orders
    assert desk.counts == counts
    assert desk.job.phase is Phase.RESTARTING
    assert desk.job.reason.startswith("waiting for capacity")
    assert not desk.wanted(RESTART)
    assert desk.incidents == 1


def test_program_that_fails_before_its_first_step_is_stopped_long_before_its_limit() -> None:
    """R50: a huge limit does not hide an error of the user's own code."""
    desk = Desk(max_retry=1000)
    desk.signal(SignalKind.JOB_KNOWN, Source.WATCH, {"suspended": False})
    desk.enrol(0, 1, 2)
    desk.decide()
    desk.boot_check(0, 1, 2)
    desk.decide()
    tries = 0
    while not desk.wanted(STOP):
        tries += 1
        assert tries < 10
        desk.started(0, 1, 2)
        for index in range(3):
            desk.agent(
                index,
                SignalKind.ERROR,
                {"exit_code": 1, "log_tail": ["the launcher gave up"]},
                phase="command",
            )
        desk.decide()
        desk.stopped(0, 1, 2)
        desk.decide()
        if not desk.wanted(STOP):
            desk.go()
            desk.decide()
    assert tries == 4
    assert "attempts in a row ended before the first step" in desk.wanted(STOP)[0].why


def test_new_cause_in_an_open_incident_is_written_and_makes_it_graver() -> None:
    """D9: an incident that somebody has taken does not swallow what comes anew."""
    desk = started(max_retry=9)
    desk.kill(0)
    desk.decide()
    desk.recover()
    severity = desk.incident.severity
    assert severity is Severity.MEDIUM
    desk.end_pod(1)
    desk.decide()
    assert desk.incidents == 1
    assert desk.incident.state is IncidentState.RECOVERING
    assert len(desk.incident.causes) == 2
    assert desk.incident.severity is Severity.HIGH
    assert any("worker 1" in text.lower() for text in desk.timeline("failure_seen"))


def test_same_cause_again_makes_an_incident_no_graver() -> None:
    """D9: only a new cause is news."""
    desk = started(max_retry=9)
    for _ in range(2):
        desk.kill(0)
        desk.decide()
        desk.recover()
    assert desk.incident.severity is Severity.MEDIUM


def test_flapping_job_is_one_incident_that_reopens() -> None:
    """D10: flapping does not flood."""
    desk = started(max_retry=99)
    step = 3300
    for _ in range(5):
        desk.kill(0, signal=9)
        desk.decide()
        desk.stopped(0, 1, 2)
        desk.decide()
        desk.go()
        desk.decide()
        step += 100
        desk.started(0, 1, 2)
        desk.first_step(0, 1, 2, step=step)
        desk.decide()
        desk.keep_stepping(4, step=step + 20)
        desk.wait(4)
        assert desk.incident.state is IncidentState.RESOLVED
    assert desk.incidents == 1
    reopened = [s for s in desk.log if s.decision.incident is not None and s.decision.incident.reopens]
    assert len(reopened) == 4


def test_resolve_that_is_refused_takes_nothing_back() -> None:
    """R8: it cancels all that waits, or it says no and leaves all as it is."""
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.go()
    desk.decide()
    asked = ActionView("asked", ASK, "nlp/llm", 99, ActionState.READY)
    desk.state = replace(desk.state, actions=(*desk.state.actions, asked))
    before = desk.incident.state
    resolve = desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "ann", "reason": "done"})
    decision = desk.decide()
    assert desk.log[-1].use_of(resolve) is Use.REFUSED
    assert decision.action_changes == ()
    assert desk.incident.state is before


def test_what_came_before_a_persons_word_does_not_undo_it() -> None:
    """R3: who resolves is a fact with a time, and older evidence never overrides it."""
    desk = started(max_retry=9)
    desk.kill(0)
    desk.decide()
    desk.recover()
    desk.now += timedelta(seconds=5)
    desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "ann", "reason": "seen to it"})
    desk.decide()
    counts, wanted = list(desk.counts), len(desk.log)
    assert desk.incident.state is IncidentState.RESOLVED
    desk.now += timedelta(seconds=5)
    desk.kill(1, sequence=2, seen_at=START + timedelta(seconds=1))
    desk.end_life(desk.life(2), EndCause.DELETED, source=Source.HOOK, seen_at=START + timedelta(seconds=1))
    desk.signal(
        SignalKind.ALERT, Source.ALERTMANAGER, {"labels": {"alertname": "TrainingStalled"}}, seen_at=START
    )
    desk.decide()
    assert desk.incident.state is IncidentState.RESOLVED
    assert desk.counts == counts
    assert not any(seen.decision.actions for seen in desk.log[wanted:])


def test_reboot_whose_outcome_is_unknown_is_asked_about_and_not_repeated() -> None:
    """R20: of a harmful action nobody knows, a machine does not do it again."""
    desk = started(max_retry=9)
    desk.kill(0)
    desk.decide()
    reboot = ActionView(
        "reboot", ActionKind.REBOOT_NODE, "gpu-r01-01", 99, ActionState.VERIFYING, try_n=1,
        deadline=desk.now + timedelta(seconds=1),
    )  # fmt: skip
    desk.state = replace(desk.state, actions=(*desk.state.actions, reboot))
    desk.now += timedelta(seconds=2)
    desk.signal(SignalKind.LOOK, Source.DESK)
    desk.decide()
    assert desk.ended_actions["reboot"].state is ActionState.UNKNOWN
    assert not desk.wanted(ActionKind.REBOOT_NODE)
    assert "reboot node" in desk.wanted(ASK)[-1].why
    assert desk.incident.state is IncidentState.NEEDS_PERSON


def test_each_worker_and_each_cause_has_a_counter_of_its_own() -> None:
    """R38: the job's is the highest of its workers', and what never counts is in none."""
    desk = started(max_retry=9)
    desk.kill(0)
    desk.decide()
    desk.recover()
    desk.kill(1)
    desk.decide()
    assert (desk.retries, desk.job.recover_count) == ("1:2:1", 2)
    desk.recover()
    before = desk.retries
    desk.end_pod(2, EndCause.PREEMPTED)
    desk.decide()
    assert (desk.retries, desk.job.recover_count) == (before, 2)
    assert [(index, cause) for _, index, cause in desk.counts] == [
        (0, "process_killed"),
        (1, "process_killed"),
    ]


def test_action_has_four_ends_that_differ_and_none_is_left_again() -> None:
    """R19: done, failed for good, refused and unknown are not one word, and a try that may be repeated is no end."""
    ends = {ActionState.DONE, ActionState.FAILED, ActionState.REFUSED, ActionState.UNKNOWN}
    assert ends < ENDED_ACTION_STATES
    assert not [state for state in ENDED_ACTION_STATES if ACTION_TABLE.get(state)]
    for state in (ActionState.RUNNING, ActionState.VERIFYING):
        assert {ActionState.READY, ActionState.DONE, ActionState.FAILED, ActionState.UNKNOWN} <= ACTION_TABLE[
            state
        ]
    assert all(rule.deadline for rule in ACTION_RULES.values())


def test_action_that_is_overtaken_in_the_decision_that_would_begin_it_uses_no_guard() -> None:
    """R2: a window counts what began, and this began never."""
    desk = Desk(max_retry=9, mode=Mode.APPROVE)
    desk.start()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    (planned,) = desk.state.actions
    now = {"by": "ann", "action_uid": planned.uid}
    desk.signal(SignalKind.PERSON_DO_NOW, Source.PERSON, now)
    desk.now += timedelta(seconds=0.1)
    desk.end_pod(1)
    decision = desk.decide()
    assert desk.ended_actions[planned.uid].state is ActionState.SUPERSEDED
    assert decision.reservations == ()
