"""What opens an incident: a failure, a suspected hang, a stop on request. Source: DOMAIN section 7."""

from __future__ import annotations

from datetime import timedelta

from recovery.comparisons import SLOW
from recovery.culprit import facts_from_stored, judge
from recovery.draft import Draft
from recovery.draft_actions import want
from recovery.draft_verdict import judge_failure
from recovery.evidence import Role, ended_alike
from recovery.lifecycle import ActionKind, IncidentState, Severity
from recovery.phases import Phase
from recovery.rules import ends


def open_for_failures(draft: Draft) -> None:
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
    incident.raise_severity(Severity.MEDIUM if counted else Severity.LOW)
    known = draft.before.incident.causes if incident.was_open and draft.before.incident else ()
    ends_known = [category for category in known if category != SLOW]
    is_new_cause = ends_known and any(f.counted and f.fact.category not in known for f in draft.failures)
    is_last_one = counted and draft.job.recover_count >= draft.job.max_retry and draft.job.protected
    if is_new_cause or is_last_one:
        incident.raise_severity(Severity.HIGH)


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


def open_for_suspicion(draft: Draft) -> None:
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


def open_for_stop(draft: Draft) -> None:
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
