"""What a verdict says beside its finding: what it rests on, what contradicts it, and why other remedies are not taken.

Every sentence must be true of the failure at hand. It is chosen by what is known (ended, running or untold; checks
green, failed or untold; first time, repeated or untold; what is shared, slow or standing still), by the remedy that
is taken and by whom the verdict blames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from recovery.facts import HARDWARE_CHECKS, MOVES_SECONDS, WAITING_REASONS, makes_progress
from recovery.hits import TAKES_OUT, Hit
from recovery.rules.rule import Blame, EvidenceClass, FactValue, Origin, Remedy

MAX_SHOWN = 20
_MAX_SHOWN_LINE = 500
_LINES_SHOWN = 3  # of one hit
_FAILED_SHOWN = 3

#: What jobs have in common: when it is in trouble, no job and no node is.
SHARED = frozenset({"shared_storage", "shared_network", "container_env", "image_registry"})
#: A rule that explains the errors of a device in the process by what the program did before.
EXPLAINS_DEVICE = "explains-device"

#: Category -> the checks that test the very thing. Source: what the checks of DOMAIN section 6 do.
_TESTED_BY: Mapping[str, tuple[str, ...]] = {
    "gpu_lost": ("gpu",),
    "gpu_mem_uncorrectable": ("gpu",),
    "gpu_fabric": ("gpu",),
    "rdma_nic": ("rdma", "allreduce_conn"),
    "shared_network": ("rdma", "allreduce_conn"),
    "straggler": ("allreduce_perf",),
    "container_env": ("runtime",),
    "shared_storage": ("io",),
    "disk_full": ("io",),
}
#: A check takes seconds and does not see what shows under load: a pass weighs as much as a symptom where it tests the
#: very thing, and as much as a benign line elsewhere on the machine. Chosen, not measured.
_PASS_WEIGHT = 0.4
_OTHER_PASS_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class Cited:
    """One thing that a verdict rests on, or that speaks against it."""

    text: str
    rule: str
    weight: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A remedy that was considered and not taken."""

    remedy: Remedy
    because: str


def cited(hits: Sequence[Hit]) -> tuple[Cited, ...]:
    """The lines of hits, or their reasons where they have none, in the order of the hits."""
    return tuple(each for hit in hits for each in _lines(hit, _LINES_SHOWN))[:MAX_SHOWN]


def _lines(hit: Hit, most: int) -> list[Cited]:
    texts = [line.text.strip()[:_MAX_SHOWN_LINE] for line in hit.lines[:most]] or [hit.reason]
    return [Cited(text, hit.rule.id, hit.weight) for text in texts]


def contradictions(hits: Sequence[Hit], passes: Sequence[Cited]) -> tuple[Cited, ...]:
    """What speaks against a verdict, strongest first: hits that disagree with it, and checks that pass.

    Of a hit that is weaker than a hint one line is shown. Passed checks keep their place among many hits.
    """
    said = [
        each
        for hit in hits
        for each in _lines(hit, _LINES_SHOWN if hit.rule.evidence_class >= EvidenceClass.HINT else 1)
    ]
    return tuple(sorted((*said[: MAX_SHOWN - len(passes)], *passes), key=lambda each: -each.weight))


def passed_checks(category: str, remedy: Remedy, blame: Blame, facts: Mapping[str, FactValue]) -> list[Cited]:
    """The passed checks that speak against a finding.

    Those of the very thing that is held to have failed, each by itself; and where a machine is blamed and no check
    failed or timed out, the others together.
    """
    if "checks.run" not in facts:
        return []
    against_machine = blame is Blame.NODE or remedy in TAKES_OUT
    if not against_machine and blame is Blame.JOB:
        return []
    tests = [name for name in _TESTED_BY.get(category, ()) if facts.get(f"check.{name}") == "pass"]
    found = [Cited(f"The {name} check passes", f"check.{name}", _PASS_WEIGHT) for name in tests]
    if against_machine and facts.get("checks.clean"):
        others = [name for name in _checks(facts, "pass") if name not in tests]
        if others:
            text = (
                f"{'These checks pass too' if tests else 'Every check that ran passes'}: {', '.join(others)}"
            )
            found.append(Cited(text[:_MAX_SHOWN_LINE], "checks.clean", _OTHER_PASS_WEIGHT))
    return found


def _checks(facts: Mapping[str, FactValue], result: str) -> list[str]:
    """Names of the checks with a result, sorted."""
    return sorted(
        name.removeprefix("check.")
        for name, fact in facts.items()
        if name.startswith("check.") and fact == result
    )


# Considered and refused.


class _Life(Enum):
    """How far it is known whether the failed process still lives."""

    ENDED = 1
    WAITING = 2  # its container has not started
    MOVES = 3  # steps are made
    STILL = 4  # no step for long, or stuck in a collective
    UNTOLD = 5  # no end is told, and no standstill


class _Past(Enum):
    """What is told of earlier attempts."""

    FIRST = 1
    AGAIN = 2
    UNTOLD = 3


@dataclass(frozen=True, slots=True)
class _Situation:
    """What the sentences speak of. ``blame`` and ``evidence_class`` are those of the verdict."""

    taken: Remedy
    blame: Blame
    evidence_class: EvidenceClass
    life: _Life
    past: _Past
    facts: Mapping[str, FactValue]
    hits: Sequence[Hit]

    def known(self, *names: str) -> bool:
        """Whether one of the facts is there and true."""
        return any(self.facts.get(name) for name in names)

    @property
    def failed(self) -> list[str]:
        """Checks that failed."""
        return _checks(self.facts, "fail")

    @property
    def idle_seconds(self) -> float | None:
        """Since the last progress; None where no number is told."""
        return _idle_seconds(self.facts)

    @property
    def is_shared_seen(self) -> bool:
        """Whether something that jobs share is told to be in trouble."""
        return any(hit.blame is Blame.SHARED or hit.category in SHARED for hit in self.hits)

    @property
    def is_wear_seen(self) -> bool:
        """Whether the machine shows signs of being slow or wearing out."""
        if self.known("clock.below_median", "pair.slow", "condition.degraded", "seen.link.counters"):
            return True
        return any(hit.category in _WEARS or hit.remedy is Remedy.EVICT_AT_CHECKPOINT for hit in self.hits)

    @property
    def blames_job(self) -> bool:
        """Whether any hit blames the job itself."""
        return any(hit.blame is Blame.JOB for hit in self.hits)


_WEARS = frozenset({"straggler", "gpu_mem_corrected"})

type _Row = tuple[Callable[[_Situation], bool], str]


def _always(_: _Situation) -> bool:
    return True


def _taken(*remedies: Remedy) -> Callable[[_Situation], bool]:
    """Whether one of these was taken."""
    return lambda s: s.taken in remedies


_RESTART_PROCESS: tuple[_Row, ...] = (
    (
        lambda s: s.life is _Life.WAITING,
        "the container has not started; it would take a process that ended",
    ),
    (
        lambda s: s.taken is Remedy.MARK_HANG and s.life is not _Life.ENDED,
        "nothing is killed on a suspicion; it would take an end, or a hang that is confirmed",
    ),
    (
        _taken(Remedy.MARK_HANG),
        "what is left of it is looked into first; it would take a look that finds nothing",
    ),
    (
        lambda s: s.taken is Remedy.EVICT_AT_CHECKPOINT and s.life is not _Life.ENDED,
        "nothing tells that it ended, and it would stay on the machine that is blamed",
    ),
    (
        _taken(*TAKES_OUT),
        "a new process would stay on the machine that is blamed; it would take evidence that clears it",
    ),
    (
        lambda s: s.taken is Remedy.FAIL_FAST and s.past is _Past.AGAIN,
        "it came more than once, and a new process runs the same program; it would take an attempt that gets past it",
    ),
    (
        _taken(Remedy.FAIL_FAST),
        "a new process runs the same program and settings; it would take an attempt that gets past it",
    ),
    (
        _taken(Remedy.BACKOFF_SHARED),
        "at once it would need what is not to be had now; it would take that being there again",
    ),
    (
        _taken(Remedy.RESTART_CONTAINER),
        "a new process would keep the container; it would take a fault of the process alone",
    ),
    (_always, "a new process alone changes nothing of it; it would take an attempt that gets past it"),
)
_RESTART_CONTAINER: tuple[_Row, ...] = (
    (lambda s: s.known("past.in_vain"), "the history tells that a new container does not help"),
    (
        lambda s: s.life is _Life.WAITING,
        "a container is on its way already; it would take a fault of this one alone",
    ),
    (
        _taken(Remedy.RESTART_PROCESS),
        "a new process comes first, as it is cheaper; it would take the same end after that",
    ),
    (
        lambda s: s.taken is Remedy.MARK_HANG and s.life is not _Life.ENDED,
        "nothing is killed on a suspicion; it would take an end, or a hang that is confirmed",
    ),
    (
        _taken(Remedy.MARK_HANG),
        "what is left of it is looked into first; it would take a fault of the container",
    ),
    (
        _taken(*TAKES_OUT),
        "a new container would stay on the machine that is blamed; it would take a fault of the container alone",
    ),
    (
        _taken(Remedy.FAIL_FAST),
        "a new container brings the same program and settings; it would take a fault of the container alone",
    ),
    (
        _taken(Remedy.BACKOFF_SHARED),
        "a new container needs the same that is not to be had now; it would take a fault of this one alone",
    ),
    (_always, "a new container alone changes nothing of it; it would take an attempt that gets past it"),
)
_EVICT_AT_CHECKPOINT: tuple[_Row, ...] = (
    (
        lambda s: s.life is _Life.ENDED,
        "it has ended, so there is no next save to wait for; it would take a slow or worn machine under a living run",
    ),
    (
        lambda s: s.life is _Life.WAITING,
        "the container has not started, so there is no save to wait for",
    ),
    (
        lambda s: s.taken is Remedy.ISOLATE_NODE and s.evidence_class is EvidenceClass.CHECK,
        "a check failed, and then no save is waited for; it would take signs of wear while the checks pass",
    ),
    (
        lambda s: s.taken is Remedy.ISOLATE_NODE and s.life is _Life.MOVES,
        "steps are made, but on a machine that is too bad to wait for the next save",
    ),
    (
        lambda s: s.taken is Remedy.ISOLATE_NODE and s.life is _Life.STILL,
        "no steps are made, so no save will come; it would take a run that goes on",
    ),
    (
        _taken(Remedy.ISOLATE_NODE),
        "nothing tells that steps are made, so a save may never come; it would take a run that goes on",
    ),
    (
        lambda s: s.is_wear_seen,
        "signs of a slow or worn machine are there, but they do not explain it",
    ),
    (_always, "nothing shows this machine slower than its peers or wearing out; that would be needed"),
)
_ISOLATE_NODE: tuple[_Row, ...] = (
    (
        lambda s: any(name in HARDWARE_CHECKS for name in s.failed),
        "the failed {failed} check is laid to something else than this machine alone",
    ),
    (
        _taken(Remedy.EVICT_AT_CHECKPOINT),
        "it leaves after the next save; at once would take a failed gpu or rdma check or a fatal device error",
    ),
    (
        lambda s: s.known("nodes.many"),
        "several nodes show the same; it would take a failed gpu check or a fatal device error on this one",
    ),
    (
        lambda s: s.known("past.other_nodes", "past.all_nodes"),
        "it came on other nodes too; it would take a failed gpu check or a fatal device error on this one",
    ),
    (
        lambda s: bool(s.failed),
        "a failed {failed} check alone does not convict a machine; a failed gpu or rdma check would",
    ),
    (
        lambda s: s.known("checks.clean"),
        "every check that ran is green and no device error asks for it; a failed check or a fatal device error would",
    ),
    (
        lambda s: s.known("checks.run"),
        "a check without an answer proves nothing; a failed gpu or rdma check or a fatal device error would",
    ),
    (
        _always,
        "no check is told and no device error asks for it; a failed gpu or rdma check or a fatal device error would",
    ),
)
_MARK_HANG: tuple[_Row, ...] = (
    (lambda s: s.life is _Life.ENDED, "it has ended; it would take a run that stands still"),
    (
        lambda s: s.life is _Life.WAITING,
        "the container has not started; it would take a run that stands still",
    ),
    (
        lambda s: s.life is _Life.MOVES and s.idle_seconds is not None,
        "it made progress {idle} s ago; it would take a run that stands still",
    ),
    (
        lambda s: s.life is _Life.MOVES,
        "the log shows steps and no end; it would take a run that stands still",
    ),
    (
        lambda s: s.life is _Life.STILL,
        "it stands still, but the evidence says more; it would take a standstill and nothing else",
    ),
    (_always, "nothing tells that it stands still; it would take a run without progress"),
)
_FAIL_FAST: tuple[_Row, ...] = (
    (
        lambda s: s.taken is Remedy.NEEDS_OPERATOR and s.blame is Blame.JOB,
        "people may go back to an earlier save or change the run; it would take what only new code or settings mend",
    ),
    (
        lambda s: s.blame is Blame.NODE,
        "the machine is blamed and not the job; it would take the same on other machines",
    ),
    (
        lambda s: s.blame is Blame.SHARED,
        "what jobs share is blamed and not this job; it would take others who do not meet it",
    ),
    (
        lambda s: s.blame is Blame.OTHER_RANK,
        "this rank only tells of another one's end; it would take a cause in the program or its settings",
    ),
    (
        lambda s: s.known("past.passed"),
        "a later attempt got past it; it would take the same at every attempt",
    ),
    (
        lambda s: s.past is _Past.FIRST and s.blames_job,
        "seen for the first time: nothing shows that a retry is futile; the same again, wherever it runs, would",
    ),
    (
        lambda s: s.past is _Past.FIRST,
        "seen for the first time, and nothing blames the job; it would take a cause in the program or its settings",
    ),
    (
        lambda s: s.past is _Past.AGAIN and s.blames_job,
        "seen more than once, but nothing shows that every retry meets it; the same at every attempt would",
    ),
    (
        lambda s: s.past is _Past.AGAIN,
        "seen more than once, but nothing blames the job; it would take a cause in the program or its settings",
    ),
    (
        lambda s: s.blames_job,
        "no earlier attempt is told, so a retry may get past it; the same again, wherever it runs, would",
    ),
    (
        _always,
        "nothing blames the job, and no earlier attempt is told; it would take a cause in the program or its settings",
    ),
)
_BACKOFF_SHARED: tuple[_Row, ...] = (
    (
        lambda s: s.taken is Remedy.NEEDS_OPERATOR and s.blame is Blame.SHARED,
        "time does not mend it; it would take an outage that passes by itself",
    ),
    (
        lambda s: s.is_shared_seen and s.known("nodes.many"),
        "what is told of shared services does not decide here; it would take an outage that passes by itself",
    ),
    (
        lambda s: s.known("nodes.many"),
        "several nodes show it, but no service that they share is seen in trouble; that would be needed",
    ),
    (
        lambda s: s.blame is Blame.NODE,
        "one machine is blamed and not what jobs share; several machines in trouble at once would",
    ),
    (
        lambda s: s.known("past.everybody", "past.any_image", "past.other_jobs", "past.owners"),
        "others meet it too, but nothing shows that it passes by itself; an outage of what they share would",
    ),
    (
        lambda s: s.is_shared_seen,
        "nothing shows that other jobs meet it too; several jobs or nodes in trouble at once would",
    ),
    (
        _always,
        "no dependency that jobs share is seen in trouble; several jobs or nodes in trouble at once would show one",
    ),
)
_NEEDS_OPERATOR: tuple[_Row, ...] = (
    (
        _taken(Remedy.FAIL_FAST),
        "the job's owner mends this and no operator; it would take the same for any job",
    ),
    (
        _taken(*TAKES_OUT),
        "one machine is blamed, and it can be left out; it would take the same on many machines",
    ),
    (
        _taken(Remedy.BACKOFF_SHARED),
        "it may pass by itself; it would take hours without a change, or a set-up that never worked",
    ),
    (
        _taken(Remedy.MARK_HANG),
        "a look into it comes first; it would take a cause that only people can mend",
    ),
    (
        lambda s: s.past is _Past.AGAIN,
        "seen more than once, but a cheaper remedy is left; it would take a cause that only people can mend",
    ),
    (_always, "a cheaper remedy is left; it would take a cause that only people can mend"),
)
#: Remedy -> sentences in the order in which they are tried; the first that fits is said.
_WHY_NOT: Mapping[Remedy, tuple[_Row, ...]] = {
    Remedy.RESTART_PROCESS: _RESTART_PROCESS,
    Remedy.RESTART_CONTAINER: _RESTART_CONTAINER,
    Remedy.EVICT_AT_CHECKPOINT: _EVICT_AT_CHECKPOINT,
    Remedy.ISOLATE_NODE: _ISOLATE_NODE,
    Remedy.MARK_HANG: _MARK_HANG,
    Remedy.FAIL_FAST: _FAIL_FAST,
    Remedy.BACKOFF_SHARED: _BACKOFF_SHARED,
    Remedy.NEEDS_OPERATOR: _NEEDS_OPERATOR,
}


def considered(
    taken: Remedy,
    best: Hit | None,
    hits: Sequence[Hit],
    facts: Mapping[str, FactValue],
    culprit_rank: int | None = None,
) -> tuple[Refused, ...]:
    """The remedies that are not taken, each with its reason.

    Args:
        taken: What the verdict asks for.
        best: The hit that won, as it was turned by its context; None where nothing explains the failure.
        hits: All hits, as their rules conclude.
        facts: What is known.
        culprit_rank: Who failed first, where it is known.
    Returns:
        One sentence a remedy: who asked for it and why that does not hold, else what would have to be seen.
    """
    hits = [
        hit for hit in hits if hit.rule.evidence_class is not EvidenceClass.BENIGN
    ]  # these ask for nothing
    asked: dict[Remedy, Hit] = {}
    for hit in hits:
        if hit.remedy not in asked or hit.rank_key > asked[hit.remedy].rank_key:
            asked[hit.remedy] = hit
    situation = _Situation(
        taken,
        Blame.NONE if best is None else best.blame,
        EvidenceClass.BENIGN if best is None else best.rule.evidence_class,
        _life(facts, hits),
        _past(facts),
        facts,
        hits,
    )
    refused = []
    for remedy in Remedy:
        if remedy is taken:
            continue
        hit_asking = asked.get(remedy)
        if hit_asking is not None and best is not None:
            refused.append(Refused(remedy, _overruled(hit_asking, best, culprit_rank)))
        else:
            refused.append(Refused(remedy, _why_not(remedy, situation)))
    return tuple(refused)


def _why_not(remedy: Remedy, situation: _Situation) -> str:
    """The first sentence that fits."""
    text = next(text for fits, text in _WHY_NOT[remedy] if fits(situation))
    if "{idle}" in text:
        return text.format(idle=f"{situation.idle_seconds or 0.0:.0f}")
    return text.format(failed=" and ".join(situation.failed[:_FAILED_SHOWN])) if "{failed}" in text else text


def _overruled(hit: Hit, best: Hit, culprit_rank: int | None) -> str:
    """Why the strongest hit that asks for a remedy does not get it."""
    if hit.rule is best.rule and best.reason.startswith(f"{hit.reason}; "):
        return best.reason.rpartition("; ")[2]  # its own context turned it
    kind, winner = hit.rule.evidence_class, best.rule.evidence_class
    if hit.rank_key <= best.rank_key or hit.rule is best.rule:
        if kind < winner:
            than = f"weaker than {winner.name.lower()}"
        elif hit.rule.specificity < best.rule.specificity:
            than = "as strong, but less exact"
        else:
            than = "as strong and as exact, but of a later rule"
        return f"outweighed: {hit.reason} ({kind.name.lower()} evidence, {than})"
    if EXPLAINS_DEVICE in best.rule.tags:
        why = "it follows from what the program did before"
    elif (
        culprit_rank is not None
        and hit.lines
        and all(line.rank not in {None, culprit_rank} for line in hit.lines)
    ):
        why = "only ranks that failed later say it"
    elif "soft" in hit.rule.tags:
        why = "a passing condition of a node, and the same came on other nodes"
    elif hit.remedy is Remedy.FAIL_FAST and kind is winner:
        why = "evidence of the same kind says that it can go on"
    elif hit.lines and all(line.origin is Origin.LOG for line in hit.lines):
        why = "the log tells it of an earlier attempt"
    else:
        why = f"{winner.name.lower()} evidence fits better"
    return f"set aside, {why}: {hit.reason}"


def _life(facts: Mapping[str, FactValue], hits: Sequence[Hit]) -> _Life:
    if facts.get("exit.ended") or facts.get("exit.code") == 0:
        return _Life.ENDED
    if facts.get("pod.reason") in WAITING_REASONS:
        return _Life.WAITING
    idle = _idle_seconds(facts)
    if idle is not None:
        return _Life.MOVES if idle < MOVES_SECONDS else _Life.STILL
    if facts.get("seen.collective-timeout") or any(hit.category == "hang" for hit in hits):
        return _Life.STILL
    return _Life.MOVES if makes_progress(facts) else _Life.UNTOLD


def _idle_seconds(facts: Mapping[str, FactValue]) -> float | None:
    idle = facts.get("metric.seconds_since_progress")
    return idle if isinstance(idle, float) else None


def _past(facts: Mapping[str, FactValue]) -> _Past:
    if facts.get("past.repeated"):
        return _Past.AGAIN
    return _Past.FIRST if facts.get("past.first_time") else _Past.UNTOLD
