"""Published fault traces, beside the checkout; they are not part of it."""

from __future__ import annotations

import pytest

from incidentdesk.frontdoor.places import CHECKOUT

TRACES = CHECKOUT.parent / "shared" / "data" / "traces"
INFINITEHBD = TRACES / "infinitehbd"
LANL = TRACES / "lanl"

needs_traces = pytest.mark.skipif(
    not (INFINITEHBD.is_dir() and LANL.is_dir()), reason="the published traces are not beside the checkout"
)
