"""What a failed pod means to its Job: the podFailurePolicy, and how indexes are written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

COUNT, IGNORE, FAIL_JOB = "Count", "Ignore", "FailJob"


@dataclass(frozen=True)
class Ruling:
    """What to do about one failed pod; ``message`` is for the Job's condition when the action is FailJob."""

    action: str
    message: str = ""


def judge(pod: Mapping[str, Any], policy: Mapping[str, Any] | None) -> Ruling:
    """The first rule that matches decides; without one the failure counts."""
    for number, rule in enumerate((policy or {}).get("rules") or []):
        if "onExitCodes" in rule:
            matched = _by_exit_code(pod, rule["onExitCodes"])
        else:
            matched = _by_condition(pod, rule.get("onPodConditions") or [])
        if matched:
            where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            message = f"{matched.format(pod=where)} matching {rule['action']} rule at index {number}"
            return Ruling(str(rule["action"]), message)
    return Ruling(COUNT)


def _by_exit_code(pod: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    for container in (
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ):
        ended = (container.get("state") or {}).get("terminated")
        if ended is None or ended["exitCode"] == 0:
            continue
        if wanted.get("containerName") not in (None, container["name"]):
            continue
        is_listed = ended["exitCode"] in wanted["values"]
        if is_listed == (wanted["operator"] == "In"):
            return f"Container {container['name']} for pod {{pod}} failed with exit code {ended['exitCode']}"
    return ""


def _by_condition(pod: Mapping[str, Any], patterns: Iterable[Mapping[str, Any]]) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or []
    for pattern in patterns:
        for condition in conditions:
            if condition["type"] == pattern["type"] and condition["status"] == pattern.get("status", "True"):
                return f"Pod {{pod}} has condition {condition['type']}"
    return ""


def is_past_restart_limit(pods: Iterable[Mapping[str, Any]], backoff_limit: int) -> bool:
    """Under restartPolicy OnFailure the container restarts of the living pods are added up against the limit."""
    restarts = 0
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("phase") in ("Running", "Pending"):
            restarts += sum(int(c["restartCount"]) for c in status.get("initContainerStatuses") or [])
            restarts += sum(int(c["restartCount"]) for c in status.get("containerStatuses") or [])
    return restarts > 0 if backoff_limit == 0 else restarts >= backoff_limit


def spell_indexes(indexes: Iterable[int]) -> str:
    """Completed indexes as a Job's status has them: "0-2,5"."""
    spans: list[list[int]] = []
    for index in sorted(indexes):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
