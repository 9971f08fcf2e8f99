"""Agents' tokens and the clock offset."""

from __future__ import annotations

import pytest

from apps.jobs import tokens
from apps.jobs.clock_offset import ClockOffset


def test_token_says_what_was_put_in() -> None:
    plain, expires_at = tokens.issue(job_id=7, incarnation_id=9, now=1000.5)
    token = tokens.read(plain, now=1001)
    assert token is not None
    assert (token.job_id, token.incarnation_id, token.expires_at) == (7, 9, expires_at)
    assert expires_at == 1000 + 15 * 60


def test_token_wears_at_half_life_and_ends() -> None:
    plain, expires_at = tokens.issue(job_id=7, incarnation_id=9, now=1000)
    token = tokens.read(plain, now=1000)
    assert token is not None
    assert not token.is_worn(1000 + 449)
    assert token.is_worn(1000 + 451)
    assert tokens.read(plain, now=expires_at - 1) is not None
    assert tokens.read(plain, now=expires_at) is None


@pytest.mark.parametrize("change", ["ida1.8", "ida2.7", "ida1.٧"])
def test_changed_token_is_nobodys(change: str) -> None:
    plain, _ = tokens.issue(job_id=7, incarnation_id=9, now=1000)
    assert tokens.read(plain.replace("ida1.7", change), now=1000) is None
    assert tokens.read(plain[:-1], now=1000) is None


@pytest.mark.parametrize("text", ["", "ida1", "ida1.", "ida1.1.2.3.4", "ida1.x.y.z.é", "é"])
def test_nonsense_is_nobodys_token(text: str) -> None:
    assert tokens.read(text, now=0) is None


def test_old_key_is_still_good_while_it_is_a_fallback(settings: pytest.FixtureRequest) -> None:
    plain, _ = tokens.issue(job_id=7, incarnation_id=9, now=1000)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", [settings.SECRET_KEY]  # type: ignore[attr-defined]
    assert tokens.read(plain, now=1000) is not None
    settings.SECRET_KEY_FALLBACKS = []  # type: ignore[attr-defined]
    assert tokens.read(plain, now=1000) is None


def test_offset_is_that_of_the_quickest_message() -> None:
    offset = ClockOffset()
    for delay in (0.4, 0.02, 0.05, 0.3):
        offset.add(sent_at=1000 + 120, received_at=1000 + delay)
    assert offset.seconds == pytest.approx(120 - 0.02)
    assert offset.uncertainty_seconds >= 0.02


def test_offset_follows_a_clock_that_was_set_back() -> None:
    offset = ClockOffset()
    for _ in range(8):
        offset.add(sent_at=1120, received_at=1000)
    for _ in range(8):
        offset.add(sent_at=1000, received_at=1000)
    assert offset.seconds == 0


def test_few_messages_tell_little() -> None:
    offset = ClockOffset()
    assert offset.seconds == 0
    offset.add(sent_at=5, received_at=5)
    assert offset.uncertainty_seconds >= 0.5
