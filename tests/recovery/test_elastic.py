"""An elastic job that loses a worker: both ways are priced beside the ordinary recovery."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recovery.decide import decide
from recovery.elastic import Wait, price_loss, replacement_seconds
from recovery.figures import Basis, estimated, measured
from recovery.lifecycle import ActionKind, IncidentState, Resolution
from recovery.records import AttemptView, Decision, ElasticTerms, Mode, PastAttempt
from recovery.serialize import decision_from_plain, inbox_from_plain, state_from_plain, to_plain
from recovery.signals import EndCause, SignalKind, Source, WorkerKey
from tests.recovery.desk import START, Desk, committed

#: Three slices that can go on as two.
TERMS = ElasticTerms(can_reshard=True, batch_per_slice=32)
REMEDIES = {ActionKind.RESUME_JOB, ActionKind.RESIZE_JOB}


def training(terms: ElasticTerms | None = TERMS, *, gpus: int = 48, **options: Any) -> Desk:
    """A job at step 3,388, 88 steps of 0.2 s after its newest checkpoint."""
    desk = Desk(**options)
    desk.start()
    desk.state = replace(desk.state, gpus=gpus, elastic=terms, checkpoints=(committed(3_300),))
    desk.now += timedelta(seconds=60)
    desk.heartbeat(0, 1, 2, step=3_388)
    return desk


def lose(desk: Desk, *indexes: int) -> Decision:
    for index in indexes:
        desk.end_pod(index, EndCause.NODE_LOST)
    return desk.decide()


def wanted(decision: Decision) -> list[Any]:
    return [action for action in decision.actions if action.kind in REMEDIES]


def test_a_lost_slice_has_both_prices_in_the_decision_and_the_cheaper_way_is_wanted() -> None:
    decision = lose(training(), 1)
    (action,) = wanted(decision)
    assert (action.kind, action.refused_because) == (ActionKind.RESIZE_JOB, "remedy not installed")
    price = action.price
    assert price["chosen"] == "replica resize"
    assert [option["option"] for option in price["options"]] == [
        "pause and resume",
        "replica resize",
        "full restart",
    ]
    pause, resize, _ = price["options"]
    wait, restore, again = pause["parts"]
    assert (wait["seconds"], wait["gpus"], wait["basis"]) == (50, 48, "assumed")
    assert (again["seconds"], again["basis"]) == (17.6, "measured")
    lost, first, second, _ = resize["parts"]
    assert (lost["seconds"], lost["gpus"]) == (50, 16), "only the lost slice stands still"
    assert first["seconds"] == second["seconds"] == restore["seconds"], "restored twice"
    assert resize["gpu_seconds"] < pause["gpu_seconds"]
    assert (price["batch_before"], price["batch_after"]) == (96, 64)
    (other,) = [each for each in decision.considered if each.remedy == "resume_job"]
    assert other.refused_because.startswith("dearer: ")
    (line,) = [entry.text for entry in decision.timeline if entry.kind == "action_refused"]
    assert "The job is elastic and has lost worker 1." in line
    assert "Costs: pause and resume" in line


def test_a_quick_replacement_is_waited_for_within_the_frameworks_timeout() -> None:
    desk = training()
    past = PastAttempt(
        1, START - timedelta(seconds=900), START - timedelta(seconds=2), "node_lost", True, None, "", 5, 0
    )
    attempt = desk.state.attempt
    assert attempt is not None
    slow_start = replace(attempt, n=2, first_step_at=attempt.started_at + timedelta(seconds=10))
    desk.state = replace(desk.state, past_attempts=(past,), attempt=slow_start)
    job = desk.job
    desk.state = replace(
        desk.state,
        job=replace(job, attempt=2),
        incarnations=tuple(replace(life, attempts=(2,)) for life in desk.state.incarnations),
    )
    (action,) = wanted(lose(desk, 1))
    assert (action.kind, action.price["chosen"]) == (ActionKind.RESUME_JOB, "pause and resume")
    wait = action.price["options"][0]["parts"][0]
    assert (wait["seconds"], wait["basis"]) == (2, "estimated"), "as long as this job's last replacement took"
    assert action.price["deadline"] == (desk.now + timedelta(seconds=300)).isoformat()


@pytest.mark.parametrize(
    ("terms", "chosen", "refused"),
    [
        pytest.param(
            ElasticTerms(), "pause and resume", "the checkpoint cannot be resharded", id="no resharding"
        ),
        pytest.param(
            replace(TERMS, min_slices=3),
            "pause and resume",
            "2 of 3 replicas left, it needs 3",
            id="too few left",
        ),
        pytest.param(
            replace(TERMS, timeout_seconds=20),
            "replica resize",
            "a replacement takes 50 s, the framework waits 20 s",
            id="out of time",
        ),
        pytest.param(
            replace(TERMS, max_retries=0), "full restart", "0 of 0 retries are used", id="no retries"
        ),
        pytest.param(replace(TERMS, head=1), "full restart", "the head is lost", id="head"),
    ],
)
def test_what_cannot_be_had_is_priced_too_and_says_why(
    terms: ElasticTerms, chosen: str, refused: str
) -> None:
    decision = lose(training(terms), 1)
    said = " ".join(
        each.refused_because for each in decision.considered if each.remedy in ("resume_job", "resize_job")
    )
    assert refused in said
    if chosen == "full restart":
        assert wanted(decision) == [], "the ordinary recovery is the full restart"
        assert "full restart 0." in said
        (line,) = [entry.text for entry in decision.timeline if entry.kind == "waiting"]
        assert f"Full restart: {refused}" in line
    else:
        (action,) = wanted(decision)
        assert action.price["chosen"] == chosen
        assert refused in str(action.price["options"])


@pytest.mark.parametrize(
    ("terms", "gpus", "missing"),
    [
        pytest.param(TERMS, 0, "how many GPUs the job holds is not known", id="GPUs"),
        pytest.param(TERMS, 2, "how many GPUs the job holds is not known", id="fewer GPUs than slices"),
        pytest.param(replace(TERMS, workers_per_slice=2), 48, "no whole number of slices of 2", id="slices"),
    ],
)
def test_no_price_is_made_up(terms: ElasticTerms, gpus: int, missing: str) -> None:
    decision = lose(training(terms, gpus=gpus), 1)
    assert wanted(decision) == []
    (said,) = [each.refused_because for each in decision.considered if each.remedy == "resize_job"]
    assert said.startswith("not priced: ")
    assert missing in said


def test_the_recovery_goes_on_as_it_does_for_any_job() -> None:
    ways, kinds = [], []
    for terms in (None, TERMS):
        desk = training(terms)
        lose(desk, 1)
        desk.enrol(1)
        desk.decide()
        desk.boot_check(1)
        desk.decide()
        desk.recover()
        desk.keep_stepping(4, 3_400)
        assert desk.incident.resolution is Resolution.RECOVERED
        ways.append(
            [
                (seen.decision.rule, seen.decision.job, seen.decision.orders, seen.decision.next_look_at)
                for seen in desk.log
            ]
        )
        kinds.append([action.kind for seen in desk.log for action in seen.decision.actions])
    assert ways[0] == ways[1]
    assert ActionKind.RESTART_PROCESS in kinds[0]
    assert [kind for kind in kinds[1] if kind is not ActionKind.RESIZE_JOB] == kinds[0]
    assert kinds[1].count(ActionKind.RESIZE_JOB) == 1


def test_a_job_that_nobody_calls_elastic_is_not_looked_at() -> None:
    decision = lose(training(None), 1)
    assert wanted(decision) == []
    assert "elastic" not in decision.verdict


def test_lack_of_capacity_is_priced_anew_and_once_more_when_it_lasts() -> None:
    desk = training(replace(TERMS, timeout_seconds=60))
    lose(desk, 1)
    assert [action.kind for action in wanted(desk.last)] == [ActionKind.RESIZE_JOB]
    desk.signal(SignalKind.POD_WAITING, Source.WATCH, {"message": "0/8 nodes are available"})
    desk.decide()
    (line,) = [text for text in desk.timeline("waiting") if "Priced anew" in text]
    assert "replica resize, as before" in line
    decided = len(desk.log)
    desk.wait(21)  # the deadline for capacity is 20 s here
    assert len(desk.log) > decided
    priced = [text for text in desk.timeline("waiting") if "Priced anew" in text]
    assert len(priced) == 2
    assert len(desk.wanted(ActionKind.RESIZE_JOB)) == 1, "the same choice is wanted once"
    assert desk.incident.verdict["elastic"]["wait"] == "long"
    assert desk.incident.state is IncidentState.WAITING


def test_another_slice_lost_changes_the_choice_and_says_so() -> None:
    desk = training(replace(TERMS, min_slices=2))
    lose(desk, 1)
    assert [action.kind for action in wanted(desk.last)] == [ActionKind.RESIZE_JOB]
    lose(desk, 2)
    (action,) = wanted(desk.last)
    assert action.kind is ActionKind.RESUME_JOB
    assert "has lost worker 1, worker 2. Pause and resume: replica resize cannot be had" in action.why


def test_observed_job_is_told_what_would_be_done() -> None:
    desk = training(mode=Mode.OBSERVE, protected=False)
    (action,) = wanted(lose(desk, 1))
    assert action.refused_because == "cluster is in observe"
    assert action.price["chosen"] == "replica resize"


def test_process_that_dies_in_its_container_waits_for_no_replacement() -> None:
    desk = training()
    desk.kill(1)
    assert wanted(desk.decide()) == []


def test_slices_of_several_workers_are_lost_as_a_whole() -> None:
    choice, missing = price_loss(
        replace(TERMS, workers_per_slice=4),
        workers=12,
        gpus=96,
        lost=[WorkerKey("worker", 5), WorkerKey("worker", 6)],
        replacement=measured(100),
        stake=measured(10),
        step=measured(1),
        start=estimated(10),
        tries=0,
        waited=0,
        now=START,
    )
    assert choice is not None, missing
    lost = choice.price("replica resize").parts[0]
    assert (lost.gpus, lost.seconds) == (32, 100)


def test_time_of_a_replacement_is_that_of_this_jobs_own_losses() -> None:
    def past(n: int, end_cause: str, begins: float, ends: float) -> PastAttempt:
        return PastAttempt(
            n,
            START + timedelta(seconds=begins),
            START + timedelta(seconds=ends),
            end_cause,
            True,
            None,
            "",
            1,
            0,
        )

    history = (
        past(1, "node_lost", 0, 100),
        past(2, "process_killed", 190, 200),
        past(3, "preempted", 204, 300),
    )
    attempt = AttemptView(4, 9, START + timedelta(seconds=330))
    found = replacement_seconds(attempt, history, Wait.CONTAINER, waited=0, deadline=300)
    assert (found.value, found.basis) == (60, Basis.ESTIMATED), (
        "the median of 90 s and 30 s; a process is no loss"
    )
    nobody = replacement_seconds(None, (), Wait.CONTAINER, waited=0, deadline=300)
    assert (nobody.value, nobody.basis) == (50, Basis.ASSUMED)
    assert replacement_seconds(attempt, history, Wait.CAPACITY, waited=0, deadline=300).value == 300
    assert replacement_seconds(attempt, history, Wait.LONG, waited=700, deadline=300).value == 700


def test_decisions_about_an_elastic_job_are_made_again_alike() -> None:
    desk = training()
    lose(desk, 1)
    desk.signal(SignalKind.POD_WAITING, Source.WATCH, {"message": "0/8 nodes are available"})
    desk.decide()
    desk.wait(30)
    for seen in desk.log:
        again = decide(
            state_from_plain(to_plain(seen.state)),
            inbox_from_plain(to_plain(seen.inbox)),
            seen.now,
            desk.policy,
        )
        assert to_plain(again) == to_plain(seen.decision)
        assert decision_from_plain(to_plain(seen.decision)) == seen.decision
