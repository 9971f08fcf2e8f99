"""Text that others wrote, as a terminal may show it. A terminal obeys what a log, a name or a file may hold."""

from __future__ import annotations

import re
import unicodedata

#: Colours and other looks of letters (ECMA-48, SGR): nothing is lost without them.
_LOOKS = re.compile(r"\x1b\[[0-9;:]{0,40}m")


def printable(text: str) -> str:
    """One line with colours taken out and every other control character shown as what it is (``\\x1b``).

    Line breaks within it too, and what turns the direction of letters: nobody writes a line of ours.
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, without_looks(text)))


def without_looks(text: str) -> str:
    """The text without its colours, which may stand in the middle of words."""
    return _LOOKS.sub("", text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, whose line breaks are ours."""
    return "\n".join(map(printable, text.split("\n")))


def _shown(char: str) -> str:
    if char.isprintable() or char == "\t" or unicodedata.category(char) == "Zs":
        return char
    return char.encode("unicode_escape").decode()
