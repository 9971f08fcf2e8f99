"""The rules in force: the built-in ones, and the operator's own file over them. Source: docs/design/verdicts.md."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from django.conf import settings

from recovery.rules.builtin import builtin_rules
from recovery.rules.loading import MAX_FILE, Problem, RuleFileError, load_rules
from recovery.rules.rule import RuleSet
from recovery.rules.trying import example_problems

logger = logging.getLogger(__name__)


def rules_with(path: Path) -> RuleSet:
    """The built-in rules with an operator's file over them.

    Raises:
        RuleFileError: It cannot be read, or a rule in it is wrong or does not hit its own examples.
    """
    return rules_from(read_rule_file(path), base=builtin_rules(), name=str(path))


def read_rule_file(path: Path) -> str:
    """What a rule file holds, and never much more than may be read of one. Raises RuleFileError."""
    try:
        with path.open("rb") as file:
            return file.read(4 * MAX_FILE + 4).decode()
    except (OSError, ValueError) as error:
        raise RuleFileError([Problem(str(path), 0, "", "", f"cannot be read: {error}")]) from error


def rules_from(content: str, *, base: RuleSet, name: str = "your rules") -> RuleSet:
    """Rules with a rule file's content over them. Raises RuleFileError, also for examples that do not hit."""
    rules = load_rules([(name, content)], base=base)
    own = frozenset(rule.id for rule in rules.rules if rule.file == name)
    if problems := example_problems(rules, only=own):
        raise RuleFileError(problems)
    return rules


@cache
def _loaded() -> tuple[RuleSet, str]:
    path = settings.RULES_FILE
    if not path:
        return builtin_rules(), ""
    try:
        return rules_with(Path(path)), ""
    except RuleFileError as error:
        logger.error("rules.refused %s", "; ".join(str(error).splitlines()))  # noqa: TRY400 - no bug of ours
        return builtin_rules(), str(error)
    except (
        Exception
    ) as error:  # whatever a file does to the loader: a desk without decisions is the worse answer
        what = f"it cannot be used ({type(error).__name__}): report this with the file, it is a mistake of the desk's"
        refused = str(Problem(path, 0, "", "", what))
        logger.exception("rules.refused %s", refused)
        return builtin_rules(), refused


def current_rules() -> RuleSet:
    """The rules of this process, read once. A wrong file of the operator's is told; the built-in rules hold."""
    return _loaded()[0]


#: Numbers that the facts are made of beside those that conditions name (recovery/facts.py, recovery/announced.py).
_READ_BY_FACTS = frozenset(
    {"nodes_affected", "pods_expected", "sm_clock_mhz", "sm_clock_median_mhz", "workers"}
)


@cache
def metrics_read() -> frozenset[str]:
    """Names of the numbers that the rules in force read. What another name tells is for people only."""
    named = {
        condition.name.removeprefix("metric.")
        for rule in current_rules().rules
        for group in (rule.conditions, rule.unless, *(when.conditions for when in rule.when))
        for condition in group
        if condition.name.startswith("metric.")
    }
    return _READ_BY_FACTS | named


def note_on_metric(name: str) -> str:
    """What a sender of a metric has to know: "" where rules read it, else that none does, and which are near."""
    if name in metrics_read():
        return ""
    near = get_close_matches(name, sorted(metrics_read()), n=1)
    return (
        f"No rule reads a metric {name}: it is kept for people to read, and no verdict is made of it."
        f"{f' Was {near[0]} meant?' if near else ''}"
    )


def refusal() -> str:
    """What is wrong with the operator's rule file, "" when nothing is. Mend the file and restart the processes."""
    return _loaded()[1]


def forget() -> None:
    """Read the rules again at the next use, as a new process does."""
    _loaded.cache_clear()
    metrics_read.cache_clear()
