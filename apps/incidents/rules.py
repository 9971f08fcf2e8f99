"""The rules in force: the built-in ones, and the operator's own file over them. Source: docs/design/verdicts.md."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from django.conf import settings

from recovery.rules.builtin import builtin_rules
from recovery.rules.loading import Problem, RuleFileError, load_rules
from recovery.rules.rule import RuleSet
from recovery.rules.trying import example_problems

logger = logging.getLogger(__name__)


def rules_with(path: Path) -> RuleSet:
    """The built-in rules with an operator's file over them.

    Raises:
        RuleFileError: It cannot be read, or a rule in it is wrong or does not hit its own examples.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuleFileError([Problem(str(path), 0, "", "", f"cannot be read: {error}")]) from error
    rules = load_rules([(str(path), content)], base=builtin_rules())
    own = frozenset(rule.id for rule in rules.rules if rule.file == str(path))
    if problems := example_problems(rules, only=own):
        raise RuleFileError(problems)
    return rules


@cache
def current_rules() -> RuleSet:
    """The rules of this process, read once. A wrong file of the operator's is told; the built-in rules hold."""
    path = getattr(settings, "RULES_FILE", "")
    if not path:
        return builtin_rules()
    try:
        return rules_with(Path(path))
    except RuleFileError as error:
        logger.error(
            "rules.refused", extra={"file": path, "detail": str(error), "what_to_do": "mend it and restart"}
        )
        return builtin_rules()
