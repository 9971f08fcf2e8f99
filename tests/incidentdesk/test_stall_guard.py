"""A worker that lost an acknowledgement takes no task any more, and must not live on like that."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from incidentdesk.celery import PATIENCE, StallGuard, app


@pytest.fixture(autouse=True)
def unharmed() -> Iterator[None]:
    yield
    state.should_terminate = None


def consumer(*, may_take: bool) -> Any:
    qos = SimpleNamespace(can_consume=lambda: may_take)
    return SimpleNamespace(task_consumer=SimpleNamespace(channel=SimpleNamespace(qos=qos)))


def test_is_part_of_every_worker() -> None:
    assert StallGuard in app.steps["consumer"]


def test_stalled_worker_ends() -> None:
    guard = StallGuard(None)
    for _ in range(PATIENCE - 1):
        guard.look(consumer(may_take=False))
    assert state.should_terminate is None
    guard.look(consumer(may_take=False))
    assert state.should_terminate == 1


def test_full_worker_and_one_that_went_on_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = StallGuard(None)
    for may_take in (False, False, True) * 3:
        guard.look(consumer(may_take=may_take))
    monkeypatch.setattr(state, "reserved_requests", {"a task that runs"})
    for _ in range(PATIENCE * 3):
        guard.look(consumer(may_take=False))
    assert state.should_terminate is None
