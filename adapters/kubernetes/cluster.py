"""A Kubernetes cluster: ``ports.Cluster`` for the executor, and what the watch follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from adapters.facts import JobFact, NamespaceFact, NodeFact, PodFact
from adapters.kubernetes import objects, translate
from adapters.kubernetes.transport import Transport
from adapters.kubernetes.watch import Page, Resource, Versioned
from recovery.errors import ClusterRefused, ClusterUnavailable, NotFound, PreconditionFailed
from recovery.ports import JobCondition, JobStatus, PodStatus, SuspendOutcome, TokenReview

FENCE_ANNOTATION = "incidentdesk.io/fence"  # "action uid/try": a later try finds what an earlier one did
PAGE_SIZE = 500
LOG_BYTES = 1024 * 1024


class KubernetesCluster:
    """``ports.Cluster`` over a transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def identity(self) -> str:
        namespace = self._get("/api/v1/namespaces/kube-system", objects.Namespace)
        if namespace is None:
            raise ClusterRefused("the cluster has no namespace kube-system: is this a Kubernetes API server?")
        return namespace.metadata.uid

    def token_keys(self) -> tuple[str, dict[str, Any]]:
        """Issuer of service-account tokens and the key set (JWKS) that signs them."""
        try:
            issuer = self.transport.read("/.well-known/openid-configuration", {})
            keys = self.transport.read("/openid/v1/jwks", {})
            return str(msgspec.json.decode(issuer)["issuer"]), dict(msgspec.json.decode(keys))
        except (NotFound, KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
            raise ClusterRefused(f"the cluster does not publish its token keys: {error}") from error

    def job(self, *, namespace: str, name: str) -> JobFact | None:
        """The job as it is at this moment, or None."""
        job = self._get(_job_path(namespace, name), objects.Job)
        return None if job is None else translate.job_fact(job)

    def job_status(self, *, namespace: str, name: str) -> JobStatus | None:
        job = self._get(_job_path(namespace, name), objects.Job)
        if job is None:
            return None
        return JobStatus(
            uid=job.metadata.uid,
            resource_version=job.metadata.resource_version,
            is_suspended=bool(job.spec.suspend),
            active=job.status.active,
            succeeded=job.status.succeeded,
            failed=job.status.failed,
            conditions=tuple(
                JobCondition(
                    each.type, each.status == "True", each.reason, each.message, each.last_transition_time
                )
                for each in job.status.conditions or ()
            ),
            annotations=dict(job.metadata.annotations or {}),
        )

    def pods(self, *, namespace: str, job_name: str) -> tuple[PodFact, ...]:
        """Pods of a job as facts, for one that became interesting after its pods were passed over."""
        facts: list[PodFact] = []
        for pod in self._pods(namespace, job_name):
            fact = translate.pod_fact(pod)
            if fact is not None:
                facts.append(fact)
        return tuple(facts)

    def pods_of_job(self, *, namespace: str, name: str, uid: str) -> tuple[PodStatus, ...]:
        found = self._pods(namespace, name)
        mine = [pod for pod in found if any(o.uid == uid for o in pod.metadata.owner_references or ())]
        return tuple(sorted((_pod_status(pod) for pod in mine), key=lambda pod: pod.name))

    def suspend_job(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        resource_version: str | None,
        annotations: Mapping[str, str],
    ) -> SuspendOutcome:
        now = self.job_status(namespace=namespace, name=name)
        if now is None or now.uid != uid:
            return SuspendOutcome.GONE
        if now.is_suspended:
            return (
                SuspendOutcome.DONE if _is_same_action(now.annotations, annotations) else SuspendOutcome.FOUND
            )
        if resource_version is not None and now.resource_version != resource_version:
            raise PreconditionFailed(
                f"job {namespace}/{name} has changed since it was read "
                f"(resource version {now.resource_version}, not {resource_version}); read it again"
            )
        metadata: dict[str, Any] = {"uid": uid, "annotations": dict(annotations)}
        if resource_version is not None:
            metadata["resourceVersion"] = resource_version
        body = {"metadata": metadata, "spec": {"suspend": True}}
        try:
            self.transport.merge_patch(_job_path(namespace, name), body, {})
        except NotFound:
            return SuspendOutcome.GONE
        return SuspendOutcome.DONE

    def review_token(self, *, token: str, audience: str) -> TokenReview:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        try:
            answer = self.transport.ask("/apis/authentication.k8s.io/v1/tokenreviews", body)
        except NotFound as error:
            raise ClusterRefused(f"the cluster reviews no tokens: {error}") from error
        return translate.token_review(_decode(answer, objects.TokenReview).status)

    def log_tail(self, *, namespace: str, pod: str, container: str, lines: int) -> tuple[str, ...]:
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(LOG_BYTES)}
        try:
            body = self.transport.read(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query)
        except NotFound:
            return ()
        return tuple(body.decode("utf-8", "replace").splitlines()[-lines:])

    def _pods(self, namespace: str, job_name: str) -> list[objects.Pod]:
        query = {"limit": str(PAGE_SIZE), "labelSelector": f"batch.kubernetes.io/job-name={job_name}"}
        found: list[objects.Pod] = []
        while True:
            body = self.transport.read(f"/api/v1/namespaces/{namespace}/pods", query)
            page = _decode(body, objects.PodList)
            found.extend(page.items or ())
            if not page.metadata.continue_:
                return found
            query["continue"] = page.metadata.continue_

    def _get[T](self, path: str, type_: type[T]) -> T | None:
        try:
            return _decode(self.transport.read(path, {}), type_)
        except NotFound:
            return None


def _decode[T](body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"answer is not a {type_.__name__}: {error}") from error


def _job_path(namespace: str, name: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


def _is_same_action(present: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    fence, ours = present.get(FENCE_ANNOTATION, ""), wanted.get(FENCE_ANNOTATION, "")
    return bool(ours) and fence.partition("/")[0] == ours.partition("/")[0]


def _pod_status(pod: objects.Pod) -> PodStatus:
    states = [each.state for each in pod.status.container_statuses or ()]
    return PodStatus(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name,
        phase=pod.status.phase,
        is_running=pod.status.phase not in ("Succeeded", "Failed")
        and (not states or any(each.terminated is None for each in states))
        and bool(pod.spec.node_name),
        is_deleting=pod.metadata.deletion_timestamp is not None,
    )


def _resource[O, T: Versioned](
    name: str, path: str, object_type: type[O], list_type: type[Any], to_fact: Callable[[O], T | None]
) -> Resource[T]:
    list_decoder = msgspec.json.Decoder(list_type)
    object_decoder = msgspec.json.Decoder(object_type)

    def decode_page(body: bytes) -> Page[T]:
        try:
            page = list_decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"list of {name} cannot be read: {error}") from error
        found = (to_fact(each) for each in page.items or ())
        return Page(
            facts=tuple(fact for fact in found if fact is not None),
            resource_version=page.metadata.resource_version,
            continue_token=page.metadata.continue_,
        )

    def decode_object(raw: msgspec.Raw) -> tuple[T | None, str]:
        decoded: Any = object_decoder.decode(raw)
        return to_fact(decoded), str(decoded.metadata.resource_version)

    return Resource(name, path, decode_page, decode_object)


NAMESPACES: Resource[NamespaceFact] = _resource(
    "namespaces", "/api/v1/namespaces", objects.Namespace, objects.NamespaceList, translate.namespace_fact
)
NODES: Resource[NodeFact] = _resource(
    "nodes", "/api/v1/nodes", objects.Node, objects.NodeList, translate.node_fact
)
JOBS: Resource[JobFact] = _resource(
    "jobs", "/apis/batch/v1/jobs", objects.Job, objects.JobList, translate.job_fact
)
PODS: Resource[PodFact] = _resource("pods", "/api/v1/pods", objects.Pod, objects.PodList, translate.pod_fact)
