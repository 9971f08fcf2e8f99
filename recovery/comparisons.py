"""How a machine compares with its peers, by one of its own numbers, kept with the incident. Source: DOMAIN section 8.

A synchronous step takes as long as its slowest member, so the steps of all workers look alike. Which member is slow is
told only by a number of the machine itself: its own time for a step, its clock, its bandwidth beside its peers'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from recovery.figures import Figure, measured, quantile
from recovery.observed import Evidence
from recovery.past import History
from recovery.rules.rule import Remedy, RuleSet
from recovery.signals import WorkerKey
from recovery.verdict import Verdict, judge

#: So many of the newest comparisons of a number are looked at.
LOOKED = 5
#: So many slow ones of them confirm a slow machine, and so many well ones in a row clear it.
NEEDED = 3
#: Numbers of machines that are followed in one job; more of them are no matter of a machine.
MAX_FOLLOWED = 16
SLOW = "straggler"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One value, and whether a rule calls it slow."""

    at: datetime
    value: float
    is_slow: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """The newest comparisons of one number of one machine, oldest first.

    ``worker`` names the one that runs there, or all ``workers`` of them; "" = not known. ``rule`` and ``reason`` are
    those of the newest slow one.
    """

    metric: str
    worker: str
    node: str
    rule: str
    reason: str
    looks: tuple[Comparison, ...] = ()
    workers: int = 1

    @property
    def machine(self) -> str:
        """The machine in words: its worker and node, as far as they are known."""
        return " on ".join(part for part in (self.worker, self.node) if part)

    @property
    def is_slow(self) -> str:
        """That the machine is slow, in words."""
        return f"{self.machine} {'is' if self.workers == 1 else 'are'} slow"

    @property
    def seen(self) -> int:
        """How many of the newest comparisons were slow."""
        return sum(look.is_slow for look in self.looks)

    @property
    def is_confirmed(self) -> bool:
        """Whether enough of them were."""
        return self.seen >= NEEDED

    @property
    def is_cleared(self) -> bool:
        """Whether the newest ones in a row were well."""
        newest = self.looks[-NEEDED:]
        return len(newest) == NEEDED and not any(look.is_slow for look in newest)

    @property
    def slowdown(self) -> Figure | None:
        """The share of the job's time that the machine costs, in [0, 1]; None where its number does not tell that."""
        slow = sorted(look.value for look in self.looks if look.is_slow)
        return _slowdown(self.metric, quantile(slow, 0.5)) if slow else None

    @property
    def count_words(self) -> str:
        """How often it was slow."""
        return f"{self.seen} of the last {len(self.looks)} comparison{'s' if len(self.looks) > 1 else ''}"

    @property
    def words(self) -> str:
        """What the rule says, and the number with how often it was slow."""
        newest = next((look.value for look in reversed(self.looks) if look.is_slow), None)
        value = "" if newest is None else f" {newest:g}"
        says = self.reason[:1].lower() + self.reason[1:]
        return f"{says} ({self.metric}{value}, slow in {self.count_words})"

    def add(self, look: Comparison) -> Compared:
        """With one more comparison, in order of time; the oldest go."""
        looks = sorted((*self.looks, look), key=lambda each: each.at)
        return replace(self, looks=tuple(looks[-LOOKED:]))


def _slowdown(metric: str, value: float) -> Figure | None:
    """What a value means for the job's time. Clocks, heat and bandwidth say that it is slow, and not how much."""
    if metric == "step_time_ratio" and value >= 1:
        return measured(1 - 1 / value, "its own step time against its peers' median")
    if metric == "tflops_ratio_to_baseline" and 0 <= value <= 1:
        return measured(1 - value, "the job's throughput against its own baseline")
    return None


def numbers_of(rules: RuleSet) -> frozenset[str]:
    """Names of the numbers by which the rules may call a machine slow."""
    return frozenset(
        condition.name.removeprefix("metric.")
        for rule in rules.rules
        if rule.category == SLOW and rule.remedy is Remedy.EVICT_AT_CHECKPOINT
        for condition in rule.conditions
        if condition.name.startswith("metric.")
    )


def judge_value(metric: str, value: float, slow_machines: int, rules: RuleSet) -> Verdict | None:
    """What the rules say of one number of a machine that trains; None where they do not call that machine slow.

    Args:
        slow_machines: How many machines of the job are slow by this number, this one included: many at once share
            what slows them, and then it is none of them.
    """
    metrics = (
        {metric: value, "nodes_affected": float(slow_machines)} if slow_machines > 1 else {metric: value}
    )
    verdict = judge(Evidence(metrics=metrics, phase="run"), History(), rules)
    is_slow = verdict.category == SLOW and verdict.remedy is Remedy.EVICT_AT_CHECKPOINT
    return verdict if is_slow else None


@dataclass(frozen=True, slots=True)
class Told:
    """A slow machine that people have been told of: what was chosen, and until when that holds.

    ``chosen`` "" = it could not be priced; SlowOption.KEEP also where that is because no place is free.
    """

    machine: str
    chosen: str
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True)
class SlowMachines:
    """What an attempt's machines were found to be, as the incident keeps it under ``slow``."""

    attempt: int
    compared: tuple[Compared, ...] = ()
    told: tuple[Told, ...] = ()

    def of(self, metric: str, worker: str, node: str) -> Compared | None:
        """The comparisons of this number of this machine."""
        wanted = (metric, worker, node)
        return next((one for one in self.compared if (one.metric, one.worker, one.node) == wanted), None)

    def put(self, one: Compared) -> SlowMachines:
        """With the comparisons of one number of one machine in place of what was known."""
        others = tuple(
            each
            for each in self.compared
            if (each.metric, each.worker, each.node) != (one.metric, one.worker, one.node)
        )
        return replace(self, compared=(*others, one)[-MAX_FOLLOWED:])

    def tell(self, told: Told) -> SlowMachines:
        """With what people are told of a machine now."""
        return replace(
            self, told=(*(each for each in self.told if each.machine != told.machine), told)[-MAX_FOLLOWED:]
        )

    def told_of(self, machine: str) -> Told | None:
        """What people were told of it."""
        return next((each for each in self.told if each.machine == machine), None)

    def is_told(self, worker: WorkerKey, node: str) -> bool:
        """Whether people were told that the machine of this worker is slow."""
        return any(
            self.told_of(one.machine) is not None
            and (one.worker == str(worker) or (one.node and one.node == node))
            for one in self.compared
        )

    @property
    def confirmed(self) -> tuple[Compared, ...]:
        """Slow machines, each by the number that tells most: one that says how slow, then the most often seen."""
        best: dict[str, Compared] = {}
        for one in self.compared:
            if one.is_confirmed and (one.machine not in best or _tells(one) > _tells(best[one.machine])):
                best[one.machine] = one
        return tuple(best.values())


def _tells(one: Compared) -> tuple[bool, int]:
    return one.slowdown is not None, one.seen


def to_stored(slow: SlowMachines) -> dict[str, Any]:
    """As plain JSON."""
    return {
        "attempt": slow.attempt,
        "compared": [
            {
                "metric": one.metric,
                "worker": one.worker,
                "node": one.node,
                "rule": one.rule,
                "reason": one.reason,
                "looks": [
                    {"at": look.at.isoformat(), "value": look.value, "is_slow": look.is_slow}
                    for look in one.looks
                ],
                **({"workers": one.workers} if one.workers != 1 else {}),
            }
            for one in slow.compared
        ],
        "told": [
            {
                "machine": told.machine,
                "chosen": told.chosen,
                "deadline": told.deadline.isoformat() if told.deadline else None,
            }
            for told in slow.told
        ],
    }


def from_stored(stored: Any) -> SlowMachines | None:
    """What an incident kept; None where it kept nothing of the kind. What cannot be read is left out."""
    if not isinstance(stored, Mapping) or not isinstance(stored.get("attempt"), int):
        return None
    return SlowMachines(
        attempt=stored["attempt"],
        compared=tuple(_compared(stored.get("compared"))),
        told=tuple(_told(stored.get("told"))),
    )


def _compared(rows: Any) -> Iterable[Compared]:
    for row in rows if isinstance(rows, list | tuple) else ():
        try:
            looks = tuple(
                Comparison(datetime.fromisoformat(look["at"]), float(look["value"]), bool(look["is_slow"]))
                for look in row["looks"]
            )
            if looks:
                yield Compared(
                    metric=str(row["metric"]),
                    worker=str(row["worker"]),
                    node=str(row["node"]),
                    rule=str(row["rule"]),
                    reason=str(row["reason"]),
                    looks=looks,
                    workers=max(1, int(row.get("workers", 1))),
                )
        except (AttributeError, KeyError, TypeError, ValueError):
            continue


def _told(rows: Any) -> Iterable[Told]:
    for row in rows if isinstance(rows, list | tuple) else ():
        try:
            deadline = datetime.fromisoformat(row["deadline"]) if row["deadline"] else None
            yield Told(str(row["machine"]), str(row["chosen"]), deadline)
        except (KeyError, TypeError, ValueError):
            continue
