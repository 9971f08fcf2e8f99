"""The verdict of recovery.verdict within a decision: signals of one attempt and the job's past as its evidence.

Signals bring logs, ends and checks one inbox after another, so what a verdict needs of them is kept, cut small,
with the incident. A verdict never changes who counts: it explains, and the ladder asks it which remedy helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from recovery import around, findings, history
from recovery import evidence as seen
from recovery.observed import Evidence, RankView, evidence_from_plain
from recovery.past import History
from recovery.records import CheckpointView, Finding, WorldView
from recovery.rules.rule import EvidenceClass, RuleSet
from recovery.scan import scan
from recovery.signals import EndCause, Signal, SignalKind
from recovery.verdict import Cited, Refused, Verdict, judge

#: Workers whose own words are read in one decision; survivors beyond them say the same.
MAX_WORKERS = 16
#: Lines kept of one worker: those that a rule hits, and the last ones.
MAX_KEPT_LINES = 24
LAST_LINES = 3
MAX_KEPT_LINE = 1000
MAX_DIAGNOSED = 20

#: From this confidence on a job may be stopped, or a person asked, on a verdict.
SURE = 0.75


@dataclass(frozen=True, slots=True)
class Observation:
    """What one worker's signals of one attempt say, cut to what a verdict needs."""

    worker: str
    index: int
    node: str
    at: datetime
    attempt: int
    is_cause: bool
    log: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: str = ""
    pod_reason: str = ""
    checks: Mapping[str, str] | None = None
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A verdict, and whether earlier attempts say the same.

    ``likeness`` is what other jobs' failures are compared by (recovery.around); ``own_rule`` found it without a
    look at them, so that later attempts are compared by what this job met.
    """

    verdict: Verdict
    times: int  # attempts in a row with this very finding, this one included
    before_first_step: bool
    likeness: str = ""
    own_rule: str = ""
    found: Finding | None = None  # what later attempts and other jobs are compared with
    compared: tuple[str, ...] = ()  # what the past was found to say, in words

    @property
    def is_strong(self) -> bool:
        """Whether it names a cause, so that the remedy may follow it; less only explains."""
        return self.verdict.rule != "none" and self.verdict.evidence_class >= EvidenceClass.LOG

    @property
    def may_end_it(self) -> bool:
        """Whether a job may be stopped on it: sure, and the past agrees. Stopping wrongly is the dearest mistake.

        Own memory that is exhausted before the first step is met again at every start: the past need not agree.
        """
        if not self.is_strong or self.verdict.confidence < SURE:
            return False
        own_memory = self.verdict.category in {"host_oom", "gpu_oom"} and self.before_first_step
        return self.times >= 2 or own_memory


def observe(
    signal: Signal, *, worker: str, index: int, node: str, attempt: int, is_cause: bool
) -> Observation | None:
    """What a signal says for a verdict, uncut; None when it says nothing of that kind."""
    data = signal.data
    checks = {
        str(check.get("check")): str(check.get("result"))
        for check in seen.checks_in(data)
        if check.get("result") in {"pass", "fail", "timeout"}
    }
    details = [
        part
        for check in seen.checks_in(data)
        if check.get("result") == "fail"
        for part in str(check.get("detail") or "").split(" | ")
    ]
    metrics = _metrics(signal)
    found = Observation(
        worker=worker,
        index=index,
        node=node,
        at=signal.seen_at,
        attempt=attempt,
        is_cause=is_cause,
        log=_lines(data, "log_tail", "lines"),
        kernel=(*_lines(data, "kernel_log"), *(part for part in details if part)),
        conditions=_conditions(signal),
        exit_code=seen.exit_code(data.get("exit_code")),
        signal=str(data.get("signal") or ""),
        pod_reason=_pod_reason(signal),
        checks=checks or None,
        metrics=metrics or None,
    )
    says = (found.log, found.kernel, found.conditions, found.checks, found.pod_reason, found.signal)
    return found if any(says) or found.exit_code is not None or metrics else None


def _pod_reason(signal: Signal) -> str:
    """The cluster's word for an end. For a lost node it may have none, or one that fits any pod: its cause says it."""
    if signal.kind is not SignalKind.INCARNATION_ENDED:
        return ""
    reason = str(signal.data.get("reason") or "")
    is_lost = seen.end_cause(signal.data) is EndCause.NODE_LOST
    return "NodeLost" if is_lost and not reason.startswith("DeletionBy") else reason


def _metrics(signal: Signal) -> dict[str, float]:
    """Numbers that a signal tells: how long a hang stands still, and what a metrics source measured."""
    told = {"seconds_since_progress": signal.data.get("seconds_since_progress")}
    if signal.kind is SignalKind.METRIC:
        told[str(signal.data.get("name"))[:100]] = signal.data.get("value")
    return {
        name: float(value)
        for name, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
    }


def _lines(data: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    return tuple(
        str(line)
        for name in names
        if isinstance(data.get(name), list | tuple)
        for line in data[name][-seen.MAX_LINES :]
    )


def _conditions(signal: Signal) -> tuple[str, ...]:
    data = signal.data
    if signal.kind is SignalKind.NODE_CONDITION:
        reason = " ".join(str(data[name]) for name in ("reason", "message") if data.get(name))
        return (f"{data.get('type')}={data.get('status')}: {reason}"[:MAX_KEPT_LINE],)
    if signal.kind is SignalKind.ALERT:
        labels = data.get("labels")
        name = labels.get("alertname") if isinstance(labels, Mapping) else ""
        return (f"Event: alert {name}"[:MAX_KEPT_LINE],)
    if signal.kind is SignalKind.NODE_EVENT:
        return (f"Event: {data.get('reason')} {data.get('message') or ''}"[:MAX_KEPT_LINE],)
    if signal.kind is SignalKind.POD_WAITING:
        return (
            " ".join(str(data[name]) for name in ("reason", "message") if data.get(name))[:MAX_KEPT_LINE],
        )
    return ()


def merged(observations: Iterable[Observation]) -> list[Observation]:
    """One observation a worker: causes first, then who spoke first. A later one fills what the first left open."""
    by_worker: dict[str, Observation] = {}
    for one in sorted(observations, key=lambda each: (not each.is_cause, each.at, each.worker)):
        first = by_worker.get(one.worker)
        if first is None:
            by_worker[one.worker] = one
            continue
        by_worker[one.worker] = replace(
            first,
            log=first.log or one.log,
            kernel=tuple(dict.fromkeys((*first.kernel, *one.kernel))),
            conditions=tuple(dict.fromkeys((*first.conditions, *one.conditions))),
            exit_code=one.exit_code if first.exit_code is None else first.exit_code,
            signal=first.signal or one.signal,
            pod_reason=first.pod_reason or one.pod_reason,
            checks={**(first.checks or {}), **(one.checks or {})} or None,
            metrics={**(one.metrics or {}), **(first.metrics or {})} or None,
        )
    return list(by_worker.values())


def cut(observation: Observation, rules: RuleSet) -> Observation:
    """Only the lines that a rule hits, and the last ones."""
    if len(observation.log) + len(observation.kernel) <= MAX_KEPT_LINES:
        return observation
    found = scan(Evidence(log=observation.log, kernel=observation.kernel), rules)
    hit = {line.text for lines in found.hits.values() for line in lines}

    def kept(lines: tuple[str, ...]) -> tuple[str, ...]:
        last = len(lines) - LAST_LINES
        chosen = [line[:MAX_KEPT_LINE] for n, line in enumerate(lines) if line in hit or n >= last]
        return tuple(chosen[-MAX_KEPT_LINES:])

    return replace(observation, log=kept(observation.log), kernel=kept(observation.kernel))


def diagnose(
    observations: Sequence[Observation],
    *,
    culprit: str,
    known: history.Known,
    diagnosed: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[CheckpointView],
    world: WorldView | None,
    attempt: int,
    before_first_step: bool,
    rules: RuleSet,
) -> Diagnosis | None:
    """Judge an attempt.

    Args:
        observations: One a worker (``merged``), causes first.
        culprit: Worker that failed first, "" where nobody is known to have.
        known: Finished attempts of the job and its lineage, and the machines involved.
        diagnosed: What earlier attempts were found to have ended by, as ``as_past`` keeps it.
    Returns:
        None where no signal says anything.
    """
    if not observations:
        return None
    evidence = _evidence(observations, culprit, checkpoints, world, before_first_step)
    # Attempts are compared by what rules name: precedents name nothing, and hear of the past themselves.
    named = replace(rules, precedents=None)
    first = judge(evidence, History(), named)
    found = _found(first, observations, culprit, known, attempt)
    here = history.Present(attempt, found, first.blame, before_first_step)
    compared = history.compare(here, known, diagnosed)
    past = compared.history
    own = judge(evidence, past, named) if past.told else first
    alike = around.likeness(own, evidence.log)
    together = {**around.numbers(world, alike), **evidence.metrics}
    verdict = own
    if len(together) != len(evidence.metrics) or rules.precedents is not None:
        verdict = judge(replace(evidence, metrics=together), past, rules)
    return Diagnosis(verdict, compared.times, before_first_step, alike, own.rule, found, compared.lines)


def _found(
    verdict: Verdict, observations: Sequence[Observation], culprit: str, known: history.Known, attempt: int
) -> Finding:
    """What an attempt is found to be; where the culprit's container is gone by now, its age is as it was known."""
    one = next((each for each in observations if each.worker == culprit), None)
    told = next((each.found for each in known.attempts if each.n == attempt), None)
    lives = [each for each in known.lives if str(each.worker) == culprit and attempt in each.attempts]
    since = min(lives[-1].attempts) if lives else told.container_since if told is not None else None
    return findings.finding(
        verdict,
        node=one.node if one is not None else "",
        rank=one.index if one is not None else None,
        log=one.log if one is not None else (),
        container_since=since,
    )


def _evidence(
    observations: Sequence[Observation],
    culprit: str,
    checkpoints: Sequence[CheckpointView],
    world: WorldView | None,
    before_first_step: bool,
) -> Evidence:
    first = next((one for one in observations if one.worker == culprit), observations[0])
    begin = min(one.at for one in observations)
    metrics: dict[str, Any] = around.numbers(world)
    for one in reversed(observations):  # a node's or job's numbers come without a worker; the culprit's stand
        metrics |= one.metrics or {}
    metrics |= first.metrics or {}
    complete = [point for point in checkpoints if point.state != "written"]
    if complete:
        metrics["older_complete_checkpoints"] = len(complete) - 1
    plain = evidence_from_plain(
        {
            "log_tail": first.log,
            "kernel_log": first.kernel,
            "node_conditions": [each for one in observations for each in one.conditions],
            "exit_code": first.exit_code,
            "signal": first.signal,
            "pod_reason": first.pod_reason,
            "checks": dict(first.checks or {}),
            "metrics": metrics,
            "phase": "bootcheck" if before_first_step else "run",
        }
    )
    ranks = tuple(
        RankView(
            rank=one.index, node=one.node, log=one.log, exit_code=one.exit_code, pod_reason=one.pod_reason,
            first_error_seconds=(one.at - begin).total_seconds() if one.is_cause else None,
        )
        for one in observations[:MAX_WORKERS]
        if one is not first
    )  # fmt: skip
    return replace(plain, ranks=ranks)


def as_past(diagnosis: Diagnosis, *, attempt: int, node: str, step: int | None) -> dict[str, Any]:
    """What later attempts are compared with: plain JSON."""
    return {
        "attempt": attempt,
        "rule": diagnosis.own_rule,
        "category": diagnosis.verdict.category,
        "node": node,
        "step": step,
    }


# As an incident keeps it.


def to_stored(diagnosis: Diagnosis, rules: RuleSet) -> dict[str, Any]:
    """The verdict as plain JSON."""
    verdict = diagnosis.verdict
    return {
        "category": verdict.category,
        "remedy": str(verdict.remedy),
        "blame": str(verdict.blame),
        "reason": verdict.reason,
        "rule": verdict.rule,
        "confidence": verdict.confidence,
        "times": diagnosis.times,
        "is_strong": diagnosis.is_strong,
        "culprit_rank": verdict.culprit_rank,
        "culprit_node": verdict.culprit_node,
        "exit": verdict.exit,
        "evidence": [_cited(each) for each in verdict.evidence],
        "contradicts": [_cited(each) for each in verdict.contradictions],
        "considered": [_refused(each) for each in verdict.considered],
        "unread_lines": verdict.unread_lines,
        "unread_steps": verdict.unread_steps,
        "rules": rules.digest,
        **({"likeness": diagnosis.likeness} if diagnosis.likeness else {}),
        **({"means": verdict.means} if verdict.means else {}),
        **({"compared": list(diagnosis.compared)} if diagnosis.compared else {}),
    }


def lines(cited: Sequence[Cited]) -> list[str]:
    """What a verdict rests on, for people."""
    return [f"{each.text} ({each.rule}, weight {each.weight:.2f})" for each in cited]


def _cited(cited: Cited) -> dict[str, Any]:
    return {"text": cited.text, "rule": cited.rule, "weight": cited.weight}


def _refused(refused: Refused) -> dict[str, Any]:
    return {"remedy": str(refused.remedy), "because": refused.because}


def observations_to_stored(observations: Sequence[Observation]) -> list[dict[str, Any]]:
    """At most MAX_WORKERS, causes first."""
    return [
        {
            "worker": one.worker,
            "index": one.index,
            "node": one.node,
            "at": one.at.isoformat(),
            "attempt": one.attempt,
            "is_cause": one.is_cause,
            "log": list(one.log),
            "kernel": list(one.kernel),
            "conditions": list(one.conditions),
            "exit_code": one.exit_code,
            "signal": one.signal,
            "pod_reason": one.pod_reason,
            "checks": dict(one.checks) if one.checks else None,
            "metrics": dict(one.metrics) if one.metrics else None,
        }
        for one in observations[:MAX_WORKERS]
    ]


def observations_from_stored(rows: Any) -> list[Observation]:
    """What an incident kept; what cannot be read is left out."""
    found = []
    for row in rows if isinstance(rows, list | tuple) else ():
        try:
            found.append(
                Observation(
                    worker=str(row["worker"]),
                    index=int(row["index"]),
                    node=str(row["node"]),
                    at=datetime.fromisoformat(row["at"]),
                    attempt=int(row["attempt"]),
                    is_cause=bool(row["is_cause"]),
                    log=tuple(map(str, row["log"])),
                    kernel=tuple(map(str, row["kernel"])),
                    conditions=tuple(map(str, row["conditions"])),
                    exit_code=seen.exit_code(row["exit_code"]),
                    signal=str(row["signal"]),
                    pod_reason=str(row["pod_reason"]),
                    checks={str(k): str(v) for k, v in row["checks"].items()} if row["checks"] else None,
                    metrics={str(k): float(v) for k, v in row["metrics"].items()} if row["metrics"] else None,
                )
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


class Seen:
    """What the signals of a job's failed attempt say, as a decision goes on; lives only inside a draft."""

    def __init__(self, stored: Mapping[str, Any], rules: RuleSet) -> None:
        self.rules = rules
        self._observations = observations_from_stored(stored.get("seen"))
        self._around = stored.get("around")
        kept = stored.get("diagnosed")
        self._diagnosed = (
            [dict(each) for each in kept if isinstance(each, Mapping)] if isinstance(kept, list) else []
        )

    def take(self, observation: Observation | None) -> None:
        """One more signal's."""
        if observation is not None:
            self._observations.append(observation)

    def judge(
        self,
        attempt: int,
        *,
        culprit: str,
        known: history.Known,
        checkpoints: Sequence[CheckpointView],
        world: WorldView | None,
        last_step: int | None,
        before_first_step: bool,
    ) -> tuple[Diagnosis | None, dict[str, Any]]:
        """The diagnosis of an attempt, and what the incident keeps of it and for the next one (plain JSON)."""
        found = merged(one for one in self._observations if one.attempt == attempt)
        found.sort(key=lambda one: (one.worker != culprit, not one.is_cause, one.at, one.worker))
        found = [cut(one, self.rules) for one in found[:MAX_WORKERS]]
        world = around.worst(world, around.from_kept(self._around, attempt))
        diagnosis = diagnose(
            found, culprit=culprit, known=known, diagnosed=self._diagnosed, checkpoints=checkpoints, world=world,
            attempt=attempt, before_first_step=before_first_step, rules=self.rules,
        )  # fmt: skip
        others = [each for each in self._diagnosed if each.get("attempt") != attempt]
        kept: dict[str, Any] = {"seen": observations_to_stored(found), "diagnosed": others}
        if (troubled := around.as_kept(world, attempt)) is not None:
            kept["around"] = troubled
        if diagnosis is None:
            return None, kept
        if known.machines is None:  # later versions keep it with the attempt
            node = next((one.node for one in found if one.worker == culprit), "")
            entry = as_past(diagnosis, attempt=attempt, node=node, step=last_step)
            kept["diagnosed"] = [*others, entry][-MAX_DIAGNOSED:]
        kept["diagnosis"] = to_stored(diagnosis, self.rules)
        return diagnosis, kept
