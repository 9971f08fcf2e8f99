"""Reads of incidents, actions, timelines and decisions, for pages and the API. Source: DOMAIN section 5."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import (
    BooleanField,
    Case,
    Exists,
    IntegerField,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
)

from apps.incidents.models import (
    Action,
    ActionTry,
    Cause,
    Decision,
    InboxEntry,
    Incident,
    LogTail,
    Notice,
    Signal,
    Subject,
    TimelineEvent,
)
from apps.jobs.models import Checkpoint, Incarnation, Job, Worker
from recovery import timeline
from recovery.asked_restart import Standing, in_words, why_not
from recovery.decide import Mode
from recovery.errors import NotFound
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
from recovery.phases import Phase
from recovery.signals import SignalKind

OPEN_WORDS = sorted(str(state) for state in OPEN_INCIDENT_STATES)
RESOLVED_WORDS = [str(IncidentState.RESOLVED), str(IncidentState.CLOSED)]
OPEN_ACTION_WORDS = sorted(str(state) for state in OPEN_ACTION_STATES)
MOST_JOBS_NAMED = 500
MOST_WORKERS_NAMED = 8
TABS = ("open", "acknowledged", "resolved", "all")

_SEVERITY_RANK = Case(
    *(When(severity=str(severity), then=Value(rank)) for rank, severity in enumerate(Severity)),
    default=Value(len(Severity)),
    output_field=IntegerField(),
)


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """What a list of incidents shows. ``tab`` is one of TABS; empty fields do not narrow."""

    tab: str = "open"
    severities: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    job_id: int | None = None
    text: str = ""
    cluster_id: int | None = None


def visible_incidents(tenant_ids: Sequence[int] | None) -> QuerySet[Incident]:
    """Incidents of these tenants, all for None, newest first, without what only the detail page shows."""
    incidents = (
        Incident.objects.select_related("job", "machine", "cluster", "acknowledged_by")
        .defer(
            "verdict",
            "considered",
            "job__annotations",
            "job__limits",
            "machine__labels",
            "machine__conditions",
        )
        .order_by("-id")
    )
    return incidents if tenant_ids is None else incidents.filter(tenant__in=tenant_ids)


def filter_incidents(incidents: QuerySet[Incident], wanted: IncidentFilter) -> QuerySet[Incident]:
    """Narrow ``visible_incidents`` to what the filter wants. An open tab includes the acknowledged ones."""
    if wanted.tab == "open":
        incidents = incidents.filter(state__in=OPEN_WORDS)
    elif wanted.tab == "acknowledged":
        incidents = incidents.filter(state__in=OPEN_WORDS, acknowledged_at__isnull=False)
    elif wanted.tab == "resolved":
        incidents = incidents.filter(state__in=RESOLVED_WORDS)
    if wanted.severities:
        incidents = incidents.filter(severity__in=wanted.severities)
    if wanted.states:
        incidents = incidents.filter(state__in=wanted.states)
    if wanted.job_id is not None:
        incidents = incidents.filter(job_id=wanted.job_id)
    if wanted.cluster_id is not None:
        incidents = incidents.filter(cluster_id=wanted.cluster_id)
    if wanted.text:
        incidents = incidents.filter(_says(wanted.text))
    return incidents


def _says(text: str) -> Q:
    """Incidents whose title, job's name or number is ``text`` or has it in it.

    Jobs are looked up first: a condition on two tables joined by OR can use the index of neither, and each
    alone is read from its trigrams. Words that very many jobs have in their names stay a subquery.
    """
    named = Job.objects.filter(name__icontains=text).order_by().values_list("id", flat=True)
    job_ids = list(named[: MOST_JOBS_NAMED + 1])
    by_text = Q(title__icontains=text) | Q(job__in=job_ids if len(job_ids) <= MOST_JOBS_NAMED else named)
    number = incident_number(text)
    return by_text if number is None else by_text | Q(id=number)


def incident_number(text: str) -> int | None:
    """The number in ``INC-12``, ``inc 12``, ``#12`` or ``12``; None for anything else."""
    word = text.strip().lower().removeprefix("inc").lstrip("-# ")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 18 else None


def with_next_step(incidents: QuerySet[Incident]) -> QuerySet[Incident]:
    """Add what tells how each incident goes on; one more query for the page, whatever its size.

    ``open_actions``: what it is doing or waits to do. ``asked_text``: the line of its timeline that says why it
    waits for a person, where it does. ``waits_for_silent``: whether a silent worker keeps a recovery waiting.
    """
    actions = (
        Action.objects.filter(state__in=OPEN_ACTION_WORDS).defer("content", "price", "why").order_by("id")
    )
    silent = Incarnation.objects.filter(
        worker__job=OuterRef("job"), ended_at__isnull=True, is_silent=True, worker__is_retired=False
    )
    followed = [str(IncidentState.WATCHING), str(IncidentState.RECOVERING)]
    return incidents.annotate(
        asked_text=Case(
            When(state=str(IncidentState.NEEDS_PERSON), then=_asked(incident=OuterRef("pk"))),
            default=Value(""),
            output_field=TextField(),
        ),
        waits_for_silent=Case(
            When(Q(state__in=followed) & Q(Exists(silent)), then=Value(True)),
            default=Value(False),
            output_field=BooleanField(),
        ),
    ).prefetch_related(Prefetch("actions", queryset=actions, to_attr="open_actions"))


def _asked(**of: Any) -> Subquery:
    """The newest line with which an incident came to wait for a person."""
    lines = TimelineEvent.objects.filter(
        kind="state_changed", body__state=str(IncidentState.NEEDS_PERSON), **of
    )
    return Subquery(lines.order_by("-n").values("text")[:1])


def open_actions_of(incident: Incident) -> list[Action]:
    """What ``with_next_step`` has added to a row, oldest first."""
    return list(incident.open_actions)  # type: ignore[attr-defined]  # set by its Prefetch


@dataclass(frozen=True, slots=True)
class Question:
    """Why an incident waits for a person, and since when."""

    text: str
    at: datetime


def question_of(incident: Incident, notices: Sequence[Notice]) -> Question | None:
    """What a person is asked now: the newest notice or change of state, whichever came later; None without one.

    A remedy that somebody cancelled makes an incident wait for a person without any notice.
    """
    if incident.state != IncidentState.NEEDS_PERSON:
        return None
    found = [Question(notice.text, notice.created_at) for notice in notices if notice.action is not None]
    lines = TimelineEvent.objects.filter(
        incident=incident, kind="state_changed", body__state=str(IncidentState.NEEDS_PERSON)
    )
    if (line := lines.order_by("-n").first()) is not None:
        found.append(Question(reason_of(line.text), line.at))
    return max(found, key=lambda question: question.at, default=None)


def reason_of(text: str) -> str:
    """What a line about a change of state gives as its reason: all behind the first colon, else the line."""
    return text.partition(": ")[2] or text


def waiting_for_a_person() -> Q:
    """Which open incidents go on only when a person decides, or says yes to what is planned."""
    return Q(state=str(IncidentState.NEEDS_PERSON)) | Q(
        state=str(IncidentState.WAITING), waiting_for=str(WaitingFor.APPROVAL)
    )


def burning(incidents: QuerySet[Incident], limit: int = 12) -> list[Incident]:
    """Open incidents that nothing else has adopted, worst first, then those that wait for a person, then oldest."""
    needs_person = Case(
        When(waiting_for_a_person(), then=Value(0)),
        default=Value(1),
        output_field=IntegerField(),
    )
    open_ones = incidents.filter(state__in=OPEN_WORDS, parent__isnull=True)
    return list(with_next_step(open_ones.order_by(_SEVERITY_RANK, needs_person, "id"))[:limit])


def get_incident(tenant_ids: Sequence[int] | None, incident_id: int) -> Incident:
    """The incident with all that its page shows, or NotFound (also when it is another tenant's)."""
    incidents = Incident.objects.select_related(
        "job", "job__cluster", "machine", "cluster", "acknowledged_by", "subject", "parent", "tenant"
    )
    if tenant_ids is not None:
        incidents = incidents.filter(tenant__in=tenant_ids)
    incident = incidents.filter(id=incident_id).first()
    if incident is None:
        raise NotFound(f"There is no incident INC-{incident_id} here.")
    return incident


@dataclass(frozen=True, slots=True)
class RestartOffer:
    """Whether a person may have all workers start again in place now; ``refused`` says why not, and what to do.

    ``from_step``: the newest committed checkpoint, None = there is none.
    """

    refused: str
    from_step: int | None = None


def restart_offer(incident: Incident, actions: Sequence[Action]) -> RestartOffer | None:
    """What to offer to the person whom an incident waits for; None where the desk goes on by itself.

    Args:
        incident: With its job and the job's cluster.
        actions: All its actions.
    """
    job = incident.job
    if job is None or incident.state != IncidentState.NEEDS_PERSON:
        return None
    if "slow" in incident.verdict and job.phase == Phase.RUN_COMMAND:
        return None  # it trains all the while, and a restart on the same machine would be as slow
    remedies = [
        action
        for action in actions
        if action.state in OPEN_ACTION_WORDS
        and action.kind in (ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB)
    ]
    begun = [action for action in remedies if action.state in (ActionState.RUNNING, ActionState.VERIFYING)]
    waiting = [action.kind for action in remedies if action not in begun]
    if ActionKind.RESTART_PROCESS in waiting:
        return None
    refused = why_not(
        Standing(
            phase=Phase(job.phase),
            attempt=job.attempt,
            incident=IncidentState.NEEDS_PERSON,
            observed_because=_observed_because(job),
            begun=in_words(ActionKind(begun[0].kind)) if begun else "",
            is_stop_wanted=ActionKind.STOP_JOB in waiting,
            departed=_workers_of(job, Q(has_departed=True)),
            missing=_workers_of(
                job,
                Q(has_departed=False) & (Q(must_exit=True) | Q(is_restarted=True) | Q(is_enrolled=False)),
            ),
        )
    )
    if refused:
        return RestartOffer(refused)
    committed = Checkpoint.objects.filter(job=job, state__in=["committed", "verified"])
    return RestartOffer("", committed.order_by("-step").values_list("step", flat=True).first())


def _observed_because(job: Job) -> str:
    if job.cluster.mode == Mode.OBSERVE:
        return f"cluster {job.cluster.slug} is in observe"
    if not job.is_protected:
        return "the job runs unprotected"
    return ""


def _workers_of(job: Job, which: Q) -> str:
    """Workers of the present world by name, the first few of many; "" for none."""
    rows = Worker.objects.filter(which, job=job, is_retired=False).only("role", "index")
    names = [str(worker) for worker in rows.order_by("role", "index")[: MOST_WORKERS_NAMED + 1]]
    return ", ".join(names[:MOST_WORKERS_NAMED]) + (" and more" if len(names) > MOST_WORKERS_NAMED else "")


def open_incidents_of_jobs(job_ids: Iterable[int]) -> dict[int, Incident]:
    """The open incident of each of these jobs that has one."""
    rows = Incident.objects.filter(job__in=list(job_ids), state__in=OPEN_WORDS).defer("verdict", "considered")
    return {row.job_id: row for row in rows.order_by("id") if row.job_id is not None}


def without_open_incident(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Those of the jobs about which no incident is open."""
    return jobs.exclude(Exists(Incident.objects.filter(job=OuterRef("pk"), state__in=OPEN_WORDS)))


def idle_decisions(incident: Incident) -> int:
    """How many decisions of the incident changed nothing."""
    return Decision.objects.filter(incident=incident, rule="none").count()


def alerts_about_node(
    name: str, cluster_id: int, tenant_ids: Sequence[int] | None, limit: int = 10
) -> list[Signal]:
    """Alertmanager's alerts that name a node, of these tenants (None: all), the newest first.

    An alert that was told without a cluster counts for every node of the name.
    """
    alerts = Signal.objects.filter(
        Q(cluster=cluster_id) | Q(cluster__isnull=True), kind=str(SignalKind.ALERT), body__node=name
    )
    if tenant_ids is not None:
        alerts = alerts.filter(tenant__in=tenant_ids)
    return list(alerts.order_by("-id")[:limit])


def incidents_by_uid(uids: Iterable[Any]) -> dict[Any, Incident]:
    """Incidents by their uid, with the columns a link needs."""
    wanted = {uid for uid in uids if uid is not None}
    rows = (
        Incident.objects.filter(uid__in=wanted).only("id", "uid", "title", "state", "tenant_id")
        if wanted
        else []
    )
    return {row.uid: row for row in rows}


def actions_of(incident: Incident) -> list[Action]:
    """All actions of an incident with their tries, newest first."""
    tries = Prefetch("tries", queryset=ActionTry.objects.order_by("n"))
    return list(Action.objects.filter(incident=incident).prefetch_related(tries).order_by("-id")[:100])


def timeline_of(
    incident: Incident, *, before: int | None = None, limit: int = 200
) -> tuple[list[TimelineEvent], bool]:
    """Lines by number, newest first, below ``before``; and whether there are older ones."""
    events = TimelineEvent.objects.filter(incident=incident).order_by("-n")
    if before is not None:
        events = events.filter(n__lt=before)
    found = list(events[: limit + 1])
    return found[:limit], len(found) > limit


# What recovery.timeline makes stages and facts of; everything else can be many lines of evidence.
_STAGE_KINDS = (
    "failure_seen", "failure_counted", "phase_changed", "order_written", "worker_stopped", "decided", "action_sent",
    "action_failed", "action_cancelled", "action_superseded", "pod_gone", "enrolled", "boot_checked", "process_started",
    "restored", "rebuilt", "first_step", "state_changed", "incident_resolved",
)  # fmt: skip


def stage_events(incident: Incident, limit: int = 12_000) -> list[timeline.Event]:
    """The newest events that stages are made of, as the core reads them, newest first."""
    rows = (
        TimelineEvent.objects.filter(incident=incident, kind__in=_STAGE_KINDS)
        .order_by("-n")
        .values_list("kind", "at", "role", "index", "attempt", "body", "received_at")[:limit]
    )
    return [
        timeline.Event(
            kind=kind,
            at=at,
            worker=f"{role} {index}" if index is not None else "",
            attempt=attempt,
            data=body,
            received_at=received_at,
        )
        for kind, at, role, index, attempt, body, received_at in rows
    ]


def last_decision(incident: Incident) -> Decision | None:
    """The newest decision that changed something about the incident."""
    decisions = Decision.objects.filter(incident=incident).exclude(rule="none")
    return decisions.defer("state_before").order_by("-n").first()


def decisions_of(
    incident: Incident, *, before: int | None = None, limit: int = 50, with_idle: bool = False
) -> list[Decision]:
    """Decisions of the incident without their stored input, newest first.

    ``with_idle`` gives those too that changed nothing.
    """
    decisions = Decision.objects.filter(incident=incident).defer("state_before", "inbox", "outcome")
    if not with_idle:
        decisions = decisions.exclude(rule="none")
    if before is not None:
        decisions = decisions.filter(n__lt=before)
    return list(decisions.order_by("-n")[:limit])


def uses_of_decisions(subject: Subject, numbers: Iterable[int], limit: int = 500) -> list[InboxEntry]:
    """What became of the signals that these decisions drained, with the reasons."""
    return list(
        InboxEntry.objects.filter(subject=subject, decision_n__in=list(numbers))
        .select_related("signal")
        .defer("signal__body")
        .order_by("-decision_n", "-signal_id")[:limit]
    )


def causes_of(incident: Incident) -> list[Cause]:
    """Causes that joined, first one first."""
    return list(Cause.objects.filter(incident=incident).order_by("id"))


def had_a_person(incident: Incident, actions: Iterable[Action]) -> bool:
    """Whether somebody was asked about the incident, or did something that its timeline tells of.

    Args:
        actions: Those of the incident.
    """
    if incident.acknowledger or incident.resolution == Resolution.BY_PERSON:
        return True
    if any(action.kind == ActionKind.ASK_PERSON for action in actions):
        return True
    return TimelineEvent.objects.filter(incident=incident, actor_kind="person").exists()


def notices_of(incident: Incident) -> list[Notice]:
    """Notices, newest first."""
    return list(Notice.objects.filter(incident=incident).select_related("action").order_by("-id")[:20])


def log_tails_of(incident: Incident) -> list[LogTail]:
    """Stored log tails, by worker."""
    return list(LogTail.objects.filter(incident=incident).order_by("worker", "id")[:50])


def waiting_signals(job: Job, limit: int = 100) -> list[InboxEntry]:
    """Signals about waiting for capacity of a job, newest first."""
    return list(
        InboxEntry.objects.filter(subject__job=job, signal__kind__in=["pod_waiting", "capacity_back"])
        .select_related("signal")
        .order_by("-id")[:limit]
    )


@dataclass(frozen=True, slots=True)
class DecisionSpeed:
    """P99 of the newest decisions (at most 1,000) in seconds, and over how many it is; None without any."""

    p99_seconds: float | None
    count: int


def decision_speed(tenant_ids: Sequence[int] | None) -> DecisionSpeed:
    """Measure decisions from their rows."""
    scope, parameters = ("", []) if tenant_ids is None else ("WHERE tenant_id = ANY(%s)", [list(tenant_ids)])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY seconds), count(*) FROM"  # noqa: S608 - scope is one of the two literals above
            f" (SELECT seconds FROM incidents_decision {scope} ORDER BY id DESC LIMIT 1000) newest",
            parameters,
        )
        p99, count = cursor.fetchone()
    return DecisionSpeed(p99_seconds=p99, count=count)


def feed_cursor() -> str:
    """Where a page that is read now stands in the live feed, as ``transaction:id``.

    Every transaction below the snapshot's xmin has ended, so what a later statement reads holds all of
    them; what the feed delivers after this cursor is everything else. Read it before the page's rows.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
        return f"{cursor.fetchone()[0]}:0"


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Changes after a cursor, in commit-safe order, and the cursor to go on from."""

    cursor: str
    changes: tuple[tuple[str, str], ...]  # (topic, key), each once


def feed_after(
    transaction: int,
    row_id: int,
    tenant_ids: Sequence[int] | None,
    *,
    all_nodes: bool = False,
    limit: int = 2000,
) -> FeedPage:
    """Read the feed after (transaction, row_id), below the snapshot: rows of these tenants (None: all).

    ``all_nodes`` adds the rows about every node, for those who see the whole fleet.
    """
    scope, parameters = "", list[Any]()
    if tenant_ids is not None:
        scope = "AND CASE topic WHEN 'fleet_node' THEN %s ELSE tenant_id = ANY(%s) END"
        parameters = [all_nodes, list(tenant_ids)]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT transaction, id, topic, key FROM incidents_feedrow"  # noqa: S608 - likewise
            " WHERE (transaction, id) > (%s, %s)"
            f" AND transaction < pg_snapshot_xmin(pg_current_snapshot())::text::bigint {scope}"
            " ORDER BY transaction, id LIMIT %s",
            [transaction, row_id, *parameters, limit],
        )
        rows = cursor.fetchall()
    if not rows:
        return FeedPage(cursor=f"{transaction}:{row_id}", changes=())
    return FeedPage(
        cursor=f"{rows[-1][0]}:{rows[-1][1]}",
        changes=tuple(dict.fromkeys((topic.removeprefix("fleet_"), key) for _, _, topic, key in rows)),
    )
