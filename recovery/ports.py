"""What the desk asks of the world, as protocols that the adapters implement. Values are plain and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JobCondition:
    """A condition that the controller wrote on a job: Complete, Failed, Suspended, …"""

    type: str
    is_true: bool
    reason: str = ""
    message: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as the cluster shows it now. ``active`` counts pods that are not finished."""

    uid: str
    resource_version: str
    is_suspended: bool
    active: int
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[JobCondition, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodStatus:
    """A pod of a job as the cluster shows it now. ``is_running``: some container of it has not ended."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str  # Pending | Running | Succeeded | Failed | Unknown
    is_running: bool
    is_deleting: bool = False


@dataclass(frozen=True, slots=True)
class TokenReview:
    """What the cluster's own API server says of a service-account token.

    ``audiences`` are those it is good for of the ones that were asked about. Empty pod fields: the token is
    bound to no pod.
    """

    is_authentic: bool
    error: str = ""
    audiences: tuple[str, ...] = ()
    namespace: str = ""
    service_account: str = ""
    pod_name: str = ""
    pod_uid: str = ""


class SuspendOutcome(StrEnum):
    """What a suspend call found or did."""

    DONE = "done"  # this call suspended it
    FOUND = "found"  # somebody else had suspended it already
    GONE = "gone"  # no such job, or another one (uid) under its name


class Cluster(Protocol):
    """One cluster. Calls block, have a time-out of their own and may come from several processes.

    Every method raises ``ClusterUnavailable`` (for a write with ``ambiguous`` where the outcome is not
    known), ``ClusterRefused`` or, for writes, ``PreconditionFailed``.
    """

    def identity(self) -> str:
        """Uid of namespace kube-system: tells whether this is still the cluster that we know."""
        ...

    def job_status(self, *, namespace: str, name: str) -> JobStatus | None:
        """The job, or None when there is none of this name."""
        ...

    def pods_of_job(self, *, namespace: str, name: str, uid: str) -> tuple[PodStatus, ...]:
        """Pods controlled by the job with this uid, sorted by name."""
        ...

    def suspend_job(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        resource_version: str | None,
        annotations: Mapping[str, str],
    ) -> SuspendOutcome:
        """Suspend a job, on condition that it is still this one (uid, and resource version if given).

        ``annotations`` (owner, reason, link, fence: action uid and try) are written in the same patch, so
        that the cluster's audit log tells who did it and a second try finds the first.
        """
        ...

    def review_token(self, *, token: str, audience: str) -> TokenReview:
        """Let the API server judge a service-account token; nothing in the cluster changes by it."""
        ...

    def log_tail(self, *, namespace: str, pod: str, container: str, lines: int) -> tuple[str, ...]:
        """The last lines of a container's log, oldest first; empty when pod or log is gone."""
        ...


class Notifier(Protocol):
    """Carries a message to people."""

    def notify(self, *, key: str, title: str, text: str, link: str) -> None:
        """Deliver once per ``key``. Raises ``DeskError`` when it could not be delivered."""
        ...
