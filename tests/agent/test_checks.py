"""The quick set and the environment report on this machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.checks import DEADLINE_SECONDS, MOUNT_PROBE_ARGV, KernelLog, QuickSet
from agent.environment import report


def run(argv: list[str], timeout_seconds: float) -> tuple[int | None, str]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


class Once:
    """Asks the real probe, one process a question."""

    def __init__(self, argv: list[str] = MOUNT_PROBE_ARGV) -> None:
        self._argv = argv

    def ask(self, question: str, timeout_seconds: float) -> tuple[bool, list[str]]:
        try:
            done = subprocess.run(
                self._argv, input=question + "\n", capture_output=True, text=True, timeout=timeout_seconds
            )
        except subprocess.TimeoutExpired:
            return False, []
        return True, done.stdout.splitlines()[:-1]


HANG = [sys.executable, "-c", "import time; time.sleep(1000)"]


def results(quick: QuickSet) -> dict[str, tuple[str, str]]:
    return {item["check"]: (item["result"], item["detail"]) for item in quick.results()}


@pytest.fixture
def silent_log(tmp_path: Path) -> KernelLog:
    path = tmp_path / "kmsg"
    path.touch()
    return KernelLog(str(path))


def test_mounts_answer_and_nothing_is_left_behind(tmp_path: Path, silent_log: KernelLog) -> None:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    found = results(QuickSet(run, Once(), {}, silent_log, str(directory)))
    assert found["io"][0] == found["disk"][0] == "pass"
    assert str(directory) in found["io"][1]
    assert list(directory.iterdir()) == []


def test_missing_directory_is_no_evidence(tmp_path: Path, silent_log: KernelLog) -> None:
    found = results(QuickSet(run, Once(), {}, silent_log, str(tmp_path / "none")))
    assert found["io"][0] == "could_not_run"


def test_mount_that_hangs_times_out_and_holds_nobody(tmp_path: Path, silent_log: KernelLog) -> None:
    began = time.monotonic()
    found = results(QuickSet(run, Once(HANG), {}, silent_log, str(tmp_path)))
    assert found["io"][0] == found["disk"][0] == "timeout"
    assert found["runtime"][0] == "pass"
    assert time.monotonic() - began < DEADLINE_SECONDS + 5


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has accelerators")
def test_machine_without_devices_could_not_run_those_checks(silent_log: KernelLog) -> None:
    found = results(QuickSet(run, Once(), {}, silent_log, None))
    assert found["gpu"] == ("could_not_run", "no accelerator on this machine")


def test_kernel_errors_are_news_once_and_memory_kills_are_no_device_errors(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("6,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, before the agent\n")
    log = KernelLog(str(path))
    quick = QuickSet(run, Once(), {}, log, None)
    assert results(quick)["runtime"][0] == "pass"
    with path.open("a") as file:
        file.write("4,3,3,-;Out of memory: Killed process 123 (python3)\n")
    assert results(quick)["runtime"] == (
        "pass",
        "no new device error in the kernel log; memory kill: Out of memory: Killed process 123 (python3)",
    )
    with path.open("a") as file:
        file.write("4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    assert log.look(keep=True)[0] == ["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]
    assert results(quick)["runtime"][0] == "fail"
    assert results(quick)["runtime"][0] == "pass"


def test_kernel_log_that_may_not_be_read_is_no_evidence(tmp_path: Path) -> None:
    found = results(QuickSet(run, Once(), {}, KernelLog(str(tmp_path / "none")), None))
    assert found["runtime"][0] == "could_not_run"


def test_made_to_fail(silent_log: KernelLog) -> None:
    found = results(
        QuickSet(run, Once(), {"INCIDENTDESK_CHECK_FAIL": "gpu:fell off, rdma"}, silent_log, None)
    )
    assert found["gpu"] == ("fail", "fell off")
    assert found["rdma"][0] == "fail"
    assert found["disk"][0] == "pass"


def test_environment_names_versions_and_what_is_absent(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda = '12.8'\nhip = None\n")
    (torch / "__init__.py").write_text("raise SystemExit('nobody imports a framework to read its version')\n")

    def run_with_torch(argv: list[str], timeout_seconds: float) -> tuple[int | None, str]:
        return run(["env", f"PYTHONPATH={tmp_path}", *argv], timeout_seconds)

    found = report(run_with_torch, {"PATH": os.environ["PATH"], "NCCL_VERSION": "2.27.3"})
    assert (found["torch"], found["cuda"], found["framework"]) == ("2.8.0+cu128", "12.8", "torch")
    assert found["nccl"] == "2.27.3"
    assert "jax" in found["absent"]
    assert found["python"].startswith("3.")
    assert "problems" not in found


def test_environment_probe_that_hangs_is_said() -> None:
    found = report(lambda argv, timeout_seconds: (None, ""), {"PATH": ""})
    assert found["problems"] == ["versions: timed out"]
    assert found["agent_python"]
