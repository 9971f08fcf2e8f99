"""A desk in memory: applies decisions to a SubjectState as the services do with rows.

``Desk`` plays one job: agents speak, the watch reports, time passes, actions are claimed. Each call that
speaks queues a signal; ``decide`` drains them all in one decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from recovery.decide import (
    ActionView,
    AttemptView,
    CheckpointView,
    Decision,
    IncarnationView,
    IncidentView,
    Mode,
    OrderView,
    PastAttempt,
    Policy,
    Subject,
    SubjectState,
    decide,
)
from recovery.lifecycle import (
    OPEN_ACTION_STATES,
    OPEN_INCIDENT_STATES,
    ActionKind,
    ActionState,
    IncidentState,
    Severity,
    advance_action,
    advance_incident,
)
from recovery.phases import JobState, MessagePhase, MessageType, Phase
from recovery.signals import EndCause, Signal, SignalKind, Source, SubjectKind, Use, WorkerKey
from tests.recovery.jobs import W, make_job

START = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
CLEAN = [
    {"check": "gpu", "result": "pass", "seconds": 0.1},
    {"check": "io", "result": "pass", "seconds": 0.02},
]
SHORT = Policy(
    steady_seconds=3, steady_steps=5, enrol_barrier_seconds=5, stop_ack_seconds=10, start_seconds=60,
    restart_process_deadline_seconds=15, stop_job_deadline_seconds=30, reopen_seconds=60,
    capacity_deadline_seconds=20, backoff_base_seconds=2, backoff_window_seconds=600,
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """A decision with what went in."""

    state: SubjectState
    inbox: tuple[Signal, ...]
    decision: Decision
    now: datetime

    def use_of(self, signal: Signal) -> Use:
        return next(use.use for use in self.decision.uses if use.signal == signal.id)


class Desk:
    """See module."""

    def __init__(
        self,
        workers: int = 3,
        max_retry: int = 2,
        *,
        mode: Mode = Mode.AUTO,
        policy: Policy = SHORT,
        protected: bool = True,
    ) -> None:
        self.now = START
        self.policy = policy
        self.inbox: list[Signal] = []
        self.log: list[Seen] = []
        self.signals = 0
        self.lives = 0
        self.incidents = 0
        self.state = SubjectState(
            subject=Subject(SubjectKind.JOB, "7", "nlp", "west-1", name="nlp/llm", mode=mode),
            decision_n=1,
            job=make_job(workers=workers, max_retry=max_retry, protected=protected),
            machines=(),
        )
        self.ended_actions: dict[str, ActionView] = {}

    # Reading.

    @property
    def job(self) -> JobState:
        assert self.state.job is not None
        return self.state.job

    @property
    def incident(self) -> IncidentView:
        assert self.state.incident is not None
        return self.state.incident

    @property
    def retries(self) -> str:
        return ":".join(str(worker.retries) for worker in self.job.workers)

    @property
    def counts(self) -> list[tuple[int, int, str]]:
        found: dict[int, tuple[int, int, str]] = {}
        for seen in self.log:
            for count in seen.decision.counts:
                if not count.would:
                    found[count.attempt] = (count.attempt, count.worker.index, count.cause)
            for change in seen.decision.count_changes:
                attempt, index, cause = found.pop(change.attempt)
                if not change.taken_back:
                    found[attempt] = (attempt, index, change.cause or cause)
        return [found[attempt] for attempt in sorted(found)]

    @property
    def last(self) -> Decision:
        return self.log[-1].decision

    def wanted(self, kind: ActionKind) -> list[Any]:
        return [action for seen in self.log for action in seen.decision.actions if action.kind is kind]

    def timeline(self, *kinds: str) -> list[str]:
        return [
            entry.text
            for seen in self.log
            for entry in seen.decision.timeline
            if not kinds or entry.kind in kinds
        ]

    def life(self, index: int) -> IncarnationView:
        mine = [view for view in self.state.incarnations if view.worker == W[index] and view.is_current]
        return mine[-1]

    # Speaking.

    def signal(
        self, kind: SignalKind, source: Source, data: Mapping[str, Any] | None = None, **fields: Any
    ) -> Signal:
        self.signals += 1
        signal = Signal(
            id=self.signals, source=source, kind=kind, seen_at=fields.pop("seen_at", self.now),
            received_at=self.now, data=data or {}, **fields,
        )  # fmt: skip
        self.inbox.append(signal)
        return signal

    def agent(
        self, index: int, kind: SignalKind, data: Mapping[str, Any] | None = None, **fields: Any
    ) -> Signal:
        worker = self.job.worker(W[index])
        sequence = worker.last_sequence if worker else 0
        life = self.life(index)
        self._see_life(life.id, last_seen_at=self.now)
        return self.signal(
            kind, Source.AGENT, data, worker=W[index],
            **({"incarnation": life.id, "sequence": sequence} | fields),
        )  # fmt: skip

    def enrol(self, *indexes: int) -> None:
        for index in indexes:
            self.lives += 1
            old = [v for v in self.state.incarnations if v.worker == W[index] and v.is_current]
            for view in old:
                self._see_life(view.id, is_current=False)
            view = IncarnationView(
                id=self.lives, worker=W[index], pod_uid=f"pod-{index}-{self.lives}", restart_count=0,
                node=f"gpu-r01-{index + 1:02}", enrolled_at=self.now, last_seen_at=self.now,
            )  # fmt: skip
            self.state = replace(self.state, incarnations=(*self.state.incarnations, view))
            replaced = [v.id for v in old if v.ended_at is None]
            self.signal(
                SignalKind.ENROLLED, Source.AGENT, {"replaces": replaced[0] if replaced else None},
                worker=W[index], incarnation=view.id,
            )  # fmt: skip

    def boot_check(self, *indexes: int, checks: list[dict[str, Any]] | None = None) -> None:
        for index in indexes:
            self.agent(
                index, SignalKind.ACK, {"checks": checks or CLEAN, "environment": {}}, phase="bootcheck"
            )

    def stopped(self, *indexes: int, checks: list[dict[str, Any]] | None = None) -> None:
        for index in indexes:
            self.agent(index, SignalKind.ACK, {"checks": checks or CLEAN}, phase="troubleshoot")

    def started(self, *indexes: int) -> None:
        for index in indexes:
            self.agent(index, SignalKind.ACK, {"pids": {"agent": 10, "command": 20 + index}}, phase="command")

    def first_step(self, *indexes: int, step: int = 1) -> None:
        for index in indexes:
            self.agent(index, SignalKind.MARK, {"mark": "first_step", "step": step})
        self.heartbeat(*indexes, step=step)

    def heartbeat(self, *indexes: int, step: int) -> None:
        for index in indexes:
            self._see_life(
                self.life(index).id, last_seen_at=self.now, step=step, step_at=self.now, step_seconds=0.2
            )
        attempt = self.state.attempt
        if attempt is not None:
            self.state = replace(
                self.state, attempt=replace(attempt, step=step, step_at=self.now, step_seconds=0.2)
            )

    def kill(self, index: int, signal: int = 9, **fields: Any) -> Signal:
        """SIGKILL of a rank: its agent tells at once."""
        data = {"signal": signal, "pid": 20 + index, "log_tail": [], "step": 3388}
        return self.agent(index, SignalKind.ERROR, data, phase="command", **fields)

    def fail(self, index: int, *log: str, exit_code: int = 1, **fields: Any) -> Signal:
        data = {"exit_code": exit_code, "log_tail": list(log), "step": 3388}
        return self.agent(index, SignalKind.ERROR, data, phase="command", **fields)

    def end_pod(
        self, index: int, cause: EndCause = EndCause.DELETED, *, source: Source = Source.WATCH, **fields: Any
    ) -> Signal:
        """A pod is gone; the watch writes its row first."""
        return self.end_life(self.life(index), cause, source=source, **fields)

    def end_life(
        self, life: IncarnationView, cause: EndCause, *, source: Source = Source.WATCH, **fields: Any
    ) -> Signal:
        """The same of a certain life, perhaps one whose successor is there already."""
        seen_at = fields.pop("seen_at", self.now)
        if source is Source.WATCH:
            self._see_life(life.id, ended_at=seen_at, is_running=False)
        reason = fields.pop("reason", "")
        data = {
            "pod_uid": life.pod_uid,
            "restart": 0,
            "cause": str(cause),
            "exit_code": None,
            "reason": reason,
        }
        return self.signal(
            SignalKind.INCARNATION_ENDED, source, data, worker=life.worker, incarnation=life.id,
            seen_at=seen_at, **fields,
        )  # fmt: skip

    def _see_life(self, life: int, **changes: Any) -> None:
        self.state = replace(
            self.state,
            incarnations=tuple(
                replace(view, **changes) if view.id == life else view for view in self.state.incarnations
            ),
        )

    # Deciding.

    def decide(self) -> Decision:
        """Drain the inbox in one decision and apply it."""
        inbox, self.inbox = tuple(self.inbox), []
        decision = decide(self.state, inbox, self.now, self.policy)
        assert {use.signal for use in decision.uses} == {signal.id for signal in inbox}, (
            "every signal has a use"
        )
        self.log.append(Seen(self.state, inbox, decision, self.now))
        self._apply(decision)
        return decision

    def wait(self, seconds: float) -> None:
        """Time passes; the tick looks when a decision asked for it."""
        end = self.now + timedelta(seconds=seconds)
        while self.state.next_look_at is not None and self.state.next_look_at <= end:
            self.now = max(self.now, self.state.next_look_at)
            self.signal(SignalKind.LOOK, Source.DESK)
            self.decide()
        self.now = end

    def claim(self, kind: ActionKind = ActionKind.RESTART_PROCESS) -> ActionView:
        """The executor claims the ready action of this kind, when its time has come."""
        action = next(a for a in self.state.actions if a.kind is kind and a.state is ActionState.READY)
        if action.not_before is not None and action.not_before > self.now:
            self.wait((action.not_before - self.now).total_seconds())
        deadline = self.now + timedelta(seconds=float(action.data["deadline_seconds"]))
        claimed = replace(action, state=ActionState.RUNNING, try_n=action.try_n + 1, deadline=deadline)
        self._put(claimed)
        return claimed

    def go(self) -> Signal:
        """Claim the restart in place and send it."""
        action = self.claim()
        return self.signal(
            SignalKind.ACTION_GO, Source.DESK, {"action_uid": action.uid, "try": action.try_n, "lease": ""}
        )

    def do(self, kind: ActionKind, state: ActionState = ActionState.DONE, detail: str = "seen") -> Signal:
        """Carry out another action: claimed, sent, and its end told."""
        action = self.claim(kind)
        self._put(replace(action, state=ActionState.VERIFYING))
        return self.signal(
            SignalKind.ACTION_ENDED,
            Source.DESK,
            {"action_uid": action.uid, "state": str(state), "detail": detail},
        )

    def _put(self, action: ActionView) -> None:
        self.state = replace(
            self.state, actions=tuple(action if a.uid == action.uid else a for a in self.state.actions)
        )

    def _apply(self, decision: Decision) -> None:
        state = replace(
            self.state, job=decision.job, decision_n=decision.n + 1, next_look_at=decision.next_look_at
        )
        for order in decision.orders:
            state = replace(state, order=OrderView(order.sequence, order.phase, self.now))
        for change in decision.attempts:
            if change.ends is not None and state.attempt is not None:
                attempt = replace(state.attempt, ended_at=self.now)
                count = next((c for c in decision.counts if c.attempt == change.ends), None)
                past = PastAttempt(
                    n=attempt.n, started_at=attempt.started_at, ended_at=self.now,
                    end_cause=change.end_cause, counted=change.counted,
                    worker=count.worker if count else None, node="", last_step=attempt.step,
                    resumed_from_step=attempt.resumed_from_step, sequence=attempt.sequence,
                    run=self.job.run, would=count.would if count else False,
                    witness=count.witness if count else None,
                    first_step_at=attempt.first_step_at, found=change.found,
                )  # fmt: skip
                state = replace(state, attempt=attempt, past_attempts=(*state.past_attempts, past))
            elif change.found is not None:
                told = tuple(
                    replace(each, found=change.found) if each.n == change.n else each
                    for each in state.past_attempts
                )
                state = replace(state, past_attempts=told)
            if change.begins is not None:
                attempt = AttemptView(
                    n=change.begins, sequence=change.sequence or 0, started_at=self.now,
                    resumed_from_step=change.resumed_from_step,
                )  # fmt: skip
                views = tuple(
                    replace(view, attempts=(*view.attempts, change.begins))
                    if view.is_current and view.ended_at is None
                    else view
                    for view in state.incarnations
                )
                state = replace(state, attempt=attempt, incarnations=views)
            if change.first_step_at is not None and state.attempt is not None:
                state = replace(state, attempt=replace(state.attempt, first_step_at=change.first_step_at))
        for known in decision.count_changes:
            past = next(past for past in state.past_attempts if past.n == known.attempt)
            changed = replace(past, end_cause=known.end_cause, witness=None)
            if known.taken_back:
                changed = replace(changed, counted=False, would=False, worker=None)
            attempts = tuple(changed if each is past else each for each in state.past_attempts)
            state = replace(state, past_attempts=attempts)
        self.state = state
        for life, _ in decision.ended_incarnations:
            view = next((view for view in state.incarnations if view.id == life), None)
            if view is not None and view.ended_at is None:
                self._see_life(life, ended_at=self.now, is_running=False)
        self._apply_incident(decision)
        self._apply_actions(decision)

    def _apply_incident(self, decision: Decision) -> None:
        change, view = decision.incident, self.state.incident
        if change is None:
            return
        if change.closes_resolved:
            assert view is not None
            assert view.state is IncidentState.RESOLVED
            view = None
            self.state = replace(self.state, actions=())
        if change.opens:
            assert view is None or view.state not in OPEN_INCIDENT_STATES, "one open incident a subject"
            self.incidents += 1
            view = IncidentView(
                uid=f"incident-{self.incidents}", state=change.path[0], opened_at=self.now,
                severity=Severity.LOW, state_since=self.now,
            )  # fmt: skip
            path = change.path[1:]
        elif view is None:
            self.state = replace(self.state, incident=None)
            return
        else:
            path = change.path
        for state in path:
            advance_incident(view.state, state)
            view = replace(view, state=state, state_since=self.now, waiting_for=None)
            if state is IncidentState.RESOLVED:
                view = replace(view, resolved_at=self.now)
            if state is IncidentState.OPEN and change.reopens:
                view = replace(view, resolved_at=None)
        columns = ("severity", "rung", "waiting_for", "resolution", "attempt", "seen_failed_at",
                 "watching_from_step", "verdict")  # fmt: skip
        found = {name: getattr(change, name) for name in columns if getattr(change, name) is not None}
        if change.state is not None and change.state is not IncidentState.WAITING:
            found.pop("waiting_for", None)
        names = {so_far: category for so_far, category, _ in change.renamed_causes}
        known = [names.get(category, category) for category in view.causes]
        causes = tuple(dict.fromkeys((*known, *(category for category, _ in change.causes))))
        self.state = replace(self.state, incident=replace(view, causes=causes, **found))

    def _apply_actions(self, decision: Decision) -> None:
        for change in decision.action_changes:
            action = next(a for a in self.state.actions if a.uid == change.uid)
            advance_action(action.state, change.state)
            self._put(
                replace(
                    action,
                    state=change.state,
                    not_before=change.not_before or action.not_before,
                    sequence=change.sequence or action.sequence,
                )
            )
        keys = set()
        for n, wanted in enumerate(decision.actions):
            key = (wanted.kind, wanted.target, wanted.generation)
            assert key not in keys, "the key of an action is unique"
            keys.add(key)
            action = ActionView(
                uid=f"action-{decision.n}-{n}", kind=wanted.kind, target=wanted.target,
                generation=wanted.generation, state=wanted.state, not_before=wanted.not_before,
                data={"deadline_seconds": wanted.deadline_seconds},
            )  # fmt: skip
            self.state = replace(self.state, actions=(*self.state.actions, action))
        for action in self.state.actions:
            if action.state not in OPEN_ACTION_STATES:
                self.ended_actions[action.uid] = action
        self.state = replace(
            self.state, actions=tuple(a for a in self.state.actions if a.state in OPEN_ACTION_STATES)
        )

    # Whole ways.

    def start(self, step: int = 1) -> None:
        """From nothing to the first step."""
        everyone = range(len(self.job.workers))
        self.signal(SignalKind.JOB_KNOWN, Source.WATCH, {"suspended": False})
        self.enrol(*everyone)
        self.decide()
        self.boot_check(*everyone)
        self.decide()
        self.now += timedelta(seconds=0.2)
        self.started(*everyone)
        self.first_step(*everyone, step=step)
        self.decide()
        assert self.job.phase is Phase.RUN_COMMAND

    def recover(self, step: int = 3301) -> None:
        """From Troubleshooting to all stepping again."""
        everyone = [worker.key.index for worker in self.job.present]
        self.now += timedelta(seconds=0.3)
        self.stopped(*everyone)
        self.decide()
        self.now += timedelta(seconds=0.1)
        self.go()
        self.decide()
        self.now += timedelta(seconds=0.2)
        self.started(*everyone)
        self.decide()
        self.now += timedelta(seconds=0.5)
        self.first_step(*everyone, step=step)
        self.decide()

    def keep_stepping(self, seconds: float, step: int) -> None:
        """Heartbeats with a new step, then time passes."""
        self.heartbeat(*[worker.key.index for worker in self.job.present], step=step)
        self.wait(seconds)


def committed(step: int) -> CheckpointView:
    return CheckpointView(step, f"/checkpoints/step-{step:08}", "committed", START)


__all__ = ["CLEAN", "SHORT", "START", "Desk", "MessagePhase", "MessageType", "WorkerKey", "committed"]


def started(**fields: object) -> Desk:
    """A desk whose job trains."""
    desk = Desk(**fields)  # type: ignore[arg-type]
    desk.start()
    return desk
