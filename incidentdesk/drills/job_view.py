"""What the database shows of a job during a drill: counters, attempts, incident, orders."""

from __future__ import annotations

from apps.incidents.models import Action, Decision, Incident, TimelineEvent
from apps.jobs.models import Attempt, FailureCount, Job, Order, Worker
from incidentdesk.drills.field import DrillFailed, Field, wait_for
from recovery.lifecycle import OPEN_INCIDENT_STATES


def find_job(namespace: str, name: str) -> Job | None:
    """The newest job of that name, fresh from the database."""
    return Job.objects.filter(namespace=namespace, name=name).order_by("-id").first()


def get_job(job: Job) -> Job:
    """The same job, fresh."""
    return Job.objects.get(pk=job.pk)


def retries(job: Job) -> tuple[int, ...]:
    """Retries of the workers, by index: the counters that the page shows."""
    return tuple(
        Worker.objects.filter(job=job, is_retired=False).order_by("index").values_list("retries", flat=True)
    )


def retries_history(job: Job) -> list[tuple[int, ...]]:
    """Every different set of counters that decisions wrote, oldest first."""
    history: list[tuple[int, ...]] = []
    for outcome in Decision.objects.filter(subject__job=job).order_by("n").values_list("outcome", flat=True):
        workers = (outcome.get("job") or {}).get("workers") or []
        counters = tuple(
            worker["retries"]
            for worker in sorted(workers, key=lambda worker: worker["key"]["index"])
            if not worker["retired"]
        )
        if counters and (not history or history[-1] != counters):
            history.append(counters)
    return history


def as_text(counters: tuple[int, ...]) -> str:
    """1:0:0"""
    return ":".join(str(count) for count in counters)


def attempt(job: Job, n: int) -> Attempt | None:
    """Attempt ``n`` of the job, fresh, or None."""
    return Attempt.objects.filter(job=job, n=n).first()


def open_incident(job: Job) -> Incident | None:
    """The job's open incident, or None."""
    return Incident.objects.filter(job=job, state__in=[str(s) for s in OPEN_INCIDENT_STATES]).first()


def incidents(job: Job) -> list[Incident]:
    """Every incident of the job, oldest first."""
    return list(Incident.objects.filter(job=job).order_by("id"))


def counts(job: Job) -> list[FailureCount]:
    """Counted failures, oldest first."""
    return list(FailureCount.objects.filter(job=job, would=False).select_related("worker").order_by("id"))


def has_counted(job: Job, failures: int) -> bool:
    """Whether exactly so many failures are counted."""
    return len(counts(job)) == failures


def has_stepped(job: Job, n: int) -> Attempt | None:
    """Attempt ``n`` once it did its first step."""
    found = attempt(job, n)
    return found if found is not None and found.first_step_at is not None else None


def has_stopped(job: Job) -> bool:
    """Whether the stop of the job was seen to have its effect."""
    return Action.objects.filter(incident__job=job, kind="stop_job", state="done").exists()


def order_phases(job: Job, *, after: int = 0) -> list[str]:
    """Phases of the order sets with a sequence above ``after``, in order."""
    return list(
        Order.objects.filter(job=job, sequence__gt=after).order_by("sequence").values_list("phase", flat=True)
    )


def timeline(incident: Incident) -> list[TimelineEvent]:
    """The incident's timeline, in order."""
    return list(incident.timeline.order_by("n"))


def lowest_step(job: Job) -> int | None:
    """The lowest step of the present incarnations, or None while one has not stepped."""
    steps = [
        worker.incarnation.step if worker.incarnation else None
        for worker in Worker.objects.filter(job=job, is_retired=False).select_related("incarnation")
    ]
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None


def committed_step(job: Job) -> int | None:
    """Step of the newest committed checkpoint that the desk knows."""
    newest = job.checkpoints.filter(state__in=["committed", "verified"]).order_by("-step").first()
    return newest.step if newest else None


def wait_training(field: Field, namespace: str, name: str, *, beyond_checkpoint: int = 2) -> Job:
    """Wait until a protected job steps, has a committed checkpoint and is some steps beyond it.

    Raises:
        DrillFailed: It did not; the text tells the phase it was in.
    """
    job = wait_for(f"job {namespace}/{name} in the watch", lambda: find_job(namespace, name), seconds=30)

    def trains() -> bool:
        present = attempt(job, get_job(job).attempt)
        step, committed = lowest_step(job), committed_step(job)
        return bool(
            present
            and present.first_step_at
            and step is not None
            and committed is not None
            and step >= committed + beyond_checkpoint
        )

    try:
        wait_for(f"{namespace}/{name} to train beyond a committed checkpoint", trains, seconds=60)
    except DrillFailed as failed:
        fresh = get_job(job)
        raise DrillFailed(
            f"{failed} (phase {fresh.phase}, {fresh.phase_reason or fresh.protection_reason})"
        ) from None
    return get_job(job)


def wait_resolved(job: Job, incident: Incident, *, seconds: float) -> Incident:
    """Wait until the incident is resolved, and give it fresh."""

    def resolved() -> Incident | None:
        fresh = Incident.objects.get(pk=incident.pk)
        return fresh if fresh.state in ("resolved", "closed") else None

    try:
        return wait_for(f"{incident} to be resolved", resolved, seconds=seconds)
    except DrillFailed as failed:
        fresh = Incident.objects.get(pk=incident.pk)
        last = fresh.timeline.order_by("-n").first()
        raise DrillFailed(
            f"{failed}; it is {fresh.state} {fresh.waiting_for}, job {get_job(job).phase}, last: {last and last.text}"
        ) from None
