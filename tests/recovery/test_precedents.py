"""Precedents: what is learned, how it is weighed with the rules, and what it may not do."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from incidentdesk import precedents as learning
from recovery.diagnosis import Diagnosis
from recovery.hits import TAKES_OUT
from recovery.observed import evidence_from_plain
from recovery.past import read_recurrence
from recovery.precedents import MIN_KNOWN, Opinion, choose, harm, read_precedents
from recovery.rules import builtin
from recovery.rules.builtin import builtin_rules
from recovery.rules.loading import RuleFileError, load_rules
from recovery.rules.rule import PRECEDENTS, EvidenceClass, Remedy, RuleSet
from recovery.verdict import Verdict, judge
from recovery.words import MAX_LINES, features_of, in_words, size_of, stems
from tests.cases import measure
from tests.cases.scoring import cost

LOG, HINT, DEVICE = EvidenceClass.LOG, EvidenceClass.HINT, EvidenceClass.DEVICE
RESTART, ISOLATE, STOP = Remedy.RESTART_PROCESS, Remedy.ISOLATE_NODE, Remedy.FAIL_FAST

#: A wait that ends at its limit: no rule says why.
AGAIN: Mapping[str, Any] = {
    "exit_code": 1, "pod_reason": "Error", "phase": "run",
    "log_tail": [
        "loading tokenizer from /data/tok",
        "rank 0 builds the index of the data set, others wait at the barrier",
        "RuntimeError: Timeout waiting for key: default_pg/0/0 after 1800000 ms",
    ],
    "kernel_log": [], "node_conditions": ["Ready=True"], "metrics": {"gpu_util": 0.0},
    "checks": {"io": "pass", "gpu": "pass", "runtime": "pass", "rdma": "pass", "allreduce_conn": "pass"},
    "recurrence": "nobody has looked closer so far; the owner is away until Monday and was asked for a word about it",
}  # fmt: skip


def verdict(signals: Mapping[str, Any], rules: RuleSet) -> Verdict:
    return judge(evidence_from_plain(signals), read_recurrence(str(signals.get("recurrence") or "")), rules)


def opinion(**shares: float) -> Opinion:
    left = (1 - sum(shares.values())) / (len(Remedy) - len(shares))
    return Opinion({remedy: shares.get(remedy, left) for remedy in Remedy})


def speaking_for(remedy: Remedy, rules: RuleSet) -> RuleSet:
    """Rules beside which labelled failures call for one remedy, whatever is told."""
    known = rules.precedents
    assert known is not None
    bias = tuple(9.0 if each is remedy else 0.0 for each in known.remedies)
    still = {
        feature: (idf, tuple(0.0 for _ in weights)) for feature, (idf, weights) in known.features.items()
    }
    return replace(rules, precedents=replace(known, bias=bias, features=still))


def test_file_was_learned_from_the_failures_that_are_there() -> None:
    """When this fails: python -m incidentdesk.precedents."""
    cases = learning.read_cases()
    found = [learning.features_of_case(case["signals"]) for case in cases]
    known = builtin_rules().precedents
    assert known is not None
    assert (known.cases, known.learned_from) == (
        len(cases),
        learning.digest_of(found, [case["expect"]["action"] for case in cases]),
    )


def test_same_failures_give_the_same_file_and_the_words_that_tell_them_apart() -> None:
    found = [{"log oom": 1, "log step": 2, f"log n{n}": 1} for n in range(6)]
    found += [{"kernel xid": 1, "log step": 1, f"log m{n}": 1} for n in range(6)]
    labels = ["fail_fast"] * 6 + ["isolate_node"] * 6
    text = learning.written(learning.learn(found, labels))
    assert text == learning.written(learning.learn(found, labels))
    known = read_precedents(text)
    assert known.features.keys() == {"log oom", "log step", "kernel xid"}
    stop, isolate = known.remedies.index(STOP), known.remedies.index(ISOLATE)
    assert known.features["log oom"][1][stop] > 0 > known.features["log oom"][1][isolate]
    assert known.features["kernel xid"][1][isolate] > 0 > known.features["kernel xid"][1][stop]


@pytest.mark.parametrize(
    ("says", "by_rules", "evidence_class", "chosen"),
    [
        (opinion(fail_fast=0.9), RESTART, HINT, STOP),
        (
            opinion(fail_fast=0.5, restart_process=0.3),
            RESTART,
            HINT,
            RESTART,
        ),  # stopping wrongly is the dearest mistake
        (opinion(restart_process=0.6), STOP, HINT, RESTART),
        (opinion(fail_fast=0.7), RESTART, EvidenceClass.END, RESTART),
        (opinion(isolate_node=0.95), RESTART, LOG, ISOLATE),
        (opinion(), RESTART, HINT, RESTART),
        (opinion(), STOP, LOG, STOP),
    ],
)
def test_remedy_with_the_least_expected_harm_is_taken(
    says: Opinion, by_rules: Remedy, evidence_class: EvidenceClass, chosen: Remedy
) -> None:
    choice = choose(says, by_rules, evidence_class)
    assert choice.remedy is chosen
    assert 0 < choice.share < 1


@pytest.mark.parametrize("right", Remedy)
@pytest.mark.parametrize("taken", Remedy)
def test_harm_has_the_prices_of_the_labelled_cases(taken: Remedy, right: Remedy) -> None:
    """Where the label alone decides; each wrong remedy has the same surcharge."""
    blame = "node" if right in TAKES_OUT else "job"
    expect = {"action": str(right), "retryable": right is not STOP, "blame": blame}
    price = cost(expect, taken)
    if right is Remedy.EVICT_AT_CHECKPOINT and taken is ISOLATE:
        price = 3  # the machine is bad, and the run on it still good
    assert harm(taken, right) == (price + 1.5 if price else 0.0)


def test_labelled_failures_speak_louder_than_a_rule_that_names_no_cause() -> None:
    alone = verdict(AGAIN, replace(builtin_rules(), precedents=None))
    both = verdict(AGAIN, speaking_for(STOP, builtin_rules()))
    assert alone.remedy is not STOP
    assert (both.remedy, both.rule, both.blame) == (STOP, PRECEDENTS, "job")
    assert "labelled failures with such words" in both.reason
    refused = next(each.because for each in both.considered if each.remedy is alone.remedy)
    assert alone.rule == "none"
    assert refused.startswith("it is what is done where nothing is known; labelled failures with such words")
    assert {each.remedy for each in both.considered} == set(Remedy) - {STOP}


def test_rule_that_is_outweighed_is_named() -> None:
    hung = {**AGAIN, "exit_code": None, "pod_reason": None, "metrics": {"seconds_since_progress": 4000.0}}
    alone = verdict(hung, replace(builtin_rules(), precedents=None))
    both = verdict(hung, speaking_for(ISOLATE, builtin_rules()))
    refused = next(each.because for each in both.considered if each.remedy is alone.remedy)
    assert refused.startswith(
        f"rule {alone.rule} asks for it; labelled failures with such words speak louder"
    )


@pytest.mark.parametrize("remedy", [STOP, ISOLATE])
def test_precedents_by_themselves_stop_no_job_and_take_no_machine(remedy: Remedy) -> None:
    found = verdict(AGAIN, speaking_for(remedy, builtin_rules()))
    assert found.remedy is remedy
    assert found.evidence_class is HINT
    diagnosis = Diagnosis(found, times=5, before_first_step=True)
    assert (diagnosis.is_strong, diagnosis.may_end_it) == (False, False)
    assert bool(found.exit) is (remedy is ISOLATE)


def test_failed_check_is_never_overruled() -> None:
    failed = {**AGAIN, "checks": {"gpu": "fail"}}
    found = verdict(failed, speaking_for(RESTART, builtin_rules()))
    assert (found.remedy, found.evidence_class) == (ISOLATE, EvidenceClass.CHECK)


OWN = """
[[rule]]
id = "own.index"
reason = "The index is built at the first start"
source = "our own runs"
class = "hint"
category = "bad_config"
remedy = "needs_operator"
blame = "shared"
match = ["builds the index of the data set"]
specificity = 99
examples = ["rank 0 builds the index of the data set"]
counter_examples = ["the index is there"]
"""


def test_rule_of_the_operator_is_never_overruled_and_precedents_can_be_switched_off() -> None:
    plain = {**AGAIN, "log_tail": AGAIN["log_tail"][:2]}
    own = load_rules([("own.toml", OWN)], base=speaking_for(STOP, builtin_rules()))
    assert verdict(plain, own).rule == "own.index"
    off = load_rules([("own.toml", 'disable = ["precedents"]')], base=speaking_for(STOP, builtin_rules()))
    assert verdict(AGAIN, off) == verdict(AGAIN, replace(builtin_rules(), precedents=None))
    with pytest.raises(RuleFileError, match="the name of what labelled failures say"):
        load_rules([("own.toml", OWN.replace("own.index", "precedents"))], base=builtin_rules())


def test_outweighed_precedents_are_told_as_doubt() -> None:
    lines = [
        *AGAIN["log_tail"][:2],
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    ]
    left = {**AGAIN, "log_tail": lines, "recurrence": ""}
    leaning = speaking_for(STOP, builtin_rules())
    assert leaning.precedents is not None
    bias = tuple({STOP: 2.6, RESTART: 1.8}.get(each, -0.5) for each in leaning.precedents.remedies)
    leaning = replace(leaning, precedents=replace(leaning.precedents, bias=bias))
    alone, found = verdict(left, replace(leaning, precedents=None)), verdict(left, leaning)
    assert found == replace(alone, contradictions=found.contradictions)
    assert [each.text for each in found.contradictions if each.rule == PRECEDENTS] == [
        "labelled failures with such words speak for fail fast (58%)"
    ]


def test_error_of_a_device_is_never_overruled_by_what_a_job_writes() -> None:
    kernel = ["NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus."]
    found = verdict({**AGAIN, "kernel_log": kernel, "checks": {}}, speaking_for(RESTART, builtin_rules()))
    assert (found.remedy, found.evidence_class) == (ISOLATE, DEVICE)


def test_few_known_words_are_no_precedent() -> None:
    known = builtin_rules().precedents
    assert known is not None
    words = sorted(known.features)
    assert known.opinion(dict.fromkeys(words[: MIN_KNOWN - 1], 1)) is None
    assert known.opinion(dict.fromkeys(map(str, range(100)), 1)) is None
    enough = known.opinion(dict.fromkeys(words[:MIN_KNOWN], 1))
    assert enough is not None
    assert math.isclose(sum(enough.shares.values()), 1.0)


def test_what_is_read_is_bounded() -> None:
    lines = [f"word{n} " * 10_000 for n in range(5_000)]
    evidence = evidence_from_plain(
        {"log_tail": lines, "kernel_log": lines, "ranks": [{"log_tail": lines}] * 500}
    )
    found = features_of(evidence, "a b " * 100_000, {})
    assert found.total() < 50_000
    assert found["log word"] <= MAX_LINES * 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cudaErrorLaunchFailure: 719", ["cuda", "error", "launch", "failure", "#"]),
        ("Timeouts waiting for NCCL_IB_HCA", ["timeout", "wait", "for", "nccl", "ib", "hca"]),
        ("", []),
        ("\x1b[31m\ufffd é", ["#", "m"]),
    ],
)
def test_words_lose_their_endings_and_numbers_their_value(text: str, words: list[str]) -> None:
    assert stems(text) == words


def test_words_that_decided_are_told_by_where_they_stand() -> None:
    told = in_words(
        ["kernel xid", "said each time", "log of", "is past.same_node", "exit 137", "log oom", "said #"]
    )
    assert told == (
        'told of earlier attempts: "each time"; in the log: "oom"; in the kernel\'s log: "xid"; '
        "facts: past.same_node, exit 137"
    )


def test_what_counts_other_jobs_is_weighed_and_not_told() -> None:
    told = in_words(
        ["is past.count 5", "is past.owners", "is past.owners and nodes.one", "is past.other_jobs"]
    )
    assert told == "facts: past.other_jobs"


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (-1, "0"),
        (0, "0"),
        (0.1, "below 0.2"),
        (0.97, "below 1"),
        (1, "1"),
        (7, "1 digits"),
        (1e300, "301 digits"),
    ],
)
def test_numbers_are_compared_coarsely(value: float, size: str) -> None:
    assert size_of(value) == size


def test_model_reads_what_it_wrote() -> None:
    text = learning.FILE.read_text("utf-8")
    told = json.loads(text)
    assert learning.written(told) == text


def test_digest_of_the_rules_changes_with_any_weight() -> None:
    """Decisions name the rules and precedents that they were made by."""
    files = Path(builtin.__file__).parent
    text = (files / "precedents.json").read_text("utf-8")
    plain = load_rules(builtin.builtin_files()).digest
    assert builtin_rules().digest == hashlib.sha256(f"{plain} {text}".encode()).hexdigest()[:12]


@pytest.mark.long
def test_file_is_what_is_learned_today() -> None:
    cases = learning.read_cases()
    found = [learning.features_of_case(case["signals"]) for case in cases]
    labels = [case["expect"]["action"] for case in cases]
    assert learning.written(learning.learn(found, labels)) == learning.FILE.read_text("utf-8")


@pytest.mark.long
def test_batch_that_was_left_out_is_judged_better_with_precedents() -> None:
    """Learned without the batch. No rule was written for it."""
    alone, weighed = measure.judged_without("x")
    assert weighed.action >= alone.action + 0.08
    assert weighed.cost <= alone.cost - 0.2
