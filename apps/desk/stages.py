"""The stage bar and the facts of an incident."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from apps.incidents.models import Incident, TimelineEvent


def stage_bar(incident: Incident, events: Sequence[TimelineEvent], now: datetime) -> dict[str, Any]:
    return {"stages": [], "facts": [], "stage_missing": "Nothing is measured yet.", "touched_nodes": []}
