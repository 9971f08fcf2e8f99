"""What a verdict says beside its finding, over situations and over every labelled case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from recovery.hits import Hit
from recovery.observed import evidence_from_plain
from recovery.past import History, read_recurrence
from recovery.rules.builtin import builtin_rules
from recovery.rules.rule import Blame, EvidenceClass, Origin, Remedy, Rule
from recovery.scan import Line
from recovery.verdict import Verdict, judge
from recovery.verdict_words import MAX_SHOWN, contradictions
from tests.cases import judged

RULES = replace(builtin_rules(), precedents=None)  # what the rules say by themselves
GREEN = {"io": "pass", "gpu": "pass", "rdma": "pass"}
XID_79 = "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
REMAPPED = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping"
TIMEOUT = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3389, OpType=ALLREDUCE)"
STALE = "OSError: [Errno 116] Stale file handle"
NO_MODULE = "ModuleNotFoundError: No module named 'apex'"
CUDA = "CUDA error: an illegal memory access was encountered"


def found(recurrence: str = "", **signals: Any) -> Verdict:
    return judge(evidence_from_plain(signals), read_recurrence(recurrence), RULES)


def why_not(verdict: Verdict) -> dict[str, str]:
    return {str(refused.remedy): refused.because for refused in verdict.considered}


@dataclass(frozen=True)
class Situation:
    """Signals, what is taken, and what is said of a remedy that is not."""

    name: str
    signals: dict[str, Any]
    taken: str
    refused: str
    says: str
    recurrence: str = ""


LOST: dict[str, Any] = {"kernel_log": [XID_79]}
MOVES: dict[str, Any] = {"metrics": {"seconds_since_progress": 3.0}}
STILL: dict[str, Any] = {"metrics": {"seconds_since_progress": 1800.0}, "phase": "run"}
SITUATIONS = [
    Situation(
        "isolated while steps are made", LOST | MOVES, "isolate_node", "mark_hang", "it made progress 3 s ago;"
    ),
    Situation("not left until a save", LOST | MOVES, "isolate_node", "evict_at_checkpoint", "steps are made, but"),
    Situation("isolated, ended", LOST | {"exit_code": 1}, "isolate_node", "mark_hang", "it has ended;"),
    Situation(
        "no save after an end", LOST | {"exit_code": 1}, "isolate_node", "evict_at_checkpoint", "it has ended, so"
    ),
    Situation("isolated, standing still", LOST | STILL, "isolate_node", "mark_hang", "outweighed: No step for long"),
    Situation(
        "standing still until a save", LOST | STILL, "isolate_node", "evict_at_checkpoint", "no steps are made, so"
    ),
    Situation("isolated, no end told", LOST, "isolate_node", "mark_hang", "nothing tells that it stands still;"),
    Situation(
        "isolated by a check", {"checks": GREEN | {"gpu": "fail"}, **MOVES}, "isolate_node", "evict_at_checkpoint",
        "a check failed, and then no save is waited for;",
    ),
    Situation("job of a bad machine", LOST, "isolate_node", "fail_fast", "the machine is blamed and not the job;"),
    Situation("operator of a bad machine", LOST, "isolate_node", "needs_operator", "one machine is blamed, and"),
    Situation("container of a bad machine", LOST, "isolate_node", "restart_container", "a new container would stay on"),
    Situation("wait for a bad machine", LOST, "isolate_node", "backoff_shared", "one machine is blamed and not what"),
    Situation(
        "worn, at once", {"kernel_log": [REMAPPED], **MOVES}, "evict_at_checkpoint", "isolate_node", "it leaves after"
    ),
    Situation(
        "worn, process", {"kernel_log": [REMAPPED], **MOVES}, "evict_at_checkpoint", "restart_process",
        "nothing tells that it ended, and",
    ),
    Situation(
        "program, green", {"log_tail": [NO_MODULE], "exit_code": 1, "checks": GREEN}, "fail_fast", "isolate_node",
        "every check that ran is green and no device error",
    ),
    Situation(
        "program, unchecked", {"log_tail": [NO_MODULE], "exit_code": 1}, "fail_fast", "isolate_node",
        "no check is told and no device error",
    ),
    Situation(
        "program, check timed out", {"log_tail": [NO_MODULE], "exit_code": 1, "checks": GREEN | {"gpu": "timeout"}},
        "fail_fast", "isolate_node", "a check without an answer proves nothing;",
    ),
    Situation(
        "program, another check failed", {"log_tail": [NO_MODULE], "exit_code": 1, "checks": GREEN | {"io": "fail"}},
        "fail_fast", "isolate_node", "a failed io check alone does not convict",
    ),
    Situation(
        "program, process", {"log_tail": [NO_MODULE], "exit_code": 1}, "fail_fast", "restart_process",
        "a new process runs the same program",
    ),
    Situation(
        "program again, process", {"log_tail": [NO_MODULE], "exit_code": 1}, "fail_fast", "restart_process",
        "it came more than once, and", "three times on this job",
    ),
    Situation(
        "program, operator", {"log_tail": [NO_MODULE], "exit_code": 1}, "fail_fast", "needs_operator",
        "the job's owner mends this",
    ),
    Situation(
        "first time, the program's", {"log_tail": [CUDA], "exit_code": 1, "checks": GREEN}, "restart_process",
        "fail_fast", "seen for the first time: nothing shows", "first time",
    ),
    Situation(
        "storage, many nodes", {"log_tail": [STALE], "exit_code": 1, "metrics": {"nodes_affected": 30}},
        "backoff_shared", "isolate_node", "several nodes show the same;",
    ),
    Situation(
        "storage, container", {"log_tail": [STALE], "exit_code": 1, "metrics": {"nodes_affected": 30}},
        "backoff_shared", "restart_container", "a new container needs the same",
    ),
    Situation(
        "storage, operator", {"log_tail": [STALE], "exit_code": 1, "metrics": {"nodes_affected": 30}},
        "backoff_shared", "needs_operator", "it may pass by itself;",
    ),
    Situation("symptom", {"log_tail": [TIMEOUT], "exit_code": 1}, "restart_process", "fail_fast", "this rank only"),
    Situation(
        "a check with an odd name",
        {"log_tail": [NO_MODULE], "exit_code": 1, "checks": {"{x}": "fail"}},
        "fail_fast",
        "isolate_node",
        "a failed {x} check alone",
    ),
    Situation("hang, process", STILL, "mark_hang", "restart_process", "nothing is killed on a suspicion;"),
    Situation("hang, operator", STILL, "mark_hang", "needs_operator", "a look into it comes first;"),
    Situation("unknown, running", {"phase": "run"}, "mark_hang", "restart_container", "nothing is killed on a"),
    Situation("unknown, ended", {"exit_code": 1}, "restart_process", "restart_container", "a new process comes first"),
    Situation("unknown, operator", {"exit_code": 1}, "restart_process", "needs_operator", "a cheaper remedy is left;"),
    Situation(
        "not started", {"pod_reason": "ContainerCreating", "kernel_log": [XID_79]}, "isolate_node", "mark_hang",
        "the container has not started;",
    ),
    Situation(
        "finished", {"exit_code": 0, "kernel_log": [XID_79]}, "isolate_node", "mark_hang", "it has ended;"
    ),
    Situation(
        "turned by its own context", {"kernel_log": ["mlx5_0: port 1 link down"], "checks": {"rdma": "fail"},
                                      "metrics": {"nodes_affected": 30}, "exit_code": 1},
        "backoff_shared", "isolate_node", "the failed rdma check is laid to something else",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", SITUATIONS, ids=[case.name for case in SITUATIONS])
def test_refused_remedy_is_told_by_what_is_known(case: Situation) -> None:
    verdict = found(case.recurrence, **case.signals)
    assert str(verdict.remedy) == case.taken
    assert why_not(verdict)[case.refused].startswith(case.says)


def test_progress_that_is_told_in_words_is_no_number() -> None:
    verdict = found(
        kernel_log=[XID_79], log_tail=["step 12 | loss 2.0"], metrics={"seconds_since_progress": "unknown"}
    )
    assert why_not(verdict)["mark_hang"].startswith("the log shows steps and no end;")


# What speaks against a verdict.


def test_passed_check_of_the_very_thing_contradicts_and_costs_confidence() -> None:
    verdict = found(kernel_log=[XID_79], checks=GREEN, exit_code=1)
    assert [(each.text, each.rule, each.weight) for each in verdict.contradictions] == [
        ("The gpu check passes", "check.gpu", 0.4),
        ("These checks pass too: io, rdma", "checks.clean", 0.2),
    ]
    unchecked = found(kernel_log=[XID_79], exit_code=1)
    assert unchecked.contradictions == ()
    assert round(unchecked.confidence - verdict.confidence, 2) == 0.05


def test_checks_of_other_things_clear_a_machine_only_where_all_pass() -> None:
    lost = {"node_conditions": ["Ready=Unknown: NodeStatusUnknown"], "exit_code": 1}
    assert [each.text for each in found(**lost, checks={"io": "pass"}).contradictions] == [
        "Every check that ran passes: io"
    ]
    assert found(**lost, checks={"io": "pass", "gpu": "timeout"}).contradictions == ()


def test_check_that_passes_does_not_speak_against_the_programs_own_error() -> None:
    assert found(log_tail=[NO_MODULE], exit_code=1, checks=GREEN).contradictions == ()


def test_weaker_evidence_that_disagrees_comes_last_and_is_not_hidden() -> None:
    verdict = found(log_tail=[TIMEOUT, CUDA], kernel_log=[XID_79], exit_code=1, checks=GREEN)
    weights = [each.weight for each in verdict.contradictions]
    assert weights == sorted(weights, reverse=True)
    assert "nccl.timeout" in {each.rule for each in verdict.contradictions}


def hit(
    kind: EvidenceClass = EvidenceClass.LOG,
    remedy: Remedy = Remedy.FAIL_FAST,
    blame: Blame = Blame.JOB,
    category: str = "bad_config",
    lines: int = 1,
) -> Hit:
    rule = Rule(id=f"{kind.name}.{remedy}", order=1, reason="r", source="s", evidence_class=kind)
    return Hit(
        rule, category, remedy, blame, "r", tuple(Line(f"line {n}", Origin.LOG, n) for n in range(lines))
    )


@pytest.mark.parametrize(
    ("other", "agrees"),
    [
        (hit(remedy=Remedy.FAIL_FAST, category="numeric", blame=Blame.SHARED), True),
        (hit(remedy=Remedy.NEEDS_OPERATOR, category="numeric"), False),
        (hit(remedy=Remedy.RESTART_CONTAINER, blame=Blame.NONE), True),
        (hit(remedy=Remedy.NEEDS_OPERATOR, blame=Blame.SHARED), False),
    ],
    ids=["same remedy", "equal blame alone", "same category", "same category, another party blamed"],
)
def test_agreement(other: Hit, agrees: bool) -> None:
    assert other.agrees(hit()) is agrees
    assert hit().agrees(other) is agrees


def test_leaving_now_and_after_the_save_agree_on_the_machine() -> None:
    now = hit(remedy=Remedy.ISOLATE_NODE, blame=Blame.NODE, category="gpu_lost")
    later = hit(remedy=Remedy.EVICT_AT_CHECKPOINT, blame=Blame.NODE, category="straggler")
    assert now.agrees(later)


def test_many_contradictions_are_bounded_and_keep_the_passed_checks() -> None:
    passes = found(kernel_log=[XID_79], checks=GREEN).contradictions
    said = contradictions([hit(lines=20) for _ in range(40)], passes)
    assert len(said) == MAX_SHOWN
    assert set(passes) <= set(said)
    assert len(contradictions([hit(EvidenceClass.SYMPTOM, lines=20)], ())) == 1


# Every sentence is true of every labelled case.


@dataclass(frozen=True)
class Labelled:
    """A labelled case as it was judged."""

    name: str
    signals: dict[str, Any]
    verdict: Verdict

    @property
    def history(self) -> History:
        return read_recurrence(self.signals.get("recurrence") or "")

    @property
    def runs(self) -> bool:
        """Whether no end of any kind is told."""
        reason = (self.signals.get("pod_reason") or "").lower()
        return (
            self.signals.get("exit_code") is None
            and not self.signals.get("signal")
            and reason in {"", "running", "pending", "containercreating", "podinitializing", "terminating"}
        )

    @property
    def results(self) -> dict[str, str]:
        return self.signals.get("checks") or {}

    @property
    def is_green(self) -> bool:
        return bool(self.results) and set(self.results.values()) == {"pass"}


@pytest.fixture(scope="module")
def cases() -> list[Labelled]:
    return [
        Labelled(case["id"], case["signals"], verdict)
        for name in judged.FILES
        for case, verdict in zip(judged.cases(name), judged.verdicts(name), strict=True)
    ]


def sentences(cases: list[Labelled], pattern: str) -> Iterator[tuple[Labelled, re.Match[str]]]:
    """Where a refusal that is no quotation of a rule's reason says it."""
    said = 0
    for case in cases:
        for refused in case.verdict.considered:
            if refused.because.startswith(("outweighed: ", "set aside, ")):
                continue
            if match := re.search(pattern, refused.because):
                said += 1
                yield case, match
    assert said, pattern  # a property of what is never said holds nothing


def test_end_and_life_are_told_as_they_are(cases: list[Labelled]) -> None:
    for case, _ in sentences(cases, r"\bit has ended\b"):
        assert not case.runs, case.name
    for case, _ in sentences(
        cases, "stands still, but|steps are made|no end;|not started|nothing tells|nothing is killed"
    ):
        assert case.runs, case.name
    for case, match in sentences(cases, r"made progress (\d+) s ago"):
        assert round(case.signals["metrics"]["seconds_since_progress"]) == int(match[1]) < 120, case.name


def test_checks_are_told_as_they_came_out(cases: list[Labelled]) -> None:
    for case, _ in sentences(cases, "every check that ran is green"):
        assert case.is_green, case.name
    for case, _ in sentences(cases, "no check is told"):
        assert not case.results, case.name
    for case, _ in sentences(cases, "a check without an answer"):
        assert "timeout" in case.results.values(), case.name
    for case, match in sentences(cases, r"failed ([a-z_ ]+?) check (?:alone|is laid)"):
        assert {case.results[name] for name in match[1].split(" and ")} == {"fail"}, case.name


def test_the_past_is_told_as_it_was(cases: list[Labelled]) -> None:
    for case, _ in sentences(cases, "seen for the first time"):
        assert case.history.first_time, case.name
    for case, _ in sentences(cases, "more than once"):
        assert case.history.repeated or case.history.places, case.name
    for case, _ in sentences(cases, "no earlier attempt is told"):
        assert not case.history.repeated, case.name
        assert not case.history.first_time, case.name
    for case, _ in sentences(cases, "it came on other nodes too"):
        assert case.history.other_nodes or case.history.all_nodes, case.name


def test_blame_and_remedy_are_told_as_the_verdict_has_them(cases: list[Labelled]) -> None:
    for case, _ in sentences(cases, "machine (?:that )?is blamed"):
        assert case.verdict.blame is Blame.NODE, case.name
    for case, _ in sentences(cases, "what jobs share is blamed|time does not mend it"):
        assert case.verdict.blame is Blame.SHARED, case.name
    for case, _ in sentences(cases, "runs the same program|brings the same program|owner mends this"):
        assert (case.verdict.remedy, case.verdict.blame) == (Remedy.FAIL_FAST, Blame.JOB), case.name
    for case, _ in sentences(cases, "nothing blames the job"):
        assert case.verdict.blame is not Blame.JOB, case.name


def test_every_other_remedy_is_refused_in_one_short_sentence(cases: list[Labelled]) -> None:
    for case in cases:
        said = {refused.remedy: refused.because for refused in case.verdict.considered}
        assert set(said) == set(Remedy) - {case.verdict.remedy}, case.name
        assert all(20 <= len(text) <= 200 and "{" not in text for text in said.values()), case.name


def test_what_outweighs_is_not_weaker(cases: list[Labelled]) -> None:
    rank = {kind.name.lower(): kind for kind in EvidenceClass}
    told = 0
    for case in cases:
        for refused in case.verdict.considered:
            if match := re.search(
                r"\(([a-z]+) evidence, (?:weaker than ([a-z]+)|as strong)", refused.because
            ):
                told += 1
                assert match[2] is None or rank[match[2]] is case.verdict.evidence_class, case.name
                kind, winner = rank[match[1]], case.verdict.evidence_class
                assert kind < winner if match[2] else kind is winner, case.name
    assert told > 500


def test_contradictions_are_ordered_bounded_and_no_support(cases: list[Labelled]) -> None:
    for case in cases:
        against = case.verdict.contradictions
        weights = [each.weight for each in against]
        assert weights == sorted(weights, reverse=True), case.name
        assert len(against) <= MAX_SHOWN, case.name
        rules = {each.rule for each in against}
        assert not rules & {each.rule for each in case.verdict.evidence}, case.name
        assert not rules & {"end.unexplained", "attempts.every-early"}, case.name


def test_green_checks_contradict_every_machine_that_is_blamed(cases: list[Labelled]) -> None:
    told = 0
    for case in cases:
        passes = [
            each for each in case.verdict.contradictions if "pass" in each.text and each.rule[:5] == "check"
        ]
        for each in passes:
            names = re.findall(r"(?:The |: |, )([a-z_]+)", each.text)
            assert {case.results[name] for name in names} == {"pass"}, case.name
        if case.is_green and case.verdict.blame is Blame.NODE:
            told += 1
            assert passes, case.name
    assert told > 100


@pytest.mark.parametrize(
    ("name", "remedy", "says"),
    [
        ("r096", "fail_fast", "set aside, evidence of the same kind says that it can go on: "),
        ("r718", "restart_container", "set aside, the log tells it of an earlier attempt: "),
        (
            "k083",
            "isolate_node",
            "set aside, a passing condition of a node, and the same came on other nodes: ",
        ),
    ],
)
def test_stronger_evidence_is_set_aside_with_the_reason(
    cases: list[Labelled], name: str, remedy: str, says: str
) -> None:
    (case,) = [case for case in cases if case.name == name]
    assert why_not(case.verdict)[remedy].startswith(says)
