"""Machines keep their row by hardware, not by name; a heartbeat writes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from adapters.facts import Change, NodeCondition, NodeFact
from apps.access.models import Cluster
from apps.nodes.models import Machine
from apps.nodes.services import NodesImported, import_nodes, known_nodes
from tests.factories import make_cluster
from tests.facts import added, at, deleted, make_node_fact, modified, vanished

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return make_cluster()


def take(cluster: Cluster, *changes: Change[NodeFact], seconds: float = 0) -> NodesImported:
    return import_nodes(cluster=cluster, changes=changes, now=at(seconds))


def present() -> dict[str, str]:
    return dict(Machine.objects.filter(gone_at=None).values_list("name", "hardware_key"))


def test_heartbeat_writes_no_row(cluster: Cluster, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    fact = make_node_fact(conditions=(NodeCondition("Ready", "True", since=at(-5)),))
    take(cluster, added(fact))
    beat = make_node_fact(conditions=fact.conditions, resource_version="2")
    with django_assert_num_queries(1):
        assert take(cluster, modified(beat), seconds=60).written == 0
    assert Machine.objects.get().last_seen_at == at(0)


@pytest.mark.parametrize(
    "change",
    [
        {"is_ready": False},
        {"is_ready": None},
        {"is_cordoned": True},
        {"taints": (("k", "v", "NoSchedule"),)},
        {"boot_id": "boot-2"},
        {"labels": {"a": "b"}},
        {"conditions": (NodeCondition("Ready", "False", "KubeletNotReady", since=at(3)),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_matters_is_written(cluster: Cluster, change: dict[str, Any]) -> None:
    take(cluster, added(make_node_fact()))
    outcome = take(cluster, modified(make_node_fact(resource_version="2", **change)), seconds=60)
    assert outcome.written == 1
    row = Machine.objects.get()
    assert (row.last_seen_at, row.resource_version) == (at(60), "2")
    if "is_ready" in change:
        assert [(was, now) for _, was, now in outcome.ready_changed] == [(True, change["is_ready"])]
        assert row.is_ready is change["is_ready"]


def test_same_machine_registered_anew_keeps_its_row(cluster: Cluster) -> None:
    first = make_node_fact()
    take(cluster, added(first))
    row = Machine.objects.get()
    take(cluster, deleted(first), seconds=10)
    row.refresh_from_db()
    assert row.gone_at == at(10)
    again = make_node_fact("gpu-r09-09", uid="uid-new", hardware_key=first.hardware_key)
    take(cluster, added(again), seconds=20)
    row.refresh_from_db()
    assert (row.name, row.node_uid, row.gone_at, row.first_seen_at) == ("gpu-r09-09", "uid-new", None, at(0))


def test_deletion_and_new_registration_in_one_batch_keep_the_row(cluster: Cluster) -> None:
    first = make_node_fact()
    take(cluster, added(first))
    take(cluster, deleted(first), added(make_node_fact(uid="uid-new")), seconds=10)
    assert present() == {"gpu-r01-01": first.hardware_key}
    assert Machine.objects.count() == 1


def test_another_machine_under_an_old_name_starts_clean(cluster: Cluster) -> None:
    take(cluster, added(make_node_fact()))
    old = Machine.objects.get()
    take(cluster, added(make_node_fact(uid="uid-new", hardware_key="provider:other")), seconds=10)
    old.refresh_from_db()
    assert old.gone_at == at(10)
    assert present() == {"gpu-r01-01": "provider:other"}
    assert Machine.objects.get(gone_at=None).first_seen_at == at(10)


def test_two_machines_swap_their_names(cluster: Cluster) -> None:
    take(cluster, added(make_node_fact("a")), added(make_node_fact("b")))
    take(
        cluster,
        modified(make_node_fact("a", uid="uid-3", hardware_key="provider:sim://b", resource_version="5")),
        modified(make_node_fact("b", uid="uid-4", hardware_key="provider:sim://a", resource_version="6")),
    )
    assert present() == {"a": "provider:sim://b", "b": "provider:sim://a"}
    assert Machine.objects.count() == 2


def test_node_that_vanished_in_a_gap_is_gone_and_no_longer_compared(cluster: Cluster) -> None:
    fact = make_node_fact()
    take(cluster, added(fact))
    assert known_nodes(cluster) == {fact.uid: "1"}
    assert take(cluster, vanished(fact), seconds=9).gone == 1
    assert known_nodes(cluster) == {}


def test_same_hardware_in_two_clusters_is_two_machines(cluster: Cluster) -> None:
    take(cluster, added(make_node_fact()))
    take(make_cluster(), added(make_node_fact()))
    assert Machine.objects.count() == 2
