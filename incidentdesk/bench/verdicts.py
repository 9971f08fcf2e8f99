"""Verdicts a second on one core over the labelled cases, and what hostile logs cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.builtin import builtin_rules
from recovery.verdict import judge

CASES = Path(__file__).parents[2] / "tests" / "cases" / "failures.jsonl"
BAR_PER_SECOND = 1000
ROUNDS = 5

HOSTILE: Mapping[str, list[str]] = {
    "a line of 1 MB": ["xid (pci:0000:00 " * 62_500],
    "100,000 lines": ["RuntimeError: NCCL error: connection reset by peer"] * 100_000,
    "2,000 lines of 4 KiB, all nearly matching": ["xid (pci:0000:5e:00): 7" * 178] * 2_000,
    "escape codes and broken text": ["\x1b[31m\udcff\x00 é"] * 2_000,
}


def measure(say: Callable[[str], None] = print) -> int:
    """Print the figures; 1 when the bar was missed. Process time of this process is what counts."""
    begin = time.process_time()
    rules = builtin_rules()
    say(
        f"rules               {len(rules.rules)}, read in {time.process_time() - begin:.2f} s, once a process"
    )
    cases = [json.loads(line)["signals"] for line in CASES.read_text(encoding="utf-8").splitlines()]
    best = 0.0
    for _ in range(ROUNDS):
        begin = time.process_time()
        for signals in cases:
            _judge(signals)
        best = max(best, len(cases) / (time.process_time() - begin))
    say(
        f"verdicts            {best:,.0f} a second on one core over {len(cases)} cases (bar {BAR_PER_SECOND:,})"
    )
    for name, log in HOSTILE.items():
        begin = time.process_time()
        verdict = _judge({"log_tail": log, "exit_code": 1})
        seconds = time.process_time() - begin
        unread = f"{verdict.unread_lines} lines and {verdict.unread_steps} tries not read"
        say(f"{name:<42} {seconds * 1000:7.1f} ms, {unread}")
    return 0 if best >= BAR_PER_SECOND else 1


def _judge(signals: Mapping[str, Any]) -> Any:
    recurrence = signals.get("recurrence")
    history = read_recurrence(recurrence if isinstance(recurrence, str) else "")
    return judge(evidence_from_plain(signals), history, builtin_rules())
