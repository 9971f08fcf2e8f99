from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import culprit as verdict
from recovery import evidence
from recovery.evidence import Fact, Role, rule_of_container, rule_of_process
from recovery.signals import Signal, SignalKind, Source
from tests.recovery.desk import START
from tests.recovery.jobs import W


def error(
    index: int, after: float = 0.0, *log: str, kind: SignalKind = SignalKind.ERROR, **data: object
) -> Fact:
    signal = Signal(
        id=index + 1, source=Source.AGENT, kind=kind, seen_at=START + timedelta(seconds=after), received_at=START,
        data={"log_tail": list(log), **data}, phase="command",
    )  # fmt: skip
    return evidence.fact_of_end(signal, worker=W[index], node=f"node-{index}", attempt=1)


@pytest.mark.parametrize(
    ("data", "category", "how"),
    [
        ({"signal": 9}, "process_killed", "SIGKILL"),
        ({"signal": "SIGKILL"}, "process_killed", "SIGKILL"),
        ({"exit_code": 137}, "process_killed", "SIGKILL"),
        ({"signal": 11}, "process_crashed", "SIGSEGV"),
        ({"exit_code": 134}, "process_crashed", "SIGABRT"),
        ({"signal": 15}, "process_terminated", "SIGTERM"),
        ({"exit_code": 127}, "bad_command", "exit code 127"),
        ({"exit_code": 1}, "unknown", "exit code 1"),
        ({}, "unknown", "no exit code told"),
        ({"exit_code": True, "signal": []}, "unknown", "no exit code told"),
        ({"signal": 63}, "unknown", "signal 63"),
    ],
    ids=str,
)
def test_end_of_a_process_is_named(data: dict[str, object], category: str, how: str) -> None:
    rule, words = rule_of_process(data)
    assert (rule.category, words) == (category, how)


def test_abort_after_a_collective_time_out_is_the_watchdogs_own_and_so_a_symptom() -> None:
    line = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3389)"
    rule, how = rule_of_process({"signal": 6, "log_tail": [line]})
    assert rule.category == "lost_peer"
    assert how.startswith("SIGABRT: [rank1]: Watchdog")


@pytest.mark.parametrize(
    ("data", "category"),
    [
        ({"cause": "deleted"}, "pod_deleted"),
        ({"cause": "node_lost"}, "node_lost"),
        ({"cause": "out_of_memory"}, "out_of_memory"),
        ({"cause": "preempted"}, "preempted"),
        ({"cause": "crashed", "exit_code": 1}, "container_crashed"),
        ({"cause": "no such word"}, "container_crashed"),
    ],
    ids=str,
)
def test_end_of_a_container_is_named_by_its_cause(data: dict[str, object], category: str) -> None:
    assert rule_of_container(data)[0].category == category


def test_culprit_failed_first_and_time_outs_of_survivors_are_symptoms() -> None:
    symptom = "Watchdog caught collective operation timeout"
    facts = [error(1, 10, symptom, exit_code=1), error(0, 0, signal=9), error(2, 10.1, symptom, exit_code=1)]
    found = verdict.judge(facts)
    assert (found.category, found.worker, found.node) == ("process_killed", "worker 0", "node-0")
    assert [fact.worker for fact in found.support] == ["worker 0", "worker 1", "worker 2"]
    assert found.confidence == 0.9


def test_at_equal_times_a_death_goes_before_an_error_and_an_error_before_a_symptom() -> None:
    at_once = [
        error(0, 0.0, "Connection reset by peer", exit_code=1),
        error(1, 0.1, exit_code=1),
        error(2, 0.2, signal=9),
    ]
    assert verdict.judge(at_once).worker == "worker 2"
    assert verdict.judge(at_once[:2]).worker == "worker 1"
    later = replace(at_once[2], at=at_once[2].at + timedelta(seconds=5))
    assert verdict.judge([at_once[1], later]).worker == "worker 1"


def test_symptoms_alone_name_no_culprit() -> None:
    found = verdict.judge([error(1, 0, "Connection closed by peer", exit_code=1)])
    assert (found.category, found.worker, found.culprit, found.confidence) == ("unknown", "", "", 0.3)
    assert "lost contact with its peers" in found.reason


def test_no_evidence_is_unknown_with_no_confidence() -> None:
    found = verdict.judge([])
    assert (found.category, found.confidence) == ("unknown", 0.0)


def test_failed_check_of_the_culprit_makes_sure() -> None:
    signal = Signal(
        id=9, source=Source.AGENT, kind=SignalKind.ACK, seen_at=START, received_at=START,
        data={"checks": [
            {"check": "gpu", "result": "fail", "detail": "7 of 8 devices"}, {"check": "io", "result": "pass"},
            {"check": "rdma", "result": "timeout"}, "nonsense",
        ]},
    )  # fmt: skip
    checks = evidence.facts_of_checks(signal, worker=W[1], node="node-1", attempt=1)
    assert [fact.category for fact in checks] == ["check_fail", "check_pass"]
    found = verdict.judge([error(1, 0, exit_code=1), *checks])
    assert found.confidence == 0.95
    assert found.failed_checks == (checks[0],)


def test_hang_is_told_with_its_step() -> None:
    fact = error(1, kind=SignalKind.HANG, step=3388, seconds_since_progress=61)
    assert fact.text == "Training hangs on worker 1 (no progress since step 3388 for 61 s) on node-1"


def test_stored_facts_come_back_and_what_is_broken_is_left_out() -> None:
    facts = [error(0, 0, signal=9), error(1, 10, "broken pipe", exit_code=1)]
    stored = verdict.to_stored(verdict.judge(facts), facts, {"worker 0": True, "worker 1": False})
    assert list(verdict.facts_from_stored(stored)) == facts
    assert (stored["checks_clean"], stored["checks_seen"]) == (1, 2)
    assert verdict.facts_from_stored({"facts": [{}, 3, {"signal": "x"}, None]}) == ()
    assert verdict.facts_from_stored({"facts": 7}) == ()


FACTS = st.lists(
    st.builds(
        lambda index, after, kind: {
            "killed": error(index, after, signal=9),
            "error": error(index, after, exit_code=1),
            "symptom": error(index, after, "Connection reset by peer", exit_code=1),
        }[kind],
        st.integers(0, 4),
        st.floats(0, 30),
        st.sampled_from(["killed", "error", "symptom"]),
    ),
    max_size=8,
)


@given(FACTS, st.randoms(use_true_random=False))
def test_order_of_evidence_does_not_matter(facts: list[Fact], random: object) -> None:
    shuffled = list(facts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert verdict.judge(facts) == verdict.judge(shuffled)
    found = verdict.judge(facts)
    if any(fact.role is Role.CAUSE for fact in facts):
        assert found.worker
