"""A slow machine: suspected, confirmed, priced with its deadline, cleared; and never in the way of a recovery."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.comparisons import NEEDED, from_stored, to_stored
from recovery.decide import decide
from recovery.lifecycle import ActionKind, IncidentState, Resolution
from recovery.records import CheckpointView, Decision, ElasticTerms, Mode, WorldView
from recovery.serialize import (
    decision_from_plain,
    inbox_from_plain,
    state_from_plain,
    to_plain,
)
from recovery.signals import EndCause, Signal, SignalKind, Source, Use
from tests.recovery.desk import START, Desk, committed
from tests.recovery.jobs import W

NODE = "gpu-r01-02"  # worker 1 runs there


def training(*, gpus: int = 24, step: int = 3_350, **options: Any) -> Desk:
    """A job 50 steps of 2 s after its newest checkpoint; they come 100 steps apart."""
    desk = Desk(**options)
    desk.start()
    desk.state = replace(desk.state, gpus=gpus, checkpoints=(committed(3_300), committed(3_200)))
    desk.now += timedelta(seconds=60)
    desk.heartbeat(0, 1, 2, step=step)
    assert desk.state.attempt is not None
    desk.state = replace(desk.state, attempt=replace(desk.state.attempt, step_seconds=2.0))
    return desk


def compare(desk: Desk, value: object, *, name: str = "step_time_ratio", node: str = NODE) -> Signal:
    desk.now += timedelta(seconds=30)
    return desk.signal(SignalKind.METRIC, Source.PROMETHEUS, {"name": name, "value": value, "node": node})


def slow_times(desk: Desk, times: int, value: float = 2.0, **where: str) -> Decision:
    for _ in range(times):
        compare(desk, value, **where)
        desk.decide()
    return desk.last


def wanted(decision: Decision) -> dict[ActionKind, Any]:
    return {action.kind: action for action in decision.actions}


def test_one_slow_comparison_is_a_suspicion_that_changes_nothing_and_says_what_it_would_cost() -> None:
    desk = training()
    metric = compare(desk, 2.0)
    desk.decide()
    assert desk.log[-1].use_of(metric) is Use.USED
    assert desk.incident.state is IncidentState.SUSPECTED
    assert desk.last.actions == ()
    assert desk.last.orders == ()
    (considered,) = desk.last.considered
    assert considered.remedy == "evict_worker"
    assert considered.refused_because.startswith(
        "not confirmed: slow in 1 of the last 1 comparisons, 3 are needed: keep it"
    )
    assert "evict now" in considered.refused_because
    assert desk.last.verdict["category"] == "straggler"
    assert desk.last.verdict["culprit"] == f"worker 1 on {NODE}"


def test_confirmed_slow_node_is_wanted_marked_and_evicted_at_the_cheaper_moment_with_both_prices() -> None:
    """R46, in part: silent slowness is told with its price; marking and evicting are not installed."""
    desk = training()
    decision = slow_times(desk, NEEDED)
    mark, evict = wanted(decision)[ActionKind.MARK_SLOW], wanted(decision)[ActionKind.EVICT_WORKER]
    assert (mark.target, mark.refused_because) == (NODE, "remedy not installed")
    assert (evict.target, evict.refused_because) == ("worker 1", "remedy not installed")
    now, later = evict.price["options"]
    assert (now["option"], later["option"]) == ("evict now", "evict at the next safe point")
    again, restart = now["parts"]
    assert (again["seconds"], again["gpus"]) == (50, 24), "50 steps of 2 s, at the pace without it"
    waiting, restart_then = later["parts"]
    assert (waiting["seconds"], waiting["weight"]) == (100, 0.5), (
        "50 steps to the next, half of the time lost"
    )
    assert restart == restart_then
    assert evict.price["chosen"] == "evict at the next safe point"
    assert "confirmed: slow in 3 of the last 3 comparisons" in evict.price["why"]
    assert evict.price["deadline"] == (desk.now + timedelta(seconds=150)).isoformat()
    assert decision.next_look_at == desk.now + timedelta(seconds=150)
    assert "Costs: evict now" in "".join(desk.timeline("action_refused"))
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert "no wait for it is in these prices" in evict.price["why"]
    assert wanted(decision)[ActionKind.ASK_PERSON].why == (
        "It costs the job 50% of its time. Cheapest: evict at the next safe point. Make sure first that a node with 8 "
        "free GPUs is there: without one the job stands still until there is. Evicting is not installed: evict its pod "
        f"right after the next checkpoint (kubectl drain {NODE} --pod-selector=job-name=llm), do not delete it: a "
        "deleted pod counts as a failure"
    )


def see_places(desk: Desk, places: int | None, **on: int) -> None:
    """The desk knows of so many free places, and how many of them are on machines of the job."""
    world = WorldView(
        desk.now, free_places=places, free_places_on={node.replace("_", "-"): n for node, n in on.items()}
    )
    desk.state = replace(desk.state, world=world)


def test_nobody_is_told_to_evict_while_no_other_node_has_room() -> None:
    desk = training(step=3_305)  # evicting at once would be the cheaper moment
    see_places(desk, 1, gpu_r01_02=1)  # the only free place is on the slow machine itself
    decision = slow_times(desk, NEEDED)
    evict, ask = wanted(decision)[ActionKind.EVICT_WORKER], wanted(decision)[ActionKind.ASK_PERSON]
    assert (evict.price["chosen"], evict.refused_because) == ("keep it", "no other node has 8 free GPUs")
    refused = {option["option"]: option.get("refused_because") for option in evict.price["options"]}
    assert refused == {
        "keep it": None,
        "evict now": "no other node has 8 free GPUs",
        "evict at the next safe point": "no other node has 8 free GPUs",
    }
    assert ask.why == (
        "It costs the job 50% of its time. No other node has 8 free GPUs: keep it there until that changes: evicted "
        "before, the whole job would stand still"
    )
    see_places(desk, 2, gpu_r01_02=1)
    decision = slow_times(desk, 1)
    assert wanted(decision)[ActionKind.EVICT_WORKER].price["chosen"] == "evict now"
    assert "A node with 8 free GPUs is there" in wanted(decision)[ActionKind.ASK_PERSON].why
    assert "evict its pod now (" in wanted(decision)[ActionKind.ASK_PERSON].why
    assert "no wait for it" not in wanted(decision)[ActionKind.EVICT_WORKER].why
    assert [action.kind for action in desk.state.actions] == [ActionKind.ASK_PERSON], (
        "the old question is over"
    )
    assert slow_times(desk, 1).actions == (), "nothing new, nothing told"
    see_places(desk, 1, gpu_r01_02=1)
    assert "keep it there" in wanted(slow_times(desk, 1))[ActionKind.ASK_PERSON].why, (
        "the place is gone again"
    )


def test_price_that_is_not_known_needs_a_place_all_the_same() -> None:
    desk = training(gpus=24)
    see_places(desk, 0)
    decision = slow_times(desk, NEEDED, 0.5, name="sm_clock_ratio_to_median")
    assert wanted(decision)[ActionKind.EVICT_WORKER].price == {}
    assert "No other node has 8 free GPUs: keep it" in wanted(decision)[ActionKind.ASK_PERSON].why


def both_on_one_node(desk: Desk) -> None:
    """Workers 0 and 1 run on the slow machine."""
    lives = tuple(
        replace(life, node=NODE) if life.worker in W[:2] else life for life in desk.state.incarnations
    )
    desk.state = replace(desk.state, incarnations=lives)


def test_number_of_a_node_is_about_every_worker_there() -> None:
    desk = training()
    both_on_one_node(desk)
    see_places(desk, 1)
    slow_times(desk, 1)
    assert desk.last.incident is not None
    assert desk.last.incident.title == f"Suspected: workers 0 and 1 on {NODE} are slow"
    decision = slow_times(desk, NEEDED - 1)
    assert decision.incident is not None
    assert decision.incident.title == f"Workers 0 and 1 on {NODE} are slow"
    assert wanted(decision)[ActionKind.EVICT_WORKER].target == "workers 0 and 1"
    assert "Other nodes have room for 1 of the 2 workers, 8 free GPUs each: keep them there" in (
        wanted(decision)[ActionKind.ASK_PERSON].why
    )
    see_places(desk, 2)
    why = wanted(slow_times(desk, 1))[ActionKind.ASK_PERSON].why
    assert f"evict their pods right after the next checkpoint (kubectl drain {NODE} --pod-selector" in why
    assert "do not delete them" in why
    kept = from_stored(desk.incident.verdict["slow"])
    assert kept is not None
    assert kept.compared[0].workers == 2


@pytest.mark.parametrize(
    ("told", "reason", "cause", "counted"),
    [
        pytest.param(True, "EvictionByEvictionAPI", EndCause.EVICTED_AS_SLOW, 0, id="as told"),
        pytest.param(
            False, "EvictionByEvictionAPI", EndCause.MAINTENANCE, 0, id="a drain before it was told"
        ),
        pytest.param(True, "Deleted", EndCause.DELETED, 1, id="deleted"),
        pytest.param(True, "NodeShutdown", EndCause.MAINTENANCE, 0, id="another reason"),
    ],
)
def test_eviction_that_people_were_told_to_do_is_one_as_slow(
    told: bool, reason: str, cause: EndCause, counted: int
) -> None:
    desk = training()
    both_on_one_node(desk)
    slow_times(desk, NEEDED if told else 1)
    seen = EndCause.DELETED if cause is EndCause.DELETED else EndCause.MAINTENANCE
    for index in (0, 1):  # a drain takes them one after the other
        desk.now += timedelta(seconds=2)
        life = desk.life(index)
        desk.end_pod(index, seen, reason=reason)
        decision = desk.decide()
        assert decision.ended_incarnations == ((life.id, cause),)
    assert len(desk.counts) == counted
    if cause is EndCause.EVICTED_AS_SLOW:
        assert desk.incident.verdict["reason"] == f"Pod of worker 0 was evicted as slow on {NODE}"


def test_eviction_from_another_machine_is_a_drain() -> None:
    desk = training()
    slow_times(desk, NEEDED)
    life = desk.life(2)
    desk.end_pod(2, EndCause.MAINTENANCE, reason="EvictionByEvictionAPI")
    assert desk.decide().ended_incarnations == ((life.id, EndCause.MAINTENANCE),)


def test_what_the_title_says_is_not_said_again_by_every_line() -> None:
    desk = training()
    slow_times(desk, NEEDED)
    assert sum(f"on {NODE} is slow" in line for line in desk.timeline()) == 1
    assert desk.timeline("evidence") == [
        "Slow in 2 of the last 2 comparisons: step_time_ratio 2",
        "Slow in 3 of the last 3 comparisons: step_time_ratio 2",
    ]


@pytest.mark.parametrize(
    ("step", "value", "chosen"),
    [
        pytest.param(3_395, 1.25, "evict at the next safe point", id="little left to the safe point"),
        pytest.param(3_305, 2.0, "evict now", id="little to compute again"),
    ],
)
def test_the_cheaper_moment_wins(step: int, value: float, chosen: str) -> None:
    decision = slow_times(training(step=step), NEEDED, value)
    price = wanted(decision)[ActionKind.EVICT_WORKER].price
    assert price["chosen"] == chosen
    assert (price["deadline"] is None) is (chosen == "evict now")
    costs = {option["option"]: option["gpu_seconds"] for option in price["options"]}
    assert costs[chosen] == min(costs.values())


def no_gpus(desk: Desk) -> None:
    desk.state = replace(desk.state, gpus=0)


def no_steps(desk: Desk) -> None:
    lives = tuple(replace(life, step=None, step_at=None) for life in desk.state.incarnations)
    assert desk.state.attempt is not None
    desk.state = replace(desk.state, incarnations=lives, attempt=replace(desk.state.attempt, step=None))


def one_checkpoint(desk: Desk) -> None:
    dangling = CheckpointView(3_200, "/checkpoints/step-3200", "written", START)
    desk.state = replace(desk.state, checkpoints=(committed(3_300), dangling))


def absurd_checkpoint(desk: Desk) -> None:
    desk.state = replace(desk.state, checkpoints=(committed(2**62), committed(3_300)))


@pytest.mark.parametrize(
    ("break_it", "name", "says"),
    [
        pytest.param(no_gpus, "step_time_ratio", "how many GPUs", id="GPUs"),
        pytest.param(no_steps, "step_time_ratio", "the job's steps are not known", id="steps"),
        pytest.param(one_checkpoint, "step_time_ratio", "before two are committed", id="one checkpoint"),
        pytest.param(
            absurd_checkpoint, "step_time_ratio", "in more than a year", id="a step out of all reason"
        ),
        pytest.param(
            lambda _: None, "sm_clock_ratio_to_median", "not told: that takes its step time", id="a clock"
        ),
    ],
)
def test_no_price_is_made_up_and_what_is_missing_is_said(break_it: Any, name: str, says: str) -> None:
    desk = training()
    break_it(desk)
    decision = slow_times(desk, NEEDED, 0.5 if "clock" in name else 2.0, name=name)
    evict = wanted(decision)[ActionKind.EVICT_WORKER]
    assert evict.price == {}
    assert says in evict.why.partition("Not priced: ")[2]


def test_deadline_that_passes_is_priced_anew_and_another_moment_is_wanted_anew() -> None:
    desk = training()
    slow_times(desk, NEEDED)
    made = len(desk.log)
    desk.wait(140)
    assert len(desk.log) == made, "nothing is decided before"
    desk.heartbeat(0, 1, 2, step=3_401)  # a safe point has come and gone: little would be computed again now
    desk.state = replace(desk.state, checkpoints=(committed(3_400), committed(3_300)))
    desk.wait(11)
    assert desk.last.rule == "slow.priced_anew"
    evict = wanted(desk.last)[ActionKind.EVICT_WORKER]
    assert evict.price["chosen"] == "evict now"
    assert list(wanted(desk.last)) == [ActionKind.EVICT_WORKER], "a person has been asked already"


def test_overdue_checkpoint_may_be_a_whole_interval_away_and_the_choice_stays_told_once() -> None:
    desk = training(step=3_399)
    slow_times(desk, NEEDED, 1.25)
    desk.heartbeat(0, 1, 2, step=3_450)
    desk.wait(3)
    assert desk.last.rule == "slow.priced_anew"
    assert (desk.last.next_look_at or desk.now) >= desk.now + timedelta(seconds=60)


def test_machine_that_keeps_up_again_clears_the_suspicion() -> None:
    desk = training()
    slow_times(desk, 2)
    for value in (1.0, 1.02, 1.01):
        assert desk.incident.state is IncidentState.SUSPECTED
        compare(desk, value)
        desk.decide()
    assert desk.incident.state is IncidentState.RESOLVED
    assert desk.incident.resolution is Resolution.FALSE_ALARM


def test_confirmed_one_that_keeps_up_again_needs_no_person_any_more() -> None:
    desk = training()
    slow_times(desk, NEEDED)
    assert desk.state.actions
    slow_times(desk, NEEDED, 1.0)
    assert (desk.incident.state, desk.incident.resolution) == (IncidentState.RESOLVED, Resolution.RECOVERED)
    assert not desk.state.actions


def test_machine_that_is_slow_again_is_looked_at_anew() -> None:
    desk = training()
    slow_times(desk, NEEDED)
    slow_times(desk, NEEDED, 1.0)
    slow_times(desk, 1)
    assert desk.incident.state is IncidentState.SUSPECTED
    assert desk.incidents == 2


def test_suspicion_that_nobody_compares_any_more_expires() -> None:
    desk = training()
    slow_times(desk, 1)
    desk.wait(1_799)
    assert desk.incident.state is IncidentState.SUSPECTED
    desk.wait(2)
    assert desk.incident.resolution is Resolution.EXPIRED


@pytest.mark.parametrize("confirmed", [False, True])
def test_failure_meanwhile_is_recovered_as_always_and_blames_who_failed(confirmed: bool) -> None:
    desk = training()
    slow_times(desk, NEEDED if confirmed else 1)
    desk.kill(0)
    desk.decide()
    assert desk.last.verdict["category"] == "process_killed"
    assert desk.last.verdict["worker"] == "worker 0"
    assert desk.incident.severity == ("high" if confirmed else "medium")
    desk.recover()
    assert desk.incident.state is IncidentState.WATCHING
    desk.keep_stepping(4, 3_400)
    assert desk.incident.resolution is Resolution.RECOVERED


def test_comparisons_during_a_recovery_are_evidence_only() -> None:
    desk = training()
    desk.kill(0)
    desk.decide()
    metric = compare(desk, 2.0)
    desk.decide()
    assert desk.log[-1].use_of(metric) is Use.CONTEXT
    assert "slow" not in desk.incident.verdict


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"name": "step_time_ratio", "value": 1.05, "node": NODE}, id="as fast as its peers"),
        pytest.param({"name": "gpu_util", "value": 0.1, "node": NODE}, id="no number of slowness"),
        pytest.param({"name": "step_time_ratio", "value": "slow", "node": NODE}, id="no number"),
        pytest.param({"name": "step_time_ratio", "value": True, "node": NODE}, id="a truth"),
        pytest.param({"name": "step_time_ratio", "value": float("nan"), "node": NODE}, id="not a number"),
        pytest.param({"name": "step_time_ratio", "value": 2.0, "node": "elsewhere"}, id="another machine"),
        pytest.param({}, id="nothing"),
    ],
)
def test_what_tells_of_no_slow_machine_opens_nothing(data: dict[str, Any]) -> None:
    desk = training()
    desk.signal(SignalKind.METRIC, Source.PROMETHEUS, data)
    desk.decide()
    assert desk.state.incident is None


def test_many_machines_slow_at_once_share_what_slows_them_and_none_is_to_go() -> None:
    desk = training(workers=4)
    for _ in range(NEEDED + 1):
        for worker in (1, 2, 3):
            compare(desk, 2.0, node=f"gpu-r01-{worker + 1:02}")
        desk.decide()
    assert desk.incident.state is IncidentState.SUSPECTED
    assert not desk.wanted(ActionKind.EVICT_WORKER)
    assert desk.last.rule == "slow.shared"
    (considered,) = desk.last.considered
    assert considered.refused_because.startswith("3 machines of the job are slow at once by step_time_ratio")
    for _ in range(NEEDED):
        compare(desk, 1.0, node="gpu-r01-04")  # one of them keeps up again: two are left, which are machines
        desk.decide()
    assert {action.target for action in desk.wanted(ActionKind.EVICT_WORKER)} == {"worker 1", "worker 2"}


def test_machines_that_keep_up_are_no_lines_in_the_timeline() -> None:
    desk = training()
    slow_times(desk, 1)
    told = len(desk.timeline())
    for _ in range(5):
        metric = compare(desk, 1.01, node="gpu-r01-03")
        desk.decide()
        assert desk.log[-1].use_of(metric) is Use.CONTEXT
    assert len(desk.timeline()) == told


def test_job_that_lost_throughput_asks_which_machine_it_is() -> None:
    desk = training()
    for _ in range(NEEDED):
        desk.now += timedelta(seconds=30)
        data = {"name": "tflops_ratio_to_baseline", "value": 0.6}
        desk.signal(SignalKind.METRIC, Source.PROMETHEUS, data)
        desk.decide()
    assert set(wanted(desk.last)) == {ActionKind.ASK_PERSON}
    assert "Nobody tells which" in wanted(desk.last)[ActionKind.ASK_PERSON].why
    before = len(desk.wanted(ActionKind.ASK_PERSON))
    desk.wait(2)
    assert len(desk.wanted(ActionKind.ASK_PERSON)) == before


def test_observed_job_is_told_what_would_be_done_and_nobody_is_asked() -> None:
    desk = training(mode=Mode.OBSERVE, protected=False)
    decision = slow_times(desk, NEEDED)
    assert wanted(decision)[ActionKind.EVICT_WORKER].refused_because == "cluster is in observe"
    assert wanted(decision)[ActionKind.EVICT_WORKER].price
    assert ActionKind.ASK_PERSON not in wanted(decision)
    assert desk.incident.state is IncidentState.OPEN


def test_what_a_person_has_resolved_is_not_opened_again_by_the_next_comparison() -> None:
    desk = training()
    slow_times(desk, 2)
    desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "mei", "reason": "known"})
    compare(desk, 2.0)
    desk.decide()
    assert desk.incident.resolution is Resolution.BY_PERSON
    slow_times(desk, 1)
    assert desk.incident.state is IncidentState.RESOLVED


EVENTS = st.one_of(
    st.tuples(
        st.sampled_from(["step_time_ratio", "tflops_ratio_to_baseline", "gpu_temp_c"]),
        st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 3),
        st.sampled_from(["", "gpu-r01-01", NODE, "gpu-r01-03"]),
    ),
    st.sampled_from(["kill", "lose", "no place", "resolve"]),
    st.floats(1, 3_000),
)


@given(st.lists(EVENTS, max_size=12), st.integers(0, 200))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_compared_and_lost_is_decided_and_decided_alike_again(
    events: list[Any], gpus: int
) -> None:
    desk = training(gpus=gpus)
    desk.state = replace(desk.state, elastic=ElasticTerms(workers_per_slice=1 + gpus % 2, head=gpus % 4))
    for event in events:
        match event:
            case (name, value, node):
                data = {"name": name, "value": value, "node": node}
                desk.signal(SignalKind.METRIC, Source.PROMETHEUS, data)
            case "kill":
                desk.kill(0)
            case "lose":
                desk.end_pod(1, EndCause.NODE_LOST)
            case "no place":
                desk.signal(SignalKind.POD_WAITING, Source.WATCH, {"message": "none is free"})
            case "resolve":
                desk.signal(SignalKind.PERSON_RESOLVE, Source.PERSON, {"by": "mei"})
            case _:
                desk.wait(event)
        desk.decide()
    for seen in desk.log:
        state = state_from_plain(to_plain(seen.state))
        assert to_plain(decide(state, seen.inbox, seen.now, desk.policy)) == to_plain(seen.decision)


def test_decisions_about_a_slow_machine_are_stored_and_made_again_alike() -> None:
    desk = training()
    slow_times(desk, NEEDED)
    desk.wait(151)
    slow_times(desk, NEEDED, 1.0)
    for seen in desk.log:
        again = decide(
            state_from_plain(to_plain(seen.state)),
            inbox_from_plain(to_plain(seen.inbox)),
            seen.now,
            desk.policy,
        )
        assert to_plain(again) == to_plain(seen.decision)
        assert decision_from_plain(to_plain(seen.decision)) == seen.decision


def test_comparisons_are_kept_as_they_are_and_what_cannot_be_read_is_left_out() -> None:
    desk = training()
    slow_times(desk, NEEDED)
    stored = desk.incident.verdict["slow"]
    kept = from_stored(stored)
    assert kept is not None
    assert to_stored(kept) == stored
    broken = {**stored, "compared": [*stored["compared"], {"metric": 1}, None], "told": "x"}
    found = from_stored(broken)
    assert found is not None
    assert found.compared == kept.compared
    assert found.told == ()
    assert from_stored("x") is None
