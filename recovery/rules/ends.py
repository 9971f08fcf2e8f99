"""Ends of processes and containers: signals, exit codes, causes and symptoms. Data only.

Sources: signal(7), the shell's exit codes (128 + signal, 126, 127), container exit reasons of Kubernetes,
and the seeds for what survivors of a dead peer say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recovery.signals import EndCause

SIGNAL_NAMES: Mapping[int, str] = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EndRule:
    """What an end of this kind means.

    ``says`` is the title's sentence with {worker} and {how}; ``weight`` how strongly it speaks for the
    category; ``order`` places it among ends at the same time: a death comes before what it makes others say.
    """

    id: str
    category: str
    says: str
    weight: float
    order: int = 1


KILLED = EndRule("end.killed", "process_killed", "Process of {worker} killed ({how})", 0.9, 0)
CRASHED = EndRule("end.crashed", "process_crashed", "Process of {worker} crashed ({how})", 0.9, 0)
TERMINATED = EndRule(
    "end.terminated", "process_terminated", "Process of {worker} was told to end ({how})", 0.7, 0
)
NOT_STARTED = EndRule("end.not_started", "bad_command", "Command of {worker} could not be run ({how})", 0.9)
SYMPTOM = EndRule("end.symptom", "lost_peer", "{worker} lost contact with its peers ({how})", 0.3, 2)
UNKNOWN = EndRule("end.unknown", "unknown", "Process of {worker} ended in error ({how})", 0.2)
HANG = EndRule("end.hang", "hang", "Training hangs on {worker} ({how})", 0.7)
CHECK_FAILED = EndRule("check.failed", "hardware_check_failed", "Check of {worker} failed ({how})", 0.95, 0)
CHECK_ERROR = EndRule("check.error", "check_error", "{worker} failed while it was checked ({how})", 0.6)

BY_SIGNAL: Mapping[int, EndRule] = {
    4: CRASHED, 6: CRASHED, 7: CRASHED, 8: CRASHED, 11: CRASHED,
    9: KILLED,
    2: TERMINATED, 15: TERMINATED,
}  # fmt: skip

BY_EXIT_CODE: Mapping[int, EndRule] = {126: NOT_STARTED, 127: NOT_STARTED}

BY_CAUSE: Mapping[EndCause, EndRule] = {
    EndCause.CRASHED: EndRule("end.container", "container_crashed", "Container of {worker} ended ({how})", 0.8),
    EndCause.DELETED: EndRule("end.deleted", "pod_deleted", "Pod of {worker} was deleted", 0.95),
    EndCause.NODE_LOST: EndRule("end.node_lost", "node_lost", "Node of {worker} was lost", 0.9, 0),
    EndCause.OUT_OF_MEMORY: EndRule(
        "end.out_of_memory", "out_of_memory", "Container of {worker} ran out of memory", 0.95, 0
    ),
    EndCause.REPLACED: EndRule("end.replaced", "agent_replaced", "Agent of {worker} was replaced by a new one", 0.8),
    EndCause.PREEMPTED: EndRule("end.preempted", "preempted", "Pod of {worker} was preempted", 0.95),
    EndCause.MAINTENANCE: EndRule("end.maintenance", "maintenance", "Node of {worker} went into maintenance", 0.95),
    EndCause.EVICTED_BY_DESK: EndRule("end.evicted", "evicted", "Pod of {worker} was evicted by the desk", 1.0),
    EndCause.EVICTED_AS_SLOW: EndRule(
        "end.evicted_as_slow", "evicted_as_slow", "Pod of {worker} was evicted as slow", 1.0
    ),
    EndCause.ORDERED: EndRule("end.ordered", "ordered", "Container of {worker} ended as ordered", 1.0),
    EndCause.STOPPED_BY_USER: EndRule("end.stopped", "stopped", "Pod of {worker} was stopped by its user", 0.95),
    EndCause.COMPLETED: EndRule("end.completed", "completed", "{worker} ended with exit 0 before it was done", 0.6),
}  # fmt: skip

#: What survivors of a dead peer say, in small letters: a symptom, never the cause.
SYMPTOMS: tuple[str, ...] = (
    "watchdog caught collective operation timeout",
    "connection reset by peer",
    "connection closed by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "nccl communicator was aborted",
    "remote process exited",
    "gloo",
)

#: Checks whose failure speaks against the machine. A time-out or "could not run" never does.
HARDWARE_CHECKS = frozenset({"gpu", "rdma"})
