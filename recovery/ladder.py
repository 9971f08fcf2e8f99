"""Verdict and history -> the cheapest remedy that will work, and what was refused. Source: DOMAIN section 7."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from recovery.diagnosis import Diagnosis
from recovery.lifecycle import INSTALLED_ACTIONS, ActionKind
from recovery.records import Considered, PastAttempt, Policy
from recovery.rules.rule import Remedy as Wanted

NOT_INSTALLED = "remedy not installed"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice looks at, of one job that stands still."""

    category: str
    reason: str  # the verdict's sentence
    workers: int  # present ones
    checks_clean: int
    checks_failed: tuple[str, ...] = ()  # in words
    silent: tuple[str, ...] = ()  # did not confirm the stop in time
    departed: tuple[str, ...] = ()  # finished and left, but needed
    restart_failed: str = ""  # why the restart in place did not work, in this incident
    over_budget: str = ""  # "failures 3 of 2"
    failures_in_window: int = 0
    stuck_restarts: int = 0  # attempts in a row that ended at the same step
    stuck_step: int | None = None
    diagnosis: Diagnosis | None = None  # what the whole evidence says, where there is any
    rebuilt: str = ""  # the worker that failed, where its container is a new one since


@dataclass(frozen=True, slots=True)
class Remedy:
    """One remedy that was chosen. ``refused_because`` is set where it cannot be had."""

    kind: ActionKind
    why: str
    refused_because: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Remedies in the order in which they begin, and the rungs that were not taken, with reasons."""

    rung: str
    rule: str
    why: str
    remedies: tuple[Remedy, ...]
    considered: tuple[Considered, ...]
    wait_seconds: float = 0.0


def choose(situation: Situation, policy: Policy, seed: str) -> Choice:
    """The cheapest remedy that will work here.

    Args:
        situation: What is known.
        policy: Thresholds and backoff.
        seed: Jitter seed of the decision (hexadecimal).
    Returns:
        The choice. There is always one, and always at least one rung that was refused.
    """
    if situation.over_budget:
        return _stop(
            "ladder.over_budget",
            f"Over budget: {situation.over_budget}. Last: {situation.reason}",
            Considered("restart_process", f"over budget: {situation.over_budget}"),
        )
    if situation.stuck_restarts > policy.no_progress_restarts:
        return _stop(
            "ladder.no_progress",
            _no_progress(situation),
            Considered("restart_process", _no_progress(situation)),
        )
    if situation.departed:
        who = ", ".join(situation.departed)
        why = f"{who} finished and has left its container, but a restart needs every worker"
        return _ask("", "ladder.departed", why, (Considered("restart_process", why),))
    if situation.restart_failed:
        why = f"Restart in place did not work: {situation.restart_failed}"
        refused = _refusal(ActionKind.RESTART_CONTAINER, "next rung, after the restart in place failed")
        return Choice(
            "L2",
            "ladder.restart_failed",
            why,
            (
                refused,
                Remedy(ActionKind.ASK_PERSON, f"{why}; the next rung, restart container, is not installed"),
            ),
            (
                Considered("restart_process", "tried and failed in this incident"),
                Considered("restart_container", refused.refused_because),
                Considered("hold_node", "no evidence against a machine"),
            ),
        )
    diagnosis = situation.diagnosis
    if diagnosis is not None and diagnosis.may_end_it:
        if diagnosis.verdict.remedy is Wanted.FAIL_FAST:
            return _futile(diagnosis)
        if diagnosis.verdict.remedy is Wanted.NEEDS_OPERATOR:
            why = f"{diagnosis.verdict.reason} ({_times(diagnosis)}): neither a retry nor the user mends it"
            return _ask("", "ladder.needs_operator", why, (Considered("restart_process", why),))
    return _restart_in_place(situation, policy, seed)


def _futile(diagnosis: Diagnosis) -> Choice:
    """Retrying meets the same: stop, and say why."""
    verdict = diagnosis.verdict
    why = f"{verdict.reason} ({_times(diagnosis)}, confidence {verdict.confidence:.2f}, {verdict.rule})"
    return _stop("ladder.fail_fast", why, Considered("restart_process", f"it would meet the same: {why}"))


def _times(diagnosis: Diagnosis) -> str:
    return f"in {diagnosis.times} attempts in a row" if diagnosis.times > 1 else "before the first step"


#: What a verdict asks for and this version cannot do -> the action that is refused for it.
_NOT_TO_BE_HAD = {
    Wanted.RESTART_CONTAINER: ActionKind.RESTART_CONTAINER,
    Wanted.EVICT_AT_CHECKPOINT: ActionKind.EVICT_WORKER,
    Wanted.ISOLATE_NODE: ActionKind.HOLD_NODE,
    Wanted.BACKOFF_SHARED: ActionKind.WAIT_SHARED,
}


def _wanted(situation: Situation) -> tuple[tuple[Remedy, ...], str]:
    """What the verdict asks for beside a restart, refused where it is not installed, and a note of what is done."""
    diagnosis = situation.diagnosis
    if diagnosis is None or not diagnosis.is_strong:
        return (), ""
    verdict = diagnosis.verdict
    where = f" on {verdict.culprit_node}" if verdict.culprit_node else ""
    found = f"{verdict.reason}{where} ({verdict.rule})"
    if verdict.remedy in {Wanted.FAIL_FAST, Wanted.NEEDS_OPERATOR}:
        return (), f"{found}: once more, because only the same again makes sure that it is futile"
    kind = _NOT_TO_BE_HAD.get(verdict.remedy)
    if kind is None or kind in INSTALLED_ACTIONS:
        return (), found
    if kind is ActionKind.RESTART_CONTAINER and situation.rebuilt:
        return (), f"{found}; the container of {situation.rebuilt} is a new one already"
    words = str(kind).replace("_", " ")
    does = "waits and restarts in place" if kind is ActionKind.WAIT_SHARED else "restarts in place"
    return (
        _refusal(kind, found),
    ), f"{found}. That asks for {words}, which is not installed, so the desk {does} instead"


def _shared_wait(situation: Situation, policy: Policy, seed: str) -> float:
    """A shared dependency in trouble is given time from the first failure on; no node is blamed for it."""
    diagnosis = situation.diagnosis
    if diagnosis is None or not diagnosis.is_strong or diagnosis.verdict.remedy is not Wanted.BACKOFF_SHARED:
        return 0.0
    return backoff_seconds(policy.backoff_free_restarts + diagnosis.times, policy, seed)


_WHAT_IS_SO = {
    "process_killed": "Process is gone",
    "process_crashed": "Process is gone",
    "process_terminated": "Process is gone",
    "bad_command": "Command ended at once",
    "hang": "Training hung and is stopped",
    "out_of_memory": "A container ran out of memory, now all workers are there",
    "unknown": "The cause is not known",
}


def _restart_in_place(situation: Situation, policy: Policy, seed: str) -> Choice:
    clean = f"quick checks are clean on {situation.checks_clean} of {situation.workers} workers"
    notes = ["not fully checked"]
    if situation.category == "out_of_memory":
        notes.append("the same may come again: nothing gave it more memory")
    if situation.silent:
        notes.append(f"{', '.join(situation.silent)} did not confirm the stop in time")
    if situation.checks_failed:
        notes.append("; ".join(situation.checks_failed))
    what = _WHAT_IS_SO.get(situation.category, "All workers are there")
    refused, note = _wanted(situation)
    why = f"{what} and {clean}: restart in place ({', '.join(notes)})"
    if note:
        why += f". {note}"
    wait = backoff_seconds(situation.failures_in_window, policy, seed)
    if wait:
        why += f"; failure {situation.failures_in_window} in the window, so it waits {wait:.1f} s"
    elif wait := _shared_wait(situation, policy, seed):
        why += f"; so it waits {wait:.1f} s"
    rebuilt = f"the container of {situation.rebuilt} is a new one already" if situation.rebuilt else ""
    considered = {
        "restart_container": rebuilt or "dearer, and nothing speaks against the environment",
        "hold_node": "no failed hardware check, no device error",
        "stop_job": "the budget is not used up, and it is not the same step again and again",
    } | {str(remedy.kind): f"{remedy.refused_because}: {remedy.why}" for remedy in refused}
    return Choice(
        "L1",
        "ladder.restart_in_place",
        why,
        (*refused, Remedy(ActionKind.RESTART_PROCESS, why)),
        tuple(Considered(kind, because) for kind, because in considered.items()),
        wait,
    )


def _stop(rule: str, why: str, *considered: Considered) -> Choice:
    return Choice(
        "",
        rule,
        why,
        (
            Remedy(ActionKind.STOP_JOB, why),
            Remedy(ActionKind.ASK_PERSON, f"{why}. The job is suspended, not deleted."),
        ),
        considered,
    )


def _ask(rung: str, rule: str, why: str, considered: tuple[Considered, ...]) -> Choice:
    return Choice(rung, rule, why, (Remedy(ActionKind.ASK_PERSON, why),), considered)


def _refusal(kind: ActionKind, why: str) -> Remedy:
    return Remedy(kind, why, "" if kind in INSTALLED_ACTIONS else NOT_INSTALLED)


def _no_progress(situation: Situation) -> str:
    where = "before the first step" if situation.stuck_step is None else f"at step {situation.stuck_step}"
    return f"No progress: {situation.stuck_restarts} attempts in a row ended {where}"


def isolate(worker: str, node: str, failed: str) -> Choice:
    """What a failed hardware check asks for: the machine, which this version cannot hold."""
    where = node or f"the machine of {worker}"
    why = f"{failed} on {where}: {worker} leaves, the machine should be isolated"
    refused = _refusal(ActionKind.HOLD_NODE, why)
    return Choice(
        "L3",
        "ladder.isolate",
        why,
        (refused, Remedy(ActionKind.ASK_PERSON, f"{why}, by hand: isolation is not installed")),
        (
            Considered("restart_process", f"a hardware check failed on {where}"),
            Considered("restart_container", f"a hardware check failed on {where}"),
            Considered("hold_node", refused.refused_because),
        ),
    )


def backoff_seconds(failures: int, policy: Policy, seed: str) -> float:
    """Wait before the restart after the n-th failure in the window: exponential, with full jitter.

    The first ``backoff_free_restarts`` wait for nothing.
    """
    over = failures - policy.backoff_free_restarts
    if over <= 0 or policy.backoff_base_seconds <= 0:
        return 0.0
    ceiling = policy.backoff_base_seconds * policy.backoff_factor ** min(over - 1, 32)
    return round(min(policy.backoff_cap_seconds, ceiling) * fraction(seed), 3)


def jitter_seed(subject_key: str, n: int) -> str:
    """Seed of a decision's jitter: no random source, so that replay waits as long."""
    return hashlib.sha256(f"{subject_key}/{n}".encode()).hexdigest()[:16]


def fraction(seed: str) -> float:
    """A number in [0, 1) from a seed."""
    return int(seed, 16) / 16 ** len(seed) if seed else 0.0


def failures_in_window(attempts: Sequence[PastAttempt], now: datetime, policy: Policy) -> int:
    """How many attempts ended within the backoff window, in a failure that counted."""
    begin = now - timedelta(seconds=policy.backoff_window_seconds)
    return sum(attempt.counted and attempt.ended_at >= begin for attempt in attempts)


def stuck(attempts: Sequence[PastAttempt], policy: Policy) -> tuple[int, int | None]:
    """How many attempts in a row, up to the newest, ended at the same step, and at which.

    None = no step was seen; then only attempts that ended before they had to step belong to the row, because
    a job whose progress cannot be read may have trained for weeks.
    """
    counted = [attempt for attempt in attempts if attempt.counted]
    if not counted:
        return 0, None
    step = counted[-1].last_step
    row = 0
    for attempt in reversed(counted):
        ran = (attempt.ended_at - attempt.started_at).total_seconds()
        if attempt.last_step != step or (step is None and ran > policy.start_seconds):
            break
        row += 1
    return row, step
