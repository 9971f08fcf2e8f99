from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from recovery.decide import decide
from recovery.lifecycle import ActionKind, ActionState
from recovery.phases import Phase
from recovery.records import WorldView
from recovery.signals import SignalKind, Source
from tests.recovery.desk import CLEAN, Desk

XID_79 = "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
KEY_ERROR = ("Traceback (most recent call last):", "KeyError: 'lr_schedule'")
STALE = "OSError: [Errno 116] Stale file handle"


def training(**fields: int) -> Desk:
    desk = Desk(**{"max_retry": 9, **fields})
    desk.start()
    return desk


def fail(desk: Desk, *log: str, kernel_log: tuple[str, ...] = ()) -> None:
    """Worker 0 fails, all stop, and the ladder has chosen."""
    data = {"exit_code": 1, "log_tail": list(log), "kernel_log": list(kernel_log), "step": 3388}
    desk.agent(0, SignalKind.ERROR, data, phase="command")
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()


def test_program_error_is_tried_once_more_and_the_same_again_stops_the_job() -> None:
    desk = training()
    fail(desk, *KEY_ERROR)
    assert desk.incident.verdict["diagnosis"]["remedy"] == "fail_fast"
    assert not desk.wanted(ActionKind.STOP_JOB)
    assert (
        "once more, because only the same again makes sure" in desk.wanted(ActionKind.RESTART_PROCESS)[-1].why
    )
    desk.recover()
    fail(desk, *KEY_ERROR)
    stop = desk.wanted(ActionKind.STOP_JOB)
    assert "raised an exception of its own" in stop[0].why
    assert "in 2 attempts in a row" in stop[0].why
    assert desk.last.rule == "ladder.fail_fast"


def test_another_error_between_them_is_no_row() -> None:
    desk = training()
    for log in (KEY_ERROR, (STALE,), KEY_ERROR):
        fail(desk, *log)
        assert not desk.wanted(ActionKind.STOP_JOB)
        desk.recover()


def test_device_error_wants_the_machine_isolated_and_says_what_is_done_instead() -> None:
    desk = training()
    fail(desk, "CUDA error: unknown error", kernel_log=(XID_79,))
    refused = desk.wanted(ActionKind.HOLD_NODE)
    assert [(each.state, each.refused_because) for each in refused] == [
        (ActionState.REFUSED, "remedy not installed")
    ]
    restart = desk.wanted(ActionKind.RESTART_PROCESS)
    assert (
        ". That asks for hold node, which is not installed, so the desk restarts in place instead"
        in restart[0].why
    )
    diagnosis = desk.incident.verdict["diagnosis"]
    assert (diagnosis["category"], diagnosis["blame"]) == ("gpu_lost", "node")
    assert diagnosis["evidence"][0]["text"] == XID_79
    assert diagnosis["exit"].startswith("Have the hardware inspected")


def test_container_that_was_made_anew_is_not_asked_for_again() -> None:
    desk = training()
    desk.end_pod(0, reason="Deleted")
    desk.decide()
    desk.stopped(1, 2)
    desk.decide()
    desk.enrol(0)
    desk.decide()
    desk.boot_check(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    assert desk.incident.verdict["diagnosis"]["remedy"] == "restart_container"
    assert not desk.wanted(ActionKind.RESTART_CONTAINER)
    restart = desk.wanted(ActionKind.RESTART_PROCESS)[0]
    assert restart.why.endswith("; the container of worker 0 is a new one already")
    assert "not installed" not in restart.why
    considered = {each.remedy: each.refused_because for each in desk.last.considered}
    assert considered["restart_container"] == "the container of worker 0 is a new one already"


def test_shared_dependency_in_trouble_waits_from_the_first_failure_on_and_blames_no_node() -> None:
    desk = training()
    fail(desk, STALE)
    wanted = desk.wanted(ActionKind.RESTART_PROCESS)[0]
    assert "so it waits" in wanted.why
    assert wanted.not_before > desk.now
    assert desk.incident.verdict["diagnosis"]["blame"] == "shared"
    assert [each.refused_because for each in desk.wanted(ActionKind.WAIT_SHARED)] == ["remedy not installed"]


def test_signal_without_a_cause_changes_nothing_about_the_choice() -> None:
    desk = training()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    assert desk.wanted(ActionKind.RESTART_PROCESS)[0].why == (
        "Process is gone and quick checks are clean on 3 of 3 workers: restart in place (not fully checked)"
    )
    assert desk.incident.verdict["diagnosis"]["is_strong"] is False


def test_verdict_of_a_late_witness_changes_nobody_who_counts() -> None:
    desk = training()
    fail(desk, *KEY_ERROR)
    counts, verdict = list(desk.counts), desk.incident.verdict["diagnosis"]
    desk.signal(SignalKind.LOG, Source.API, {"lines": [XID_79]})
    desk.decide()
    assert (desk.counts, desk.job.phase) == (counts, Phase.TROUBLESHOOTING)
    assert verdict["category"] == "user_code"


def test_what_is_kept_is_small_whatever_was_told() -> None:
    desk = training()
    noise = [f"step {n} | loss 2.0 | {'x' * 300}" for n in range(200)]
    for index in range(3):
        desk.fail(index, *noise, *KEY_ERROR)
    desk.decide()
    desk.stopped(0, 1, 2)
    begin = time.process_time()
    desk.decide()
    seconds = time.process_time() - begin
    kept = desk.incident.verdict
    assert len(json.dumps(kept)) < 60_000
    assert kept["diagnosis"]["category"] == "user_code"
    assert seconds < 1


def test_diagnosis_is_replayed_to_the_same_decision() -> None:
    desk = training()
    fail(desk, *KEY_ERROR, kernel_log=(XID_79,))
    for seen in desk.log:
        assert decide(seen.state, seen.inbox, seen.now, desk.policy) == seen.decision


@pytest.mark.parametrize("log", [[None], ["\ud800"], [["x"]], "text", 7], ids=str)
def test_odd_logs_are_survived(log: object) -> None:
    desk = training()
    desk.agent(0, SignalKind.ERROR, {"exit_code": 1, "log_tail": log}, phase="command")
    desk.decide()
    desk.stopped(0, 1, 2, checks=CLEAN)
    desk.decide()
    assert desk.wanted(ActionKind.RESTART_PROCESS)


def test_many_nodes_not_ready_at_once_blame_no_node() -> None:
    desk = training()
    around = WorldView(taken_at=desk.now, not_ready_share=0.5, not_ready_machines=40)
    desk.state = replace(desk.state, world=around)
    fail(desk, "CUDA error: unknown error")
    diagnosis = desk.incident.verdict["diagnosis"]
    assert (diagnosis["rule"], diagnosis["blame"]) == ("cluster.many-not-ready", "shared")
    assert "so it waits" in desk.wanted(ActionKind.RESTART_PROCESS)[0].why


def test_verdict_is_cheap_within_a_decision() -> None:
    """A decision over 200 lines of each of three workers; the bar is the issue's 5 ms, with room for a busy machine."""
    desk = training()
    noise = [f"step {n} | loss 2.0 | 0.2 s/step" for n in range(190)]
    fail(desk, *noise, *KEY_ERROR)
    seen = desk.log[-1]
    best = 1.0
    for _ in range(5):
        begin = time.process_time()
        decide(seen.state, seen.inbox, seen.now, desk.policy)
        best = min(best, time.process_time() - begin)
    assert best < 0.025


def test_numbers_and_conditions_that_others_measured_join_the_evidence() -> None:
    desk = training()
    desk.now += timedelta(seconds=5)  # at the border of an attempt, evidence belongs to the one before
    desk.fail(0, "bye")
    desk.decide()
    desk.signal(SignalKind.METRIC, Source.PROMETHEUS, {"name": "ecc_volatile_uncorrectable", "value": 3})
    desk.signal(
        SignalKind.NODE_CONDITION, Source.WATCH,
        {"type": "XfsShutdown", "status": "True", "reason": "XfsHasShutdown"},
    )  # fmt: skip
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    diagnosis = desk.incident.verdict["diagnosis"]
    assert diagnosis["blame"] == "node"
    assert {each["rule"] for each in diagnosis["evidence"]} >= {"ecc.counter", "disk.dead"}
