"""Figures, states and geometry: pure parts of the pages."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.desk import charts, words
from apps.desk.context import watch_trouble
from apps.desk.paging import capped_word
from apps.desk.views.feed import read_cursor
from apps.desk.views.nodes import taint_owner
from apps.nodes.models import WatchState
from apps.nodes.selectors import NodeState, RackCount
from recovery.lifecycle import ActionKind, ActionState, IncidentState, Severity, TryOutcome, WaitingFor
from recovery.phases import Phase
from recovery.signals import Use


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.00066, "0.001 s"),
        (0.004, "0.004 s"),
        (0.04, "0.04 s"),
        (0.16, "0.16 s"),
        (0.4, "0.4 s"),
        (1, "1 s"),
        (5.39, "5.4 s"),
        (5, "5 s"),
        (12.9, "13 s"),
        (59.6, "1 min"),
        (98, "1 min 38 s"),
        (240, "4 min"),
        (3599.7, "1 h"),
        (11_520, "3 h 12 min"),
        (90_000, "1 d 1 h"),
        (-3.2, "−3.2 s"),
    ],
)
def test_duration_is_said_in_two_units_at_most(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "now"), (1, "1 s"), (59.9, "59 s"), (61, "1 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_age_is_said_in_one_unit(seconds: float, said: str) -> None:
    assert words.coarse(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (1023, "1023 B"), (12_288, "12.0 KiB"), (135 * 2**30, "135 GiB"), (None, "–")],
)
def test_bytes_are_said_in_binary_units(size: int | None, said: str) -> None:
    assert words.byte_size(size) == said


@pytest.mark.parametrize(
    ("table", "states"),
    [
        ("incident", IncidentState),
        ("severity", Severity),
        ("phase", Phase),
        ("inner", Phase),
        ("action", ActionState),
        ("node", NodeState),
        ("use", Use),
        ("try", TryOutcome),
    ],
)
def test_every_state_has_a_word_a_shape_and_a_tone(table: str, states: type) -> None:
    """D21: shape, word and color."""
    marks = [words.MARKS[table][state] for state in states]  # type: ignore[attr-defined]
    assert all(mark.word and mark.icon and mark.tone for mark in marks)
    assert len({mark.word for mark in marks}) == len(marks)
    by_tone: dict[str, set[str]] = {}
    for mark in marks:
        by_tone.setdefault(mark.tone, set()).add(mark.icon)
    assert len(by_tone) > 1


def test_states_that_differ_in_color_differ_in_shape_too() -> None:
    for table in ("incident", "node", "severity"):
        shapes: dict[str, set[str]] = {}
        for mark in words.MARKS[table].values():
            shapes.setdefault(mark.icon, set()).add(mark.tone)
        assert all(len(tones) == 1 for tones in shapes.values())


def test_every_wait_and_action_has_words() -> None:
    assert set(words.WAITING_WORDS) == set(WaitingFor)
    assert set(words.ACTION_WORDS) == set(ActionKind)


def test_unknown_state_is_shown_as_it_is() -> None:
    assert words.mark_for("incident", "quite_new") == words.Mark("quite new", "dot", "quiet")


def test_segments_fill_the_bar_and_keep_short_ones_visible() -> None:
    laid = charts.segments(
        [("decide", "decide", 0.004), ("reschedule", "reschedule", 50.0), ("none", "none", 0.0)]
    )
    assert [part.name for part in laid] == ["decide", "reschedule"]
    assert laid[0].width >= 0.69
    assert sum(part.width for part in laid) == pytest.approx(100)
    assert laid[1].x == pytest.approx(laid[0].width)
    assert not laid[0].has_label
    assert charts.segments([]) == []


def test_label_that_would_be_cut_is_left_to_the_legend() -> None:
    parts = [("wait", "wait", 84.0), ("unattributed", "unattributed", 16.0)]
    assert [part.has_label for part in charts.segments(parts)] == [True, False]
    assert all(part.has_label for part in charts.segments([("wait", "wait", 70), ("unattributed", "", 30)]))


def test_racks_from_counts_do_not_grow_with_the_fleet() -> None:
    small = charts.racks_of_counts([RackCount("west", "r1", 32, {"ready": 31, "not_ready": 1})])
    large = charts.racks_of_counts([RackCount("west", "r1", 90_000, {"ready": 89_999, "not_ready": 1})])
    assert len(small[0].cells) == 32
    assert len(large[0].cells) <= 128
    assert large[0].cells[0].mark.word == "not ready"
    assert large[0].summary == "89999 ready, 1 not ready"


@pytest.mark.parametrize("text", ["", ":", "1", "a:1", "1:b", "-1:2", "1:2:3", "9" * 30 + ":1"])
def test_cursor_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        read_cursor(text)


def test_counts_stop_at_ten_thousand() -> None:
    assert capped_word(10_000) == "10,000"
    assert capped_word(10_001) == "10,000+"


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("incidentdesk.io/isolated", "IncidentDesk"),
        ("node.kubernetes.io/unreachable", "Kubernetes"),
        ("acme.example/repair", "not known"),
    ],
)
def test_taints_name_their_owner(key: str, owner: str) -> None:
    assert taint_owner(key) == owner


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"state": "broken", "detail": "403 forbidden"}, "403 forbidden"),
        ({"lag_seconds": 42.4}, "42 s behind"),
        ({"heard": 400}, "silent"),
        ({"resource": "leader", "lease": -5}, "no watch process leads"),
        ({"resource": "leader", "lease": 5}, ""),
    ],
)
def test_watch_says_why_it_is_not_to_be_trusted(fields: dict[str, object], said: str) -> None:
    from apps.access.clock import database_now

    now = database_now()
    row = WatchState(
        resource=fields.get("resource", "pods"),
        state=fields.get("state", "watching"),
        detail=fields.get("detail", ""),
        lag_seconds=fields.get("lag_seconds", 0.2),
        last_heard_at=now - timedelta(seconds=fields.get("heard", 1)),  # type: ignore[arg-type]
        lease_until=now + timedelta(seconds=fields.get("lease", 5)),  # type: ignore[arg-type]
    )
    assert watch_trouble(row, now) == said
