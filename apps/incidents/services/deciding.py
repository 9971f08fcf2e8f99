"""One writer per subject: drain its inbox in one decision, store it, look once more (DESIGN rule 3)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F
from psycopg.errors import LockNotAvailable

from apps import crash_points
from apps.access.clock import database_now
from apps.incidents.models import InboxEntry, Signal, Subject
from apps.incidents.policy import as_stored, current_policy
from apps.incidents.services.outcome import store_decision
from apps.incidents.services.reserving import decide_in_guards
from apps.incidents.services.signals import NewSignal, record_signals
from apps.incidents.services.state import load_inbox, load_state
from apps.incidents.wake import wake_actions
from recovery.decide import Policy
from recovery.errors import NotFound, SubjectBusy
from recovery.lifecycle import ActionState
from recovery.signals import SignalKind, Source

_log = logging.getLogger(__name__)

#: A subject whose decision raised is tried again after so many seconds, twice as many each time.
PUT_OFF_SECONDS = 1.0
PUT_OFF_MOST_SECONDS = 60.0

MAX_PASSES = 10
MAX_INBOX = 2000  # signals of one decision; the rest is drained by the next pass


def decide_subject(*, subject_id: int, policy: Policy | None = None) -> bool:
    """Drain a subject's inbox. Safe at any time, by anyone.

    Whoever finds the subject held by another leaves: the holder looks once more after its lock is gone.
    A decision that raises writes nothing; its subject alone is put off, and says so.

    Returns:
        Whether undecided signals are left; the caller enqueues again.
    """
    policy = policy or current_policy()
    for _ in range(MAX_PASSES):
        try:
            with transaction.atomic():
                held = _lock(subject_id)
                if held is None or _is_put_off(held):
                    return False
                _decide_held(held, policy)
        except (OperationalError, InterfaceError):
            raise  # the database is away or had to choose between us: the next tick tries again
        except Exception as error:  # noqa: BLE001
            _put_off(subject_id, error)
            return False
        crash_points.reach("decision_after_commit")
        # After the commit, without the lock: closes the race with a wake-up that found it held and left.
        if not _is_due(subject_id):
            return False
    return True


def decide_with[T](*, subject_id: int, record: Callable[[Subject, datetime], T]) -> T:
    """Record what a person did and decide it at once, in one transaction, inside their request.

    ``record`` gets the locked subject and the time, and writes signals for it. Waits for the lock
    at most PERSON_LOCK_SECONDS.

    Raises:
        SubjectBusy: The lock was not had in time, or the decision failed. Nothing was written.
        NotFound: There is no such subject.
    """
    failure: Exception | None = None
    with transaction.atomic():
        held = _lock(subject_id, wait_seconds=settings.TIMINGS["PERSON_LOCK_SECONDS"])
        if held is None:
            raise NotFound(f"there is no subject {subject_id}")
        result = record(held, database_now())
        try:
            with transaction.atomic():
                _decide_held(held, current_policy())
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:  # noqa: BLE001
            failure = error
            transaction.set_rollback(True)
    if failure is not None:
        _put_off(subject_id, failure)
        raise SubjectBusy(
            "this job's recovery cannot be decided at present, the desk's operators see why; nothing was changed"
        ) from failure
    if _is_due(subject_id):
        decide_subject(subject_id=subject_id)
    return result


def _lock(subject_id: int, *, wait_seconds: float | None = None) -> Subject | None:
    """Lock the subject's row: NO KEY UPDATE, so that an open insert's KEY SHARE does not hide it."""
    rows = Subject.objects.select_related("tenant", "cluster", "job").filter(pk=subject_id)
    if wait_seconds is None:
        return rows.select_for_update(skip_locked=True, no_key=True, of=("self",)).first()
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('lock_timeout', %s, true)", [f"{int(wait_seconds * 1000)}ms"]
                )
            held = rows.select_for_update(no_key=True, of=("self",)).first()
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', '0', true)")
            return held
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            raise SubjectBusy(
                "this job's recovery is being decided right now; nothing was changed, try again in a moment"
            ) from error
        raise


def _decide_held(held: Subject, policy: Policy) -> None:
    """One decision over all that is undecided, if there is anything. The caller holds the lock."""
    started = time.perf_counter()
    now = database_now()
    if held.next_look_at is not None and held.next_look_at <= now:
        _record_look(held, now)
    undecided = Signal.objects.filter(inbox_entries__subject=held, inbox_entries__decision_n__isnull=True)
    rows = list(undecided.order_by("id")[:MAX_INBOX])
    if not rows:
        return
    inbox = load_inbox(rows)
    state, loaded = load_state(held, inbox, now=now, policy=policy)
    policy, policy_row = as_stored(policy, now)
    state, decision = decide_in_guards(held, state, inbox, now, policy)
    due = store_decision(
        held,
        state,
        inbox,
        decision,
        policy_row,
        loaded=loaded,
        now=now,
        seconds=time.perf_counter() - started,
    )
    if any(change.state is ActionState.DONE for change in decision.action_changes):
        crash_points.reach("action_seen")
    crash_points.reach("decision_before_commit")
    if decision.orders:
        transaction.on_commit(lambda: crash_points.reach("order_written"))
    if due:
        transaction.on_commit(lambda: wake_actions(due))


def _is_put_off(held: Subject) -> bool:
    return held.put_off_until_at is not None and held.put_off_until_at > database_now()


def _put_off(subject_id: int, error: Exception) -> None:
    """Note that a decision raised, and when it is tried again. Signals stay undecided: none is lost."""
    text = f"{type(error).__name__}: {error}"[:2000].replace("\0", "")
    with transaction.atomic():
        Subject.objects.filter(pk=subject_id).update(failures=F("failures") + 1, failure=text)
        failures = Subject.objects.values_list("failures", flat=True).get(pk=subject_id)
        wait = min(PUT_OFF_MOST_SECONDS, PUT_OFF_SECONDS * 2 ** min(failures - 1, 10))
        Subject.objects.filter(pk=subject_id).update(
            put_off_until_at=database_now() + timedelta(seconds=wait)
        )
    _log.error(
        "decision.failed subject=%s failures=%d again_in_seconds=%.0f error=%s",
        subject_id,
        failures,
        wait,
        text,
        exc_info=error,
    )


def _record_look(held: Subject, now: datetime) -> None:
    """The time to look again has come: a signal like any other, so that replay sees it too."""
    record_signals(
        signals=[
            NewSignal(
                tenant_id=held.tenant_id,
                cluster_id=held.cluster_id,
                source=Source.DESK,
                source_key=f"look/{held.pk}/{held.decision_n + 1}",
                kind=SignalKind.LOOK,
                body={},
                seen_at=now,
                subject_ids=(held.pk,),
            )
        ],
        now=now,
    )


def _is_due(subject_id: int) -> bool:
    """Whether the subject has undecided signals."""
    return InboxEntry.objects.filter(subject_id=subject_id, decision_n__isnull=True).exists()
