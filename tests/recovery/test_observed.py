"""Which conditions of a node say that all is well, and that they are no evidence."""

from __future__ import annotations

import pytest

from recovery.observed import evidence_from_plain, is_well
from recovery.past import read_recurrence
from recovery.rules.builtin import builtin_rules
from recovery.verdict import judge


@pytest.mark.parametrize(
    ("condition", "well"),
    [
        ("Ready=True: KubeletReady", True),
        ("Ready=False: KubeletNotReady", False),
        ("Ready=Unknown: NodeStatusUnknown", False),
        ("DiskPressure=False: KubeletHasNoDiskPressure", True),
        ("DiskPressure=True", False),
        ("NetworkUnavailable=False: RouteCreated", True),
        ("NetworkUnavailable=True", False),
        ("GPUUnhealthy=True", False),
        ("GPUHealthy=True", True),
        ("NVLinkStatusInactive=True: NVLinkDown", False),
        ("NVLinkStatusInactive=False", True),
        ("VMEventScheduled=True: RedeployScheduled", False),
        ("NeuronHealth=False: NeuronHasError_DMA_ERROR", False),
        ("KernelDeadlock=False: KernelHasNoDeadlock", True),
        ("GpuMemWatch=False: NotHealthy", False),
        ("GpuMemWatch=False: GpuMemWatchIsNotHealthy", False),
        ("GpuMemWatch=False", True),
        ("BoardWatch=False: Unhealthy", False),
        ("BoardWatch=False: NotUnhealthy", True),
        ("GPUUnhealthy=False: GPUIsNotUnhealthy", True),
        ("Event: Rebooted", False),
        ("DiskPressure", False),
        ("", False),
    ],
)
def test_a_condition_is_well(condition: str, well: bool) -> None:
    assert is_well(condition) is well


def test_what_is_well_is_no_evidence() -> None:
    well = ["DiskPressure=False: KubeletHasNoDiskPressure", "KernelDeadlock=False: KernelHasNoDeadlock"]
    signals = {"exit_code": 1, "log_tail": ["ValueError: too many values to unpack (expected 2)"]}
    rules, history = builtin_rules(), read_recurrence("")
    bare = judge(evidence_from_plain(signals), history, rules)
    beside = judge(evidence_from_plain({**signals, "node_conditions": well}), history, rules)
    assert beside == bare
    ill = judge(evidence_from_plain({**signals, "node_conditions": ["DiskPressure=True"]}), history, rules)
    assert ill.category == "disk_full"
