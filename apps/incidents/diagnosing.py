"""Verdicts in the words of the labelled cases, for `manage.py diagnose`. Source: the cases' README."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.categories import NEAREST
from recovery.rules.rule import RuleSet
from recovery.verdict import Verdict, judge

MAX_CASE = 16_000_000


class WrongCase(ValueError):
    """A line that is no case; the text says what is wrong and what is expected."""


def case_of(line: str) -> tuple[str, Mapping[str, Any]]:
    """Id and signals of one input line.

    Raises:
        WrongCase: It is no JSON object with an id and an object ``signals``.
    """
    if len(line) > MAX_CASE:
        raise WrongCase(f"longer than {MAX_CASE} characters")
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WrongCase(f"not JSON: {error}") from error
    if not isinstance(case, dict):
        raise WrongCase("not a JSON object with id and signals")
    signals = case.get("signals")
    if not isinstance(signals, dict):
        raise WrongCase('no object "signals" in it')
    if not isinstance(case.get("id"), str | int):
        raise WrongCase('no text "id" in it')
    return str(case["id"]), signals


def verdict_on(signals: Mapping[str, Any], rules: RuleSet) -> Verdict:
    """Judge one case by its signals alone."""
    recurrence = signals.get("recurrence")
    history = read_recurrence(recurrence if isinstance(recurrence, str) else "")
    return judge(evidence_from_plain(signals), history, rules)


def prediction(case_id: str, verdict: Verdict) -> dict[str, Any]:
    """The verdict in the words of the labelled cases: the nearest of their categories."""
    return {
        "id": case_id,
        "category": NEAREST.get(verdict.category, verdict.category),
        "action": str(verdict.remedy),
        "blame": str(verdict.blame),
        "culprit_rank": verdict.culprit_rank,
    }


def explanation(case_id: str, verdict: Verdict) -> str:
    """The verdict with its reasons, a few lines for people."""
    lines = [
        f"{case_id}: {verdict.category}, {verdict.remedy}, blame {verdict.blame}",
        f"  sure      {verdict.confidence:.2f} by {verdict.rule}",
        f"  because   {verdict.reason}",
    ]
    lines += [f"  evidence  {cited.text} ({cited.rule}, {cited.weight:.2f})" for cited in verdict.evidence]
    lines += [
        f"  against   {cited.text} ({cited.rule}, {cited.weight:.2f})" for cited in verdict.contradictions
    ]
    lines += [f"  not       {refused.remedy}: {refused.because}" for refused in verdict.considered]
    if verdict.exit:
        lines.append(f"  way back  {verdict.exit}")
    if verdict.unread_lines or verdict.unread_steps:
        lines.append(f"  unread    {verdict.unread_lines} lines, {verdict.unread_steps} tries of patterns")
    return "\n".join(lines)
