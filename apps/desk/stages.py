"""The stage bar and the facts of an incident, from its timeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count

from apps.desk.charts import segments
from apps.desk.words import duration, failures, number
from apps.incidents.gpu_prices import read_prices
from apps.incidents.models import Incident
from apps.jobs.models import Job
from apps.nodes.models import Machine
from recovery import timeline
from recovery.errors import BadInput
from recovery.figures import hours_in_words
from recovery.lifecycle import OPEN_INCIDENT_STATES
from recovery.timeline import RecoveryTimeline

MOST_NAMED = 3  # workers with new pods that are written out


@dataclass(frozen=True, slots=True)
class LegendLine:
    """One stage in words: its seconds, and how it is known."""

    name: str
    css: str
    seconds: float
    note: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure and what it means."""

    value: str
    text: str


def stage_bar(incident: Incident, events: Iterable[timeline.Event], now: datetime) -> dict[str, Any]:
    """Stages, legend and facts of the incident's newest recovery.

    Args:
        incident: With its job.
        events: Those of its timeline that stages are made of, in any order.
        now: How far a recovery that goes on has come.
    """
    every = timeline.recoveries(events, until=incident.resolved_at or now)
    context: dict[str, Any] = {
        "stages": [],
        "stage_missing": "No recovery has begun, so no time of one is measured.",
        "facts": _budget(incident),
        "recovery_count": len(every),
    }
    if not every:
        return context
    newest = every[-1]
    parts = [(stage.name, stage.name.replace(" ", "-"), stage.seconds) for stage in newest.stages]
    legend = [
        LegendLine(
            stage.name,
            stage.name.replace(" ", "-"),
            stage.seconds,
            ", ".join(
                part for part in (stage.note, stage.basis if stage.basis != "measured" else "") if part
            ),
        )
        for stage in newest.stages
        if stage.seconds > 0
    ]
    return context | {
        "stages": segments(parts),
        "stage_legend": legend,
        "stage_total": newest.total.total_seconds(),
        "stage_running": not newest.is_finished,
        "stage_summary": ", ".join(f"{line.name} {duration(line.seconds)}" for line in legend),
        "facts": [
            *_lost(incident, newest),
            *_budget(incident),
            *_processes(incident, newest),
            *_pods(newest),
        ],
    }


def concerned_nodes(incident: Incident) -> list[Machine]:
    """The node that the verdict names, when it is one that the desk knows and the incident does not link to."""
    name = str(incident.verdict.get("node") or "")
    if not name or (incident.machine is not None and incident.machine.name == name):
        return []
    return list(
        Machine.objects.filter(cluster=incident.cluster_id, name=name, gone_at__isnull=True).only("name")[:1]
    )


def _lost(incident: Incident, recovery: RecoveryTimeline) -> list[Fact]:
    facts = []
    if recovery.steps_lost is not None:
        facts.append(
            Fact(
                "1 step" if recovery.steps_lost == 1 else f"{number(recovery.steps_lost)} steps",
                f"lost: failed at {number(recovery.failed_step)}, resumed from {number(recovery.resumed_step)}",
            )
        )
    else:
        facts.append(Fact("–", "steps lost: known when training has resumed"))
    job = incident.job
    gpus = job.world_size * job.gpus_per_worker if job is not None else 0
    if gpus:
        hours = gpus * recovery.total.total_seconds() / 3600
        so_far = "" if recovery.is_finished else " so far"
        facts.append(
            Fact(
                f"{hours_in_words(hours)} GPU-hours",
                f"estimated: {number(gpus)} GPUs idle for {duration(recovery.total.total_seconds())}{so_far}",
            )
        )
    if job is not None and settings.GPU_PRICES:
        facts += _money(job, recovery)
    return facts


def _money(job: Job, recovery: RecoveryTimeline) -> list[Fact]:
    """What its GPUs' time costs, by type; types without a price, and unknown ones, show nothing."""
    try:
        prices = read_prices(settings.GPU_PRICES)
    except BadInput as error:
        return [Fact("–", str(error))]
    machines = job.workers.filter(incarnation__machine__isnull=False)
    by_type = machines.values_list("incarnation__machine__gpu_type").annotate(workers=Count("id"))
    gpus = {gpu_type: workers * job.gpus_per_worker for gpu_type, workers in by_type}
    paid = timeline.cost(recovery, gpus, prices=prices)
    return [
        Fact(
            f"{amount.amount:,.2f} {amount.price.currency}",
            f"{gpu_type} at {amount.price.per_gpu_hour:g} per GPU-hour, {amount.price.source}, "
            f"{amount.price.as_of.isoformat()}; without the steps done again",
        )
        for gpu_type, amount in paid.money.items()
    ]


def _budget(incident: Incident) -> list[Fact]:
    if incident.job is None:
        return []
    counted = incident.failures_used is not None
    return [
        Fact(
            failures(incident),
            "failures of the job used, this one included"
            if counted
            else "failures of the job used by now"
            if incident.state in OPEN_INCIDENT_STATES
            else "failures of the job used by it",
        )
    ]


def _processes(incident: Incident, recovery: RecoveryTimeline) -> list[Fact]:
    """Process ids before and after: the culprit's, and how many others have new ones too."""
    changed = [worker for worker in recovery.pids_after if recovery.pids_before.get(worker)]
    facts = []
    if changed:
        culprit = str(incident.verdict.get("worker") or "")
        worker = culprit if culprit in changed else min(changed)
        agent = recovery.agent_pids.get(worker)
        kept = (
            f", its agent {agent} before and after"
            if agent is not None and worker in recovery.untouched
            else ""
        )
        rest = len(changed) - 1
        others = f"; {number(rest)} other{'s' if rest > 1 else ''} likewise" if rest else ""
        pids = f"{recovery.pids_before[worker][0]} → {recovery.pids_after[worker]}"
        facts.append(Fact(pids, f"process of {worker}{kept}{others}"))
    if recovery.checks_seconds is not None:
        facts.append(Fact(duration(recovery.checks_seconds), "longest quick checks, beside the stop"))
    return facts


def _pods(recovery: RecoveryTimeline) -> list[Fact]:
    if not recovery.rebuilt and not recovery.untouched:
        return []
    named = f": {', '.join(recovery.rebuilt[:MOST_NAMED])}" if recovery.rebuilt else ""
    more = " …" if len(recovery.rebuilt) > MOST_NAMED else ""
    return [
        Fact(
            f"{number(len(recovery.rebuilt))} of {number(len(recovery.rebuilt) + len(recovery.untouched))}",
            f"pods rebuilt{named}{more}"
            + ("; the others untouched" if recovery.rebuilt else ", none touched"),
        )
    ]
