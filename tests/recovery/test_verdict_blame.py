"""Who is to blame: what is compared, what is only advised, and what a machine is taken out for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.builtin import builtin_rules
from recovery.verdict import Verdict, judge

GREEN = {"io": "pass", "gpu": "pass", "runtime": "pass", "rdma": "pass", "allreduce_conn": "pass"}
REFUSED = 'Failed to pull image "registry.example/base/os:3": unexpected status: 401 Unauthorized'
TOO_OLD = "libfabric: EFA kernel module is too old (found 1.8, need 2.1)"
NOT_READY = "RuntimeError: Error 802: system not yet initialized"
ADVICE = "Hint: this may be due to a fabric manager that is not running, please check it"
LOST = "RuntimeError: UR_RESULT_ERROR_DEVICE_LOST"
RESET = "xe 0000:5b:00.0: [drm] GT1: Engine reset: engine_class=bcs, logical_mask: 0x2, guc_id=11"
RESTLESS = ["Ready=True: KubeletReady", "FrequentKubeletRestart=True: FrequentKubeletRestart"]
STEPS = ["step 400 loss 2.31", "step 401 loss 2.30"]

RULES = replace(builtin_rules(), precedents=None)  # what the rules say by themselves


def verdict(*log: str, recurrence: str = "", **signals: Any) -> Verdict:
    signals = {"log_tail": list(log), "exit_code": 1, "checks": GREEN, **signals}
    return judge(evidence_from_plain(signals), read_recurrence(recurrence), RULES)


@pytest.mark.parametrize(
    ("recurrence", "remedy", "blame"),
    [
        (
            "every namespace is refused since the registry's restart, public images too",
            "backoff_shared",
            "shared",
        ),
        ("everyone gets it since 09:00", "backoff_shared", "shared"),
        ("only this project is refused, others pull from it", "fail_fast", "job"),
        ("every start; everybody else pulls from it", "fail_fast", "job"),
        ("all nodes of this job", "fail_fast", "job"),
    ],
)
def test_refusal_of_everybody_is_the_registrys(recurrence: str, remedy: str, blame: str) -> None:
    found = verdict(REFUSED, pod_reason="ErrImagePull", exit_code=None, checks={}, recurrence=recurrence)
    assert (found.remedy, found.blame) == (remedy, blame)


@pytest.mark.parametrize(
    ("recurrence", "remedy"),
    [
        ("gx-07 only; the rest of the pool runs the same image", "isolate_node"),
        ("first time on this host, all other hosts start this image", "isolate_node"),
        ("every start, on all nodes", "fail_fast"),
    ],
)
def test_version_that_one_host_alone_lacks_is_that_hosts_state(recurrence: str, remedy: str) -> None:
    assert verdict(TOO_OLD, recurrence=recurrence).remedy == remedy


@pytest.mark.parametrize(
    ("recurrence", "remedy"),
    [
        ("4 starts; other users are fine", "fail_fast"),
        ("4 starts, our project only; others are fine", "fail_fast"),
        ("4 starts on this node; other nodes are fine", "isolate_node"),
        ("all users on any node since the reinstallation", "needs_operator"),
    ],
)
def test_others_are_fine_speaks_of_what_it_compares(recurrence: str, remedy: str) -> None:
    assert (
        verdict("ImportError: libx.so.4: cannot open shared object file", recurrence=recurrence).remedy
        == remedy
    )


@pytest.mark.parametrize(
    ("kernel", "recurrence", "checks", "remedy"),
    [
        ([RESET], "first time; the rerun went through", GREEN, "restart_process"),
        ([RESET], "third time on this node", GREEN, "isolate_node"),
        ([RESET], "first time", GREEN | {"gpu": "fail"}, "isolate_node"),
        ([RESET], "first time", {"io": "pass"}, "isolate_node"),
        ([RESET, "xe 0000:5b:00.0: [drm] device declared wedged"], "first time", GREEN, "isolate_node"),
    ],
)
def test_completed_engine_reset_takes_no_machine_out(
    kernel: list[str], recurrence: str, checks: dict[str, str], remedy: str
) -> None:
    assert verdict(LOST, kernel_log=kernel, recurrence=recurrence, checks=checks).remedy == remedy


def test_card_that_could_not_be_reset_needs_no_check_to_be_bad() -> None:
    kernel = ["NVRM: GPU 0000:4f:00.0: failed to reset the device"]
    assert verdict("CUDA error: unknown error", kernel_log=kernel, checks={}).remedy == "isolate_node"


@pytest.mark.parametrize(
    ("line", "recurrence", "remedy"),
    [
        (NOT_READY, "first time", "restart_process"),
        (NOT_READY, "third start on this node", "isolate_node"),
        (NOT_READY, "all nodes", "needs_operator"),
        (f"NCCL WARN multicast bind failed. {ADVICE}", "first time", "restart_process"),
        (f"NCCL WARN multicast: out of resources. {ADVICE}", "3 launches on disjoint nodes", "fail_fast"),
        ("nvidia-fabricmanager.service: failed", "first time", "isolate_node"),
    ],
)
def test_advice_of_a_library_is_no_evidence_against_a_machine(
    line: str, recurrence: str, remedy: str
) -> None:
    assert verdict(line, recurrence=recurrence).remedy == remedy


@pytest.mark.parametrize(
    ("conditions", "recurrence", "remedy"),
    [
        (RESTLESS, "same on three other nodes", "fail_fast"),
        (RESTLESS, "3 times on this node", "isolate_node"),
        (["Ready=False: KubeletNotReady", *RESTLESS[1:]], "same on three other nodes", "isolate_node"),
    ],
)
def test_soft_condition_does_not_outrank_what_follows_the_program(
    conditions: list[str], recurrence: str, remedy: str
) -> None:
    log = ("Traceback (most recent call last):", "KeyError: 'labels'")
    assert verdict(*log, node_conditions=conditions, recurrence=recurrence).remedy == remedy


@pytest.mark.parametrize(
    ("record", "metrics", "remedy"),
    [
        ("nvlink: GPU 3 link 7 is degraded: CRC error count exceeded threshold", {}, "evict_at_checkpoint"),
        ("NVRM: NVLink 5 recoverable errors: 812, link active", {}, "evict_at_checkpoint"),
        ("nvlink: GPU 3 link 7: fatal error, CRC error count exceeded threshold", {}, "isolate_node"),
        (
            "nvlink: GPU 3 link 7 is degraded: CRC error count exceeded threshold",
            {"seconds_since_progress": 1900},
            "isolate_node",
        ),
    ],
)
def test_link_that_carries_the_run_waits_for_the_next_save(
    record: str, metrics: dict[str, float], remedy: str
) -> None:
    found = verdict(*STEPS, kernel_log=[record], metrics=metrics, exit_code=None, phase="run")
    assert (found.remedy, found.blame) == (remedy, "node")


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [
        ("GpuRowRemap=True: DCGM_FR_ROW_REMAP_PENDING", "evict_at_checkpoint"),
        ("GpuRowRemapHasIssues=True: remapped rows pending=1 failed=0", "evict_at_checkpoint"),
        ("GpuRowRemap=True: DCGM_FR_ROW_REMAP_FAILURE", "isolate_node"),
    ],
)
def test_condition_is_read_down_to_its_code(condition: str, remedy: str) -> None:
    found = verdict(*STEPS, node_conditions=[condition], exit_code=None, checks={})
    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("recurrence", "remedy"),
    [
        ("every launch since the cluster grew, on many nodes", "needs_operator"),
        ("first time", "backoff_shared"),
    ],
)
def test_limit_that_is_too_small_at_every_launch_is_an_operators(recurrence: str, remedy: str) -> None:
    kernel = ["neighbour: arp_cache: neighbor table overflow!"]
    found = verdict(
        "rendezvous failed", kernel_log=kernel, metrics={"nodes_affected": 40}, recurrence=recurrence
    )
    assert found.remedy == remedy


@pytest.mark.parametrize(("age", "remedy"), [(1900, "isolate_node"), (20, "restart_container")])
def test_host_that_a_batch_system_does_not_reach_is_lost_whatever_the_signal(age: int, remedy: str) -> None:
    line = "job 812: lost contact with execution host cn-31, job is ended"
    found = verdict(line, exit_code=None, signal="SIGUSR2", metrics={"heartbeat_age_s": age}, checks={})
    assert (found.remedy, found.category) == (remedy, "node_lost")


@pytest.mark.parametrize(
    ("log", "recurrence", "remedy", "category"),
    [
        (["ValueError: checkpoint path /c/a/step_0 does not exist"], "first start", "fail_fast", "bad_config"),
        (
            ["saved checkpoint of step 300", "FileNotFoundError: '/c/a/step_300/shard_4.pt'"],
            "first time",
            "restart_process",
            "ckpt_corrupt",
        ),
        (["apptainer: FATAL: stat /usr/bin/tini: no such file or directory"], "", "fail_fast", "bad_config"),
        (
            ["OSError: [Errno 116] Stale file handle: '/home/k/.triton/cache/a1'"],
            "third start, other nodes each time",
            "fail_fast",
            "bad_config",
        ),
        (["PermissionError: [Errno 13] Permission denied: '/run/user/7'"], "any user, any node", "needs_operator", ""),
        (["nvidia-imex: domain is not configured"], "all hosts of the rack, every job", "needs_operator", "gpu_fabric"),
    ],
)  # fmt: skip
def test_what_no_retry_mends(log: list[str], recurrence: str, remedy: str, category: str) -> None:
    found = verdict(*log, recurrence=recurrence)
    assert found.remedy == remedy
    assert found.category == category or not category


@pytest.mark.parametrize(
    "line",
    [
        "INFO no checkpoint found in /ckpt/a, training from scratch",
        "WARNING: no checkpoint found in /ckpt/a, weights are random",
        "PIL: image has no alpha channel",
    ],
)
def test_remark_of_a_program_stops_no_job(line: str) -> None:
    found = verdict(line, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3389)")
    assert (found.remedy, found.blame) == ("restart_process", "other_rank")


def test_users_of_one_script_are_not_everybody() -> None:
    assert verdict("KeyError: 'x'", recurrence="every start; all users of this script").remedy == "fail_fast"
