"""The overview's first sentence: is anything burning, does anybody have to come?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from apps.desk.next_step import CAPACITY_HINT, missing_capacity, waits_for_capacity
from apps.desk.silence import Silence
from apps.incidents.models import Incident
from apps.jobs.models import Job

MOST_SILENCES = 3


@dataclass(frozen=True, slots=True)
class Headline:
    """A title and the sentences under it. ``is_calm``: nothing at all has to be said."""

    title: str
    icon: str
    tone: str
    lines: list[str] = field(default_factory=list)
    silences: list[Silence] = field(default_factory=list)
    silences_left: int = 0  # jobs with silent agents that are not written out
    is_of_one_silence: bool = False  # the title names the silent ones
    is_calm: bool = False


def headline(
    *,
    open_count: int,
    open_word: str,
    needs_person: int,
    burning: Sequence[Incident],
    silences: Sequence[Silence],
    standing: int,
    waiting: Sequence[Job],
) -> Headline:
    """Put the worst first and leave nothing out that a person has to know.

    Args:
        open_count: Open incidents; ``open_word`` says the number.
        needs_person: How many of them wait for a person.
        burning: The worst of them.
        silences: Live jobs with silent agents.
        standing: Live jobs that are stopped and do not train, though no incident is open.
        waiting: Live jobs without an open incident that wait for capacity, with their reasons.
    """
    said = list(silences[:MOST_SILENCES])
    left = len(silences) - len(said)
    if open_count:
        title = f"{open_word} open incident{'' if open_count == 1 else 's'}"
        lines = _open(open_count, needs_person, burning, is_silent=bool(silences))
        return Headline(title, "triangle", "critical", [*lines, *_waiting(waiting)], said, left)
    if silences:
        count = sum(each.count for each in silences)
        one = silences[0]
        title = (
            f"{one.who[:1].upper()}{one.who[1:]} of {one.job.name} {one.verb} silent"
            if len(silences) == 1
            else f"{count} agents of {len(silences)} jobs are silent"
        )
        lines = [*_standing(standing), *_waiting(waiting)]
        return Headline(title, "ring", "warn", lines, said, left, is_of_one_silence=len(silences) == 1)
    if standing:
        title = f"{standing:,} job{' stands' if standing == 1 else 's stand'} still"
        return Headline(title, "ring", "warn", [*_standing(standing), *_waiting(waiting)])
    if waiting:
        title = (
            f"{waiting[0].name} waits for capacity"
            if len(waiting) == 1
            else f"{len(waiting)} jobs wait for capacity"
        )
        return Headline(title, "clock", "warn", _waiting(waiting))
    return Headline("Nothing is burning", "check", "good", is_calm=True)


def _open(count: int, needs_person: int, burning: Sequence[Incident], *, is_silent: bool) -> list[str]:
    stuck = [incident for incident in burning if waits_for_capacity(incident)]
    lines = []
    if needs_person:
        others = needs_person + len(stuck)
        goes_on = "; the desk works on the others" if others < count and not is_silent else ""
        who = "It" if count == 1 else f"{needs_person}"
        lines.append(f"{who} need{'s' if needs_person == 1 else ''} a person{goes_on}.")
    lines += [f"{incident} waits for capacity: {CAPACITY_HINT}." for incident in stuck[:MOST_SILENCES]]
    if not lines and not is_silent:
        lines.append(f"The desk works on {'it' if count == 1 else 'them'}; nobody is needed.")
    return lines


def _standing(count: int) -> list[str]:
    return ["No incident is open, but training does not run: see Jobs by phase."] if count else []


def _waiting(jobs: Sequence[Job]) -> list[str]:
    lines = []
    for job in jobs[:MOST_SILENCES]:
        missing = missing_capacity(job.phase_reason)
        lines.append(f"{job.name} waits for capacity{f' ({missing})' if missing else ''}: {CAPACITY_HINT}.")
    return lines
