"""The built-in rules and precedents: the files beside this module, read once, as Python reads its modules."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

from recovery.precedents import read_precedents
from recovery.rules.loading import load_rules
from recovery.rules.rule import RuleSet


def builtin_files() -> tuple[tuple[str, str], ...]:
    """(name, content) of the built-in rule files, in order of their names."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return tuple((path.name, path.read_text(encoding="utf-8")) for path in files)


@cache
def builtin_rules() -> RuleSet:
    """The built-in rules. RuleFileError would be a mistake of ours: the linter's tests read the same files."""
    rules = load_rules(builtin_files())
    learned = Path(__file__).with_name("precedents.json").read_text(encoding="utf-8")
    digest = hashlib.sha256(f"{rules.digest} {learned}".encode()).hexdigest()[:12]
    return replace(rules, digest=digest, precedents=read_precedents(learned))
