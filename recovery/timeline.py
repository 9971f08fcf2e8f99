"""Events of an incident -> where the time of a recovery went. Pure; the rest is said to be unattributed.

Source: DOMAIN section 12. The events are the timeline entries that decide writes (EVENT_KINDS); every moment
between the failure and the last worker's first step belongs to exactly one stage, so the stages add up to
the total exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from recovery.figures import Figure, measured, modelled, weakest
from recovery.prices import HOUR_SECONDS, GpuPrice, Money, money
from recovery.records import TimelineEntry

EVENT_KINDS: Mapping[str, str] = {
    "failure_seen": "a failure, when it happened; data: received_at, found_by, step, left_run, node, pid",
    "failure_counted": "it counts, or would",
    "count_taken_back": "why the attempt ended is known: it never counts; data: cause, retries",
    "cause_known": "why the attempt ended is known; data: cause",
    "phase_changed": "phase of the job; data: before, after, row",
    "order_written": "an order set; data: order (check, run, stop, exit, finish), sequence",
    "worker_stopped": "a worker stopped and its quick checks are in; data: checks, stopped, sequence",
    "worker_finished": "a worker's command ended with 0",
    "decided": "an action is wanted; data: action, target, wait_seconds",
    "action_sent": "an action begins; data: action",
    "action_done": "its effect was seen",
    "action_failed": "its effect was not seen, or cannot be had",
    "action_unknown": "nobody can say whether it had its effect",
    "action_refused": "a wanted action cannot be had here",
    "action_cancelled": "taken back by a person, or no longer needed",
    "action_superseded": "outranked by what came meanwhile",
    "action_ready": "brought forward by a person",
    "pod_gone": "an incarnation ended; data: cause, node, pod_uid",
    "enrolled": "an incarnation took up contact; data: node, pod_uid",
    "boot_checked": "a worker passed its boot check; data: checks",
    "process_started": "a training process runs; data: pids, sequence",
    "restored": "state is loaded; data: step, seconds",
    "rebuilt": "rendezvous and communicator are up; data: seconds",
    "first_step": "first step of this start; data: step",
    "stepping": "ten steps of this start; data: step",
    "incident_opened": "an incident opens",
    "state_changed": "state of the incident; data: state, waiting_for",
    "incident_resolved": "it is resolved; data: state, resolution",
    "waiting": "something is still waited for",
    "evidence": "a report that counts nothing, often late",
    "checkpoint": "a checkpoint was committed; data: step",
    "agent_silent": "no heartbeat",
    "agent_back": "heartbeats again",
    "capacity_missing": "a pod cannot be placed",
    "capacity_back": "it is placed",
    "barrier_expired": "not every agent came in time",
    "world_running": "every pod runs",
    "stop_asked": "somebody asked for Stopped",
    "restart_asked": "a person asked that all workers start again in place",
    "job_known": "the job was seen first",
    "job_suspended": "the job was suspended",
    "job_resumed": "the job was resumed",
    "job_deleted": "the job was deleted",
    "job_ended": "the controller ended the job",
    "acknowledged": "a person looks after it",
}

#: The stage in which nothing goes on before a person has spoken.
WAITED_FOR_PERSON = "waited for a person"

#: Stages in the order in which a recovery passes them. A moment that two stages could claim belongs to the
#: one that the others wait for: see _CLAIMS.
STAGES = (
    "detect",
    "decide",
    "stop",
    "reschedule",
    "boot check",
    WAITED_FOR_PERSON,
    "wait",
    "start",
    "rebuild",
    "restore",
    "first step",
    "unattributed",
)
_CLAIMS = (
    "detect",
    "reschedule",
    "boot check",
    "stop",
    "restore",
    "rebuild",
    "first step",
    "start",
    WAITED_FOR_PERSON,
    "wait",
    "decide",
)


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``at`` is when it happened, ``received_at`` when the desk knew (None = at once)."""

    kind: str
    at: datetime
    worker: str = ""
    attempt: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    received_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a recovery. ``share`` in [0, 1] of the total; ``basis`` measured or estimated."""

    name: str
    length: timedelta
    share: float
    basis: str = "measured"
    note: str = ""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.length.total_seconds()


@dataclass(frozen=True, slots=True)
class RecoveryTimeline:
    """One recovery: from the failure until the last worker's first step, or until now if it goes on.

    ``steps_lost`` is None while it is not known. ``pids_before`` are those that were stopped or died, by
    worker; ``rebuilt`` are the workers with a new pod or container, ``untouched`` those that kept theirs.
    """

    failed_at: datetime
    ended_at: datetime
    is_finished: bool
    stages: tuple[Stage, ...]
    found_by: str = ""
    failed_step: int | None = None
    resumed_step: int | None = None
    pids_before: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pids_after: Mapping[str, int] = field(default_factory=dict)
    agent_pids: Mapping[str, int] = field(default_factory=dict)
    rebuilt: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    checks_seconds: float | None = None  # longest quick set, which ran beside the stop

    @property
    def total(self) -> timedelta:
        """From the failure to its end."""
        return self.ended_at - self.failed_at

    @property
    def steps_lost(self) -> int | None:
        """Steps that are done again."""
        if self.failed_step is None or self.resumed_step is None:
            return None
        return max(0, self.failed_step - self.resumed_step)

    def stage(self, name: str) -> Stage:
        """A stage by name."""
        return next(stage for stage in self.stages if stage.name == name)


@dataclass(frozen=True, slots=True)
class RecoveryCost:
    """What a recovery took from a job's GPUs, and in money where a price is given.

    ``again_gpu_hours`` is None while steps lost or the time of a step are not known: then the total is only what
    is known. ``money`` has an entry for each GPU type with a price; a type without one shows nothing.
    """

    gpus: Mapping[str, int]  # by type
    down_gpu_hours: Figure
    again_gpu_hours: Figure | None
    money: Mapping[str, Money]

    @property
    def gpu_hours(self) -> Figure:
        """What is known of both."""
        if self.again_gpu_hours is None:
            return self.down_gpu_hours
        value = self.down_gpu_hours.value + self.again_gpu_hours.value
        return Figure(value, weakest(self.down_gpu_hours.basis, self.again_gpu_hours.basis))


def cost(
    timeline: RecoveryTimeline,
    gpus: Mapping[str, int],
    *,
    step_seconds: Figure | None = None,
    prices: Mapping[str, GpuPrice] | None = None,
) -> RecoveryCost:
    """GPU-hours from the failure to the last first step, those of steps done again, and their money.

    Args:
        timeline: One recovery; while it goes on, the cost is so far.
        gpus: Of the whole job by type: in a synchronous job all of them wait.
        step_seconds: Of one step before the failure; None = not known.
        prices: By GPU type. None given, none shown.
    """
    count = sum(gpus.values())
    seconds = timeline.total.total_seconds()
    again = None
    if timeline.steps_lost is not None and step_seconds is not None:
        # Lost steps are seen, but that they take as long again is a forecast.
        hours = timeline.steps_lost * step_seconds.value * count / HOUR_SECONDS
        again = Figure(hours, modelled(step_seconds.basis), step_seconds.source)
    down = measured(seconds * count / HOUR_SECONDS)
    total = down.value + (again.value if again else 0.0)
    amounts = {
        gpu_type: found
        for gpu_type, number in sorted(gpus.items())
        if (found := money(total * number / count if count else 0.0, gpu_type, prices or {})) is not None
    }
    return RecoveryCost(dict(gpus), down, again, amounts)


def from_entries(entries: Iterable[TimelineEntry]) -> tuple[Event, ...]:
    """Events of the entries that a decision wrote."""
    return tuple(
        Event(entry.kind, entry.at, str(entry.worker) if entry.worker else "", entry.attempt, entry.data)
        for entry in entries
    )


def stages(events: Iterable[Event], *, until: datetime | None = None) -> RecoveryTimeline | None:
    """The newest recovery among the events, None when none has begun. See ``recoveries``."""
    every = recoveries(events, until=until)
    return every[-1] if every else None


def recoveries(events: Iterable[Event], *, until: datetime | None = None) -> tuple[RecoveryTimeline, ...]:
    """Every recovery among the events of an incident, oldest first.

    Args:
        events: In any order; kinds that are not known are left out.
        until: Now, for a recovery that goes on; None = the last event.
    """
    ordered = sorted(events, key=lambda event: event.at)
    begins = [
        n for n, event in enumerate(ordered) if event.kind == "failure_seen" and event.data.get("left_run")
    ]
    if not begins:
        begins = [n for n, event in enumerate(ordered) if event.kind == "failure_seen"][:1]
    found = []
    for n, begin in enumerate(begins):
        is_last = n + 1 == len(begins)
        mine = ordered[begin:] if is_last else ordered[begin : begins[n + 1]]
        found.append(_recovery(mine, until if is_last else None))
    return tuple(found)


def _recovery(events: Sequence[Event], until: datetime | None) -> RecoveryTimeline:
    failure = events[0]
    end, is_finished = _end(events, until)
    end = max(end, failure.at)
    spans = _spans(events, failure, end)
    lengths = _attribute(spans, failure.at, end)
    total = end - failure.at
    notes = {"detect": f"found by {failure.data['found_by']}" if failure.data.get("found_by") else ""}
    restored = [event for event in events if event.kind == "restored" and event.at <= end]
    is_guessed = bool(restored) and not any(
        _number(event.data.get("seconds")) is not None for event in restored
    )
    workers = sorted(
        {
            event.worker
            for event in events
            if event.worker and event.kind in {"worker_stopped", "process_started"}
        }
    )
    rebuilt = sorted(
        {event.worker for event in events if event.kind in {"pod_gone", "enrolled"} and event.worker}
    )
    steps = [step for event in restored if (step := _whole(event.data.get("step"))) is not None]
    return RecoveryTimeline(
        failed_at=failure.at,
        ended_at=end,
        is_finished=is_finished,
        stages=tuple(
            Stage(
                name,
                lengths[name],
                lengths[name] / total if total else 0.0,
                "estimated" if name == "restore" and is_guessed else "measured",
                notes.get(name, ""),
            )
            for name in STAGES
        ),
        found_by=str(failure.data.get("found_by") or ""),
        failed_step=_whole(failure.data.get("step")),
        resumed_step=min(steps, default=None),
        pids_before=_pids_before(events),
        pids_after=_pids_after(events, "command"),
        agent_pids=_pids_after(events, "agent"),
        rebuilt=tuple(rebuilt),
        untouched=tuple(worker for worker in workers if worker not in rebuilt),
        checks_seconds=_longest_checks(events),
    )


def _end(events: Sequence[Event], until: datetime | None) -> tuple[datetime, bool]:
    """When all workers stepped again, or how far it has come."""
    for event in events:
        if event.kind == "state_changed" and event.data.get("state") == "watching":
            steps = [each.at for each in events if each.kind == "first_step" and each.at <= event.at]
            return max(steps, default=event.at), True
    started = {event.worker for event in events if event.kind == "process_started"}
    stepped = {event.worker: event.at for event in events if event.kind == "first_step"}
    if started and started <= set(stepped):
        return max(stepped.values()), True
    for event in events:
        if event.kind == "incident_resolved":
            return event.at, True
    return until or events[-1].at, False


Span = tuple[datetime, datetime]

#: What the first decision on a failure writes at its own time.
_DECISION = {"failure_counted", "phase_changed", "order_written", "decided"}


def _spans(events: Sequence[Event], failure: Event, end: datetime) -> dict[str, list[Span]]:
    """For each stage the stretches of time that it claims."""
    spans: dict[str, list[Span]] = {name: [] for name in STAGES}
    received = _time(failure.data.get("received_at")) or failure.received_at or failure.at
    spans["detect"].append((failure.at, received))
    spans["decide"].append((received, _first(events, _DECISION, received)))
    spans["reschedule"] += _reschedules(events, end)
    spans[WAITED_FOR_PERSON] += _person_waits(events, end)
    for n, event in enumerate(events):
        later = events[n + 1 :]
        if event.kind == "order_written":
            _claim_order(spans, event, later, end)
        elif event.kind == "decided" and event.data.get("action") == "restart_process":
            over = _first(
                later, {"action_sent", "action_superseded", "action_cancelled", "action_failed"}, end
            )
            spans["wait"].append((event.at, over))
            before = [each.at for each in events[:n] if each.kind == "worker_stopped"]
            spans["decide"].append((max(before, default=event.at), event.at))
        elif event.kind in {"restored", "rebuilt"}:
            name = "restore" if event.kind == "restored" else "rebuild"
            seconds = _number(event.data.get("seconds"))
            begun = (
                _started_before(events, event) if seconds is None else event.at - timedelta(seconds=seconds)
            )
            spans[name].append((begun, event.at))
    return spans


def _claim_order(spans: dict[str, list[Span]], order: Event, later: Sequence[Event], end: datetime) -> None:
    """The time between an order and its last answer, and after a start that to the last first step."""
    kind, sequence = order.data.get("order"), order.data.get("sequence")
    answers = {"stop": "worker_stopped", "check": "boot_checked", "run": "process_started"}
    names = {"stop": "stop", "check": "boot check", "run": "start"}
    if kind not in answers:
        return
    told = [
        event.at
        for event in later
        if event.kind == answers[kind] and event.data.get("sequence", sequence) == sequence
    ]
    over = max(told, default=end)
    spans[names[kind]].append((order.at, over))
    if kind == "run":
        ready = [event.at for event in later if event.kind in {"restored", "rebuilt"}]
        steps = [event.at for event in later if event.kind == "first_step"]
        if told:
            spans["first step"].append((max([over, *ready]), max(steps, default=end)))


def _reschedules(events: Sequence[Event], end: datetime) -> list[Span]:
    """For each worker that lost its incarnation: from its end until the next one enrolled."""
    spans: list[Span] = []
    gone: dict[str, datetime] = {}
    for event in events:
        is_pods = event.kind == "failure_seen" and event.data.get("found_by") != "agent's report"
        if event.kind == "pod_gone" or is_pods:
            known = _time(event.data.get("received_at")) or event.received_at or event.at
            gone.setdefault(event.worker, known if is_pods else event.at)
        elif event.kind == "enrolled" and event.worker in gone:
            spans.append((gone.pop(event.worker), event.at))
    spans.extend((since, end) for since in gone.values())
    return spans


def _person_waits(events: Sequence[Event], end: datetime) -> list[Span]:
    """While the incident asked a person, or a remedy waited for somebody's word, until its state went on."""
    spans: list[Span] = []
    since: datetime | None = None
    for event in events:
        if event.kind not in {"state_changed", "incident_resolved"}:
            continue
        told = event.data
        waits = told.get("state") == "needs_person" or told.get("waiting_for") == "approval"
        if waits and since is None:
            since = event.at
        elif not waits and since is not None:
            spans.append((since, event.at))
            since = None
    return spans if since is None else [*spans, (since, end)]


def _attribute(spans: Mapping[str, list[Span]], begin: datetime, end: datetime) -> dict[str, timedelta]:
    """Every moment to one stage. Exact: lengths are whole microseconds."""
    borders = {begin, end}
    for several in spans.values():
        for since, over in several:
            borders |= {min(max(since, begin), end), min(max(over, begin), end)}
    ordered = sorted(borders)
    lengths = {name: timedelta(0) for name in STAGES}
    for since, over in pairwise(ordered):
        name = next(
            (
                name
                for name in _CLAIMS
                if any(span_since <= since and over <= span_over for span_since, span_over in spans[name])
            ),
            "unattributed",
        )
        lengths[name] += over - since
    return lengths


def _first(events: Sequence[Event], kinds: set[str], otherwise: datetime) -> datetime:
    return next((event.at for event in events if event.kind in kinds), otherwise)


def _started_before(events: Sequence[Event], event: Event) -> datetime:
    """When the last of the moments before this one was, of its own worker: started, or the other mark."""
    kinds = {"process_started", "restored", "rebuilt"}
    mine = [
        each.at
        for each in events
        if each.kind in kinds and each.worker == event.worker and each.at < event.at and each is not event
    ]
    return max(mine, default=event.at)


def _pids_before(events: Sequence[Event]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for event in events:
        if event.kind == "failure_seen" and (pid := _whole(event.data.get("pid"))) is not None:
            found.setdefault(event.worker, (pid,))
        stopped = event.data.get("stopped")
        if event.kind == "worker_stopped" and isinstance(stopped, Mapping):
            pids = stopped.get("pids")
            whole = [
                pid for each in (pids if isinstance(pids, list | tuple) else ()) if (pid := _whole(each))
            ]
            if whole:
                found.setdefault(event.worker, tuple(whole))
    return found


def _pids_after(events: Sequence[Event], which: str) -> dict[str, int]:
    found = {}
    for event in events:
        pids = event.data.get("pids")
        if event.kind == "process_started" and isinstance(pids, Mapping):
            pid = _whole(pids.get(which))
            if pid is not None:
                found[event.worker] = pid
    return found


def _longest_checks(events: Sequence[Event]) -> float | None:
    longest = [
        max(seconds)
        for event in events
        if event.kind == "worker_stopped"
        and isinstance(event.data.get("checks"), Mapping)
        and (seconds := [n for each in event.data["checks"].values() if (n := _number(each)) is not None])
    ]
    return max(longest, default=None)


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value >= 0 else None  # type: ignore[arg-type,operator]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def render(timeline: RecoveryTimeline | None, paid: RecoveryCost | None = None) -> str:
    """A recovery for a terminal: stage, seconds, share; then what was lost and kept, and what it cost."""
    if timeline is None:
        return "no recovery has begun\n"
    lines = [f"{'stage':<14}{'seconds':>10}{'share':>8}"]
    for stage in timeline.stages:
        if not stage.length and stage.name != "unattributed":
            continue
        note = f"  {stage.note}" if stage.note else ""
        basis = "" if stage.basis == "measured" else f"  ({stage.basis})"
        lines.append(f"{stage.name:<14}{stage.seconds:>10.3f}{stage.share:>7.1%}{basis}{note}")
    total = timeline.total.total_seconds()
    lines.append(f"{'total':<14}{total:>10.3f}{'' if timeline.is_finished else '   so far'}")
    if timeline.checks_seconds is not None:
        lines.append(f"quick checks ran beside the stop: {timeline.checks_seconds:.3f} s")
    if timeline.steps_lost is not None:
        lines.append(
            f"{timeline.steps_lost} steps lost: failed at {timeline.failed_step}, "
            f"resumed from {timeline.resumed_step}"
        )
    if paid is not None:
        lines += _cost_lines(paid)
    for worker, pid in sorted(timeline.pids_after.items()):
        before = ", ".join(str(each) for each in timeline.pids_before.get(worker, ())) or "?"
        lines.append(f"{worker}: pid {before} before, {pid} after")
    lines.append(f"pods rebuilt: {', '.join(timeline.rebuilt) or 'none'}")
    lines.append(f"pods untouched: {', '.join(timeline.untouched) or 'none'}")
    return "\n".join(lines) + "\n"


def _cost_lines(paid: RecoveryCost) -> list[str]:
    lines = [f"GPU-hours without progress: {paid.down_gpu_hours.value:.2f} ({paid.down_gpu_hours.basis})"]
    again = paid.again_gpu_hours
    if again is None:
        lines.append("GPU-hours to do steps again: not known")
    else:
        lines.append(f"GPU-hours to do steps again: {again.value:.2f} ({again.basis})")
    lines += [f"cost: {amount}" for amount in paid.money.values()]
    return lines
