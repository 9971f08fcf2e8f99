"""Take secrets out of what jobs print, and cut it to size, before anything of it is stored.

Jobs print their environment, their URLs and sometimes their keys. What is left is marked, so that nobody
takes the mark for what was printed. Every pattern is bounded: a line costs linear time whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from agent.wire import MAX_LINE_BYTES
from apps.access.printable import printable, without_looks

MAX_LINES = 2000
MARK = "[redacted]"
_MAX_DEPTH = 20

_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_KEY_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)

_PATTERNS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # user and password in a URL
    (re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,500}@"), rf"\g<1>{MARK}@"),
    # Authorization: Bearer …, Basic …
    (re.compile(r"\b(bearer|basic)(\s{1,4})[\w.~+/=-]{8,}", re.IGNORECASE), rf"\g<1>\g<2>{MARK}"),
    # tokens known by how they begin: AWS key ids, GitHub, GitLab, Hugging Face, Slack, OpenAI, ours, JWT
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MARK),
    (re.compile(r"\b(?:gh[opsu]_|glpat-|hf_|xox[abp]-|sk-|idk_|ide_|ida1\.)[\w.-]{16,}"), MARK),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"), MARK),
    # NAME=value and "name": "value"; a plain number is a count (of tokens, mostly) and stays
    (
        re.compile(
            r"((?:password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key)"
            r"(?:[_-](?:id|key|value))?[\"']?\s{0,4}[=:]\s{0,4}[\"']?)"
            r"(?!\d{1,20}(?:\.\d{1,20})?(?:[\s,;\"')\]}]|$))(?!\[redacted\])[^\s\"',;&]{3,}",
            re.IGNORECASE,
        ),
        rf"\g<1>{MARK}",
    ),
)


def redact(text: str) -> str:
    """The text without the secrets that it shows, of any number of lines."""
    if "PRIVATE KEY" in text:
        text = _KEY_BLOCK.sub(MARK, text)
    for pattern, stands_for in _PATTERNS:
        text = pattern.sub(stands_for, text)
    return text


def for_terminal(text: str) -> str:
    """One line of a job's or a person's text as a terminal may show it: no secrets, and nothing that it obeys."""
    return printable(redact(without_looks(text)))


def clean_lines(lines: Iterable[str]) -> list[str]:
    """Lines to be stored: the last 2,000, each without secrets and at most 4 KiB of UTF-8.

    A key block that goes over several lines is known by its first and last one.
    """
    cleaned = []
    is_in_key = False
    for line in list(lines)[-MAX_LINES:]:
        if is_in_key:
            is_in_key = _KEY_END.search(line) is None
            cleaned.append(MARK)
            continue
        begin = _KEY_BEGIN.search(line)
        is_in_key = begin is not None and _KEY_END.search(line, begin.end()) is None
        # Cut before the patterns run, a little longer, so that a secret at the cut is still known as one.
        cleaned.append(_cut(redact(storable(line[: MAX_LINE_BYTES + 512]))))
    return cleaned


def clean_body(value: Any, depth: int = 0) -> Any:
    """A JSON value to be stored: every text in it cleaned as ``clean_lines`` does, what is too deep left out."""
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, str):
        return "\n".join(clean_lines(value.split("\n")))
    if isinstance(value, dict):
        return {storable(str(key))[:200]: clean_body(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return clean_lines(value)
        return [clean_body(item, depth + 1) for item in value]
    return value


def storable(text: str) -> str:
    """The text as PostgreSQL takes it: no NUL, no half of a surrogate pair."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _cut(line: str) -> str:
    content = line.encode()
    if len(content) <= MAX_LINE_BYTES:
        return line
    mark = "…"
    return content[: MAX_LINE_BYTES - len(mark.encode())].decode(errors="ignore") + mark
