"""Evidence -> who failed first, and how sure we are. Source: DOMAIN section 7, "across ranks".

Thin for now: ends, quick checks and order among ranks. It says "unknown" where that is all there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recovery.comparisons import SLOW
from recovery.evidence import Fact, Role
from recovery.rules import ends

MAX_FACTS = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """What we conclude. ``culprit`` names worker and node; ``confidence`` in [0, 1].

    ``support`` holds the facts that led here, strongest first, ``contradictions`` those against it.
    """

    category: str = "unknown"
    reason: str = "nothing is known yet"
    rule: str = "none"
    confidence: float = 0.0
    worker: str = ""
    node: str = ""
    support: tuple[Fact, ...] = ()
    contradictions: tuple[Fact, ...] = ()
    failed_checks: tuple[Fact, ...] = ()

    @property
    def culprit(self) -> str:
        """Worker and node in words, "" when unknown."""
        return " on ".join(part for part in (self.worker, self.node) if part)


def judge(facts: Iterable[Fact], *, uncertainty_seconds: float = 0.5) -> Verdict:
    """Say what failed, where, and how sure we are.

    The culprit failed first: among causes, and only if there are none among symptoms, the earliest; within
    the uncertainty of clocks a death by signal or device error goes before errors of connections.

    Args:
        facts: What was seen in one attempt, in any order.
        uncertainty_seconds: Ends closer than this are at the same time.
    Returns:
        The verdict; unknown is a category, never an exception.
    """
    known = sorted(set(facts), key=lambda fact: (fact.at, fact.order, fact.signal, fact.text))
    failed = tuple(fact for fact in known if fact.role is Role.CHECK and fact.category == "check_fail")
    passed = tuple(fact for fact in known if fact.role is Role.CHECK and fact.category == "check_pass")
    causes = [fact for fact in known if fact.role is Role.CAUSE]
    symptoms = [fact for fact in known if fact.role is Role.SYMPTOM]
    # A slow machine makes no process end: it is the finding only as long as nothing has ended.
    candidates = [fact for fact in causes if fact.category != SLOW] or ([] if symptoms else causes)
    if not candidates and not symptoms:
        return Verdict(failed_checks=failed)
    first = _first(candidates or symptoms, uncertainty_seconds)
    against_culprit = [fact for fact in failed if fact.worker == first.worker]
    confidence = first.weight
    if not candidates:
        confidence = ends.SYMPTOM.weight  # the one who died may never have reported
    elif against_culprit:
        confidence = max(confidence, *(fact.weight for fact in against_culprit))
    support = [first, *against_culprit, *(fact for fact in symptoms if fact is not first)]
    contradictions = [fact for fact in candidates if fact.worker != first.worker and fact.at < first.at] + [
        fact for fact in passed if first.rule == ends.CHECK_FAILED.id and fact.worker == first.worker
    ]
    return Verdict(
        category=first.category if candidates else "unknown",
        reason=first.text,
        rule=first.rule,
        confidence=round(confidence, 2),
        worker=first.worker if candidates else "",
        node=first.node if candidates else "",
        support=tuple(support[:MAX_FACTS]),
        contradictions=tuple(contradictions[:MAX_FACTS]),
        failed_checks=failed,
    )


def _first(ends_seen: list[Fact], uncertainty_seconds: float) -> Fact:
    """The earliest, by order of kind among those at the same time as it."""
    border = min(fact.at for fact in ends_seen) + timedelta(seconds=uncertainty_seconds)
    together = [fact for fact in ends_seen if fact.at <= border]
    return min(together, key=lambda fact: (fact.order, fact.at, fact.signal))


def to_stored(verdict: Verdict, facts: Iterable[Fact], checked: Mapping[str, bool]) -> dict[str, Any]:
    """The verdict as an incident keeps it: plain JSON, with the facts for the next decision."""
    return {
        "category": verdict.category,
        "reason": verdict.reason,
        "rule": verdict.rule,
        "confidence": verdict.confidence,
        "culprit": verdict.culprit,
        "worker": verdict.worker,
        "node": verdict.node,
        "evidence": [_line(fact) for fact in (*verdict.support, *verdict.failed_checks)][:MAX_FACTS],
        "contradicts": [_line(fact) for fact in verdict.contradictions],
        "checks_clean": sum(checked.values()),
        "checks_seen": len(checked),
        "facts": [_plain(fact) for fact in facts][-MAX_FACTS:],
    }


def _line(fact: Fact) -> str:
    return f"{fact.text} (weight {fact.weight:.2f})"


def _plain(fact: Fact) -> dict[str, Any]:
    return {
        "signal": fact.signal,
        "at": fact.at.isoformat(),
        "attempt": fact.attempt,
        "role": str(fact.role),
        "rule": fact.rule,
        "category": fact.category,
        "text": fact.text,
        "weight": fact.weight,
        "order": fact.order,
        "worker": fact.worker,
        "node": fact.node,
    }


def facts_from_stored(stored: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The facts that an incident kept, oldest first; what cannot be read is left out."""
    facts = []
    rows = stored.get("facts")
    for row in rows if isinstance(rows, list | tuple) else ():
        try:
            facts.append(
                Fact(
                    signal=int(row["signal"]),
                    at=datetime.fromisoformat(row["at"]),
                    attempt=int(row["attempt"]),
                    role=Role(row["role"]),
                    rule=str(row["rule"]),
                    category=str(row["category"]),
                    text=str(row["text"]),
                    weight=float(row["weight"]),
                    order=int(row["order"]),
                    worker=str(row["worker"]),
                    node=str(row["node"]),
                )
            )
        except (KeyError, TypeError, ValueError):
            continue
    return tuple(facts)
