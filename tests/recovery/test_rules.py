from __future__ import annotations

from pathlib import Path

import pytest

from recovery.rules.builtin import builtin_files, builtin_rules
from recovery.rules.loading import _FIELDS, AGAINST_MACHINE, MAX_TOLD, SUSPICION, RuleFileError, load_rules
from recovery.rules.rule import EvidenceClass, Remedy
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


def test_rule_file_of_the_document_is_right() -> None:
    page = (Path(__file__).parents[2] / "docs" / "design" / "verdicts.md").read_text(encoding="utf-8")
    rules = load_rules([("site.toml", page.split("```toml\n")[1].split("```")[0])], base=builtin_rules())
    assert example_problems(rules, only=frozenset({"site.fan"})) == []
    for field in _FIELDS - {"id"}:
        assert f"`{field}" in page.split("| field | |")[1].split("### Patterns")[0], field
    assert all(f"`{name}`" in page for name in AGAINST_MACHINE)


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
        (("[exits]", 'disable = "xid.79"\n[exits]'), "line 2, disable", "'xid.79' is none: nothing would be"),
        (("[exits]", "disable = [1]\n[exits]"), "line 2, disable", "a list of ids"),
        (("[exits]\n", 'exits = "x"\n#'), "line 2, exits", "is not a table"),
        (("[exits]", "contexts = 1\n[exits]"), "line 2, contexts", "is not a table of tables"),
        (("[exits]", "contexts.a = 1\n[exits]"), "line 2, contexts.a", "is not a table with when"),
        (("[exits]", "[contexts.a]\nwenn = []\n[exits]"), "line 2, contexts.a.wenn", "unknown"),
        (("[exits]", "[contexts.a]\nwhen = []\n[exits]"), "line 2, contexts.a", "no case"),
        (
            ("Replace the fan, run the burn-in, then untaint the node.", " " * 40),
            "line 3, exits.swap",
            "sentence",
        ),
        (("A fan of this node stands still", "   "), "rule own.fan, reason", "a sentence for people"),
        (("our own monitoring", "   "), "rule own.fan, source", "a sentence for people"),
        (('class = "device"', 'class = ["device"]'), "rule own.fan, class", "a list; one of benign"),
        (('blame = "node"', 'blame = "node"\ncontext = ["a"]'), "rule own.fan, context", "a list is no"),
        (('blame = "node"', 'blame = "node"\ncontext = {a = 1}'), "rule own.fan, context", "a table is no"),
        (('blame = "node"', 'blame = "node"\ntags = [["a"]]'), "rule own.fan, tags[0]", "a list is no name"),
        (('blame = "node"', 'blame = "node"\nmark = "yes"'), "rule own.fan, mark", "neither true nor false"),
        (('blame = "node"', 'blame = "node"\nmark = true'), "rule own.fan, class", "concludes nothing"),
        (('blame = "node"', 'blame = "node"\nif = "x"'), "rule own.fan, if", "put it in brackets"),
        (('blame = "node"', f'blame = "node"\nspecificity = {"9" * 5000}'), "line 12", "thousands of digits"),
        (('exit = "swap"', f"exit = 0x{'f' * 5000}"), "rule own.fan, exit", "a long number is no name"),
        (('exit = "swap"', 'exit = "\\u001b[31m"'), "rule own.fan, exit", "may isolate"),
        (("[exits]", f"x = {'[' * 9000}\n[exits]"), "own.toml", "nested too deeply"),
        (
            ('blame = "node"', 'blame = "node"\nif = ["check.gpu=fail"]'),
            "rule own.fan, if",
            "comparison is like",
        ),
        (
            ('blame = "node"', 'blame = "node"\nif = ["check.gpu == fail"]'),
            "rule own.fan, if",
            "comparison is",
        ),
        (
            ('blame = "node"', 'blame = "node"\nif = ["not check.gpu = fail"]'),
            "rule own.fan, if",
            "fact alone",
        ),
        (
            ('blame = "node"', 'blame = "node"\nif = ["check.gpu = failed"]'),
            "rule own.fan, if",
            "never 'failed'",
        ),
        (('blame = "node"', 'blame = "node"\nif = ["check.gpu in fail|bad"]'), "own.fan, if", "never 'bad'"),
        (
            ('blame = "node"', 'blame = "node"\nif = ["metric.a < nan"]'),
            "rule own.fan, if",
            "compares with nan",
        ),
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


def test_codes_for_a_terminal_are_shown_as_what_they_are() -> None:
    with pytest.raises(RuleFileError) as refused:
        load_rules([("own.toml", GOOD.replace('"own.fan"', '"\\u001b]0;x\\u0007"'))])
    assert r"rule \x1b]0;x\x07, id: missing" in str(refused.value)


def test_a_file_full_of_mistakes_is_told_shortly() -> None:
    with pytest.raises(RuleFileError) as refused:
        load_rules([("own.toml", "[exits]\n" + "\n".join(f"a{n} = 1" for n in range(500)))])
    told = str(refused.value).splitlines()
    assert (len(refused.value.problems), len(told), told[-1]) == (500, MAX_TOLD + 1, "and 400 more")
    assert told[7].startswith("own.toml, line 9, exits.a7: ")


def _suspects(how: str, evidence_class: str, case: str = "") -> str:
    text = GOOD.replace('class = "device"', f'class = "{evidence_class}"')
    return case + text.replace('remedy = "isolate_node"', how)


@pytest.mark.parametrize("evidence_class", sorted(each.name.lower() for each in SUSPICION))
@pytest.mark.parametrize(
    ("how", "field"),
    [
        ('remedy = "isolate_node"', "remedy"),
        ('remedy = "isolate_node"\nif = ["nodes.one"]', "remedy"),
        ('remedy = "isolate_node"\nif = ["not past.same_node"]', "remedy"),
        ('remedy = "mark_hang"\nwhen = [{ if = ["metric.gpu_util < 0.1"], remedy = "isolate_node", reason = "Idle" }]',
         "when[0].remedy"),
        ('remedy = "mark_hang"\ncontext = "alone"', "when[0].remedy"),
    ],
)  # fmt: skip
def test_suspicion_isolates_no_machine_by_itself(evidence_class: str, how: str, field: str) -> None:
    alone = (
        '[contexts.alone]\nwhen = [{ if = ["nodes.one"], remedy = "isolate_node", reason = "It alone" }]\n'
    )
    with pytest.raises(RuleFileError) as refused:
        load_rules([("own.toml", _suspects(how, evidence_class, alone))])
    said = str(refused.value)
    assert (
        f"rule own.fan, {field}: {evidence_class} is suspicion, which isolates no machine by itself" in said
    )


@pytest.mark.parametrize(
    "how",
    [
        'remedy = "isolate_node"\nif = ["past.same_node", "past.repeated"]',
        'remedy = "mark_hang"\nwhen = [{ if = ["past.other_jobs"], remedy = "isolate_node", reason = "Each job" }]',
        'remedy = "mark_hang"\nwhen = [{if = ["past.repeated", "nodes.one"], remedy = "isolate_node", reason = "One"}]',
        'remedy = "evict_at_checkpoint"',
    ],
)
def test_suspicion_isolates_where_history_speaks_against_the_machine(how: str) -> None:
    assert load_rules([("own.toml", _suspects(how, "metric"))]).named("own.fan") is not None


def test_class_that_names_a_cause_may_isolate_by_itself() -> None:
    for evidence_class in set(EvidenceClass) - SUSPICION:
        text = _suspects('remedy = "isolate_node"', evidence_class.name.lower())
        assert load_rules([("own.toml", text)]).named("own.fan") is not None


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
