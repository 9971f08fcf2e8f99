"""A decision in the making: what one pass has found and wants so far. Lives only inside ``decide``.

What writes more than a line of it has a module: draft_job (phase, attempts, counts), draft_orders, draft_actions,
draft_verdict (the evidence of the attempt that failed) and draft_incident.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recovery import comparisons, diagnosis
from recovery import culprit as verdicts
from recovery.draft_incident import IncidentDraft
from recovery.evidence import Fact
from recovery.ladder import Choice, jitter_seed
from recovery.lifecycle import OPEN_ACTION_STATES, ActionKind, IncidentState, Resolution, WaitingFor
from recovery.phases import JobState
from recovery.placement import Lives
from recovery.records import (
    ActionChange,
    ActionView,
    ActionWanted,
    AttemptChange,
    AttemptView,
    CheckpointView,
    Considered,
    CountChange,
    CountWanted,
    Decision,
    GuardRefusal,
    Mode,
    OrderWanted,
    PastAttempt,
    Policy,
    ReservationWanted,
    SignalUse,
    SubjectState,
    TimelineEntry,
)
from recovery.rules import registry
from recovery.signals import EndCause, Signal, Source, Use, WorkerKey

_ACTORS = {
    Source.AGENT: "agent",
    Source.WATCH: "watch",
    Source.PERSON: "person",
    Source.DESK: "desk",
    Source.ALERTMANAGER: "alertmanager",
    Source.PROMETHEUS: "prometheus",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that this inbox brought. ``left_run``: it ended the attempt."""

    signal: Signal
    fact: Fact
    worker: WorkerKey
    counted: bool
    left_run: bool
    row: str


class Draft:
    """State so far, and everything wanted so far."""

    def __init__(
        self, state: SubjectState, job: JobState, inbox: tuple[Signal, ...], now: datetime, policy: Policy
    ) -> None:
        self.before = state
        self.now = now
        self.policy = policy
        self.seed = jitter_seed(f"{state.subject.kind}/{state.subject.key}", state.decision_n)
        self.is_mode_observe = state.subject.mode is Mode.OBSERVE
        self.rule, self.reason = "none", "nothing changed"

        # As it stands by now.
        self.job = job
        self.lives = Lives.before(state, inbox)
        self.incident = IncidentDraft(state)
        self.actions: dict[str, ActionView] = {action.uid: action for action in state.actions}
        self.attempt: AttemptView | None = state.attempt
        self.past: list[PastAttempt] = list(state.past_attempts)

        # The evidence of the attempt that failed, as the incident keeps it from decision to decision.
        stored = state.incident.verdict if state.incident else {}
        failed, checked = stored.get("attempt"), stored.get("checked")
        self.failed_attempt = failed if isinstance(failed, int) else None
        self.checked: dict[str, bool] = (
            {str(key): bool(value) for key, value in checked.items()} if isinstance(checked, Mapping) else {}
        )
        self.facts: list[Fact] = list(verdicts.facts_from_stored(stored))
        self.seen = diagnosis.Seen(stored, registry.find(policy.rules))
        self.slow = comparisons.from_stored(stored.get("slow")) if self.incident.was_open else None
        self.elastic_told = stored.get("elastic")  # what an earlier decision said of a loss
        self.verdict: dict[str, Any] = {}

        # What this inbox brought.
        self.rows: list[str] = []  # of the phase table, in the order in which they fired
        self.failures: list[Failure] = []
        self.suspicions: list[Fact] = []  # hangs that were suspected
        self.choices: list[Choice] = []  # remedies that the fold itself has chosen
        self.wish_for_protection: bool | None = None  # told while the cluster is in observe
        self.asked_to_stop: str = ""  # why, when somebody asked for Stopped
        self.restart_failed = ""  # why the restart in place did not work
        self.is_evidence_new = False
        self.is_cause_new = False  # what was open about the incident's failure is known now
        self.is_slow_new = False  # a comparison of a machine that is followed
        self.began_attempt = False
        self.entered_troubleshooting = False
        self.first_step_at: datetime | None = None  # all workers' first step
        self.first_steps: dict[WorkerKey, tuple[datetime, int | None]] = {}

        # What the decision will say and want.
        self.uses: list[SignalUse] = []
        self.orders: list[OrderWanted] = []
        self.counts: list[CountWanted] = []
        self.count_changes: list[CountChange] = []
        self.attempts: list[AttemptChange] = []
        self.wanted: list[ActionWanted] = []
        self.action_changes: list[ActionChange] = []
        self.reservations: list[ReservationWanted] = []
        self.held_by: list[GuardRefusal] = []  # guards that held something back in this decision
        self.timeline: list[TimelineEntry] = []
        self.considered: list[Considered] = []
        self.ended: list[tuple[int, EndCause]] = []
        self.next_looks: list[datetime] = []
        self.directive = ""

    # What is so.

    @property
    def is_observing(self) -> bool:
        """Whether nobody obeys here."""
        return not self.job.protected

    @property
    def observing_because(self) -> str:
        """Why nobody obeys."""
        if self.is_mode_observe:
            return "cluster is in observe"
        if self.job.protection_due:
            return "the job runs unprotected until its next start"
        return "the job is unprotected"

    @property
    def job_name(self) -> str:
        """The job for people, and the target of actions about it."""
        return self.before.subject.name or self.before.subject.key

    def open_actions(self, *kinds: ActionKind) -> list[ActionView]:
        """Open actions of these kinds, in order of their rows."""
        return [
            action
            for action in self.actions.values()
            if action.state in OPEN_ACTION_STATES and (not kinds or action.kind in kinds)
        ]

    def is_wanted(self, *kinds: ActionKind) -> bool:
        """Whether such an action is open or wanted by this decision."""
        return bool(self.open_actions(*kinds)) or any(
            action.kind in kinds and action.state in OPEN_ACTION_STATES for action in self.wanted
        )

    def newest_committed(self) -> CheckpointView | None:
        """The checkpoint that a start resumes from; an uncommitted one is ignored."""
        usable = [point for point in self.before.checkpoints if point.state in {"committed", "verified"}]
        return max(usable, key=lambda point: (point.step, point.at), default=None)

    def last_step(self) -> int | None:
        """The highest step of the present attempt: a synchronous step is done on all ranks or on none."""
        attempt = self.attempt
        if attempt is None:
            return None
        steps = [
            view.step
            for view in self.before.incarnations
            if view.step is not None and view.step_at is not None and view.step_at >= attempt.started_at
        ]
        return max(steps, default=attempt.step)

    # What is said.

    def settle(self, rule: str, reason: str) -> None:
        """The rule that fired last, and why."""
        self.rule, self.reason = rule, reason

    def use(self, signal: Signal, use: Use, reason: str) -> None:
        """What became of a signal."""
        self.uses.append(SignalUse(signal.id, use, reason))

    def note(
        self,
        kind: str,
        text: str,
        *,
        signal: Signal | None = None,
        at: datetime | None = None,
        worker: WorkerKey | None = None,
        actor_kind: str = "",
        actor: str = "",
        attempt: int | None = None,
        **data: Any,
    ) -> None:
        """A line for the timeline; it is dropped when there is no incident to put it in."""
        if signal is not None:
            actor_kind = actor_kind or _ACTORS.get(signal.source, "hook")
            actor = actor or str(signal.data.get("by") or "")
            worker = worker or signal.worker
        self.timeline.append(
            TimelineEntry(
                kind=kind,
                at=at or (signal.seen_at if signal else self.now),
                text=text,
                actor_kind=actor_kind or "policy",
                actor=actor,
                signal=signal.id if signal else None,
                worker=worker,
                attempt=self.job.attempt if attempt is None else attempt,
                data=data,
            )
        )

    def tell_first(self, kind: str, *, since: int) -> None:
        """Put the newest line of this kind before those since ``since``: first what happened, then what followed.

        A count stands right behind its failure, and the opening of an incident behind both.
        """
        place = next(n for n in reversed(range(len(self.timeline))) if self.timeline[n].kind == kind)
        line = self.timeline.pop(place)
        if kind == "incident_opened":
            told = ("failure_seen", "failure_counted")
            since = next((n for n, each in enumerate(self.timeline) if each.kind in told), since)
            while since < len(self.timeline) and self.timeline[since].kind in told:
                since += 1
        self.timeline.insert(since, line)

    def look_at(self, when: datetime) -> None:
        """Look again then, at the latest."""
        self.next_looks.append(max(when, self.now + timedelta(milliseconds=50)))

    def add_fact(self, fact: Fact) -> None:
        """Evidence joins; the verdict is judged anew."""
        self.facts.append(fact)
        self.is_evidence_new = True

    # What becomes of the incident.

    def bring_incident(
        self,
        to: IncidentState,
        why: str,
        *,
        waiting_for: WaitingFor | None = None,
        waiting_until: datetime | None = None,
        resolution: Resolution | None = None,
        signal: Signal | None = None,
    ) -> None:
        """Bring the open incident into a state, through its table; each state on the way is said."""
        path = self.incident.bring(
            to, self.now, waiting_for=waiting_for, waiting_until=waiting_until, resolution=resolution
        )
        for state in path:
            data: dict[str, Any] = {"state": str(state)}
            if state is IncidentState.WAITING:
                data |= {"waiting_for": str(waiting_for or "")}
            if state is IncidentState.RESOLVED:
                data |= {"resolution": str(resolution or "")}
            self.note(
                "incident_resolved" if state is IncidentState.RESOLVED else "state_changed",
                f"Incident {str(state).replace('_', ' ')}: {why}",
                signal=signal,
                at=self.now,
                **data,
            )

    # The end.

    def _begins(self, reserved: ReservationWanted) -> bool:
        """Whether it is still so by the end: what the same inbox has overtaken begins nothing."""
        wanted = [(each.kind, each.target) for each in self.wanted if each.state in OPEN_ACTION_STATES]
        begun = [(each.kind, each.target) for each in self.open_actions()]
        return (reserved.kind, reserved.target) in [*wanted, *begun]

    def decision(self, job: JobState | None) -> Decision:
        """Everything, as one record."""
        timeline = self.timeline
        if not self.incident.was_open and not self.incident.is_open and self.incident.change is None:
            # Nobody follows an ordinary life; what comes late joins the incident that it belongs to.
            kept = {"evidence"} if self.before.incident is not None else set()
            kept |= {"count_taken_back", "cause_known"} if self.count_changes else set()
            timeline = [entry for entry in timeline if entry.kind in kept]
        return Decision(
            subject=self.before.subject,
            n=self.before.decision_n,
            policy_version=self.policy.version,
            rule=self.rule,
            reason=self.reason,
            job=job,
            uses=tuple(self.uses),
            orders=tuple(self.orders),
            counts=tuple(self.counts),
            count_changes=tuple(self.count_changes),
            attempts=tuple(self.attempts),
            incident=self.incident.change,
            actions=tuple(self.wanted),
            action_changes=tuple(self.action_changes),
            reservations=tuple(each for each in self.reservations if self._begins(each)),
            timeline=tuple(timeline),
            considered=tuple(self.considered),
            verdict=self.verdict,
            next_look_at=min(self.next_looks, default=None),
            jitter_seed=self.seed,
            run_begins=job is not None and self.before.job is not None and job.run > self.before.job.run,
            directive=self.directive,
            ended_incarnations=tuple(self.ended),
        )
