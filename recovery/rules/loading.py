"""Rule files -> rules. Everything that is wrong with a file is told with its line, field and what to do.

Files are TOML. An operator's file has the same form: a rule with the id of a built-in one overrides it, and
``disable = ["id", …]`` at its top takes built-in rules out. Source: docs/design/verdicts.md.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recovery.pattern import Pattern, PatternError, compile_pattern
from recovery.rules.categories import CATEGORIES
from recovery.rules.facts import NAMES, is_known_fact
from recovery.rules.rule import (
    PRECEDENTS,
    SAID,
    Blame,
    Condition,
    EvidenceClass,
    Origin,
    Remedy,
    Rule,
    RuleSet,
    When,
)

MAX_FILE = 1_000_000
MAX_RULES = 2_000
MAX_SPECIFICITY = 100
MAX_EXAMPLE_DEPTH = 8
#: What is wrong is told in full up to so many lines, and counted beyond.
MAX_TOLD = 100

_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{1,60}")
_NAME = re.compile(r"[a-z][a-z0-9_.:-]*")
_CONDITION = re.compile(rf"({_NAME.pattern}) +(!=|<=|>=|=|<|>|in) +(.+)")
_COMPARES = re.compile(r"[!=<>]")
_LONG_NUMBER = re.compile(r"[0-9_]{4000}")
_KEY = re.compile(r"\s*(?:\[{1,2}([^\]=]{1,200})\]|([^=\[#]{1,200})=)")
_QUOTES = re.compile(r"[\s\"']")
_RULE_HEADER = re.compile(r"\s*\[\[\s*(?:rule|\"rule\"|'rule')\s*\]\]")
_FIELDS = frozenset(
    {"id", "match", "except", "in", "if", "unless", "class", "specificity", "mark", "category", "remedy",
     "blame", "reason", "source", "examples", "counter_examples", "exit", "context", "when", "tags", "refine", "means"}
)  # fmt: skip
_WHEN_FIELDS = frozenset({"if", "category", "remedy", "blame", "reason"})
_TOP_FIELDS = frozenset({"rule", "exits", "contexts", "disable"})
#: What a mark does not have: it concludes nothing.
_CONCLUSIONS = ("class", "category", "remedy", "blame", "when", "context", "refine", "means", "exit")
#: Values that these facts can have; a comparison with another one could never hold.
_VALUES: Mapping[str, tuple[str, ...]] = {
    "check.": ("pass", "fail", "timeout"),
    "phase": ("bootcheck", "run", "troubleshoot"),
}
#: Suspicion: evidence that takes no machine out by itself. Source: DOMAIN 7.
SUSPICION = frozenset({EvidenceClass.BENIGN, EvidenceClass.SYMPTOM, EvidenceClass.METRIC, EvidenceClass.HINT})
#: Facts by which history, or a comparison, speaks against this very machine.
AGAINST_MACHINE: tuple[str, ...] = (
    "past.same_node", "past.same_device", "past.only_here", "past.fine_elsewhere", "past.other_jobs",
    "past.owners", "past.ratio_here", "past.node_differs", "past.peers_pass", "past.pair_node",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a rule file. ``rule`` and ``line`` are "" and 0 where they cannot be told."""

    file: str
    line: int
    rule: str
    field: str
    detail: str

    def __str__(self) -> str:
        place = f"{self.file}, line {self.line}" if self.line else self.file
        whose = f", rule {self.rule}" if self.rule else ""
        which = f", {self.field}" if self.field else ""
        return _printable(f"{place}{whose}{which}: {self.detail}")


class RuleFileError(ValueError):
    """A rule file that cannot be used; ``problems`` lists everything that was found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        told = [str(problem) for problem in self.problems[:MAX_TOLD]]
        if len(self.problems) > MAX_TOLD:
            told.append(f"and {len(self.problems) - MAX_TOLD} more")
        super().__init__("\n".join(told))


class _Wrong(ValueError):
    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field
        self.detail = detail


def load_rules(files: Iterable[tuple[str, str]], *, base: RuleSet | None = None) -> RuleSet:
    """Rules out of files, in the order given.

    Args:
        files: (name, content) each.
        base: Built-in rules that these files add to, override or disable.
    Raises:
        RuleFileError: With everything that is wrong in them.
    """
    problems: list[Problem] = []
    rules: dict[str, Rule] = {rule.id: rule for rule in base.rules} if base else {}
    exits: dict[str, str] = dict(base.exits) if base else {}
    contexts: dict[str, tuple[When, ...]] = dict(base.contexts) if base else {}
    own: dict[str, str] = {PRECEDENTS: "the name of what labelled failures say"}
    precedents = base.precedents if base else None
    digest = hashlib.sha256((base.digest if base else "").encode())
    parsed = []
    order = max((rule.order for rule in base.rules), default=0) if base else 0
    for name, content in files:
        digest.update(content.encode("utf-8", "replace"))
        places = _places(content)
        document = _document(name, content, places, problems)
        if document is None:
            continue
        parsed.append((name, content, document))
        _read_shared(name, places, document, exits, contexts, problems)
    for name, content, document in parsed:
        lines = _rule_lines(content, len(document.get("rule", [])))
        for rule_id in _disabled(name, content, document, rules, problems):
            rules.pop(rule_id, None)
            if rule_id == PRECEDENTS:
                precedents = None
        for table, line in zip(document.get("rule", []), lines, strict=True):
            order += 1
            rule_id = _id_told(table)
            try:
                rule = _rule(table, name, line, order, contexts, exits)
            except _Wrong as wrong:
                problems.append(Problem(name, line, rule_id, wrong.field, wrong.detail))
                continue
            if rule.id in own:
                problems.append(
                    Problem(name, line, rule.id, "id", f"this id is also {own[rule.id]}: choose another")
                )
                continue
            own[rule.id] = f"in {name}, line {line}"
            rules[rule.id] = rule
    if len(rules) > MAX_RULES:
        problems.append(Problem("all files", 0, "", "", f"{len(rules)} rules: at most {MAX_RULES} are read"))
    if not problems:  # a rule that could not be read may be the one that is spoken of
        problems += _unknown_sightings(rules.values())
    if problems:
        raise RuleFileError(problems)
    found = RuleSet.of(list(rules.values()), exits, contexts, digest.hexdigest()[:12])
    if base is None:
        return found
    return replace(found, own=base.own | (own.keys() - {PRECEDENTS}), precedents=precedents)


def _document(
    name: str, content: str, places: Mapping[str, int], problems: list[Problem]
) -> Mapping[str, Any] | None:
    if len(content) > MAX_FILE:
        problems.append(Problem(name, 0, "", "", f"the file is larger than {MAX_FILE} characters: split it"))
        return None
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        problems.append(Problem(name, int(at[1]) if at else 0, "", "", f"not TOML: {error}"))
        return None
    except ValueError:  # the one thing that Python refuses to read behind the parser's back
        long = _LONG_NUMBER.search(content)
        line = content.count("\n", 0, long.start()) + 1 if long else 0
        problems.append(
            Problem(name, line, "", "", "a number in it has thousands of digits: write a shorter one")
        )
        return None
    except RecursionError:
        problems.append(Problem(name, 0, "", "", "tables or lists are nested too deeply to be read"))
        return None
    known = ", ".join(sorted(_TOP_FIELDS))
    problems += [
        Problem(name, places.get(word, 0), "", word[:100], f"unknown; a file holds {known}")
        for word in sorted(set(document) - _TOP_FIELDS)
    ]
    rules = document.get("rule", [])
    if not isinstance(rules, list):
        problems.append(Problem(name, places.get("rule", 0), "", "rule", "rules begin with [[rule]]"))
        return None
    if len(rules) > MAX_RULES:
        problems.append(Problem(name, 0, "", "rule", f"{len(rules)} rules: at most {MAX_RULES} are read"))
        return None
    return document


def _disabled(
    name: str, content: str, document: Mapping[str, Any], rules: Mapping[str, Rule], problems: list[Problem]
) -> list[str]:
    """Ids to take out; what is no list of ids disables nothing, and is told."""
    told = document.get("disable", [])
    line = _places(content).get("disable", 0) if told else 0
    odd = [told] if not isinstance(told, list) else [item for item in told if not isinstance(item, str)]
    if odd:
        detail = (
            f'a list of ids, such as ["gpu.hot"], and {_shown(odd[0])} is none: nothing would be disabled'
        )
        problems.append(Problem(name, line, "", "disable", detail))
        return []
    problems += [
        Problem(name, line, item[:100], "disable", "there is no rule of this id to disable")
        for item in told
        if item not in rules and item != PRECEDENTS
    ]
    return list(told)


def _read_shared(
    name: str, places: Mapping[str, int], document: Mapping[str, Any], exits: dict[str, str],
    contexts: dict[str, tuple[When, ...]], problems: list[Problem],
) -> None:  # fmt: skip
    shared: dict[str, Mapping[str, Any]] = {}
    for part, form in (
        ("exits", 'a table: [exits], then name = "how the machine comes back"'),
        ("contexts", "a table of tables: [contexts.name], then when = […]"),
    ):
        told = document.get(part, {})
        if not isinstance(told, Mapping):
            problems.append(Problem(name, places.get(part, 0), "", part, f"{_shown(told)} is not {form}"))
        shared[part] = told if isinstance(told, Mapping) else {}
    for word, text in shared["exits"].items():
        if isinstance(text, str) and len(text.strip()) >= 20:
            exits[word] = text
            continue
        detail = "say in a sentence how the machine comes back"
        line = places.get(word) or places.get(f"exits.{word}") or places.get("exits", 0)
        problems.append(Problem(name, line, "", f"exits.{word[:100]}", detail))
    for word, table in shared["contexts"].items():
        try:
            contexts[word] = _context(table, f"contexts.{word[:100]}")
        except _Wrong as wrong:
            line = places.get(f"contexts.{word}") or places.get(word) or places.get("contexts", 0)
            problems.append(Problem(name, line, "", wrong.field, wrong.detail))


def _context(table: Any, field: str) -> tuple[When, ...]:
    if not isinstance(table, Mapping):
        raise _Wrong(field, f"{_shown(table)} is not a table with when = […]")
    if unknown := sorted(set(table) - {"when"}):
        raise _Wrong(f"{field}.{unknown[0][:100]}", "unknown; a context holds when = […]")
    if not (cases := _whens(table.get("when"), field)):
        raise _Wrong(field, "it holds no case: add when = […]")
    return cases


def _rule(
    table: Any,
    file: str,
    line: int,
    order: int,
    contexts: Mapping[str, tuple[When, ...]],
    exits: Mapping[str, str],
) -> Rule:
    if not isinstance(table, Mapping):
        raise _Wrong("rule", "a rule is a table that begins with [[rule]]")
    if unknown := sorted(set(table) - _FIELDS):
        raise _Wrong(unknown[0][:100], f"unknown field; a rule has {', '.join(sorted(_FIELDS))}")
    rule_id = table.get("id")
    if not isinstance(rule_id, str) or not _ID.fullmatch(rule_id):
        raise _Wrong("id", "missing, or not like family.name in small letters")
    is_mark = _is_mark(table)
    reason, source = _sentence(table, "reason"), _sentence(table, "source")
    patterns = tuple(_pattern(text, f"match[{n}]") for n, text in enumerate(_list(table, "match")))
    conditions = tuple(_condition(text, "if") for text in _list(table, "if"))
    if not patterns and not conditions:
        raise _Wrong("match", "neither match nor if: the rule would say something about everything")
    when = _whens(table.get("when"), "when")
    context = table.get("context")
    if context is not None:
        if not isinstance(context, str) or context not in contexts:
            known = ", ".join(sorted(contexts)) or "none"
            raise _Wrong(
                "context", f"{_shown(context)} is no [contexts.…] in these files (there are {known})"
            )
        when = (*when, *contexts[context])
    rule = Rule(
        id=rule_id,
        order=order,
        reason=reason,
        source=source,
        evidence_class=EvidenceClass.BENIGN if is_mark else _evidence_class(table.get("class")),
        specificity=_specificity(table.get("specificity", 50)),
        is_mark=is_mark,
        category="" if is_mark else _word(table, "category", CATEGORIES),
        remedy=None if is_mark else Remedy(_word(table, "remedy", list(Remedy))),
        blame=None if is_mark else Blame(_word(table, "blame", list(Blame))),
        patterns=patterns,
        exceptions=tuple(_pattern(text, f"except[{n}]") for n, text in enumerate(_list(table, "except"))),
        origins=frozenset(Origin(_among(text, "in", list(Origin))) for text in _list(table, "in"))
        or frozenset(Origin),
        conditions=conditions,
        unless=tuple(_condition(text, "unless") for text in _list(table, "unless")),
        when=when,
        tags=_tags(table),
        refine=tuple(_among(text, "refine", CATEGORIES) for text in _list(table, "refine")),
        exit=_exit(table),
        means=_sentence(table, "means") if "means" in table else "",
        examples=_examples(table, "examples"),
        counter_examples=_examples(table, "counter_examples"),
        file=file,
        line=line,
    )
    _check_numbers(rule.reason, rule.conditions, "reason")
    for n, case in enumerate(rule.when):
        _check_numbers(case.reason, (*rule.conditions, *case.conditions), f"when[{n}].reason")
    if not rule.examples:
        raise _Wrong("examples", "give at least one line or situation that it must hit")
    if rule.isolates and rule.exit not in exits:
        known = ", ".join(sorted(exits)) or "none; add [exits]"
        raise _Wrong("exit", f"it may isolate, so name how the machine comes back: one of {known}")
    if rule.exit and rule.exit not in exits:
        raise _Wrong("exit", f"no {_shown(rule.exit)} in [exits]")
    _check_suspicion(rule)
    return rule


def _check_suspicion(rule: Rule) -> None:
    """Suspicion isolates only where history or a comparison speaks against the very machine."""
    if rule.evidence_class not in SUSPICION or _speaks_against_machine(rule.conditions):
        return
    cases = [("remedy", rule.remedy, rule.conditions)]
    cases += [(f"when[{n}].remedy", case.remedy, case.conditions) for n, case in enumerate(rule.when)]
    for field, remedy, conditions in cases:
        if remedy is Remedy.ISOLATE_NODE and not _speaks_against_machine(conditions):
            raise _Wrong(
                field,
                f"{rule.evidence_class.name.lower()} is suspicion, which isolates no machine by itself: say in 'if' "
                f"what speaks against this machine ({', '.join(AGAINST_MACHINE)}, or nodes.one with past.repeated), "
                "or choose another remedy, or the class of what it rests on",
            )


def _speaks_against_machine(conditions: tuple[Condition, ...]) -> bool:
    claimed = {each.name for each in conditions if not each.is_negated and not each.operator}
    return bool(claimed.intersection(AGAINST_MACHINE)) or claimed >= {"nodes.one", "past.repeated"}


def _is_mark(table: Mapping[str, Any]) -> bool:
    mark = table.get("mark", False)
    if not isinstance(mark, bool):
        raise _Wrong("mark", f"{_shown(mark)} is neither true nor false")
    if mark and (told := next((field for field in _CONCLUSIONS if field in table), "")):
        raise _Wrong(told, "a mark concludes nothing: take this out, or mark = true")
    return mark


def _tags(table: Mapping[str, Any]) -> tuple[str, ...]:
    tags = _list(table, "tags")
    for n, tag in enumerate(tags):
        if not isinstance(tag, str) or not _ID.fullmatch(tag):
            raise _Wrong(f"tags[{n}]", f"{_shown(tag)} is no name in small letters")
    return tuple(tags)


def _exit(table: Mapping[str, Any]) -> str:
    told = table.get("exit", "")
    if not isinstance(told, str):
        raise _Wrong("exit", f"{_shown(told)} is no name in [exits]")
    return told


def _check_numbers(reason: str, conditions: tuple[Condition, ...], field: str) -> None:
    """A number that a reason says is known whenever the rule applies."""
    known = {condition.name for condition in conditions if condition.operator}
    for name in SAID.findall(reason):
        if name not in known:
            raise _Wrong(field, f"it says {name}: compare that in 'if', so that the number is known")


def _whens(value: Any, field: str) -> tuple[When, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _Wrong(field, "a list of tables {if = […], reason = …, remedy = …}")
    found = []
    for n, table in enumerate(value):
        place = f"{field}[{n}]"
        if not isinstance(table, Mapping):
            raise _Wrong(place, f"{_shown(table)} is no table of {', '.join(sorted(_WHEN_FIELDS))}")
        if unknown := sorted(set(table) - _WHEN_FIELDS):
            raise _Wrong(
                f"{place}.{unknown[0][:100]}", f"unknown; a case has {', '.join(sorted(_WHEN_FIELDS))}"
            )
        conditions = tuple(_condition(text, f"{place}.if") for text in _list(table, "if"))
        if not conditions:
            raise _Wrong(f"{place}.if", "say in which context")
        category = table.get("category")
        found.append(
            When(
                conditions,
                _sentence(table, "reason", place),
                _among(category, f"{place}.category", CATEGORIES) if category is not None else None,
                Remedy(_among(table["remedy"], f"{place}.remedy", list(Remedy)))
                if "remedy" in table
                else None,
                Blame(_among(table["blame"], f"{place}.blame", list(Blame))) if "blame" in table else None,
            )
        )
    return tuple(found)


def _condition(text: Any, field: str) -> Condition:
    if not isinstance(text, str):
        raise _Wrong(field, "a condition is a text such as 'metric.gpu_util < 0.1'")
    stripped = text.strip()
    if stripped.startswith("not "):
        name = stripped[4:].strip()
        if _COMPARES.search(name):
            raise _Wrong(
                field, f"{_shown(text)}: 'not' stands before a fact alone; compare with != or in unless"
            )
        return Condition(text, _fact(name, field), is_negated=True)
    match = _CONDITION.fullmatch(stripped)
    if match is None:
        if _COMPARES.search(stripped):
            raise _Wrong(
                field,
                f"{_shown(text)}: a comparison is like 'check.gpu = fail', with one of = != < <= > >= in",
            )
        return Condition(text, _fact(stripped, field))
    name, operator, raw = match.groups()
    value: Any
    if operator == "in":
        value = frozenset(_worth(word.strip()) for word in raw.split("|"))
    else:
        try:
            value = float(raw)
        except ValueError:
            value = raw.strip()
            if operator not in {"=", "!="}:
                raise _Wrong(field, f"{_shown(text)}: {operator} compares numbers") from None
        if value != value:  # noqa: PLR0124 (nan: nothing compares with it)
            raise _Wrong(field, f"{_shown(text)}: nothing compares with nan")
    _check_value(_fact(name, field), value, field)
    return Condition(text, name, operator, value)


def _check_value(name: str, value: Any, field: str) -> None:
    """A word that this fact never is would make a rule that never applies."""
    for begin, words in _VALUES.items():
        if name == begin or (begin.endswith(".") and name.startswith(begin)):
            for told in sorted(map(str, value)) if isinstance(value, frozenset) else [str(value)]:
                if told not in words:
                    raise _Wrong(field, f"{name} is never {_shown(told)}: it is one of {', '.join(words)}")


def _worth(word: str) -> float | str:
    """A number where it is one: 126 in a list means the number."""
    return float(word) if word.isdigit() else word


def _fact(name: str, field: str) -> str:
    if not _NAME.fullmatch(name) or not is_known_fact(name):
        raise _Wrong(field, f"no fact {_shown(name)}; there are {', '.join(NAMES)}")
    return name


def _pattern(text: Any, field: str) -> Pattern:
    if not isinstance(text, str):
        raise _Wrong(field, "a pattern is a text")
    try:
        return compile_pattern(text)
    except PatternError as error:
        raise _Wrong(field, f"{_shown(text)}: {error}") from error


def _evidence_class(value: Any) -> EvidenceClass:
    words = {member.name.lower(): member for member in EvidenceClass}
    if not isinstance(value, str) or value not in words:
        raise _Wrong(
            "class", f"{_shown(value) if value is not None else 'missing'}; one of {', '.join(words)}"
        )
    return words[value]


def _specificity(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SPECIFICITY:
        raise _Wrong("specificity", f"a whole number from 0 to {MAX_SPECIFICITY}")
    return value


def _word(table: Mapping[str, Any], field: str, words: Iterable[str]) -> str:
    if field not in table:
        raise _Wrong(field, f"missing; one of {', '.join(map(str, words))}")
    return _among(table[field], field, words)


def _among(value: Any, field: str, words: Iterable[str]) -> str:
    known = list(map(str, words))
    if not isinstance(value, str) or value not in known:
        raise _Wrong(field, f"{_shown(value)} is none of {', '.join(known)}")
    return value


def _sentence(table: Mapping[str, Any], field: str, place: str = "") -> str:
    value = table.get(field)
    if not isinstance(value, str) or len(value.strip()) < 3:
        raise _Wrong(f"{place}.{field}" if place else field, "missing; a sentence for people")
    return value


def _list(table: Mapping[str, Any], field: str) -> list[Any]:
    value = table.get(field, [])
    if not isinstance(value, list):
        raise _Wrong(field, f"{_shown(value)} is no list: put it in brackets")
    return value


def _examples(table: Mapping[str, Any], field: str) -> tuple[Any, ...]:
    value = _list(table, field)
    for n, example in enumerate(value):
        if not isinstance(example, str | Mapping) or not _is_plain(example):
            raise _Wrong(f"{field}[{n}]", f"{_shown(example)} is neither a line nor a table of signals")
    return tuple(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON could tell it as a signal: no dates, no numbers of any length, nothing nested for ever."""
    if depth > MAX_EXAMPLE_DEPTH:
        return False
    if isinstance(value, Mapping):
        return all(_is_plain(item, depth + 1) for item in value.values())
    if isinstance(value, list):
        return all(_is_plain(item, depth + 1) for item in value)
    return isinstance(value, str | bool | float) or (isinstance(value, int) and abs(value) < 2**63)


def _shown(value: Any) -> str:
    """A value of a file as it is told: texts and small numbers themselves, all else by its kind."""
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:80] + "…")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**20):
        return str(value)
    kinds = {int: "a long number", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")


def _printable(text: str) -> str:
    """A file may hold escape codes as \\u001b; whoever reads what is wrong with it sees them as such."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _id_told(table: Any) -> str:
    told = table.get("id") if isinstance(table, Mapping) else None
    return told[:100] if isinstance(told, str) else ""


def _rule_lines(content: str, count: int) -> list[int]:
    """The line of each rule; zeros where they cannot be told, as in a text of many lines that holds such a line."""
    lines = [n for n, line in enumerate(content.split("\n"), 1) if _RULE_HEADER.match(line)]
    return lines if len(lines) == count else [0] * count


def _places(content: str) -> dict[str, int]:
    """The line where each key is first given a value, or its table begins, without quotes."""
    places: dict[str, int] = {}
    for n, line in enumerate(content.split("\n"), 1):
        if found := _KEY.match(line):
            places.setdefault(_QUOTES.sub("", found[1] or found[2]), n)
    return places


def _unknown_sightings(rules: Iterable[Rule]) -> list[Problem]:
    """Conditions on ``seen.NAME`` where no rule has that id or tag."""
    rules = list(rules)
    known = {rule.id for rule in rules} | {tag for rule in rules for tag in rule.tags}
    problems = []
    for rule in rules:
        all_conditions = [
            *rule.conditions,
            *rule.unless,
            *(each for case in rule.when for each in case.conditions),
        ]
        problems += [
            Problem(rule.file, rule.line, rule.id, condition.text, "no rule has this id or tag")
            for condition in all_conditions
            if condition.name.startswith("seen.") and condition.name.removeprefix("seen.") not in known
        ]
    return problems
