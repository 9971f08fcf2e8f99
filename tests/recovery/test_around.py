"""What else is in trouble while a job fails: what failures of different jobs are compared by, and what it changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recovery import around
from recovery.decide import decide
from recovery.lifecycle import ActionKind, ActionState, IncidentState, WaitingFor
from recovery.observed import evidence_from_plain
from recovery.past import History
from recovery.records import WorldView
from recovery.rules.builtin import builtin_rules
from recovery.rules.loading import RuleFileError, load_rules
from recovery.serialize import state_from_plain, to_plain
from recovery.verdict import Verdict, judge
from tests.recovery.desk import START, Desk

STORAGE = "shared_storage"
DENIED = "ceph: mds0 reconnect denied"  # alone it asks for a new container and blames nobody
STRANGE = "flume: intake of shard 7 of job llm-12 failed at '/data/llm-12/7'"
GREEN = {"io": "pass", "gpu": "pass", "rdma": "pass"}


def verdict(**signals: Any) -> Verdict:
    return judge(evidence_from_plain(signals), History(), builtin_rules())


def like(*log: str, **signals: Any) -> str:
    return around.likeness(verdict(exit_code=1, log_tail=list(log), **signals), log)


def world(counts: dict[str, int], *, span: float = 27.0, **fields: Any) -> WorldView:
    return WorldView(
        taken_at=START, failures_in_window=counts, failures_span_seconds=dict.fromkeys(counts, span), **fields
    )


def failed(*log: str, seen: WorldView | None = None) -> Desk:
    """A job that failed with these lines while the world was so; its workers have stopped."""
    desk = Desk(workers=3, max_retry=9)
    desk.start()
    desk.state = replace(desk.state, world=seen)
    desk.fail(0, *log)
    desk.decide()
    desk.stopped(0, 1, 2)
    desk.decide()
    return desk


# What is alike.


def test_failures_of_a_dependency_are_alike_whatever_their_words() -> None:
    lines = (
        DENIED,
        "nfs: server storage-a not responding, still trying",
        "OSError: [Errno 116] Stale file handle",
    )
    assert {like(line) for line in lines} == {STORAGE}
    assert like("Failed to pull image: 503 Service Unavailable from registry") == "image_registry"


@pytest.mark.parametrize(
    "signals",
    [
        {"log_tail": ["KeyError: 'lr_schedule'"]},
        {"log_tail": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"]},
        {"kernel_log": ["NVRM: Xid (PCI:0000:5e:00): 79, pid=1, name=python3, GPU has fallen off the bus."]},
        {"pod_reason": "Deleted"},
        {"pod_reason": "NodeLost"},
        {"checks": {"gpu": "fail"}},
    ],
)
def test_failure_of_the_job_or_of_its_machine_is_like_no_other(signals: dict[str, Any]) -> None:
    found = verdict(exit_code=1, **signals)
    assert around.likeness(found, signals.get("log_tail", [])) == ""


def test_what_nothing_explains_is_alike_in_its_words_without_names_and_numbers() -> None:
    other = "flume: intake of shard 31 of job seg-4 failed at '/data/seg-4/31'"
    assert like(STRANGE) == like("step 12 | loss 2.0", other, "bye") != ""
    assert like(STRANGE) != like("flume: outlet of shard 7 of job llm-12 failed")
    assert "llm" not in like(STRANGE)


@pytest.mark.parametrize("log", [(), ("step 12 | loss 2.0",), ("error 17",), ("",), ("\x00" * 9000,)])
def test_end_without_words_is_like_no_other(log: tuple[str, ...]) -> None:
    assert like(*log) == ""


# What it changes.


def test_many_jobs_that_fail_alike_share_a_dependency_and_blame_no_node() -> None:
    alone = failed(DENIED, seen=world({}))
    assert alone.incident.verdict["diagnosis"]["remedy"] == "restart_container"
    desk = failed(DENIED, seen=world({STORAGE: 4}))
    found = desk.incident.verdict["diagnosis"]
    assert (found["rule"], found["category"]) == ("cluster.jobs-alike", STORAGE)
    assert (found["remedy"], found["blame"], found["culprit_node"]) == ("backoff_shared", "shared", "")
    assert found["evidence"][0]["text"].startswith(
        "5 jobs of the cluster failed alike within 27 s: the storage"
    )
    assert desk.incident.verdict["evidence"][0].startswith("5 jobs of the cluster failed alike within 27 s")
    assert any(each["rule"] == "ceph.blocked" for each in found["evidence"])


def test_job_with_a_shared_dependency_waits_a_while_and_trains_again() -> None:
    """The action that would wait for the dependency is not to be had; the job is not left standing for that."""
    desk = failed(DENIED, seen=world({STORAGE: 9}))
    (wait,) = desk.wanted(ActionKind.WAIT_SHARED)
    assert (wait.state, wait.refused_because) == (ActionState.REFUSED, "remedy not installed")
    (restart,) = desk.wanted(ActionKind.RESTART_PROCESS)
    assert restart.state is ActionState.READY
    assert restart.not_before > desk.now
    assert "10 jobs of the cluster failed alike within 27 s" in restart.why
    assert (desk.incident.state, desk.incident.waiting_for) == (IncidentState.WAITING, WaitingFor.BACKOFF)
    desk.go()
    desk.decide()
    desk.started(0, 1, 2)
    desk.decide()
    desk.first_step(0, 1, 2, step=3389)
    desk.decide()
    assert desk.incident.state is IncidentState.WATCHING
    assert not desk.wanted(ActionKind.HOLD_NODE)


@pytest.mark.parametrize(
    "counts",
    [
        {},
        {STORAGE: 3},
        {"image_registry": 40},
        {STORAGE: 3, "shared_network": 3},
        {"words/0123456789abcdef": 40},
    ],
    ids=str,
)
def test_few_or_unlike_failures_of_others_change_nothing(counts: dict[str, int]) -> None:
    found = failed(DENIED, seen=world(counts)).incident.verdict
    assert found["diagnosis"]["rule"] == "ceph.blocked"
    assert not any("jobs of the cluster" in line for line in found["evidence"])


def test_failures_that_nothing_explains_are_shared_where_many_have_the_same_words() -> None:
    desk = failed(STRANGE, seen=world({like(STRANGE): 11}))
    found = desk.incident.verdict["diagnosis"]
    assert (found["rule"], found["blame"]) == ("cluster.jobs-alike", "shared")
    assert "12 jobs of the cluster failed with the same words within 27 s" in found["reason"]


def test_own_error_and_failed_check_stand_whatever_others_do() -> None:
    everything = {STORAGE: 40, "shared_network": 40, "peer_cascade": 40}
    assert failed("KeyError: 'lr'", seen=world(everything)).incident.verdict["diagnosis"]["blame"] == "job"
    numbers = around.numbers(world(everything), STORAGE)
    bad = verdict(exit_code=1, log_tail=[DENIED], metrics=numbers, checks=GREEN | {"gpu": "fail"})
    assert (bad.remedy, bad.rule) == ("isolate_node", "check.gpu")


def test_same_storage_again_is_the_same_finding_for_the_next_attempt() -> None:
    desk = failed(DENIED, seen=world({STORAGE: 4}))
    desk.go()
    desk.decide()
    desk.started(0, 1, 2)
    desk.first_step(0, 1, 2, step=3389)
    desk.decide()
    desk.state = replace(desk.state, world=world({}))
    desk.now += timedelta(seconds=60)
    desk.fail(0, DENIED)
    desk.decide()
    found = desk.incident.verdict["diagnosis"]
    assert (found["rule"], found["times"]) == ("ceph.blocked", 2)


# What is kept.


def test_verdict_stands_when_the_world_is_well_again_by_the_next_witness() -> None:
    """The window moves on while a restart waits; what was so when it failed is still why it failed."""
    desk = failed(DENIED, seen=world({STORAGE: 6}))
    desk.state = replace(desk.state, world=world({}))
    desk.fail(1, "Connection reset by peer")
    desk.decide()
    assert desk.incident.verdict["diagnosis"]["rule"] == "cluster.jobs-alike"
    assert "7 jobs of the cluster" in desk.incident.verdict["diagnosis"]["reason"]


def test_later_failures_of_others_join_and_the_worst_is_kept() -> None:
    before = world({STORAGE: 2, "shared_network": 5}, span=9.0, watch_lag_seconds=90.0)
    now = world({STORAGE: 8}, span=31.0, not_ready_machines=7, not_ready_share=0.2, watch_silent_seconds=3.0)
    kept = around.worst(now, before)
    assert kept == replace(
        now,
        watch_lag_seconds=90.0,
        failures_in_window={STORAGE: 8, "shared_network": 5},
        failures_span_seconds={STORAGE: 31.0, "shared_network": 9.0},
    )
    assert around.worst(before, None) == around.worst(None, before) == before
    assert around.from_kept(around.as_kept(now, 3), 3) == now
    assert around.from_kept(around.as_kept(now, 3), 4) is None
    assert around.as_kept(world({}, watch_lag_seconds=0.2, api_call_seconds=0.2), 3) is None
    assert around.as_kept(world({}, api_call_seconds=6.0), 3) is not None


@pytest.mark.parametrize(
    "kept", [None, 7, {}, {"attempt": 1}, {"attempt": 1, "world": {"taken_at": 3}}], ids=str
)
def test_what_was_kept_and_cannot_be_read_is_nothing(kept: object) -> None:
    assert around.from_kept(kept, 1) is None


def test_decision_replays_from_what_it_read_of_the_world() -> None:
    desk = failed(DENIED, seen=world({STORAGE: 4}, watch_silent_seconds=1.5))
    for seen in desk.log:
        stored = state_from_plain(to_plain(seen.state))
        assert stored == seen.state
        assert decide(stored, seen.inbox, seen.now, desk.policy) == seen.decision


# What rules may say.


def test_reason_may_say_only_a_number_that_its_conditions_compare() -> None:
    rule = """
[[rule]]
id = "own.shares"
if = ["metric.http_503_rate > 0.05"]
class = "metric"
category = "shared_storage"
remedy = "backoff_shared"
blame = "shared"
reason = "The store refuses {metric.%s} of the requests"
source = "our monitoring"
examples = [{ metrics = { http_503_rate = 0.4 } }]
"""
    rules = load_rules([("own.toml", rule % "http_503_rate")], base=builtin_rules())
    found = judge(evidence_from_plain({"metrics": {"http_503_rate": 0.25}}), History(), rules)
    assert "own.shares" in {each.rule for each in found.evidence}
    assert "The store refuses 0.25 of the requests" in {each.text for each in found.evidence}
    with pytest.raises(RuleFileError, match=r"own\.shares, reason: it says metric\.gpu_util"):
        load_rules([("own.toml", rule % "gpu_util")], base=builtin_rules())


def test_deleted_pod_is_told_as_deleted_and_not_as_a_broken_container() -> None:
    for reason in ("Deleted", "Vanished"):
        found = verdict(pod_reason=reason)
        assert (found.category, found.means) == ("container_env", "the pod was deleted")
        assert found.reason == "The pod was deleted: it is made anew"
    assert verdict(pod_reason="CreateContainerError").means == ""
