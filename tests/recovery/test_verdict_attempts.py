"""What attempts, living runs and the ladder of remedies make of a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recovery.announced import began_at, facts_of
from recovery.conditions import inner_error
from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.builtin import builtin_rules
from recovery.verdict import Verdict, judge

GREEN = {"gpu": "pass", "io": "pass", "rdma": "pass", "runtime": "pass"}

RULES = replace(builtin_rules(), precedents=None)  # what the rules say by themselves


def verdict(recurrence: str = "", **signals: Any) -> Verdict:
    return judge(evidence_from_plain(signals), read_recurrence(recurrence), RULES)


@pytest.mark.parametrize(
    ("log", "place"),
    [
        (["attempt 1: pod evicted", "attempt 2: starting", "RuntimeError"], 1),
        (["[attempt 0] preempted", "[attempt 1] starting", "x"], 1),
        (["attempt 1 of 5 failed", "attempt 2 of 5 failed"], 0),
        (["attempt 3 started", "x"], 0),
    ],
)
def test_last_attempt_of_a_log_begins_at_its_number(log: list[str], place: int) -> None:
    assert began_at(log) == place


def test_end_of_an_earlier_attempt_explains_nothing_newer() -> None:
    log = [
        "[attempt 0] preempted by the scheduler",
        "[attempt 1] starting",
        "train.py: error: unrecognized arguments: --x",
    ]
    assert verdict(exit_code=2, log_tail=log).remedy == "fail_fast"
    assert verdict(exit_code=143, log_tail=log[:2], pod_reason="Preempted").category == "preempted"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (
            "GpuUnhealthy=True: FatalXid, error code 31, action: RESTART_APP",
            {"code": 31.0, "advice": "restart"},
        ),
        ("GpuUnhealthy=True: xid 79, recommended action: RESTART_BM", {"code": 79.0, "advice": "reset"}),
        ("GpuHealthy=False: DCGM_FR_CLOCK_THROTTLE_THERMAL", {"thermal": True}),
        ("GpuHealthy=True: xid 79", {}),
    ],
)
def test_condition_tells_the_error_within(condition: str, expected: dict[str, Any]) -> None:
    assert inner_error([condition]) == expected


@pytest.mark.parametrize(
    ("signals", "remedy"),
    [
        ({"node_conditions": ["NvlinkStatus=Unhealthy: replay errors"]}, "evict_at_checkpoint"),
        ({"node_conditions": ["NvlinkStatus=Unhealthy: replay errors"], "exit_code": 1}, "isolate_node"),
        ({"checks": {"gpu": "fail"}}, "isolate_node"),
        ({"kernel_log": ["NVRM: Xid (PCI:0000:5e:00): 48, pid=1, DBE"]}, "isolate_node"),
    ],
)
def test_run_that_makes_steps_is_left_at_its_next_save(signals: dict[str, Any], remedy: str) -> None:
    metrics = {"seconds_since_progress": 4}
    assert verdict(log_tail=["step 41 loss 2.2"], metrics=metrics, **signals).remedy == remedy


def test_what_was_tried_in_vain_moves_one_step_up() -> None:
    log = ["RuntimeError: Device or resource busy: /dev/davinci3"]
    assert verdict(exit_code=1, log_tail=log).remedy == "restart_container"
    vain = "the second new container on this node ends so, its neighbours take the job"
    assert verdict(vain, exit_code=1, log_tail=log).remedy == "isolate_node"
    assert verdict("every start on every node", exit_code=1, log_tail=log).remedy == "fail_fast"


def test_machine_taken_out_for_containers_in_vain_has_a_way_back() -> None:
    rule = builtin_rules().named("device.held")
    assert rule is not None
    assert rule.exit == ""
    metrics = {"leftover_process_from_previous_attempt": 1}
    found = verdict("the second new container on this node ends so", exit_code=1, metrics=metrics)
    assert (found.rule, found.remedy) == ("device.held", "isolate_node")
    assert "new container start there, then untaint" in found.exit


def test_place_of_earlier_attempts_is_compared_with_this_log() -> None:
    log = ["step=1840", "WorkNCCL(SeqNum=7, OpType=ALLREDUCE): collective operation timeout"]
    assert (
        verdict("second attempt, no further than 1840 again", exit_code=1, log_tail=log).remedy == "fail_fast"
    )
    assert (
        verdict("second attempt, the first ended at 512", exit_code=1, log_tail=log).remedy
        == "restart_process"
    )


def test_ranks_in_different_collectives_at_one_number_have_parted_ways() -> None:
    line = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=881, OpType={}, NumelIn=1)"

    def of(*types: str) -> Verdict:
        return verdict(
            ranks=[{"rank": n, "node": "a", "log_tail": [line.format(kind)]} for n, kind in enumerate(types)]
        )

    assert of("ALLREDUCE", "BROADCAST").remedy == "fail_fast"
    assert of("ALLREDUCE", "ALLREDUCE").remedy == "restart_process"


@pytest.mark.parametrize(
    ("pairs", "remedy"),
    [
        (["pair (a3, a9): FAIL", "pair (a3, a4): FAIL", "pair (a4, a9): ok"], "isolate_node"),
        (["pair (a3, a9): FAIL", "pair (a3, a4): ok", "pair (a4, a9): ok"], "restart_process"),
        (["pair (a3, a9): FAIL", "pair (a3, a4): FAIL", "pair (a4, a9): FAIL"], "restart_process"),
    ],
)
def test_pairs_told_by_name_name_the_machine(pairs: list[str], remedy: str) -> None:
    assert verdict(exit_code=1, log_tail=pairs, checks=GREEN).remedy == remedy


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (['err_total{device="a"} 7', 'err_total{device="b"} 0'], {"link.one_counts"}),
        (['err_total{device="a"} 0', 'err_total{device="b"} 0'], {"link.all_zero"}),
        (['err_total{device="a"} 7', 'err_total{device="b"} 9'], set()),
        (["indexing: 52 min left", "barrier timed out after 1800 s"], {"prepare.too_long"}),
        (["indexing: 2 min left", "barrier timed out after 1800 s"], set()),
        (["<00:42:10, 3.1 files/s", "ran for 600000 milliseconds"], {"prepare.too_long"}),
    ],
)
def test_counters_of_links_and_estimates_are_compared(log: list[str], expected: set[str]) -> None:
    assert set(facts_of(evidence_from_plain({"log_tail": log}))) == expected
