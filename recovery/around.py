"""What else is in trouble in the cluster while a job fails. Source: DOMAIN section 7, "across the cluster".

Failures of different jobs are compared by one word that holds nothing of anybody's: what is told across jobs, and
so across tenants, are counts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from recovery.errors import BadInput
from recovery.records import WorldView
from recovery.serialize import from_plain, to_plain
from recovery.verdict import Verdict

#: Below so many machines a share says nothing about many nodes at once: one of three is one node.
MIN_NOT_READY = 3
#: A view of the cluster that is later than this is kept with a failure.
LATE_SECONDS = 30.0
#: And a call that takes longer. Source: Kubernetes' service level for calls about one object (99th percentile).
SLOW_CALL_SECONDS = 1.0
#: Kinds of failures of which counts are kept with a failure.
MAX_KINDS = 20

#: Findings that speak of what jobs share. A program's own error, and a machine's, are nobody else's.
_SHARED = frozenset({"shared_network", "shared_storage", "image_registry", "peer_cascade"})
#: Findings that explain nothing: these are alike only in their words.
_UNEXPLAINED = frozenset({"unknown", "transient_unknown"})

_TELLS_OF_ERROR = re.compile(
    r"error|exception|fail|fatal|abort|panic|timed? ?out|refused|reset|unreachable|unavailable|denied|lost"
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_MAX_LINE = 1000
_MAX_WORDS = 16


def likeness(verdict: Verdict, log: Sequence[str]) -> str:
    """What a failure is compared by with those of other jobs; "" for one that is this job's or machine's own.

    Args:
        verdict: What it was found to be, without a look at other jobs.
        log: The culprit's last lines.
    Returns:
        The category of a shared dependency. For what nothing explains, a digest of the words of its last error
        line without names, numbers and paths, which differ between jobs; a silent end is like no other.
    """
    if verdict.category in _SHARED:
        return verdict.category
    if verdict.category not in _UNEXPLAINED:
        return ""
    words = _words(log)
    return f"words/{hashlib.sha256(words.encode()).hexdigest()[:16]}" if words else ""


def _words(log: Sequence[str]) -> str:
    """The words of the last line that tells of an error; "" where there are fewer than two."""
    for line in reversed(log):
        small = line[:_MAX_LINE].lower()
        if not _TELLS_OF_ERROR.search(small):
            continue
        tokens = _QUOTED.sub(" ", small).split()
        words = [token.strip(".,:;()[]{}<>=!-") for token in tokens if not any(c in "/\\=@_" for c in token)]
        kept = [word for word in words if len(word) > 2 and word.replace("-", "").replace(".", "").isalpha()]
        return " ".join(kept[:_MAX_WORDS]) if len(kept) > 1 else ""
    return ""


def numbers(world: WorldView | None, alike: str = "") -> dict[str, Any]:
    """What is around as metrics, for the conditions of rules; {} where nothing is known.

    Args:
        alike: The failure's own ``likeness``: without it nothing is said of other jobs.
    """
    if world is None:
        return {}
    found: dict[str, Any] = {}
    if world.watch_lag_seconds is not None:
        found["watch_lag_seconds"] = world.watch_lag_seconds
    if world.watch_silent_seconds is not None:
        found["watch_silent_seconds"] = world.watch_silent_seconds
    if world.api_call_seconds is not None:
        found["api_call_seconds"] = world.api_call_seconds
    if world.not_ready_machines >= MIN_NOT_READY:
        found["not_ready_share"] = world.not_ready_share
    others = world.failures_in_window.get(alike, 0) if alike else 0
    if others:
        found["failing_alike"] = alike
        found["jobs_failing_alike"] = others + 1
        found["alike_span_seconds"] = world.failures_span_seconds.get(alike, 0.0)
    return found


def worst(now: WorldView | None, before: WorldView | None) -> WorldView | None:
    """The world while one failure is judged, at its worst: what is over by the second look was there all the same."""
    if now is None or before is None:
        return now or before
    many = max(now, before, key=lambda each: (each.not_ready_machines, each.not_ready_share))
    counts, spans = dict(before.failures_in_window), dict(before.failures_span_seconds)
    for alike, count in now.failures_in_window.items():
        if count >= counts.get(alike, 0):
            counts[alike] = count
            spans[alike] = now.failures_span_seconds.get(alike, 0.0)
    kept = sorted(counts, key=lambda alike: (-counts[alike], alike))[:MAX_KINDS]
    return replace(
        now,
        watch_lag_seconds=_greater(now.watch_lag_seconds, before.watch_lag_seconds),
        watch_silent_seconds=_greater(now.watch_silent_seconds, before.watch_silent_seconds),
        api_call_seconds=_greater(now.api_call_seconds, before.api_call_seconds),
        not_ready_machines=many.not_ready_machines,
        not_ready_share=many.not_ready_share,
        failures_in_window={alike: counts[alike] for alike in sorted(kept)},
        failures_span_seconds={alike: spans.get(alike, 0.0) for alike in sorted(kept)},
    )


def _greater(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


def as_kept(world: WorldView | None, attempt: int) -> dict[str, Any] | None:
    """The world of a failed attempt, as its incident keeps it: plain JSON. None where nothing is in trouble."""
    if world is None:
        return None
    is_late = (
        (world.watch_lag_seconds or 0.0) >= LATE_SECONDS
        or (world.watch_silent_seconds or 0.0) >= LATE_SECONDS
        or (world.api_call_seconds or 0.0) >= SLOW_CALL_SECONDS
    )
    if not world.failures_in_window and world.not_ready_machines < MIN_NOT_READY and not is_late:
        return None
    return {"attempt": attempt, "world": to_plain(world)}


def from_kept(kept: Any, attempt: int) -> WorldView | None:
    """What an incident kept of this attempt; None where that is nothing, or cannot be read."""
    if not isinstance(kept, Mapping) or kept.get("attempt") != attempt:
        return None
    try:
        return from_plain(WorldView, kept.get("world"))
    except BadInput:
        return None
