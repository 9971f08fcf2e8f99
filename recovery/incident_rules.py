"""After the inbox is read: what becomes of incident and actions, by what is so now. Source: DOMAIN sections 5, 7.

Level, not edge: each rule looks at the job's phase, the open actions and the time, and may run again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from recovery import phase_events as ev
from recovery import wording
from recovery.action_rules import (
    NOT_BEGUN,
    REMEDIES,
    ask,
    carry_out,
    settle_deadlines,
    settle_restart,
    settle_stop,
    take_next_rung,
)
from recovery.causes import look_at_hold
from recovery.comparisons import SLOW
from recovery.culprit import facts_from_stored, judge
from recovery.decision_prices import price_of_restart
from recovery.draft import Draft
from recovery.draft_actions import change_action, want
from recovery.draft_job import move
from recovery.draft_verdict import diagnose, judge_failure, store_verdict
from recovery.elastic import look_at_elastic
from recovery.evidence import Role, ended_alike
from recovery.guard_rules import settle_held, try_held_again
from recovery.ladder import Choice, Situation, choose, failures_in_window, stuck
from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution, Severity, WaitingFor
from recovery.phases import WAITING_FOR_CAPACITY, MessagePhase, MessageType, Phase, WorkerState
from recovery.records import AttemptChange, Mode
from recovery.rules import ends
from recovery.slow_nodes import is_followed, look_at_slow

#: Look again after this, in seconds, where steps are waited for whose pace is not known.
LOOK_SECONDS = 2.0

_BARRED = frozenset({Phase.PENDING, Phase.BOOT_CHECKING, Phase.RESTARTING})


def conclude(draft: Draft) -> None:
    """Bring incident and actions to where the job is."""
    look_at_hold(draft)
    _look_at_barrier(draft)
    _open_for_failures(draft)
    _open_for_suspicion(draft)
    _open_for_stop(draft)
    _note_first_steps(draft)
    settle_restart(draft)
    settle_stop(draft)
    settle_deadlines(draft)
    look_at_slow(draft)
    for choice in draft.choices:
        carry_out(draft, choice)
    try_held_again(draft)
    if draft.incident.is_open:
        match draft.job.phase:
            case Phase.TROUBLESHOOTING:
                _troubleshooting(draft)
            case Phase.RESTARTING:
                _restarting(draft)
            case Phase.RUN_COMMAND:
                _training(draft)
            case Phase.FAILED | Phase.SUCCEEDED | Phase.STOPPED:
                _over(draft)
            case Phase.PENDING | Phase.BOOT_CHECKING:
                pass
    look_at_elastic(draft)
    settle_held(draft)
    if draft.is_observing:
        _refuse_while_observing(draft)
    if draft.is_evidence_new and (draft.incident.is_open or draft.is_cause_new):
        store_verdict(draft)
    _close_resolved(draft)
    _direct(draft)
    for action in draft.open_actions():
        if action.deadline is not None and action.state in (ActionState.VERIFYING, ActionState.READY):
            draft.look_at(action.deadline)


# The barrier.


def _look_at_barrier(draft: Draft) -> None:
    """Agents wait for each other only so long, once every pod runs: training must not wait for us."""
    job = draft.job
    since = draft.before.world_running_at
    if not job.protected or job.phase not in _BARRED or since is None or not job.present or job.is_held:
        return
    attempt = draft.attempt
    if attempt is not None and attempt.ended_at is not None and since <= attempt.started_at:
        return  # that was the attempt's own world: the watch has not seen it whole again since
    order = draft.before.order
    if job.phase is not Phase.PENDING and order is not None:
        since = max(since, order.written_at)
    if draft.orders:
        since = max(since, draft.now)
    due = since + timedelta(seconds=draft.policy.enrol_barrier_seconds)
    if draft.now < due:
        draft.look_at(due)
        return
    missing = [w.key for w in job.present if not w.enrolled] or [
        w.key
        for w in job.present
        if w.must_exit or w.restarted or (w.inner_phase is Phase.BOOT_CHECKING and not w.handled)
    ]
    result = move(draft, ev.BarrierExpired())
    draft.note(
        "barrier_expired",
        f"{wording.workers(missing)} not heard of in {draft.policy.enrol_barrier_seconds:.0f} s: "
        f"{result.reason}",
        actor_kind="desk",
    )


# Opening.


def _open_for_failures(draft: Draft) -> None:
    """Every failure opens an incident, reopens the resolved one of the same cause, or joins the open one."""
    if not draft.failures:
        return
    verdict = judge_failure(draft)
    first = draft.failures[0]
    title = verdict.reason if verdict.support else first.fact.text
    incident = draft.incident
    if incident.state in {IncidentState.WATCHING, IncidentState.WAITING, IncidentState.RECOVERING,
                          IncidentState.NEEDS_PERSON}:  # fmt: skip
        again = "relapse" if incident.state is IncidentState.WATCHING else "another failure"
        if incident.state is IncidentState.NEEDS_PERSON:
            incident.set(rung="")  # what ended is started anew, so the lowest rung may be tried again
        draft.bring_incident(IncidentState.OPEN, f"{again}: {first.fact.text}", signal=first.signal)
    elif not incident.is_open:
        _open(draft, verdict.category, title)
    elif incident.state is IncidentState.SUSPECTED:
        draft.bring_incident(IncidentState.OPEN, first.fact.text, signal=first.signal)
    for failure in draft.failures:
        if failure.fact.role is not Role.CONTEXT or not incident.causes:
            incident.join(failure.fact.category, failure.fact.text)
    seen = min(failure.fact.at for failure in draft.failures)
    incident.set(title=title, attempt=draft.failed_attempt or 0)
    if any(failure.left_run for failure in draft.failures) or incident.seen_failed_at is None:
        incident.set(seen_failed_at=seen)
    counted = any(failure.counted for failure in draft.failures)
    draft.incident.raise_severity(Severity.MEDIUM if counted else Severity.LOW)
    known = draft.before.incident.causes if incident.was_open and draft.before.incident else ()
    ends_known = [category for category in known if category != SLOW]
    is_new_cause = ends_known and any(f.counted and f.fact.category not in known for f in draft.failures)
    is_last_one = counted and draft.job.recover_count >= draft.job.max_retry and draft.job.protected
    if is_new_cause or is_last_one:
        draft.incident.raise_severity(Severity.HIGH)


def _open(draft: Draft, category: str, title: str) -> None:
    """Open a new incident, or the one that was resolved a short while ago for the same cause."""
    incident = draft.incident
    if incident.state is IncidentState.RESOLVED and incident.was_open:
        incident.take_back()
        draft.bring_incident(IncidentState.OPEN, f"newer than its resolution: {title}")
        return
    since = incident.resolved_at
    bound = timedelta(seconds=draft.policy.reopen_seconds)
    is_recent = incident.state is IncidentState.RESOLVED and since is not None and draft.now - since <= bound
    if is_recent and _is_same_cause(draft, category):
        incident.set(reopens=True, rung="")
        draft.bring_incident(IncidentState.OPEN, f"the same cause again: {title}")
        return
    incident.begin(draft.now)
    incident.passed(IncidentState.OPEN, draft.now)
    draft.note("incident_opened", f"Incident opened: {title}", at=draft.now)
    draft.tell_first("incident_opened", since=len(draft.timeline) - 1)


def _is_same_cause(draft: Draft, category: str) -> bool:
    """Whether the resolved incident had this cause. Two that are not known are the same where they ended alike."""
    resolved = draft.before.incident
    if category not in draft.incident.causes or resolved is None:
        return False
    if category != ends.UNKNOWN.category:
        return True
    stored = resolved.verdict
    facts = (fact for fact in facts_from_stored(stored) if fact.attempt == stored.get("attempt"))
    was = judge(facts, uncertainty_seconds=draft.policy.late_uncertainty_seconds).support
    now = judge_failure(draft).support
    return bool(was and now) and ended_alike(was[0], now[0])


def _open_for_suspicion(draft: Draft) -> None:
    """A suspected hang flags the job; nothing is killed and nothing is counted."""
    if not draft.suspicions or draft.job.phase is not Phase.RUN_COMMAND:
        return
    fact = draft.suspicions[0]
    if draft.incident.is_open or draft.incident.was_open:
        draft.note("evidence", fact.text, attempt=fact.attempt)
        return
    draft.incident.begin(draft.now)
    draft.incident.passed(IncidentState.SUSPECTED, draft.now)
    draft.incident.join(fact.category, fact.text)
    draft.incident.set(
        title=f"Suspected: {fact.text[:1].lower()}{fact.text[1:]}",
        severity=Severity.LOW,
        attempt=fact.attempt,
        seen_failed_at=fact.at,
    )
    draft.failed_attempt = fact.attempt
    draft.checked = {}
    draft.add_fact(fact)
    draft.note("incident_opened", f"Incident suspected: {fact.text}", at=draft.now)
    draft.settle("hang_suspected.flagged", fact.text)


def _open_for_stop(draft: Draft) -> None:
    """A stop on request is carried out like any action: seen, and told."""
    if draft.job.phase is not Phase.STOPPED or draft.is_wanted(ActionKind.STOP_JOB):
        return
    stops = {"quit", "safe_point.stop", "auto.quit"}
    if not stops & set(draft.rows):
        return
    why = draft.asked_to_stop or "Stop asked for before; training has ended"
    if not draft.incident.is_open:
        _open(draft, "stop_asked", why)
        draft.incident.join("stop_asked", why)
        draft.incident.set(title=why, attempt=draft.job.attempt)
        draft.incident.raise_severity(Severity.LOW)
        draft.failed_attempt = draft.job.attempt
    want(
        draft, ActionKind.STOP_JOB, f"{why}. The job is suspended, not deleted.",
        deadline_seconds=draft.policy.stop_job_deadline_seconds,
    )  # fmt: skip


# By phase.


def _troubleshooting(draft: Draft) -> None:
    """All stand still: once every stop is confirmed, or the bound has passed, the ladder chooses."""
    incident = draft.incident
    if draft.is_observing or draft.is_wanted(*REMEDIES) or draft.job.is_held:
        return
    if incident.state is IncidentState.NEEDS_PERSON:
        if not draft.entered_troubleshooting:
            return
        draft.bring_incident(IncidentState.OPEN, "all workers are back")
    job = draft.job
    due = _stop_due(draft)
    leaving = [worker.key for worker in job.present if worker.must_exit]
    silent = [
        worker.key
        for worker in job.present
        if not worker.must_exit and not worker.has_answered(MessageType.ACK, MessagePhase.TROUBLESHOOT)
    ]
    if (leaving or silent) and draft.now < due:
        draft.look_at(due)
        return
    if leaving:
        ask(draft, f"{wording.workers(leaving)} was told to leave its container and is still there")
        return
    if draft.is_evidence_new or silent:
        store_verdict(draft)
    verdict = judge_failure(draft)
    attempts = draft.past
    stuck_restarts, stuck_step = stuck(attempts, draft.policy)
    choice = choose(
        Situation(
            category=verdict.category,
            reason=verdict.reason,
            workers=len(job.present),
            checks_clean=sum(draft.checked.get(str(worker.key), False) for worker in job.present),
            checks_failed=tuple(fact.text for fact in verdict.failed_checks),
            silent=tuple(str(key) for key in silent),
            departed=tuple(str(worker.key) for worker in job.active if worker.departed),
            restart_failed=draft.restart_failed,
            failures_in_window=failures_in_window(attempts, draft.now, draft.policy),
            stuck_restarts=stuck_restarts,
            stuck_step=stuck_step,
            diagnosis=diagnose(draft)[0],
            rebuilt=_rebuilt(draft, verdict.worker),
        ),
        draft.policy,
        draft.seed,
    )
    carry_out(draft, choice)
    kinds = {remedy.kind for remedy in choice.remedies}
    if draft.held_by:
        return
    if ActionKind.RESTART_PROCESS in kinds:
        _wait_or_recover(draft, choice)
    elif ActionKind.STOP_JOB in kinds:
        incident.set(title=choice.why)
        draft.incident.raise_severity(Severity.CRITICAL)
    else:
        draft.incident.raise_severity(Severity.HIGH)
        draft.bring_incident(IncidentState.NEEDS_PERSON, choice.why)


def _rebuilt(draft: Draft, worker: str) -> str:
    """The worker, when its present life has begun since the attempt that failed; else ""."""
    is_new = any(
        str(view.worker) == worker and view.is_current and draft.failed_attempt not in view.attempts
        for view in draft.before.incarnations
    )
    return worker if is_new and draft.failed_attempt is not None else ""


def _wait_or_recover(draft: Draft, choice: Choice) -> None:
    if draft.before.subject.mode is Mode.APPROVE:
        draft.bring_incident(IncidentState.WAITING, "a person must say so", waiting_for=WaitingFor.APPROVAL)
    elif choice.wait_seconds:
        until = draft.now + timedelta(seconds=choice.wait_seconds)
        draft.bring_incident(
            IncidentState.WAITING, f"back-off of {choice.wait_seconds:.1f} s",
            waiting_for=WaitingFor.BACKOFF, waiting_until=until,
        )  # fmt: skip
    else:
        draft.bring_incident(IncidentState.RECOVERING, choice.why)


def _stop_due(draft: Draft) -> datetime:
    """Until when the answers to the stop are waited for."""
    policy = draft.policy
    order = draft.before.order
    begun = draft.now
    is_new = any(order.phase is MessagePhase.TROUBLESHOOT for order in draft.orders)
    if not is_new and order is not None and order.phase is MessagePhase.TROUBLESHOOT:
        begun = order.written_at
    return begun + timedelta(
        seconds=draft.before.stop_grace_seconds + policy.check_seconds + policy.stop_ack_seconds
    )


def _restarting(draft: Draft) -> None:
    """The replaced ones are waited for: for capacity where the cluster says so."""
    incident, job = draft.incident, draft.job
    if draft.is_observing or incident.state is IncidentState.NEEDS_PERSON:
        return
    if not job.reason.startswith(WAITING_FOR_CAPACITY):
        missing = [worker.key for worker in job.present if not worker.enrolled]
        draft.bring_incident(
            IncidentState.RECOVERING,
            f"waits for {wording.workers(missing)} to come back" if missing else "boot check runs",
        )
        _look_at_return(draft, wording.workers(missing) if missing else "the boot check")
        return
    until = draft.now + timedelta(seconds=draft.policy.capacity_deadline_seconds)
    if incident.waiting_for is not WaitingFor.CAPACITY:
        draft.bring_incident(
            IncidentState.WAITING, job.reason, waiting_for=WaitingFor.CAPACITY, waiting_until=until
        )
        draft.look_at(until)
        return
    since = incident.state_since or draft.now
    due = since + timedelta(seconds=draft.policy.capacity_deadline_seconds)
    if draft.now < due:
        draft.look_at(due)
    elif incident.severity not in {Severity.HIGH, Severity.CRITICAL}:
        draft.incident.raise_severity(Severity.HIGH)
        waited = (draft.now - since).total_seconds()
        draft.note("waiting", f"Still {job.reason} after {waited:.0f} s. Going on smaller is not installed.")
        draft.settle("capacity.deadline", job.reason)


def _look_at_return(draft: Draft, missing: str) -> None:
    """A pod that is placed and never runs (an image that cannot be pulled) waits for no capacity: say so once."""
    since = draft.incident.state_since or draft.now
    due = since + timedelta(seconds=draft.policy.capacity_deadline_seconds)
    if draft.now < due:
        draft.look_at(due)
    elif draft.incident.severity not in {Severity.HIGH, Severity.CRITICAL}:
        draft.incident.raise_severity(Severity.HIGH)
        waited = (draft.now - since).total_seconds()
        draft.note("waiting", f"Still waits for {missing} after {waited:.0f} s: look at its pod.")
        draft.settle("return.deadline", f"{missing} is not back after {waited:.0f} s")


def _training(draft: Draft) -> None:
    """Training runs again: watch it until it is steady."""
    incident, job = draft.incident, draft.job
    if is_followed(draft):
        return
    if incident.state is IncidentState.SUSPECTED:
        _clear_suspicion(draft)
        return
    if draft.failed_attempt is not None and job.attempt <= draft.failed_attempt:
        return
    if draft.restart_failed:
        take_next_rung(draft)
        return
    if incident.state is not IncidentState.WATCHING:
        if not _all_step(draft):
            _look_at_start(draft)
            return
        step = _lowest_step(draft)
        incident.set(watching_from_step=step)
        draft.bring_incident(
            IncidentState.WATCHING, f"all workers step{'' if step is None else f', at step {step}'}"
        )
        draft.settle("training.steps", "all workers step")
    _resolve_when_steady(draft)


def _all_step(draft: Draft) -> bool:
    """Whether every worker that has not finished has done a step in this attempt.

    Of a job that nobody reports steps of, running is all that can be seen.
    """
    waiting = [worker for worker in draft.job.present if not worker.finished]
    if not draft.job.protected and not any(view.step is not None for view in draft.before.incarnations):
        return bool(waiting)
    return all(_steps(draft, worker) for worker in waiting)


def _steps(draft: Draft, worker: WorkerState) -> bool:
    if worker.has_answered(MessageType.MARK, MessagePhase.COMMAND):
        return True
    view, attempt = draft.lives.of(worker.key), draft.attempt
    return (
        attempt is not None
        and not draft.began_attempt
        and view is not None
        and view.step is not None
        and view.step_at is not None
        and view.step_at > attempt.started_at
    )


def _lowest_step(draft: Draft) -> int | None:
    """The step that every worker has done in this attempt, None when it is not known."""
    attempt = draft.attempt
    if attempt is not None and attempt.step is not None and not draft.began_attempt:
        return attempt.step
    steps = [step for _, step in draft.first_steps.values() if step is not None]
    return min(steps, default=None)


def _note_first_steps(draft: Draft) -> None:
    """The moment at which the last worker did its first step of the attempt."""
    attempt = draft.attempt
    if (
        draft.job.phase is not Phase.RUN_COMMAND
        or attempt is None
        or attempt.first_step_at is not None
        or not draft.first_steps
        or not all(
            worker.finished or worker.has_answered(MessageType.MARK, MessagePhase.COMMAND)
            for worker in draft.job.present
            if worker.enrolled or draft.job.protected
        )
    ):
        return
    at = max(at for at, _ in draft.first_steps.values())
    steps = [step for _, step in draft.first_steps.values() if step is not None]
    draft.attempts.append(
        AttemptChange(n=draft.job.attempt, first_step=min(steps, default=None), first_step_at=at)
    )
    draft.first_step_at = at
    draft.settle("attempt.first_step", "every worker did its first step of the attempt")


def _look_at_start(draft: Draft) -> None:
    """A start must come to its first step within its time."""
    seconds, attempt = draft.policy.start_seconds, draft.attempt
    if seconds <= 0 or attempt is None or draft.is_observing:
        if draft.is_observing:
            _look_soon(draft, attempt.started_at if attempt else None)
        return
    due = attempt.started_at + timedelta(seconds=seconds)
    if draft.now < due:
        draft.look_at(min(due, draft.now + timedelta(seconds=max(LOOK_SECONDS, seconds / 20))))
        return
    if draft.incident.state is IncidentState.NEEDS_PERSON:
        draft.look_at(draft.now + timedelta(seconds=max(LOOK_SECONDS, seconds / 20)))
        return
    waiting = [w.key for w in draft.job.present if not w.finished and not _steps(draft, w)]
    draft.restart_failed = f"{wording.workers(waiting)} did no step within {seconds:.0f} s of the start"
    take_next_rung(draft)
    draft.look_at(draft.now + timedelta(seconds=max(LOOK_SECONDS, seconds / 20)))


def _resolve_when_steady(draft: Draft) -> None:
    policy, incident, attempt = draft.policy, draft.incident, draft.attempt
    since = incident.state_since or draft.now
    if draft.first_step_at is not None:
        since = draft.first_step_at
    elif attempt is not None and attempt.first_step_at is not None and not draft.began_attempt:
        since = max(attempt.first_step_at, attempt.started_at)
    due = since + timedelta(seconds=policy.steady_seconds)
    if draft.now < due:
        draft.look_at(due)
        return
    begin, step = incident.watching_from_step, _lowest_step(draft)
    missing = 0 if begin is None or step is None else begin + policy.steady_steps - step
    if missing > 0:
        pace = attempt.step_seconds if attempt is not None and attempt.step_seconds else None
        wait = min(max(0.2, missing * pace), policy.steady_seconds) if pace else LOOK_SECONDS
        _look_soon(draft, due, at_least=max(wait, 0.2))
        return
    held = (draft.now - since).total_seconds()
    why = f"steady for {held:.0f} s"
    if begin is not None and step is not None:
        why += f" and {step - begin} steps"
    draft.bring_incident(IncidentState.RESOLVED, f"recovered, {why}", resolution=Resolution.RECOVERED)
    draft.settle("training.steady", why)


def _look_soon(draft: Draft, since: datetime | None, *, at_least: float = LOOK_SECONDS) -> None:
    """Look again soon, and the longer it has lasted the more seldom: each look is a stored decision."""
    lasted = (draft.now - since).total_seconds() if since is not None else 0.0
    draft.look_at(draft.now + timedelta(seconds=max(at_least, lasted / 20)))


def _clear_suspicion(draft: Draft) -> None:
    seen, attempt = draft.incident.seen_failed_at, draft.attempt
    if draft.suspicions or attempt is None:
        _look_soon(draft, seen)
        return
    if attempt.step_at is not None and seen is not None and attempt.step_at > seen:
        draft.bring_incident(
            IncidentState.RESOLVED, f"training steps, at step {attempt.step}",
            resolution=Resolution.FALSE_ALARM,
        )  # fmt: skip
        draft.settle("hang_suspected.cleared", "training steps")
        return
    _look_soon(draft, seen, at_least=max(LOOK_SECONDS, attempt.step_seconds or 0.0))


def _over(draft: Draft) -> None:
    """The job has ended: what nobody needs any more is cancelled, then the incident is resolved."""
    incident, job = draft.incident, draft.job
    if "auto.over_budget" in draft.rows:
        _fail_over_budget(draft)
        return
    if job.phase is Phase.SUCCEEDED:
        for action in draft.open_actions(ActionKind.ASK_PERSON, ActionKind.STOP_JOB):
            if action.state in NOT_BEGUN:
                change_action(draft, action, ActionState.CANCELLED, "the job has finished")
    if draft.open_actions() or draft.is_wanted(*REMEDIES, ActionKind.ASK_PERSON) or draft.held_by:
        return
    if incident.state is IncidentState.NEEDS_PERSON and job.phase is Phase.FAILED and _stop_failed(draft):
        return
    recovered = job.phase is Phase.SUCCEEDED and incident.state is IncidentState.WATCHING
    draft.bring_incident(
        IncidentState.RESOLVED,
        f"the job has ended: {job.phase}",
        resolution=Resolution.RECOVERED if recovered else Resolution.JOB_ENDED,
    )
    draft.settle("job.ended", f"the job has ended: {job.phase}")


def _stop_failed(draft: Draft) -> bool:
    """Whether the job that we gave up still runs: then a person has it, until it is suspended."""
    return not draft.before.suspended and not any(
        change.state is ActionState.DONE and draft.actions[change.uid].kind is ActionKind.STOP_JOB
        for change in draft.action_changes
    )


def _fail_over_budget(draft: Draft) -> None:
    words = wording.failures(draft.job)
    verdict = judge_failure(draft)
    choice = choose(
        Situation(
            category=verdict.category, reason=verdict.reason, workers=len(draft.job.present),
            checks_clean=0, over_budget=words,
        ),
        draft.policy, draft.seed,
    )  # fmt: skip
    if draft.incident.state is not IncidentState.OPEN:
        draft.bring_incident(IncidentState.OPEN, f"Failed: {words}")
    carry_out(draft, choice)
    draft.incident.set(title=f"Failed: {words}")
    draft.incident.raise_severity(Severity.CRITICAL)


# Observe.


def _refuse_while_observing(draft: Draft) -> None:
    """Say what would have been done, once a failure that ended an attempt."""
    if not draft.incident.is_open or not any(failure.left_run for failure in draft.failures):
        return
    because = draft.observing_because
    verdict = judge_failure(draft)
    want(
        draft,
        ActionKind.RESTART_PROCESS,
        f"{verdict.reason}: would restart in place",
        refused_because=because,
        priced=price_of_restart(draft, verdict.reason),
    )
    draft.settle("observe.refused", because)


# The rest.


def _close_resolved(draft: Draft) -> None:
    """A resolved incident can reopen for a while, then it closes."""
    incident = draft.incident
    if incident.state is not IncidentState.RESOLVED or incident.resolved_at is None:
        return
    due = incident.resolved_at + timedelta(seconds=draft.policy.reopen_seconds)
    if draft.now < due:
        draft.look_at(due)
    elif incident.change is not None:
        draft.look_at(draft.now)  # it closes by a decision of its own
    else:
        incident.set(closes_resolved=True)
        incident.state = IncidentState.CLOSED
        draft.settle("incident.closed", "resolved long enough ago")


def _direct(draft: Draft) -> None:
    """What all polls tell the agents of this job."""
    job = draft.job
    if job.is_terminal:
        return
    if not job.protected:
        draft.directive = "run_unprotected"
    elif job.phase in {Phase.RESTARTING, Phase.TROUBLESHOOTING} and draft.incident.is_open:
        draft.directive = "extend_wait"
        draft.look_at(draft.now + timedelta(seconds=draft.policy.extend_wait_seconds))
