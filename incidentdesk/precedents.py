"""`python -m incidentdesk.precedents`: learn rules/precedents.json anew from the labelled failures.

Needed after labelled failures came, or after recovery.words changed; tests/recovery/test_precedents.py says when.
How well they do on failures that they have not seen: `python -m tests.cases.measure`. A multinomial
logistic regression, by AdaGrad in a fixed order: the same failures give the same file.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from incidentdesk.frontdoor.places import CHECKOUT
from recovery.facts import facts_of
from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.precedents import shares_of
from recovery.rules.rule import Remedy
from recovery.words import features_of

CASES = CHECKOUT / "tests" / "cases"
FILE = CHECKOUT / "recovery" / "rules" / "precedents.json"

#: A feature of fewer failures than these is left out.
MIN_FAILURES = 3
SCALE = 100
#: Inverse strength of the pull towards zero, as in a penalty of |w|^2 / (2 C) beside the sum of losses.
C = 20.0
EPOCHS = 15
RATE = 0.5

REMEDIES = tuple(Remedy)
type Document = list[tuple[str, float]]


def read_cases() -> list[dict[str, Any]]:
    """All labelled failures, in the order of their files and lines."""
    lines = (line for path in sorted(CASES.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines())
    return [json.loads(line) for line in lines if line.strip()]


def features_of_case(signals: Mapping[str, Any]) -> Counter[str]:
    """The features of one labelled failure, as a verdict sees them."""
    evidence = evidence_from_plain(signals)
    history = read_recurrence(str(signals.get("recurrence") or ""))
    return features_of(evidence, history.said, facts_of(evidence, history))


def digest_of(found: Iterable[Mapping[str, int]], labels: Iterable[str]) -> str:
    """A name for what is learned from: it changes with the failures and with how their words are read."""
    digest = hashlib.sha256()
    for features, label in zip(found, labels, strict=True):
        digest.update(json.dumps([sorted(features.items()), label]).encode())
    return digest.hexdigest()[:12]


def learn(found: Sequence[Mapping[str, int]], labels: Sequence[str]) -> dict[str, Any]:
    """The model as it is written. ``labels`` are names of remedies, one for each of ``found``."""
    seen = Counter(feature for features in found for feature in features)
    idf = {
        feature: round(math.log((1 + len(found)) / (1 + n)) + 1, 2)
        for feature, n in sorted(seen.items())
        if n >= MIN_FAILURES
    }
    documents = [_scaled(features, idf) for features in found]
    weights = {feature: [0.0] * len(REMEDIES) for feature in idf}
    bias = [0.0] * len(REMEDIES)
    squares = {feature: [1e-8] * len(REMEDIES) for feature in idf}
    squares_of_bias = [1e-8] * len(REMEDIES)
    places = {str(remedy): n for n, remedy in enumerate(REMEDIES)}
    order = list(range(len(documents)))
    shuffle = random.Random(0)
    for _ in range(EPOCHS):
        shuffle.shuffle(order)
        for n in order:
            document = documents[n]
            errors = shares_of(_scores(document, weights, bias))
            errors[places[labels[n]]] -= 1.0
            _step(bias, squares_of_bias, errors, 1.0, 0.0)
            for feature, value in document:
                _step(weights[feature], squares[feature], errors, value, 1.0 / (C * seen[feature]))
    return {
        "about": "learned by python -m incidentdesk.precedents from tests/cases; feature: [idf, weight of each remedy]",
        "cases": len(found),
        "digest": digest_of(found, labels),
        "scale": SCALE,
        "remedies": [str(remedy) for remedy in REMEDIES],
        "bias": [round(value * SCALE) for value in bias],
        "features": {
            feature: [round(idf[feature] * SCALE), *(round(value * SCALE) for value in each)]
            for feature, each in weights.items()
        },
    }


def _step(
    weights: list[float], squares: list[float], errors: Sequence[float], value: float, pull: float
) -> None:
    for n, error in enumerate(errors):
        gradient = error * value + pull * weights[n]
        squares[n] += gradient * gradient
        weights[n] -= RATE * gradient / math.sqrt(squares[n])


def _scaled(features: Mapping[str, int], idf: Mapping[str, float]) -> Document:
    known = [(feature, (1 + math.log(n)) * idf[feature]) for feature, n in features.items() if feature in idf]
    length = math.sqrt(sum(value * value for _, value in known)) or 1.0
    return [(feature, value / length) for feature, value in known]


def _scores(document: Document, weights: Mapping[str, list[float]], bias: Sequence[float]) -> list[float]:
    scores = list(bias)
    for feature, value in document:
        scores = [score + value * weight for score, weight in zip(scores, weights[feature], strict=True)]
    return scores


def written(model: Mapping[str, Any]) -> str:
    """The file: a line for each feature, so that a change can be read."""
    head = {name: value for name, value in model.items() if name != "features"}
    lines = ",\n".join(
        f"{json.dumps(feature)}:{json.dumps(numbers, separators=(',', ':'))}"
        for feature, numbers in model["features"].items()
    )
    return json.dumps(head, indent=0)[:-2] + ',\n"features":{\n' + lines + "\n}\n}\n"


def main() -> int:
    """Learn and write."""
    cases = read_cases()
    found = [features_of_case(case["signals"]) for case in cases]
    model = learn(found, [case["expect"]["action"] for case in cases])
    FILE.write_text(written(model), encoding="utf-8")
    print(f"{FILE.relative_to(CHECKOUT)}: {len(model['features'])} features of {len(cases)} failures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
