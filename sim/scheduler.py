"""Places pods on nodes: resources, taints, selectors, required affinity. Wakes on changes, polls nothing."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sim.admission import rfc3339
from sim.errors import ApiError, Conflict, NotFound
from sim.events import EventRecorder
from sim.quantities import pod_requests, thousandths
from sim.store import Store, iterate
from sim.taints import untolerated
from sim.watch import Change

logger = logging.getLogger(__name__)

ACTOR = "system:kube-scheduler"
NAME = "default-scheduler"


@dataclass
class NodeState:
    """One node as the scheduler sees it, with the pods that are bound to it."""

    node: Mapping[str, Any]
    pods: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node["metadata"].get("labels") or {}

    def free(self) -> dict[str, int]:
        """Allocatable minus what the bound pods request, in thousandths."""
        left = {
            name: thousandths(quantity)
            for name, quantity in ((self.node.get("status") or {}).get("allocatable") or {}).items()
        }
        for pod in self.pods:
            for name, amount in pod_requests(pod["spec"]).items():
                left[name] = left.get(name, 0) - amount
        return left


def why_not(pod: Mapping[str, Any], state: NodeState, all_nodes: Sequence[NodeState]) -> str | None:
    """Why the pod cannot run there, in the words of kube-scheduler; None when it can. Pure."""
    spec = pod["spec"]
    if spec.get("nodeName") and spec["nodeName"] != state.name:
        return "node(s) didn't match the requested node name"
    node_spec = state.node.get("spec") or {}
    taints = list(node_spec.get("taints") or [])
    if node_spec.get("unschedulable"):
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        if untolerated([cordon], spec.get("tolerations") or [], ("NoSchedule",)):
            return "node(s) were unschedulable"
    taint = untolerated(taints, spec.get("tolerations") or [], ("NoSchedule", "NoExecute"))
    if taint is not None:
        return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if not _selected(spec, state):
        return "node(s) didn't match Pod's node affinity/selector"
    for name, amount in pod_requests(spec).items():
        if amount > state.free().get(name, 0):
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    affinity = spec.get("affinity") or {}
    for term in _required(affinity.get("podAntiAffinity")):
        if _domain_has(term, pod, state, all_nodes):
            return "node(s) didn't match pod anti-affinity rules"
    for term in _required(affinity.get("podAffinity")):
        # The first pod of a group that wants to be with itself may go anywhere.
        anywhere = any(_matches(term, pod, other) for each in all_nodes for other in each.pods)
        if not _domain_has(term, pod, state, all_nodes) and (anywhere or not _matches(term, pod, pod)):
            return "node(s) didn't match pod affinity rules"
    return None


def _selected(spec: Mapping[str, Any], state: NodeState) -> bool:
    if any(state.labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return True
    return any(_term_holds(term, state) for term in required.get("nodeSelectorTerms") or [])


def _term_holds(term: Mapping[str, Any], state: NodeState) -> bool:
    expressions = term.get("matchExpressions") or []
    by_field = term.get("matchFields") or []
    if not expressions and not by_field:
        return False  # an empty term matches nothing
    return all(_expression_holds(each, state.labels) for each in expressions) and all(
        _expression_holds(each, {"metadata.name": state.name}) for each in by_field
    )


def _expression_holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = (
        expression["key"],
        expression["operator"],
        expression.get("values") or [],
    )
    found = labels.get(key)
    if operator == "In":
        return found in values
    if operator == "NotIn":
        return found not in values
    if operator == "Exists":
        return found is not None
    if operator == "DoesNotExist":
        return found is None
    if found is None or not found.lstrip("-").isdigit():
        return False
    return int(found) > int(values[0]) if operator == "Gt" else int(found) < int(values[0])


def _required(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return list((part or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or [])


def _domain_has(
    term: Mapping[str, Any],
    pod: Mapping[str, Any],
    state: NodeState,
    all_nodes: Sequence[NodeState],
) -> bool:
    """Whether a pod that the term means runs in the node's topology domain."""
    key = term["topologyKey"]
    domain = state.labels.get(key)
    if domain is None:
        return False
    return any(
        _matches(term, pod, other)
        for each in all_nodes
        if each.labels.get(key) == domain
        for other in each.pods
    )


def _matches(term: Mapping[str, Any], pod: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    namespaces = term.get("namespaces") or [pod["metadata"]["namespace"]]
    if other["metadata"]["namespace"] not in namespaces:
        return False
    labels = other["metadata"].get("labels") or {}
    selector = term.get("labelSelector")
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _expression_holds(each, labels) for each in selector.get("matchExpressions") or []
    )


def choose(pod: Mapping[str, Any], nodes: Sequence[NodeState]) -> tuple[str | None, str]:
    """The node for a pod, or None and the sentence of FailedScheduling. Pure.

    Most GPUs free first, then fewest pods, then by name: the same state gives the same answer.
    """
    refused: Counter[str] = Counter()
    possible = []
    for state in nodes:
        reason = why_not(pod, state, nodes)
        if reason is None:
            possible.append(state)
        else:
            refused[reason] += 1
    if possible:
        best = min(
            possible,
            key=lambda s: (-s.free().get("nvidia.com/gpu", 0), len(s.pods), s.name),
        )
        return best.name, ""
    told = ", ".join(sorted(f"{count} {reason}" for reason, count in refused.items()))
    return None, f"0/{len(nodes)} nodes are available: {told or 'no nodes'}."


class Scheduler:
    """Binds pending pods of the default scheduler, by priority and then age."""

    def __init__(self, store: Store, events: EventRecorder) -> None:
        self._store = store
        self._events = events
        self._inbox: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._run, name="sim-scheduler", daemon=True)

    def tell(self, change: Change) -> None:
        """Wake for what can make a pending pod placeable: a new pod, a pod that left, a changed node."""
        if change.kind == "Pod":
            is_new = change.type == "ADDED"
            ended = change.type == "DELETED" or change.entry.fields["status.phase"] in (
                "Succeeded",
                "Failed",
            )
            if not is_new and not ended:
                return
        elif change.kind != "Node" or not _node_matters(change):
            return
        self._inbox.put(self._place_all)

    def stop(self) -> None:
        self._inbox.put(None)
        self.thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            work = self._inbox.get()
            # A burst of changes is one round.
            while not self._inbox.empty() and work is not None:
                work = self._inbox.get()
            if work is None:
                return
            try:
                work()
            except Exception:  # outermost loop: one bad pod must not end scheduling for all others
                logger.exception("scheduler: round not finished")

    def _place_all(self) -> None:
        pending, nodes = self._survey()
        for pod in pending:
            try:
                node, message = choose(pod, nodes)
            except (ValueError, KeyError, TypeError) as error:
                node, message = (
                    None,
                    f"0/{len(nodes)} nodes are available: the pod cannot be read ({error!r}).",
                )
            if node is None:
                self._refuse(pod, message)
            else:
                self._bind(pod, node)
                next(state for state in nodes if state.name == node).pods.append(pod)

    def _survey(self) -> tuple[list[dict[str, Any]], list[NodeState]]:
        states = {node["metadata"]["name"]: NodeState(node) for node in iterate(self._store, "Node")}
        pending = []
        for pod in iterate(self._store, "Pod"):
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            bound = pod["spec"].get("nodeName")
            if bound in states:
                with suppress(ValueError):  # bound by somebody else, with amounts that nobody can read
                    pod_requests(pod["spec"])
                    states[bound].pods.append(pod)
            elif (
                not bound
                and pod["spec"].get("schedulerName") == NAME
                and not pod["spec"].get("schedulingGates")
                and not pod["metadata"].get("deletionTimestamp")
            ):
                pending.append(pod)
        pending.sort(
            key=lambda p: (
                -int(p["spec"].get("priority") or 0),
                p["metadata"]["creationTimestamp"],
                p["metadata"]["name"],
            )
        )
        return pending, [states[name] for name in sorted(states)]

    def _bind(self, pod: Mapping[str, Any], node: str) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        try:
            self._store.bind(namespace, name, node, actor=ACTOR, uid=pod["metadata"]["uid"])
        except (NotFound, Conflict):
            return  # deleted or bound by somebody else meanwhile
        message = f"Successfully assigned {namespace}/{name} to {node}"
        self._events.record(pod, reason="Scheduled", message=message, component=NAME, actor=ACTOR)

    def _refuse(self, pod: Mapping[str, Any], message: str) -> None:
        now = rfc3339(self._store.clock())

        def change(fresh: dict[str, Any]) -> dict[str, Any] | None:
            conditions = (fresh.setdefault("status", {})).get("conditions") or []
            old: dict[str, Any] = next((c for c in conditions if c["type"] == "PodScheduled"), {})
            if old.get("message") == message:
                return None
            told = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
                "lastProbeTime": None,
                "lastTransitionTime": old.get("lastTransitionTime", now),
            }
            fresh["status"]["conditions"] = [
                *(c for c in conditions if c["type"] != "PodScheduled"),
                told,
            ]
            return fresh

        metadata = pod["metadata"]
        try:
            self._store.mutate(
                "Pod",
                metadata["namespace"],
                metadata["name"],
                change,
                actor=ACTOR,
                subresource="status",
                uid=metadata["uid"],
            )
        except ApiError:
            return
        self._events.record(
            pod,
            reason="FailedScheduling",
            message=message,
            component=NAME,
            actor=ACTOR,
            warning=True,
        )


def _node_matters(change: Change) -> bool:
    """A heartbeat moves nothing; spec, labels and allocatable do."""
    old = change.old
    if old is None or change.type == "DELETED":
        return True
    new = change.object
    same_status = (old.get("status") or {}).get("allocatable") == (new.get("status") or {}).get("allocatable")
    same_labels = old["metadata"].get("labels") == new["metadata"].get("labels")
    return not (same_status and same_labels and old.get("spec") == new.get("spec"))
