from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decide import IncidentView, Policy, SubjectState
from recovery.errors import BadInput
from recovery.lifecycle import IncidentState, Severity
from recovery.phases import JobState, MessagePhase, MessageType, Phase, WorkerState
from recovery.serialize import (
    from_plain,
    inbox_from_plain,
    job_from_plain,
    policy_from_plain,
    signal_from_plain,
    state_from_plain,
    to_plain,
)
from recovery.signals import Signal, SignalKind, Source, WorkerKey
from tests.recovery.desk import started

TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=8))]))
KEYS = st.builds(WorkerKey, st.sampled_from(["worker", "head"]), st.integers(0, 9))
WORKERS = st.builds(
    WorkerState,
    key=KEYS,
    inner_phase=st.sampled_from(Phase),
    enrolled=st.booleans(),
    retries=st.integers(0, 9),
    last_sequence=st.integers(0, 99),
    handled=st.frozensets(st.tuples(st.sampled_from(MessageType), st.sampled_from(MessagePhase))),
    last_failure_reason=st.text(max_size=9),
)
JOBS = st.builds(
    JobState,
    phase=st.sampled_from(Phase),
    workers=st.lists(WORKERS, max_size=4).map(tuple),
    max_retry=st.integers(0, 9),
    protected=st.booleans(),
    reason=st.text(max_size=9),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SIGNALS = st.builds(
    Signal,
    id=st.integers(1, 9),
    source=st.sampled_from(Source),
    kind=st.sampled_from(SignalKind),
    seen_at=TIMES,
    received_at=TIMES,
    data=st.dictionaries(st.text(max_size=5), JSON, max_size=4),
    worker=st.none() | KEYS,
    incarnation=st.none() | st.integers(1, 9),
    sequence=st.none() | st.integers(0, 9),
    phase=st.none() | st.sampled_from(["bootcheck", "command"]),
    offset_uncertainty_seconds=st.floats(0, 3),
)


def through_json(value: object) -> object:
    return json.loads(json.dumps(to_plain(value)))


@given(JOBS)
def test_job_state_comes_back_equal(job: JobState) -> None:
    assert job_from_plain(through_json(job)) == job


@given(st.lists(SIGNALS, max_size=3))
def test_inbox_comes_back_equal(inbox: list[Signal]) -> None:
    assert inbox_from_plain(through_json(tuple(inbox))) == tuple(inbox)


def test_states_of_a_whole_recovery_come_back_equal() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.recover()
    desk.keep_stepping(4, 3400)
    for seen in desk.log:
        assert state_from_plain(through_json(seen.state)) == seen.state
        assert inbox_from_plain(through_json(seen.inbox)) == seen.inbox
    assert policy_from_plain(through_json(desk.policy)) == desk.policy


def test_older_record_without_a_new_field_takes_its_default_and_a_newer_field_is_left_out() -> None:
    plain = to_plain(Policy())
    del plain["extend_wait_seconds"]
    plain["not_known_yet"] = 7
    assert policy_from_plain(plain) == Policy()


def test_whole_number_where_a_fraction_is_meant_is_one() -> None:
    read = policy_from_plain(to_plain(Policy()) | {"steady_seconds": 3})
    assert read.steady_seconds == 3.0
    assert isinstance(read.steady_seconds, float)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seen_at": "yesterday"}, "Signal.seen_at"),
        ({"kind": "no such kind"}, "Signal.kind"),
        ({"id": "7"}, "Signal.id"),
        ({"id": True}, "Signal.id"),
        ({"worker": ["worker", 1]}, "Signal.worker"),
        ({"data": []}, "Signal.data"),
    ],
    ids=str,
)
def test_what_cannot_be_one_is_refused_with_its_field(change: dict[str, object], field: str) -> None:
    now = datetime(2026, 11, 29, tzinfo=UTC)
    plain = to_plain(Signal(1, Source.AGENT, SignalKind.ACK, now, now))
    with pytest.raises(BadInput) as refused:
        signal_from_plain(plain | change)
    assert refused.value.field == field


def test_missing_field_without_default_is_refused() -> None:
    with pytest.raises(BadInput):
        from_plain(SubjectState, {})


def test_foreign_value_cannot_be_stored() -> None:
    with pytest.raises(BadInput, match="object cannot be stored"):
        to_plain({"x": object()})


def test_mapping_fields_of_records_keep_their_content() -> None:
    now = datetime(2026, 11, 29, tzinfo=UTC)
    view = IncidentView(
        "u",
        IncidentState.OPEN,
        now,
        Severity.HIGH,
        tries={"restart_process": 2},
        verdict={"facts": [{"a": 1}]},
    )
    assert from_plain(IncidentView, through_json(view)) == view
