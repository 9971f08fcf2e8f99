"""Rule files -> rules. Everything that is wrong with a file is told with its line, field and what to do.

Files are TOML. An operator's file has the same form: a rule with the id of a built-in one overrides it, and
``disable = ["id", …]`` at its top takes built-in rules out. Source: docs/design/verdicts.md.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recovery.pattern import Pattern, PatternError, compile_pattern
from recovery.rules.categories import CATEGORIES
from recovery.rules.facts import NAMES, is_known_fact
from recovery.rules.rule import SAID, Blame, Condition, EvidenceClass, Origin, Remedy, Rule, RuleSet, When

MAX_FILE = 1_000_000
MAX_RULES = 2_000
MAX_SPECIFICITY = 100

_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{1,60}")
_CONDITION = re.compile(r"([a-z][a-z0-9_.:-]*) +(!=|<=|>=|=|<|>|in) +(.+)")
_FIELDS = frozenset(
    {"id", "match", "except", "in", "if", "unless", "class", "specificity", "mark", "category", "remedy",
     "blame", "reason", "source", "examples", "counter_examples", "exit", "context", "when", "tags", "refine", "means"}
)  # fmt: skip
_WHEN_FIELDS = frozenset({"if", "category", "remedy", "blame", "reason"})
_TOP_FIELDS = frozenset({"rule", "exits", "contexts", "disable"})


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
        return f"{place}{whose}{which}: {self.detail}"


class RuleFileError(ValueError):
    """A rule file that cannot be used; ``problems`` lists everything that was found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


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
    own: dict[str, str] = {}
    digest = hashlib.sha256((base.digest if base else "").encode())
    parsed = []
    order = max((rule.order for rule in base.rules), default=0) if base else 0
    for name, content in files:
        digest.update(content.encode("utf-8", "replace"))
        document = _document(name, content, problems)
        if document is None:
            continue
        parsed.append((name, content, document))
        _read_shared(name, content, document, exits, contexts, problems)
    for name, content, document in parsed:
        lines = _rule_lines(content)
        for rule_id in _texts(document.get("disable", [])):
            if rule_id not in rules:
                problems.append(
                    Problem(name, 1, rule_id, "disable", "there is no rule of this id to disable")
                )
            rules.pop(rule_id, None)
        for n, table in enumerate(document.get("rule", [])):
            line = lines[n] if n < len(lines) else 0
            order += 1
            rule_id = str(table.get("id", "")) if isinstance(table, Mapping) else ""
            try:
                rule = _rule(table, name, line, order, contexts, exits)
            except _Wrong as wrong:
                problems.append(Problem(name, line, rule_id, wrong.field, wrong.detail))
                continue
            if rule.id in own:
                problems.append(
                    Problem(name, line, rule.id, "id", f"this id is also in {own[rule.id]}: choose another")
                )
                continue
            own[rule.id] = f"{name}, line {line}"
            rules[rule.id] = rule
    if len(rules) > MAX_RULES:
        problems.append(Problem("all files", 0, "", "", f"{len(rules)} rules: at most {MAX_RULES} are read"))
    if not problems:  # a rule that could not be read may be the one that is spoken of
        problems += _unknown_sightings(rules.values())
    if problems:
        raise RuleFileError(problems)
    return RuleSet.of(list(rules.values()), exits, contexts, digest.hexdigest()[:12])


def _document(name: str, content: str, problems: list[Problem]) -> Mapping[str, Any] | None:
    if len(content) > MAX_FILE:
        problems.append(Problem(name, 0, "", "", f"the file is larger than {MAX_FILE} characters: split it"))
        return None
    try:
        document = tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        at = re.search(r"at line (\d+)", str(error))
        problems.append(Problem(name, int(at[1]) if at else 0, "", "", f"not TOML: {error}"))
        return None
    known = ", ".join(sorted(_TOP_FIELDS))
    problems += [
        Problem(name, 0, "", word, f"unknown; a file holds {known}")
        for word in sorted(set(document) - _TOP_FIELDS)
    ]
    if not isinstance(document.get("rule", []), list):
        problems.append(Problem(name, 0, "", "rule", "rules begin with [[rule]]"))
        return None
    return document


def _read_shared(
    name: str, content: str, document: Mapping[str, Any], exits: dict[str, str],
    contexts: dict[str, tuple[When, ...]], problems: list[Problem],
) -> None:  # fmt: skip
    for word, text in _table(document.get("exits")).items():
        if isinstance(text, str) and len(text) >= 20:
            exits[word] = text
        else:
            problems.append(
                Problem(
                    name,
                    _line_of(content, word),
                    "",
                    f"exits.{word}",
                    "say in a sentence how the machine comes back",
                )
            )
    for word, table in _table(document.get("contexts")).items():
        try:
            contexts[word] = _whens(_table(table).get("when"), f"contexts.{word}")
        except _Wrong as wrong:
            problems.append(
                Problem(name, _line_of(content, f"contexts.{word}"), "", wrong.field, wrong.detail)
            )


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
        raise _Wrong(unknown[0], f"unknown field; a rule has {', '.join(sorted(_FIELDS))}")
    rule_id = table.get("id")
    if not isinstance(rule_id, str) or not _ID.fullmatch(rule_id):
        raise _Wrong("id", "missing, or not like family.name in small letters")
    is_mark = table.get("mark") is True
    reason, source = _sentence(table, "reason"), _sentence(table, "source")
    patterns = tuple(_pattern(text, f"match[{n}]") for n, text in enumerate(_list(table, "match")))
    conditions = tuple(_condition(text, "if") for text in _list(table, "if"))
    if not patterns and not conditions:
        raise _Wrong("match", "neither match nor if: the rule would say something about everything")
    when = _whens(table.get("when"), "when")
    context = table.get("context")
    if context is not None:
        if context not in contexts:
            raise _Wrong(
                "context",
                f"no [contexts.{context}] in these files (there are {', '.join(sorted(contexts)) or 'none'})",
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
        tags=tuple(_list(table, "tags")),
        refine=tuple(_among(text, "refine", CATEGORIES) for text in _list(table, "refine")),
        exit=str(table.get("exit", "")),
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
        raise _Wrong("exit", f"no {rule.exit!r} in [exits]")
    return rule


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
        if not isinstance(table, Mapping) or set(table) - _WHEN_FIELDS:
            raise _Wrong(place, f"a table of {', '.join(sorted(_WHEN_FIELDS))}")
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
        return Condition(text, _fact(stripped[4:].strip(), field), is_negated=True)
    match = _CONDITION.fullmatch(stripped)
    if match is None:
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
                raise _Wrong(field, f"{text!r}: {operator} compares numbers") from None
    return Condition(text, _fact(name, field), operator, value)


def _worth(word: str) -> float | str:
    """A number where it is one: 126 in a list means the number."""
    return float(word) if word.isdigit() else word


def _fact(name: str, field: str) -> str:
    if not is_known_fact(name):
        raise _Wrong(field, f"no fact {name!r}; there are {', '.join(NAMES)}")
    return name


def _pattern(text: Any, field: str) -> Pattern:
    if not isinstance(text, str):
        raise _Wrong(field, "a pattern is a text")
    try:
        return compile_pattern(text)
    except PatternError as error:
        raise _Wrong(field, f"{text!r}: {error}") from error


def _evidence_class(value: Any) -> EvidenceClass:
    words = {member.name.lower(): member for member in EvidenceClass}
    if value not in words:
        raise _Wrong("class", f"one of {', '.join(words)}")
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
    if value not in known:
        raise _Wrong(field, f"{value!r} is none of {', '.join(known)}")
    return str(value)


def _sentence(table: Mapping[str, Any], field: str, place: str = "") -> str:
    value = table.get(field)
    if not isinstance(value, str) or len(value) < 3:
        raise _Wrong(f"{place}.{field}" if place else field, "missing; a sentence for people")
    return value


def _list(table: Mapping[str, Any], field: str) -> list[str]:
    value = table.get(field, [])
    if not isinstance(value, list):
        raise _Wrong(field, "a list")
    return value


def _examples(table: Mapping[str, Any], field: str) -> tuple[Any, ...]:
    value = _list(table, field)
    if not all(isinstance(example, str | Mapping) for example in value):
        raise _Wrong(field, "lines, or tables of signals")
    return tuple(value)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _rule_lines(content: str) -> list[int]:
    return [n for n, line in enumerate(content.splitlines(), 1) if line.strip().startswith("[[rule]]")]


def _line_of(content: str, word: str) -> int:
    return next((n for n, line in enumerate(content.splitlines(), 1) if word in line), 0)


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
