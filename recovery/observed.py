"""What was seen of one failure, in one record, whatever told it. Source: DOMAIN section 7, cases/README.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

MAX_LINE = 4096
MAX_LINES = 2000
MAX_RANKS = 4096
MAX_METRICS = 1000

_NOTHING: Mapping[str, Any] = MappingProxyType({})


_CONDITION = re.compile(r"([A-Za-z][\w./-]{0,100}) ?= ?(True|False)\b")
#: Types of conditions that are well when they are true; all others say that something is wrong.
_GOOD_TYPE = re.compile(
    r"(?<!un)(?<!in)(?<!not)(?<!non)(?:ready|healthy|health|available|initialized|schedulable|podscheduled|responding|running|online|connected"
    r"|reachable|enabled|synchronized|synced|installed|present|mounted|loaded|alive|active|working|ok|up)$",
    re.IGNORECASE,
)
#: Reasons that settle it where the type does not say whether it is well when true.
_ILL_REASON = re.compile(r"[: ]{1,4}\w*?(?:nothealthy|(?<!no)(?<!not)unhealthy)\b", re.IGNORECASE)


def is_well(condition: str) -> bool:
    """Whether a node's condition, as "Type=Status: reason", says that all is well. An event never does.

    Source: conventions of Kubernetes node conditions and of node-problem-detector.
    """
    told = condition.strip()
    found = _CONDITION.match(told)
    if found is None or _ILL_REASON.match(told, found.end()):
        return False
    return (_GOOD_TYPE.search(found[1]) is not None) is (found[2] == "True")


@dataclass(frozen=True, slots=True)
class RankView:
    """What one rank reported. ``first_error_seconds``: its first error after the attempt's first, None = untold."""

    rank: int
    node: str = ""
    log: tuple[str, ...] = ()
    exit_code: int | None = None
    pod_reason: str = ""
    first_error_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One failure as seen: the reporter's end and lines, its node, checks, numbers, and what other ranks say.

    ``metrics`` hold numbers, and texts where a source gives words; an absent key was not measured. ``checks``:
    name -> pass, fail or timeout. ``unread_lines`` counts lines that were left out, or
    cut, before they came here.
    """

    log: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()  # "Type=Status: reason" or "Event: Name"
    exit_code: int | None = None
    signal: str = ""
    pod_reason: str = ""
    metrics: Mapping[str, float | str] = field(default_factory=lambda: _NOTHING)
    checks: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    phase: str = ""
    ranks: tuple[RankView, ...] = ()
    unread_lines: int = 0


def evidence_from_plain(signals: Mapping[str, Any]) -> Evidence:
    """Evidence out of plain JSON in the form of the labelled cases; what has another shape is left out."""
    log, cut_log = _lines(signals.get("log_tail"))
    kernel, cut_kernel = _lines(signals.get("kernel_log"))
    conditions, cut_conditions = _lines(signals.get("node_conditions"))
    checks = signals.get("checks")
    metrics = signals.get("metrics")
    ranks = signals.get("ranks")
    return Evidence(
        log=log,
        kernel=kernel,
        conditions=conditions,
        exit_code=_whole(signals.get("exit_code")),
        signal=_text(signals.get("signal")).upper(),
        pod_reason=_text(signals.get("pod_reason")),
        metrics=_metrics(metrics) if isinstance(metrics, Mapping) else _NOTHING,
        checks={str(name)[:64]: _text(result).lower() for name, result in list(checks.items())[:64]}
        if isinstance(checks, Mapping)
        else _NOTHING,
        phase=_text(signals.get("phase")).lower(),
        ranks=tuple(_rank(n, rank) for n, rank in enumerate(ranks[:MAX_RANKS]) if isinstance(rank, Mapping))
        if isinstance(ranks, list | tuple)
        else (),
        unread_lines=cut_log + cut_kernel + cut_conditions,
    )


def _rank(n: int, told: Mapping[str, Any]) -> RankView:
    number = _whole(told.get("rank"))
    return RankView(
        rank=n if number is None else number,
        node=_text(told.get("node")),
        log=_lines(told.get("log_tail"))[0],
        exit_code=_whole(told.get("exit_code")),
        pod_reason=_text(told.get("pod_reason")),
        first_error_seconds=_number(told.get("first_error_offset_s")),
    )


def _lines(value: Any) -> tuple[tuple[str, ...], int]:
    """Lines cut to size, head and tail kept; how many were left out or not read to their end."""
    if isinstance(value, str):
        value = value[: MAX_LINES * MAX_LINE].split("\n")
    if not isinstance(value, list | tuple):
        return (), 0
    cut = 0
    if len(value) > MAX_LINES:
        cut = len(value) - MAX_LINES
        value = [*value[: MAX_LINES // 2], *value[-(MAX_LINES - MAX_LINES // 2) :]]
    lines = [str(line) for line in value]
    cut += sum(len(line) > MAX_LINE for line in lines)
    return tuple(line[:MAX_LINE] for line in lines), cut


def _metrics(told: Mapping[str, Any]) -> dict[str, float | str]:
    metrics: dict[str, float | str] = {}
    for name, value in list(told.items())[:MAX_METRICS]:
        number = float(value) if isinstance(value, bool) else _number(value)
        if number is not None:
            metrics[str(name)[:100]] = number
        elif isinstance(value, str):
            metrics[str(name)[:100]] = value[:200].lower()
    return metrics


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -1e300 < value < 1e300 else None  # none of it holds for what is no number


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**32 else None


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""
