"""What the small models have in common: few states, none of them the same but for names, nothing cut."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from recovery.errors import InvalidTransition


class SmallModel[S: Hashable]:
    """Defaults of a model whose states all stand for themselves. Labels are sentences."""

    def broken(self, state: S) -> str:
        """Whatever does not hold is found in the step that breaks it, unless a model says more."""
        return ""

    def is_cut(self, state: S) -> bool:
        """Nothing is cut."""
        return False

    def canonical(self, state: S) -> S:
        """Every state stands for itself."""
        return state

    def weight(self, state: S) -> int:
        """Every state stands for itself."""
        return 1

    def says(self, label: Hashable) -> str:
        """Labels are sentences."""
        return str(label)


def advanced[E](advance: Callable[[E, E], E], state: E, to: E) -> E | None:
    """The state after a step of a production table, or None where the table has no such way."""
    try:
        return advance(state, to)
    except InvalidTransition:
        return None
