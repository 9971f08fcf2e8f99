"""The words and facts of a failure, as it is compared with labelled ones (recovery.precedents).

A word stands for where it was written: in the log, in the kernel's, in a condition of the node, by another rank, or in
what people say of earlier attempts. What is read is bounded, for lines come from programs that nobody trusts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

from recovery.observed import Evidence
from recovery.rules.rule import FactValue

#: Lines of one place that are read, the last ones, and characters of each.
MAX_LINES = 60
MAX_LINE = 300
MAX_RANKS = 16
MAX_LINES_OF_RANK = 12
#: Characters of a word that are compared.
MAX_WORD = 10

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[a-z]+|\d+")
_ENDING = re.compile(r"(?:ations?|ings?|edly|ed|es|s|ly|ment|ion|able)$")
_CLAUSE = re.compile(r"[;,.]")
_SHORT = 5  # words up to this length keep their ending
MAX_COUNT = 4  # from so many times on, more say the same
_SHARES = (0.2, 0.5, 0.8, 0.95, 1.0)
#: Facts that stand among the features in another form.
_TOLD_OTHERWISE = frozenset({"exit.code", "checks.run", "ranks.told", "ranks.nodes", "nodes.affected"})
#: What earlier attempts say means another thing where the checks are clean, or on many machines.
_AROUND = ("checks.clean", "exit.running", "nodes.many", "nodes.one")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """A word in small letters without its ending; a number is ``#``."""
    if word.isdigit():
        return "#"
    return (_ENDING.sub("", word) if len(word) > _SHORT else word)[:MAX_WORD]


@lru_cache(maxsize=16_384)
def _split(token: str) -> tuple[str, ...]:
    return tuple(stem(word) for word in _WORD.findall(_CAMEL.sub(" ", token).lower()))


def stems(text: str) -> list[str]:
    """The words of a line in their order, names of programs taken apart: ``cudaErrorLaunch`` is three."""
    return [word for token in text[:MAX_LINE].split() for word in _split(token)]


def features_of(evidence: Evidence, sentence: str, facts: Mapping[str, FactValue]) -> Counter[str]:
    """How often each word and fact is there.

    Args:
        evidence: What was seen of one failure.
        sentence: What people say of earlier attempts, "" where nobody did.
        facts: What `recovery.facts.facts_of` gives of both.
    """
    found: Counter[str] = Counter()
    _add(found, "log", evidence.log[-MAX_LINES:])
    _add(found, "kernel", evidence.kernel[-MAX_LINES:])
    _add(found, "node", evidence.conditions[-MAX_LINES:])
    for rank in evidence.ranks[:MAX_RANKS]:
        _add(found, "rank", rank.log[-MAX_LINES_OF_RANK:])
    for clause in _CLAUSE.split(sentence[: 3 * MAX_LINE]):
        words = stems(clause)
        found.update(f"said {word}" for word in words)
        found.update(f"said {one} {other}" for one, other in pairwise(words))
    found[f"pod {evidence.pod_reason.lower()}"] += 1
    found[f"exit {evidence.exit_code}"] += 1
    found[f"signal {evidence.signal}"] += 1
    found[f"phase {evidence.phase}"] += 1
    past, around = [], []
    for name, value in facts.items():
        if name in _TOLD_OTHERWISE or name.startswith("pod."):
            continue
        if name == "past.count" and isinstance(value, int):
            found[f"is {name} {min(MAX_COUNT, value)}"] += 1
        elif name.startswith("metric."):
            found[f"is {name}"] += 1
            if isinstance(value, float):
                found[f"is {name} {size_of(value)}"] += 1
        elif value is True:
            found[f"is {name}"] += 1
            if name.startswith("past."):
                past.append(name)
            elif name in _AROUND:
                around.append(name)
        elif isinstance(value, str) and name.startswith(("check.", "exit.")):
            found[f"is {name} {value}"] += 1
    found.update(f"is {one} and {other}" for one in past for other in around)
    return found


#: Where a feature was read, in words.
_PLACES: Mapping[str, str] = {
    "said": "told of earlier attempts",
    "log": "in the log",
    "rank": "in logs of other ranks",
    "kernel": "in the kernel's log",
    "node": "of the node",
    "is": "facts",
}
_SHOWN_LETTERS = 3
#: Facts that count other jobs, which may be other tenants' (DOMAIN 13): they are weighed and not shown.
_OF_OTHERS = ("past.count", "past.owners")


def in_words(features: Iterable[str]) -> str:
    """Features for people, by where they were read; without words of one or two letters and what counts others."""
    by_place: dict[str, list[str]] = {}
    for feature in features:
        place, _, word = feature.partition(" ")
        if place not in _PLACES:
            by_place.setdefault("is", []).append(feature.strip())
        elif place == "is":
            if not any(name in word for name in _OF_OTHERS):
                by_place.setdefault(place, []).append(word)
        elif len(word) >= _SHOWN_LETTERS:
            by_place.setdefault(place, []).append(f'"{word}"')
    return "; ".join(
        f"{said}: {', '.join(by_place[place])}" for place, said in _PLACES.items() if place in by_place
    )


def size_of(value: float) -> str:
    """How large a number is, coarsely: a share by its steps, a greater one by its digits."""
    if value <= 0:
        return "0"
    for step in _SHARES:
        if value < step:
            return f"below {step:g}"
    return "1" if value == 1 else f"{math.floor(math.log10(value)) + 1} digits"


def _add(found: Counter[str], place: str, lines: Iterable[str]) -> None:
    for line in lines:
        for word in stems(line):
            found[f"{place} {word}"] += 1
