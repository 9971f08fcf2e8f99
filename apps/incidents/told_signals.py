"""What is wrong with signals that a person gave: the form of the labelled cases, checked before it is judged.

The judge leaves out what has another shape, as it must for stored evidence. Whoever asked for a verdict has to learn
of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

CHECK_RESULTS = ("pass", "fail", "timeout")
PHASES = ("bootcheck", "run", "troubleshoot")

#: More than so many are not looked for: whoever sent them has another form in mind.
MAX_PROBLEMS = 200

Problems = dict[str, str]
Kind = tuple[str, Callable[[Any], bool]]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _is_lines(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(line, str) for line in value)
    )


_TEXT: Kind = ("a text", lambda value: isinstance(value, str))
_LINES: Kind = ("a list of texts", _is_lines)
_EXIT_CODE: Kind = (
    "a whole number such as 137",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**32,
)
_RESULT: Kind = (
    f"one of {', '.join(CHECK_RESULTS)}",
    lambda value: isinstance(value, str) and value.lower() in CHECK_RESULTS,
)
_METRIC: Kind = (
    "a number, true, false or a text",
    lambda value: isinstance(value, bool | str) or _is_number(value),
)

_SIGNALS: Mapping[str, Kind] = {
    "exit_code": _EXIT_CODE,
    "signal": ("a text such as SIGKILL", _TEXT[1]),
    "pod_reason": _TEXT,
    "node_conditions": _LINES,
    "kernel_log": _LINES,
    "metrics": ("an object of names and numbers", lambda value: isinstance(value, dict)),
    "checks": ("an object of names and results", lambda value: isinstance(value, dict)),
    "phase": (
        f"one of {', '.join(PHASES)}",
        lambda value: isinstance(value, str) and value.lower() in PHASES,
    ),
    "ranks": ("a list of objects", lambda value: isinstance(value, list)),
    "recurrence": _TEXT,
}
_RANK: Mapping[str, Kind] = {
    "rank": ("a whole number", _EXIT_CODE[1]),
    "node": _TEXT,
    "log_tail": _LINES,
    "exit_code": _EXIT_CODE,
    "pod_reason": _TEXT,
    "first_error_offset_s": ("a number of seconds", _is_number),
}


def problems_of(signals: Mapping[str, Any], *, has_log: bool = False) -> Problems:
    """What is wrong, by path of the key (``checks.gpu``, ``ranks.0.node``), each with what to do; empty = nothing.

    A known key may be null: then it is not told. ``has_log``: the log is among the signals, as in a labelled case.
    """
    problems: Problems = {}
    if "log_tail" in signals and not has_log:
        problems["log_tail"] = "the log is told apart from its signals; leave it out here."
        signals = {key: value for key, value in signals.items() if key != "log_tail"}
    _check(signals, {**_SIGNALS, "log_tail": _LINES} if has_log else _SIGNALS, "", problems)
    for name, kind in (("checks", _RESULT), ("metrics", _METRIC)):
        told = signals.get(name)
        if isinstance(told, dict):
            _check(told, dict.fromkeys(told, kind), f"{name}.", problems)
    ranks = signals.get("ranks")
    for number, rank in enumerate(ranks if isinstance(ranks, list) else ()):
        if len(problems) >= MAX_PROBLEMS:
            break
        if isinstance(rank, dict):
            _check(rank, _RANK, f"ranks.{number}.", problems)
        else:
            problems[f"ranks.{number}"] = _not_that(rank, "an object with rank, node, log_tail")
    return problems


def _check(told: Mapping[str, Any], known: Mapping[str, Kind], path: str, problems: Problems) -> None:
    for key, value in told.items():
        if len(problems) >= MAX_PROBLEMS:
            return
        if key not in known:
            near = get_close_matches(str(key)[:100], known, n=1)
            advice = f"Was {near[0]} meant?" if near else f"Known are {', '.join(known)}."
            problems[f"{path}{str(key)[:100]}"] = f"no rule reads a key of this name. {advice}"
        elif value is not None and not known[key][1](value):
            problems[f"{path}{str(key)[:100]}"] = _not_that(value, known[key][0])


def _not_that(value: Any, wanted: str) -> str:
    return f"{json.dumps(value, default=str)[:80]} is not {wanted}."
