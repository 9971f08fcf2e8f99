"""The Celery application. Redis only wakes somebody up; what is due stands in rows (DESIGN rule 1)."""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import Celery, bootsteps
from celery.platforms import EX_FAILURE
from celery.worker import state

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.dev")

_log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
PATIENCE = 3  # looks in a row


class StallGuard(bootsteps.StartStopStep):  # type: ignore[misc]
    """Ends a worker that can take no task any more, so that its supervisor starts it anew.

    When Redis hangs while a task is acknowledged, kombu logs the failed acknowledgement and goes on counting
    the message as delivered. With a prefetch of one that is for ever: the worker lives, and decides nothing.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer: Any = None
        self._stalled = 0

    def start(self, parent: Any) -> None:
        """Look from now on."""
        self._stalled = 0
        self._timer = parent.timer.call_repeatedly(LOOK_SECONDS, self.look, (parent,))

    def stop(self, parent: Any) -> None:
        """Look no more; the consumer starts again or ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self, parent: Any) -> None:
        """Whether it holds no task and may take none, several looks in a row."""
        consumer = parent.task_consumer
        is_stalled = (
            consumer is not None
            and not state.reserved_requests
            and not state.active_requests
            and not consumer.channel.qos.can_consume()
        )
        self._stalled = self._stalled + 1 if is_stalled else 0
        if self._stalled >= PATIENCE:
            _log.critical("worker.stalled; an acknowledgement was lost with Redis, ending to be started anew")
            state.should_terminate = EX_FAILURE


app = Celery("incidentdesk")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["consumer"].add(StallGuard)
