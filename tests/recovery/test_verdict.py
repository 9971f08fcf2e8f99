from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.observed import evidence_from_plain
from recovery.past import History, read_recurrence
from recovery.rules.builtin import builtin_rules
from recovery.rules.rule import Remedy
from recovery.verdict import Verdict, judge

RULES = replace(builtin_rules(), precedents=None)  # what the rules say by themselves
GREEN = {"io": "pass", "gpu": "pass", "runtime": "pass", "rdma": "pass", "allreduce_conn": "pass"}
XID_79 = "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_13 = "NVRM: Xid (PCI:0000:a1:00): 13, pid=7, name=python3, Graphics SM Warp Exception"
TIMEOUT = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3389, OpType=ALLREDUCE)"


def verdict(*log: str, recurrence: str = "", **signals: Any) -> Verdict:
    signals = {"log_tail": list(log), "exit_code": 1, **signals}
    return judge(evidence_from_plain(signals), read_recurrence(recurrence), RULES)


def test_device_error_outranks_what_the_program_says() -> None:
    found = verdict("KeyError: 'lr'", kernel_log=[XID_79])
    assert (found.category, found.remedy, found.blame) == ("gpu_lost", "isolate_node", "node")
    assert found.exit.startswith("Have the hardware inspected")
    assert {cited.text for cited in found.contradictions} == {"KeyError: 'lr'"}


def test_failed_check_outranks_a_catalogue_that_says_restart() -> None:
    assert verdict("CUDA error", kernel_log=[XID_13], checks=GREEN).remedy == "restart_process"
    found = verdict("CUDA error", kernel_log=[XID_13], checks=GREEN | {"gpu": "fail"})
    assert (found.remedy, found.rule) == ("isolate_node", "check.gpu")


def test_time_out_of_a_check_is_no_evidence_against_the_machine() -> None:
    assert verdict("Segmentation fault", checks=GREEN | {"gpu": "timeout"}).remedy == "restart_process"


def test_symptom_loses_to_any_cause() -> None:
    found = verdict(TIMEOUT, "TypeError: forward() missing 1 required positional argument", TIMEOUT)
    assert (found.category, found.remedy) == ("user_code", "fail_fast")
    assert verdict(TIMEOUT, checks=GREEN).category == "peer_cascade"


@pytest.mark.parametrize(
    ("recurrence", "remedy"),
    [
        ("first time", "restart_process"),
        ("same exception at step 1 on 3 different nodes", "fail_fast"),
        ("GPU 3 raised it in four jobs of different users, which run clean elsewhere", "isolate_node"),
        ("only this node, 3 times", "isolate_node"),
    ],
)
def test_history_decides_what_a_gpu_exception_means(recurrence: str, remedy: str) -> None:
    line = "CUDA error: an illegal memory access was encountered"
    assert verdict(line, checks=GREEN, recurrence=recurrence).remedy == remedy


def test_same_collective_again_is_the_programs_fault_and_changing_ones_are_not() -> None:
    assert verdict(TIMEOUT, checks=GREEN, recurrence="same SeqNum on 3 attempts").remedy == "fail_fast"
    changing = verdict(TIMEOUT, checks=GREEN, recurrence="3 attempts, at different SeqNum each time")
    assert changing.remedy == "restart_process"


def test_many_nodes_at_once_are_no_matter_of_a_node() -> None:
    line = "OSError: [Errno 116] Stale file handle"
    assert verdict(line, metrics={"nodes_affected": 30}).remedy == "backoff_shared"
    one = verdict(line, metrics={"nodes_affected": 1}, recurrence="4th time on this node, none elsewhere")
    assert one.remedy == "isolate_node"


def test_corrected_errors_never_explain_an_end() -> None:
    line = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping"
    assert verdict("step 3 | loss 2.0", kernel_log=[line], exit_code=None).remedy == "evict_at_checkpoint"
    assert verdict("Aborted", kernel_log=[line], checks=GREEN).remedy == "restart_process"


def test_only_rank_that_does_not_wait_is_the_culprit() -> None:
    ranks = [{"rank": 0, "node": "a", "log_tail": ["epoch 0 done"]}] + [
        {"rank": n, "node": "b", "log_tail": [TIMEOUT]} for n in (1, 2)
    ]
    found = verdict(TIMEOUT, ranks=ranks, checks=GREEN)
    assert (found.culprit_rank, found.culprit_node) == (0, "a")


def test_who_failed_first_outranks_what_others_wrote_later() -> None:
    ranks = [
        {"rank": 3, "node": "a", "log_tail": ["KeyError: 'x'"], "first_error_offset_s": 9.0},
        {
            "rank": 5,
            "node": "b",
            "log_tail": ["OSError: [Errno 116] Stale file handle"],
            "first_error_offset_s": 0.1,
        },
    ]
    found = verdict(ranks=ranks, checks=GREEN)
    assert (found.category, found.culprit_rank) == ("shared_storage", 5)


def test_pairwise_check_names_the_node_that_is_bad_with_every_partner() -> None:
    rounds = [
        "Round 0: The node elapsed time are {1: 21.0, 2: 20.8, 3: 3600.0, 4: 3600.0}",
        "Round 1: The node elapsed time are {1: 3600.0, 2: 21.1, 3: 20.9, 4: 3600.0}",
    ]
    found = verdict(*rounds, exit_code=None, checks={"allreduce_conn": "fail"})
    assert (found.remedy, found.culprit_rank) == ("isolate_node", 4)
    alone = verdict(rounds[0], exit_code=None, checks={"allreduce_conn": "fail"})
    assert (alone.remedy == "isolate_node", alone.culprit_rank) == (False, None)


def test_without_evidence_it_is_unknown_and_what_runs_is_left_alone() -> None:
    ended = verdict("bye")
    assert (ended.category, ended.remedy, ended.confidence) == ("unknown", "restart_process", 0.2)
    assert verdict("bye", exit_code=None, phase="run").remedy == "mark_hang"


def test_every_other_remedy_is_refused_with_a_reason() -> None:
    for found in (verdict("bye"), verdict("KeyError: 'x'", TIMEOUT), verdict(kernel_log=[XID_79])):
        assert {refused.remedy for refused in found.considered} == set(Remedy) - {found.remedy}
        assert all(len(refused.because) > 10 for refused in found.considered)
    outweighed = {refused.remedy: refused.because for refused in verdict("KeyError: 'x'", TIMEOUT).considered}
    assert outweighed["restart_process"].startswith("outweighed: ")


# Untrusted input.


@pytest.mark.parametrize(
    "log",
    [
        ["xid (pci:0000:00 " * 60_000],
        ["RuntimeError: NCCL error: connection reset by peer"] * 100_000,
        ["\x1b[31m\x00\udcff é 🜁 \r\n"] * 50,
        [None, 7, {"a": 1}, ["x"]],
        "one\ntwo",
        7,
    ],
    ids=["line of 1 MB", "100,000 lines", "escape codes and broken text", "no texts", "one text", "a number"],
)
def test_hostile_logs_are_cut_counted_and_judged(log: Any) -> None:
    found = judge(evidence_from_plain({"log_tail": log, "exit_code": 1}), History(), RULES)
    assert found.category
    if isinstance(log, list) and len(log) == 100_000:
        assert found.unread_lines == 98_000
        assert found.category == "peer_cascade"
    elif isinstance(log, list) and len(str(log[0])) > 4096:
        assert found.unread_lines == 1


def test_last_line_of_a_long_log_is_read() -> None:
    noise = ["step 1 | loss 2.0"] * 50_000
    found = verdict(*noise, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert found.category == "gpu_oom"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = [
    "log_tail",
    "kernel_log",
    "node_conditions",
    "metrics",
    "checks",
    "ranks",
    "exit_code",
    "signal",
    "pod_reason",
    "phase",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8), st.text(max_size=60))
def test_any_signals_are_judged_and_never_raise(signals: dict[str, Any], recurrence: str) -> None:
    found = judge(evidence_from_plain(signals), read_recurrence(recurrence), RULES)
    assert found.remedy in set(Remedy)
    assert 0 <= found.confidence <= 1
    json.dumps(found.reason)


def test_order_of_ranks_and_metrics_does_not_matter() -> None:
    ranks = [{"rank": n, "node": f"n{n}", "log_tail": [TIMEOUT if n else "Killed"]} for n in range(6)]
    metrics = {"nodes_affected": 2, "container_memory_frac": 0.4, "world_size": 6}
    first = verdict(TIMEOUT, ranks=ranks, metrics=metrics)
    shuffled = list(ranks)
    random.Random(7).shuffle(shuffled)
    second = verdict(TIMEOUT, ranks=shuffled, metrics=dict(reversed(metrics.items())))
    assert (first.category, first.remedy, first.culprit_rank) == (
        second.category,
        second.remedy,
        second.culprit_rank,
    )


_CAUSES = (
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "ModuleNotFoundError: No module named 'apex'",
    "OSError: [Errno 116] Stale file handle: '/mnt/fs/a'",
    "KeyError: 'lr_schedule'",
    "mylib.errors.LayoutError: rows do not add up",
    "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation",
)
_DRESSES: dict[str, Callable[[str], str]] = {
    "container": lambda line: f"2000-01-04T02:11:09.120411Z stderr F {line}",
    "torchrun": lambda line: f"[default3]:[rank11]: {line}",
    "json": lambda line: json.dumps({"level": "error", "rank": 3, "msg": line}),
    "ray": lambda line: f"(RayTrainWorker pid=1182, ip=192.0.2.5) {line}",
    "box": lambda line: f"\u2502 {line} \u2502",
    "mpi": lambda line: f"[1,3]<stderr>: {line}",
    "colour": lambda line: "\x1b[31m" + line.replace(": ", "\x1b[0m: ", 1),
}


@pytest.mark.parametrize("dress", _DRESSES)
def test_what_launchers_put_around_a_line_changes_no_verdict(dress: str) -> None:
    for line in _CAUSES:
        assert verdict(_DRESSES[dress](line), exit_code=1).remedy is verdict(line, exit_code=1).remedy, line


_ECHOES = (
    "[rank2]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2.",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "torch/distributed/elastic/multiprocessing/api.py:900] Sending process 411 closing signal SIGTERM",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "srun: error: trn-node-04: tasks 16-23: Terminated",
    "slurmstepd: error: *** STEP 91.0 ON trn-node-01 CANCELLED AT 2000-01-10T01:02:03 ***",
)


@pytest.mark.parametrize("line", _CAUSES)
def test_cause_between_echoes_of_launchers_is_found(line: str) -> None:
    alone = verdict(line, exit_code=1)
    among = verdict(*_ECHOES[:3], line, *_ECHOES[3:], exit_code=1)
    assert (among.remedy, among.blame, among.rule) == (alone.remedy, alone.blame, alone.rule)


def test_history_of_a_time_out_outweighs_the_launchers_echo() -> None:
    line = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=39, OpType=ALLREDUCE)"
    again = verdict(line, *_ECHOES, exit_code=134, recurrence="SeqNum=39 on all three attempts, other nodes")
    assert again.remedy is Remedy.FAIL_FAST


_HARMLESS = (
    "TensorBoard logging to /runs/tb",
    "wandb: Run data is saved locally in /tmp/wandb/run-1",
    "Loading checkpoint shards: 100%|##########| 15/15 [00:21<00:00]",
    "successfully saved checkpoint at iteration    4000 to /ckpt",
    "lm loss: 2.1E+00 | number of skipped iterations: 0 | number of nan iterations: 0 |",
    "NCCL INFO Channel 00/02 : 0[0] -> 1[1] via SHM/direct/direct",
    "Building GPT dataset from /data/tok.bin, 12 shards",
    "using image registry.example/team/train:7, quota class batch",
    "UserWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.",
    "FutureWarning: torch.load with weights_only=False uses the default pickle module",
)


@pytest.mark.parametrize(
    "line", [*_CAUSES, "found NaN in local grad norm", "loss is nan", "step 12 | loss 2.0"]
)
def test_harmless_lines_change_no_verdict(line: str) -> None:
    alone = verdict(line, exit_code=1)
    for harmless in _HARMLESS:
        among = verdict(harmless, line, exit_code=1)
        assert (among.remedy, among.blame, among.rule) == (alone.remedy, alone.blame, alone.rule), harmless


def test_warning_about_the_driver_counts() -> None:
    line = (
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
    )
    assert verdict(line, exit_code=1).remedy is Remedy.FAIL_FAST
