"""Sentences that compare: one machine with its peers, one release with the one before, one try with the next."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.compared import Compared
from recovery.past import History, read_recurrence

COMPARISONS = {field.name for field in fields(Compared)} - {"other_nodes", "one_name"}


def compared(sentence: str) -> set[str]:
    history = read_recurrence(sentence)
    return {name for name in COMPARISONS if getattr(history, name)}


MACHINE = {"node_differs", "peers_pass"}


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("every job placed on this node fails so; peers with the same image see all devices", MACHINE),
        ("all jobs sent to this host end so, the thirty other hosts run the same container", MACHINE),
        ("only when it lands on worker-12; the same image runs on worker-11 and worker-13", MACHINE),
        ("this VM fails for every job; the other VMs of the pool start the same job", MACHINE),
        ("all jobs on node-207 fail with it, nowhere else is it seen", {"node_differs"}),
        ("the other 15 hosts list the directory", {"peers_pass"}),
        ("always with the long batch, gx-02 and then gx-17", set()),
        ("fails on four different nodes; other jobs get their devices there", set()),
        ("only this team, others are fine", set()),
        (
            "began on three nodes with the new build; the old build passes there",
            {"release_differs", "release_suspected"},
        ),
        (
            "on five hosts since libfoo 2.1; with the previous release the same hosts run",
            {"release_differs", "release_suspected"},
        ),
        ("every submission with ray 2.55; 2.48 works", {"release_suspected"}),
        ("since the image 2.1 on gx-4; image 2.0 was fine", set()),
        ("first time on gx-4; the others in the pool have no trouble", set()),
        ("3/3 launches on hx-20 died; the image came up on hx-19, hx-21 and hx-22", MACHINE),
        ("all our runs on all nodes; runs of the neighbour project on the same nodes see them", set()),
        (
            "at every start since torch 2.7; 2.6 runs on the same nodes",
            {"release_differs", "release_suspected"},
        ),
        (
            "since the driver upgrade on all nodes; the old driver was fine",
            {"machine_change", "set_up_differs"},
        ),
        ("each task on b11 says so, the tasks on b10 and b12 read it", MACHINE),
        ("only jobs that include n0412 fail; without n0412 the same job runs", MACHINE),
        ("any image, every user, all nodes since the reinstall", {"any_image", "machine_change"}),
        ("every job on every node stalls since iommu was switched on", {"any_image", "machine_change"}),
        ("every run on every node", set()),
        ("since our new image, on every node", {"our_image"}),
        (
            "every pull ends after 60 s since last week; small images come through",
            {"fixed_time", "same_time"},
        ),
        ("every attempt ends after 60 s", {"same_time"}),
        ("an older checkpoint gives the same answer", {"older_alike"}),
        ("on the node of rank 0 the file is there, the other hosts never find it", {"one_has_it"}),
        ("first time", set()),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_comparisons_of_a_sentence(sentence: str, expected: set[str]) -> None:
    assert compared(sentence) == expected


def test_a_machine_that_differs_is_the_same_machine_again() -> None:
    history = read_recurrence("each pod sent to gpu-17 ends so, its neighbours start the same pod")
    assert (history.node_differs, history.same_node, history.fine_elsewhere) == (True, True, True)


def test_two_named_machines_are_different_nodes() -> None:
    assert read_recurrence("at step 310 on gx-03 and on gx-18").other_nodes


@given(st.text(max_size=400))
def test_any_sentence_is_read(sentence: str) -> None:
    assert isinstance(read_recurrence(sentence), History)
