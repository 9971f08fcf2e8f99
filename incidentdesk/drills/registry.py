"""The drills by name. Their code needs Django, so it is loaded once the stack runs; the sentences do not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from incidentdesk.drills.field import Field


class Drill(Protocol):
    """A drill gives what it measured, or raises DrillFailed."""

    def __call__(self, field: Field, *, seed: int) -> dict[str, Any]: ...


_PLACES = {
    "kill-process": (
        "recoveries",
        "kill_process",
        "a rank is killed; all restart in place, in the same pods",
    ),
    "kill-process-reset": (
        "recoveries",
        "kill_process_reset",
        "the same where survivors see a reset at once (gloo): one count, of any worker",
    ),
    "pod-deleted": ("recoveries", "pod_deleted", "a pod is deleted by force; recreated, all restart"),
    "desk-cut-off": ("recoveries", "desk_cut_off", "agents cannot reach the desk; training is not hurt"),
    "max-retry": ("worked_example", "max_retry", "failures beyond the user's limit; the job is suspended"),
    "finish": ("recoveries", "finish", "a job does all its steps; its containers leave together"),
    "crash-points": (
        "crash_matrix",
        "crash_points",
        "who reaches a named point of a recovery is killed there",
    ),
    "kill-each": (
        "crash_matrix",
        "kill_each",
        "each process is killed, and Redis flushed, while another stands at such a point",
    ),
    "crash-matrix": ("crash_matrix", "crash_matrix", "every process and Redis at every such point (long)"),
    "sleeping-executor": ("crashes", "sleeping_executor", "an executor sleeps past its lease"),
    "sleeping-watch": ("crashes", "sleeping_watch", "the watch sleeps past its lease"),
    "random-moments": ("crashes", "random_moments", "twenty seeded moments of death (long)"),
}

DESCRIPTIONS = {name: sentence for name, (_, _, sentence) in _PLACES.items()}


class _Drills(Mapping[str, Drill]):
    def __getitem__(self, name: str) -> Drill:
        module, function, _ = _PLACES[name]
        drill: Drill = getattr(importlib.import_module(f"incidentdesk.drills.{module}"), function)
        replayed: Drill = importlib.import_module("incidentdesk.drills.replays").replayed(drill)
        return replayed

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


DRILLS: Mapping[str, Drill] = _Drills()
