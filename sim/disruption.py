"""Pod disruption budgets: their status, kept up with the pods, and the Eviction API that asks them."""

from __future__ import annotations

import math
from typing import Any

from sim.admission import rfc3339
from sim.audit import Note
from sim.errors import ApiError, Conflict, NotFound, TooManyRequests
from sim.selectors import from_object
from sim.store import Store
from sim.watch import Change

CONTROLLER = "system:serviceaccount:kube-system:disruption-controller"
_FINISHED = ("Succeeded", "Failed")


class Unscalable(Exception):
    """A budget in percent or by maxUnavailable covers pods whose controller has no scale."""


def _condition(pod: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), None)


def is_healthy(pod: dict[str, Any]) -> bool:
    """Ready, and not on its way out."""
    ready = _condition(pod, "Ready")
    return bool(ready and ready["status"] == "True") and not pod["metadata"].get("deletionTimestamp")


def _scaled(value: int | str, total: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)


def _concerns(budget: dict[str, Any], change: Change) -> bool:
    """Whether a pod's change can change a budget's status; most changes of a running pod cannot."""
    selects = from_object((budget.get("spec") or {}).get("selector"))
    versions = [entry for entry in (change.previous, change.entry) if entry is not None]
    if not any(selects(entry.labels) for entry in versions):
        return False
    if change.type != "MODIFIED" or len({selects(entry.labels) for entry in versions}) > 1:
        return True
    before, after = (entry.object() for entry in versions)
    return _counted(before) != _counted(after)


def _counted(pod: dict[str, Any]) -> tuple[Any, ...]:
    meta = pod["metadata"]
    is_finished = (pod.get("status") or {}).get("phase") in _FINISHED
    return is_healthy(pod), is_finished, bool(meta.get("deletionTimestamp")), meta.get("ownerReferences")


class DisruptionBudgets:
    """Keeps the status of every budget as pods, their controllers and budgets change."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.subscribe(self._on_change)
        with store.lock:
            for budget in store.list("PodDisruptionBudget").items:
                self._refresh(budget)

    def _on_change(self, change: Change) -> None:
        if change.kind == "PodDisruptionBudget":
            if change.type != "DELETED":
                self._refresh(change.object)
        elif change.kind in ("Pod", "ReplicaSet", "StatefulSet") and self.store.count("PodDisruptionBudget"):
            for budget in self.store.list("PodDisruptionBudget", change.namespace).items:
                if change.kind != "Pod" or _concerns(budget, change):
                    self._refresh(budget)

    def _expected(self, pods: list[dict[str, Any]], *, all_pods: bool) -> int:
        """Pods for a whole minAvailable, else the sum of what the pods' controllers want.

        As in Kubernetes pods without a controller do not count then, and a controller that has no scale
        (a Job) makes the budget unusable: raises Unscalable.
        """
        if all_pods:
            return len(pods)
        wanted: dict[str, int] = {}
        for pod in pods:
            owners = pod["metadata"].get("ownerReferences") or ()
            owner = next((one for one in owners if one.get("controller")), None)
            if owner is None:
                continue
            if owner["kind"] not in ("ReplicaSet", "StatefulSet"):
                group = owner["apiVersion"].partition("/")[0]
                title = f"{owner['kind'].lower()}s.{group}"
                raise Unscalable(f"{title} does not implement the scale subresource")
            try:
                found = self.store.get(owner["kind"], pod["metadata"]["namespace"], owner["name"])
            except NotFound:
                raise Unscalable(f'found no controllers for pod "{pod["metadata"]["name"]}"') from None
            wanted[owner["uid"]] = int(found["spec"].get("replicas", 1))
        return sum(wanted.values())

    def _refresh(self, budget: dict[str, Any]) -> None:
        meta, spec = budget["metadata"], budget.get("spec") or {}
        selects = from_object(spec.get("selector"))
        entries = self.store.list("Pod", meta["namespace"]).entries
        pods = [entry.object() for entry in entries if selects(entry.labels)]
        pods = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in _FINISHED]
        disrupted = {
            name: since
            for name, since in ((budget.get("status") or {}).get("disruptedPods") or {}).items()
            if any(
                pod["metadata"]["name"] == name and not pod["metadata"].get("deletionTimestamp")
                for pod in pods
            )
        }
        healthy = sum(is_healthy(pod) and pod["metadata"]["name"] not in disrupted for pod in pods)
        minimum = spec.get("minAvailable")
        try:
            all_pods = "maxUnavailable" not in spec and not isinstance(minimum, str)
            expected = self._expected(pods, all_pods=all_pods)
        except Unscalable as problem:
            self._fail(budget, str(problem))
            return
        if "maxUnavailable" in spec:
            desired = max(0, expected - _scaled(spec["maxUnavailable"], expected, up=True))
        else:
            desired = _scaled(1 if minimum is None else minimum, expected, up=True)
        allowed = max(0, healthy - desired) if expected else 0
        before = budget.get("status") or {}
        status: dict[str, Any] = {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": allowed,
            "expectedPods": expected,
            "observedGeneration": meta.get("generation", 1),
        }
        if disrupted:
            status["disruptedPods"] = disrupted
        reason = "SufficientPods" if allowed else "InsufficientPods"
        status["conditions"] = [self._allows(before, "True" if allowed else "False", reason, "", meta)]
        if status != before:
            self._store_status(meta, status)

    def _fail(self, budget: dict[str, Any], why: str) -> None:
        """Allow nothing while the budget cannot be computed."""
        before = budget.get("status") or {}
        zero = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}
        status = zero | before | {"disruptionsAllowed": 0}
        status["conditions"] = [self._allows(before, "False", "SyncFailed", why, budget["metadata"])]
        if status != before:
            self._store_status(budget["metadata"], status)

    def _allows(
        self, before: dict[str, Any], status: str, reason: str, message: str, meta: dict[str, Any]
    ) -> dict[str, Any]:
        shown = next(
            (one for one in before.get("conditions") or () if one["type"] == "DisruptionAllowed"), None
        )
        is_same = shown is not None and shown["status"] == status
        return {
            "type": "DisruptionAllowed",
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": meta.get("generation", 1),
            "lastTransitionTime": shown["lastTransitionTime"] if shown and is_same else self._now(),
        }

    def _store_status(self, meta: dict[str, Any], status: dict[str, Any]) -> None:
        def change(budget: dict[str, Any]) -> dict[str, Any]:
            return budget | {"status": status}

        self.store.mutate(
            "PodDisruptionBudget",
            meta["namespace"],
            meta["name"],
            change,
            actor=CONTROLLER,
            subresource="status",
            uid=meta["uid"],
        )

    def _now(self) -> str:
        return rfc3339(self.store.clock())

    # Eviction

    def evict(
        self,
        namespace: str,
        name: str,
        *,
        actor: str,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        dry_run: bool = False,
        note: Note,
    ) -> None:
        """Delete a pod if every budget over it allows. Raises TooManyRequests naming the budget that does not.

        Pods that hold no budget (finished, pending, already leaving) go without being asked for. A pod that
        goes carries the condition DisruptionTarget with reason EvictionByEvictionAPI.
        """
        store = self.store
        with store.lock:
            pod = store.get("Pod", namespace, name)
            meta = pod["metadata"]
            if uid is not None and uid != meta["uid"]:
                raise Conflict.precondition("pods", name, "UID", uid, meta["uid"])
            if resource_version is not None and resource_version != meta["resourceVersion"]:
                raise Conflict.precondition(
                    "pods", name, "ResourceVersion", resource_version, meta["resourceVersion"]
                )
            phase = (pod.get("status") or {}).get("phase")
            if phase not in (*_FINISHED, "Pending") and not meta.get("deletionTimestamp"):
                self._ask_budgets(pod, actor=actor, dry_run=dry_run)
            if not dry_run and not meta.get("deletionTimestamp"):
                self._mark_disrupted(pod, actor)
            store.delete(
                "Pod",
                namespace,
                name,
                actor=actor,
                uid=meta["uid"],
                grace_period_seconds=grace_period_seconds,
                dry_run=dry_run,
                note=note,
            )

    def _ask_budgets(self, pod: dict[str, Any], *, actor: str, dry_run: bool) -> None:
        meta = pod["metadata"]
        labels = meta.get("labels") or {}
        budgets = [
            budget
            for budget in self.store.list("PodDisruptionBudget", meta["namespace"]).items
            if from_object((budget.get("spec") or {}).get("selector"))(labels)
        ]
        if len(budgets) > 1:
            raise ApiError(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            )
        for budget in budgets:
            status, spec = budget["status"], budget["spec"]
            if not is_healthy(pod):
                policy = spec.get("unhealthyPodEvictionPolicy", "IfHealthyBudget")
                satisfied = status["currentHealthy"] >= status["desiredHealthy"] > 0
                if policy == "AlwaysAllow" or satisfied:
                    continue
            if status["disruptionsAllowed"] <= 0:
                raise _refused(budget)
            if not dry_run:
                disrupted = {**(status.get("disruptedPods") or {}), meta["name"]: self._now()}
                left = {"disruptedPods": disrupted, "disruptionsAllowed": status["disruptionsAllowed"] - 1}
                self._store_status(budget["metadata"], status | left)

    def _mark_disrupted(self, pod: dict[str, Any], actor: str) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._now(),
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }

        def change(present: dict[str, Any]) -> dict[str, Any]:
            status = present.setdefault("status", {})
            others = [one for one in status.get("conditions") or () if one["type"] != "DisruptionTarget"]
            status["conditions"] = [*others, condition]
            return present

        meta = pod["metadata"]
        self.store.mutate("Pod", meta["namespace"], meta["name"], change, actor=actor, subresource="status")


def _refused(budget: dict[str, Any]) -> TooManyRequests:
    name, status = budget["metadata"]["name"], budget["status"]
    cause = (
        f"The disruption budget {name} needs {status['desiredHealthy']} healthy pods and has "
        f"{status['currentHealthy']} currently"
    )
    return TooManyRequests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        details={"causes": [{"reason": "DisruptionBudget", "message": cause}]},
    )
