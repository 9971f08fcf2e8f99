"""How far an agent's clock is from ours, from messages that only tell when they were sent.

``sent_at - received_at`` is the offset less the time on the way, which is never below zero: so the largest
of the last few samples is the best estimate, and how far the usual one lies below it tells how much the
way varies. A clock that is set anew is followed once the old samples have left the window.
"""

from __future__ import annotations

from collections import deque
from statistics import median

#: Year 2201: no clock shows more, and the difference of two such clocks still is a date.
MOST_UNIX_SECONDS = 7.3e9
WINDOW = 8
FEW = 3
FEW_UNCERTAINTY_SECONDS = 0.5
LEAST_UNCERTAINTY_SECONDS = 0.005


class ClockOffset:
    """The offset of one agent, from its last ``WINDOW`` messages."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=WINDOW)

    def add(self, *, sent_at: float, received_at: float) -> None:
        """Add a message: sent by the agent's clock, received by ours, in Unix seconds."""
        self._samples.append(sent_at - received_at)

    @property
    def seconds(self) -> float:
        """The agent's clock minus ours; 0 before the first message."""
        return max(self._samples, default=0.0)

    @property
    def uncertainty_seconds(self) -> float:
        """Half of the width in which the true offset is to be looked for, as far as samples can tell."""
        if len(self._samples) < FEW:
            return FEW_UNCERTAINTY_SECONDS
        return max(LEAST_UNCERTAINTY_SECONDS, self.seconds - median(self._samples))
