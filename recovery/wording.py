"""Sentences for people: titles and reasons of incidents, in plain operator English."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.phases import JobState
from recovery.signals import WorkerKey


def failures(job: JobState) -> str:
    """What was used of the budget: "failures 3 of 2"."""
    used = max((worker.retries for worker in job.active), default=0)
    return f"failures {used} of {job.max_retry}"


def workers(keys: Iterable[WorkerKey]) -> str:
    """Workers by name, "none" when there are none."""
    return ", ".join(str(key) for key in keys) or "none"


def together(keys: Iterable[WorkerKey]) -> str:
    """Workers as the subject of a sentence, at most eight by name: ``workers 0 and 1``, ``launcher 0 and worker 2``."""
    named = sorted(keys)
    if len({key.role for key in named}) == 1 and len(named) > 1:
        names = [f"{named[0].role}s {named[0].index}", *(str(key.index) for key in named[1:])]
    else:
        names = [str(key) for key in named]
    shown, more = names[:8], len(names) - 8
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part) if shown else "none"


def capitalized(key: WorkerKey | None) -> str:
    """A worker at the beginning of a sentence."""
    return str(key or "worker").capitalize()
