from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.figures import Basis, estimated, measured
from recovery.lifecycle import IncidentState, WaitingFor
from recovery.prices import GpuPrice
from recovery.records import Mode
from recovery.signals import SignalKind, Source
from recovery.timeline import (
    EVENT_KINDS,
    STAGES,
    WAITED_FOR_PERSON,
    Event,
    cost,
    from_entries,
    recoveries,
    render,
    stages,
)
from tests.recovery.desk import START, started


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def reference_run() -> list[Event]:
    """DOMAIN 12: a worker's pod is killed by force; the head finds out after 13 s, and keeps its process."""
    return [
        Event(
            "failure_seen", at(0), "worker 2", 1,
            {"received_at": at(13).isoformat(), "found_by": "watch", "left_run": True, "step": 3388},
        ),
        Event("pod_gone", at(0), "worker 2"),
        Event("phase_changed", at(13), "", 1, {"before": "RunCommand", "after": "Restarting"}),
        Event("enrolled", at(63), "worker 2"),
        Event("order_written", at(83), "", 2, {"order": "run", "sequence": 9}),
        Event("process_started", at(83), "worker 2", 2, {"pids": {"agent": 4127, "command": 4300}, "sequence": 9}),
        Event("process_started", at(83), "head 0", 2, {"pids": {"agent": 4127, "command": 4127}, "sequence": 9}),
        Event("restored", at(97.3), "worker 2", 2, {"step": 3300, "seconds": 5.39}),
        Event("restored", at(97.3), "head 0", 2, {"step": 3300, "seconds": 5.39}),
        Event("first_step", at(110), "head 0", 2, {"step": 3301}),
        Event("first_step", at(110), "worker 2", 2, {"step": 3301}),
        Event("state_changed", at(110.1), "", 2, {"state": "watching"}),
    ]  # fmt: skip


def test_reference_run_is_split_and_its_rest_is_said_to_be_unattributed() -> None:
    found = stages(reference_run())
    assert found is not None
    seconds = {stage.name: stage.seconds for stage in found.stages if stage.length}
    assert seconds == {
        "detect": 13.0,
        "reschedule": 50.0,
        "restore": 5.39,
        "first step": 12.7,
        "unattributed": pytest.approx(110 - 13 - 50 - 5.39 - 12.7),
    }
    assert sum((stage.length for stage in found.stages), timedelta(0)) == found.total
    assert (found.failed_step, found.resumed_step, found.steps_lost) == (3388, 3300, 88)
    assert found.is_finished
    assert (found.rebuilt, found.untouched) == (("worker 2",), ("head 0",))
    assert found.agent_pids["head 0"] == 4127
    text = render(found)
    assert "reschedule        50.000  45.5%" in text
    assert "88 steps lost: failed at 3388, resumed from 3300" in text
    assert "found by watch" in text


def test_reference_run_costs_its_two_minutes_and_its_88_steps() -> None:
    found = stages(reference_run())
    assert found is not None
    price = GpuPrice("v6e", 2.7, "USD", date(2026, 11, 1), "price list")
    paid = cost(found, {"v6e": 12}, step_seconds=measured(0.16), prices={"v6e": price})
    assert paid.down_gpu_hours.value == pytest.approx(110 * 12 / 3600)
    assert paid.down_gpu_hours.basis is Basis.MEASURED
    assert paid.again_gpu_hours is not None
    assert paid.again_gpu_hours.value == pytest.approx(88 * 0.16 * 12 / 3600)
    assert paid.gpu_hours.basis is Basis.ESTIMATED
    assert paid.money["v6e"].amount == pytest.approx(124.08 * 12 / 3600 * 2.7)
    text = render(found, paid)
    assert "GPU-hours without progress: 0.37 (measured)" in text
    assert "GPU-hours to do steps again: 0.05 (estimated)" in text
    assert "cost: 1.12 USD (v6e at 2.7 per GPU-hour, price list, 2026-11-01)" in text


def test_no_price_given_no_money_shown() -> None:
    found = stages(reference_run())
    assert found is not None
    price = GpuPrice("H100", 2.0, "EUR", date(2026, 11, 1), "contract")
    mixed = cost(found, {"H100": 8, "A100": 24}, step_seconds=estimated(0.16), prices={"H100": price})
    assert list(mixed.money) == ["H100"]
    assert mixed.money["H100"].amount == pytest.approx(124.08 * 8 / 3600 * 2)
    assert cost(found, {"H100": 8}).money == {}
    assert "cost" not in render(found, cost(found, {"H100": 8}))


def test_what_steps_cost_is_not_said_where_it_is_not_known() -> None:
    found = stages(reference_run()[:3], until=at(40))
    assert found is not None
    paid = cost(found, {"H100": 9}, step_seconds=measured(1))
    assert paid.again_gpu_hours is None
    assert paid.gpu_hours.value == pytest.approx(0.1)
    assert "to do steps again: not known" in render(found, paid)


def test_unfinished_recovery_is_split_so_far() -> None:
    found = stages(reference_run()[:3], until=at(40))
    assert found is not None
    assert not found.is_finished
    assert {stage.name: stage.seconds for stage in found.stages if stage.length} == {
        "detect": 13.0,
        "reschedule": 27.0,
    }
    assert "so far" in render(found)


def test_nothing_has_failed() -> None:
    assert stages([]) is None
    assert render(None) == "no recovery has begun\n"


def test_restart_in_place_is_split_by_what_the_decisions_wrote() -> None:
    desk = started()
    desk.now += timedelta(seconds=60)
    failed_at = desk.now
    desk.now += timedelta(milliseconds=40)
    desk.kill(0, seen_at=failed_at)
    desk.decide()
    desk.now += timedelta(milliseconds=300)
    desk.stopped(0, 1, 2)
    desk.now += timedelta(milliseconds=20)
    desk.decide()
    desk.now += timedelta(milliseconds=30)
    desk.go()
    desk.decide()
    desk.now += timedelta(milliseconds=200)
    desk.started(0, 1, 2)
    desk.now += timedelta(milliseconds=500)
    desk.agent(0, SignalKind.MARK, {"mark": "restored", "step": 3300, "seconds": 0.1})
    desk.now += timedelta(milliseconds=250)
    desk.first_step(0, 1, 2, step=3301)
    desk.decide()
    entries = [entry for seen in desk.log for entry in seen.decision.timeline]
    assert {entry.kind for entry in entries} <= set(EVENT_KINDS)
    found = stages(from_entries(entries))
    assert found is not None
    assert {stage.name: round(stage.seconds, 3) for stage in found.stages if stage.length} == {
        "detect": 0.04,
        "stop": 0.3,
        "decide": 0.02,
        "wait": 0.03,
        "start": 0.2,
        "restore": 0.1,
        "first step": 0.25,
        "unattributed": 0.4,
    }
    assert found.found_by == "agent's report"
    assert found.steps_lost == 88
    assert found.rebuilt == ()
    assert found.untouched == ("worker 0", "worker 1", "worker 2")
    assert found.pids_before["worker 0"] == (20,)
    assert found.checks_seconds == 0.1


def test_time_until_somebody_says_yes_is_a_person_s_and_not_the_desk_s() -> None:
    desk = started(mode=Mode.APPROVE)
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    assert desk.incident.waiting_for is WaitingFor.APPROVAL
    (action,) = desk.state.actions
    desk.now += timedelta(seconds=50)
    entries = [entry for seen in desk.log for entry in seen.decision.timeline]
    found = stages(from_entries(entries), until=desk.now)
    assert found is not None
    assert found.stage(WAITED_FOR_PERSON).seconds == 50, "while it goes on"
    desk.signal(
        SignalKind.PERSON_CANCEL, Source.PERSON, {"by": "mei", "action_uid": action.uid, "reason": "later"}
    )
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    desk.now += timedelta(seconds=84)
    desk.signal(SignalKind.PERSON_DO_NOW, Source.PERSON, {"by": "mei", "action": "restart_process"})
    desk.decide()
    desk.recover()
    found = stages(from_entries(entry for seen in desk.log for entry in seen.decision.timeline))
    assert found is not None
    assert found.stage(WAITED_FOR_PERSON).seconds == 134
    assert (
        found.stage("decide").seconds + found.stage("wait").seconds + found.stage("unattributed").seconds < 2
    )


def test_two_failures_in_one_incident_are_two_recoveries() -> None:
    desk = started(max_retry=5)
    desk.kill(0)
    desk.decide()
    desk.recover()
    desk.now += timedelta(seconds=1)
    desk.fail(1)
    desk.decide()
    entries = [entry for seen in desk.log for entry in seen.decision.timeline]
    first, second = recoveries(from_entries(entries))
    assert first.is_finished
    assert not second.is_finished
    assert second.failed_at > first.ended_at


KINDS = st.sampled_from(sorted(EVENT_KINDS))


@st.composite
def any_events(draw: st.DrawFn) -> list[Event]:
    events = []
    for _ in range(draw(st.integers(1, 25))):
        when = at(draw(st.integers(0, 10_000)) / 100)
        data = draw(
            st.sampled_from(
                [
                    {}, {"left_run": True, "received_at": at(50).isoformat()}, {"order": "stop", "sequence": 3},
                    {"order": "run", "sequence": 4}, {"action": "restart_process"}, {"seconds": 3.5, "step": 7},
                    {"state": "watching"}, {"seconds": "x", "received_at": "never", "pids": 7},
                ]
            )
        )  # fmt: skip
        worker = draw(st.sampled_from(["", "worker 0", "worker 1"]))
        events.append(Event(draw(KINDS), when, worker, 1, data))
    return events


@given(any_events())
def test_stages_always_add_up_to_the_total_exactly(events: list[Event]) -> None:
    for found in recoveries(events, until=at(200)):
        assert [stage.name for stage in found.stages] == list(STAGES)
        assert sum((stage.length for stage in found.stages), timedelta(0)) == found.total
        assert all(stage.length >= timedelta(0) for stage in found.stages)
        render(found)
