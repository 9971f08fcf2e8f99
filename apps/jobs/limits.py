"""Limits around a job that may end it before the desk's own, and what its annotations ask for. Pure.

Source: DOMAIN section 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.facts import FailurePolicyRule, JobFact
from agent import wire
from apps.jobs.elastic import elastic_limits
from recovery.decide import Mode

AGENT_CODES = (wire.EXIT_ORDERED, wire.EXIT_ORDER_WAIT, wire.EXIT_STOPPED, wire.EXIT_CHECK_FAILED)
MOST_RETRIES = 1000
MOST_GRACE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a job's annotations ask for. ``mistakes`` are sentences about values that cannot be used."""

    max_retry: int
    mode: str
    stop_grace_seconds: float
    mistakes: tuple[tuple[str, str], ...] = ()  # (annotation, sentence)


def read_wishes(
    annotations: Mapping[str, str], *, default_max_retry: int, default_grace_seconds: float
) -> Wishes:
    """Read annotations (names without our prefix). A value that cannot be used is as if it were not there."""
    mistakes: list[tuple[str, str]] = []
    max_retry, grace, mode = default_max_retry, default_grace_seconds, ""
    if text := annotations.get("max-retry"):
        if text.isascii() and text.isdigit() and int(text) <= MOST_RETRIES:
            max_retry = int(text)
        else:
            mistakes.append(
                ("max-retry", f"{text!r} is no number from 0 to {MOST_RETRIES}; {max_retry} is used")
            )
    if text := annotations.get("stop-grace-seconds"):
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if 0.0 <= seconds <= MOST_GRACE_SECONDS:
            grace = seconds
        else:
            mistakes.append(
                ("stop-grace-seconds", f"{text!r} is no time from 0 to 3600 s; {grace:g} s is used")
            )
    if text := annotations.get("mode"):
        if text in set(Mode):
            mode = text
        else:
            mistakes.append(("mode", f"{text!r} is none of {', '.join(Mode)}; the cluster's mode is used"))
    return Wishes(max_retry, mode, grace, tuple(mistakes))


def nested_limits(job: JobFact, wishes: Wishes) -> list[dict[str, Any]]:
    """The limits that lie around ours, as rows {"name", "used", "limit", "warning"} ("" = none)."""
    return [
        *_backoff(job, wishes.max_retry),
        *_deadline(job),
        *_failure_policy(job.failure_policy),
        *elastic_limits(job.annotations, wishes.max_retry),
        *({"name": name, "used": None, "limit": None, "warning": text} for name, text in wishes.mistakes),
    ]


def _backoff(job: JobFact, max_retry: int) -> Iterable[dict[str, Any]]:
    if job.backoff_limit_per_index is not None:
        warning = ""
        if job.backoff_limit_per_index < max_retry + 1:
            warning = (
                f"backoffLimitPerIndex {job.backoff_limit_per_index} is less than {max_retry + 1} "
                f"(max retry {max_retry} + 1): the controller gives a worker up before the desk does"
            )
        yield _row("backoffLimitPerIndex", None, job.backoff_limit_per_index, warning)
    if job.backoff_limit is None:
        return
    warning = ""
    if job.restart_policy == "OnFailure":
        # Container restarts and evictions of all pods are added up, and one recovery may restart them all.
        needed = (max_retry + 1) * job.world_size
        if job.backoff_limit < needed:
            warning = (
                f"backoffLimit {job.backoff_limit} is less than {needed} "
                f"((max retry {max_retry} + 1) x {job.world_size} workers, restartPolicy OnFailure): "
                "the controller fails the job before the desk does"
            )
    elif not _ignores_disruption(job.failure_policy):
        warning = (
            "podFailurePolicy does not ignore DisruptionTarget: "
            f"evictions and preemptions count in backoffLimit {job.backoff_limit}"
        )
    elif job.backoff_limit < max_retry + 1:
        warning = (
            f"backoffLimit {job.backoff_limit} is less than {max_retry + 1} (max retry {max_retry} + 1): "
            "lost pods fail the job before the desk does"
        )
    yield _row("backoffLimit", job.failed_pods, job.backoff_limit, warning)


def _deadline(job: JobFact) -> Iterable[dict[str, Any]]:
    if job.active_deadline_seconds is not None:
        seconds = job.active_deadline_seconds
        warning = f"the controller fails the job {seconds} s after its start, whatever it does by then"
        yield _row("activeDeadlineSeconds", None, seconds, warning)


def _failure_policy(rules: tuple[FailurePolicyRule, ...]) -> Iterable[dict[str, Any]]:
    """The first rule that matches a code decides, as in Kubernetes."""
    for code in AGENT_CODES:
        rule = next((each for each in rules if _matches(each, code)), None)
        if rule is not None and rule.action == "FailJob":
            warning = f"podFailurePolicy fails the whole job on exit code {code}, which the agent uses"
            yield _row("podFailurePolicy", None, None, warning)
            return


def _matches(rule: FailurePolicyRule, code: int) -> bool:
    if rule.operator == "In":
        return code in rule.exit_codes
    return rule.operator == "NotIn" and code not in rule.exit_codes


def _ignores_disruption(rules: tuple[FailurePolicyRule, ...]) -> bool:
    return any(rule.action == "Ignore" and "DisruptionTarget" in rule.conditions for rule in rules)


def _row(name: str, used: int | None, limit: int | None, warning: str) -> dict[str, Any]:
    return {"name": name, "used": used, "limit": limit, "warning": warning}
