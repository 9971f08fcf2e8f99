"""Commands that show what others wrote: a terminal obeys nothing of it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from apps.incidents.management.commands import replay
from apps.incidents.services.replaying import Difference

CODES = "\x1b]0;pwned\x07"
SHOWN = r"\x1b]0;pwned\x07"


def test_replay_shows_subjects_rules_and_places_as_they_are() -> None:
    places = (f"incident.{CODES} is new", f"verdict.{CODES} was 'password=hunter22', is 'a'")
    rows = replay._table([Difference(1, f"job {CODES}", 7, places, None, CODES, CODES)], full=True)
    assert sum(row.count(SHOWN) for row in rows) == 5
    assert all(row.isprintable() for row in rows)
    assert "hunter22" not in "".join(rows)


@pytest.mark.parametrize("words", [("backtest",), ("economics", "mtbf")])
def test_trace_that_is_none_is_told_without_its_codes(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / f"{CODES}.json"
    file.write_text("{}")
    with pytest.raises(CommandError) as refused:
        call_command(*words, str(file), stdout=StringIO(), stderr=StringIO())
    assert SHOWN in str(refused.value)
    assert str(refused.value).isprintable()
