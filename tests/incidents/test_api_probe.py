"""How fast the cluster answers our own calls is measured by the watch's leader, and by nobody else."""

from __future__ import annotations

import threading

import pytest
from django.db import connection
from pytest_django import Settings

from apps.access.models import Cluster
from apps.incidents.api_probe import NOT_ANSWERED_SECONDS, ApiProbe
from apps.incidents.services import watching
from apps.nodes.models import WatchState
from recovery.errors import ClusterUnavailable
from tests import factories

pytestmark = pytest.mark.django_db


class Answering:
    """A cluster that answers one call and then, perhaps, no more; after ``calls`` the term is over."""

    def __init__(self, *, calls: int, answers: bool = True) -> None:
        self.over = threading.Event()
        self.asked = 0
        self._calls, self._answers = calls, answers

    def identity(self) -> str:
        self.asked += 1
        if self.asked >= self._calls:
            self.over.set()
        if not self._answers:
            raise ClusterUnavailable("GET /api/v1/namespaces/kube-system: timed out")
        return "uid"


@pytest.fixture(autouse=True)
def no_waits(settings: Settings) -> None:
    settings.TIMINGS = {**settings.TIMINGS, "API_PROBE_SECONDS": 0.001}


def probed(adapter: Answering, cluster: Cluster, lead: watching.Lead) -> WatchState:
    ApiProbe(cluster, adapter, lead, over=adapter.over).run()
    return WatchState.objects.get(cluster=cluster, resource=watching.LEADER)


def taken(cluster: Cluster) -> watching.Lead:
    lead = watching.take_lead(cluster=cluster, owner="one")
    assert lead is not None
    return lead


def test_time_of_each_call_is_written_until_the_term_is_over() -> None:
    cluster = factories.make_cluster()
    adapter = Answering(calls=3)
    row = probed(adapter, cluster, taken(cluster))
    assert adapter.asked == 3
    assert row.call_seconds is not None
    assert 0 <= row.call_seconds < NOT_ANSWERED_SECONDS
    assert row.called_at is not None


def test_call_that_is_not_answered_counts_as_a_slow_one_however_soon_it_broke_off() -> None:
    cluster = factories.make_cluster()
    row = probed(Answering(calls=1, answers=False), cluster, taken(cluster))
    assert row.call_seconds == NOT_ANSWERED_SECONDS


def test_who_leads_no_more_writes_nothing_and_ends() -> None:
    cluster = factories.make_cluster()
    lead = taken(cluster)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE nodes_watchstate SET epoch = epoch + 1 WHERE id = %s", [lead.row_id])
    adapter = Answering(calls=1000)
    row = probed(adapter, cluster, lead)
    assert (adapter.asked, row.call_seconds) == (1, None)
