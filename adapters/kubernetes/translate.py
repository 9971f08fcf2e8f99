"""Kubernetes objects -> facts. Pure: no cluster is asked, no clock is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from adapters import facts
from adapters.kubernetes import objects
from recovery.ports import TokenReview

PREFIX = "incidentdesk.io/"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
MAIN_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
DEFAULT_BACKOFF_LIMIT = 6  # of batch/v1 where nothing is set

_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATION = "authentication.kubernetes.io"

DEVICE_RESOURCES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "google.com/tpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "gpu.intel.com/i915",
    "alibabacloud.com/gpu-count",
)
_MIG_PREFIX = "nvidia.com/mig-"

# First label that is set wins; ours come first, so that a site can say it its own way.
POOL_LABELS = (
    "incidentdesk.io/pool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
)
RACK_LABELS = ("incidentdesk.io/rack", "topology.kubernetes.io/rack", "cloud.google.com/gce-topology-block")
ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
GPU_TYPE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "alibabacloud.com/gpu-card-model",
)
# Hundreds of CPU features a node, and a time that changes with every scan: nobody reads them here.
_IGNORED_LABELS = ("feature.node.kubernetes.io/", "nvidia.com/gfd.timestamp")


def namespace_fact(namespace: objects.Namespace) -> facts.NamespaceFact:
    """A namespace with our annotations, without their prefix."""
    meta = namespace.metadata
    return facts.NamespaceFact(
        uid=meta.uid,
        name=meta.name,
        annotations=_ours(meta.annotations),
        resource_version=meta.resource_version,
    )


def token_review(status: objects.TokenReviewStatus) -> TokenReview:
    """What an API server says of a token. Account and pod are read of service accounts only."""
    extra = status.user.extra or {}
    user = status.user.username
    account = user.removeprefix(_ACCOUNT) if user.startswith(_ACCOUNT) else ""
    namespace, _, name = account.partition(":")
    return TokenReview(
        is_authentic=status.authenticated,
        error=status.error,
        audiences=tuple(status.audiences or ()),
        namespace=namespace,
        service_account=name,
        pod_name=_only(extra.get(f"{_AUTHENTICATION}/pod-name")),
        pod_uid=_only(extra.get(f"{_AUTHENTICATION}/pod-uid")),
    )


def _only(values: list[str] | None) -> str:
    return values[0] if values is not None and len(values) == 1 else ""


def node_fact(node: objects.Node) -> facts.NodeFact:
    """A node with its machine's identity: providerID, else system UUID, else its name, flagged weak."""
    meta, spec, status = node.metadata, node.spec, node.status
    labels = {
        key: value
        for key, value in sorted((meta.labels or {}).items())
        if not key.startswith(_IGNORED_LABELS)
    }
    key, is_weak = hardware_key(node)
    ready = next((each for each in status.conditions or () if each.type == "Ready"), None)
    return facts.NodeFact(
        uid=meta.uid,
        name=meta.name,
        hardware_key=key,
        is_key_weak=is_weak,
        boot_id=status.node_info.boot_id,
        pool=_first(labels, POOL_LABELS),
        rack=_first(labels, RACK_LABELS),
        zone=_first(labels, ZONE_LABELS),
        gpu_type=_first(labels, GPU_TYPE_LABELS),
        gpu_count=device_count(status.capacity),
        is_ready={"True": True, "False": False}.get(ready.status) if ready else None,
        ready_since=ready.last_transition_time if ready else None,
        is_cordoned=spec.unschedulable,
        taints=tuple(sorted((taint.key, taint.value, taint.effect) for taint in spec.taints or ())),
        conditions=tuple(
            facts.NodeCondition(each.type, each.status, each.reason, each.message, each.last_transition_time)
            for each in status.conditions or ()
        ),
        labels=labels,
        addresses=tuple((each.type, each.address) for each in status.addresses or ()),
        kubelet_version=status.node_info.kubelet_version,
        resource_version=meta.resource_version,
    )


def hardware_key(node: objects.Node) -> tuple[str, bool]:
    """The key of the machine below a node, and whether it is only a name."""
    if node.spec.provider_id:
        return f"provider:{node.spec.provider_id}", False
    system = node.status.node_info.system_uuid.lower()
    # Boards without a serial number answer all zeros or all ones: thousands of machines share them.
    if system and set(system) - {"-", "0"} and set(system) - {"-", "f"}:
        return f"system:{system}", False
    return f"name:{node.metadata.name}", True


def device_count(quantities: Mapping[str, str | int] | None) -> int:
    """How many training devices these quantities name; MIG slices count one each."""
    return sum(
        int(amount)
        for name, amount in (quantities or {}).items()
        if (name in DEVICE_RESOURCES or name.startswith(_MIG_PREFIX)) and str(amount).isdigit()
    )


def job_fact(job: objects.Job) -> facts.JobFact:
    """A batch job."""
    meta, spec, status = job.metadata, job.spec, job.status
    pod = spec.template.spec
    is_indexed = spec.completion_mode == "Indexed"
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    places = spec.completions if spec.completions is not None else max(parallelism, 1)
    conditions = tuple(
        facts.JobConditionFact(each.type, each.reason, each.message, each.last_transition_time)
        for each in status.conditions or ()
        if each.status == "True"
    )
    ended = next((each for each in conditions if each.type in ("Complete", "Failed")), None)
    limit = spec.backoff_limit
    if limit is None and spec.backoff_limit_per_index is None:
        limit = DEFAULT_BACKOFF_LIMIT
    return facts.JobFact(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        kind="Job",
        annotations=_ours(meta.annotations),
        world_size=places,
        is_indexed=is_indexed,
        gpus_per_worker=sum(_devices_asked(each) for each in pod.containers or ()),
        restart_policy=pod.restart_policy,
        backoff_limit=limit,
        backoff_limit_per_index=spec.backoff_limit_per_index,
        active_deadline_seconds=spec.active_deadline_seconds,
        failure_policy=tuple(_failure_rules(spec.pod_failure_policy)),
        is_suspended=bool(spec.suspend),
        suspend_set_by=_suspend_set_by(meta.managed_fields),
        is_deleting=meta.deletion_timestamp is not None,
        failed_pods=status.failed,
        conditions=conditions,
        created_at=meta.creation_timestamp,
        ended_at=(status.completion_time or ended.at) if ended else None,
        resource_version=meta.resource_version,
    )


def pod_fact(pod: objects.Pod) -> facts.PodFact | None:
    """A pod that a batch job controls, or None for any other."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    owner = next(
        (each for each in meta.owner_references or () if each.controller and each.kind == "Job"), None
    )
    if owner is None:
        return None
    annotations = meta.annotations or {}
    index = annotations.get(INDEX_ANNOTATION) or (meta.labels or {}).get(INDEX_ANNOTATION, "")
    conditions = {each.type: each for each in status.conditions or ()}
    target = conditions.get("DisruptionTarget")
    disruption = None
    if target is not None and target.status == "True":
        disruption = facts.Disruption(target.reason, target.message)
    elif status.reason:
        disruption = facts.Disruption(status.reason, status.message)
    scheduled = conditions.get("PodScheduled")
    unschedulable = None
    if scheduled is not None and scheduled.status == "False" and scheduled.reason == "Unschedulable":
        unschedulable = facts.Disruption(scheduled.reason, scheduled.message)
    statuses = {each.name: each for each in status.container_statuses or ()}
    asked_at = meta.deletion_timestamp
    if asked_at is not None:
        asked_at -= timedelta(seconds=meta.deletion_grace_period_seconds or 0)
    return facts.PodFact(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        job_uid=owner.uid,
        job_name=owner.name,
        index=int(index) if index.isdigit() else None,
        node=spec.node_name,
        ip=status.pod_ip,
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        service_account=spec.service_account_name,
        containers=tuple(
            container_fact(each.name, statuses.get(each.name)) for each in spec.containers or ()
        ),
        main_container=_main_container(annotations, spec),
        created_at=meta.creation_timestamp,
        deleting_at=meta.deletion_timestamp,
        delete_asked_at=asked_at,
        disruption=disruption,
        unschedulable=unschedulable,
        resource_version=meta.resource_version,
    )


def container_fact(name: str, status: objects.ContainerStatus | None) -> facts.ContainerFact:
    """A container with the ends that its status still tells of: at most its last life and the one before.

    The restart count is that of the newest life that was created. While a container runs (or has ended)
    its last state is the life before; while it waits for the next start, its last state is that newest life.
    """
    if status is None:
        return facts.ContainerFact(name)
    count, state = status.restart_count, status.state
    ends = []
    if (last := status.last_state.terminated) is not None:
        restart = count if state.running is None and state.terminated is None else count - 1
        ends.append(_end(max(restart, 0), last))
    if state.terminated is not None:
        ends.append(_end(count, state.terminated))
        word, reason, message = "terminated", state.terminated.reason, _text(state.terminated.message)
    elif state.running is not None:
        word, reason, message = "running", "", ""
    else:
        word = "waiting"
        reason, message = (state.waiting.reason, state.waiting.message) if state.waiting else ("", "")
    return facts.ContainerFact(
        name=name,
        restart_count=count,
        state=word,
        reason=reason,
        message=message,
        started_at=state.running.started_at if state.running else None,
        ends=tuple(ends),
    )


def _end(restart: int, state: objects.Terminated) -> facts.ContainerEnd:
    return facts.ContainerEnd(
        restart=restart,
        exit_code=state.exit_code,
        signal=state.signal or (state.exit_code - 128 if 128 < state.exit_code < 160 else 0),
        reason=state.reason,
        message=_text(state.message),
        started_at=state.started_at,
        finished_at=state.finished_at,
    )


def _text(message: str) -> str:
    """A message that containers may write themselves: databases do not take a zero character."""
    return message.replace("\0", "")


def _main_container(annotations: Mapping[str, str], spec: objects.PodSpec) -> str:
    """The container that trains: the one named by the annotation, else with devices, else the first."""
    containers = spec.containers or []
    names = [each.name for each in containers]
    if (named := annotations.get(MAIN_CONTAINER_ANNOTATION)) in names:
        return str(named)
    with_devices = [each.name for each in containers if _devices_asked(each)]
    return (with_devices or names or [""])[0]


def _devices_asked(container: objects.Container) -> int:
    return max(device_count(container.resources.limits), device_count(container.resources.requests))


def _failure_rules(policy: objects.PodFailurePolicy | None) -> Iterable[facts.FailurePolicyRule]:
    for rule in (policy.rules or ()) if policy else ():
        codes = rule.on_exit_codes
        yield facts.FailurePolicyRule(
            action=rule.action,
            operator=codes.operator if codes else "",
            exit_codes=tuple(codes.values or ()) if codes else (),
            conditions=tuple(each.type for each in rule.on_pod_conditions or ()),
        )


def _suspend_set_by(managed: list[objects.ManagedField] | None) -> str:
    """Who wrote spec.suspend last, as the API server keeps it; "" where it does not."""
    owners = [each for each in managed or () if b'"f:suspend"' in bytes(each.fields_v1)]
    owners.sort(key=lambda each: each.time.timestamp() if each.time else 0.0)
    return owners[-1].manager if owners else ""


def _ours(annotations: Mapping[str, str] | None) -> dict[str, str]:
    return {
        key.removeprefix(PREFIX): value
        for key, value in sorted((annotations or {}).items())
        if key.startswith(PREFIX)
    }


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
