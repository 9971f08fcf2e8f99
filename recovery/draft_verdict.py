"""What the evidence of the attempt that failed says by now, as a decision goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recovery import comparisons, diagnosis, history
from recovery import culprit as verdicts
from recovery.draft import Draft
from recovery.evidence import Fact, Role
from recovery.lifecycle import ActionKind
from recovery.records import AttemptChange, Finding
from recovery.signals import Signal, WorkerKey


def judged_facts(draft: Draft) -> list[Fact]:
    """The facts of the attempt that failed."""
    return [fact for fact in draft.facts if fact.attempt == draft.failed_attempt]


def judge_failure(draft: Draft) -> verdicts.Verdict:
    """What the evidence says by now."""
    return verdicts.judge(judged_facts(draft), uncertainty_seconds=draft.policy.late_uncertainty_seconds)


def observe(draft: Draft, signal: Signal, key: WorkerKey | None, node: str, attempt: int, role: Role) -> None:
    """What a signal of an attempt says for its diagnosis."""
    draft.seen.take(
        diagnosis.observe(
            signal, worker=str(key or ""), index=key.index if key else 0, node=node, attempt=attempt,
            is_cause=role is Role.CAUSE,
        )
    )  # fmt: skip


def diagnose(draft: Draft) -> tuple[diagnosis.Diagnosis | None, dict[str, Any]]:
    """What the whole evidence of the failed attempt says would mend it, and what is kept of that."""
    attempt = draft.attempt
    past = next((each for each in reversed(draft.past) if each.n == draft.failed_attempt), None)
    is_present = attempt is not None and attempt.n == draft.failed_attempt
    step = draft.last_step() if is_present else past.last_step if past is not None else None
    of = attempt if is_present else past
    ran = ((of.ended_at or draft.now) - of.started_at).total_seconds() if of is not None else 0.0
    has_stepped = step is not None or (of is not None and of.first_step_at is not None)
    return draft.seen.judge(
        draft.failed_attempt or 0,
        culprit=judge_failure(draft).worker,
        known=history.Known(
            attempts=draft.past,
            earlier=draft.before.earlier,
            machines=draft.before.machines,
            lives=draft.before.incarnations,
            start_seconds=draft.policy.start_seconds,
        ),
        checkpoints=draft.before.checkpoints,
        world=draft.before.world,
        last_step=step,
        before_first_step=not has_stepped and ran <= draft.policy.start_seconds,
    )


def store_verdict(draft: Draft) -> verdicts.Verdict:
    """Judge, and keep it with its facts in the incident."""
    verdict = judge_failure(draft)
    found, kept = diagnose(draft)
    if found is not None and found.found is not None and draft.before.machines is not None:
        keep_finding(draft, found.found)
    facts = judged_facts(draft)
    causes = [fact for fact in facts if fact.role is not Role.CONTEXT]
    context = [fact for fact in facts if fact.role is Role.CONTEXT]
    stored = verdicts.to_stored(verdict, [*context[-10:], *causes[-40:]], draft.checked)
    if found is not None:
        strong = diagnosis.lines(found.verdict.evidence) if found.is_strong else []
        stored["evidence"] = [*strong, *found.compared, *stored["evidence"]]
    if found is not None and found.is_strong:
        stored["contradicts"] = [*stored["contradicts"], *diagnosis.lines(found.verdict.contradictions)]
    draft.verdict = stored | kept | {"attempt": draft.failed_attempt, "checked": dict(draft.checked)}
    if draft.slow is not None and draft.slow.attempt == draft.failed_attempt:
        draft.verdict["slow"] = comparisons.to_stored(draft.slow)
    told = draft.elastic_told
    if isinstance(told, Mapping) and told.get("attempt") == draft.failed_attempt:
        draft.verdict["elastic"] = dict(told)
    draft.incident.set(verdict=draft.verdict)
    return verdict


def keep_finding(draft: Draft, found: Finding) -> None:
    """Keep with the failed attempt what it was found to be, once it has ended and where that is new."""
    n = draft.failed_attempt
    if all(each.n != n or each.found == found for each in draft.past):
        return
    draft.past = [replace(each, found=found) if each.n == n else each for each in draft.past]
    if any(each.ends == n for each in draft.attempts):
        draft.attempts = [replace(each, found=found) if each.ends == n else each for each in draft.attempts]
    else:
        draft.attempts.append(AttemptChange(n=n, found=found))


def retitle(draft: Draft, fact: Fact) -> None:
    """Name the open incident after what is known by now, unless its title tells of a stop."""
    verdict = judge_failure(draft)
    is_stopping = draft.job.is_terminal or draft.is_wanted(ActionKind.STOP_JOB)
    if draft.incident.is_open and not is_stopping and verdict.rule == fact.rule:
        draft.incident.set(title=verdict.reason)
