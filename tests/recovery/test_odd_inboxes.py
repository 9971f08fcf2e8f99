"""decide is total and pure: whatever comes, it answers, names every signal, and answers the same again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.decide import Decision, Mode, Subject, SubjectState, decide
from recovery.lifecycle import OPEN_ACTION_STATES, ActionState
from recovery.phases import TERMINAL_PHASES
from recovery.serialize import (
    decision_from_plain,
    inbox_from_plain,
    policy_from_plain,
    state_from_plain,
    to_plain,
)
from recovery.signals import EndCause, Signal, SignalKind, Source, SubjectKind, WorkerKey
from tests.recovery.desk import SHORT, START, Desk
from tests.recovery.jobs import W

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.text(max_size=5) | st.floats(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(
    ["first_step", "restored", "committed", "crashed", "completed", "preempted", "Complete", "Failed", "fail", "x",
     "done", "failed", "SIGKILL"]
)  # fmt: skip
NAMES = st.sampled_from(
    ["mark", "step", "state", "cause", "exit_code", "signal", "confirmed", "at_safe_point", "checks", "log_tail",
     "condition", "max_retry", "protected", "suspended", "action_uid", "try", "pod_uid", "restart", "replaces", "by",
     "stopped", "pids", "seconds", "labels", "message"]
)  # fmt: skip
CHECKS = st.lists(
    st.fixed_dictionaries(
        {
            "check": st.sampled_from(["gpu", "io", "rdma"]),
            "result": st.sampled_from(["pass", "fail", "timeout"]),
        }
    ),
    max_size=3,
)
DATA = st.dictionaries(NAMES, JSON | WORDS | CHECKS | st.booleans(), max_size=5)


@st.composite
def signals(draw: st.DrawFn) -> list[dict[str, Any]]:
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "source": st.sampled_from(list(Source)),
                    "kind": st.sampled_from(list(SignalKind)),
                    "data": DATA,
                    "worker": st.sampled_from([None, *W[:3], WorkerKey("head", 9)]),
                    "incarnation": st.sampled_from([None, 1, 2, 3, 4, 5, 99]),
                    "sequence": st.none() | st.integers(0, 9),
                    "phase": st.sampled_from([None, "bootcheck", "command", "troubleshoot", "odd"]),
                    "ago": st.floats(-1, 300),
                }
            ),
            max_size=8,
        )
    )


def prepared(way: int, mode: Mode) -> Desk:
    """A job somewhere on its way."""
    desk = Desk(mode=mode, max_retry=2)
    if mode is Mode.OBSERVE or way == 0:
        return desk
    if mode is Mode.APPROVE:
        way = min(way, 3)  # further on a person must say so
    desk.start()
    desk.now += timedelta(seconds=20)
    steps = [
        lambda: (desk.kill(0), desk.decide()),
        lambda: (desk.stopped(0, 1, 2), desk.decide()),
        lambda: (desk.go(), desk.decide()),
        lambda: (desk.started(0, 1, 2), desk.decide()),
        lambda: (desk.first_step(0, 1, 2, step=9), desk.decide()),
        lambda: desk.keep_stepping(5, 100),
        lambda: (desk.end_pod(1, EndCause.NODE_LOST), desk.decide()),
        lambda: (desk.enrol(1), desk.decide()),
    ]
    for step in steps[: way - 1]:
        step()
        desk.now += timedelta(seconds=0.3)
    return desk


def check(state: SubjectState, inbox: tuple[Signal, ...], decision: Decision) -> None:
    assert sorted(use.signal for use in decision.uses) == sorted(signal.id for signal in inbox)
    assert all(use.reason for use in decision.uses)
    assert decision.job is not None
    assert state.job is not None
    before, after = state.job, decision.job
    assert 0 <= after.recover_count <= after.max_retry + 1
    assert after.sequence - before.sequence == len(decision.orders)
    assert [order.sequence for order in decision.orders] == list(
        range(before.sequence + 1, after.sequence + 1)
    )
    attempts = [count.attempt for count in decision.counts]
    assert len(attempts) == len(set(attempts)), "an attempt has at most one count"
    if before.phase in TERMINAL_PHASES and after.phase is not before.phase:
        assert after.run > before.run
    open_after = {a.uid for a in state.actions} - {
        change.uid for change in decision.action_changes if change.state not in OPEN_ACTION_STATES
    }
    if decision.incident is not None and decision.incident.state is not None:
        closed = decision.incident.state.value in {"resolved", "closed"}
        wanted = [a for a in decision.actions if a.state in OPEN_ACTION_STATES]
        assert not (closed and (open_after or wanted)), "an incident never closes while an action runs"
    assert all(
        a.state in {ActionState.READY, ActionState.PLANNED, ActionState.REFUSED} for a in decision.actions
    )


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    way=st.integers(0, 9),
    mode=st.sampled_from([Mode.AUTO, Mode.AUTO, Mode.APPROVE, Mode.OBSERVE]),
    rounds=st.lists(signals(), min_size=1, max_size=4),
)
def test_odd_inboxes_are_answered_whole_and_alike(
    way: int, mode: Mode, rounds: list[list[dict[str, Any]]]
) -> None:
    desk = prepared(way, mode)
    for odd in rounds:
        for fields in odd:
            given_fields = dict(fields)
            ago = given_fields.pop("ago")
            uids = [action.uid for action in desk.state.actions]
            data = dict(given_fields.pop("data"))
            if uids and "action_uid" in data:
                data["action_uid"] = uids[0]
            desk.signal(
                given_fields.pop("kind"), given_fields.pop("source"), data,
                seen_at=desk.now - timedelta(seconds=ago), **given_fields,
            )  # fmt: skip
        state, inbox = desk.state, tuple(desk.inbox)
        decision = desk.decide()
        check(state, inbox, decision)
        stored = json.loads(
            json.dumps([to_plain(state), to_plain(inbox), to_plain(SHORT), to_plain(decision)])
        )
        again = decide(
            state_from_plain(stored[0]), inbox_from_plain(stored[1]), desk.now, policy_from_plain(stored[2])
        )
        assert to_plain(again) == stored[3], "a replay of what was stored gives what was stored"
        assert to_plain(decision_from_plain(stored[3])) == stored[3]
        desk.now += timedelta(seconds=0.5)
        desk.wait(1)


@settings(max_examples=100, deadline=None)
@given(rounds=signals(), kind=st.sampled_from([kind for kind in SubjectKind if kind is not SubjectKind.JOB]))
def test_subject_that_is_no_job_keeps_what_it_hears(rounds: list[dict[str, Any]], kind: SubjectKind) -> None:
    state = SubjectState(Subject(kind, "3", "nlp", "west-1"), decision_n=4)
    inbox = tuple(
        Signal(n, fields["source"], fields["kind"], START, START, fields["data"])
        for n, fields in enumerate(rounds)
    )
    decision = decide(state, inbox, START, SHORT)
    assert [use.signal for use in decision.uses] == list(range(len(inbox)))
    assert (decision.job, decision.incident, decision.actions) == (None, None, ())


def test_order_of_rows_in_the_inbox_does_not_matter() -> None:
    desk = Desk()
    desk.start()
    desk.now += timedelta(seconds=9)
    for index in (1, 2):
        desk.fail(index, "Connection reset by peer", seen_at=desk.now - timedelta(seconds=0.1 * index))
    desk.kill(0, seen_at=desk.now - timedelta(seconds=0.05))
    desk.end_pod(2, seen_at=desk.now + timedelta(seconds=2))
    forwards = decide(desk.state, tuple(desk.inbox), desk.now, SHORT)
    backwards = decide(desk.state, tuple(reversed(desk.inbox)), desk.now, SHORT)
    assert replace(forwards, uses=()) == replace(backwards, uses=())
    assert sorted(forwards.uses, key=lambda use: use.signal) == sorted(
        backwards.uses, key=lambda use: use.signal
    )
