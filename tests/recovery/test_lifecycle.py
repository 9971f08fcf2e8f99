from __future__ import annotations

import pytest

from recovery.errors import InvalidTransition
from recovery.lifecycle import (
    ACTION_RULES,
    ACTION_TABLE,
    ENDED_ACTION_STATES,
    HARMFUL_ACTIONS,
    INCIDENT_TABLE,
    REQUEST_TABLE,
    ActionKind,
    ActionState,
    IncidentState,
    RequestState,
    advance_action,
    advance_incident,
    advance_request,
    incident_path,
    markdown,
)

S = IncidentState


def test_closed_and_ended_states_have_no_way_out() -> None:
    assert S.CLOSED not in INCIDENT_TABLE
    assert not ENDED_ACTION_STATES & set(ACTION_TABLE)
    with pytest.raises(InvalidTransition, match="closed, which is final; it cannot become open"):
        advance_incident(S.CLOSED, S.OPEN)
    with pytest.raises(InvalidTransition, match="final"):
        advance_action(ActionState.CANCELLED, ActionState.RUNNING)
    with pytest.raises(InvalidTransition, match="final"):
        advance_request(RequestState.EXPIRED, RequestState.EXECUTING)


def test_every_state_of_every_table_is_reachable() -> None:
    for table, start in (
        (INCIDENT_TABLE, S.SUSPECTED),
        (ACTION_TABLE, ActionState.PLANNED),
        (REQUEST_TABLE, RequestState.PENDING),
    ):
        seen, queue = {start}, [start]
        while queue:
            for state in table.get(queue.pop(), ()):  # type: ignore[call-overload]
                if state not in seen:
                    seen.add(state)
                    queue.append(state)
        assert seen == set(type(start))


def test_refused_transition_says_what_is_possible() -> None:
    with pytest.raises(InvalidTransition, match="is watching and cannot become waiting, only open, resolved"):
        advance_incident(S.WATCHING, S.WAITING)


def test_running_action_is_not_cancelled() -> None:
    with pytest.raises(InvalidTransition):
        advance_action(ActionState.RUNNING, ActionState.CANCELLED)
    with pytest.raises(InvalidTransition):
        advance_action(ActionState.VERIFYING, ActionState.CANCELLED)


@pytest.mark.parametrize(
    ("state", "to", "path"),
    [
        (S.OPEN, S.OPEN, ()),
        (S.WAITING, S.WATCHING, (S.RECOVERING, S.WATCHING)),
        (S.NEEDS_PERSON, S.WATCHING, (S.OPEN, S.RECOVERING, S.WATCHING)),
        (S.RESOLVED, S.RECOVERING, (S.OPEN, S.RECOVERING)),
        (S.RECOVERING, S.NEEDS_PERSON, (S.NEEDS_PERSON,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_path_passes_through_the_table(state: S, to: S, path: tuple[S, ...]) -> None:
    assert incident_path(state, to) == path
    for following in path:
        state = advance_incident(state, following)


def test_path_out_of_closed_is_refused() -> None:
    with pytest.raises(InvalidTransition):
        incident_path(S.CLOSED, S.OPEN)


def test_only_vacating_and_rebooting_are_never_repeated_by_machine() -> None:
    """R20: an unknown outcome of a harmful action is not repeated."""
    assert {ActionKind.FORCE_VACATE, ActionKind.REBOOT_NODE} == HARMFUL_ACTIONS
    assert set(ACTION_RULES) == set(ActionKind)


def test_tables_print() -> None:
    text = markdown()
    assert "| stop_job | log tails stored, then suspended, no pod running | 5 min | safe |" in text
    assert "| running | done, failed, ready," in text
