"""A rule that applies to a failure, with what it concludes there. Source: DOMAIN section 7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recovery.rules.rule import Blame, EvidenceClass, Remedy, Rule
from recovery.scan import Line

#: How strongly a class speaks, in [0, 1]; chosen in the order of DOMAIN 7, not measured.
_WEIGHTS: Mapping[EvidenceClass, float] = {
    EvidenceClass.CHECK: 0.95,
    EvidenceClass.COMPARED: 0.92,
    EvidenceClass.DEVICE: 0.9,
    EvidenceClass.NODE: 0.9,
    EvidenceClass.END: 0.85,
    EvidenceClass.LOG: 0.8,
    EvidenceClass.HINT: 0.6,
    EvidenceClass.METRIC: 0.5,
    EvidenceClass.SYMPTOM: 0.4,
    EvidenceClass.BENIGN: 0.2,
}
#: Remedies by which a machine leaves the job, now or after the next save.
TAKES_OUT = frozenset({Remedy.ISOLATE_NODE, Remedy.EVICT_AT_CHECKPOINT})
#: Who can be at fault for the same thing, and only one of them.
_PARTIES = frozenset({Blame.NODE, Blame.JOB, Blame.SHARED})


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that applies here, with what it concludes in this context, and the lines that it rests on."""

    rule: Rule
    category: str
    remedy: Remedy
    blame: Blame
    reason: str
    lines: tuple[Line, ...] = ()

    @property
    def rank_key(self) -> tuple[int, int, int]:
        """Greater wins: class, specificity, earlier rule."""
        return (self.rule.evidence_class, self.rule.specificity, -self.rule.order)

    @property
    def weight(self) -> float:
        """How strongly it speaks, in [0, 1]."""
        return _WEIGHTS[self.rule.evidence_class]

    @property
    def is_last_resort(self) -> bool:
        """Whether it only says that nothing explains the end: void beside any other hit."""
        return self.rule.evidence_class is EvidenceClass.BENIGN and not self.lines

    def agrees(self, other: Hit) -> bool:
        """Whether both ask for the same, or name the same failure and do not blame different parties for it.

        Equal blame alone is no agreement: one that stops a job and one that asks a person may both blame the job.
        """
        if self.remedy is other.remedy or (self.remedy in TAKES_OUT and other.remedy in TAKES_OUT):
            return True
        if self.category != other.category:
            return False
        return self.blame is other.blame or not {self.blame, other.blame} <= _PARTIES
