"""The policy in force, from the settings, and the rows that keep what decisions were made under."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.conf import settings

from apps.incidents.models import PolicyVersion
from apps.incidents.rules import current_rules
from recovery.decide import Mode, Policy
from recovery.rules import registry
from recovery.serialize import fingerprint, to_plain

_STRICTNESS = (Mode.OBSERVE, Mode.APPROVE, Mode.AUTO)


def current_policy() -> Policy:
    """Waiting times and thresholds as set (settings.TIMINGS), as the core takes them."""
    times = settings.TIMINGS
    policy = Policy(
        rules=registry.put(current_rules()),
        cause_hold_seconds=times["CAUSE_HOLD_SECONDS"],
        steady_seconds=times["STEADY_SECONDS"],
        steady_steps=int(times["STEADY_STEPS"]),
        enrol_barrier_seconds=times["ENROL_BARRIER_SECONDS"],
        stop_ack_seconds=times["STOP_ACK_SECONDS"],
        check_seconds=times["CHECK_SECONDS"],
        start_seconds=times["START_SECONDS"],
        restart_process_deadline_seconds=times["RESTART_PROCESS_DEADLINE_SECONDS"],
        stop_job_deadline_seconds=times["STOP_JOB_DEADLINE_SECONDS"],
        ask_person_deadline_seconds=times["ASK_PERSON_DEADLINE_SECONDS"],
        reopen_seconds=times["REOPEN_SECONDS"],
        capacity_deadline_seconds=times["CAPACITY_DEADLINE_SECONDS"],
        backoff_base_seconds=times["BACKOFF_BASE_SECONDS"],
        backoff_cap_seconds=times["BACKOFF_CAP_SECONDS"],
        backoff_free_restarts=int(times["BACKOFF_FREE_RESTARTS"]),
        backoff_window_seconds=times["BACKOFF_WINDOW_SECONDS"],
        no_progress_restarts=int(times["NO_PROGRESS_RESTARTS"]),
        alike_window_seconds=times["ALIKE_WINDOW_SECONDS"],
    )
    return replace(policy, version=fingerprint(policy))


def as_stored(policy: Policy, now: datetime) -> tuple[Policy, PolicyVersion]:
    """A policy under the version that its values have, and the row that keeps them."""
    policy = replace(policy, version=fingerprint(policy))
    row, _ = PolicyVersion.objects.defer("content").get_or_create(
        version=policy.version, defaults={"content": to_plain(policy), "first_used_at": now}
    )
    return policy, row


def effective_mode(*, cluster_mode: str, job_mode: str) -> Mode:
    """The stricter of the cluster's mode and the job's own wish; a job can only ask for less."""
    cluster = Mode(cluster_mode)
    if job_mode not in set(_STRICTNESS):
        return cluster
    return min(cluster, Mode(job_mode), key=_STRICTNESS.index)
