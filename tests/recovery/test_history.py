"""What the past is found to say, fact by fact: through a whole decision, by rules that do nothing but repeat it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recovery.decide import Finding, MachineFinding, MachinePast, PastAttempt, decide
from recovery.history import chance
from recovery.lifecycle import ActionKind
from recovery.rules import registry
from recovery.rules.loading import load_rules
from recovery.signals import EndCause, SignalKind
from tests.recovery.desk import SHORT, START, Desk

FACTS = (
    "every", "same_point", "same_sequence", "changing_point", "same_node", "same_device", "same_rank", "other_nodes",
    "passed", "in_vain", "after_restart", "other_jobs", "owners", "only_here", "fine_elsewhere",
)  # fmt: skip
NODE = "gpu-r01-01"
PCI = "gpu 0000:a1:00: it ends"


def rules(blame: str, category: str = "gpu_lost") -> str:
    """One rule that finds the failure, and one for each fact that says only that it holds."""
    fields = f"""
category = "{category}"
remedy = "restart_process"
blame = "{blame}"
source = "test"
reason = "so it is"
examples = ["it ends"]
"""
    of_facts = [
        f'[[rule]]\nid = "says.{name}"\nif = ["past.{name}"]\nclass = "symptom"{fields}' for name in FACTS
    ]
    return "\n".join([f'[[rule]]\nid = "found"\nmatch = ["it ends"]\nclass = "log"{fields}', *of_facts])


def training(blame: str = "none", category: str = "gpu_lost", **fields: Any) -> Desk:
    loaded = load_rules([("facts.toml", rules(blame, category))])
    desk = Desk(max_retry=9, policy=replace(SHORT, rules=registry.put(loaded)), **fields)
    desk.start()
    return desk


def fail(desk: Desk, *log: str, index: int = 0) -> None:
    desk.fail(index, *(log or ("it ends",)))
    desk.decide()
    desk.stopped(*(worker.key.index for worker in desk.job.present))
    desk.decide()


def said(desk: Desk) -> set[str]:
    cited = desk.incident.verdict["diagnosis"]["evidence"]
    return {each["rule"].removeprefix("says.") for each in cited} - {"found"}


def lines(desk: Desk) -> list[str]:
    return list(desk.incident.verdict["diagnosis"].get("compared", ()))


def first_was(desk: Desk, **fields: Any) -> None:
    """The attempt before ended otherwise: fields of it, or of what it was found to be."""
    of_finding = {name: value for name, value in fields.items() if name in Finding.__dataclass_fields__}
    of_attempt = {name: value for name, value in fields.items() if name not in of_finding}
    first = desk.state.past_attempts[0]
    assert first.found is not None
    changed = replace(first, found=replace(first.found, **of_finding), **of_attempt)
    desk.state = replace(desk.state, past_attempts=(changed, *desk.state.past_attempts[1:]))


def trained_past_it(desk: Desk) -> None:
    first_was(desk, last_step=100)
    present = desk.state.attempt
    assert present is not None
    an_hour_ago = desk.now - timedelta(hours=1)
    desk.state = replace(
        desk.state, attempt=replace(present, resumed_from_step=90, first_step_at=an_hour_ago)
    )


def container_was_made_anew(desk: Desk) -> None:
    lives = tuple(replace(each, attempts=(2,)) for each in desk.state.incarnations)
    desk.state = replace(desk.state, incarnations=lives)


def container_went_itself(desk: Desk) -> None:
    first_was(desk, end_cause="pod_deleted")
    container_was_made_anew(desk)


@pytest.mark.parametrize(
    ("before", "log", "expected"),
    [
        pytest.param(lambda _: None, (), {"same_node", "same_rank", "changing_point"}, id="again"),
        pytest.param(
            lambda desk: first_was(desk, last_step=3301), (), {"same_node", "same_rank", "same_point"},
            id="at-the-same-step",
        ),
        pytest.param(
            lambda desk: first_was(desk, node="gpu-r09-01"), (), {"other_nodes", "same_rank", "changing_point"},
            id="on-another-node",
        ),
        pytest.param(
            lambda desk: first_was(desk, rank=2), (), {"same_node", "changing_point"}, id="at-another-rank"
        ),
        pytest.param(
            lambda desk: first_was(desk, device="pci/0000:a1:00"), (PCI,),
            {"same_node", "same_device", "same_rank", "changing_point"}, id="on-the-same-device",
        ),
        pytest.param(
            lambda desk: first_was(desk, device="pci/0000:07:00"), (PCI,),
            {"same_node", "same_rank", "changing_point"}, id="on-another-device",
        ),
        pytest.param(
            lambda desk: first_was(desk, sequence=881), ("WorkNCCL(SeqNum=881, OpType=ALLREDUCE)", "it ends"),
            {"same_node", "same_rank", "same_sequence", "same_point"}, id="at-the-same-collective",
        ),
        pytest.param(
            trained_past_it, (), {"same_node", "same_rank", "changing_point", "passed"}, id="trained-past-it"
        ),
        pytest.param(
            container_was_made_anew, (), {"same_node", "same_rank", "changing_point", "in_vain"},
            id="in-a-new-container",
        ),
        pytest.param(
            container_went_itself, (), {"same_node", "same_rank", "changing_point"},
            id="container-that-went-itself",
        ),
        pytest.param(lambda desk: first_was(desk, rule="another"), (), set(), id="by-another-rule"),
        pytest.param(lambda desk: first_was(desk, rule="none"), (), set(), id="by-nothing-that-is-known"),
    ],
)  # fmt: skip
def test_second_failure_is_compared_with_the_first(
    before: Callable[[Desk], None], log: Sequence[str], expected: set[str]
) -> None:
    desk = training()
    fail(desk)
    desk.recover()
    before(desk)
    fail(desk, *log)
    assert said(desk) == expected
    assert lines(desk) == (["The attempt before this one ended by the same rule"] if expected else [])


def fail_at_start(desk: Desk) -> None:
    """The restart in place is carried out, and a process ends before any step."""
    desk.now += timedelta(seconds=1)
    desk.go()
    desk.decide()
    desk.started(0, 1, 2)
    desk.decide()
    fail(desk)


def test_failure_right_after_a_restart_in_place_and_at_every_start() -> None:
    desk = training()
    fail(desk)
    fail_at_start(desk)
    assert "after_restart" in said(desk)
    assert "every" not in said(desk), "the first attempt had come to its steps"
    first_was(desk, first_step_at=None, last_step=None)
    fail_at_start(desk)
    assert "every" in said(desk)


def test_job_on_one_machine_has_no_other_to_compare_it_with() -> None:
    for blame, expected in (("job", set[str]()), ("node", {"same_node"})):
        desk = training(blame, workers=1)
        fail(desk)
        desk.recover()
        fail(desk)
        assert said(desk) - {"changing_point"} == expected


def test_day_of_training_between_was_worth_the_restart() -> None:
    desk = training()
    fail(desk)
    desk.recover()
    assert desk.state.attempt is not None
    desk.state = replace(
        desk.state, attempt=replace(desk.state.attempt, first_step_at=desk.now - timedelta(days=2))
    )
    fail(desk)
    diagnosis = desk.incident.verdict["diagnosis"]
    assert (diagnosis["times"], "same_node" in said(desk)) == (1, True)


def test_attempt_that_counts_for_nobody_breaks_no_row() -> None:
    desk = training()
    fail(desk)
    desk.recover()
    desk.end_pod(1, EndCause.PREEMPTED)
    desk.decide()
    desk.stopped(0, 2)
    desk.decide()
    desk.enrol(1)
    desk.decide()
    desk.boot_check(1)
    desk.decide()
    desk.recover()
    assert [each.counted for each in desk.state.past_attempts] == [True, False]
    fail(desk)
    assert desk.incident.verdict["diagnosis"]["times"] == 2


def test_job_of_the_same_name_before_is_history_and_makes_nothing_futile() -> None:
    desk = training("job")
    before = PastAttempt(
        n=7, started_at=START - timedelta(days=1), ended_at=START - timedelta(hours=20), end_cause="unknown",
        counted=True, worker=None, node="", last_step=1, resumed_from_step=None,
        found=Finding(rule="found", category="gpu_lost", node=NODE, rank=0),
    )  # fmt: skip
    desk.state = replace(desk.state, earlier=(before,))
    fail(desk)
    assert said(desk) == {"same_node", "same_rank", "same_point"}
    assert desk.incident.verdict["diagnosis"]["times"] == 1


def met(
    *,
    jobs: int = 1,
    owners: int = 1,
    rule: str = "found",
    category: str = "gpu_lost",
    device: str = "",
    **fields: Any,
) -> MachineFinding:
    return MachineFinding(
        category=category, rule=rule, device=device, jobs=jobs, owners=owners, **fields,
    )  # fmt: skip


def on_machine(*findings: MachineFinding, machines: int = 1000, **fields: Any) -> MachinePast:
    return MachinePast(node=NODE, findings=findings, machines=machines, **fields)


FIRST = {"other_jobs", "same_node", "only_here"}


@pytest.mark.parametrize(
    ("blame", "machine", "expected"),
    [
        pytest.param("none", on_machine(met()), FIRST, id="another-job"),
        pytest.param("none", on_machine(met(jobs=3)), {*FIRST, "owners"}, id="several-owners"),
        pytest.param("none", on_machine(met(jobs=3, owners=0)), FIRST, id="jobs-of-one-owner"),
        pytest.param(
            "none", on_machine(met(jobs_elsewhere=4)), {"other_jobs", "same_node"},
            id="elsewhere-too",
        ),
        pytest.param(
            "none", on_machine(met(jobs_elsewhere=300)), set(), id="as-many-as-by-chance"
        ),
        pytest.param("none", on_machine(met(), machines=4), set(), id="one-of-four-machines"),
        pytest.param("none", on_machine(met(), machines=0), set(), id="cluster-not-known"),
        pytest.param("none", on_machine(met(jobs=3, fine_since=1)), set(), id="trained-there-since"),
        pytest.param("none", on_machine(met(rule="another")), set(), id="another-failure"),
        pytest.param("none", on_machine(met(rule="")), set(), id="another-rule-of-its-kind"),
        pytest.param("node", on_machine(met(rule=""), machines=0), {"other_jobs", "same_node"}, id="its-own-kind"),
        pytest.param("job", on_machine(met()), set(), id="error-of-one-other-program"),
        pytest.param("job", on_machine(met(jobs=4, owners=0)), set(), id="error-of-one-owners-programs"),
        pytest.param("job", on_machine(met(jobs=3)), {*FIRST, "owners"}, id="error-of-everybodys-programs"),
        pytest.param(
            "job", on_machine(met(jobs=3, jobs_elsewhere=900)), set(), id="error-of-anybody"
        ),
        pytest.param(
            "none", on_machine(met(), met(device="pci/0000:a1:00")), {*FIRST, "same_device"}, id="on-the-device"
        ),
        pytest.param(
            "none", on_machine(met(), met(device="pci/0000:a1:00", rule="another", category="host_hw")), FIRST,
            id="another-failure-of-the-device",
        ),
        pytest.param("none", on_machine(met(jobs_elsewhere=None)), set(), id="elsewhere-uncounted"),
        pytest.param("none", replace(on_machine(met()), node="gpu-r01-02"), set(), id="on-another-machine"),
        pytest.param("none", on_machine(), set(), id="nothing-known"),
    ],
)  # fmt: skip
def test_what_other_jobs_met_on_the_machine(blame: str, machine: MachinePast, expected: set[str]) -> None:
    desk = training(blame)
    desk.state = replace(desk.state, machines=(machine,))
    fail(desk, PCI)
    assert said(desk) == expected


def test_verdict_shows_that_other_jobs_failed_alike_but_neither_how_many_nor_whose() -> None:
    shown = []
    for jobs, owners in ((2, 1), (37, 29)):
        desk = training()
        desk.state = replace(desk.state, machines=(on_machine(met(jobs=jobs, owners=owners)),))
        fail(desk)
        shown.append(desk.incident.verdict)
        assert {"other_jobs", "owners"} <= said(desk)
    others = f"Other jobs failed alike on {NODE} within 30 days"
    told = [f"{others}, and none trained well there since", "No other machine of the cluster shows it"]
    assert lines(desk) == told
    assert set(told) <= set(desk.incident.verdict["evidence"])
    assert shown[0] == shown[1]


def test_job_that_met_it_on_other_machines_too_blames_none() -> None:
    desk = training()
    fail(desk)
    desk.recover()
    first_was(desk, node="gpu-r09-01")
    desk.state = replace(desk.state, machines=(on_machine(met(jobs=3)),))
    fail(desk)
    assert said(desk) & {"other_jobs", "owners", "only_here", "same_node"} == set()


@pytest.mark.parametrize(
    ("own_attempts", "hours", "is_fine"),
    [((2, 3), 2.0, True), ((1, 2, 3), 2.0, False), ((2, 3), 0.5, False), ((3,), 2.0, False)],
    ids=["without-it", "with-it", "too-short", "not-known"],
)
def test_attempt_that_trained_without_the_machine_is_the_other_side_of_the_comparison(
    own_attempts: tuple[int, ...], hours: float, is_fine: bool
) -> None:
    desk = training()
    desk.kill(1)  # an end that no rule here explains
    desk.decide()
    desk.recover()
    first_was(desk, first_step_at=desk.state.past_attempts[0].ended_at - timedelta(hours=hours))
    fail(desk)
    desk.recover()
    desk.state = replace(desk.state, machines=(on_machine(own_attempts=own_attempts),))
    fail(desk)
    assert ("fine_elsewhere" in said(desk)) is is_fine


def test_decisions_of_before_findings_were_kept_come_out_as_they_were() -> None:
    """Then the open incident alone said what its attempts ended by."""
    desk = training()
    desk.state = replace(desk.state, machines=None)
    fail(desk)
    desk.recover()
    fail(desk)
    assert said(desk) == {"same_node", "changing_point"}
    assert all(change.found is None for seen in desk.log for change in seen.decision.attempts)
    assert [each["rule"] for each in desk.incident.verdict["diagnosed"]] == ["found", "found"]
    assert "compared" not in desk.incident.verdict["diagnosis"]


def test_incident_that_was_open_when_findings_came_to_be_kept_goes_on_with_what_it_says() -> None:
    desk = training()
    desk.state = replace(desk.state, machines=None)
    fail(desk)
    desk.recover()
    assert [each.found for each in desk.state.past_attempts] == [None]
    desk.state = replace(desk.state, machines=())
    fail(desk)
    assert desk.incident.verdict["diagnosis"]["times"] == 2
    assert "same_node" in said(desk)


def test_findings_are_replayed_to_the_same_decisions() -> None:
    desk = training()
    desk.state = replace(desk.state, machines=(on_machine(met(jobs=3)),))
    fail(desk)
    desk.recover()
    fail(desk)
    assert desk.state.past_attempts[-1].found == Finding(
        rule="found", category="gpu_lost", node=NODE, rank=0, container_since=1
    )
    for seen in desk.log:
        assert decide(seen.state, seen.inbox, seen.now, desk.policy) == seen.decision


def test_late_witness_changes_what_the_ended_attempt_was_found_to_be() -> None:
    desk = training()
    desk.fail(0, "nothing of the kind")
    desk.decide()
    assert desk.state.past_attempts[-1].found == Finding(
        rule="none", category="unknown", node=NODE, rank=0, container_since=1
    )
    desk.agent(0, SignalKind.ERROR, {"exit_code": 1, "kernel_log": ["it ends"]}, phase="command")
    desk.decide()
    found = desk.state.past_attempts[-1].found
    assert found is not None
    assert found.rule == "found"
    assert not desk.wanted(ActionKind.STOP_JOB)


def test_chance_is_that_of_so_many_falling_on_one_machine() -> None:
    assert chance(1, 0.001) == pytest.approx(0.0009995)
    assert chance(2, 1.0) == pytest.approx(0.2642411)
    assert (chance(0, 3.0), chance(1, 0.0)) == (1.0, 0.0)
