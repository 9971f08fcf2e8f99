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


def capitalized(key: WorkerKey | None) -> str:
    """A worker at the beginning of a sentence."""
    return str(key or "worker").capitalize()
