"""A decision in the making: what one pass has found and wants so far. Lives only inside ``decide``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from agent import wire
from recovery import comparisons, diagnosis
from recovery import culprit as verdicts
from recovery.errors import InvalidTransition
from recovery.evidence import Fact, Role
from recovery.guards import GUARDED_KINDS, held_by
from recovery.incident_draft import IncidentDraft
from recovery.ladder import Choice, jitter_seed
from recovery.lifecycle import (
    ENDED_ACTION_STATES,
    OPEN_ACTION_STATES,
    ActionKind,
    ActionState,
    IncidentState,
    Resolution,
    Severity,
    WaitingFor,
    advance_action,
    incident_path,
)
from recovery.phase_events import Event
from recovery.phases import Count, JobState, Order, OrderKind, Phase, Step, step
from recovery.placement import Lives
from recovery.prices import PricedChoice
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
_SEVERITIES = list(Severity)  # highest first


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
        self.job = job
        self.now = now
        self.policy = policy
        self.lives = Lives.before(state, inbox)
        self.seed = jitter_seed(f"{state.subject.kind}/{state.subject.key}", state.decision_n)
        self.incident = IncidentDraft(state)
        self.actions: dict[str, ActionView] = {action.uid: action for action in state.actions}
        self.attempt: AttemptView | None = state.attempt
        self.began_attempt = False
        self.entered_troubleshooting = False
        self.rows: list[str] = []
        self.failures: list[Failure] = []
        self.suspicions: list[Fact] = []  # hangs that were suspected
        self.choices: list[Choice] = []  # remedies that the fold itself has chosen
        self.is_mode_observe = state.subject.mode is Mode.OBSERVE
        self.wish_for_protection: bool | None = None  # told while the cluster is in observe
        self.asked_to_stop: str = ""  # why, when somebody asked for Stopped
        self.restart_failed = ""  # why the restart in place did not work
        stored = state.incident.verdict if state.incident else {}
        self.facts: list[Fact] = list(verdicts.facts_from_stored(stored))
        self.seen = diagnosis.Seen(stored, registry.find(policy.rules))
        self.slow = comparisons.from_stored(stored.get("slow")) if self.incident.was_open else None
        self.elastic_told = stored.get("elastic")  # what an earlier decision said of a loss
        self.is_slow_new = False  # this inbox brought a comparison of a machine that is followed
        checked = stored.get("checked")
        self.checked: dict[str, bool] = (
            {str(key): bool(value) for key, value in checked.items()} if isinstance(checked, Mapping) else {}
        )
        failed = stored.get("attempt")
        self.failed_attempt = failed if isinstance(failed, int) else None
        self.is_evidence_new = False
        self.is_cause_new = False  # what was open about the incident's failure is known now
        self.first_step_at: datetime | None = None  # all workers' first step, if it came in this inbox
        self.first_steps: dict[WorkerKey, tuple[datetime, int | None]] = {}
        self.rule, self.reason = "none", "nothing changed"
        self.verdict: dict[str, Any] = {}
        self.next_looks: list[datetime] = []
        self.uses: list[SignalUse] = []
        self.orders: list[OrderWanted] = []
        self.counts: list[CountWanted] = []
        self.count_changes: list[CountChange] = []
        self.past: list[PastAttempt] = list(state.past_attempts)
        self.attempts: list[AttemptChange] = []
        self.wanted: list[ActionWanted] = []
        self.action_changes: list[ActionChange] = []
        self.reservations: list[ReservationWanted] = []
        self.held_by: list[GuardRefusal] = []  # guards that held something back in this decision
        self.timeline: list[TimelineEntry] = []
        self.considered: list[Considered] = []
        self.ended: list[tuple[int, EndCause]] = []
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

    def retitle(self, fact: Fact) -> None:
        """Name the open incident after what is known by now, unless its title tells of a stop."""
        verdict = self.judge()
        is_stopping = self.job.is_terminal or self.is_wanted(ActionKind.STOP_JOB)
        if self.incident.is_open and not is_stopping and verdict.rule == fact.rule:
            self.incident.set(title=verdict.reason)

    # What moves.

    def move(self, event: Event, signal: Signal | None = None, *, end_cause: str = "") -> Step:
        """Let the phase machine take an event, and write down what follows."""
        before = self.job
        result = step(before, event)
        self.job = after = result.state
        self.rows += [result.row, *(move.row for move in result.moves)]
        if result.count is not None and signal is not None:
            count = result.count
            self.counts.append(
                CountWanted(
                    count.attempt,
                    count.worker,
                    count.cause,
                    signal.id,
                    would=count.would,
                    witness=count.witness,
                )
            )
            used = after.worker(count.worker)
            says = (
                "would count"
                if count.would
                else f"counted, {used.retries if used else 0} of {after.max_retry}"
            )
            self.note(
                "failure_counted",
                f"Failure of {count.worker} {says}",
                signal=signal,
                at=self.now,
                actor_kind="policy",
                cause=count.cause,
                would=count.would,
                retries=[worker.retries for worker in after.active],
            )
        for move in result.moves:
            self.settle(move.row, move.reason)
            self.note(
                "phase_changed",
                f"{move.before} to {move.after}: {move.reason}",
                before=str(move.before),
                after=str(move.after),
                row=move.row,
            )
            if move.after is Phase.TROUBLESHOOTING:
                self.entered_troubleshooting = True
        if before.phase is Phase.RUN_COMMAND and after.phase is not Phase.RUN_COMMAND:
            self._end_attempt(before, result.count, end_cause or str(after.phase).lower())
        if after.attempt > before.attempt:
            self._begin_attempt(after)
        for order in result.orders:
            self._write(order)
        return result

    def _end_attempt(self, job: JobState, count: Count | None, end_cause: str) -> None:
        is_counted = count is not None and not count.would
        self.attempts.append(AttemptChange(ends=job.attempt, end_cause=end_cause, counted=is_counted))
        attempt = self.attempt
        if attempt is None:
            return
        self.attempt = replace(attempt, ended_at=self.now)
        view = self.lives.of(count.worker) if count is not None else None
        self.past.append(
            PastAttempt(
                n=attempt.n,
                started_at=attempt.started_at,
                ended_at=self.now,
                end_cause=end_cause,
                counted=is_counted,
                worker=count.worker if count is not None else None,
                node=view.node if view is not None else "",
                last_step=self.last_step(),
                resumed_from_step=attempt.resumed_from_step,
                run=job.run,
                sequence=attempt.sequence,
                would=count is not None and count.would,
                witness=count.witness if count is not None else None,
                first_step_at=attempt.first_step_at,
            )
        )

    def know_cause(self, change: CountChange) -> None:
        """The cause of an attempt that was counted is known: by this decision still, or by an earlier one."""
        n = change.attempt
        self.past = [
            replace(
                each, end_cause=change.end_cause, witness=None,
                counted=each.counted and not change.taken_back, would=each.would and not change.taken_back,
                worker=None if change.taken_back else each.worker,
            )
            if each.n == n
            else each
            for each in self.past
        ]  # fmt: skip
        if all(count.attempt != n for count in self.counts):
            self.count_changes.append(change)
            return
        self.attempts = [
            replace(each, end_cause=change.end_cause, counted=each.counted and not change.taken_back)
            if each.ends == n
            else each
            for each in self.attempts
        ]
        if change.taken_back:
            self.counts = [count for count in self.counts if count.attempt != n]
            self.failures = [
                replace(failure, counted=False) if failure.fact.attempt == n else failure
                for failure in self.failures
            ]
        else:
            self.counts = [
                replace(count, cause=change.cause or count.cause, witness=None)
                if count.attempt == n
                else count
                for count in self.counts
            ]

    def _begin_attempt(self, job: JobState) -> None:
        resume = self.newest_committed() if job.protected else None
        self.began_attempt = True
        self.first_steps = {}
        self.attempt = AttemptView(
            n=job.attempt,
            sequence=job.attempt_sequence,
            started_at=self.now,
            end_step=self.attempt.step if self.attempt else None,
        )
        self.attempts.append(
            AttemptChange(
                begins=job.attempt,
                sequence=job.attempt_sequence,
                resumed_from_step=resume.step if resume else None,
            )
        )

    def resumed_from(self, step: int) -> None:
        """The step from which the present attempt went on."""
        if self.attempt is not None and self.attempt.resumed_from_step != step:
            self.attempt = replace(self.attempt, resumed_from_step=step)
            self.attempts.append(AttemptChange(n=self.job.attempt, resumed_from_step=step))

    def _write(self, order: Order) -> None:
        self.orders.append(
            OrderWanted(order.sequence, order.kind.phase, order.targets, self._order_data(order))
        )
        whom = "all workers" if order.targets is None else ", ".join(str(key) for key in order.targets)
        self.note(
            "order_written",
            f"Order {order.sequence} to {whom}: {_ORDER_WORDS[order.kind]}",
            order=str(order.kind),
            sequence=order.sequence,
        )

    def _order_data(self, order: Order) -> Mapping[str, Any]:
        match order.kind:
            case OrderKind.CHECK:
                return {"environment": True, "checks": ["quick"]}
            case OrderKind.RUN:
                resume = self.newest_committed()
                return {
                    "attempt": self.job.attempt,
                    "resume": {"step": resume.step, "path": resume.path} if resume else None,
                }
            case OrderKind.STOP:
                return {"stop": True, "checks": ["quick"], "grace_seconds": self.before.stop_grace_seconds}
            case OrderKind.EXIT:
                return {"exit": True, "code": wire.EXIT_CHECK_FAILED, "reason": order.reason}
            case OrderKind.FINISH:
                return {"finish": True}

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
        incident = self.incident
        if incident.state is None:
            return
        if incident.state is to:
            if to is IncidentState.WAITING and incident.waiting_for is not waiting_for:
                incident.set(waiting_for=waiting_for, waiting_until=waiting_until)
                incident.waiting_for = waiting_for
            return
        for state in incident_path(incident.state, to):
            if state is IncidentState.RESOLVED:
                incident.set(resolution=resolution or Resolution.RECOVERED)
                incident.resolved_at = self.now
            incident.passed(state, self.now)
            data: dict[str, Any] = {"state": str(state)}
            if state is IncidentState.WAITING:
                incident.set(waiting_for=waiting_for, waiting_until=waiting_until)
                incident.waiting_for = waiting_for
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

    def raise_severity(self, severity: Severity) -> None:
        """At least this severe; never less than it was."""
        present = self.incident.severity
        if present is None or _SEVERITIES.index(severity) < _SEVERITIES.index(present):
            self.incident.set(severity=severity)

    # What becomes of actions.

    def want(
        self,
        kind: ActionKind,
        why: str,
        *,
        target: str = "",
        wait_seconds: float = 0.0,
        deadline_seconds: float = 0.0,
        refused_because: str = "",
        needs_yes: bool = False,
        priced: PricedChoice | None = None,
    ) -> None:
        """Want an action: ready at ``now + wait_seconds``, planned where a person must say so, or refused.

        What would begin is reserved in the guards that count it; where one has refused, so is the action.

        ``priced``: what it costs beside the other options, None = not known.
        """
        state = ActionState.READY
        target = target or self.job_name
        if not refused_because and not needs_yes:
            refusal = self.reserve(kind, target)
            if refusal is not None:
                refused_because = held_by(refusal.guard, refusal.numbers)
                self.held_by.append(refusal)
                self.considered.append(Considered(str(kind), refused_because))
                if self.is_told_held(kind):
                    return
        if refused_because:
            state = ActionState.REFUSED
        elif needs_yes:
            state = ActionState.PLANNED
        self.wanted.append(
            ActionWanted(
                kind=kind,
                target=target,
                generation=self.before.decision_n,
                state=state,
                not_before=None if refused_because else self.now + timedelta(seconds=wait_seconds),
                deadline_seconds=deadline_seconds,
                why=why,
                price=priced.as_plain() if priced is not None else {},
                data={"jitter_seed": self.seed} if wait_seconds else {},
                refused_because=refused_because,
            )
        )
        words = str(kind).replace("_", " ")
        costs = f". Costs: {priced.words}" if priced is not None else ""
        if refused_because:
            self.note(
                "action_refused",
                f"Refused: {words}, {refused_because}. {why}{costs}",
                action=str(kind),
                target=target,
            )
        else:
            self.note(
                "decided",
                f"Decided: {words}. {why}{costs}",
                action=str(kind),
                target=target,
                wait_seconds=wait_seconds,
            )

    def reserve(self, kind: ActionKind, target: str) -> GuardRefusal | None:
        """Want room for an action in every guard that counts it. What refuses it, if one has."""
        if kind not in GUARDED_KINDS:
            return None
        for refusal in self.before.guard_refusals:
            if refusal.kind is kind:
                return refusal
        self.reservations.append(ReservationWanted(kind, target))
        return None

    def is_told_held(self, kind: ActionKind) -> bool:
        """Whether people have been told already that a guard holds it back: one row for one wait."""
        return any(each.kind is kind for each in self.before.held_back)

    def change_action(
        self,
        action: ActionView,
        state: ActionState,
        reason: str,
        *,
        not_before: datetime | None = None,
        sequence: int | None = None,
        signal: Signal | None = None,
    ) -> bool:
        """Bring an open action into a state. False when its table has no such way: it is outranked."""
        present = self.actions[action.uid]
        try:
            advance_action(present.state, state)
        except InvalidTransition:
            return False
        self.actions[action.uid] = replace(
            present,
            state=state,
            not_before=not_before if not_before is not None else present.not_before,
            sequence=sequence if sequence is not None else present.sequence,
        )
        self.action_changes.append(ActionChange(action.uid, state, reason, not_before, sequence))
        words = str(action.kind).replace("_", " ")
        kind = "action_sent" if state is ActionState.VERIFYING else f"action_{state}"
        self.note(kind, f"{words.capitalize()} {_state_words(state)}: {reason}", signal=signal, at=self.now,
                  action=str(action.kind), action_uid=action.uid)  # fmt: skip
        return True

    # The end.

    def judged_facts(self) -> list[Fact]:
        """The facts of the attempt that failed."""
        return [fact for fact in self.facts if fact.attempt == self.failed_attempt]

    def judge(self) -> verdicts.Verdict:
        """What the evidence says by now."""
        return verdicts.judge(self.judged_facts(), uncertainty_seconds=self.policy.late_uncertainty_seconds)

    def observe(self, signal: Signal, key: WorkerKey | None, node: str, attempt: int, role: Role) -> None:
        """What a signal of an attempt says for its diagnosis."""
        self.seen.take(
            diagnosis.observe(
                signal, worker=str(key or ""), index=key.index if key else 0, node=node, attempt=attempt,
                is_cause=role is Role.CAUSE,
            )
        )  # fmt: skip

    def diagnose(self) -> tuple[diagnosis.Diagnosis | None, dict[str, Any]]:
        """What the whole evidence of the failed attempt says would mend it, and what is kept of that."""
        attempt = self.attempt
        past = next((each for each in reversed(self.past) if each.n == self.failed_attempt), None)
        is_present = attempt is not None and attempt.n == self.failed_attempt
        step = self.last_step() if is_present else past.last_step if past is not None else None
        of = attempt if is_present else past
        ran = ((of.ended_at or self.now) - of.started_at).total_seconds() if of is not None else 0.0
        has_stepped = step is not None or (of is not None and of.first_step_at is not None)
        return self.seen.judge(
            self.failed_attempt or 0,
            culprit=self.judge().worker,
            past=self.past,
            checkpoints=self.before.checkpoints,
            world=self.before.world,
            last_step=step,
            before_first_step=not has_stepped and ran <= self.policy.start_seconds,
        )

    def store_verdict(self) -> verdicts.Verdict:
        """Judge, and keep it with its facts in the incident."""
        verdict = self.judge()
        found, kept = self.diagnose()
        facts = self.judged_facts()
        causes = [fact for fact in facts if fact.role is not Role.CONTEXT]
        context = [fact for fact in facts if fact.role is Role.CONTEXT]
        stored = verdicts.to_stored(verdict, [*context[-10:], *causes[-40:]], self.checked)
        if found is not None and found.is_strong:
            stored["evidence"] = [*diagnosis.lines(found.verdict.evidence), *stored["evidence"]]
            stored["contradicts"] = [*stored["contradicts"], *diagnosis.lines(found.verdict.contradictions)]
        self.verdict = stored | kept | {"attempt": self.failed_attempt, "checked": dict(self.checked)}
        if self.slow is not None and self.slow.attempt == self.failed_attempt:
            self.verdict["slow"] = comparisons.to_stored(self.slow)
        told = self.elastic_told
        if isinstance(told, Mapping) and told.get("attempt") == self.failed_attempt:
            self.verdict["elastic"] = dict(told)
        self.incident.set(verdict=self.verdict)
        return verdict

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


_ORDER_WORDS = {
    OrderKind.CHECK: "check the machine",
    OrderKind.RUN: "start training",
    OrderKind.STOP: "stop training, run quick checks",
    OrderKind.EXIT: "leave the container",
    OrderKind.FINISH: "all finished, leave",
}


def _state_words(state: ActionState) -> str:
    if state is ActionState.VERIFYING:
        return "sent"
    if state in ENDED_ACTION_STATES or state is ActionState.RUNNING:
        return str(state)
    return f"is {str(state).replace('_', ' ')}"
