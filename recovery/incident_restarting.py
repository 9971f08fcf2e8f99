"""Workers were replaced: their return is waited for, or capacity where the cluster has none."""

from __future__ import annotations

from datetime import timedelta

from recovery import wording
from recovery.draft import Draft
from recovery.lifecycle import IncidentState, Severity, WaitingFor
from recovery.phases import WAITING_FOR_CAPACITY


def look_at_restarting(draft: Draft) -> None:
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
        incident.raise_severity(Severity.HIGH)
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
