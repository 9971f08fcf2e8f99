"""Earlier attempts, and the machines involved, as facts for a verdict. Source: DOMAIN section 7, "across history".

A fact is claimed only where what is stored bears it out; where nothing is known, nothing is claimed. What a job is
compared with must have had another choice: "again on this node" says nothing of a job that runs on one node only.
Other jobs may be other tenants': the facts weigh their numbers, the lines for people hold none of them (DOMAIN 13).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recovery.findings import NO_RULE
from recovery.past import History
from recovery.records import Finding, IncarnationView, MachineFinding, MachinePast, PastAttempt
from recovery.rules import ends
from recovery.rules.rule import Blame

#: Training without trouble for so long is a fair try of a machine. Chosen, not measured.
FAIR_TRY_SECONDS = 3600.0
#: A restart that gave so much training was not futile, however it ended. Chosen, not measured.
WORTHWHILE_SECONDS = 24 * 3600.0
#: So many steps beyond a point, an attempt has got past it. Source: steady_steps of DOMAIN section 5.
PAST_BY_STEPS = 20
#: And so many seconds of steps: the step of an end is known as of the last heartbeat.
PAST_BY_SECONDS = 60.0
#: Machines fail by these themselves: any two of their rules are alike.
_OF_MACHINE = frozenset(
    {"gpu_mem_uncorrectable", "gpu_lost", "gpu_fabric", "host_hw", "rdma_nic", "node_lost"}
)
_ENDS_OF_CONTAINERS = frozenset(rule.category for rule in ends.BY_CAUSE.values())
#: From how many jobs on a machine are more than chance puts there. A program's own error is a machine's only where
#: jobs of several owners share it.
MOST_CHANCE = 0.05
MOST_CHANCE_OF_PROGRAM = 0.001


@dataclass(frozen=True, slots=True)
class Known:
    """What a decision knows of the past.

    ``machines`` None: decided before findings were kept, so only ``diagnosed`` counts, what the open incident says
    of its attempts. ``attempts`` are the job's own, ``earlier`` its lineage's, oldest first.
    """

    attempts: Sequence[PastAttempt]
    earlier: Sequence[PastAttempt] = ()
    machines: Sequence[MachinePast] | None = None
    lives: Sequence[IncarnationView] = ()
    start_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Present:
    """The failure that is judged; ``blame`` is what it says without the past."""

    attempt: int
    found: Finding
    blame: Blame
    before_first_step: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """Facts for rules, attempts in a row that nothing speaks for repeating, and what is compared, for people."""

    history: History = field(default_factory=History)
    times: int = 1
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """Attempts before this one that ended by the same rule, newest first: the job's own, then its lineage's.

    ``times``: how many of them, this one included, speak for nothing but that a retry is futile.
    """

    own: tuple[PastAttempt, ...]
    earlier: tuple[PastAttempt, ...]
    times: int

    @property
    def attempts(self) -> tuple[PastAttempt, ...]:
        return (*self.own, *self.earlier)

    @property
    def found(self) -> list[Finding]:
        return [each.found for each in self.attempts if each.found is not None]


def compare(here: Present, known: Known, diagnosed: Sequence[Mapping[str, Any]]) -> Compared:
    """What the past says about a failure. ``diagnosed`` is what its incident says of attempts, by older versions."""
    if known.machines is None:
        return _of_incident(here, known.attempts, diagnosed)
    if here.found.rule == NO_RULE:
        return Compared()
    row = _row(here, known, diagnosed)
    history = _of_attempts(here, known, row)
    machine = next((each for each in known.machines if each.node and each.node == here.found.node), None)
    lines: list[str] = []
    if row.attempts:
        n = len(row.attempts)
        before = f"{n} attempts in a row before this one" if n > 1 else "The attempt before this one"
        lines.append(f"{before} ended by the same rule")
    if machine is not None:
        history = _of_machine(here, history, machine, lines)
        if history.same_node and row.own and _is_fine_elsewhere(here, known, row, machine):
            history = replace(history, fine_elsewhere=True)
            lines.append(f"An attempt without {machine.node} trained for an hour and more")
    is_told = history != History(count=1)
    return Compared(
        replace(history, told=True) if is_told else History(),
        1 if history.passed else row.times,
        tuple(lines),
    )


# The job's own attempts, and its lineage's.


def _row(here: Present, known: Known, diagnosed: Sequence[Mapping[str, Any]]) -> _Row:
    """Attempts that count for nobody (preempted, stopped) stand in no row and break none.

    Only the job's own are futile: a job that was made anew may be another program. A long run in between was worth
    its restart.
    """
    kept = {each.get("attempt"): _of_diagnosed(each) for each in diagnosed}
    own: list[PastAttempt] = []
    times, was_worthwhile = 1, False
    for each in reversed([attempt for attempt in known.attempts if attempt.n <= here.attempt]):
        found = each.found or kept.get(each.n)
        if each.n < here.attempt and found is not None and (each.counted or each.would):
            if found.rule != here.found.rule:
                return _Row(tuple(own), (), times)
            own.append(replace(each, found=found))
            times += not was_worthwhile
        was_worthwhile |= _trained(each) >= WORTHWHILE_SECONDS
    earlier = []
    for each in reversed(known.earlier):
        if each.found is not None and (each.counted or each.would):
            if each.found.rule != here.found.rule:
                break
            earlier.append(each)
    return _Row(tuple(own), tuple(earlier), times)


def _of_diagnosed(entry: Mapping[str, Any]) -> Finding:
    return Finding(str(entry.get("rule")), str(entry.get("category")), str(entry.get("node") or ""))


def _trained(attempt: PastAttempt) -> float:
    """Seconds from its first step, or from its start where steps are not seen."""
    return (attempt.ended_at - (attempt.first_step_at or attempt.started_at)).total_seconds()


def _of_attempts(here: Present, known: Known, row: _Row) -> History:
    """What the row says; its own attempts' steps, and where and on what they ended."""
    found, attempts = row.found, row.attempts
    after_restart = (
        here.before_first_step
        and here.found.container_since is not None
        and here.found.container_since < here.attempt
    )
    if not attempts:
        return History(count=1, after_restart=after_restart)
    now = next((each for each in known.attempts if each.n == here.attempt), None)
    step = now.last_step if now is not None else None
    steps = [each.last_step for each in attempts]
    nodes = {each.node for each in found} - {""}
    is_here = nodes == {here.found.node}
    lives = [life for life in known.lives if life.is_current]
    of_node = here.blame is Blame.NODE
    same_sequence = here.found.sequence is not None and {each.sequence for each in found} == {
        here.found.sequence
    }
    every = (
        here.before_first_step
        and len(attempts) >= 2
        and not any(_has_stepped(each, known.start_seconds) for each in attempts)
    )
    since = here.found.container_since
    return History(
        count=len(attempts) + 1,
        every=every,
        same_point=same_sequence or (step is not None and set(steps) == {step}),
        same_sequence=same_sequence,
        changing_point=not same_sequence
        and step is not None
        and all(each is not None and each != step for each in steps),
        same_node=is_here and (of_node or len({life.node for life in lives} - {""}) > 1),
        same_device=is_here
        and (of_node or len(lives) > 1)
        and here.found.device != ""
        and {each.device for each in found} == {here.found.device},
        same_rank=len(lives) > 1
        and here.found.rank is not None
        and {each.rank for each in found} == {here.found.rank},
        other_nodes=bool(here.found.node) and bool(nodes - {here.found.node}),
        passed=not every and _got_past(row.own, known.attempts, here.attempt),
        in_vain=is_here and bool(row.own) and since is not None and _was_made_anew(row.own[0], since),
        after_restart=after_restart,
    )


def _has_stepped(attempt: PastAttempt, start_seconds: float) -> bool:
    """Whether it came to a step; one whose steps nobody sees did when it ran long enough."""
    is_seen = attempt.first_step_at is not None or attempt.last_step is not None
    return is_seen or (attempt.ended_at - attempt.started_at).total_seconds() > start_seconds


def _was_made_anew(attempt: PastAttempt, since: int) -> bool:
    """Whether a process ended in this attempt, and a new container followed. One that went itself was no remedy."""
    return since > attempt.n and attempt.end_cause not in _ENDS_OF_CONTAINERS


def _got_past(row: Sequence[PastAttempt], attempts: Sequence[PastAttempt], n: int) -> bool:
    """Whether a later attempt trained on beyond the step where an earlier one of the row had ended."""
    return any(
        _is_beyond(later, each.last_step)
        for each in row
        if each.last_step is not None
        for later in attempts
        if each.n < later.n <= n
    )


def _is_beyond(attempt: PastAttempt, step: int) -> bool:
    """Whether it began before the step, as far as is told, and ended well behind it."""
    begin, last = attempt.resumed_from_step, attempt.last_step
    if begin is None or last is None or attempt.first_step_at is None or begin > step:
        return False
    seconds = (attempt.ended_at - attempt.first_step_at).total_seconds()
    a_second = (last - begin) / seconds if seconds > 0 else 0.0
    return last >= step + max(PAST_BY_STEPS, a_second * PAST_BY_SECONDS)


# The machine on which it ended.


def _of_machine(here: Present, own: History, machine: MachinePast, lines: list[str]) -> History:
    """The facts with what other jobs met here; ``lines`` takes what its tenant may read."""
    rows = {(each.category, each.rule, each.device): each for each in machine.findings}
    rule = rows.get((here.found.category, here.found.rule, ""))
    is_kind = here.blame is Blame.NODE and here.found.category in _OF_MACHINE
    alike = rows.get((here.found.category, "", "")) if is_kind else rule
    if alike is None:
        return own
    others = f"Other jobs failed alike on {machine.node} within 30 days"
    if alike.fine_since:
        lines.append(f"{others}; another trained well there since, which clears it")
        return own
    if own.other_nodes:
        lines.append(f"{others}; this job met it on other machines too")
        return own
    if not _is_notable(here, alike, machine):
        lines.append(f"{others}: not enough to speak against it")
        return own
    lines.append(f"{others}, and none trained well there since")
    is_only = rule is not None and rule.jobs_elsewhere == 0
    if is_only:
        lines.append("No other machine of the cluster shows it")
    device = here.found.device
    on_device = any(
        each.device == device and each.category == alike.category for each in machine.findings if each.device
    )
    return replace(
        own,
        count=own.count + alike.jobs,
        other_jobs=True,
        same_node=True,
        same_device=own.same_device or on_device,
        owners=alike.jobs >= 2 and alike.owners >= 1,
        only_here=is_only,
    )


def _is_notable(here: Present, alike: MachineFinding, machine: MachinePast) -> bool:
    """Whether so many jobs failed alike here that it is not their number in the cluster that explains it.

    What speaks of the machine by itself needs no comparison. A program's own error does most of all.
    """
    if here.blame is Blame.NODE:
        return True
    if not machine.machines or alike.jobs_elsewhere is None:
        return False
    mean = (alike.jobs + alike.jobs_elsewhere) / machine.machines
    of_program = here.blame is Blame.JOB
    if of_program and not (alike.jobs >= 2 and alike.owners >= 1):
        return False
    return chance(alike.jobs, mean) < (MOST_CHANCE_OF_PROGRAM if of_program else MOST_CHANCE)


def chance(jobs: int, mean: float) -> float:
    """How likely at least so many fall on one machine where ``mean`` fall on each (Poisson)."""
    term, less = math.exp(-mean), 0.0
    for n in range(jobs):
        less += term
        term *= mean / (n + 1)
    return max(0.0, 1.0 - less)


def _is_fine_elsewhere(here: Present, known: Known, row: _Row, machine: MachinePast) -> bool:
    """Whether an attempt of this job without this machine trained well for a fair time.

    Where it is not known of the failed ones that they were there, it is not known of others that they were not.
    """
    if not {here.attempt, *(each.n for each in row.own)} <= set(machine.own_attempts):
        return False
    return any(
        each.n not in machine.own_attempts
        and each.first_step_at is not None
        and _trained(each) >= FAIR_TRY_SECONDS
        and (each.found is None or each.found.rule != here.found.rule)
        for each in known.attempts
        if each.n != here.attempt
    )


# Decisions that were made before findings were kept.


def _of_incident(
    here: Present, past: Sequence[PastAttempt], diagnosed: Sequence[Mapping[str, Any]]
) -> Compared:
    """The attempts in a row, up to this one, that the open incident says to have ended by the same rule."""
    row = []
    for entry in reversed([each for each in diagnosed if each.get("attempt") != here.attempt]):
        if entry.get("rule") != here.found.rule:
            break
        row.append(entry)
    if not row or here.found.rule == NO_RULE:
        return Compared()
    now = next((each for each in past if each.n == here.attempt), None)
    step = now.last_step if now is not None else None
    node = here.found.node
    nodes = {str(entry.get("node") or "") for entry in row} - {""}
    steps = [entry.get("step") for entry in row]
    count = len(row) + 1
    history = History(
        told=True,
        count=count,
        same_point=step is not None and all(each == step for each in steps),
        changing_point=step is not None and all(each is not None and each != step for each in steps),
        same_node=bool(node) and nodes == {node},
        other_nodes=bool(node) and bool(nodes - {node}),
        every=here.before_first_step and count >= 3,
    )
    return Compared(history, count)
