"""Wake a worker for subjects or actions. Only ever a hint: what is due stands in rows (DESIGN rule 1).

A hint is sent by a thread of its own. A Redis that hangs (it takes a connection and answers nothing) holds up
whoever waits for it, for its whole time-out; so no report, page or decision does.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from celery import current_app
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

_log = logging.getLogger(__name__)

#: After a lost wake-up nobody of this process tries again so soon.
QUIET_SECONDS = 2.0
#: Hints that wait to be sent. With Redis hanging more are dropped: the tick reads rows, 500 of each kind a second.
MOST_WAITING = 1000

Send = Callable[[str, int], None]


def wake_subjects(subject_ids: Iterable[int]) -> None:
    """Ask a worker to decide these subjects. Neither waits nor raises: the tick finds what is lost."""
    _sender.put("apps.incidents.tasks.decide_subject", subject_ids)


def wake_actions(action_ids: Iterable[int]) -> None:
    """Ask a worker to run these actions. Neither waits nor raises."""
    _sender.put("apps.incidents.tasks.run_action", action_ids)


def _publish(task: str, row_id: int) -> None:
    current_app.send_task(task, args=[row_id], ignore_result=True, retry=False)


class WakeSender:
    """Sends wake-ups in the order in which they came, each once while it waits. The thread starts with the first."""

    def __init__(self, send: Send = _publish) -> None:
        self._send = send
        self._change = threading.Condition()
        self._waiting: dict[tuple[str, int], None] = {}
        self._is_sending = False
        self._has_thread = False
        self._quiet_until = 0.0

    def put(self, task: str, ids: Iterable[int]) -> None:
        """Leave wake-ups to be sent, unless one was lost a moment ago."""
        with self._change:
            if time.monotonic() < self._quiet_until:
                return
            for row_id in sorted(set(ids)):
                if len(self._waiting) >= MOST_WAITING:
                    break
                self._waiting.setdefault((task, row_id))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="wake", daemon=True).start()
            self._change.notify_all()

    def settle(self, timeout_seconds: float) -> bool:
        """Wait until nothing waits to be sent. Returns whether that came in time."""
        with self._change:
            return self._change.wait_for(
                lambda: not (self._waiting or self._is_sending), timeout=timeout_seconds
            )

    def _run(self) -> None:
        while True:
            with self._change:
                self._is_sending = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._waiting)
                task, row_id = next(iter(self._waiting))
                del self._waiting[task, row_id]
                self._is_sending = True
            try:
                self._send(task, row_id)
            except (OperationalError, RedisError, OSError) as error:
                self._lose(task, row_id, error)
            except Exception:  # noqa: BLE001 - the thread of all wake-ups goes on, whatever one of them does
                _log.exception("wake.failed task=%s id=%s; the tick will find it", task, row_id)

    def _lose(self, task: str, row_id: int, error: Exception) -> None:
        with self._change:
            self._quiet_until = time.monotonic() + QUIET_SECONDS
            dropped = len(self._waiting)
            self._waiting.clear()
        _log.warning(
            "wake.lost task=%s id=%s and=%s error=%s; the tick will find it", task, row_id, dropped, error
        )


_sender = WakeSender()


def _forget_parent() -> None:
    """A forked process has its parent's memory and none of its threads."""
    global _sender  # noqa: PLW0603 - of this process
    _sender = WakeSender()


os.register_at_fork(after_in_child=_forget_parent)
