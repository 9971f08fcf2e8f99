"""Suspicion of a hang: no progress for k times the run's own step time, with allowances.

Only a suspicion, and only told, with what it was judged as: the desk decides, and nothing is stopped here.
Sources: DOMAIN 8 (the first step may take 60 times as long; checkpoints and evaluation have their own time);
the other numbers are ours.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from agent.progress import Progress

FACTOR = 10.0
FIRST_STEP_FACTOR = 60.0
MIN_SECONDS = 30.0
UNKNOWN_STEP_SECONDS = 1800.0  # while no step time is known at all: compiling may take that long
CHECKPOINT_SECONDS = 900.0  # of a checkpoint that was begun: one that never ends excuses nothing after it
EVALUATION_SECONDS = 1800.0
LOOK_SECONDS = 1.0


class HangWatch:
    """Tells each standstill once. Belongs to one thread."""

    def __init__(self, min_seconds: Optional[float] = None) -> None:
        self._min_seconds = MIN_SECONDS if min_seconds is None else min_seconds
        self._step_seconds: Optional[float] = None  # of the newest run that had one
        self._told: Optional[Progress] = None
        self._told_step: Optional[int] = None

    def look(self, progress: Progress, started_at: float, now: float) -> Optional[Dict[str, Any]]:
        """Content of a Hang message if this run stands still now and that was not told yet.

        Args:
            started_at, now: Unix seconds.
        """
        if progress.lines == 0 and progress.step is None:
            return None  # a command that says nothing cannot be judged by its silence
        if progress.step_seconds is not None:
            self._step_seconds = progress.step_seconds
        known = self._step_seconds
        if progress.step_at is None:
            silent, judged_as = now - started_at, "first step"
            allowed = UNKNOWN_STEP_SECONDS if known is None else FIRST_STEP_FACTOR * known
        else:
            silent, judged_as = now - progress.step_at, "step"
            allowed = UNKNOWN_STEP_SECONDS if known is None else FACTOR * known
        for name, since, seconds in (
            ("checkpoint", progress.saving_since, CHECKPOINT_SECONDS),
            ("evaluation", progress.evaluating_since, EVALUATION_SECONDS),
        ):
            if since is not None and now - since < seconds and seconds > allowed:
                judged_as, allowed = name, seconds
        allowed = max(allowed, self._min_seconds)
        if silent < allowed:
            return None
        if self._told is progress and self._told_step == progress.step:
            return None
        self._told, self._told_step = progress, progress.step
        return {
            "seconds_since_progress": round(silent, 3),
            "step": progress.step,
            "confirmed": False,
            "judged_as": judged_as,
            "allowed_seconds": round(allowed, 3),
        }
