"""Stored decisions, made once more (DOMAIN 4).

Under the policy that was in force then, the same state, inbox and time must give what was stored. Under another
policy, the differences are what that one would have done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from apps.incidents.models import Decision
from apps.incidents.policy import current_policy
from recovery.decide import Policy, decide
from recovery.serialize import (
    decision_from_plain,
    inbox_from_plain,
    policy_from_plain,
    state_from_plain,
    to_plain,
)

MOST_PLACES = 20  # differences that are told of one decision


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that comes out otherwise by now. ``places`` are paths into it, with what was and what is."""

    decision_id: int
    subject: str
    n: int
    places: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.subject}, decision {self.n}: {'; '.join(self.places)}"


def stored_policy(decision: Decision) -> Policy | None:
    """The policy under which a decision was made; None for one that was made before policies were kept."""
    return policy_from_plain(decision.policy.content) if decision.policy is not None else None


def replay(decision: Decision, policy: Policy | None = None) -> Difference | None:
    """Make a stored decision again. None when nothing differs.

    What was stored must also read back as the records that it was written from.

    Args:
        policy: None = the one that was in force then (where that was not kept, the present one). Another one
            answers what it would do; that its version differs is no difference.
    """
    was = stored_policy(decision)
    policy = policy or was or current_policy()
    if was is not None:
        policy = replace(policy, version=was.version)
    state, inbox = state_from_plain(decision.state_before), inbox_from_plain(decision.inbox)
    places = [
        *differences(decision.state_before, to_plain(state), "state"),
        *differences(decision.inbox, to_plain(inbox), "inbox"),
        *differences(decision.outcome, to_plain(decision_from_plain(decision.outcome)), "stored"),
        *differences(decision.outcome, to_plain(decide(state, inbox, decision.at, policy)), "outcome"),
    ]
    if not places:
        return None
    return Difference(decision.pk, str(decision.subject), decision.n, tuple(places[:MOST_PLACES]))


def replay_after(decision_id: int, policy: Policy | None = None) -> tuple[int, list[Difference]]:
    """Make every decision newer than ``decision_id`` again. Returns how many there were, and what differs.

    ``policy`` as in ``replay``.
    """
    count, found = 0, []
    for decision in (
        Decision.objects.select_related("subject", "policy")
        .filter(pk__gt=decision_id)
        .order_by("pk")
        .iterator(100)
    ):
        count += 1
        if (difference := replay(decision, policy)) is not None:
            found.append(difference)
    return count, found


def differences(was: Any, now: Any, path: str) -> Iterator[str]:
    """Paths at which two plain values differ, with both values cut short."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            if key not in was or key not in now:
                yield f"{path}.{key} is {'new' if key not in was else 'gone'}"
            else:
                yield from differences(was[key], now[key], f"{path}.{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for n, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from differences(old, new, f"{path}[{n}]")
    elif was != now:
        yield f"{path} was {str(was)[:80]!r}, is {str(now)[:80]!r}"
