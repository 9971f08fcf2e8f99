"""What a job's annotations say of an elastic framework's ways and limits. Pure. Source: DOMAIN sections 10 and 12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recovery.decide import ElasticTerms

TRUE_WORDS = frozenset({"true", "yes", "1", "on"})
#: Whole numbers: annotation -> (least, most).
_NUMBERS: Mapping[str, tuple[int, int]] = {
    "elastic-workers-per-slice": (1, 100_000),
    "elastic-min-slices": (1, 100_000),
    "elastic-head": (0, 100_000),
    "elastic-max-retries": (0, 1_000_000),
    "elastic-timeout-seconds": (0, 604_800),
    "elastic-batch-per-slice": (1, 1_000_000_000),
}


def read_elastic(
    annotations: Mapping[str, str],
) -> tuple[ElasticTerms | None, tuple[tuple[str, str], ...]]:
    """The terms (names without our prefix), None for a job that is not called elastic; and mistakes as
    (annotation, sentence). A value that cannot be used is as if it were not there.
    """
    if not _is_true(annotations.get("elastic", "")):
        return None, ()
    mistakes = []
    told: dict[str, int] = {}
    for name, (least, most) in _NUMBERS.items():
        text = annotations.get(name, "").strip()
        if not text:
            continue
        if len(text) < 20 and text.isascii() and text.isdigit() and least <= int(text) <= most:
            told[name.removeprefix("elastic-").replace("-", "_")] = int(text)
        else:
            mistakes.append((name, f"{text[:40]!r} is no number from {least} to {most}; it is left out"))
    timeout = told.pop("timeout_seconds", None)
    known: dict[str, Any] = {**told, **({"timeout_seconds": float(timeout)} if timeout is not None else {})}
    terms = ElasticTerms(**known, can_reshard=_is_true(annotations.get("elastic-reshard", "")))
    return terms, tuple(mistakes)


def elastic_limits(annotations: Mapping[str, str], max_retry: int) -> list[dict[str, Any]]:
    """The framework's own limits among those that lie around ours, in the form of ``limits.nested_limits``."""
    terms, mistakes = read_elastic(annotations)
    if terms is None:
        return []
    few = ""
    if terms.max_retries < max_retry + 1:
        few = (
            f"elastic retries {terms.max_retries} are less than {max_retry + 1} (max retry {max_retry} + 1): "
            "the framework gives the job up before the desk does"
        )
    return [
        {"name": "elastic retries", "used": None, "limit": terms.max_retries, "warning": few},
        {"name": "elastic time-out, s", "used": None, "limit": round(terms.timeout_seconds), "warning": ""},
        *({"name": name, "used": None, "limit": None, "warning": text} for name, text in mistakes),
    ]


def _is_true(text: str) -> bool:
    return text.strip().lower() in TRUE_WORDS
