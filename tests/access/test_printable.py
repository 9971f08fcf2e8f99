"""Text of others on a terminal: shown, and not obeyed."""

from __future__ import annotations

import pytest

from apps.access.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step 3 | loss 2.1\tµ=0.5 \N{NO-BREAK SPACE}°", "step 3 | loss 2.1\tµ=0.5 \N{NO-BREAK SPACE}°"),
        ("\x1b[1;31mCUDA\x1b[0m error", "CUDA error"),
        ("\x1b]0;pwned\x07\x1b[2J", r"\x1b]0;pwned\x07\x1b[2J"),
        ("a\rb\nc\x7f\x9b5n\0", r"a\rb\nc\x7f\x9b5n\x00"),
        ("abc\u202ecod\u2028x\udcff", r"abc\u202ecod\u2028x\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_what_it_is(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_of_a_table_stay() -> None:
    assert printable_lines("a\x1bc\nb\n") == "a\\x1bc\nb\n"
