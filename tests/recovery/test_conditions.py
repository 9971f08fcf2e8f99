"""What node conditions say about hardware, whatever their names are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.conditions import hardware_verdict


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("AcceleratorState=Bad: PendingReplacement", ("gpu", True)),
        ("example.net/gpu-state=NeedsRepair", ("gpu", True)),
        ("GpuHealthy=False: ThresholdReached", ("gpu", True)),
        ("Label: health.example.io/chip=UNHEALTHY_REBOOT_REQUIRED", ("gpu", True)),
        ("NodeDiagnosis=Failed: gpu 3 awaiting RMA", ("gpu", True)),
        ("NodeHealth=Unhealthy", ("host", True)),
        ("RdmaHealth=Unhealthy: port 3 failed self test", ("nic", True)),
        ("AcceleratorHealthy=False: HbmUncorrectable", ("gpu-memory", True)),
        ("NicLinkQuality=Degraded: fec corrected rate high", ("nic", False)),
        ("Event: DevicePlugin registered 7 of 8 devices after reboot", ("gpu", True)),
        ("GpuHealthy=True: AllChecksPassed", ("", False)),
        ("GpuHealth=Healthy: NoFailedChecks", ("", False)),
        ("GpuHealth=Unknown", ("", False)),
        ("MaintenanceScheduled=True: gpu replacement on Sunday", ("", False)),
        ("HealthCheck=Running: check in progress", ("", False)),
        ("RebootRequired=True: kernel update", ("", False)),
        ("DiskPressure=True: KubeletHasDiskPressure", ("", False)),
        ("SlurmNode=DRAIN: Kill task failed", ("", False)),
        ("Ready=False: KubeletNotReady", ("", False)),
        ("", ("", False)),
    ],
)
def test_value_and_reason_decide(condition: str, expected: tuple[str, bool]) -> None:
    assert hardware_verdict([condition]) == expected


def test_an_outright_verdict_outranks_a_soft_one() -> None:
    assert hardware_verdict(["NicQuality=Degraded", "Ready=True", "GpuState=Failed"]) == ("gpu", True)


@given(st.lists(st.text(max_size=300), max_size=5))
def test_any_condition_is_read(conditions: list[str]) -> None:
    assert hardware_verdict(conditions)[0] in {"", "gpu", "gpu-memory", "gpu-fabric", "nic", "host"}
