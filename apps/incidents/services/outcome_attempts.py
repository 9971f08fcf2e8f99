"""Decision -> attempts of a job: how they begin and end, what was counted, whose lives ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import DateTimeField, PositiveIntegerField, Q, Subquery, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Greatest

from apps.incidents.models import Incident, Signal
from apps.incidents.services.progress import attempt_last_step
from apps.jobs.models import Attempt, FailureCount, Incarnation, Job, Worker
from apps.nodes.models import Machine
from recovery import decide as core
from recovery.lifecycle import OPEN_ACTION_STATES, ActionKind, ActionState
from recovery.phases import JobState
from recovery.signals import EndCause, SignalKind, WorkerKey
from recovery.signals import Signal as CoreSignal


def store_attempts(
    job: Job,
    before: JobState,
    after: JobState,
    decision: core.Decision,
    inbox: tuple[CoreSignal, ...],
    incident: Incident | None,
    workers: Mapping[WorkerKey, Worker],
    now: datetime,
) -> None:
    """End and begin attempts, and note of one what became known since: its first steps, where it resumed."""
    for change in decision.attempts:
        if change.ends is not None:
            Attempt.objects.filter(job=job, n=change.ends, ended_at__isnull=True).update(
                ended_at=now,
                end_cause=change.end_cause[:64],
                is_counted=change.counted,
                last_step=_last_step(job, change.ends, _steps_told(inbox, change.ends, before)),
                incident_uid=incident.uid if incident else None,
                **_found(job, change.found),
            )
        if change.begins is not None:
            Attempt.objects.create(
                tenant_id=job.tenant_id,
                job=job,
                n=change.begins,
                run=after.run,
                sequence=change.sequence or after.sequence,
                is_protected=after.protected,
                nodes=_nodes(workers.values()),
                started_at=now,
                resumed_from_step=change.resumed_from_step,
            )
            live = [
                row.incarnation_id for row in workers.values() if row.incarnation_id and not row.is_retired
            ]
            Incarnation.objects.filter(pk__in=live, ended_at__isnull=True).update(
                first_attempt=Coalesce(
                    "first_attempt", Value(change.begins), output_field=PositiveIntegerField()
                ),
                last_attempt=change.begins,
            )
        if change.n is not None:
            known: dict[str, Any] = {
                name: value
                for name, value in (
                    ("first_step", change.first_step),
                    ("first_step_at", change.first_step_at),
                    ("resumed_from_step", change.resumed_from_step),
                )
                if value is not None
            } | _found(job, change.found)
            if known:
                Attempt.objects.filter(job=job, n=change.n).update(**known)


def _nodes(workers: Iterable[Worker]) -> int | None:
    """On how many different nodes the workers are; None where one of them is not known."""
    names = {
        row.incarnation.node_name if row.incarnation is not None else ""
        for row in workers
        if not row.is_retired
    }
    return len(names) if names and "" not in names else None


def _found(job: Job, found: core.Finding | None) -> dict[str, Any]:
    """The columns of what an attempt was found to be, with the machine that has the node's name now."""
    if found is None:
        return {}
    machine = Machine.objects.filter(cluster=job.cluster_id, name=found.node, gone_at__isnull=True)
    return {
        "found_rule": found.rule[:100],
        "found_category": found.category[:64],
        "found_node": found.node[:253],
        "found_machine": Subquery(machine.values("pk")) if found.node else None,
        "found_device": found.device[:64],
        "found_rank": found.rank,
        "found_sequence": found.sequence,
        "found_container_since": found.container_since,
    }


def store_remedy(job: Job, state: core.SubjectState, decision: core.Decision, after: JobState) -> None:
    """What was done about the attempt that ended: the restart that began the next one, or the stop."""
    begun = [change.begins for change in decision.attempts if change.begins is not None]
    if begun:
        remedies = [action.kind for action in state.actions if action.state in OPEN_ACTION_STATES]
        ended = begun[0] - 1
    else:
        remedies = [wanted.kind for wanted in decision.actions if wanted.state is not ActionState.REFUSED]
        ended = after.attempt
    remedy = next((kind for kind in remedies if kind is not ActionKind.ASK_PERSON), None)
    if remedy is not None:
        Attempt.objects.filter(job=job, n=ended, ended_at__isnull=False).update(remedy=remedy)


def _steps_told(inbox: tuple[CoreSignal, ...], attempt: int, before: JobState) -> list[int]:
    """Steps that ends in this inbox tell of the attempt: a heartbeat is up to an interval older."""
    if attempt != before.attempt:
        return []
    return [
        signal.data["step"]
        for signal in inbox
        if signal.kind in (SignalKind.ERROR, SignalKind.FINISH)
        and signal.sequence == before.attempt_sequence
        and isinstance(signal.data.get("step"), int)
    ]


def _last_step(job: Job, attempt: int, told: list[int]) -> Combinable:
    """The highest of the steps that heartbeats and ends tell of, for the database to find."""
    beaten = attempt_last_step(job, attempt)
    return Greatest(beaten, Value(max(told))) if told else beaten


def store_counts(
    job: Job,
    decision: core.Decision,
    incident: Incident | None,
    workers: Mapping[WorkerKey, Worker],
    now: datetime,
) -> None:
    """Write each failure that counts, or would count, against the job, with the machine it happened on."""
    for count in decision.counts:
        worker = workers[count.worker]
        FailureCount.objects.create(
            tenant_id=job.tenant_id,
            job=job,
            attempt=count.attempt,
            run=job.run,
            worker=worker,
            node_name=worker.incarnation.node_name if worker.incarnation else "",
            cause=count.cause[:64],
            would=count.would,
            only_witness=count.witness or "",
            # The stubs do not know that an expression may be inserted.
            signal_uid=Subquery(Signal.objects.filter(pk=count.signal).values("uid")),  # type: ignore[misc]
            incident_uid=incident.uid if incident else None,
            at=now,
        )


def change_counts(job: Job, decision: core.Decision) -> None:
    """What became known of earlier counts: another word for the cause, or that they never were any."""
    for change in decision.count_changes:
        rows = FailureCount.objects.filter(job=job, attempt=change.attempt)
        if change.taken_back:
            incidents = [uid for uid in rows.values_list("incident_uid", flat=True) if uid is not None]
            rows.delete()
            for uid in incidents:
                is_left = FailureCount.objects.filter(job=job, incident_uid=uid, would=False).exists()
                used = decision.job.recover_count if is_left and decision.job is not None else None
                Incident.objects.filter(uid=uid).update(failures_used=used)
        else:
            rows.update(only_witness="", **({"cause": change.cause[:64]} if change.cause else {}))
        attempt = {"end_cause": change.end_cause[:64]} | ({"is_counted": False} if change.taken_back else {})
        Attempt.objects.filter(job=job, n=change.attempt).update(**attempt)


def store_incarnation_ends(decision: core.Decision, now: datetime) -> None:
    """Write how lives ended; a cause that became known replaces only that a newer life had taken the place."""
    for row_id, cause in decision.ended_incarnations:
        is_ordered = cause in (EndCause.ORDERED, EndCause.EVICTED_BY_DESK)
        told_so_far = [EndCause.REPLACED]
        if cause is EndCause.EVICTED_AS_SLOW:
            told_so_far.append(EndCause.MAINTENANCE)  # as the watch sees an eviction
        Incarnation.objects.filter(pk=row_id).filter(
            Q(ended_at__isnull=True) | Q(end_cause__in=told_so_far)
        ).update(
            ended_at=Coalesce("ended_at", Value(now), output_field=DateTimeField()),
            end_cause=cause,
            is_end_ordered=is_ordered,
        )
