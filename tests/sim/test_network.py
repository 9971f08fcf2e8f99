"""Addresses and names of pods."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.network import AddressesExhausted, AddressPool, HostsFiles, Network


@pytest.fixture
def pool() -> Iterator[AddressPool]:
    pool = AddressPool()
    yield pool
    pool.close()


def test_two_clusters_on_one_machine_share_no_address(pool: AddressPool) -> None:
    other = AddressPool()
    assert other.block != pool.block
    other.close()


def test_address_comes_back_only_after_all_others_were_used(pool: AddressPool) -> None:
    first = pool.take(1)
    pool.give_back(first)
    later = []
    for _ in range(252):
        later.append(pool.take(1))
        pool.give_back(later[-1])

    assert first not in later
    assert pool.take(1) == first


def test_full_node_is_an_error_and_its_neighbour_is_not(pool: AddressPool) -> None:
    held = {pool.take(1) for _ in range(253)}

    assert len(held) == 253
    with pytest.raises(AddressesExhausted):
        pool.take(1)
    assert pool.take(2) not in held


def read(hosts: HostsFiles, namespace: str) -> dict[str, str]:
    lines = [line.split() for line in hosts.path(namespace).read_text().splitlines()]
    return {name: parts[0] for parts in lines for name in parts[1:]}


def test_names_belong_to_their_namespace_and_go_with_the_pod(tmp_path: Path) -> None:
    hosts = HostsFiles(tmp_path / "hosts")
    hosts.add(namespace="a", pod_uid="1", address="127.20.1.1", names=["job-0", "job-0.job"])
    hosts.add(namespace="b", pod_uid="2", address="127.20.1.2", names=["job-0"])
    assert read(hosts, "a")["job-0.job"] == "127.20.1.1"
    assert read(hosts, "b") == {"localhost": "127.0.0.1", "job-0": "127.20.1.2"}

    # The replacement has the name before the old pod is gone, and keeps it afterwards.
    hosts.add(namespace="a", pod_uid="3", address="127.20.1.3", names=["job-0", "job-0.job"])
    assert read(hosts, "a")["job-0"] == "127.20.1.3"
    hosts.remove(namespace="a", pod_uid="1")
    assert read(hosts, "a")["job-0"] == "127.20.1.3"
    hosts.remove(namespace="a", pod_uid="3")
    assert read(hosts, "a") == {"localhost": "127.0.0.1"}


@pytest.mark.parametrize("url", ["ftp://desk", "desk:8000", "http://"])
def test_desk_url_that_cannot_be_dialled_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="desk's URL"):
        Network(url)
