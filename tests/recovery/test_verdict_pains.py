"""What users of such systems suffered from wrong verdicts. The letter and number name the complaint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recovery.lifecycle import ActionKind
from recovery.observed import evidence_from_plain
from recovery.past import History
from recovery.records import WorldView
from recovery.rules.builtin import builtin_rules
from recovery.rules.loading import RuleFileError, load_rules
from recovery.signals import EndCause, SignalKind, Source
from recovery.verdict import Verdict, judge
from tests.recovery.desk import START, Desk

STOP, RESTART, HOLD = ActionKind.STOP_JOB, ActionKind.RESTART_PROCESS, ActionKind.HOLD_NODE
GREEN = {"io": "pass", "gpu": "pass", "rdma": "pass"}
FATAL = """
[[rule]]
id = "own.fatal"
match = ["board has failed"]
class = "device"
specificity = 50
category = "host_hw"
remedy = "isolate_node"
blame = "node"
reason = "The board says that it has failed"
source = "our own monitoring"
examples = ["bmc: board has failed"]
"""


def verdict(**signals: Any) -> Verdict:
    return judge(evidence_from_plain(signals), History(), builtin_rules())


def training(*, workers: int = 3, max_retry: int = 9) -> Desk:
    desk = Desk(workers=workers, max_retry=max_retry)
    desk.start()
    return desk


@pytest.mark.parametrize(
    "line",
    [
        "dcgm-exporter: could not connect to the host engine, connection refused",
        "node-agent: DCGM host engine is starting, health not known yet",
        "prometheus: no scrape of dcgm-exporter for 5m",
    ],
)
def test_source_that_cannot_be_reached_is_no_evidence_against_hardware(line: str) -> None:
    """R13: a monitor that starts, or that nobody can ask, has seen nothing."""
    found = verdict(exit_code=1, log_tail=[line], checks=GREEN)
    assert found.remedy != "isolate_node"
    assert found.blame != "node"


@pytest.mark.parametrize("result", ["could_not_run", "timeout", "skipped"])
def test_check_that_did_not_run_is_neither_passed_nor_failed(result: str) -> None:
    """R13, R42: it isolates nothing, and a check that failed beside it still does."""
    assert verdict(exit_code=1, checks=GREEN | {"gpu": result}).remedy != "isolate_node"
    found = verdict(exit_code=1, checks={"gpu": "fail", "rdma": result})
    assert (found.remedy, found.rule) == ("isolate_node", "check.gpu")


def test_rule_that_isolates_without_a_way_out_is_refused() -> None:
    """R15: each isolating rule must say how the machine comes back."""
    with pytest.raises(RuleFileError, match=r"own\.fatal, exit: .*isolate"):
        load_rules([("own.toml", FATAL)], base=builtin_rules())
    ways_out = builtin_rules().exits
    for way in ways_out:
        good = FATAL.replace('blame = "node"', f'blame = "node"\nexit = "{way}"')
        assert load_rules([("own.toml", good)], base=builtin_rules()).named("own.fatal") is not None
    assert all(rule.exit in ways_out for rule in builtin_rules().rules if rule.isolates)


@pytest.mark.parametrize(
    ("kernel", "isolates"),
    [
        ("NVRM: Xid (PCI:0000:5e:00): 63, pid=4711, name=python3, GPU memory remapping event", False),
        ("NVRM: Xid (PCI:0000:5e:00): 64, pid=4711, name=python3, GPU memory remapping failure", True),
        ("NVRM: Xid (PCI:0000:5e:00): 94, pid=4711, name=python3, Contained ECC error", False),
        ("NVRM: Xid (PCI:0000:5e:00): 79, pid=4711, name=python3, GPU has fallen off the bus.", True),
    ],
)
def test_benign_memory_repair_sends_nobody_away(kernel: str, isolates: bool) -> None:
    """R42: the severity of a device error is data: a remapped row is a repair, one that failed is not."""
    found = verdict(exit_code=1, kernel_log=[kernel], checks=GREEN)
    assert (found.remedy == "isolate_node") is isolates


def test_many_nodes_not_ready_blame_none_of_them() -> None:
    """R23: the control plane is overloaded, and the machines are well."""
    lost = {"node_conditions": ["Ready=Unknown: NodeStatusUnknown"], "exit_code": 1}
    for around in ({"not_ready_share": 0.4}, {"watch_lag_seconds": 90.0}):
        found = verdict(**lost, metrics=around)
        assert (found.remedy, found.blame) == ("backoff_shared", "shared")
    assert verdict(**lost, metrics={"not_ready_share": 0.4}, checks={"gpu": "fail"}).remedy == "isolate_node"


@pytest.mark.parametrize(
    "around", [{"not_ready_share": 0.4, "not_ready_machines": 40}, {"watch_lag_seconds": 120.0}]
)
def test_decision_suspects_the_desk_when_nodes_seem_lost_all_at_once(around: dict[str, Any]) -> None:
    """R23: the same in a decision, which reads the world's snapshot: nobody is isolated, and the restart waits."""
    desk = training()
    desk.state = replace(desk.state, world=WorldView(taken_at=desk.now, **around))
    desk.fail(0, "elastic agent: peer on gpu-r01-02 is gone, Ready=Unknown: NodeStatusUnknown")
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    kept = desk.incident.verdict["diagnosis"]
    assert (kept["remedy"], kept["blame"]) == ("backoff_shared", "shared")
    assert not desk.wanted(HOLD)
    (restart,) = desk.wanted(RESTART)
    assert restart.not_before > desk.now


@pytest.mark.parametrize("reason", ["", "NodeLost", "DeletionByTaintManager", "DeletionByPodGC", "Deleted"])
@pytest.mark.parametrize(
    ("around", "rule"),
    [
        ({"not_ready_share": 0.4, "not_ready_machines": 40}, "cluster.many-not-ready"),
        ({"watch_lag_seconds": 120.0}, "cluster.our-view-is-slow"),
        ({"watch_silent_seconds": 200.0}, "cluster.our-view-is-silent"),
        ({"api_call_seconds": 12.5}, "cluster.our-calls-are-slow"),
    ],
)
def test_node_lost_without_a_word_is_our_own_view_or_the_control_plane_when_that_is_late(
    around: dict[str, Any], rule: str, reason: str
) -> None:
    """R23: the pod's end carries no text; it counts by its cause, isolates nothing, and the restart waits."""
    desk = training()
    desk.state = replace(desk.state, world=WorldView(taken_at=desk.now, **around))
    desk.end_pod(0, EndCause.NODE_LOST, reason=reason)
    desk.decide()
    found = desk.incident.verdict["diagnosis"]
    assert (found["rule"], found["remedy"], found["blame"]) == (rule, "backoff_shared", "shared")
    desk.state = replace(desk.state, world=WorldView(taken_at=desk.now))  # all is well when the pod is back
    desk.enrol(0)
    desk.decide()
    desk.boot_check(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    assert desk.incident.verdict["diagnosis"]["rule"] == rule
    assert (desk.retries, desk.counts) == ("1:0:0", [(1, 0, "node_lost")])
    assert not desk.wanted(HOLD)
    (restart,) = desk.wanted(RESTART)
    assert restart.not_before > desk.now


def test_one_node_lost_without_a_word_is_that_node() -> None:
    """R23, the other side: in a cluster that is well, and seen in time, the machine is gone."""
    desk = training()
    around = WorldView(
        taken_at=desk.now,
        not_ready_machines=1,
        watch_lag_seconds=0.1,
        watch_silent_seconds=20.0,
        api_call_seconds=0.02,
    )
    desk.state = replace(desk.state, world=around)
    desk.end_pod(0, EndCause.NODE_LOST)
    desk.decide()
    found = desk.incident.verdict["diagnosis"]
    assert (found["rule"], found["blame"], found["category"]) == ("node.not-ready", "node", "node_lost")
    assert (desk.retries, desk.counts) == ("1:0:0", [(1, 0, "node_lost")])


def test_alert_about_a_node_alone_restarts_nobody() -> None:
    """R24: a node that is NotReady for a moment has ended no worker."""
    desk = training()
    before = desk.job
    for n in range(5):
        desk.signal(
            SignalKind.ALERT, Source.ALERTMANAGER,
            {"labels": {"alertname": "KubeNodeNotReady", "node": desk.life(n % 3).node}},
        )  # fmt: skip
        desk.decide()
        desk.now = START
    assert desk.job == before
    assert desk.state.incident is None
    assert not desk.log[-1].decision.actions


def test_error_of_the_program_on_all_ranks_is_not_tried_up_to_a_huge_limit() -> None:
    """R50: the same trace on all ranks and healthy nodes is the user's; the second time makes sure."""
    desk = training(max_retry=1000)
    trace = ("Traceback (most recent call last):", "  File train.py, line 12", "KeyError: 'lr_schedule'")
    tries = 0
    while not desk.wanted(STOP):
        tries += 1
        assert tries < 5
        for index in range(3):
            desk.fail(index, *trace)
        desk.decide()
        desk.stopped(0, 1, 2)
        desk.decide()
        if not desk.wanted(STOP):
            desk.go()
            desk.decide()
            desk.started(0, 1, 2)
            desk.first_step(0, 1, 2, step=3301)
            desk.decide()
    assert tries == 2
    assert len(desk.wanted(RESTART)) == 1
    assert not desk.wanted(HOLD)
    kept = desk.incident.verdict["diagnosis"]
    assert (kept["remedy"], kept["blame"]) == ("fail_fast", "job")


@pytest.mark.parametrize(
    "seen",
    [
        {"metrics": {"sm_clock_ratio_to_median": 0.5, "step_time_ratio": 1.6}},
        {"metrics": {"step_time_ratio": 1.6}, "log_tail": ["HW Thermal Slowdown: Active"]},
    ],
)
def test_node_slower_than_its_peers_is_marked_and_leaves_at_a_safe_point(seen: dict[str, Any]) -> None:
    """R46, in part: a throttled clock ends nothing, so it is found by its peers and not by a crash.

    The verdict asks for it; marking and evicting are not installed.
    """
    found = verdict(**seen)
    assert (found.remedy, found.blame) == ("evict_at_checkpoint", "node")
    assert verdict(metrics={"step_time_ratio": 1.01}).remedy != "evict_at_checkpoint"
