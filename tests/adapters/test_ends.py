"""Why a container ended: the table."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.ends import Surroundings, cause_of
from adapters.facts import ContainerEnd, Disruption, PodFact
from agent import wire
from tests.facts import at, deleting, make_end, make_pod_fact, running

POD = running(make_pod_fact())
PLAIN = Surroundings()
AGENT = Surroundings(has_agent=True)
LOST = Surroundings(is_node_lost=True)
STOPPED = Surroundings(stopped_because="JobSuspended")
BY_DESK = Surroundings(stopped_because="JobSuspended", is_stopped_by_desk=True)


def evicted(reason: str, message: str = "", *, seconds: float | None = 59) -> PodFact:
    changes: dict[str, Any] = {"disruption": Disruption(reason, message)}
    return running(POD, **changes) if seconds is None else deleting(POD, seconds=seconds, **changes)


TERM = make_end(code=143, seconds=60)


@pytest.mark.parametrize(
    ("pod", "end", "is_gone", "around", "cause"),
    [
        pytest.param(POD, make_end(code=1), False, PLAIN, "crashed", id="error"),
        pytest.param(POD, make_end(code=137), False, PLAIN, "crashed", id="killed by a signal"),
        pytest.param(POD, make_end(code=0), False, PLAIN, "completed", id="exit 0"),
        pytest.param(POD, make_end(code=137, reason="OOMKilled"), False, PLAIN, "out_of_memory", id="OOM"),
        pytest.param(POD, make_end(code=wire.EXIT_ORDERED), False, AGENT, "ordered", id="ordered"),
        pytest.param(POD, make_end(code=wire.EXIT_ORDERED), False, PLAIN, "crashed", id="user's own 78"),
        pytest.param(POD, make_end(code=wire.EXIT_STOPPED), False, AGENT, "stopped_by_user", id="stopped"),
        pytest.param(POD, make_end(code=wire.EXIT_CHECK_FAILED), False, AGENT, "ordered", id="check failed"),
        pytest.param(POD, make_end(code=wire.EXIT_ORDER_WAIT), False, AGENT, "crashed", id="no order came"),
        pytest.param(POD, None, True, PLAIN, "deleted", id="gone without a status"),
        pytest.param(POD, None, True, LOST, "node_lost", id="gone with its node"),
        pytest.param(deleting(POD), TERM, False, PLAIN, "deleted", id="deleted, ended by SIGTERM"),
        pytest.param(
            deleting(POD), make_end(code=0, seconds=60), False, PLAIN, "deleted", id="deleted, exit 0"
        ),
        pytest.param(
            deleting(POD, seconds=70),
            make_end(code=0, seconds=60),
            True,
            PLAIN,
            "completed",
            id="ended before",
        ),
        pytest.param(
            deleting(POD, seconds=70),
            make_end(code=1, seconds=60),
            True,
            STOPPED,
            "crashed",
            id="died before stop",
        ),
        pytest.param(deleting(POD), TERM, False, STOPPED, "stopped_by_user", id="job suspended"),
        pytest.param(deleting(POD), TERM, False, BY_DESK, "ordered", id="job suspended by the desk"),
        pytest.param(evicted("PreemptionByScheduler"), TERM, False, PLAIN, "preempted", id="preempted"),
        pytest.param(evicted("EvictionByEvictionAPI"), TERM, False, PLAIN, "maintenance", id="drained"),
        pytest.param(evicted("DeletionByPodGC"), None, True, PLAIN, "node_lost", id="node object gone"),
        pytest.param(
            evicted("DeletionByTaintManager"), None, True, LOST, "node_lost", id="taint of a lost node"
        ),
        pytest.param(
            evicted("DeletionByTaintManager"), TERM, False, PLAIN, "maintenance", id="taint on a live node"
        ),
        pytest.param(
            evicted("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."),
            TERM,
            False,
            PLAIN,
            "maintenance",
            id="node shutdown",
        ),
        pytest.param(
            evicted("Evicted", "The node was low on resource: memory.", seconds=None),
            make_end(code=137),
            False,
            PLAIN,
            "out_of_memory",
            id="node pressure, memory",
        ),
        pytest.param(
            evicted("Evicted", "The node was low on resource: ephemeral-storage.", seconds=None),
            make_end(code=137),
            False,
            PLAIN,
            "crashed",
            id="node pressure, its own disk use",
        ),
        pytest.param(evicted("NodeLost", seconds=None), None, False, PLAIN, "node_lost", id="node lost"),
        pytest.param(evicted("OutOfcpu", seconds=None), None, False, PLAIN, "maintenance", id="not admitted"),
        pytest.param(
            evicted("SomethingNew", seconds=None),
            make_end(code=1),
            False,
            PLAIN,
            "crashed",
            id="unknown reason",
        ),
    ],
)
def test_cause(
    pod: PodFact, end: ContainerEnd | None, is_gone: bool, around: Surroundings, cause: str
) -> None:
    assert cause_of(pod, end, is_gone=is_gone, around=around) == cause


def test_deletion_is_asked_for_before_its_grace_began() -> None:
    pod = deleting(POD, seconds=50, grace=30)
    assert (pod.delete_asked_at, pod.deleting_at) == (at(50), at(80))
    assert cause_of(pod, make_end(code=1, seconds=50), is_gone=False, around=PLAIN) == "deleted"
