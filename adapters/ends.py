"""Why a pod's container ended: the table from what Kubernetes shows to the desk's causes. Pure.

Source: DOMAIN section 3, "by cause"; reasons as the kubelet, the scheduler, the node controller and the
Eviction API write them.
"""

from __future__ import annotations

from dataclasses import dataclass

from adapters.facts import ContainerEnd, Disruption, PodFact
from agent import wire
from recovery.signals import EndCause

_BY_REASON = {
    "PreemptionByScheduler": EndCause.PREEMPTED,
    "PreemptionByKubeScheduler": EndCause.PREEMPTED,
    "Preempting": EndCause.PREEMPTED,
    "Preempted": EndCause.PREEMPTED,
    "EvictionByEvictionAPI": EndCause.MAINTENANCE,  # a drain; what the desk evicts is known by its rows
    "DeletionByPodGC": EndCause.NODE_LOST,
    "NodeLost": EndCause.NODE_LOST,
    "NodeShutdown": EndCause.MAINTENANCE,
    "Shutdown": EndCause.MAINTENANCE,
    "Terminated": EndCause.MAINTENANCE,
}
# The kubelet refuses a pod that does not fit after all: capacity, never a failure of the job.
_NOT_ADMITTED = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "Topology")

# Only where our agent was the entry point: a user's own code may be any number.
_BY_AGENT_CODE = {
    wire.EXIT_ORDERED: EndCause.ORDERED,
    wire.EXIT_CHECK_FAILED: EndCause.ORDERED,
    wire.EXIT_STOPPED: EndCause.STOPPED_BY_USER,
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What must be known beside the pod. ``stopped_because``: the job wants its pods gone, "" if not."""

    has_agent: bool = False
    is_node_lost: bool = False
    stopped_because: str = ""
    is_stopped_by_desk: bool = False


def cause_of(pod: PodFact, end: ContainerEnd | None, *, is_gone: bool, around: Surroundings) -> EndCause:
    """Why one life of a container ended.

    Args:
        end: Its last status, or None where the pod went without one.
        is_gone: The pod object is deleted.
    """
    if end is not None and end.reason == "OOMKilled":
        return EndCause.OUT_OF_MEMORY
    if _was_taken_away(pod, end, is_gone=is_gone):
        if around.stopped_because:
            return EndCause.ORDERED if around.is_stopped_by_desk else EndCause.STOPPED_BY_USER
        return (
            _by_disruption(pod.disruption, around)
            or _by_code(end, around)
            or (EndCause.NODE_LOST if around.is_node_lost else EndCause.DELETED)
        )
    if end is not None and end.exit_code == 0:
        return EndCause.COMPLETED
    return _by_disruption(pod.disruption, around) or _by_code(end, around) or EndCause.CRASHED


def _was_taken_away(pod: PodFact, end: ContainerEnd | None, *, is_gone: bool) -> bool:
    """Whether somebody ended it from outside. What ended before the deletion was asked for did so itself."""
    if end is None or end.finished_at is None:
        return is_gone or pod.delete_asked_at is not None
    return pod.delete_asked_at is not None and end.finished_at >= pod.delete_asked_at


def _by_disruption(disruption: Disruption | None, around: Surroundings) -> EndCause | None:
    if disruption is None:
        return None
    reason, message = disruption.reason, disruption.message.lower()
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    if reason == "DeletionByTaintManager":
        lost = around.is_node_lost or "unreachable" in message or "not-ready" in message
        return EndCause.NODE_LOST if lost else EndCause.MAINTENANCE
    if reason in ("TerminationByKubelet", "Evicted"):
        if "shutdown" in message:
            return EndCause.MAINTENANCE
        if "preempt" in message:
            return EndCause.PREEMPTED
        return EndCause.OUT_OF_MEMORY if "memory" in message else EndCause.CRASHED
    if reason.startswith(_NOT_ADMITTED):
        return EndCause.MAINTENANCE
    return None


def _by_code(end: ContainerEnd | None, around: Surroundings) -> EndCause | None:
    return _BY_AGENT_CODE.get(end.exit_code) if end is not None and around.has_agent else None
