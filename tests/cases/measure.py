"""`python -m tests.cases.measure`: failures that neither rules nor precedents have seen, batch by batch.

Precedents are learned anew from all failures but the batch; the rules are those of today, none of which was written
for a failure of these batches.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from apps.incidents.diagnosing import prediction, verdict_on
from incidentdesk import precedents as learning
from recovery.precedents import read_precedents
from recovery.rules.builtin import builtin_rules
from tests.cases.judged import cases
from tests.cases.scoring import Score, score

FILE = "blind_second.jsonl"
BATCHES = "vxyzab"


def judged_without(batch: str) -> tuple[Score, Score]:
    """The score of a batch by the rules alone, and with precedents that have not seen it."""
    left_out = [case for case in cases(FILE) if case["id"].startswith(batch)]
    ids = {case["id"] for case in left_out}
    kept = [case for case in learning.read_cases() if case["id"] not in ids]
    found = [learning.features_of_case(case["signals"]) for case in kept]
    model = learning.learn(found, [case["expect"]["action"] for case in kept])
    alone = replace(builtin_rules(), precedents=None)
    weighed = replace(alone, precedents=read_precedents(learning.written(model)))
    first, second = (
        score(
            left_out,
            {case["id"]: prediction(case["id"], verdict_on(case["signals"], rules)) for case in left_out},
        )
        for rules in (alone, weighed)
    )
    return first, second


def main() -> int:
    """Print a line a batch, and one for all."""
    found = []
    for batch in BATCHES:
        alone, weighed = judged_without(batch)
        found.append((alone, weighed))
        print(_line(batch, alone.cases, alone.action, alone.cost, weighed.action, weighed.cost), flush=True)
    total = sum(alone.cases for alone, _ in found)
    means = [
        sum(getattr(pair[n], name) * pair[n].cases for pair in found) / total
        for n in (0, 1)
        for name in ("action", "cost")
    ]
    print(_line("all", total, *means))
    return 0


def _line(batch: str, number: int, action: float, price: float, weighed: float, weighed_price: float) -> str:
    return (
        f"{batch:>3} {number:4d} failures: rules alone {action:.3f} right at {price:.3f} a case, "
        f"with precedents {weighed:.3f} at {weighed_price:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
