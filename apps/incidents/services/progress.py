"""How far a job is, from the heartbeats of its workers."""

from apps.jobs.models import Incarnation, Job


def attempt_last_step(job: Job, n: int) -> int | None:
    """The highest step that any worker of attempt ``n`` reported, or None when none did.

    Synchronous training finishes a step on all ranks or on none, so the highest is the step that was done.
    """
    steps = Incarnation.objects.filter(
        worker__job=job, first_attempt__lte=n, last_attempt__gte=n, step__isnull=False
    ).values_list("step", flat=True)
    return max((step for step in steps if step is not None), default=None)
