"""What a decision is given and what it gives: frozen records. Source: DOMAIN section 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution, Severity, WaitingFor
from recovery.phases import JobState, MessagePhase
from recovery.signals import EndCause, OnlyWitness, SubjectKind, Use, WorkerKey


class Mode(StrEnum):
    """What the desk may do by itself here."""

    OBSERVE = "observe"
    APPROVE = "approve"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a decision is about. ``key`` is the job's or machine's key in its cluster; ``tenant`` a slug."""

    kind: SubjectKind
    key: str
    tenant: str
    cluster: str
    name: str = ""  # for people: namespace/name
    pool: str = ""
    mode: Mode = Mode.OBSERVE


@dataclass(frozen=True, slots=True)
class IncarnationView:
    """One life of a worker, as far as a decision needs it. ``ended_by_desk``: we ordered its end."""

    id: int
    worker: WorkerKey
    pod_uid: str
    restart_count: int | None
    node: str
    enrolled_at: datetime | None
    ended_at: datetime | None = None
    ended_by_desk: bool = False
    is_current: bool = True
    attempts: tuple[int, ...] = ()  # attempts that it was part of
    is_running: bool = True  # by the watch
    last_seen_at: datetime | None = None
    step: int | None = None
    step_at: datetime | None = None
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """The present (or last) attempt. Steps are the lowest over its workers; None = none seen."""

    n: int
    sequence: int
    started_at: datetime
    ended_at: datetime | None = None
    first_step_at: datetime | None = None
    resumed_from_step: int | None = None
    step: int | None = None
    step_at: datetime | None = None
    step_seconds: float | None = None
    end_step: int | None = None  # step at which the attempt before this one ended


@dataclass(frozen=True, slots=True)
class Finding:
    """What an attempt was found to have ended by, without a look at other attempts: what others are compared with.

    ``node`` is where its culprit ran, ``device`` the accelerator or adapter by its hardware address
    (recovery.findings), ``rank`` the culprit's index, ``sequence`` the number of the collective that it ended in,
    ``container_since`` the attempt with which the culprit's container began. "" and None = not told.
    """

    rule: str
    category: str
    node: str = ""
    device: str = ""
    rank: int | None = None
    sequence: int | None = None
    container_since: int | None = None


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """A finished attempt, newest last.

    ``worker`` and ``node`` are those of its failure count; ``would``: the count was only said, nobody obeyed.
    ``witness``: who alone told of the failure, None = its cause is known.
    """

    n: int
    started_at: datetime
    ended_at: datetime
    end_cause: str  # category of the verdict, or the end cause
    counted: bool
    worker: WorkerKey | None
    node: str
    last_step: int | None
    resumed_from_step: int | None
    run: int = 1
    sequence: int = 0  # of the command order that began it
    would: bool = False
    witness: OnlyWitness | None = None
    first_step_at: datetime | None = None
    found: Finding | None = None  # None = nobody has judged it, or not in a form that is kept


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint. state: written, committed or verified."""

    step: int
    path: str
    state: str
    at: datetime
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """The open incident of the subject, or the resolved one that may reopen."""

    uid: str
    state: IncidentState
    opened_at: datetime
    severity: Severity
    rung: str = ""  # L0 | L1 | L2 | L3 | ""
    tries: Mapping[str, int] = field(default_factory=dict)  # tries by action kind
    causes: tuple[str, ...] = ()
    attempt: int = 0  # attempt in which it began
    waiting_for: WaitingFor | None = None
    resolved_at: datetime | None = None
    resolution: Resolution | None = None
    state_since: datetime | None = None
    watching_from_step: int | None = None
    seen_failed_at: datetime | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActionView:
    """An open action of the subject's incident."""

    uid: str
    kind: ActionKind
    target: str
    generation: int
    state: ActionState
    not_before: datetime | None = None
    deadline: datetime | None = None
    try_n: int = 0
    sequence: int | None = None  # order sequence it began (restart_process)
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrderView:
    """The newest order set and who answered it."""

    sequence: int
    phase: MessagePhase
    written_at: datetime
    acknowledged: tuple[WorkerKey, ...] = ()


@dataclass(frozen=True, slots=True)
class WorldView:
    """Snapshot of what is around, with its age; for explanation and suspicion of ourselves.

    ``watch_silent_seconds``: since the watch of nodes or pods last heard anything, bookmarks included.
    ``api_call_seconds``: how long our own last call to the cluster took, None = none lately.
    ``not_ready_share``: of the cluster's machines, 0 while fewer are not Ready than a share is said of.
    ``failures_in_window``: how many other jobs of the cluster failed within the policy's window around this
    failure, by ``recovery.around.likeness``; ``failures_span_seconds``: from the first to the last of these and
    this one. Counts only: whose they are is nobody's business here.
    ``free_places``: for how many more workers of this job its cluster's machines of the same kind have free GPUs, by
    the pods that the desk knows; None = not known, or not asked. ``free_places_on``: so many of them on the
    machines where the job runs itself.
    """

    taken_at: datetime
    watch_lag_seconds: float | None = None
    not_ready_share: float = 0.0
    not_ready_machines: int = 0
    failures_in_window: Mapping[str, int] = field(default_factory=dict)
    failures_span_seconds: Mapping[str, float] = field(default_factory=dict)
    watch_silent_seconds: float | None = None
    api_call_seconds: float | None = None
    free_places: int | None = None
    free_places_on: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """How often one kind of failure was found on a machine, in other jobs than this one and its lineage.

    Numbers only: whose the jobs are is nobody's business here. ``rule`` "" = any rule of the category, ``device`` "" =
    any device. ``owners`` are the tenants among them other than this job's. ``fine_since``: how many other jobs have
    trained there well since the last of them. ``jobs_elsewhere``: by the same rule on other machines of the cluster,
    0 where ``rule`` is "", None = so many that they are not counted.
    """

    category: str
    rule: str
    device: str
    jobs: int
    owners: int
    fine_since: int = 0
    jobs_elsewhere: int | None = 0


@dataclass(frozen=True, slots=True)
class MachinePast:
    """A machine on which a worker of this job may have failed, as it was in the last 30 days.

    ``own_attempts``: attempts of this job with a worker there. ``machines``: of its cluster, 0 = not known.
    """

    node: str
    findings: tuple[MachineFinding, ...] = ()
    own_attempts: tuple[int, ...] = ()
    machines: int = 0


@dataclass(frozen=True, slots=True)
class GuardRefusal:
    """A guard that had no room for a kind of action when this very decision asked it.

    ``numbers`` are its numbers in words; ``frees_at`` is when its window has room, None = only a release helps.
    """

    kind: ActionKind
    guard: str
    numbers: str
    frees_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """An action that a guard has held back before, and that nothing else has been done about since."""

    kind: ActionKind
    target: str
    why: str
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class ElasticTerms:
    """How an elastic job can go on after a loss, as its annotations say. A slice is lost or kept as a whole.

    ``head`` is the index of the worker without which nothing goes on, None = it is none of them. ``max_retries`` and
    ``timeout_seconds`` are the framework's own. ``batch_per_slice`` None = not told.
    """

    workers_per_slice: int = 1
    min_slices: int = 1
    head: int | None = None
    can_reshard: bool = False
    max_retries: int = 10
    timeout_seconds: float = 300.0
    batch_per_slice: int | None = None


@dataclass(frozen=True, slots=True)
class SubjectState:
    """All that a decision may look at."""

    subject: Subject
    decision_n: int  # number of the decision that is being made, dense from 1
    job: JobState | None = None
    attempt: AttemptView | None = None
    incarnations: tuple[IncarnationView, ...] = ()
    order: OrderView | None = None
    checkpoints: tuple[CheckpointView, ...] = ()  # newest three, newest first
    incident: IncidentView | None = None
    actions: tuple[ActionView, ...] = ()
    past_attempts: tuple[PastAttempt, ...] = ()
    earlier: tuple[
        PastAttempt, ...
    ] = ()  # of the job that this one follows (lineage); with its own at most 20
    machines: tuple[MachinePast, ...] | None = None  # None = decided before findings were kept
    world: WorldView | None = None
    world_running_at: datetime | None = None  # when the last pod of the world was seen Running
    suspended: bool = False
    next_look_at: datetime | None = None
    stop_grace_seconds: float = 5.0  # from SIGTERM to SIGKILL when processes are stopped
    gpus: int = 0  # of the whole job, for prices; 0 = not known
    elastic: ElasticTerms | None = None  # None = nobody says that it is
    guard_refusals: tuple[GuardRefusal, ...] = ()  # what this decision asked for and cannot have
    held_back: tuple[HeldBack, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds and waiting times in seconds, with production defaults (DESIGN 5: each is a named setting).

    ``version`` is the fingerprint of the values.
    """

    version: str = "1"
    rules: str = ""  # digest of the rules by which verdicts are made, "" = the built-in ones
    steady_seconds: float = 300.0
    steady_steps: int = 20
    enrol_barrier_seconds: float = 60.0
    stop_ack_seconds: float = 30.0  # bound for the ACK of a stop beyond the grace period
    check_seconds: float = 5.0  # budget of the quick set, as waited for
    start_seconds: float = 120.0  # a started process must reach its first step within (0 = not judged)
    restart_process_deadline_seconds: float = 30.0
    stop_job_deadline_seconds: float = 300.0
    ask_person_deadline_seconds: float = 3600.0
    reopen_seconds: float = 900.0
    capacity_deadline_seconds: float = 300.0
    backoff_base_seconds: float = 5.0  # first wait, once restarts are no longer free
    backoff_factor: float = 2.0
    backoff_cap_seconds: float = 300.0
    backoff_free_restarts: int = 2  # restarts in place within the window that wait for nothing
    backoff_window_seconds: float = 3600.0
    no_progress_restarts: int = 3  # same step after so many restarts: stop and say why
    alike_window_seconds: float = 120.0  # failures of other jobs this close in time may have one cause
    late_uncertainty_seconds: float = 0.5
    cause_hold_seconds: float = 30.0  # so long a failure without a cause may still be one that never counts
    extend_wait_seconds: float = 30.0  # agents that wait for an order are told again to wait on


@dataclass(frozen=True, slots=True)
class OrderWanted:
    """An order set to be written in the decision's transaction. ``targets`` None = every worker."""

    sequence: int
    phase: MessagePhase
    targets: tuple[WorkerKey, ...] | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CountWanted:
    """A failure to be counted: unique by (job, attempt). ``would`` = in observe, shown as "would count"."""

    attempt: int
    worker: WorkerKey
    cause: str
    signal: int
    would: bool = False
    witness: OnlyWitness | None = None


@dataclass(frozen=True, slots=True)
class CountChange:
    """What became known of a failure that an earlier decision counted.

    ``cause`` is the count's own word from now on, ``end_cause`` the attempt's category. ``taken_back``: the
    count never was one and its row goes; why stands in the timeline.
    """

    attempt: int
    cause: str
    end_cause: str
    taken_back: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ActionWanted:
    """An action row to be written. state is planned, ready or refused (with ``refused_because``)."""

    kind: ActionKind
    target: str
    generation: int
    state: ActionState
    not_before: datetime | None
    deadline_seconds: float
    why: str
    price: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    refused_because: str = ""


@dataclass(frozen=True, slots=True)
class ReservationWanted:
    """An action that begins only if every guard that counts it has room, in the decision's transaction."""

    kind: ActionKind
    target: str


@dataclass(frozen=True, slots=True)
class ActionChange:
    """A change of an open action: superseded, cancelled, done (its effect was seen), failed, ready again.

    verifying, with ``sequence``: it was sent, as this order set.
    """

    uid: str
    state: ActionState
    reason: str
    not_before: datetime | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """What becomes of the incident. ``opens`` = a new one; ``reopens`` = the resolved one again.

    ``state`` is where it ends; ``path`` are the states it passes on the way, ``state`` the last of them.
    """

    opens: bool = False
    reopens: bool = False
    state: IncidentState | None = None
    title: str | None = None
    severity: Severity | None = None
    rung: str | None = None
    waiting_for: WaitingFor | None = None
    waiting_until: datetime | None = None
    resolution: Resolution | None = None
    renamed_causes: tuple[tuple[str, str, str], ...] = ()  # (category so far, category, sentence)
    causes: tuple[tuple[str, str], ...] = ()  # (category, sentence) to be joined
    attempt: int | None = None
    seen_failed_at: datetime | None = None
    watching_from_step: int | None = None
    verdict: Mapping[str, Any] | None = None
    closes_resolved: bool = False  # another cause: the resolved one can only close
    path: tuple[IncidentState, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of the incident's timeline. ``kind`` is a typed word (EVENT_KINDS in recovery.timeline)."""

    kind: str
    at: datetime  # when it happened (source time, corrected)
    text: str
    actor_kind: str  # agent | watch | policy | person | desk | hook | alertmanager | prometheus
    actor: str = ""
    signal: int | None = None
    worker: WorkerKey | None = None
    attempt: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptChange:
    """Begin or end of an attempt, first step, where it resumed."""

    begins: int | None = None
    sequence: int | None = None
    ends: int | None = None
    end_cause: str = ""
    counted: bool = False
    first_step: int | None = None  # step number of the first step of ``n``
    first_step_at: datetime | None = None
    resumed_from_step: int | None = None
    n: int | None = None
    found: Finding | None = None  # of the attempt that ends, or of ``n``


@dataclass(frozen=True, slots=True)
class SignalUse:
    """What became of one inbox signal, and why, in words."""

    signal: int
    use: Use
    reason: str


@dataclass(frozen=True, slots=True)
class Considered:
    """A remedy that was looked at and not taken."""

    remedy: str
    refused_because: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that one pass decided, non-decisions too. Stored whole; replay compares it."""

    subject: Subject
    n: int
    policy_version: str
    rule: str  # the row or rule that fired last, "none" when nothing changed
    reason: str
    job: JobState | None
    uses: tuple[SignalUse, ...] = ()
    orders: tuple[OrderWanted, ...] = ()
    counts: tuple[CountWanted, ...] = ()
    count_changes: tuple[CountChange, ...] = ()
    attempts: tuple[AttemptChange, ...] = ()
    incident: IncidentChange | None = None
    actions: tuple[ActionWanted, ...] = ()
    action_changes: tuple[ActionChange, ...] = ()
    reservations: tuple[ReservationWanted, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    considered: tuple[Considered, ...] = ()
    verdict: Mapping[str, Any] = field(default_factory=dict)
    next_look_at: datetime | None = None
    jitter_seed: str = ""
    run_begins: bool = False
    directive: str = ""  # what polls tell all agents of the job: "" | run_unprotected | extend_wait
    ended_incarnations: tuple[tuple[int, EndCause], ...] = ()
