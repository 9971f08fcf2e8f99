"""Whatever a rule file holds, it is loaded and judged by, or refused in words."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.observed import evidence_from_plain
from recovery.past import History
from recovery.rules.loading import RuleFileError, load_rules
from recovery.rules.trying import example_problems
from recovery.verdict import judge

#: Values of every kind that TOML has, right and wrong ones.
VALUES = (
    "1", "-1", "1.5", "true", "nan", "inf", "1979-05-27", "07:32:00", f"0x{'f' * 5000}", "9" * 5000,
    '""', '"x"', '"   "', '"\\u0000"', '"\\u001b[2J"', '"isolate_node"', '"past.same_node"', '"seen.x"', '"program"',
    "[]", "[1]", '["a"]', '["fan"]', '[["a"]]', "[true]", '[""]', '["metric.x in 1|a"]', '["check.gpu = fail"]',
    "{}", "{a = 1}", "[{a = 1}]", "[{log_tail = 1}]", '[{log_tail = ["fan stopped"]}]', "[{metrics = [1]}]",
    "[{ranks = [1]}]", "[{ranks = [{log_tail = 1}]}]", "[{recurrence = 1}]", "[{checks = {gpu = 1}}]",
    "[{node_conditions = [{a = 1}]}]", "[{exit_code = [1]}]", f"[{{log_tail = [0x{'f' * 5000}]}}]",
    f"[{{a{'.a' * 4000} = 1}}]", '[{if = ["past.same_node"], reason = "Again", remedy = "isolate_node"}]',
    '[{if = ["metric.x < 1"], reason = "It is {metric.x}", category = ["x"]}]', "[{if = 1, reason = []}]",
)  # fmt: skip

GOOD = {
    "id": '"site.fan"', "match": "['fan stopped']", "class": '"device"', "category": '"host_hw"', "blame": '"node"',
    "remedy": '"isolate_node"', "reason": '"A fan stands still"', "source": '"ours"', "exit": '"reboot"',
    "examples": '["fan stopped"]',
}  # fmt: skip
OTHERS = (
    "except", "in", "if", "unless", "specificity", "mark", "counter_examples", "context", "when", "tags", "refine",
    "means", "colour",
)  # fmt: skip
TOP = ("disable", "exits", "contexts", "rule", "colour")
EXITS = '[exits]\nreboot = "Reboot it, see the checks pass, then untaint."\n'


def load_and_judge(content: str) -> None:
    rules, refused = None, None
    try:
        rules = load_rules([("own.toml", content)])
    except RuleFileError as error:
        refused = error
    if rules is None:
        assert refused is not None
        assert refused.problems
        assert str(refused).startswith("own.toml")
        return
    assert all(str(problem) for problem in example_problems(rules))
    told = {
        "exit_code": 1,
        "log_tail": ["fan stopped", "x"],
        "checks": {"gpu": "fail"},
        "metrics": {"x": "a"},
    }
    judge(evidence_from_plain(told), History(told=True, same_node=True), rules)


def written(rule: dict[str, str]) -> str:
    return "[[rule]]\n" + "".join(f"{field} = {value}\n" for field, value in rule.items())


@pytest.mark.parametrize("field", [*GOOD, *OTHERS])
def test_field_of_any_kind_is_read_or_refused(field: str) -> None:
    for value in VALUES:
        load_and_judge(EXITS + written(GOOD | {field: value}))


def test_top_of_any_kind_is_read_or_refused() -> None:
    for field in TOP:
        for value in VALUES:
            load_and_judge(f"{field} = {value}\n" + (written(GOOD) if field != "rule" else ""))
            load_and_judge(f"[contexts]\nx = {value}\n{written(GOOD)}")


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.dictionaries(st.sampled_from([*GOOD, *OTHERS]), st.sampled_from(VALUES), max_size=3), max_size=3
    ),
    st.dictionaries(st.sampled_from(TOP[:3]), st.sampled_from(VALUES), max_size=2),
)
def test_file_of_several_mistakes_is_read_or_refused(
    changes: list[dict[str, str]], top: dict[str, str]
) -> None:
    rules = [written(GOOD | {"id": f'"site.fan{n}"'} | change) for n, change in enumerate(changes)]
    load_and_judge("".join(f"{field} = {value}\n" for field, value in top.items()) + "".join(rules))


@given(st.text("[]{}=\"'#.,\n a1xn\\", max_size=60))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    load_and_judge(text)
