"""Stored decisions, made once more (DOMAIN 4).

Under the policy that was in force then, the same state, inbox and time must give what was stored. Under another
policy, the differences are what that one would have done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from apps.incidents.models import Decision
from apps.incidents.policy import current_policy
from recovery import decide as core
from recovery.decide import Policy, decide
from recovery.errors import BadInput
from recovery.rules import registry
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
    """A decision that comes out otherwise by now. ``places`` are paths into it, with what was and what is.

    ``was`` and ``comes_out`` say in short what was decided and what would be: the rule, and what was wanted.
    """

    decision_id: int
    subject: str
    n: int
    places: tuple[str, ...]
    at: datetime | None = None
    was: str = ""
    comes_out: str = ""

    def __str__(self) -> str:
        return f"{self.subject}, decision {self.n}: {'; '.join(self.places)}"


def stored_policy(decision: Decision) -> Policy | None:
    """The policy under which a decision was made; None for one that was made before policies were kept."""
    return policy_from_plain(decision.policy.content) if decision.policy is not None else None


def replay(decision: Decision, policy: Policy | None = None) -> Difference | None:
    """Make a stored decision again. None when nothing differs.

    What was stored must also read back as the records that it was written from. Of a policy's rules only the digest
    is kept: where they are not known here, a difference may be theirs, and says so. The same outcome by rules of
    another digest is no difference.

    Args:
        policy: None = the one that was in force then (where that was not kept, the present one). Another one
            answers what it would do; that its version differs is no difference.
    Raises:
        BadInput: What was stored cannot be read.
    """
    present = current_policy()  # in any case: it makes the rules of today known
    was = stored_policy(decision)
    policy = policy or was or present
    if was is not None:
        policy = replace(policy, version=was.version)
    state, inbox = state_from_plain(decision.state_before), inbox_from_plain(decision.inbox)
    stored, again = decision_from_plain(decision.outcome), decide(state, inbox, decision.at, policy)
    places = [
        *_lost(decision.state_before, to_plain(state), "state"),
        *_lost(decision.inbox, to_plain(inbox), "inbox"),
        *_lost(decision.outcome, to_plain(stored), "stored"),
        *differences(_judged(stored), _judged(again), "outcome"),
    ]
    if not places:
        return None
    places = places[:MOST_PLACES]
    if not registry.is_known(policy.rules):
        places.append(f"its rules {policy.rules} are not known here: judged by those of today")
    return Difference(
        decision_id=decision.pk,
        subject=str(decision.subject),
        n=decision.n,
        places=tuple(places),
        at=decision.at,
        was=in_short(stored),
        comes_out=in_short(again),
    )


def _lost(stored: Any, read: Any, path: str) -> Iterator[str]:
    """What does not read back as it was stored. What a newer version has added is no loss."""
    return (place for place in differences(stored, read, path) if not place.endswith(" is new"))


def _judged(decision: core.Decision) -> dict[str, Any]:
    """A decision as plain data without the digest of the rules that it was judged by: that decides nothing."""
    plain: dict[str, Any] = to_plain(decision)
    for holder in (plain, plain["incident"] or {}):
        verdict = holder.get("verdict") or {}
        if "diagnosis" in verdict:
            named = {name: value for name, value in verdict["diagnosis"].items() if name != "rules"}
            holder["verdict"] = verdict | {"diagnosis": named}
    return plain


def in_short(decision: core.Decision) -> str:
    """The rule, and what the decision wanted, in a few words."""
    wanted = [f"{action.kind} {action.state}" for action in decision.actions]
    wanted += [f"order {order.sequence}" for order in decision.orders]
    if decision.incident is not None and decision.incident.state is not None:
        wanted.append(f"incident {decision.incident.state}")
    return f"{decision.rule}: {', '.join(wanted) or 'nothing'}"


def decisions_of(*, subject: str = "", since: datetime | None = None) -> QuerySet[Decision]:
    """Stored decisions, oldest first.

    Args:
        subject: A subject as it is written ("job 12"), or namespace/name of a job; empty = all.
        since: Only decisions made since then.
    """
    found = Decision.objects.select_related("subject", "policy").order_by("pk")
    if subject:
        kind, _, key = subject.partition(" ")
        namespace, _, name = subject.partition("/")
        found = found.filter(
            Q(subject__kind=kind, subject__key=key.strip())
            | Q(subject__job__namespace=namespace, subject__job__name=name)
        )
    return found if since is None else found.filter(at__gte=since)


def replay_all(decisions: QuerySet[Decision], policy: Policy | None = None) -> tuple[int, list[Difference]]:
    """Make these decisions again. Returns how many there were, and what differs. ``policy`` as in ``replay``.

    One that cannot be read is a difference too.
    """
    count, found = 0, []
    for decision in decisions.iterator(100):
        count += 1
        try:
            difference = replay(decision, policy)
        except BadInput as error:
            difference = Difference(
                decision_id=decision.pk,
                subject=str(decision.subject),
                n=decision.n,
                places=(f"cannot be replayed: {error}",),
                at=decision.at,
                was=decision.rule,
            )
        if difference is not None:
            found.append(difference)
    return count, found


def replay_after(decision_id: int, policy: Policy | None = None) -> tuple[int, list[Difference]]:
    """Make every decision newer than ``decision_id`` again. Returns how many there were, and what differs.

    ``policy`` as in ``replay``.
    """
    return replay_all(decisions_of().filter(pk__gt=decision_id), policy)


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
