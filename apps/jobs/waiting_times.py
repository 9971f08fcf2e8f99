"""Waiting times that the desk tells its agents, and how they grow with the fleet. Source: DESIGN section 3."""

from __future__ import annotations

from django.conf import settings

from agent import wire

#: Polls a second that the desk takes at most: 10,000 agents then cost less than a fifth of a core.
POLLS_PER_SECOND = 500
LOST_INTERVALS = 2.5


def poll_seconds(agents: int) -> float:
    """Interval of the heartbeat for a fleet of so many agents."""
    return max(float(settings.TIMINGS["POLL_SECONDS"]), agents / POLLS_PER_SECOND)


def lost_seconds(agents: int) -> float:
    """An agent without heartbeat for so long is called silent; the pages show this bound."""
    return max(float(settings.TIMINGS["AGENT_LOST_SECONDS"]), LOST_INTERVALS * poll_seconds(agents))


def told_limits(*, agents: int, stop_grace_seconds: float) -> wire.Limits:
    """All waiting times of one job's agents, in seconds."""
    times = settings.TIMINGS
    return wire.Limits(
        poll_seconds=poll_seconds(agents),
        order_wait_seconds=times["ORDER_WAIT_SECONDS"],
        no_contact_seconds=times["NO_CONTACT_SECONDS"],
        finish_wait_seconds=times["FINISH_WAIT_SECONDS"],
        stop_grace_seconds=stop_grace_seconds,
        lost_seconds=lost_seconds(agents),
    )
