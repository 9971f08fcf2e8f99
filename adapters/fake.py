"""The cluster port in memory, for tests. It answers as the real one does; one contract suite runs on both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recovery.errors import ClusterError, PreconditionFailed
from recovery.ports import JobStatus, PodStatus, SuspendOutcome, TokenReview

FENCE_ANNOTATION = "incidentdesk.io/fence"


@dataclass
class FakeCluster:
    """A cluster of jobs, pods and logs by key.

    ``fails_next`` is raised by the next call of any kind, before it does anything; ``fails_after_next``
    by the next write, after it was done (an ambiguous outcome). ``writes`` is the audit log.
    """

    system_uid: str = "fake-system"
    jobs: dict[tuple[str, str], JobStatus] = field(default_factory=dict)
    pods: dict[tuple[str, str], list[PodStatus]] = field(default_factory=dict)  # by job
    logs: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)  # namespace, pod, container
    tokens: dict[str, TokenReview] = field(default_factory=dict)  # by token, with all audiences it is for
    writes: list[tuple[str, str, str]] = field(default_factory=list)  # verb, namespace/name, fence
    fails_next: ClusterError | None = None
    fails_after_next: ClusterError | None = None

    def identity(self) -> str:
        self._maybe_fail()
        return self.system_uid

    def job_status(self, *, namespace: str, name: str) -> JobStatus | None:
        self._maybe_fail()
        return self.jobs.get((namespace, name))

    def pods_of_job(self, *, namespace: str, name: str, uid: str) -> tuple[PodStatus, ...]:
        self._maybe_fail()
        job = self.jobs.get((namespace, name))
        if job is None or job.uid != uid:
            return ()
        return tuple(sorted(self.pods.get((namespace, name), ()), key=lambda pod: pod.name))

    def suspend_job(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        resource_version: str | None,
        annotations: Mapping[str, str],
    ) -> SuspendOutcome:
        self._maybe_fail()
        job = self.jobs.get((namespace, name))
        if job is None or job.uid != uid:
            return SuspendOutcome.GONE
        fence = annotations.get(FENCE_ANNOTATION, "")
        if job.is_suspended:
            before = job.annotations.get(FENCE_ANNOTATION, "")
            is_ours = bool(fence) and before.partition("/")[0] == fence.partition("/")[0]
            return SuspendOutcome.DONE if is_ours else SuspendOutcome.FOUND
        if resource_version is not None and job.resource_version != resource_version:
            raise PreconditionFailed(f"job {namespace}/{name} has changed since it was read")
        self.jobs[namespace, name] = replace(
            job,
            is_suspended=True,
            active=0,
            resource_version=str(int(job.resource_version) + 1),
            annotations={**job.annotations, **annotations},
        )
        self.pods[namespace, name] = []
        self.writes.append(("suspend", f"{namespace}/{name}", fence))
        failure, self.fails_after_next = self.fails_after_next, None
        if failure is not None:
            raise failure
        return SuspendOutcome.DONE

    def review_token(self, *, token: str, audience: str) -> TokenReview:
        self._maybe_fail()
        found = self.tokens.get(token)
        if found is None:
            return TokenReview(is_authentic=False, error="invalid bearer token")
        if audience not in found.audiences:
            return TokenReview(is_authentic=False, error=f"the token is not for the audience {audience}")
        return replace(found, audiences=(audience,))

    def log_tail(self, *, namespace: str, pod: str, container: str, lines: int) -> tuple[str, ...]:
        self._maybe_fail()
        return tuple(self.logs.get((namespace, pod, container), [])[-lines:])

    def _maybe_fail(self) -> None:
        failure, self.fails_next = self.fails_next, None
        if failure is not None:
            raise failure
