"""How states, figures and kinds are shown: word, shape and color together, and numbers with their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from apps.incidents.models import Incident
from apps.nodes.selectors import NodeState
from recovery.lifecycle import (
    OPEN_INCIDENT_STATES,
    ActionKind,
    ActionState,
    IncidentState,
    Severity,
    WaitingFor,
)
from recovery.phases import Phase
from recovery.rules.rule import Remedy


class Mark(NamedTuple):
    """One state as people see it. ``icon`` is a symbol of the sprite, ``tone`` one of the tokens' colors."""

    word: str
    icon: str
    tone: str  # critical | warn | busy | good | held | quiet


INCIDENT_STATES: Mapping[str, Mark] = {
    IncidentState.SUSPECTED: Mark("suspected", "ring", "warn"),
    IncidentState.OPEN: Mark("open", "triangle", "critical"),
    IncidentState.WAITING: Mark("waiting", "pause", "warn"),
    IncidentState.RECOVERING: Mark("recovering", "arc", "busy"),
    IncidentState.WATCHING: Mark("watching", "eye", "busy"),
    IncidentState.NEEDS_PERSON: Mark("needs a person", "person", "held"),
    IncidentState.RESOLVED: Mark("resolved", "check", "good"),
    IncidentState.CLOSED: Mark("closed", "square", "quiet"),
}
SEVERITIES: Mapping[str, Mark] = {
    Severity.CRITICAL: Mark("critical", "octagon", "critical"),
    Severity.HIGH: Mark("high", "triangle", "critical"),
    Severity.MEDIUM: Mark("medium", "diamond", "warn"),
    Severity.LOW: Mark("low", "dot", "quiet"),
}
PHASES: Mapping[str, Mark] = {
    Phase.PENDING: Mark("pending", "clock", "quiet"),
    Phase.BOOT_CHECKING: Mark("boot checking", "arc", "busy"),
    Phase.RUN_COMMAND: Mark("running", "play", "good"),
    Phase.RESTARTING: Mark("restarting", "arc", "warn"),
    Phase.TROUBLESHOOTING: Mark("troubleshooting", "arc", "warn"),
    Phase.SUCCEEDED: Mark("succeeded", "check", "good"),
    Phase.FAILED: Mark("failed", "cross", "critical"),
    Phase.STOPPED: Mark("stopped", "square", "quiet"),
}
ACTION_STATES: Mapping[str, Mark] = {
    ActionState.PLANNED: Mark("planned", "clock", "quiet"),
    ActionState.AWAITING_APPROVAL: Mark("awaiting approval", "person", "held"),
    ActionState.READY: Mark("ready", "clock", "warn"),
    ActionState.RUNNING: Mark("running", "arc", "busy"),
    ActionState.VERIFYING: Mark("verifying", "eye", "busy"),
    ActionState.DONE: Mark("done", "check", "good"),
    ActionState.FAILED: Mark("failed", "cross", "critical"),
    ActionState.UNKNOWN: Mark("unknown", "ring", "warn"),
    ActionState.REFUSED: Mark("refused", "barred", "held"),
    ActionState.CANCELLED: Mark("cancelled", "square", "quiet"),
    ActionState.SUPERSEDED: Mark("superseded", "square", "quiet"),
}
NODE_STATES: Mapping[str, Mark] = {
    NodeState.READY: Mark("ready", "check", "good"),
    NodeState.TAINTED: Mark("tainted", "pause", "held"),
    NodeState.CORDONED: Mark("cordoned", "barred", "held"),
    NodeState.UNKNOWN: Mark("unknown", "ring", "warn"),
    NodeState.NOT_READY: Mark("not ready", "triangle", "critical"),
    NodeState.GONE: Mark("gone", "cross", "quiet"),
}
CHECKPOINT_STATES: Mapping[str, Mark] = {
    "written": Mark("written", "ring", "warn"),
    "committed": Mark("committed", "check", "good"),
    "verified": Mark("verified", "double-check", "busy"),
}
CHECK_RESULTS: Mapping[str, Mark] = {
    "pass": Mark("pass", "check", "good"),
    "fail": Mark("fail", "cross", "critical"),
    "timeout": Mark("timeout", "clock", "warn"),
    "could_not_run": Mark("could not run", "ring", "quiet"),
}
WATCH_STATES: Mapping[str, Mark] = {
    "watching": Mark("watching", "check", "good"),
    "listing": Mark("listing", "arc", "busy"),
    "starting": Mark("starting", "arc", "busy"),
    "broken": Mark("broken", "triangle", "critical"),
    "behind": Mark("behind", "clock", "warn"),
}
TRY_OUTCOMES: Mapping[str, Mark] = {
    "": Mark("running", "arc", "busy"),
    "sent": Mark("sent", "check", "good"),
    "retryable": Mark("will be tried again", "arc", "warn"),
    "permanent": Mark("refused for good", "cross", "critical"),
    "ambiguous": Mark("outcome not known", "ring", "warn"),
}
USES: Mapping[str, Mark] = {
    "used": Mark("used", "check", "good"),
    "context": Mark("context", "dot", "busy"),
    "late": Mark("late", "clock", "warn"),
    "stale": Mark("stale", "clock", "quiet"),
    "duplicate": Mark("duplicate", "ring", "quiet"),
    "refused": Mark("refused", "barred", "critical"),
}
# Inside a job the phase machine's own words, which orders, logs and the API use too.
INNER_PHASES: Mapping[str, Mark] = {phase: mark._replace(word=str(phase)) for phase, mark in PHASES.items()}
MARKS: Mapping[str, Mapping[str, Mark]] = {
    "incident": INCIDENT_STATES,
    "severity": SEVERITIES,
    "phase": PHASES,
    "inner": INNER_PHASES,
    "action": ACTION_STATES,
    "node": NODE_STATES,
    "checkpoint": CHECKPOINT_STATES,
    "check": CHECK_RESULTS,
    "watch": WATCH_STATES,
    "try": TRY_OUTCOMES,
    "use": USES,
}

WAITING_WORDS: Mapping[str, str] = {
    WaitingFor.APPROVAL: "approval",
    WaitingFor.GUARD: "a guard",
    WaitingFor.CAPACITY: "capacity",
    WaitingFor.QUEUE: "its turn",
    WaitingFor.SAFE_POINT: "a safe point",
    WaitingFor.BACKOFF: "the back-off",
}
ACTION_WORDS: Mapping[str, str] = {str(kind): str(kind).replace("_", " ") for kind in ActionKind} | {
    ActionKind.ASK_PERSON: "ask a person"
}
RUNGS: Mapping[str, str] = {
    "L0": "healed by the framework",
    "L1": "restart process",
    "L2": "restart container",
    "L3": "isolate node",
}
#: Remedies of verdicts whose machine's word does not read as one.
REMEDIES: Mapping[str, str] = {
    Remedy.MARK_HANG: "mark as hang",
    Remedy.FAIL_FAST: "fail fast, stop the job",
    Remedy.BACKOFF_SHARED: "back off from what is shared",
    Remedy.NEEDS_OPERATOR: "ask a person",
}
RESOLUTIONS: Mapping[str, str] = {
    "recovered": "training runs well again",  # it may have run all the while, slowly
    "job_ended": "the job ended",
    "false_alarm": "false alarm",
    "by_person": "resolved by a person",
    "merged": "merged into another incident",
    "expired": "expired",
}
ACTOR_WORDS: Mapping[str, str] = {
    "agent": "agent",
    "watch": "Kubernetes, seen in the watch",
    "policy": "policy",
    "desk": "the desk",
    "hook": "scheduler hook",
    "alertmanager": "Alertmanager",
    "prometheus": "Prometheus",
    "token": "a program, by its token",
}


def mark_for(kind: str, value: object) -> Mark:
    """The mark of a state. A word that the table does not know is shown as it is, quietly."""
    return MARKS[kind].get(str(value)) or Mark(str(value).replace("_", " ") or "none", "dot", "quiet")


#: Whom a verdict blames.
BLAMES = {
    "node": "the node",
    "job": "the job itself",
    "shared": "something that jobs share",
    "none": "nobody",
    "other_rank": "another rank, which is not in view",
}


def plain(word: object) -> str:
    """A machine's word for people: ``process_died`` -> ``process died``."""
    return str(word).replace("_", " ")


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter: ``0.04 s``, ``5.4 s``, ``50 s``, ``1 min 38 s``, ``3 h 12 min``."""
    if seconds is None:
        return "–"
    sign, seconds = ("−" if seconds < 0 else ""), abs(seconds)
    if seconds == int(seconds) and seconds < 60:
        return f"{sign}{int(seconds)} s"
    if seconds < 0.00949:
        return f"{sign}{seconds:.3f} s"
    if seconds < 0.995:
        return f"{sign}{seconds:.2g} s"
    if seconds < 9.95:
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{sign}{whole} s"
    for size, unit, small_size, small_unit in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // small_size
            return f"{sign}{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{sign}{whole} s"


def coarse(seconds: float) -> str:
    """An age in one unit, for lists: ``just now``, ``38 s``, ``12 min``, ``3 h``, ``4 d``."""
    if seconds < 1:
        return "now"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def failures_used(incident: Incident) -> int | None:
    """Failures of the job's budget that are used, as of the incident. None where it has no job or counted nothing.

    An open one that has counted none yet shows what the job has used by now: that is what the next one adds to.
    """
    if incident.job is None:
        return None
    if incident.failures_used is None and incident.state in OPEN_INCIDENT_STATES:
        return incident.job.recover_count
    return incident.failures_used


def failures(incident: Incident) -> str:
    """``2 of 10``, ``none counted``, and nothing for an incident without a job."""
    if incident.job is None:
        return ""
    used = failures_used(incident)
    return "none counted" if used is None else f"{used} of {incident.job.max_retry}"


def number(value: float | int | None) -> str:
    """A count with separators, ``1,188``; a dash for None."""
    return "–" if value is None else f"{value:,}"


def byte_size(value: int | None) -> str:
    """Bytes in binary units: ``12 KiB``, ``6.7 GiB``."""
    if value is None:
        return "–"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if size >= 99.5 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("not reached")
