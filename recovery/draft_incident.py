"""The subject's incident as a decision goes on."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from recovery.lifecycle import (
    OPEN_INCIDENT_STATES,
    IncidentState,
    Resolution,
    Severity,
    WaitingFor,
    incident_path,
)
from recovery.records import IncidentChange, SubjectState

_SEVERITIES = list(Severity)  # highest first


class IncidentDraft:
    """The subject's incident as the decision goes on; ``change`` gives what became of it, None = nothing."""

    def __init__(self, state: SubjectState) -> None:
        view = state.incident
        self.was_open = view is not None and view.state in OPEN_INCIDENT_STATES
        self.state: IncidentState | None = view.state if view else None
        self.severity: Severity | None = view.severity if view else None
        self.rung = view.rung if view else ""
        self.waiting_for = view.waiting_for if view else None
        self.state_since = view.state_since if view else None
        self.resolved_at = view.resolved_at if view else None
        self.causes: tuple[str, ...] = view.causes if view else ()
        self.watching_from_step = view.watching_from_step if view else None
        self.seen_failed_at = view.seen_failed_at if view else None
        self._fields: dict[str, Any] = {}
        self._path: list[IncidentState] = []
        self._causes: list[tuple[str, str]] = []
        self._known_as: dict[str, tuple[str, str]] = {}
        self._renames: list[tuple[str, str, str]] = []

    @property
    def is_open(self) -> bool:
        """Whether people follow it now."""
        return self.state in OPEN_INCIDENT_STATES

    def set(self, **fields: Any) -> None:
        """Change columns; only those of IncidentChange."""
        for name, value in fields.items():
            if name in {"severity", "rung", "watching_from_step", "seen_failed_at"}:
                setattr(self, name, value)
            self._fields[name] = value

    def passed(self, state: IncidentState, now: datetime) -> None:
        """It came into a state."""
        self.state, self.state_since, self.waiting_for = state, now, None
        self._path.append(state)

    def bring(
        self,
        to: IncidentState,
        now: datetime,
        *,
        waiting_for: WaitingFor | None,
        waiting_until: datetime | None,
        resolution: Resolution | None,
    ) -> tuple[IncidentState, ...]:
        """Bring it into a state, through its table. Gives the states that it came into, in order."""
        if self.state is None:
            return ()
        if self.state is to:
            if to is IncidentState.WAITING and self.waiting_for is not waiting_for:
                self._wait(waiting_for, waiting_until)
            return ()
        path = incident_path(self.state, to)
        for state in path:
            if state is IncidentState.RESOLVED:
                self.set(resolution=resolution or Resolution.RECOVERED)
                self.resolved_at = now
            self.passed(state, now)
            if state is IncidentState.WAITING:
                self._wait(waiting_for, waiting_until)
        return path

    def _wait(self, waiting_for: WaitingFor | None, until: datetime | None) -> None:
        self.set(waiting_for=waiting_for, waiting_until=until)
        self.waiting_for = waiting_for

    def raise_severity(self, severity: Severity) -> None:
        """At least this severe; never less than it was."""
        if self.severity is None or _SEVERITIES.index(severity) < _SEVERITIES.index(self.severity):
            self.set(severity=severity)

    def take_back(self) -> None:
        """It was resolved a moment ago, in this very decision, and something newer has come."""
        self._fields.pop("resolution", None)
        self.resolved_at = None

    def begin(self, now: datetime) -> None:
        """A new one opens; a resolved one can only close."""
        closes_resolved = self.state is IncidentState.RESOLVED
        self.causes, self.rung, self.severity, self.watching_from_step = (), "", None, None
        self.state, self.state_since = None, now
        self._path, self._causes, self._renames = [], [], []
        self._fields = {"opens": True, "closes_resolved": closes_resolved}

    def join(self, category: str, text: str) -> None:
        """A cause joins."""
        category, text = self._known_as.get(category, (category, text))
        if category not in self.causes:
            self.causes = (*self.causes, category)
        self._causes.append((category, text))

    def rename_cause(self, so_far: str, category: str, text: str) -> None:
        """What a cause was called until now is known by another name."""
        self._known_as[so_far] = (category, text)
        if so_far in self.causes:
            self.causes = tuple(category if each == so_far else each for each in self.causes)
            self._renames.append((so_far, category, text))

    @property
    def change(self) -> IncidentChange | None:
        """What became of it."""
        if not (self._fields or self._path or self._causes or self._renames):
            return None
        return IncidentChange(
            state=self._path[-1] if self._path else None,
            path=tuple(self._path),
            causes=tuple(self._causes),
            renamed_causes=tuple(self._renames),
            **self._fields,
        )
