from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import tried
from recovery.past import read_recurrence
from recovery.tried import Tried

CLAUSES = (";", ",")


def said(sentence: str) -> set[str]:
    text = " ".join(sentence.lower().split())
    clauses = [clause.strip() for part in text.split(";") for clause in part.split(",") if clause.strip()]
    found = tried.read(text, clauses)
    return {field.name for field in fields(Tried) if getattr(found, field.name)}


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("14 of 64 hosts within the same minute, after 9 hours of good progress", {"at_once"}),
        ("all hosts simultaneously, nothing like it before", {"at_once"}),
        ("four runs in a row on different nodes, each within a minute", set()),
        ("occasionally at start, most starts go well", {"intermittent"}),
        ("3 of the last 40 launches ended here", {"intermittent"}),
        ("about one start in five ends like this", {"intermittent"}),
        ("12 of 12 launches", set()),
        ("every one of 6 launches", set()),
        ("failed on Monday, ran through on Tuesday, failed again today", {"success_between"}),
        ("failed on Monday, ran through on other nodes on Tuesday, failed again today", set()),
        ("the same batch replayed on another machine is fine", {"clean_control"}),
        ("the same batch on another machine is nan as well", set()),
        ("all starts with num_workers=16 end so, with num_workers=4 never", {"setting_differs"}),
        ("each run with precision fp8 aborts, with bf16 none does", {"setting_differs"}),
        ("sometimes with num_workers=16", {"intermittent"}),
        ("every start on the B200 machines, the same code trains on H100", {"class_differs"}),
        ("every start on the H100 machines, also on others of them", set()),
        ("all pairs with gpu-7 fail, all pairs without it pass", {"pair_node"}),
        ("every pair on all nodes fails, whoever takes part", set()),
        ("third container on this host, kill 4112 finds no such process", {"in_vain"}),
        ("each time the other job of ours on the same host ends", {"sibling"}),
        ("every namespace on every node since the certificate was rotated on Monday", {"standing"}),
        ("several pods for ten minutes", set()),
        ("all new nodes of the pool since Thursday's provisioning change", {"new_nodes"}),
        ("all nodes since the image moved to the new release", set()),
        ("every job above 16 nodes, any two nodes alone pass", {"only_large"}),
        ("resumed on other machines a second time, inf at 31250 and inf at 31250", {"same_place", "places"}),
        ("second attempt, no further than 1840 again", {"places"}),
        ("second attempt, again after 1800 s", set()),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_said_of_attempts(sentence: str, expected: set[str]) -> None:
    assert said(sentence) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "the last entry for host r12 is three months old",
        "the xid gauge of gpu-12 has held 31 for six weeks and has not changed",
        "node hgx-07 has had no errors since its repair in spring",
    ],
)
def test_age_and_negation_are_no_repeat(sentence: str) -> None:
    history = read_recurrence(f"first time; {sentence}")
    assert history.first_time
    assert {history.repeated, history.same_node, history.same_device} == {False}


def test_members_of_a_job_are_not_counted_as_attempts() -> None:
    assert read_recurrence("dozens of the 1024 members reported it at start").count == 0
    assert read_recurrence("dozens of starts").count == 24


@given(st.text(max_size=200))
def test_any_sentence_is_read(sentence: str) -> None:
    said(sentence)
