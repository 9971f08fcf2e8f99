from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.compared import Compared
from recovery.past import History, read_recurrence
from recovery.tried import Tried

COMPARISONS = {field.name for field in fields(Compared)} - {"other_nodes", "one_name"}
ATTEMPTS = {field.name for field in fields(Tried)}


def claims(sentence: str) -> set[str]:
    """What it claims; comparisons and attempts have tests of their own, test_compared.py and test_tried.py."""
    history = read_recurrence(sentence)
    return {
        field.name
        for field in fields(History)
        if field.name not in {"told", "count", "said", *COMPARISONS, *ATTEMPTS}
        and getattr(history, field.name)
    }


@pytest.mark.parametrize(
    ("sentence", "expected", "count"),
    [
        ("", set(), 0),
        ("first time", {"first_time"}, 1),
        ("never seen before on this machine", {"first_time", "same_node"}, 1),
        ("2nd time", set(), 2),
        ("three of three runs", {"every"}, 3),
        ("every start on every node", {"every", "all_nodes"}, 0),
        ("same step in both attempts, on two instances", {"every", "same_point", "other_nodes"}, 2),
        ("5 different jobs failed on this node", {"same_node", "other_jobs"}, 5),
        ("27 failures on this node, none elsewhere", {"same_node", "only_here"}, 27),
        (
            "each pod placed on this node, none elsewhere",
            {"every", "same_node", "other_jobs", "only_here"},
            0,
        ),
        ("same GPU: 4th event today", {"same_device"}, 4),
        ("3 times; other nodes are fine", {"fine_elsewhere", "same_node"}, 3),
        ("once; other nodes are fine", {"first_time", "fine_elsewhere"}, 1),
        ("4th time, always when trn-node-12 takes part", {"every", "same_node"}, 4),
        ("at different steps each time", {"changing_point"}, 0),
        ("same SeqNum 19 on 3 attempts", {"same_point", "same_sequence"}, 3),
        ("first in 31000 steps", {"first_time", "ran_long"}, 1),
        ("3/3 attempts", {"every"}, 3),
        ("every one of 6 launches", {"every"}, 6),
        ("3 starts on other nodes each, no other job meets it", {"other_nodes"}, 3),
        ("previous attempt ended the same way", {"same_point"}, 2),
        ("persisted after replacing the node", {"other_nodes"}, 2),
        ("disappeared after the node was excluded", {"same_node", "fine_elsewhere"}, 0),
        ("goes away without activation checkpointing", {"option"}, 0),
        ("only at global batch 4096", {"option"}, 0),
        ("epoch 3 sample 81922, every time", {"every", "same_point"}, 0),
        ("another rank each time", {"changing_point"}, 0),
        ("since yesterday's driver update on this node", {"same_node", "after_change"}, 0),
        ("went through on retry", {"passed"}, 0),
        ("every couple of days; resumed each time and went on", {"growing", "passed"}, 0),
        ("never elsewhere", {"only_here", "same_node"}, 0),
        ("first time in 11 days", {"first_time", "ran_long"}, 1),
        ("on each node it lands on", {"other_nodes", "all_nodes"}, 2),
        ("5th launch, never formed", {"every"}, 5),
        ("every start; other projects succeed", {"every", "only_ours", "others_pass"}, 0),
        ("only this team, others are fine", {"only_ours", "others_pass"}, 0),
        ("no other user sees it", {"only_ours", "others_pass"}, 0),
        ("refused for all tenants, even anonymous ones", {"everybody", "all_nodes"}, 0),
        (
            "gx-07 only; the rest of the pool runs the same image",
            {"only_here", "same_node", "fine_elsewhere", "others_pass"},
            0,
        ),
        ("3 launches on disjoint sets of machines", {"other_nodes"}, 3),
        ("first start, nothing was ever saved there", {"first_start", "first_time"}, 1),
        ("also with one GPU", {"other_nodes"}, 2),
        (
            "three runs with trn-node-33 went NaN at changing steps, four runs without it did not",
            {"changing_point", "same_node", "fine_elsewhere"},
            3,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_claims_of_a_sentence(sentence: str, expected: set[str], count: int) -> None:
    assert (claims(sentence), read_recurrence(sentence).count) == (expected, count)


def test_what_works_elsewhere_is_no_repetition_there() -> None:
    assert "other_nodes" not in claims("it failed twice, those jobs run clean on other machines")


@given(st.text(max_size=3000))
def test_any_sentence_is_read(sentence: str) -> None:
    assert read_recurrence(sentence).count >= 0
