"""After every drill: its stored decisions, made once more, come out as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Max

from apps.incidents.models import Decision
from apps.incidents.policy import current_policy
from apps.incidents.services.replaying import replay_after
from incidentdesk.drills.field import Field, expect


def replayed(drill: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The drill, failing also when one of the decisions made meanwhile comes out otherwise in a replay."""

    def run(field: Field, *, seed: int) -> dict[str, Any]:
        newest = Decision.objects.aggregate(newest=Max("pk"))["newest"] or 0
        result = drill(field, seed=seed)
        count, different = replay_after(newest, current_policy())
        expect(not different, f"replayed otherwise than stored: {'; '.join(map(str, different[:3]))}")
        field.say(f"{count} decisions replayed, no difference")
        return {**result, "replayed": count}

    return run
