"""How long the agent waits for what: as the desk says, else the environment, else these defaults."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, cast

from agent.settings import Settings

# Seconds; DOMAIN 3, DESIGN 3.
ORDER_WAIT_SECONDS = 20.0
NO_CONTACT_SECONDS = 60.0
FINISH_WAIT_SECONDS = 300.0
STOP_GRACE_SECONDS = 5.0


class Limits:
    """Waiting times in seconds. Belongs to the loop's thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._told: Dict[str, float] = {}

    def take(self, told: Optional[Mapping[str, Any]]) -> None:
        """What an answer of the desk says; what it leaves out stays as it was told before."""
        self._told.update(cast("Dict[str, float]", told or {}))

    @property
    def order_wait_seconds(self) -> float:
        return self._of("order_wait_seconds", ORDER_WAIT_SECONDS)

    @property
    def finish_wait_seconds(self) -> float:
        return self._of("finish_wait_seconds", FINISH_WAIT_SECONDS)

    @property
    def no_contact_seconds(self) -> float:
        """The one that counts before the desk was ever heard: here the environment goes first."""
        own = self._settings.no_contact_seconds
        return own if own is not None else float(self._told.get("no_contact_seconds", NO_CONTACT_SECONDS))

    def stop_grace_seconds(self, content: Dict[str, Any]) -> float:
        """From SIGTERM to SIGKILL; an order's own word goes first."""
        told = content.get("grace_seconds")
        if isinstance(told, (int, float)) and told >= 0:
            return float(told)
        return self._of("stop_grace_seconds", STOP_GRACE_SECONDS)

    def _of(self, name: str, default: float) -> float:
        told = self._told.get(name)
        if told is not None:
            return float(told)
        own: Optional[float] = getattr(self._settings, name)
        return own if own is not None else default
