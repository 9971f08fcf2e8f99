"""Wake a worker for subjects or actions. Only ever a hint: what is due stands in rows (DESIGN rule 1)."""

import logging
import time
from collections.abc import Iterable

from celery import current_app
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

_log = logging.getLogger(__name__)

#: After a lost wake-up nobody of this process tries again so soon: with Redis hanging each try holds up a
#: report or a page for its whole time-out.
QUIET_SECONDS = 2.0
_quiet_until = 0.0


def wake_subjects(subject_ids: Iterable[int]) -> None:
    """Ask a worker to decide these subjects. Never raises when Redis is away: the tick finds the rows."""
    _send("apps.incidents.tasks.decide_subject", subject_ids)


def wake_actions(action_ids: Iterable[int]) -> None:
    """Ask a worker to run these actions. Never raises when Redis is away."""
    _send("apps.incidents.tasks.run_action", action_ids)


def _send(task: str, ids: Iterable[int]) -> None:
    global _quiet_until  # noqa: PLW0603 - of this process, as the connection is
    if time.monotonic() < _quiet_until:
        return
    for row_id in sorted(set(ids)):
        try:
            current_app.send_task(task, args=[row_id], ignore_result=True, retry=False)
        except (OperationalError, RedisError, OSError) as error:
            _quiet_until = time.monotonic() + QUIET_SECONDS
            _log.warning("wake.lost task=%s id=%s error=%s; the tick will find it", task, row_id, error)
            return
