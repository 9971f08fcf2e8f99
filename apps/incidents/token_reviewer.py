"""Shows agents' tokens to the cluster for the web processes, which have no way to it. A thread of the watch."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from django.db import connection
from django.db.utils import InterfaceError, OperationalError
from psycopg import sql

from apps.access.models import Cluster
from apps.incidents.services import watching
from apps.incidents.services.watching import Lead, LeadershipLost
from apps.jobs.services import token_reviews
from apps.jobs.services.credentials import AUDIENCE
from recovery.errors import ClusterError
from recovery.ports import TokenReview

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
QUIET_SECONDS = 15.0
RECONNECT_SECONDS = 1.0


class ReviewingCluster(Protocol):
    """What judges tokens."""

    def review_token(self, *, token: str, audience: str) -> TokenReview: ...


class TokenReviewer:
    """Answers the questions about one cluster's tokens, one at a time, as long as its watch leads.

    ``proven`` is set when a token was proven whose key the desk does not know.
    """

    def __init__(
        self, cluster: Cluster, adapter: ReviewingCluster, lead: Lead, *, over: threading.Event
    ) -> None:
        self.proven = threading.Event()
        self._cluster = cluster
        self._adapter = adapter
        self._lead = lead
        self._over = over

    def run(self) -> None:
        """Until ``over``. A question that is lost meanwhile is asked again with the agent's next try."""
        while not self._over.is_set():
            try:
                self._listen()
            except LeadershipLost:
                return
            except (OperationalError, InterfaceError) as error:
                _log.warning("tokens.listen_lost cluster=%s %s", self._cluster.slug, error)
                connection.close()
                self._over.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        with connection.wrap_database_errors:
            connection.ensure_connection()
            listener = connection.connection
            listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(token_reviews.CHANNEL)))
            while not self._over.is_set():
                quiet_until = time.monotonic() + QUIET_SECONDS
                while not self._over.is_set() and time.monotonic() < quiet_until:
                    for note in list(listener.notifies(timeout=PAUSE_SECONDS, stop_after=1)):
                        self._answer(note.payload)
                listener.execute("SELECT 1")  # finds a peer that is gone without a word

    def _answer(self, payload: str) -> None:
        try:
            question = token_reviews.question_of(payload, cluster=self._cluster)
        except token_reviews.NotSealedHere as error:
            _log.error("tokens.not_read cluster=%s %s", self._cluster.slug, error)
            return
        if question is None:
            return
        try:
            review = self._adapter.review_token(token=question.token, audience=AUDIENCE)
        except ClusterError as error:
            _log.warning("tokens.not_reviewed cluster=%s %s", self._cluster.slug, error)
            token_reviews.note_trouble(question=question, reason=str(error))
            return
        reason = watching.store_review(self._lead, question=question, review=review)
        if reason:
            _log.warning(
                "tokens.refused cluster=%s sha256=%s %s", self._cluster.slug, question.sha256[:12], reason
            )
        else:
            self.proven.set()
