"""Faults on command. Each answers only when its effect was seen, or refuses and says why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.errors import ApiError, NotFound
from sim.kubelet.pod import PodWorker
from sim.processes import Process, is_running, look_up
from sim.roles import Roles, assign

if TYPE_CHECKING:
    from sim.cluster import Cluster

ACTOR = "system:sim:faults"
SEEN_SECONDS = 10.0  # below the callers' time-outs: they shall hear the refusal
POLL_SECONDS = 0.005


class FaultRefused(Exception):
    """The fault was not injected, or its effect was not seen. ``status`` is the HTTP code of the answer."""

    def __init__(self, code: str, detail: str, status: int = 409) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str  # string | integer | boolean | integers
    sentence: str
    required: bool = False
    default: Any = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "sentence": self.sentence,
            "required": self.required,
            "default": self.default,
        }


@dataclass(frozen=True)
class Fault:
    name: str
    sentence: str
    parameters: tuple[Parameter, ...]
    run: Callable[[Cluster, Mapping[str, Any]], dict[str, Any]] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "fault": self.name,
            "sentence": self.sentence,
            "parameters": [parameter.as_json() for parameter in self.parameters],
        }


def inject(cluster: Cluster, given: Mapping[str, Any]) -> dict[str, Any]:
    """Run the fault that ``given["fault"]`` names; returns ``{"done": True, "what": sentence, …}``.

    Raises:
        FaultRefused: Unknown fault, wrong parameters, nothing to hit, or no effect in time.
    """
    fault = FAULTS.get(str(given.get("fault")))
    if fault is None:
        names = ", ".join(sorted(FAULTS))
        raise FaultRefused("unknown-fault", f"no fault {given.get('fault')!r}; there are: {names}", 404)
    values = _values(fault, given)
    return {"done": True, "fault": fault.name, **fault.run(cluster, values)}


def _values(fault: Fault, given: Mapping[str, Any]) -> dict[str, Any]:
    known = {parameter.name: parameter for parameter in fault.parameters}
    unknown = [name for name in given if name not in known and name != "fault" and given[name] is not None]
    if unknown:
        text = f"{fault.name} has no parameter {unknown[0]!r}; it has: {', '.join(known) or 'none'}"
        raise FaultRefused("bad-parameter", text, 400)
    values: dict[str, Any] = {}
    for parameter in fault.parameters:
        value = given.get(parameter.name)
        if value is None:
            if parameter.required:
                raise FaultRefused(
                    "bad-parameter", f"{fault.name} needs {parameter.name}: {parameter.sentence}", 400
                )
            value = parameter.default
        elif not _is_of_kind(value, parameter.kind):
            text = f"{parameter.name} must be {parameter.kind}, not {value!r}"
            raise FaultRefused("bad-parameter", text, 400)
        values[parameter.name] = value
    return values


def _is_of_kind(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integers":
        return isinstance(value, list) and all(_is_of_kind(each, "integer") for each in value)
    return isinstance(value, str)


def _await(effect: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SEEN_SECONDS
    while not effect():
        if time.monotonic() >= deadline:
            raise FaultRefused("not-seen", f"{what} was not seen within {SEEN_SECONDS:g} s", 504)
        time.sleep(POLL_SECONDS)


def _worker(cluster: Cluster, values: Mapping[str, Any]) -> PodWorker:
    """The newest pod of the job's index that runs on a node."""
    namespace, job, index = values["namespace"], values["job"], values["index"]
    try:
        cluster.store.get("Job", namespace, job)
    except NotFound:
        raise FaultRefused("no-such-job", f"no job {namespace}/{job}", 404) from None
    found = [w for w in cluster.pod_workers() if w.job == (namespace, job) and w.index == index]
    if not found:
        indexes = {w.index for w in cluster.pod_workers() if w.job == (namespace, job)}
        present = sorted(index for index in indexes if index is not None)
        there = f"there are {', '.join(map(str, present))}" if present else "it has none at all"
        text = f"job {namespace}/{job} has no pod with index {index} on a node; {there}"
        raise FaultRefused("no-such-pod", text)
    running = [worker for worker in found if worker.processes()]
    return max(running or found, key=lambda worker: worker.started_at)


def _roles(cluster: Cluster, worker: PodWorker) -> Roles:
    containers = worker.processes()
    if not containers:
        raise FaultRefused("no-process", f"pod {worker.name} has no running container")
    return assign(containers[0].tree, cluster.agent)


def _rank(cluster: Cluster, worker: PodWorker) -> Process:
    ranks = _roles(cluster, worker).ranks
    if not ranks:
        raise FaultRefused("no-process", f"pod {worker.name} runs no training process now")
    return ranks[0]


def _told(worker: PodWorker, **more: Any) -> dict[str, Any]:
    return {
        "namespace": worker.namespace,
        "pod": worker.name,
        "pod_uid": worker.uid,
        "node": worker.kubelet.node_name,
        **more,
    }


def _kill_process(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    number = _signal_number(values["signal"])
    worker = _worker(cluster, values)
    rank = _rank(cluster, worker)
    if values["oom"]:
        worker.mark_oom_killed(worker.processes()[0].container)
    at = time.time()
    os.kill(rank.pid, number)
    name = signal.Signals(number).name
    if number == signal.SIGSTOP:
        _await(lambda: (look_up(rank.pid) or rank).state in "Tt", f"stop of process {rank.pid}")
    elif number == signal.SIGCONT:
        _await(lambda: (look_up(rank.pid) or rank).state not in "Tt", f"return of process {rank.pid}")
    else:
        _await(lambda: not is_running(rank), f"end of process {rank.pid}")
    what = (
        f"sent {name} to process {rank.pid}, rank {values['index']} of {values['namespace']}/{values['job']}"
    )
    return _told(worker, what=what, pid=rank.pid, signal=name, at=at)


def _signal_number(text: str) -> signal.Signals:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return signal.Signals(int(text)) if text.isdigit() else signal.Signals[name]
    except (KeyError, ValueError):
        raise FaultRefused("bad-parameter", f"{text!r} is not a signal", 400) from None


def _kill_agent(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    worker = _worker(cluster, values)
    agent = _roles(cluster, worker).agent
    if agent is None:
        raise FaultRefused("no-process", f"pod {worker.name} runs no agent")
    at = time.time()
    os.kill(agent.pid, signal.SIGKILL)
    _await(lambda: not is_running(agent), f"end of agent {agent.pid}")
    return _told(worker, what=f"killed agent {agent.pid} of pod {worker.name}", pid=agent.pid, at=at)


def _exit_with(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    code = values["code"]
    if not 0 <= code <= 255:
        raise FaultRefused("bad-parameter", "code must be between 0 and 255", 400)
    worker = _worker(cluster, values)
    rank = _rank(cluster, worker)
    at = time.time()
    path = worker.fault_file()
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(code), encoding="utf-8")
    temporary.rename(path)
    try:
        _await(lambda: not is_running(rank), f"end of process {rank.pid}")
    except FaultRefused:
        path.unlink(missing_ok=True)
        raise
    return _told(worker, what=f"process {rank.pid} exited with code {code}", pid=rank.pid, code=code, at=at)


def _pod_deleted(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    worker = _worker(cluster, values)
    at = time.time()
    try:
        cluster.store.delete(
            "Pod", worker.namespace, worker.name, actor=ACTOR, uid=worker.uid, grace_period_seconds=0
        )
    except ApiError as error:
        raise FaultRefused("not-deleted", error.message) from None
    _await(lambda: not worker.thread.is_alive(), f"end of pod {worker.name}'s processes")
    return _told(worker, what=f"deleted pod {worker.namespace}/{worker.name} by force", at=at)


def _desk_cut_off(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    if cluster.network.desk_url is None:
        raise FaultRefused("no-desk", "the cluster was started without --desk-url: there is no path to cut")
    indices = _indices(values)
    at = time.time()
    job = (values["namespace"], values["job"])
    pods = cluster.network.cut(job=job, indices=indices)
    whom = "every worker" if indices is None else f"worker {', '.join(map(str, indices))}"
    what = f"{whom} of {job[0]}/{job[1]} cannot reach the desk ({len(pods)} running now)"
    return {"what": what, "pods": pods, "at": at}


def _indices(values: Mapping[str, Any]) -> list[int] | None:
    """The workers that are meant; None for all."""
    if values["index"] is None:
        return None if values["indices"] is None else sorted(set(values["indices"]))
    return sorted({*(values["indices"] or []), values["index"]})


def _restore(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    if (values["job"] is None) != (values["namespace"] is None):
        raise FaultRefused("bad-parameter", "give namespace and job, or neither for all", 400)
    job = None if values["job"] is None else (values["namespace"], values["job"])
    at = time.time()
    indices = _indices(values)
    if indices is not None and job is None:
        raise FaultRefused("bad-parameter", "give namespace and job with index or indices", 400)
    pods = cluster.network.restore(job=job, indices=indices)
    silent = []
    if job is None:
        for kubelet in cluster.kubelets.values():
            if kubelet.is_silent:
                kubelet.speak()
                silent.append(kubelet.node_name)
    what = f"{len(pods)} pod{' reaches' if len(pods) == 1 else 's reach'} the desk again"
    if silent:
        what += f"; {', '.join(silent)} reports again"
    return {"what": what, "pods": pods, "nodes": silent, "at": at}


def _node_silent(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    kubelet = cluster.kubelets.get(values["node"])
    if kubelet is None:
        raise FaultRefused("no-such-node", f"no node {values['node']!r}", 404)
    at = time.time()
    kubelet.fall_silent()
    return {"what": f"node {kubelet.node_name} renews its lease no more", "node": kubelet.node_name, "at": at}


_NAMESPACE = Parameter("namespace", "string", "Namespace of the job.", required=True)
_JOB = Parameter("job", "string", "Name of the job.", required=True)
_INDEX = Parameter("index", "integer", "Worker index in the job.", required=True)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "kill-process",
            "Kills the training process of one worker; its agent lives.",
            (
                _NAMESPACE,
                _JOB,
                _INDEX,
                Parameter("signal", "string", "Signal by name or number.", default="KILL"),
                Parameter("oom", "boolean", "Tell the container's end as OOMKilled.", default=False),
            ),
            _kill_process,
        ),
        Fault(
            "pod-deleted",
            "Deletes the pod of one worker by force, without grace.",
            (_NAMESPACE, _JOB, _INDEX),
            _pod_deleted,
        ),
        Fault(
            "desk-cut-off",
            "Cuts workers off the desk, also those that do not run yet; restore ends it.",
            (
                _NAMESPACE,
                _JOB,
                Parameter("index", "integer", "One worker; without index and indices, all."),
                Parameter("indices", "integers", "Several workers; without index and indices, all."),
            ),
            _desk_cut_off,
        ),
        Fault(
            "restore",
            "Ends the cut-offs of a job; without one, all cut-offs and silent nodes.",
            (
                Parameter("namespace", "string", "Namespace of the job."),
                Parameter("job", "string", "Name of the job."),
                Parameter("index", "integer", "One worker; without index and indices, all."),
                Parameter("indices", "integers", "Several workers; without index and indices, all."),
            ),
            _restore,
        ),
        Fault(
            "kill-agent",
            "Kills the agent of one worker, and with it the container.",
            (_NAMESPACE, _JOB, _INDEX),
            _kill_agent,
        ),
        Fault(
            "exit-with",
            "Makes the training process of one worker exit with a code of your choice.",
            (
                _NAMESPACE,
                _JOB,
                _INDEX,
                Parameter("code", "integer", "Exit code, 0 to 255.", default=1),
            ),
            _exit_with,
        ),
        Fault(
            "node-silent",
            "A node stops renewing its lease; its pods run on; restore ends it.",
            (Parameter("node", "string", "Name of the node.", required=True),),
            _node_silent,
        ),
    )
}
