"""Each process of the desk is killed, or Redis flushed, at each named point of a recovery.

At a point a process stands still; meanwhile the drill kills it, or another one, or flushes Redis, and lets
it go on. Each such cell is one recovery, judged on its own; after a cell that ended badly the next ones are
played with another job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from apps.incidents.models import Action, Signal
from apps.jobs.models import Job
from incidentdesk.drills import job_view as view
from incidentdesk.drills import one_recovery
from incidentdesk.drills.field import DrillFailed, Field, Standing, expect, wait_for
from incidentdesk.drills.one_recovery import REDIS, VICTIMS, Before
from incidentdesk.drills.recoveries import named, submit
from incidentdesk.frontdoor.errors import FrontDoorError
from recovery.signals import SignalKind, Source

POINT_SECONDS = 30
MOST_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """A point, the services that may stand there, and the fault after which they do.

    ``meant`` tells a passage that belongs to the failure from one of the desk's daily work. There are at
    least so many ``passages`` that do in one recovery.
    """

    point: str
    by: tuple[str, ...]
    meant: Callable[[Job, Before], bool]
    passages: int = 1
    fault: str = "kill-process"

    def __str__(self) -> str:
        return f"{self.point} (watch)" if self.by == ("watch",) else self.point


def _told_by_agent(job: Job, before: Before) -> bool:
    return _is_told(job, before, Source.AGENT, SignalKind.ERROR)


def _told_by_watch(job: Job, before: Before) -> bool:
    return _is_told(job, before, Source.WATCH, SignalKind.INCARNATION_ENDED)


def _is_told(job: Job, before: Before, source: Source, kind: SignalKind) -> bool:
    news = Signal.objects.filter(pk__gt=before.signal, source=source, kind=kind)
    return news.filter(inbox_entries__subject__job=job).exists()


def _counted(job: Job, before: Before) -> bool:
    return len(view.counts(job)) > before.counted


def _chosen(job: Job, before: Before) -> bool:
    return Action.objects.filter(pk__gt=before.action, incident__job=job).exists()


def _ordered(job: Job, before: Before) -> bool:
    return bool(view.order_phases(job, after=before.sequence))


_DECIDERS = ("decide", "worker")  # who sends a restart decides it as well
ROWS = (
    Row("signal_committed", ("web",), _told_by_agent, passages=3),
    Row("signal_committed", ("watch",), _told_by_watch, fault="pod-deleted"),
    Row("decision_before_commit", _DECIDERS, _told_by_agent, passages=3),
    Row("decision_after_commit", _DECIDERS, _counted, passages=3),
    Row("action_claimed", ("worker",), _chosen),
    Row("action_sent", ("worker",), _chosen),
    Row("action_seen", _DECIDERS, _chosen),
    Row("order_written", _DECIDERS, _ordered, passages=2),
    Row("order_read", ("web",), _ordered, passages=3),
)
#: Each victim once, where another process stands, spread over the points.
ELSEWHERE = (
    ("signal_committed", REDIS),
    ("decision_before_commit", "web"),
    ("decision_after_commit", "beat"),
    ("action_claimed", "watch"),
    ("order_written", "worker"),
    ("order_read", "decide"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One recovery: who stood at the point, who was the victim, and why it ended badly, if it did."""

    row: Row
    victim: str
    stood: str
    seconds: float
    failure: str = ""

    def __str__(self) -> str:
        at = "there" if self.stood == self.victim else f"while {self.stood or 'somebody'} stood there"
        done = "flushed" if self.victim == REDIS else "killed"
        return f"{self.row}: {self.victim or 'nobody'} {done} {at}"

    @property
    def shown(self) -> str:
        """For the table: verdict, seconds, and a star where the victim is who stood at the point."""
        star = "*" if self.stood == self.victim else ""
        return f"{'FAILED' if self.failure else 'ok'} {self.seconds:.1f}{star}"


def crash_points(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """Whoever reaches a named point of a recovery is killed there, with all of its processes."""
    return _play(field, [[(row, None) for row in ROWS]], passage=1)


def kill_each(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """Each process is killed while another one stands at a named point, and Redis is flushed so."""
    rows = {row.point: row for row in reversed(ROWS)}
    return _play(field, [[(rows[point], victim) for point, victim in ELSEWHERE]], passage=1)


def crash_matrix(field: Field, *, seed: int = 1) -> dict[str, Any]:
    """Every victim at every named point; the seed tells at which passage of it, the first or a later one."""
    return _play(field, [[(row, victim) for victim in VICTIMS] for row in ROWS], passage=seed)


def _play(
    field: Field, groups: Sequence[Sequence[tuple[Row, str | None]]], *, passage: int
) -> dict[str, Any]:
    """Play the cells, those of a group with one job. Without a victim it is whoever stands at the point.

    Raises:
        DrillFailed: Some ended badly; the text names each. All were played.
    """
    cells: list[Cell] = []
    failures: list[str] = []
    for group in groups:
        ground = _Ground(field)
        for row, victim in group:
            cell = ground.play(row, victim, min(passage, row.passages))
            for _ in range(MOST_REPEATS):
                if not ground.was_away_too_long(cell):
                    break
                field.say(f"  {cell}: {cell.failure}; played again")
                cell = ground.play(row, victim, min(passage, row.passages))
            cells.append(cell)
            field.say(f"  {cell}: {cell.failure or f'training again, {cell.seconds:.1f} s'}")
            if cell.failure:
                failures.append(f"{cell}: {cell.failure}")
        if unsettled := ground.leave():
            failures.append(f"after {', '.join(sorted({str(row) for row, _ in group}))}: {unsettled}")
    if len(groups) > 1:
        for line in table(cells):
            field.say(line)
    expect(not failures, "; ".join(failures))
    return {
        "cells": [{"point": str(c.row), "victim": c.victim, "seconds": round(c.seconds, 1)} for c in cells],
        "passage": passage,
    }


def table(cells: Sequence[Cell]) -> list[str]:
    """The cells as lines: points down, victims across."""
    width = max(len(str(cell.row)) for cell in cells)
    lines = [f"{'point':<{width}}  " + "".join(f"{victim:>14}" for victim in VICTIMS)]
    for row in dict.fromkeys(cell.row for cell in cells):
        shown = {cell.victim: cell.shown for cell in cells if cell.row is row}
        lines.append(f"{row!s:<{width}}  " + "".join(f"{shown.get(victim, '-'):>14}" for victim in VICTIMS))
    return [*lines, "* it stood at the point itself"]


class _Ground:
    """A job on which cells are played one after the other, and another one after a failure."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._job: Job | None = None
        self._name = ""
        self._failures = 0
        self._stood = ""
        self._victim = ""
        self._away = 0.0

    def play(self, row: Row, victim: str | None, passage: int) -> Cell:
        """One recovery. What ends it badly is in the cell."""
        started = time.monotonic()
        self._stood, self._victim, self._away = "", victim or "", 0.0
        failure = ""
        try:
            if self._job is None:
                self._name = submit(self._field, named("crash"), **one_recovery.PARAMETERS)
                self._job = view.wait_training(self._field, self._field.namespace, self._name)
                self._failures = 0
                started = time.monotonic()
            self._recover(self._job, row, victim, passage)
        except (DrillFailed, FrontDoorError) as error:
            failure = f"{error} ({self._victim} was away for {self._away:.1f} s)"
            self._field.disarm(row.point)
            self._abandon()
        return Cell(row, self._victim, self._stood, time.monotonic() - started, failure)

    def was_away_too_long(self, cell: Cell) -> bool:
        """Whether the last cell failed for the web process being away longer than the barrier waits for agents.

        A pod that came anew could then not enrol in time, and all run unprotected, as they are made to.
        """
        barrier = float(settings.TIMINGS["ENROL_BARRIER_SECONDS"])
        return bool(cell.failure) and cell.victim == "web" and self._away > barrier

    def leave(self) -> str:
        """Let the job come to rest and delete it. What is not as it should be, in words."""
        if self._job is None:
            return ""
        try:
            one_recovery.settle(self._field, self._job, self._name, failures=self._failures)
        except DrillFailed as error:
            return str(error)
        finally:
            self._abandon()
        return ""

    def _recover(self, job: Job, row: Row, victim: str | None, passage: int) -> None:
        field = self._field
        before = one_recovery.look(field, job, self._name)
        index = self._failures % one_recovery.WORKERS
        field.arm(row.point)
        field.cluster.fault(row.fault, namespace=field.namespace, job=self._name, index=index)
        standing = _wait_standing(field, row, job, before, passage)
        self._stood = standing.service
        self._victim = victim or standing.service
        struck = one_recovery.strike(field, self._victim)
        standing.release()
        self._away = one_recovery.wait_back(field, struck)
        one_recovery.wait_stepping(job, before)
        in_place = row.fault == "kill-process" and not one_recovery.may_leave(self._victim, self._away)
        one_recovery.judge(field, job, self._name, before, index=index, in_place=in_place)
        self._failures += 1

    def _abandon(self) -> None:
        if self._job is not None:
            self._field.cluster.delete_job(self._field.namespace, self._name)
            self._job = None


def _wait_standing(field: Field, row: Row, job: Job, before: Before, passage: int) -> Standing:
    """Wait until a process stands at the point for the ``passage``-th time that belongs to the failure."""
    passed = 0

    def look() -> Standing | None:
        nonlocal passed
        standing = field.standing(row.point)
        if standing is None:
            return None
        if standing.service in row.by and row.meant(job, before):
            passed += 1
            if passed == passage:
                return standing
        field.arm(row.point)  # before that one goes on, so that nobody passes unseen
        standing.release()
        return None

    return wait_for(f"{' or '.join(row.by)} to stand at {row}", look, seconds=POINT_SECONDS)
