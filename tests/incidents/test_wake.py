"""Waking is a hint: with Redis away it fails fast, once, and raises nothing."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app
from redis.exceptions import TimeoutError as RedisTimeoutError

from apps.incidents import wake


def test_lost_wake_up_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    now = 1000.0

    def send_task(task: str, *, args: list[int], **_: Any) -> None:
        tried.append(args[0])
        if now < 1001.0:
            raise RedisTimeoutError("Timeout reading from socket")

    monkeypatch.setattr(current_app, "send_task", send_task)
    monkeypatch.setattr(wake, "_quiet_until", 0.0)
    monkeypatch.setattr("apps.incidents.wake.time.monotonic", lambda: now)
    wake.wake_subjects([1, 2])
    assert tried == [1]
    wake.wake_actions([3])
    assert tried == [1]
    now += wake.QUIET_SECONDS
    wake.wake_subjects([4, 5])
    assert tried == [1, 4, 5]
