"""The Job controller (batch/v1): keeps the wanted pods, counts how they ended, finishes or suspends the Job."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim import job_failures
from sim.admission import rfc3339, seconds_of
from sim.errors import ApiError, Conflict, NotFound
from sim.events import EventRecorder
from sim.store import Store
from sim.timings import Timings
from sim.watch import Change

logger = logging.getLogger(__name__)

ACTOR = "system:serviceaccount:kube-system:job-controller"
COMPONENT = "job-controller"
INDEX = "batch.kubernetes.io/job-completion-index"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"

Key = tuple[str, str]


@dataclass
class _Memory:
    """What the controller knows of one Job besides its status; a Job of another uid starts anew."""

    uid: str
    counted: set[str] = field(default_factory=set)  # pods whose end is in the status
    own_deletes: set[str] = field(default_factory=set)  # pods that the controller deleted: they never count
    vanished: list[dict[str, Any]] = field(default_factory=list)  # unfinished pods whose object was deleted
    completed: set[int] = field(default_factory=set)
    failures_in_row: int = 0
    last_failure: float = 0.0


@dataclass
class _Tally:
    """The outcome of one look at a Job's pods."""

    active: list[dict[str, Any]] = field(default_factory=list)
    terminating: list[dict[str, Any]] = field(default_factory=list)
    succeeded: int = 0
    failed: int = 0
    failure: tuple[str, str] | None = None  # (reason, message): the Job is to fail


class JobController:
    """One thread; wakes on changes of Jobs and their pods and on timers (back-off, deadline, time to live)."""

    def __init__(self, store: Store, events: EventRecorder, timings: Timings) -> None:
        self._store = store
        self._events = events
        self._timings = timings
        self._inbox: queue.Queue[Change | None] = queue.Queue()
        self._memories: dict[Key, _Memory] = {}
        self._due: dict[Key, float] = {}
        self.thread = threading.Thread(target=self._run, name="sim-job-controller", daemon=True)

    def tell(self, change: Change) -> None:
        """A change of a Job or pod (others are ignored)."""
        if change.kind in ("Job", "Pod"):
            self._inbox.put(change)

    def stop(self) -> None:
        self._inbox.put(None)
        self.thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            wait = min(self._due.values()) - time.time() if self._due else None
            dirty: set[Key] = set()
            try:
                change = self._inbox.get(timeout=None if wait is None else max(wait, 0.001))
                while True:
                    if change is None:
                        return
                    dirty |= self._note(change)
                    change = self._inbox.get_nowait()
            except queue.Empty:
                pass
            now = time.time()
            dirty |= {key for key, at in self._due.items() if at <= now}
            for key in sorted(dirty):
                self._due.pop(key, None)
                try:
                    self._sync(key)
                except Exception:  # outermost loop: one bad Job must not end the care for all others
                    logger.exception("job controller: %s/%s not synced", *key)
                    self._look_again(key, time.time() + self._timings.job_backoff_initial)

    def _note(self, change: Change) -> set[Key]:
        """Remember what only this change tells; returns the Job concerned."""
        if change.kind == "Job":
            return {(change.namespace, change.name)}
        pod = change.object
        owner = _controlling_job(pod)
        if owner is None:
            return set()
        key = (change.namespace, str(owner["name"]))
        memory = self._memories.get(key)
        if change.type == "DELETED" and memory is not None and memory.uid == owner["uid"]:
            uid = pod["metadata"]["uid"]
            if uid not in memory.counted and uid not in memory.own_deletes:
                memory.vanished.append(pod)
        return {key}

    def _look_again(self, key: Key, at: float) -> None:
        self._due[key] = min(at, self._due.get(key, at))

    def _sync(self, key: Key) -> None:
        try:
            job = self._store.get("Job", *key)
        except NotFound:
            self._memories.pop(key, None)
            return
        uid = str(job["metadata"]["uid"])
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = _Memory(uid)
        if job["metadata"].get("deletionTimestamp"):
            return
        if _condition(job, "Complete") or _condition(job, "Failed"):
            self._expire(key, job)
            return
        pods = self._pods_of(job)
        tally = self._count(job, pods, memory)
        status: dict[str, Any] = dict(job.get("status") or {})
        failed = int(status.get("failed") or 0) + tally.failed
        succeeded = int(status.get("succeeded") or 0) + tally.succeeded
        is_indexed = job["spec"]["completionMode"] == "Indexed"
        if is_indexed:
            succeeded = len(memory.completed)
        status.update(failed=failed, succeeded=succeeded)

        failure = tally.failure or self._failure_by_limits(key, job, status, tally, pods)
        is_suspended = bool(job["spec"].get("suspend")) and failure is None
        if failure is None and self._is_complete(job, status, tally, memory):
            self._finish(job, status, tally, memory, complete=True)
        elif failure is not None:
            self._finish(job, status, tally, memory, complete=False, failure=failure)
        elif is_suspended:
            self._delete_all(job, tally.active, memory)
            self._show_suspended(job, status)
        else:
            self._show_running(job, status)
            self._balance(key, job, tally, memory, succeeded)
        self._write(job, status, memory, is_indexed=is_indexed)

    def _pods_of(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
        found = self._store.list("Pod", namespace, label_selector=f"{CONTROLLER_UID}={uid}").items
        return [pod for pod in found if (_controlling_job(pod) or {}).get("uid") == uid]

    def _count(self, job: Mapping[str, Any], pods: list[dict[str, Any]], memory: _Memory) -> _Tally:
        """Sort the pods and take the ends that are new into account."""
        tally = _Tally()
        ended = list(memory.vanished)
        memory.vanished.clear()
        for pod in pods:
            uid, phase = pod["metadata"]["uid"], (pod.get("status") or {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                if uid not in memory.counted and uid not in memory.own_deletes:
                    ended.append(pod)
            elif pod["metadata"].get("deletionTimestamp"):
                tally.terminating.append(pod)
            else:
                tally.active.append(pod)
        for pod in ended:
            memory.counted.add(pod["metadata"]["uid"])
            if (pod.get("status") or {}).get("phase") == "Succeeded":
                tally.succeeded += 1
                memory.failures_in_row = 0
                if (index := _index(pod)) is not None:
                    memory.completed.add(index)
                continue
            memory.failures_in_row += 1
            memory.last_failure = self._store.clock()
            ruling = job_failures.judge(pod, job["spec"].get("podFailurePolicy"))
            if ruling.action == job_failures.FAIL_JOB:
                tally.failure = tally.failure or ("PodFailurePolicy", ruling.message)
            if ruling.action != job_failures.IGNORE:
                tally.failed += 1
        return tally

    def _failure_by_limits(
        self,
        key: Key,
        job: Mapping[str, Any],
        status: Mapping[str, Any],
        tally: _Tally,
        pods: list[dict[str, Any]],
    ) -> tuple[str, str] | None:
        if target := _condition(job, "FailureTarget"):
            return str(target["reason"]), str(target["message"])
        limit = int(job["spec"]["backoffLimit"])
        by_restarts = job["spec"]["template"]["spec"][
            "restartPolicy"
        ] == "OnFailure" and job_failures.is_past_restart_limit(pods, limit)
        if int(status["failed"]) > limit or by_restarts:
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        deadline = job["spec"].get("activeDeadlineSeconds")
        if deadline is not None and status.get("startTime") and not job["spec"].get("suspend"):
            ends_at = seconds_of(status["startTime"]) + int(deadline)
            if self._store.clock() >= ends_at:
                return (
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                )
            self._look_again(key, ends_at)
        return None

    def _is_complete(
        self,
        job: Mapping[str, Any],
        status: Mapping[str, Any],
        tally: _Tally,
        memory: _Memory,
    ) -> bool:
        completions = job["spec"].get("completions")
        if _condition(job, "SuccessCriteriaMet"):
            return True
        if completions is None:  # a work queue: done when one succeeded and all have ended
            return int(status["succeeded"]) > 0 and not tally.active
        if job["spec"]["completionMode"] == "Indexed":
            return all(index in memory.completed for index in range(int(completions)))
        return int(status["succeeded"]) >= int(completions)

    def _finish(
        self,
        job: Mapping[str, Any],
        status: dict[str, Any],
        tally: _Tally,
        memory: _Memory,
        *,
        complete: bool,
        failure: tuple[str, str] = ("", ""),
    ) -> None:
        """First the target condition and the end of all pods; the terminal condition when none is left."""
        reason, message = (
            ("CompletionsReached", "Reached expected number of succeeded pods") if complete else failure
        )
        self._set_condition(
            status,
            "SuccessCriteriaMet" if complete else "FailureTarget",
            "True",
            reason,
            message,
        )
        self._delete_all(job, tally.active, memory)
        if tally.active or tally.terminating:
            return
        self._set_condition(status, "Complete" if complete else "Failed", "True", reason, message)
        if complete:
            status["completionTime"] = rfc3339(self._store.clock())
            self._event(job, "Completed", "Job completed")
        else:
            self._event(job, reason, message, warning=True)

    def _balance(
        self,
        key: Key,
        job: Mapping[str, Any],
        tally: _Tally,
        memory: _Memory,
        succeeded: int,
    ) -> None:
        """Create the pods that are missing, delete those that are too many."""
        spec = job["spec"]
        parallelism = int(spec["parallelism"])
        completions = spec.get("completions")
        holding = list(tally.active)
        if spec.get("podReplacementPolicy") == "Failed":
            holding += tally.terminating  # replaced only once it has ended
        if spec["completionMode"] == "Indexed":
            held = {_index(pod) for pod in holding}
            surplus = [pod for pod in tally.active if (_index(pod) or 0) >= int(completions or 0)]
            if surplus:
                self._delete_all(job, surplus, memory)
            free = [i for i in range(int(completions or 0)) if i not in held and i not in memory.completed]
            wanted: list[int | None] = [*free[: max(parallelism - len(holding), 0)]]
        else:
            most = parallelism if completions is None else min(parallelism, int(completions) - succeeded)
            if completions is None and succeeded:
                most = len(holding)
            wanted = [None] * max(most - len(holding), 0)
        if len(tally.active) > parallelism:
            newest_first = sorted(tally.active, key=lambda p: (-(_index(p) or 0), p["metadata"]["name"]))
            self._delete_all(job, newest_first[: len(tally.active) - parallelism], memory)
        if not wanted:
            return
        ready_at = memory.last_failure + self._backoff(memory)
        if memory.failures_in_row and self._store.clock() < ready_at:
            self._look_again(key, ready_at)
            return
        for index in wanted:
            self._create_pod(job, index)

    def _backoff(self, memory: _Memory) -> float:
        doubled = self._timings.job_backoff_initial * 2.0 ** max(memory.failures_in_row - 1, 0)
        return min(doubled, self._timings.job_backoff_maximum)

    def _create_pod(self, job: Mapping[str, Any], index: int | None) -> None:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        try:
            pod = self._store.create("Pod", pod_of(job, index), actor=ACTOR)
        except ApiError as error:
            message = f"Error creating: {error.message}"
            self._event(job, "FailedCreate", message, warning=True)
            self._look_again((namespace, name), time.time() + self._timings.job_backoff_initial)
            return
        self._event(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")

    def _delete_all(self, job: Mapping[str, Any], pods: list[dict[str, Any]], memory: _Memory) -> None:
        for pod in pods:
            metadata = pod["metadata"]
            memory.own_deletes.add(metadata["uid"])
            try:
                self._store.delete(
                    "Pod",
                    metadata["namespace"],
                    metadata["name"],
                    actor=ACTOR,
                    uid=metadata["uid"],
                )
            except (NotFound, Conflict):
                continue
            self._event(job, "SuccessfulDelete", f"Deleted pod: {metadata['name']}")

    def _show_suspended(self, job: Mapping[str, Any], status: dict[str, Any]) -> None:
        status.pop("startTime", None)
        if self._set_condition(status, "Suspended", "True", "JobSuspended", "Job suspended"):
            self._event(job, "Suspended", "Job suspended")

    def _show_running(self, job: Mapping[str, Any], status: dict[str, Any]) -> None:
        if any(c["type"] == "Suspended" and c["status"] == "True" for c in status.get("conditions") or []):
            self._set_condition(status, "Suspended", "False", "JobResumed", "Job resumed")
            self._event(job, "Resumed", "Job resumed")
        if "startTime" not in status:
            status["startTime"] = rfc3339(self._store.clock())
            if (deadline := job["spec"].get("activeDeadlineSeconds")) is not None:
                key = (job["metadata"]["namespace"], job["metadata"]["name"])
                self._look_again(key, self._store.clock() + int(deadline))

    def _set_condition(
        self, status: dict[str, Any], kind: str, value: str, reason: str, message: str
    ) -> bool:
        """Set a condition in place; returns whether its status changed."""
        conditions = list(status.get("conditions") or [])
        old = next((c for c in conditions if c["type"] == kind), None)
        if old is not None and old["status"] == value:
            return False
        now = rfc3339(self._store.clock())
        told = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastProbeTime": now,
            "lastTransitionTime": now,
        }
        status["conditions"] = [*(c for c in conditions if c["type"] != kind), told]
        return True

    def _write(
        self,
        job: Mapping[str, Any],
        status: dict[str, Any],
        memory: _Memory,
        *,
        is_indexed: bool,
    ) -> None:
        """Store the status; the pods are counted as they are now, after what this look did."""
        alive = [p for p in self._pods_of(job) if p["status"].get("phase") not in ("Succeeded", "Failed")]
        active = [p for p in alive if not p["metadata"].get("deletionTimestamp")]
        status["active"] = len(active)
        status["ready"] = sum(_is_ready(pod) for pod in active)
        status["terminating"] = len(alive) - len(active)
        status["uncountedTerminatedPods"] = {}
        for name in ("active", "failed", "succeeded"):
            if not status[name]:
                status.pop(name)
        if is_indexed:
            status["completedIndexes"] = job_failures.spell_indexes(memory.completed)
            if not status["completedIndexes"]:
                status.pop("completedIndexes")

        def change(fresh: dict[str, Any]) -> dict[str, Any] | None:
            if fresh.get("status") == status:
                return None
            fresh["status"] = status
            return fresh

        metadata = job["metadata"]
        try:
            self._store.mutate(
                "Job",
                metadata["namespace"],
                metadata["name"],
                change,
                actor=ACTOR,
                subresource="status",
                uid=metadata["uid"],
            )
        except (NotFound, Conflict):
            return  # deleted meanwhile: the inbox says so

    def _expire(self, key: Key, job: Mapping[str, Any]) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        ended = next(c for c in job["status"]["conditions"] if c["type"] in ("Complete", "Failed"))
        ends_at = seconds_of(ended["lastTransitionTime"]) + int(ttl)
        if self._store.clock() < ends_at:
            self._look_again(key, ends_at)
            return
        metadata = job["metadata"]
        try:
            self._store.delete("Job", *key, actor=ACTOR, uid=metadata["uid"], propagation="Background")
        except (NotFound, Conflict):
            return

    def _event(
        self,
        job: Mapping[str, Any],
        reason: str,
        message: str,
        *,
        warning: bool = False,
    ) -> None:
        self._events.record(
            job,
            reason=reason,
            message=message,
            component=COMPONENT,
            actor=ACTOR,
            warning=warning,
        )


def pod_of(job: Mapping[str, Any], index: int | None) -> dict[str, Any]:
    """The pod that the controller creates for one index (None: NonIndexed)."""
    metadata, template = job["metadata"], job["spec"]["template"]
    name = metadata["name"]
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    annotations = dict((template.get("metadata") or {}).get("annotations") or {})
    spec = {**template["spec"]}
    if index is not None:
        labels[INDEX] = annotations[INDEX] = str(index)
        spec["hostname"] = f"{name}-{index}"
        reference = {
            "fieldRef": {
                "apiVersion": "v1",
                "fieldPath": f"metadata.annotations['{INDEX}']",
            }
        }
        variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": reference}
        for kind in ("initContainers", "containers"):
            if spec.get(kind):
                spec[kind] = [{**c, "env": [*(c.get("env") or []), variable]} for c in spec[kind]]
    pod_metadata: dict[str, Any] = {
        "generateName": f"{name}-" if index is None else f"{name}-{index}-",
        "namespace": metadata["namespace"],
        "labels": labels,
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name,
                "uid": metadata["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        pod_metadata["annotations"] = annotations
    return {"metadata": pod_metadata, "spec": spec}


def _controlling_job(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for owner in pod["metadata"].get("ownerReferences") or []:
        if owner["kind"] == "Job" and owner.get("controller"):
            return owner  # type: ignore[no-any-return]
    return None


def _index(pod: Mapping[str, Any]) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX)
    return int(text) if text is not None else None


def _condition(job: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition when it holds."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["type"] == kind and condition["status"] == "True":
            return condition  # type: ignore[no-any-return]
    return None


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
