r"""Patterns over log lines that can never backtrack: checked when loaded, linear when matched. Source: DOMAIN 7.

Syntax, in small letters (lines are compared in small letters):

- a literal character; ``\`` before one of ``\ ( ) [ ] { } | .`` makes it a literal
- ``(one|two)``: one of some literals; none of them may begin with another
- ``[a-z0-9_]``, ``[^a-z]``: one character of a class; ``[…]{0,64}``: repeated, at most 64 times, and then no
  character that may come next may belong to the class (so taking as many as there are is always right)
- ``.*``: a gap, "later in the same line"; at most three; the next part is searched from there, first match

A word of at most four letters before a gap begins a word of the line: ``ost.*unavailable`` does not speak of a host.

A line begins and ends with a line break, which a class such as ``[^0-9]`` matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_GAPS = 3
MAX_REPEAT = 64
MAX_LENGTH = 400
#: Repeated classes in one part; bounds the work of one try at one place of a line.
MAX_CLASSES = 8
MIN_LITERAL = 3
#: A literal before a gap that is no longer is taken as a word of its own, not as the end of another.
MAX_SHORT_WORD = 4

_SPECIAL = frozenset("\\()[]{}|.")
#: Characters that classes are compared over: ASCII stands for itself, one other sign for all the rest.
_ALPHABET = frozenset(map(chr, range(128))) | {"\u0080"}


class PatternError(ValueError):
    """A pattern that is refused; ``at`` is the place in it, counted from 0."""

    def __init__(self, detail: str, at: int) -> None:
        super().__init__(f"{detail} (at character {at + 1})")
        self.detail = detail
        self.at = at


@dataclass(frozen=True, slots=True)
class _Element:
    """One piece of a part: literal text, alternatives, or a class with its least and most repeats."""

    at: int
    text: str = ""
    alternatives: tuple[str, ...] = ()
    members: frozenset[str] | None = None
    source: str = ""
    least: int = 1
    most: int = 1

    @property
    def first(self) -> frozenset[str]:
        """The characters that it may begin with."""
        if self.members is not None:
            return self.members
        if self.alternatives:
            return frozenset(_fold(word[0]) for word in self.alternatives)
        return frozenset({_fold(self.text[0])})

    def compiled(self) -> str:
        if self.members is not None:
            return self.source + (
                f"{{{self.least},{self.most}}}+" if (self.least, self.most) != (1, 1) else ""
            )
        if self.alternatives:
            return f"(?>{'|'.join(re.escape(word) for word in self.alternatives)})"
        return re.escape(self.text)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A checked pattern. ``literals`` are texts of 3 characters or more, one of which must be there: all must."""

    source: str
    parts: tuple[re.Pattern[str], ...]
    literals: tuple[str, ...]

    def matches(self, text: str, begin: int = 0, end: int | None = None) -> bool:
        """Whether the line ``text[begin:end]``, with its line breaks, holds all parts in their order."""
        stop = len(text) if end is None else end
        place = begin
        for part in self.parts:
            found = part.search(text, place, stop)
            if found is None:
                return False
            place = found.end()
        return True


def compile_pattern(source: str) -> Pattern:
    """Read and check a pattern.

    Raises:
        PatternError: It is not of this language, or could backtrack, or has no literal to search for.
    """
    if not source:
        raise PatternError("the pattern is empty", 0)
    if len(source) > MAX_LENGTH:
        raise PatternError(f"the pattern is longer than {MAX_LENGTH} characters", MAX_LENGTH)
    for at, char in enumerate(source):
        if char != char.lower() or len(char.lower()) != 1:
            raise PatternError(f"{char!r} is a capital letter: lines are compared in small letters", at)
        if char == "\n":
            raise PatternError("a pattern is about one line", at)
    parts: list[list[_Element]] = [[]]
    for element in _elements(source):
        if element is None:
            parts.append([])
        else:
            parts[-1].append(element)
    if len(parts) - 1 > MAX_GAPS:
        raise PatternError(f"more than {MAX_GAPS} gaps", 0)
    for part in parts:
        if not part:
            raise PatternError("nothing stands beside a gap", 0)
        _check(part)
    literals = tuple(e.text for part in parts for e in part if len(e.text) >= MIN_LITERAL)
    if not literals:
        raise PatternError(f"no literal text of {MIN_LITERAL} characters or more to search for", 0)
    compiled = tuple(
        re.compile(_word_start(parts, n) + "".join(e.compiled() for e in part), re.DOTALL)
        for n, part in enumerate(parts)
    )
    return Pattern(source, compiled, literals)


def _word_start(parts: list[list[_Element]], n: int) -> str:
    """What keeps a short first word from matching within a longer one; "" elsewhere."""
    if n or len(parts) == 1 or len(parts[0]) > 1:
        return ""
    word = parts[0][0].text.strip()
    return "(?<![a-z])" if 0 < len(word) <= MAX_SHORT_WORD and word[0].isalpha() else ""


def _fold(char: str) -> str:
    return min(char, "\u0080")


def _elements(source: str) -> Iterator[_Element | None]:
    """The elements of a pattern in order; None is a gap."""
    literal, begun, at = "", 0, 0
    while at < len(source):
        char = source[at]
        if char not in _SPECIAL or char == "\\":
            if not literal:
                begun = at
            text, at = _literal(source, at)
            literal += text
            continue
        if literal:
            yield _Element(begun, text=literal)
            literal = ""
        if char == ".":
            if source[at : at + 2] != ".*":
                raise PatternError("a dot is written \\. and a gap .*", at)
            yield None
            at += 2
        elif char == "(":
            element, at = _alternation(source, at)
            yield element
        elif char == "[":
            element, at = _class(source, at)
            yield element
        else:
            raise PatternError(f"{char!r} has no meaning here; write \\{char}", at)
    if literal:
        yield _Element(begun, text=literal)


def _literal(source: str, at: int) -> tuple[str, int]:
    if source[at] != "\\":
        return source[at], at + 1
    if at + 1 >= len(source) or source[at + 1] not in _SPECIAL:
        raise PatternError("\\ stands only before one of \\ ( ) [ ] { } | .", at)
    return source[at + 1], at + 2


def _alternation(source: str, begin: int) -> tuple[_Element, int]:
    words, word, at = [], "", begin + 1
    while True:
        if at >= len(source):
            raise PatternError("( without )", begin)
        char = source[at]
        if char in "|)":
            words.append(word)
            word, at = "", at + 1
            if char == ")":
                break
        elif char in _SPECIAL and char != "\\":
            raise PatternError(f"only literals stand in alternatives; write \\{char}", at)
        else:
            text, at = _literal(source, at)
            word += text
    if source[at : at + 1] == "{":
        raise PatternError("only classes are repeated", at)
    for one in words:
        if any(other.startswith(one) for other in words if other is not one):
            raise PatternError(
                f"alternative {one!r} begins another one: keep the longer, or split the rule", begin
            )
    return _Element(begin, alternatives=tuple(words)), at


def _class(source: str, begin: int) -> tuple[_Element, int]:
    at = begin + 1
    is_negated = source[at : at + 1] == "^"
    at += is_negated
    members: set[str] = set()
    ranges: list[str] = []
    while source[at : at + 1] != "]":
        if at >= len(source):
            raise PatternError("[ without ]", begin)
        low, at = _member(source, at)
        high = low
        if source[at : at + 1] == "-" and source[at + 1 : at + 2] not in ("", "]"):
            high, at = _member(source, at + 1)
        if high < low:
            raise PatternError(f"the range {low}-{high} runs backwards", at)
        if high >= "\u0080":
            raise PatternError("a class holds ASCII characters only", at)
        members |= {chr(code) for code in range(ord(low), ord(high) + 1)}
        ranges.append(re.escape(low) if low == high else f"{re.escape(low)}-{re.escape(high)}")
    at += 1
    if not members:
        raise PatternError("the class is empty", begin)
    least, most, at = _repeat(source, at)
    chosen = _ALPHABET - members if is_negated else frozenset(members)
    text = f"[{'^' if is_negated else ''}{''.join(ranges)}]"
    return _Element(begin, members=chosen, source=text, least=least, most=most), at


def _member(source: str, at: int) -> tuple[str, int]:
    if source[at] == "\\":
        return _literal(source, at)
    return source[at], at + 1


def _repeat(source: str, at: int) -> tuple[int, int, int]:
    if source[at : at + 1] in {"*", "+", "?"}:
        raise PatternError(f"a class is repeated as {{least,most}}, at most {MAX_REPEAT} times", at)
    if source[at : at + 1] != "{":
        return 1, 1, at
    close = source.find("}", at)
    least, comma, most = source[at + 1 : close].partition(",")
    is_number = (
        close > at and comma and least.isascii() and most.isascii() and least.isdigit() and most.isdigit()
    )
    if not is_number or len(least) > 3 or len(most) > 3:
        raise PatternError("a repeat is written {least,most}", at)
    if not int(least) <= int(most) <= MAX_REPEAT or int(most) == 0:
        raise PatternError(
            f"a class is repeated at most {MAX_REPEAT} times, and at least as often as at most", at
        )
    return int(least), int(most), close + 1


def _check(part: list[_Element]) -> None:
    """No character that may come after a repeated class may belong to it, so nothing ever backtracks."""
    if sum(element.most > 1 or element.least == 0 for element in part) > MAX_CLASSES:
        raise PatternError(f"more than {MAX_CLASSES} repeated classes in one part", part[0].at)
    for n, element in enumerate(part):
        if element.members is None or element.least == element.most:
            continue
        for follower in part[n + 1 :]:
            if both := element.members & follower.first:
                raise PatternError(
                    f"the repeated class {element.source} also holds {min(both)!r}, which may come next",
                    element.at,
                )
            if follower.least > 0:
                break
