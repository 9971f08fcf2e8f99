"""Facts that a verdict rests on, read from signals. Source: DOMAIN section 7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from recovery.rules import ends
from recovery.rules.ends import EndRule
from recovery.signals import EndCause, Signal, SignalKind, WorkerKey

MAX_LINES = 200
SAID_OF_LINE = 80  # characters of a log line that a title quotes
MAX_LINE = 4096


class Role(StrEnum):
    """What a fact is to a failure."""

    CAUSE = "cause"
    SYMPTOM = "symptom"
    CHECK = "check"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that was seen. ``weight`` in [0, 1] is how strongly it speaks for ``category``."""

    signal: int
    at: datetime
    attempt: int
    role: Role
    rule: str
    category: str
    text: str
    weight: float
    order: int = 1  # among facts at the same time, see EndRule
    worker: str = ""
    node: str = ""


def signal_number(value: object) -> int | None:
    """The number of a signal told as number or name, or None."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65:
        return value
    if isinstance(value, str):
        names = {name: number for number, name in ends.SIGNAL_NAMES.items()}
        return names.get(value.upper(), names.get(f"SIG{value.upper()}"))
    return None


def exit_code(value: object) -> int | None:
    """An exit code as told, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def lines_of(data: Mapping[str, Any]) -> list[str]:
    """The log lines in a signal, cut to what is read."""
    lines: list[str] = []
    for name in ("log_tail", "kernel_log", "lines"):
        value = data.get(name)
        if isinstance(value, list | tuple):
            lines += [str(line)[:MAX_LINE] for line in value[-MAX_LINES:]]
    return lines


def symptom_in(lines: list[str]) -> str:
    """The first line that only a survivor of a dead peer writes, or ""."""
    for line in lines:
        small = line.lower()
        if any(phrase in small for phrase in ends.SYMPTOMS):
            return line.strip()[:200]
    return ""


def rule_of_process(data: Mapping[str, Any]) -> tuple[EndRule, str]:
    """What the end of a process means, and how it ended in words."""
    number = signal_number(data.get("signal"))
    code = exit_code(data.get("exit_code"))
    how = "no exit code told" if code is None else f"exit code {code}"
    if number is None and code is not None and 128 < code < 128 + 65:
        number = code - 128  # a shell between agent and process
    if number is not None:
        how = ends.SIGNAL_NAMES.get(number, f"signal {number}")
        if number in ends.BY_SIGNAL and not (number == 6 and symptom_in(lines_of(data))):
            # An abort after a collective's time-out is the watchdog's own: a symptom.
            return ends.BY_SIGNAL[number], how
    elif code is not None and code in ends.BY_EXIT_CODE:
        return ends.BY_EXIT_CODE[code], how
    if line := symptom_in(lines_of(data)):
        return ends.SYMPTOM, f"{how}: {line if len(line) <= SAID_OF_LINE else line[:SAID_OF_LINE] + '…'}"
    return ends.UNKNOWN, how


def rule_of_container(data: Mapping[str, Any]) -> tuple[EndRule, str]:
    """What the end of an incarnation means, and how it ended in words."""
    cause = end_cause(data)
    rule = ends.BY_CAUSE[cause]
    if cause is not EndCause.CRASHED:
        return rule, str(data.get("reason") or cause)
    number, code = signal_number(data.get("signal")), exit_code(data.get("exit_code"))
    if number is not None:
        return rule, ends.SIGNAL_NAMES.get(number, f"signal {number}")
    reason = str(data.get("reason") or "no reason told")
    return rule, f"exit code {code}" if code is not None else reason


def end_cause(data: Mapping[str, Any]) -> EndCause:
    """The cause of an incarnation's end; one that is not known counts as a crash."""
    try:
        return EndCause(str(data.get("cause")))
    except ValueError:
        return EndCause.CRASHED


def fact_of_end(signal: Signal, *, worker: WorkerKey, node: str, attempt: int) -> Fact:
    """What a signal about an end or a hang says: of the process, or of the incarnation."""
    if signal.kind is SignalKind.INCARNATION_ENDED:
        rule, how = rule_of_container(signal.data)
    elif signal.kind is SignalKind.ENROLLED:
        rule, how = ends.BY_CAUSE[EndCause.REPLACED], "replaced"
    elif signal.kind is SignalKind.HANG:
        rule, how = ends.HANG, _hang_words(signal.data)
    elif signal.kind is SignalKind.ACK:
        rule, how = ends.CHECK_FAILED, failed_checks(signal.data)
    elif signal.phase is not None and signal.phase != "command":
        rule, how = ends.CHECK_ERROR, failed_checks(signal.data) or rule_of_process(signal.data)[1]
    else:
        rule, how = rule_of_process(signal.data)
    text = rule.says.format(worker=worker, how=how)
    text = text[:1].upper() + text[1:]
    return Fact(
        signal=signal.id,
        at=signal.seen_at,
        attempt=attempt,
        role=Role.SYMPTOM if rule is ends.SYMPTOM else Role.CAUSE,
        rule=rule.id,
        category=rule.category,
        text=f"{text} on {node}" if node else text,
        weight=rule.weight,
        order=rule.order,
        worker=str(worker),
        node=node,
    )


def ended_alike(one: Fact, other: Fact) -> bool:
    """Whether two ends are alike: of the same worker or on the same node, by the same rule, exit code or signal."""
    is_same_place = one.worker == other.worker or (one.node != "" and one.node == other.node)
    return is_same_place and (one.rule, _without_place(one)) == (other.rule, _without_place(other))


def _without_place(fact: Fact) -> str:
    text = fact.text.removesuffix(f" on {fact.node}") if fact.node else fact.text
    return text.casefold().replace(fact.worker.casefold(), "", 1)


def _hang_words(data: Mapping[str, Any]) -> str:
    step, seconds = data.get("step"), data.get("seconds_since_progress")
    words = f"no progress since step {step}" if step is not None else "no progress"
    if not isinstance(seconds, int | float):
        return words
    words += f" for {float(seconds):.0f} s"
    judged_as, allowed = data.get("judged_as"), data.get("allowed_seconds")
    if not judged_as or not isinstance(allowed, int | float):
        return words
    return f"{words} ({str(judged_as)[:40]}, allowed {float(allowed):.0f} s)"


def checks_in(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The check results in an ACK or Error, whatever else came instead left out."""
    value = data.get("checks")
    if not isinstance(value, list | tuple):
        return []
    return [check for check in value if isinstance(check, Mapping)]


def failed_checks(data: Mapping[str, Any], *, hardware_only: bool = False) -> str:
    """The failed checks in words, "" when none failed."""
    return "; ".join(
        f"{check.get('check')}: {check.get('detail') or 'failed'}"[:200]
        for check in checks_in(data)
        if check.get("result") == "fail" and (not hardware_only or check.get("check") in ends.HARDWARE_CHECKS)
    )


def facts_of_checks(signal: Signal, *, worker: WorkerKey, node: str, attempt: int) -> list[Fact]:
    """One fact a check: a fail speaks against the machine (hardware) or environment, a pass for it."""
    facts = []
    for check in checks_in(signal.data):
        name, result = str(check.get("check")), str(check.get("result"))
        if result not in {"pass", "fail"}:
            continue  # a time-out or "could not run" is no evidence
        is_hardware = name in ends.HARDWARE_CHECKS
        detail = f": {check.get('detail')}" if check.get("detail") else ""
        facts.append(
            Fact(
                signal=signal.id,
                at=signal.seen_at,
                attempt=attempt,
                role=Role.CHECK,
                rule=f"check.{result}",
                category=f"check_{result}",
                text=f"{worker}: {name} check {result}{detail}"[:300],
                weight=(0.95 if is_hardware else 0.6) if result == "fail" else 0.3,
                worker=str(worker),
                node=node,
            )
        )
    return facts
