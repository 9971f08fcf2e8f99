"""Measures how fast the cluster answers our own calls. A thread of the watch."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from django.conf import settings
from django.db import connection
from django.db.utils import InterfaceError, OperationalError

from apps.access.models import Cluster
from apps.incidents.services import watching
from apps.incidents.services.watching import Lead, LeadershipLost
from recovery.errors import ClusterError

_log = logging.getLogger(__name__)

#: What a call counts as that was not answered, whenever it was given up; the longest a call is waited for.
NOT_ANSWERED_SECONDS = 20.0


class AnsweringCluster(Protocol):
    """What is asked: one small object, which the API server reads from its store."""

    def identity(self) -> str: ...


class ApiProbe:
    """Asks the cluster for one object every few seconds, as long as its watch leads.

    A watch that is quiet looks the same whether nothing happens or the API server is overloaded; a call tells.
    """

    def __init__(
        self,
        cluster: Cluster,
        adapter: AnsweringCluster,
        lead: Lead,
        *,
        over: threading.Event,
    ) -> None:
        self._cluster = cluster
        self._adapter = adapter
        self._lead = lead
        self._over = over

    def run(self) -> None:
        """Until ``over``."""
        while not self._over.wait(settings.TIMINGS["API_PROBE_SECONDS"]):
            seconds = self.measure()
            try:
                watching.write_call(self._lead, seconds=seconds)
            except LeadershipLost:
                return
            except (OperationalError, InterfaceError) as error:
                _log.warning("probe.not_written cluster=%s %s", self._cluster.slug, error)
                connection.close()

    def measure(self) -> float:
        """How long one call took, in seconds."""
        begun = time.monotonic()
        try:
            self._adapter.identity()
        except ClusterError as error:
            _log.warning("probe.not_answered cluster=%s %s", self._cluster.slug, error)
            return max(round(time.monotonic() - begun, 3), NOT_ANSWERED_SECONDS)
        return round(time.monotonic() - begun, 3)
