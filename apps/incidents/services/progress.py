"""How far a job is, from the heartbeats of its workers."""

from django.db.models import Max, Subquery

from apps.jobs.models import Incarnation, Job


def attempt_last_step(job: Job, n: int) -> Subquery:
    """The highest step that any worker of attempt ``n`` reported, NULL when none did: a part of a statement.

    Synchronous training finishes a step on all ranks or on none, so the highest is the step that was done.
    """
    lives = Incarnation.objects.filter(worker__job=job, first_attempt__lte=n, last_attempt__gte=n)
    return Subquery(lives.order_by().values("worker__job").annotate(highest=Max("step")).values("highest"))
