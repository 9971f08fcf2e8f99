"""What labelled failures with such words called for: a second opinion beside the rules.

A rule knows what somebody described. A failure that nobody described still shares words and facts with failures
whose remedy is known, so a linear model over them (learned by ``incidentdesk.precedents``, kept in
``rules/precedents.json``) says for each remedy how likely it is the right one. The verdict of the rules counts as
one more witness, as reliable as its class of evidence proved to be on failures that were new to it, and the remedy is
taken that is expected to do the least harm. Source: docs/design/verdicts.md, docs/adr/0014-precedents.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from recovery.rules.rule import EvidenceClass, Remedy

#: Fewer known features than these are too little to compare by.
MIN_KNOWN = 30
MAX_SHOWN = 8

#: How much a verdict of this class speaks for its remedy, as the logarithm of its odds: measured on 410 failures at
#: first contact, before any rule was written for them (90 of 100 right by ends, 67 by hints), rounded. Checks,
#: comparisons and devices (95 and more) are not weighed at all.
_RELIABILITY: Mapping[EvidenceClass, float] = {
    EvidenceClass.NODE: 1.5,
    EvidenceClass.END: 2.2,
    EvidenceClass.LOG: 1.5,
    EvidenceClass.HINT: 0.7,
    EvidenceClass.METRIC: 2.2,
    EvidenceClass.SYMPTOM: 1.5,
    EvidenceClass.BENIGN: -0.5,
}
#: Any wrong remedy costs so much, beside what it does.
_WRONG = 2.5
#: A remedy that is less likely is nobody's advice, however little harm it does.
_LIKELY = 0.15
_RESTARTS = frozenset({Remedy.RESTART_PROCESS, Remedy.RESTART_CONTAINER})


def harm(taken: Remedy, right: Remedy) -> float:
    """What a remedy costs where another was right, in the prices of the labelled cases. Source: cases/README.md."""
    if taken is right:
        return 0.0
    if taken is Remedy.FAIL_FAST:
        return 5.0 + _WRONG - 1.0  # a job is failed that a retry would save
    if taken is Remedy.ISOLATE_NODE:
        return 3.0 + _WRONG - 1.0  # a healthy machine is taken out
    if right is Remedy.ISOLATE_NODE and taken in _RESTARTS:
        return 3.0 + _WRONG - 1.0  # a restart on a broken machine
    futile = right is Remedy.FAIL_FAST and taken in _RESTARTS
    too_late = right is Remedy.ISOLATE_NODE and taken is Remedy.EVICT_AT_CHECKPOINT
    return (2.0 if futile or too_late else 1.0) + _WRONG - 1.0


_HARM: Mapping[Remedy, tuple[tuple[Remedy, float], ...]] = {
    taken: tuple((right, harm(taken, right)) for right in Remedy) for taken in Remedy
}


@dataclass(frozen=True, slots=True)
class Opinion:
    """How likely each remedy is the right one, in [0, 1], and the features that it rests on, each with its part."""

    shares: Mapping[Remedy, float]
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The remedy that is expected to do the least harm, and how likely it is the right one."""

    remedy: Remedy
    share: float
    share_of_rules: float  # of the remedy that the rules chose


@dataclass(frozen=True, slots=True)
class Precedents:
    """The model. ``features``: feature -> (idf, weight of each remedy); ``cases``: how many it was learned from."""

    remedies: tuple[Remedy, ...]
    bias: tuple[float, ...]
    features: Mapping[str, tuple[float, tuple[float, ...]]]
    cases: int
    learned_from: str  # names the failures and how their words are read

    def opinion(self, found: Mapping[str, int]) -> Opinion | None:
        """What the labelled failures say of one with these features; None where too few of them are known."""
        known = self.features
        scaled = [
            (feature, (1.0 + math.log(count)) * known[feature][0])
            for feature, count in found.items()
            if feature in known
        ]
        if len(scaled) < MIN_KNOWN:
            return None
        length = math.sqrt(sum(value * value for _, value in scaled))
        scores = list(self.bias)
        for feature, value in scaled:
            part = value / length
            scores = [score + part * weight for score, weight in zip(scores, known[feature][1], strict=True)]
        shares = dict(zip(self.remedies, shares_of(scores), strict=True))
        return Opinion(shares, tuple((feature, value / length) for feature, value in scaled))

    def words_for(self, opinion: Opinion, remedy: Remedy, instead_of: Remedy) -> tuple[str, ...]:
        """The features that speak most for one remedy against another, strongest first."""
        one, other = self.remedies.index(remedy), self.remedies.index(instead_of)
        speaks = {}
        for feature, part in opinion.parts:
            weights = self.features[feature][1]
            speaks[feature] = part * (weights[one] - weights[other])
        best = sorted(speaks, key=lambda feature: (-speaks[feature], feature))[:MAX_SHOWN]
        return tuple(feature for feature in best if speaks[feature] > 0)


def shares_of(scores: list[float]) -> list[float]:
    """Scores as probabilities that sum to one."""
    top = max(scores)
    raised = [math.exp(score - top) for score in scores]
    total = sum(raised)
    return [each / total for each in raised]


def choose(opinion: Opinion, by_rules: Remedy, evidence_class: EvidenceClass) -> Choice:
    """Weigh the opinion with what the rules say; of the likely remedies the one with the least expected harm."""
    odds = math.exp(_RELIABILITY[evidence_class])
    raised = {
        remedy: share * (odds if remedy is by_rules else 1.0) for remedy, share in opinion.shares.items()
    }
    total = sum(raised.values())
    shares = {remedy: raised.get(remedy, 0.0) / total for remedy in Remedy}
    likely = [remedy for remedy in Remedy if remedy is by_rules or shares[remedy] >= _LIKELY]
    expected = {taken: sum(shares[right] * price for right, price in _HARM[taken]) for taken in likely}
    best = min(likely, key=lambda remedy: (expected[remedy], remedy is not by_rules))
    return Choice(best, shares[best], shares[by_rules])


def read_precedents(text: str) -> Precedents:
    """The model out of its file. KeyError, TypeError or ValueError would be a mistake of ours."""
    told = json.loads(text)
    scale = float(told["scale"])
    return Precedents(
        remedies=tuple(Remedy(name) for name in told["remedies"]),
        bias=tuple(value / scale for value in told["bias"]),
        features={
            feature: (numbers[0] / scale, tuple(value / scale for value in numbers[1:]))
            for feature, numbers in told["features"].items()
        },
        cases=int(told["cases"]),
        learned_from=str(told["digest"]),
    )
