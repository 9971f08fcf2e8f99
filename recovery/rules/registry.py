"""Rules by their digest: a policy names them, and a decision finds them here.

The same digest is the same rules, so a lookup changes nothing about a decision's purity. A process puts the
operator's rules here when it reads its policy.
"""

from __future__ import annotations

from recovery.rules.builtin import builtin_rules
from recovery.rules.rule import RuleSet

_KNOWN: dict[str, RuleSet] = {}


def put(rules: RuleSet) -> str:
    """Make rules known; gives their digest."""
    _KNOWN[rules.digest] = rules
    return rules.digest


def is_known(digest: str) -> bool:
    """Whether the rules of this digest are here: else ``find`` gives others."""
    return not digest or digest in _KNOWN


def find(digest: str) -> RuleSet:
    """The rules of this digest; the built-in ones for "" and for a digest that is not known any more."""
    return _KNOWN.get(digest) or builtin_rules()
