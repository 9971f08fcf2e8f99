"""A silent agent in words: since when, whether training goes on, and what the desk cannot do meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.jobs.models import Incarnation, Job
from apps.jobs.selectors import SilentJob
from recovery.phases import Phase

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Silence:
    """The silent agents of one live job."""

    job: Job
    who: str  # "worker 0", "worker 0 and worker 3", "17 workers"
    count: int
    since: datetime  # when the first of them was heard last
    goes_on: str
    then: str

    @property
    def verb(self) -> str:
        """``is`` or ``are``, as ``who`` wants it."""
        return "is" if self.count == 1 else "are"


def silence(job: Job, lives: Sequence[Incarnation], *, others_stepped_at: datetime | None) -> Silence | None:
    """Say it of one job; None where none of ``lives`` is silent.

    Args:
        job: A live job; of one that has ended nobody is missed.
        lives: Its silent lives, with their workers, in order.
        others_stepped_at: When the newest step was seen of those that are heard; None for none of them.
    """
    heard = [life.last_seen_at for life in lives if life.last_seen_at is not None]
    if not heard:
        return None
    since = min(heard)
    return Silence(
        job=job,
        who=_named([str(life.worker) for life in lives]),
        count=len(lives),
        since=since,
        goes_on=_goes_on(job, max(heard), others_stepped_at, is_all=len(lives) >= job.world_size),
        then=f"the desk cannot act on {'it' if len(lives) == 1 else 'them'} until "
        f"{'it is' if len(lives) == 1 else 'they are'} heard again",
    )


def silences(found: Iterable[SilentJob]) -> list[Silence]:
    """Say it of each job, in the order given."""
    said = (silence(each.job, each.lives, others_stepped_at=each.others_stepped_at) for each in found)
    return [each for each in said if each is not None]


def _goes_on(job: Job, last_heard: datetime, others_stepped_at: datetime | None, *, is_all: bool) -> str:
    if job.phase != Phase.RUN_COMMAND:
        return "training stands, and the desk waits a bounded time for an answer"
    if others_stepped_at is not None and others_stepped_at > last_heard:
        return "training goes on as far as known, the others step"
    if is_all:
        return "whether training goes on is not known, no agent of the job is heard"
    return "whether training goes on is not known, no other worker has told a step since"


def _named(workers: Sequence[str]) -> str:
    if len(workers) > MOST_NAMED:
        return f"{len(workers)} workers"
    return workers[0] if len(workers) == 1 else f"{', '.join(workers[:-1])} and {workers[-1]}"
