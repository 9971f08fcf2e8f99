"""The panel of a job's page that says how often to save, as rows of words."""

from __future__ import annotations

from dataclasses import dataclass

from apps.desk.words import byte_size, duration, number
from apps.jobs.models import Job
from recovery.checkpoint_advice import CheckpointAdvice
from recovery.figures import Basis, Figure


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """One fact: its name, what it is, and how that is known; ``below`` are lines of their own."""

    name: str
    value: str
    note: str = ""
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointPanel:
    """What the panel shows. ``basis`` is the weakest of its figures."""

    basis: Basis
    rows: tuple[AdviceRow, ...]
    warnings: tuple[str, ...]
    of_whom: str


def checkpoint_panel(job: Job, advice: CheckpointAdvice | None) -> CheckpointPanel | None:
    """The panel; None where there is no advice."""
    if advice is None:
        return None
    plan, present = advice.plan, advice.plan.present
    sure = f"{advice.confidence:.0%} sure"
    low, high = _about(advice.low_seconds), _about(advice.high_seconds)
    rows = [
        AdviceRow(
            "Advised",
            f"every {_about(plan.advised.interval_seconds)}",
            _steps(advice),
            (f"{low} to {high}, {sure}",),
        )
        if plan.gets_on
        else AdviceRow("Advised", "no interval helps")
    ]
    if present is not None:
        rows.append(AdviceRow("Now", f"every {_about(present.interval_seconds)}", "as its checkpoints came"))
    if plan.gets_on:
        now = f"; now {_share(present.waste_share)}" if present is not None else ""
        rows.append(AdviceRow("Time lost", _share(plan.advised.waste_share), f"of useful time{now}"))
    low, high = _about(advice.low_mtbf_seconds), _about(advice.high_mtbf_seconds)
    rows += [
        AdviceRow("A save", duration(plan.checkpoint_seconds.value), _known(plan.checkpoint_seconds)),
        AdviceRow(
            "A failure in",
            _about(plan.mtbf_seconds.value),
            f"{plan.mtbf_seconds.basis}",
            (f"{low} to {high}, {sure}", advice.rests_on),
        ),
        AdviceRow("A restart", duration(plan.restart_seconds.value), _known(plan.restart_seconds))
        if plan.restart_seconds.value
        else AdviceRow("A restart", "not known", "none seen yet, left out"),
    ]
    if plan.load is not None and plan.gets_on:
        rows.append(
            AdviceRow("Writes", f"{byte_size(round(plan.load.bytes_a_day))} a day", "if saved as advised")
        )
    return CheckpointPanel(
        basis=plan.basis,
        rows=tuple(rows),
        warnings=advice.warnings,
        of_whom=f"jobs of {job.tenant.slug} with {advice.size} nodes in this cluster",
    )


def _known(figure: Figure) -> str:
    return f"{figure.basis}, {figure.source}"


def _share(share: float) -> str:
    return "under 0.1%" if share < 0.001 else f"{share:.1%}"


def _about(seconds: float | None) -> str:
    """A time without digits that its bounds take back."""
    if seconds is None:
        return "no bound"
    unit = 60 if seconds >= 600 else 1
    return duration(round(seconds / unit) * unit if seconds >= 10 else seconds)


def _steps(advice: CheckpointAdvice) -> str:
    """The interval in steps, two digits of them; empty where the time of a step is not known."""
    steps = advice.plan.interval_steps
    if steps is None:
        return ""
    unit = 10 ** max(0, len(str(steps)) - 2)
    return f"about {number(round(steps / unit) * unit)} step{'' if steps == 1 else 's'}"
