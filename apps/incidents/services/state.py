"""Rows -> SubjectState: all that a decision may look at, read under the subject's lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Case, OuterRef, Q, When

from apps.incidents.models import Action, Cause, Incident, Signal, Subject
from apps.incidents.policy import effective_mode
from apps.incidents.services.machine_past import read_machines
from apps.incidents.services.world import read_world
from apps.jobs.elastic import read_elastic
from apps.jobs.models import Attempt, Checkpoint, FailureCount, Incarnation, Job, Order, Worker
from recovery import decide as core
from recovery.guards import HELD_BY_GUARD
from recovery.lifecycle import (
    OPEN_ACTION_STATES,
    OPEN_INCIDENT_STATES,
    ActionKind,
    ActionState,
    IncidentState,
    Resolution,
    Severity,
    WaitingFor,
)
from recovery.phases import JobState, MessagePhase, MessageType, Phase, WorkerState
from recovery.signals import OnlyWitness, SignalKind, Source, SubjectKind, WorkerKey, whole_number
from recovery.signals import Signal as CoreSignal

PAST_ATTEMPTS = 20
NEWEST_CHECKPOINTS = 3


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows behind a state, for who stores its decision: under one lock nothing is read twice.

    ``incident`` is the open one, else the newest that is resolved and not closed yet; ``causes`` are its
    categories, oldest first, ``actions`` its open ones by uid. ``workers`` stand by their places, each with its
    newest incarnation and without what its machine's checks said.
    """

    incident: Incident | None
    causes: tuple[str, ...]
    actions: Mapping[str, Action]
    workers: Mapping[WorkerKey, Worker] = field(default_factory=dict)


def load_inbox(signals: Iterable[Signal]) -> tuple[CoreSignal, ...]:
    """The undecided signals of a subject, in row order."""
    return tuple(
        CoreSignal(
            id=row.pk,
            source=Source(row.source),
            kind=SignalKind(row.kind),
            seen_at=row.seen_at,
            received_at=row.received_at,
            data=row.body,
            worker=WorkerKey(row.role, row.index) if row.index is not None else None,
            incarnation=row.incarnation_id,
            sequence=row.sequence,
            phase=row.phase or None,
            offset_uncertainty_seconds=row.uncertainty_seconds,
        )
        for row in signals
    )


def load_state(
    held: Subject, inbox: tuple[CoreSignal, ...], *, now: datetime, policy: core.Policy
) -> tuple[core.SubjectState, Loaded]:
    """Read the state of a locked subject, and the rows that it was read from.

    The open actions of its incident are locked too, so that no claim happens while a decision looks at
    them. ``inbox`` says which ended incarnations are needed, ``policy`` how far around a failure others are counted.
    """
    job = held.job
    incident, causes = _present_incident(held)
    actions = _open_actions(incident)
    subject = core.Subject(
        kind=SubjectKind(held.kind),
        key=held.key,
        tenant=held.tenant.slug,
        cluster=held.cluster.slug if held.cluster else "",
        name=f"{job.namespace}/{job.name}" if job else held.key,
        mode=effective_mode(
            cluster_mode=held.cluster.mode if held.cluster else core.Mode.OBSERVE,
            job_mode=job.mode if job else "",
        ),
    )
    if job is None:
        state = core.SubjectState(
            subject=subject,
            decision_n=held.decision_n + 1,
            incident=_incident(incident, causes),
            actions=_actions(actions),
            next_look_at=held.next_look_at,
        )
        return state, Loaded(incident, causes, actions)
    workers = list(job.workers.select_related("incarnation").defer("environment", "checks", "checks_at"))
    incarnations = _incarnations(job, workers, inbox)
    attempts, of_lineage = _newest_attempts(job)
    past_attempts = _past_attempts(job, attempts, workers)
    state = core.SubjectState(
        subject=subject,
        decision_n=held.decision_n + 1,
        job=job_state(job, workers, is_cause_open=_is_cause_open(job, past_attempts)),
        attempt=_attempt(job, attempts, incarnations),
        incarnations=incarnations,
        order=_order(job, workers),
        checkpoints=tuple(
            core.CheckpointView(
                step=row.step,
                path=row.path,
                state=row.state,
                at=row.committed_at or row.written_at or now,
                bytes=row.bytes,
            )
            for row in Checkpoint.objects.filter(job=job).order_by("-step", "-id")[:NEWEST_CHECKPOINTS]
        ),
        incident=_incident(incident, causes),
        actions=_actions(actions),
        held_back=_held_back(incident),
        past_attempts=past_attempts,
        earlier=tuple(_past_attempt(row) for row in reversed(of_lineage) if row.ended_at is not None),
        machines=read_machines(held, incident, inbox, incarnations, now=now),
        world=read_world(
            held,
            incident,
            inbox,
            now=now,
            policy=policy,
            nodes=(life.node for life in incarnations if life.is_current),
        ),
        world_running_at=job.world_running_at,
        suspended=job.is_suspended,
        stop_grace_seconds=job.stop_grace_seconds,
        gpus=job.world_size * job.gpus_per_worker,
        elastic=read_elastic(job.annotations)[0],
        next_look_at=held.next_look_at,
    )
    return state, Loaded(incident, causes, actions, {WorkerKey(row.role, row.index): row for row in workers})


def _present_incident(held: Subject) -> tuple[Incident | None, tuple[str, ...]]:
    """The open incident of a subject, else the newest one that is resolved and not closed yet; its causes."""
    open_words = [str(state) for state in OPEN_INCIDENT_STATES]
    causes = Cause.objects.filter(incident=OuterRef("pk")).order_by("id").values("category")
    incident = (
        Incident.objects.filter(subject=held)
        .filter(Q(state__in=open_words) | Q(state=IncidentState.RESOLVED))
        .annotate(categories=ArraySubquery(causes))
        .order_by(Case(When(state=IncidentState.RESOLVED, then=1), default=0), "-id")
        .first()
    )
    return (incident, tuple(incident.categories)) if incident is not None else (None, ())


def _is_cause_open(job: Job, past: tuple[core.PastAttempt, ...]) -> bool:
    """Whether the attempt that ended last was counted and why it ended is open."""
    last = past[-1] if past and job.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING) else None
    return last is not None and last.n == job.attempt and last.counted and last.witness is not None


def job_state(job: Job, workers: list[Worker], *, is_cause_open: bool = False) -> JobState:
    """The phase machine's state from its columns, and whether the cause of the last failure is open."""
    return JobState(
        phase=Phase(job.phase),
        workers=tuple(
            sorted((_worker(row) for row in workers), key=lambda worker: worker.key),
        ),
        max_retry=job.max_retry,
        recover_count=job.recover_count,
        sequence=job.sequence,
        run=job.run,
        attempt=job.attempt,
        attempt_sequence=job.attempt_sequence,
        protected=job.is_protected,
        reason=job.phase_reason,
        protection_due=job.is_protection_due,
        quit_due=job.is_quit_due,
        cause_open=is_cause_open,
    )


def _worker(row: Worker) -> WorkerState:
    return WorkerState(
        key=WorkerKey(row.role, row.index),
        inner_phase=Phase(row.inner_phase),
        enrolled=row.is_enrolled,
        finished=row.is_finished,
        retries=row.retries,
        restarted=row.is_restarted,
        must_exit=row.must_exit,
        retired=row.is_retired,
        departed=row.has_departed,
        last_sequence=row.last_sequence,
        handled=frozenset((MessageType(type_), MessagePhase(phase)) for type_, phase in row.handled),
        last_failure_reason=row.last_failure_reason,
    )


def _incarnations(
    job: Job, workers: Sequence[Worker], inbox: tuple[CoreSignal, ...]
) -> tuple[core.IncarnationView, ...]:
    """Present incarnations, and the ended ones that the inbox speaks of; by row id."""
    rows = {row.incarnation.pk: row.incarnation for row in workers if row.incarnation is not None}
    current = frozenset(rows)
    spoken_of = {signal.incarnation for signal in inbox if signal.incarnation}
    spoken_of |= {life for signal in inbox if (life := whole_number(signal.data.get("replaces"))) is not None}
    pods = {
        str(signal.data.get("pod_uid"))
        for signal in inbox
        if signal.kind is SignalKind.INCARNATION_ENDED and signal.incarnation is None
    }
    if pods or not spoken_of <= current:
        others = Incarnation.objects.filter(Q(pk__in=spoken_of) | Q(pod_uid__in=pods), worker__job=job)
        rows |= {row.pk: row for row in others.exclude(pk__in=current)}
    keys = {row.pk: WorkerKey(row.role, row.index) for row in workers}
    return tuple(
        core.IncarnationView(
            id=row.pk,
            worker=keys[row.worker_id],
            pod_uid=row.pod_uid,
            restart_count=row.restart_count,
            node=row.node_name,
            enrolled_at=row.enrolled_at,
            ended_at=row.ended_at,
            ended_by_desk=row.is_end_ordered,
            is_current=row.pk in current,
            attempts=tuple(range(row.first_attempt, (row.last_attempt or row.first_attempt) + 1))
            if row.first_attempt
            else (),
            is_running=row.ended_at is None,
            last_seen_at=row.last_seen_at,
            step=row.step,
            step_at=row.step_at,
            step_seconds=row.step_seconds,
        )
        for _, row in sorted(rows.items())
    )


def _attempt(
    job: Job, attempts: Sequence[Attempt], incarnations: tuple[core.IncarnationView, ...]
) -> core.AttemptView | None:
    """The present attempt; ``attempts`` are the job's newest, newest first."""
    by_number = {row.n: row for row in attempts}
    row, before = by_number.get(job.attempt), by_number.get(job.attempt - 1)
    if row is None:
        return None
    present = [view for view in incarnations if view.is_current and row.n in view.attempts]
    fresh = [
        view for view in present if view.step is not None and view.step_at and view.step_at >= row.started_at
    ]
    complete = bool(fresh) and len(fresh) == len(present)
    return core.AttemptView(
        n=row.n,
        sequence=row.sequence,
        started_at=row.started_at,
        ended_at=row.ended_at,
        first_step_at=row.first_step_at,
        resumed_from_step=row.resumed_from_step,
        step=min(view.step for view in fresh if view.step is not None) if complete else None,
        step_at=min(view.step_at for view in fresh if view.step_at is not None) if complete else None,
        step_seconds=max(
            (view.step_seconds for view in fresh if view.step_seconds is not None), default=None
        ),
        end_step=before.last_step if before is not None else None,
    )


def _order(job: Job, workers: Sequence[Worker]) -> core.OrderView | None:
    row = Order.objects.filter(job=job).order_by("-sequence").first()
    if row is None:
        return None
    return core.OrderView(
        sequence=row.sequence,
        phase=MessagePhase(row.phase),
        written_at=row.written_at,
        acknowledged=tuple(
            WorkerKey(worker.role, worker.index)
            for worker in workers
            if worker.last_sequence == row.sequence and [MessageType.ACK, row.phase] in worker.handled
        ),
    )


def _incident(row: Incident | None, causes: tuple[str, ...]) -> core.IncidentView | None:
    if row is None:
        return None
    return core.IncidentView(
        uid=str(row.uid),
        state=IncidentState(row.state),
        opened_at=row.opened_at,
        severity=Severity(row.severity),
        rung=row.rung,
        tries=row.tries,
        causes=causes,
        attempt=row.attempt,
        waiting_for=WaitingFor(row.waiting_for) if row.waiting_for else None,
        resolved_at=row.resolved_at,
        resolution=Resolution(row.resolution) if row.resolution else None,
        state_since=row.state_since_at,
        watching_from_step=row.watching_from_step,
        seen_failed_at=row.failed_at,
        verdict=row.verdict,
    )


def _open_actions(incident: Incident | None) -> dict[str, Action]:
    if incident is None:
        return {}
    rows = (
        Action.objects.select_for_update(no_key=True)
        .filter(incident=incident, state__in=[str(state) for state in OPEN_ACTION_STATES])
        .order_by("id")
    )
    return {str(row.uid): row for row in rows}


def _actions(rows: Mapping[str, Action]) -> tuple[core.ActionView, ...]:
    return tuple(
        core.ActionView(
            uid=uid,
            kind=ActionKind(row.kind),
            target=row.target,
            generation=row.generation,
            state=ActionState(row.state),
            not_before=row.not_before_at,
            deadline=row.deadline_at,
            try_n=row.try_n,
            sequence=row.content.get("sequence"),
            data=row.content,
        )
        for uid, row in rows.items()
    )


def _held_back(incident: Incident | None) -> tuple[core.HeldBack, ...]:
    """What a guard holds back for as long as the incident waits for it: the newest refusal of each kind."""
    if incident is None or incident.waiting_for != WaitingFor.GUARD:
        return ()
    rows = Action.objects.filter(
        incident=incident, state=ActionState.REFUSED, refused_because__startswith=HELD_BY_GUARD
    ).order_by("id")
    newest = {row.kind: row for row in rows}
    return tuple(
        core.HeldBack(
            kind=ActionKind(row.kind), target=row.target, why=row.why, deadline_seconds=row.deadline_seconds
        )
        for _, row in sorted(newest.items())
    )


def _newest_attempts(job: Job) -> tuple[list[Attempt], list[Attempt]]:
    """The newest attempts of a job, with the present one, and of the job that it follows; each newest first.

    One that had its name before a namespace changed hands is another tenant's, and nothing of it is read.
    """
    if job.lineage_id is None:
        return list(Attempt.objects.filter(job=job).order_by("-n")[: PAST_ATTEMPTS + 1]), []
    rows = Attempt.objects.filter(job__in=[job.pk, job.lineage_id], tenant=job.tenant_id)
    newest = list(rows.order_by("-job_id", "-n")[: PAST_ATTEMPTS + 1])  # who follows has the higher id
    return [row for row in newest if row.job_id == job.pk], [row for row in newest if row.job_id != job.pk]


def _past_attempts(
    job: Job, attempts: Sequence[Attempt], workers: Sequence[Worker]
) -> tuple[core.PastAttempt, ...]:
    """The newest attempts that ended, oldest first; ``attempts`` are the newest of all, newest first."""
    ended = [row for row in attempts if row.ended_at is not None][:PAST_ATTEMPTS]
    if not ended:
        return ()
    keys = {row.pk: WorkerKey(row.role, row.index) for row in workers}
    told = FailureCount.objects.filter(job=job, attempt__gte=ended[-1].n)
    counts = {count.attempt: count for count in told}
    return tuple(_past_attempt(row, counts.get(row.n), keys) for row in reversed(ended))


def _past_attempt(
    row: Attempt, count: FailureCount | None = None, keys: Mapping[int, WorkerKey] | None = None
) -> core.PastAttempt:
    """A finished attempt; ``keys`` are the workers by row."""
    found = core.Finding(
        rule=row.found_rule,
        category=row.found_category,
        node=row.found_node,
        device=row.found_device,
        rank=row.found_rank,
        sequence=row.found_sequence,
        container_since=row.found_container_since,
    )
    return core.PastAttempt(
        n=row.n,
        started_at=row.started_at,
        ended_at=row.ended_at or row.started_at,
        end_cause=row.end_cause,
        counted=row.is_counted,
        worker=keys[count.worker_id] if count and keys else None,
        node=count.node_name if count else "",
        last_step=row.last_step,
        resumed_from_step=row.resumed_from_step,
        run=row.run,
        sequence=row.sequence,
        would=count.would if count else False,
        witness=OnlyWitness(count.only_witness) if count and count.only_witness else None,
        first_step_at=row.first_step_at,
        found=found if row.found_rule else None,
    )
