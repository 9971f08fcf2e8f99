"""Decision -> rows, in the decision's own transaction. A decision writes only its own subject's rows."""

from __future__ import annotations

from datetime import datetime

from apps.incidents.models import Decision, InboxEntry, PolicyVersion, Subject
from apps.incidents.services import feed
from apps.incidents.services.many_rows import update_rows
from apps.incidents.services.outcome_actions import store_actions
from apps.incidents.services.outcome_incident import incident_of_counts, store_incident
from apps.incidents.services.outcome_job import store_job
from apps.incidents.services.outcome_timeline import log_after_commit, store_timeline
from apps.incidents.services.state import Loaded
from recovery import decide as core
from recovery.serialize import to_plain
from recovery.signals import Signal as CoreSignal
from recovery.signals import Use


def store_decision(
    held: Subject,
    state: core.SubjectState,
    inbox: tuple[CoreSignal, ...],
    decision: core.Decision,
    policy: PolicyVersion,
    *,
    loaded: Loaded,
    now: datetime,
    seconds: float,
) -> list[int]:
    """Write everything that a decision wants, with the decision itself.

    Args:
        held: The locked subject.
        loaded: The rows that ``state`` was read from; they are brought to what is decided.
        policy: The row that keeps the values under which it was decided.
        seconds: What reading and deciding took, for the figure on the page.
    Returns:
        Row ids of the actions that are ready to be claimed now.
    """
    incident = store_incident(held, loaded, decision, now)
    told_in = incident or incident_of_counts(held, decision)
    if held.job is not None and decision.job is not None:
        store_job(held.job, state, inbox, decision, incident, loaded.workers, now)
    if told_in is not None and decision.timeline:
        events = store_timeline(told_in, decision, inbox, now)
        log_after_commit(told_in, held.job, loaded.workers, events)
    due = store_actions(held, incident, loaded, decision, now)
    _store_uses(held, decision, inbox)
    Decision.objects.create(
        tenant_id=held.tenant_id,
        subject=held,
        incident=incident,
        n=decision.n,
        at=now,
        policy_version=decision.policy_version,
        policy=policy,
        rule=decision.rule[:100],
        reason=decision.reason,
        state_before=to_plain(state),
        inbox=to_plain(inbox),
        outcome=to_plain(decision),
        seconds=seconds,
    )
    held.decision_n = decision.n
    held.next_look_at = decision.next_look_at
    held.failures, held.failure, held.put_off_until_at = 0, "", None
    held.save(update_fields=["decision_n", "next_look_at", "failures", "failure", "put_off_until_at"])
    changed = [("job", held.job_id), ("incident", incident.pk if incident is not None else None)]
    feed.publish_all(
        tenant_id=held.tenant_id,
        rows=[(topic, key) for topic, key in changed if key is not None],
        now=now,
        ordered=held.job_id if decision.orders or decision.directive else None,
    )
    return due


def _store_uses(held: Subject, decision: core.Decision, inbox: tuple[CoreSignal, ...]) -> None:
    uses = {use.signal: use for use in decision.uses}
    told = [
        (str(uses[each.id].use), uses[each.id].reason) if each.id in uses else (str(Use.CONTEXT), "")
        for each in inbox
    ]
    update_rows(
        InboxEntry,
        key="signal",
        keys=[signal.id for signal in inbox],
        values={"use": [use for use, _ in told], "reason": [reason for _, reason in told]},
        same={"decision_n": decision.n},
        where={"subject": held.pk},
    )
