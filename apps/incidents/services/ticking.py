"""The tick: find what is due. Two at once do no harm, for every step is claimed or keyed (DESIGN rule 1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q

from apps.access.clock import database_now
from apps.incidents.models import Action, InboxEntry, Signal, Subject
from apps.incidents.services import feed
from apps.incidents.services.acting import check_effect, recover_lapsed
from apps.incidents.services.signals import (
    UNHURRIED_KINDS,
    UNHURRIED_SECONDS,
    NewSignal,
    record_signals,
    subject_for_job,
)
from apps.jobs.models import Incarnation
from apps.jobs.waiting_times import lost_seconds
from recovery.lifecycle import ActionState
from recovery.phases import TERMINAL_PHASES
from recovery.signals import SignalKind, Source, WorkerKey

_log = logging.getLogger(__name__)

MAX_DUE = 500  # of each kind in one tick; the next comes in a second


@dataclass(frozen=True, slots=True)
class Due:
    """Ids of what one tick found: subjects to decide, actions to run."""

    subjects: tuple[int, ...]
    actions: tuple[int, ...]


def find_due() -> Due:
    """Find undecided inboxes, subjects whose time to look has come, due and lapsed actions, silent agents."""
    now = database_now()
    lapsed = _guarded(lambda: recover_lapsed(now=now)) or []
    verifying = Action.objects.filter(state=ActionState.VERIFYING).values_list("pk", flat=True)
    for action_id in list(verifying[:MAX_DUE]):
        _guarded(partial(check_effect, action_id=action_id))
    _guarded(lambda: _look_at_overdue(now))
    silent = _guarded(lambda: _record_silence(now)) or []
    may_be_decided = Subject.objects.exclude(put_off_until_at__gt=now)
    undecided = (
        InboxEntry.objects.filter(decision_n__isnull=True, subject__in=may_be_decided)
        .exclude(
            Q(subject__job__is_quit_due=False),
            signal__kind__in=sorted(UNHURRIED_KINDS),
            signal__received_at__gt=now - timedelta(seconds=UNHURRIED_SECONDS),
        )
        .values_list("subject_id", flat=True)
    )
    looking = (
        may_be_decided.filter(next_look_at__lte=now).order_by("next_look_at").values_list("pk", flat=True)
    )
    ready = (
        Action.objects.filter(state=ActionState.READY, is_cancel_asked=False)
        .exclude(not_before_at__gt=now)
        .values_list("pk", flat=True)
    )
    subjects = {*undecided.distinct()[:MAX_DUE], *looking[:MAX_DUE], *silent}
    return Due(subjects=tuple(sorted(subjects)), actions=tuple(sorted({*ready[:MAX_DUE], *lapsed})))


def _guarded[T](part: Callable[[], T]) -> T | None:
    """One part of the tick. What it raises stops neither the other parts nor other subjects; None then."""
    try:
        return part()
    except (OperationalError, InterfaceError):
        raise  # the database is away: nothing else would do better
    except Exception:  # noqa: BLE001
        _log.exception("tick.failed; the rest of it goes on")
        return None


def _look_at_overdue(now: datetime) -> None:
    """Let the subjects of actions whose deadline has passed be decided: the decision ends these.

    An executor sends between decisions, so that no decision may have asked to look at that deadline.
    A subject that is held is left for the next tick: its holder may sleep.
    """
    overdue = Action.objects.filter(
        state__in=[ActionState.VERIFYING, ActionState.READY], deadline_at__lte=now
    )
    subjects = list(overdue.values_list("incident__subject_id", flat=True).distinct()[:MAX_DUE])
    if not subjects:
        return
    with transaction.atomic():
        free = (
            Subject.objects.filter(pk__in=subjects)
            .exclude(next_look_at__lte=now)
            .select_for_update(skip_locked=True, no_key=True)
            .values_list("pk", flat=True)
        )
        Subject.objects.filter(pk__in=list(free)).update(next_look_at=now)


def _record_silence(now: datetime) -> list[int]:
    """Edges of agents' heartbeats become signals: evidence, never an end. Returns subjects to decide."""
    alive = Incarnation.objects.filter(ended_at__isnull=True, last_seen_at__isnull=False).exclude(nonce="")
    bound = now - timedelta(seconds=lost_seconds(alive.count()))
    gone_silent = alive.filter(is_silent=False, last_seen_at__lt=bound)
    back = alive.filter(is_silent=True, last_seen_at__gte=bound)
    subjects = []
    for rows, kind in ((gone_silent, SignalKind.AGENT_SILENT), (back, SignalKind.AGENT_BACK)):
        for life in rows.select_related("worker__job__tenant")[:MAX_DUE]:
            job = life.worker.job
            with transaction.atomic():
                is_silent = kind is SignalKind.AGENT_SILENT
                changed = Incarnation.objects.filter(pk=life.pk, is_silent=not is_silent).update(
                    is_silent=is_silent
                )
                if not changed or job.phase in TERMINAL_PHASES:
                    continue
                subject = subject_for_job(job)
                since = life.last_seen_at or now
                record_signals(
                    signals=[
                        NewSignal(
                            tenant_id=job.tenant_id,
                            cluster_id=job.cluster_id,
                            source=Source.DESK,
                            source_key=f"{kind}/{life.pk}/{since.timestamp():.3f}",
                            kind=kind,
                            body={
                                "last_seen_at": since.isoformat(),
                                "pod": life.pod_name,
                                "node": life.node_name,
                            },
                            seen_at=now,
                            subject_ids=(subject.pk,),
                            worker=WorkerKey(life.worker.role, life.worker.index),
                            incarnation_id=life.pk,
                        )
                    ],
                    now=now,
                )
                feed.publish(tenant_id=job.tenant_id, topic="job", key=job.pk, now=now)
                subjects.append(subject.pk)
    return subjects


def place_waiting_signals(*, place: Callable[[Signal], tuple[int, ...]]) -> list[int]:
    """Try again to place signals about something that was unknown; give up after UNPLACED_KEEP_SECONDS.

    Args:
        place: Subject ids that a signal is about by now; empty while it is still unknown.
    Returns:
        Subjects that got one.
    """
    now = database_now()
    oldest = now - timedelta(seconds=settings.TIMINGS["UNPLACED_KEEP_SECONDS"])
    woken: set[int] = set()
    for signal in Signal.objects.filter(is_unplaced=True, received_at__gte=oldest).order_by("id")[:MAX_DUE]:
        subject_ids = _guarded(partial(place, signal))
        if not subject_ids:
            continue
        with transaction.atomic():
            if Signal.objects.filter(pk=signal.pk, is_unplaced=True).update(is_unplaced=False):
                InboxEntry.objects.bulk_create(
                    [InboxEntry(signal=signal, subject_id=subject_id) for subject_id in subject_ids],
                    ignore_conflicts=True,
                )
                woken.update(subject_ids)
    return sorted(woken)
