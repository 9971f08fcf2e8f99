"""Who may read the metrics without a token."""

from __future__ import annotations

from typing import Any

import pytest

from incidentdesk import health


@pytest.mark.parametrize(
    ("client", "header", "is_demo", "is_open"),
    [
        ("127.0.0.1", b"", True, True),
        ("::1", b"", True, True),
        ("127.0.0.1", b"", False, False),
        ("10.0.0.1", b"", True, False),
        ("127.0.0.1", b"x-forwarded-for", True, False),
        ("127.0.0.1", b"forwarded", True, False),
    ],
)
def test_only_the_demos_metrics_are_open_on_its_own_machine(
    client: str, header: bytes, is_demo: bool, is_open: bool, settings: Any
) -> None:
    settings.METRICS_ARE_OPEN = is_demo
    scope = {"client": (client, 1), "headers": [(header, b"10.0.0.1")]}
    assert health.is_open(scope) is is_open
