"""Rules tried on a pasted log: which hit which line, and what the verdict would be. Nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apps.incidents.redact import clean_body, clean_lines, for_terminal
from apps.incidents.rules import current_rules, rules_from
from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.rules.categories import CATEGORIES
from recovery.verdict import Verdict, all_hits, judge

MAX_HITS = 200


def try_rules(
    lines: Sequence[str], signals: Mapping[str, Any], rules_text: str = "", *, rules_name: str = "your rules"
) -> dict[str, Any]:
    """Hits, strongest first, and the verdict on a log with whatever else is told beside it.

    Args:
        lines: The log's lines, oldest first; secrets are taken out before anything of them is shown.
        signals: Other signals in the form of the labelled cases (checks, metrics, exit_code, …), checked by
            ``told_signals.problems_of``: what has another shape is left out here.
        rules_text: A rule file over the rules in force.
        rules_name: What its rules, and errors in it, are told by: its path, where it has one.
    Raises:
        RuleFileError: The rule file is wrong; it says where and what to do.
    """
    rules = rules_from(rules_text, base=current_rules(), name=rules_name) if rules_text else current_rules()
    evidence = evidence_from_plain({**clean_body(dict(signals)), "log_tail": clean_lines(lines)})
    recurrence = signals.get("recurrence")
    history = read_recurrence(recurrence if isinstance(recurrence, str) else "")
    hits, seen = all_hits(evidence, history, rules)
    return {
        "hits": [
            {
                "rule": hit.rule.id,
                "file": hit.rule.file,
                "class": hit.rule.evidence_class.name.lower(),
                "specificity": hit.rule.specificity,
                "category": hit.category,
                "remedy": str(hit.remedy),
                "blame": str(hit.blame),
                "reason": hit.reason,
                "lines": [line.text for line in hit.lines[:5]],
            }
            for hit in hits[:MAX_HITS]
        ],
        "verdict": plain_verdict(judge(evidence, history, rules)),
        "rules": {"count": len(rules.rules), "digest": rules.digest},
        "read_lines": len(evidence.log),
        "unread_lines": seen.unread_lines + max(0, len(lines) - len(evidence.log)),
        "unread_steps": seen.unread_steps,
    }


def plain_verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain JSON."""
    return {
        "category": verdict.category,
        "means": verdict.means or CATEGORIES[verdict.category],
        "remedy": str(verdict.remedy),
        "blame": str(verdict.blame),
        "reason": verdict.reason,
        "rule": verdict.rule,
        "confidence": verdict.confidence,
        "culprit_rank": verdict.culprit_rank,
        "culprit_node": verdict.culprit_node,
        "way_back": verdict.exit,
        "evidence": [
            {"text": each.text, "rule": each.rule, "weight": each.weight} for each in verdict.evidence
        ],
        "contradictions": [
            {"text": each.text, "rule": each.rule, "weight": each.weight} for each in verdict.contradictions
        ],
        "refused": [{"remedy": str(each.remedy), "because": each.because} for each in verdict.considered],
    }


def as_text(tried: Mapping[str, Any]) -> str:
    """The same for a terminal, which obeys nothing of it."""
    verdict = tried["verdict"]
    lines = []
    for hit in tried["hits"]:
        lines.append(
            f"{hit['rule']:<28} {hit['class']:<8} {hit['category']}, {hit['remedy']}: {for_terminal(hit['reason'])}"
        )
        lines += [f"    {for_terminal(line)[:160]}" for line in hit["lines"]]
    if not lines:
        lines.append("No rule hits.")
    count = tried["read_lines"]
    empty = "" if count else ": no log was given, its signals alone are judged"
    lines += [
        "",
        f"{count} line{'' if count == 1 else 's'} read{empty}",
        f"Verdict: {verdict['category']} ({for_terminal(verdict['means'])})",
        f"  remedy {verdict['remedy']}, blame {verdict['blame']}",
        f"  confidence {verdict['confidence']:.2f}, by {verdict['rule']}",
        f"  {for_terminal(verdict['reason'])}",
    ]
    lines += [
        f"  against: {for_terminal(each['text'])[:160]} ({each['rule']})"
        for each in verdict["contradictions"]
    ]
    lines += [f"  not {each['remedy']}: {for_terminal(each['because'])}" for each in verdict["refused"]]
    if verdict["way_back"]:
        lines.append(f"  way back: {for_terminal(verdict['way_back'])}")
    if tried["unread_lines"] or tried["unread_steps"]:
        lines.append(f"  not read: {tried['unread_lines']} lines, {tried['unread_steps']} tries of patterns")
    return "\n".join(lines)
