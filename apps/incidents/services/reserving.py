"""A decision in its guards: what it wants to begin is reserved, or it is made again knowing what it cannot have."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from apps.incidents.models import Subject
from apps.incidents.services import guarding
from apps.incidents.services.guarding import Want
from recovery.decide import Decision, GuardRefusal, Policy, SubjectState, decide
from recovery.guards import GUARDED_KINDS
from recovery.signals import Signal


def decide_in_guards(
    held: Subject, state: SubjectState, inbox: tuple[Signal, ...], now: datetime, policy: Policy
) -> tuple[SubjectState, Decision]:
    """Decide, and reserve what was decided, in the caller's transaction.

    A refusal becomes part of the state, and the core says what follows: so a replay needs no guard.

    Returns:
        The state as it was decided on last, and the decision, all of whose reservations are taken.
    """
    for _ in range(len(GUARDED_KINDS) + 1):
        decision = decide(state, inbox, now, policy)
        refusals = _reserve(held, decision, now)
        if not refusals:
            return state, decision
        state = replace(state, guard_refusals=(*state.guard_refusals, *refusals))
    raise AssertionError(f"{held} wants again what a guard has refused in this decision")


def _reserve(held: Subject, decision: Decision, now: datetime) -> tuple[GuardRefusal, ...]:
    if not decision.reservations or held.cluster is None:
        return ()
    wants = [
        Want(wanted.kind, f"{held} {decision.n} {wanted.target}"[:200], held.tenant.slug)
        for wanted in decision.reservations
    ]
    refused = guarding.reserve_all(cluster=held.cluster, wants=wants, now=now)
    return tuple(
        GuardRefusal(want.kind, refusal.guard, refusal.numbers, refusal.frees_at) for want, refusal in refused
    )
