"""One tree of errors, raised by the core, the services and the adapters."""


class DeskError(Exception):
    """Base of all our errors. The text tells what happened, to what, and what to do next."""

    code = "desk_error"


class InvalidTransition(DeskError):
    """A state change that its table does not have; answered as 409 with the present state."""

    code = "invalid_transition"


class NotFound(DeskError):
    """No such row, or one of another tenant (which is the same to the asker)."""

    code = "not_found"


class Conflict(DeskError):
    """Somebody else changed it meanwhile, or a key was used again with another body."""

    code = "conflict"


class BadInput(DeskError):
    """Input that cannot be used; ``field`` names where."""

    code = "bad_input"

    def __init__(self, detail: str, *, field: str = "") -> None:
        super().__init__(detail)
        self.field = field


class SubjectBusy(DeskError):
    """The subject's lock was not had within the time that a person may wait (2 s)."""

    code = "subject_busy"


class ClusterError(DeskError):
    """Base of what a cluster adapter raises."""

    code = "cluster_error"


class ClusterUnavailable(ClusterError):
    """No answer, a time-out or a 5xx. For a write the outcome is unknown: ``ambiguous`` says so."""

    code = "cluster_unavailable"

    def __init__(
        self, detail: str, *, ambiguous: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(detail)
        self.ambiguous = ambiguous
        self.retry_after_seconds = retry_after_seconds


class PreconditionFailed(ClusterError):
    """The object is another one by now (uid or resourceVersion), or gone. Never to be repeated as it was."""

    code = "precondition_failed"


class ClusterRefused(ClusterError):
    """A final no: forbidden, invalid, or held back by a disruption budget (``blocked_by`` names it)."""

    code = "cluster_refused"

    def __init__(self, detail: str, *, blocked_by: str = "") -> None:
        super().__init__(detail)
        self.blocked_by = blocked_by


class WatchExpired(ClusterError):
    """The resourceVersion (or continue token) is too old: list again and compare. HTTP 410."""

    code = "watch_expired"
