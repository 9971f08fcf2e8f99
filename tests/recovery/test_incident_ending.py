"""The job has ended: over budget, given up by its controller, or suspended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from recovery.lifecycle import ActionKind, ActionState, IncidentState, Resolution, Severity
from recovery.phases import Phase
from recovery.signals import SignalKind, Source
from tests.recovery.desk import started

STOP, ASK = ActionKind.STOP_JOB, ActionKind.ASK_PERSON


def test_worked_example_through_decide_ends_failed_and_suspended() -> None:
    desk = started(max_retry=2)
    seen = []
    desk.now += timedelta(seconds=30)
    desk.kill(0)
    desk.decide()
    seen.append(desk.retries)
    desk.end_pod(1)
    desk.decide()
    seen.append(desk.retries)
    desk.enrol(1)
    desk.decide()
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    seen.append(desk.retries)
    desk.now += timedelta(seconds=30)
    desk.fail(1)
    desk.decide()
    seen.append(desk.retries)
    desk.recover()
    seen.append(desk.retries)
    desk.now += timedelta(seconds=30)
    desk.kill(2)
    failed = desk.decide()
    seen.append(desk.retries)
    assert seen == ["1:0:0", "1:0:0", "1:1:1", "1:2:1", "2:2:2", "2:2:3"]
    assert (desk.job.phase, desk.job.recover_count) == (Phase.FAILED, 3)
    assert failed.incident is not None
    assert failed.incident.title == "Failed: failures 3 of 2"
    assert failed.incident.severity is Severity.CRITICAL
    assert {action.kind for action in failed.actions} == {STOP, ASK}
    assert len(desk.counts) == 3
    assert desk.incidents == 1, "one incident, its causes joined"
    desk.do(ASK)
    desk.decide()
    assert desk.incident.state is IncidentState.OPEN
    desk.do(STOP, detail="suspended, no pod runs")
    desk.decide()
    assert (desk.incident.state, desk.incident.resolution) == (
        IncidentState.RESOLVED,
        Resolution.JOB_ENDED,
    )


def test_job_that_could_not_be_suspended_needs_a_person() -> None:
    desk = started(max_retry=0)
    desk.kill(0)
    desk.decide()
    desk.do(ASK)
    desk.do(STOP, ActionState.FAILED, "forbidden")
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    assert desk.wanted(ASK)[-1].why == "The job could not be suspended: suspend it by hand"
    desk.do(ASK)
    desk.decide()
    assert desk.incident.state is IncidentState.NEEDS_PERSON
    desk.state = replace(desk.state, suspended=True)
    desk.signal(SignalKind.JOB_SUSPENDED, Source.WATCH, {"by": "mei"})
    desk.decide()
    assert desk.incident.state is IncidentState.RESOLVED


def test_controller_that_gives_up_ends_the_incident() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    desk.signal(SignalKind.JOB_ENDED, Source.WATCH, {"condition": "Failed", "reason": "BackoffLimitExceeded"})
    decision = desk.decide()
    assert [change.state for change in decision.action_changes] == [ActionState.CANCELLED]
    assert (desk.job.phase, desk.incident.resolution) == (Phase.FAILED, Resolution.JOB_ENDED)


def test_suspended_job_resolves_its_incident_and_resumes_as_a_new_run() -> None:
    desk = started()
    desk.kill(0)
    desk.decide()
    desk.signal(SignalKind.JOB_SUSPENDED, Source.WATCH, {"by": "kueue"})
    desk.decide()
    assert (desk.job.phase, desk.incident.resolution) == (Phase.STOPPED, Resolution.JOB_ENDED)
    desk.signal(SignalKind.JOB_RESUMED, Source.WATCH, {"by": "kueue"})
    decision = desk.decide()
    assert decision.run_begins
    assert (desk.job.phase, desk.job.recover_count) == (Phase.PENDING, 1)
