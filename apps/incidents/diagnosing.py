"""Verdicts in the words of the labelled cases, for `manage.py diagnose`. Source: the cases' README."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from apps.incidents.redact import for_terminal
from apps.incidents.told_signals import problems_of
from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.categories import NEAREST
from recovery.rules.rule import RuleSet
from recovery.verdict import Verdict, judge

MAX_CASE = 16_000_000
#: Kinds of what was not understood that are told one by one, and how many are told apart at all.
MAX_TOLD = 20
MAX_KINDS = 1_000

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class WrongCase(ValueError):
    """A line that is no case; the text says what is wrong and what is expected."""


def case_of(line: str) -> tuple[str | int, Mapping[str, Any]]:
    """Id, as it was given, and signals of one input line.

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
    case_id = case.get("id")
    if not isinstance(case_id, str | int) or isinstance(case_id, bool):
        raise WrongCase('no "id" in it that is a text or a whole number')
    return case_id, signals


class NotUnderstood:
    """What of the signals of many cases was not understood: each kind told once, the rest counted.

    A kind is the place of the key (whichever rank it is of) and what is wrong there.
    """

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._told = 0
        self._more = 0

    def of(self, signals: Mapping[str, Any]) -> Iterator[str]:
        """Sentences on what is new in these signals."""
        for path, sentence in problems_of(signals, has_log=True).items():
            kind = _NUMBER.sub(".N", path)
            is_new = kind not in self._kinds and len(self._kinds) < MAX_KINDS
            if not is_new or self._told >= MAX_TOLD:
                self._more += 1
            else:
                self._told += 1
                yield f"{for_terminal(path)}: {for_terminal(sentence)} The case is judged without it."
            if is_new:
                self._kinds.add(kind)

    @property
    def more(self) -> int:
        """How many were not told."""
        return self._more


def verdict_on(signals: Mapping[str, Any], rules: RuleSet) -> Verdict:
    """Judge one case by its signals alone."""
    recurrence = signals.get("recurrence")
    history = read_recurrence(recurrence if isinstance(recurrence, str) else "")
    return judge(evidence_from_plain(signals), history, rules)


def prediction(case_id: str | int, verdict: Verdict) -> dict[str, Any]:
    """The verdict in the words of the labelled cases: the nearest of their categories."""
    return {
        "id": case_id,
        "category": NEAREST.get(verdict.category, verdict.category),
        "action": str(verdict.remedy),
        "blame": str(verdict.blame),
        "culprit_rank": verdict.culprit_rank,
    }


def explanation(case_id: str | int, verdict: Verdict) -> str:
    """The verdict with its reasons, a few lines for people at a terminal: without secrets, and without its codes."""
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
    return "\n".join(map(for_terminal, lines))
