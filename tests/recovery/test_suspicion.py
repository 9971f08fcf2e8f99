"""Numbers and lines that name no cause are suspicion: no machine is taken out on them alone."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.builtin import builtin_rules
from recovery.rules.loading import SUSPICION
from recovery.rules.rule import Remedy
from recovery.verdict import Verdict, judge

EIO = "OSError: [Errno 5] Input/output error: "


def verdict(recurrence: str = "", **signals: Any) -> Verdict:
    return judge(evidence_from_plain(signals), read_recurrence(recurrence), builtin_rules())


@pytest.mark.parametrize(
    ("signals", "rule", "remedy"),
    [
        ({"metrics": {"heartbeat_age_s": 600}}, "pod.silent-machine", "restart_container"),
        ({"exit_code": 1, "metrics": {"disk_used_frac": 0.99}}, "disk.full-by-number", "restart_container"),
        ({"exit_code": 1, "metrics": {"gpu_temp_c": 98}}, "numbers.hot-ended", "evict_at_checkpoint"),
        ({"exit_code": 1, "log_tail": ["make: Clock skew detected."]}, "clock.told", "restart_container"),
        (
            {"exit_code": 1, "log_tail": [f"{EIO}'/data/x'", "see /var/log/a"]},
            "storage.io-error",
            "backoff_shared",
        ),
    ],
)
def test_suspicion_alone_isolates_no_machine(signals: dict[str, Any], rule: str, remedy: str) -> None:
    found = verdict(**signals)
    assert (found.rule, str(found.remedy)) == (rule, remedy)


@pytest.mark.parametrize(
    "signals",
    [
        {"metrics": {"heartbeat_age_s": 600}},
        {"exit_code": 1, "metrics": {"disk_used_frac": 0.99}},
        {"exit_code": 1, "log_tail": ["make: Clock skew detected."]},
        {"exit_code": 1, "log_tail": [f"{EIO}'/data/x'"]},
    ],
)
def test_suspicion_that_comes_again_on_one_machine_isolates_it(signals: dict[str, Any]) -> None:
    assert verdict("second time on this node", **signals).remedy is Remedy.ISOLATE_NODE


@pytest.mark.parametrize(
    "signals",
    [
        {"node_conditions": ["NTPProblem=True"]},
        {"exit_code": 1, "log_tail": [f"{EIO}'/nvme0/cache/a'"]},
        {"exit_code": 1, "checks": {"runtime": "fail"}, "metrics": {"host_nvidia_smi_ok": 0}},
    ],
)
def test_what_names_the_machine_isolates_it_at_once(signals: dict[str, Any]) -> None:
    found = verdict(**signals)
    assert (found.remedy, found.evidence_class in SUSPICION) == (Remedy.ISOLATE_NODE, False)
