from __future__ import annotations

from pathlib import Path

import pytest

from recovery.rules.builtin import builtin_files, builtin_rules
from recovery.rules.loading import RuleFileError, load_rules
from recovery.rules.rule import Remedy
from recovery.rules.trying import example_problems

GOOD = """
[exits]
swap = "Replace the fan, run the burn-in, then untaint the node."

[[rule]]
id = "own.fan"
match = ['fan [0-9]{1,2} stopped']
class = "device"
category = "host_hw"
remedy = "isolate_node"
blame = "node"
reason = "A fan of this node stands still"
source = "our own monitoring"
exit = "swap"
examples = ["bmc: fan 3 stopped"]
counter_examples = ["bmc: fan 3 started"]
"""


def test_builtin_rules_hit_their_examples_and_not_their_counter_examples() -> None:
    assert [str(problem) for problem in example_problems(builtin_rules())] == []


def test_every_rule_that_isolates_tells_how_the_machine_comes_back() -> None:
    rules = builtin_rules()
    isolating = [rule for rule in rules.rules if rule.isolates]
    assert len(isolating) > 100
    assert all(len(rules.exits[rule.exit]) >= 20 for rule in isolating)


def test_every_xid_of_the_catalogue_has_a_rule_with_its_action() -> None:
    table = (Path(__file__).parents[1] / "cases" / "xid_actions.tsv").read_text().splitlines()[1:]
    rules = builtin_rules()
    assert len(table) > 50
    for line in table:
        number, action = line.split("\t")
        found = [
            rule
            for rule in rules.rules
            if rule.remedy is not None
            and (rule.id == f"xid.{number}" or rule.id.startswith(f"xid.{number}."))
        ]
        assert found, number
        if number in {
            "147",
            "148",
        }:  # decoded rows are all ignorable; a fatal one would still ask for a reset
            assert Remedy.RESTART_PROCESS in {rule.remedy for rule in found}
        else:
            assert Remedy(action) in {rule.remedy for rule in found}, (number, action)


def test_a_file_of_the_operator_adds_overrides_and_disables() -> None:
    base = builtin_rules()
    rules = load_rules([("own.toml", GOOD)], base=base)
    assert (len(rules.rules), rules.digest != base.digest) == (len(base.rules) + 1, True)
    assert rules.named("own.fan") == rules.rules[-1]
    assert example_problems(rules, only=frozenset({"own.fan"})) == []
    over = load_rules([("own.toml", GOOD.replace("own.fan", "gpu.hot"))], base=base)
    assert (len(over.rules), getattr(over.named("gpu.hot"), "category", "")) == (len(base.rules), "host_hw")
    without = load_rules([("own.toml", 'disable = ["gpu.hot"]')], base=base)
    assert without.named("gpu.hot") is None


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        (('id = "own.fan"', 'id = "Own Fan"'), "line 5, rule Own Fan, id", "not like"),
        (('exit = "swap"', ""), "rule own.fan, exit", "may isolate"),
        (('exit = "swap"', 'exit = "swop"'), "rule own.fan, exit", "may isolate"),
        (('reason = "A fan of this node stands still"', ""), "rule own.fan, reason", "missing"),
        (('source = "our own monitoring"', ""), "rule own.fan, source", "missing"),
        (('examples = ["bmc: fan 3 stopped"]', ""), "rule own.fan, examples", "at least one"),
        (('class = "device"', 'class = "kernel"'), "rule own.fan, class", "one of benign"),
        (('category = "host_hw"', 'category = "fan"'), "rule own.fan, category", "none of"),
        (("fan [0-9]{1,2} stopped", "fan [0-9]{1,2}3 stopped"), "rule own.fan, match[0]", "may come next"),
        (
            ("match = ['fan [0-9]{1,2} stopped']", "match = ['fan']\nif = ['metrik.x > 1']"),
            "rule own.fan, if",
            "no fact",
        ),
        (('blame = "node"', 'blame = "node"\ncolour = "red"'), "rule own.fan, colour", "unknown field"),
        (
            ('blame = "node"', 'blame = "node"\nunless = ["seen.nothing-such"]'),
            "rule own.fan",
            "no rule has this id",
        ),
        (("[[rule]]", "[[rule"), "own.toml, line", "not TOML"),
        (("[exits]", "disable = ['no.such']\n[exits]"), "rule no.such, disable", "no rule of this id"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_file_is_told_with_line_rule_and_field(
    change: tuple[str, str], place: str, says: str
) -> None:
    assert change[0] in GOOD
    with pytest.raises(RuleFileError) as refused:
        load_rules([("own.toml", GOOD.replace(*change))], base=builtin_rules())
    text = str(refused.value)
    assert text.startswith("own.toml")
    assert place in text
    assert says in text


def test_an_example_that_the_rule_does_not_hit_is_told() -> None:
    rules = load_rules(
        [("own.toml", GOOD.replace("bmc: fan 3 started", "fan 4 stopped"))], base=builtin_rules()
    )
    problems = example_problems(rules, only=frozenset({"own.fan"}))
    assert [problem.field for problem in problems] == ["counter_examples[0]"]


def test_builtin_files_are_read_in_the_order_of_their_names() -> None:
    names = [name for name, _ in builtin_files()]
    assert names == sorted(names)
    orders = [rule.order for rule in builtin_rules().rules]
    assert len(set(orders)) == len(orders)
