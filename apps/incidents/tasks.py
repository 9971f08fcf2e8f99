"""Celery entry points: thin, safe to run twice, ids as arguments (STYLE 4)."""

from celery import shared_task

from apps import wiring
from apps.access.clock import database_now
from apps.access.services import forget_idempotency_keys
from apps.incidents.services import acting, deciding, feed, guarding, ticking
from apps.incidents.services.placing import place_signal
from apps.incidents.wake import wake_actions, wake_subjects
from apps.jobs.services.token_reviews import forget_old_reviews


@shared_task(ignore_result=True, time_limit=60)
def decide_subject(subject_id: int) -> None:
    """Drain one subject's inbox. A second delivery finds it empty and returns."""
    if deciding.decide_subject(subject_id=subject_id):
        wake_subjects([subject_id])


@shared_task(ignore_result=True, time_limit=120)
def run_action(action_id: int) -> None:
    """Try one ready action. A second delivery finds it claimed or done and returns."""
    acting.run_action(action_id=action_id, cluster=wiring.cluster)


@shared_task(ignore_result=True, time_limit=30)
def tick() -> None:
    """Find what is due and wake workers for it. Harmless when doubled."""
    due = ticking.find_due()
    placed = ticking.place_waiting_signals(place=place_signal)
    wake_subjects([*due.subjects, *placed])
    wake_actions(due.actions)


@shared_task(ignore_result=True, time_limit=55)
def recount_guards() -> None:
    """Compare the counters of all guards with what is so, and correct them. Harmless when doubled."""
    guarding.recount_all(now=database_now())


@shared_task(ignore_result=True, time_limit=120)
def sweep() -> None:
    """Forget what is only kept for a while."""
    now = database_now()
    feed.forget_old_rows(now=now)
    forget_idempotency_keys(now=now)
    guarding.forget_old_uses(now=now)
    forget_old_reviews(now=now)
