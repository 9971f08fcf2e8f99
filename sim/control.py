"""The control API under /sim/v1/: faults, training jobs, processes, audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim import faults, roles, training_jobs
from sim.errors import ApiError
from sim.tokens import User

if TYPE_CHECKING:
    from sim.cluster import Cluster

Answer = tuple[int, Any]


class Control:
    """Handler of the routes; refusals are ``{"code", "detail"}``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def handle(self, method: str, path: str, query: dict[str, str], body: Any, user: User) -> Answer:
        routes = {
            ("GET", "/sim/v1/faults"): self._list_faults,
            ("POST", "/sim/v1/faults"): self._inject,
            ("POST", "/sim/v1/jobs"): self._submit,
            ("GET", "/sim/v1/processes"): self._processes,
            ("GET", "/sim/v1/audit"): self._audit,
        }
        route = routes.get((method, path.rstrip("/")))
        if route is None:
            return 404, {"code": "not-found", "detail": f"no {method} {path}"}
        if method == "POST" and not isinstance(body, dict):
            return 400, {"code": "bad-body", "detail": "the body must be a JSON object"}
        return route(query, body)

    def _list_faults(self, query: dict[str, str], body: Any) -> Answer:
        return 200, {"faults": [fault.as_json() for fault in faults.FAULTS.values()]}

    def _inject(self, query: dict[str, str], body: dict[str, Any]) -> Answer:
        try:
            return 200, faults.inject(self._cluster, body)
        except faults.FaultRefused as refusal:
            return refusal.status, {"code": refusal.code, "detail": refusal.detail}

    def _submit(self, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if self._cluster.agent is None:
            body = {"agent": False, **body}
        try:
            wanted = training_jobs.TrainingJob.parse(body)
            job = training_jobs.submit(self._cluster.store, wanted, desk_url=self._cluster.network.desk_url)
        except training_jobs.BadParameters as problem:
            return 400, {"code": "bad-parameter", "detail": str(problem)}
        except ApiError as error:
            return error.code, {"code": error.reason, "detail": error.message}
        metadata = job["metadata"]
        return 201, {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}

    def _processes(self, query: dict[str, str], body: Any) -> Answer:
        found = []
        for worker in self._cluster.pod_workers():
            if query.get("namespace") not in (None, "", worker.namespace):
                continue
            if query.get("job") and (worker.job or ("", ""))[1] != query["job"]:
                continue
            for container in worker.processes():
                role = roles.assign(container.tree, self._cluster.agent)
                found.append(
                    {
                        "namespace": worker.namespace,
                        "job": worker.job[1] if worker.job else None,
                        "index": worker.index,
                        "pod": worker.name,
                        "uid": worker.uid,
                        "node": worker.kubelet.node_name,
                        "container": container.container,
                        "agent_pid": role.agent.pid if role.agent else None,
                        "command_pid": role.command.pid if role.command else None,
                        "rank_pids": [process.pid for process in role.ranks],
                        "tree": [
                            {"pid": process.pid, "parent": process.parent, "argv": process.argv}
                            for process in container.tree
                        ],
                    }
                )
        found.sort(key=lambda pod: (pod["namespace"], pod["job"] or "", pod["index"] or 0, pod["pod"]))
        return 200, {"items": found}

    def _audit(self, query: dict[str, str], body: Any) -> Answer:
        since = query.get("since", "0")
        if not since.isdigit():
            return 400, {"code": "bad-parameter", "detail": "since must be a number of a record"}
        log = self._cluster.store.audit
        with self._cluster.store.lock:
            records = log.since(int(since))
            newest = log.last
        return 200, {"items": [record.as_json() for record in records], "newest": newest}
