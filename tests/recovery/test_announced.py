"""Numbers and paths that programs announce."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.announced import facts_of
from recovery.observed import evidence_from_plain

LATE = "DistStoreError: timed out after 601 seconds waiting for clients. {} clients joined."


@pytest.mark.parametrize(
    ("log", "metrics", "expected"),
    [
        ([LATE.format("2/4")], {"workers": 2, "world_size": 4}, {"join.short"}),
        ([LATE.format("4/8")], {"pods_expected": 4, "pods_running": 4}, {"join.short", "join.all_started"}),
        ([LATE.format("3/4")], {"pods_expected": 4, "pods_running": 3}, set()),
        ([LATE.format("3/4")], {"workers": 4, "world_size": 4}, set()),
        (["waiting for 16 hosts", "barrier timed out, 8 hosts connected"], {"workers": 8}, {"join.short"}),
        (["step 9 loss 2.0"], {"workers": 2, "world_size": 4}, set()),
        (["coordinator_address=127.0.0.1:1234, num_processes=8", "barrier timed out"], {}, {"join.loopback"}),
        (["coordinator_address=127.0.0.1:1234, num_processes=1", "barrier timed out"], {}, set()),
        (["expected 8 gpus, got 7"], {}, {"count.short", "count.few_lost"}),
        (["expected 8 gpus per node, got 4"], {}, {"count.short", "count.many_less"}),
    ],
)
def test_numbers(log: list[str], metrics: dict[str, float], expected: set[str]) -> None:
    assert set(facts_of(evidence_from_plain({"log_tail": log, "metrics": metrics}))) == expected


def ranks(path: str, other: str) -> dict[str, Any]:
    return {
        "ranks": [
            {"rank": 0, "node": "a", "log_tail": [f"loaded {path}"]},
            {
                "rank": 8,
                "node": other,
                "log_tail": [f"FileNotFoundError: No such file or directory: '{path}/x'"],
            },
        ]
    }


def test_a_path_of_its_own_disk_that_another_machine_misses_is_not_shared() -> None:
    assert "path.one_host" in facts_of(evidence_from_plain(ranks("/tmp/run/ckpt", "b")))


def test_a_shared_path_says_nothing_about_directories() -> None:
    assert "path.one_host" not in facts_of(evidence_from_plain(ranks("/lustre/run/ckpt", "b")))


def test_two_ranks_of_one_machine_say_nothing_about_directories() -> None:
    assert "path.one_host" not in facts_of(evidence_from_plain(ranks("/tmp/run/ckpt", "a")))
