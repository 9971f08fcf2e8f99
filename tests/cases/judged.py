"""The labelled cases with the verdicts on them, judged once a process however many tests ask."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from apps.incidents.diagnosing import verdict_on
from recovery.rules.builtin import builtin_rules
from recovery.verdict import Verdict

FILES = (
    "failures.jsonl",
    "further.jsonl",
    "second.jsonl",
    "machines.jsonl",
    "programs.jsonl",
    "principles.jsonl",
    "blind.jsonl",
    "blind_second.jsonl",
)


@cache
def cases(name: str) -> tuple[dict[str, Any], ...]:
    """The cases of a file, as it has them."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


@cache
def verdicts(name: str) -> tuple[Verdict, ...]:
    """The verdicts on a file's cases, in their order, by the built-in rules."""
    rules = builtin_rules()
    return tuple(verdict_on(case["signals"], rules) for case in cases(name))
