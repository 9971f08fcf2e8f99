"""Prices as text for a terminal: what `manage.py economics` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apps.incidents.fault_traces import NamedTrace, exposures_of, failures_of
from apps.incidents.interruptions import Interruptions
from recovery.backtest import FaultTrace
from recovery.checkpointing import MOST_INTERVAL_OVER_MTBF, CheckpointPlan
from recovery.figures import Figure
from recovery.prices import GpuPrice, Money
from recovery.reliability import (
    Exposure,
    Failure,
    Mtbf,
    by_class,
    by_job_size,
    by_node,
    estimate,
    with_prior,
    without_down,
    worst_share,
)
from recovery.spares import RepairTimes, SparePool, repair_times, size_pool

HOUR_SECONDS = 3600.0
GIVEN = "as given"  # source of a figure that was typed
WORST_NODES = 40
MOST_NODES = 10
JOB_SIZES = (64, 128, 256)


def duration(seconds: float) -> str:
    """Seconds as people say them, the second unit where it tells something: "5.29 h", "15.7 min", "40 s"."""
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:.1f} days"
    if seconds >= 2 * HOUR_SECONDS:
        return f"{seconds / HOUR_SECONDS:.2f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:g} s"


def _known(name: str, figure: Figure) -> str:
    # Nobody but who typed it knows how a figure of the command line is known.
    known = ", ".join(filter(None, (figure.basis if figure.source != GIVEN else "", figure.source)))
    return f"{name:<28}{figure.value:>14,.1f} s  {duration(figure.value):<12}({known})"


def checkpoint_text(plan: CheckpointPlan) -> str:
    """A plan with its forms, steps, writes and warnings."""
    lines = [
        _known("C, one save", plan.checkpoint_seconds),
        _known("M, between failures", plan.mtbf_seconds),
        _known("R, one restart", plan.restart_seconds),
        "",
        f"{'interval T':<28}{'seconds':>14}    {'':<12}{'waste':>8}{'T/M':>8}",
    ]
    for form in (*plan.forms, *([plan.present] if plan.present else [])):
        is_advised = "  advised" if form is plan.advised and plan.gets_on else ""
        lines.append(
            f"{form.name:<28}{form.interval_seconds:>14,.1f}    {duration(form.interval_seconds):<12}"
            f"{form.waste_share:>8.2%}{form.interval_seconds / plan.mtbf_seconds.value:>8.3f}{is_advised}"
        )
    lines.append(f"(all {plan.basis}; above a T/M of {MOST_INTERVAL_OVER_MTBF:g} no form holds)")
    if plan.interval_steps is not None and plan.gets_on:
        lines.append(f"Save every {plan.interval_steps:,} steps.")
    load = plan.load
    if load is not None and plan.gets_on:
        lines.append(f"Writes {load.bytes_a_day / 1e12:,.2f} TB a day in {load.saves_a_day:.1f} saves.")
        if load.bandwidth_share is not None:
            lines.append(f"Store's write bandwidth, mean: {load.bandwidth_share:.2%}.")
        if load.capacity_share is not None:
            lines.append(f"Store's room for what is kept: {load.capacity_share:.2%}.")
        if load.drive_writes_per_day is not None:
            lines.append(f"Each drive is filled {load.drive_writes_per_day:.3f} times a day.")
        if load.endurance_share_a_year is not None and load.endurance_years is not None:
            lines.append(
                f"Drive wear: {load.endurance_share_a_year:.1%} of the rated writes a year "
                f"({load.endurance_years:.1f} years until all of them)."
            )
    lines += [f"warning: {warning}" for warning in plan.warnings]
    return "\n".join(lines) + "\n"


def mtbf_text(trace: NamedTrace, *, confidence: float, job_sizes: Sequence[int] | None) -> str:
    """What a fault trace says about the time between failures, by node and class, and for jobs."""
    failures, exposures = failures_of(trace.trace), exposures_of(trace.trace)
    down = [(fault.node, fault.start, fault.end or trace.trace.end) for fault in trace.trace.faults]
    up = estimate(failures, without_down(exposures, down), confidence=confidence)
    return _mtbf_text(
        trace.name,
        f"({len(trace.trace.nodes)} nodes, from the first failure to the end, down time not taken off)",
        trace.left_out,
        failures,
        exposures,
        exposures,
        nodes=len(trace.trace.nodes),
        up=up,
        confidence=confidence,
        job_sizes=_sizes(job_sizes, len(trace.trace.nodes)),
    )


def _sizes(asked: Sequence[int] | None, nodes: int) -> tuple[int, ...]:
    """Jobs to say M of: those that were asked for, else the usual ones that fit, else one on all nodes."""
    if asked is not None:
        return tuple(asked)
    return tuple(size for size in JOB_SIZES if size <= nodes) or (nodes,)


def cluster_text(
    slug: str,
    found: Interruptions,
    of_nodes: Sequence[Exposure],
    *,
    nodes: int,
    confidence: float,
    job_sizes: Sequence[int] | None,
) -> str:
    """What interrupted training in a cluster of the desk, by the same tables.

    Args:
        of_nodes: Node time of the nodes that failed.
        nodes: That the cluster has now.
    """
    of_machines = tuple(failure for failure in found.failures if failure.by_machine)
    left_out = []
    if made := len(found.failures) - len(of_machines):
        left_out.append(f"{_count(made, 'failure')} that the verdict blames on the job itself")
    if found.without_nodes:
        left_out.append(
            f"{_count(found.without_nodes, 'attempt')} of which it is not known on how many nodes"
        )
    since = f"{found.since:%Y-%m-%d %H:%M} UTC"
    return _mtbf_text(
        f"cluster {slug}",
        f"({_count(len(found.exposures), 'attempt')} since {since}, each from its start to its end times its nodes)",
        left_out,
        of_machines,
        found.exposures,
        of_nodes,
        nodes=None,
        up=None,
        confidence=confidence,
        job_sizes=_sizes(job_sizes, nodes),
    )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _mtbf_text(
    name: str,
    watched: str,
    left_out: Sequence[str],
    failures: Sequence[Failure],
    exposures: Sequence[Exposure],
    of_nodes: Sequence[Exposure],
    *,
    nodes: int | None,
    up: Mtbf | None,
    confidence: float,
    job_sizes: tuple[int, ...],
) -> str:
    """The tables of a trace or of a cluster.

    Args:
        of_nodes: Node time of those nodes that are judged one by one.
        nodes: Of the whole system, None where not all of them were under watch all the time.
        up: The same with down time taken off, where it is known.
    """
    blended = with_prior(failures, exposures, confidence=confidence)
    seen = f"{_count(blended.failures, 'failure')} in {blended.exposure_node_days:,.0f} node-days"
    lines = [f"{name}: {seen}", watched, *(f"left out: {each}" for each in left_out)]
    if blended.exposure_node_days:
        all_ = estimate(failures, exposures, confidence=confidence)
        lines.append(f"node MTBF {_interval(all_)} (measured, {confidence:.0%})")
        if up is not None:
            lines.append(f"down time taken off {_interval(up)}")
        if all_.node_days is not None and nodes is not None:
            lines.append(f"whole system: one failure in {duration(all_.node_days * 86_400 / nodes)}")
    prior = (
        f"prior of {blended.prior_node_days:g} node-days, as strong as {blended.prior_failures:g} failures"
    )
    lines.append(f"with the prior {_interval(blended)} ({prior}, weighs {blended.prior_share:.1%})")
    lines.append(f"gaps: {blended.gaps.sentence}{_gap_figures(blended)}")
    hit = {failure.node for failure in failures if failure.node}
    if hit:
        worst = (
            f"; the worst {WORST_NODES} of them had {worst_share(failures, WORST_NODES):.1%} of the failures"
        )
        lines.append(f"{_count(len(hit), 'node')} hit{worst if len(hit) > WORST_NODES else ''}")
    if failures:
        lines += _rows("class", by_class(failures, exposures, confidence=confidence))
    if any(exposure.job_nodes for exposure in exposures):
        lines += _rows("nodes of the job", by_job_size(failures, exposures, confidence=confidence))
    lines += _worst_nodes(by_node(failures, of_nodes, confidence=confidence))
    lines += ["", f"{'job, nodes':<28}{'':>8}   {'time between failures, with the prior':<40}gaps"]
    for size in job_sizes:
        figure = blended.job_seconds(size)
        low, high = blended.job_bounds_seconds(size)
        bounds = f"({duration(low)} to {duration(high) if high is not None else 'no bound'})"
        told = f"{duration(figure.value)} {bounds}"
        lines.append(f"{size:<28}{'':>8}   {told:<40}{blended.gaps.flag} ({figure.basis})")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _worst_nodes(found: Mapping[str, Mtbf]) -> list[str]:
    """Those that failed, the worst first; the others are counted."""
    failed = {name: each for name, each in found.items() if each.failures}
    worst = sorted(failed, key=lambda name: (failed[name].node_days or 0, name))[:MOST_NODES]
    if not worst:
        return []
    title = "worst node, with the prior"
    more = f"(first {len(worst)} of {len(failed)} that failed)" if len(failed) > len(worst) else ""
    return _rows(title, {name: failed[name] for name in worst}, more)


def _rows(title: str, found: Mapping[str, Mtbf], more: str = "") -> list[str]:
    """A table, with the interval and what its gaps look like in each row."""
    heading = f"{title:<28}{'failures':>8}   {'node MTBF, days':<40}gaps  {more}"
    rows = [
        f"{name or '(none)':<28}{each.failures:>8}   {_interval(each):<40}{each.gaps.flag}"
        for name, each in found.items()
    ]
    return ["", heading, *rows]


def _interval(found: Mtbf) -> str:
    high = f"{found.high_node_days:,.1f}" if found.high_node_days is not None else "no bound"
    mean = f"{found.node_days:,.1f} days" if found.node_days is not None else "not known"
    return f"{mean} ({found.low_node_days:,.1f} to {high})"


def _gap_figures(found: Mtbf) -> str:
    gaps = found.gaps
    if gaps.spread is None or gaps.distance is None:
        return ""
    return (
        f" (coefficient of variation {gaps.spread:.2f}, 1 at a constant rate; distance {gaps.distance:.3f})"
    )


def repairs_of(trace: FaultTrace) -> RepairTimes:
    """How long the faults of a trace lasted. Raises BadInput without any."""
    ended = [
        (fault.end - fault.start).total_seconds() / HOUR_SECONDS
        for fault in trace.faults
        if fault.end is not None
    ]
    still = [
        (trace.end - fault.start).total_seconds() / HOUR_SECONDS
        for fault in trace.faults
        if fault.end is None
    ]
    return repair_times(ended, open_hours=still)


def pool_of(trace: FaultTrace, *, gpus_per_node: int, job_nodes: int, target_share: float) -> SparePool:
    """The spare pool for a cluster that fails as this one did. Raises BadInput without a failure."""
    found = with_prior(failures_of(trace), exposures_of(trace))
    return size_pool(
        nodes=len(trace.nodes),
        failures_per_node_day=found.rate_per_node_day,
        repair=repairs_of(trace),
        gpus_per_node=gpus_per_node,
        job_nodes=job_nodes,
        target_share=target_share,
    )


def spares_text(trace: NamedTrace, pool: SparePool, price: GpuPrice | None = None) -> str:
    """Pool sizes with their price; money only where a price per GPU-hour is given."""
    repair = pool.repair
    seen = f"{repair.count} seen, {repair.open_repairs} of them not over"
    tail = f"90th percentile {repair.p90_hours:.1f}"
    sizes = (
        f"{pool.by_median} by the median, {pool.by_mean} by the mean, {pool.by_p90} by the 90th percentile"
    )
    median, mean = f"median {repair.median_hours:.1f} h", f"mean {repair.mean_hours:.1f} h"
    p90 = f"90 % {repair.p90_hours:.1f} h"
    lines = [
        f"{trace.name}: {pool.failures_a_day:.2f} failures a day on {pool.nodes} nodes ({pool.basis})",
        *(f"left out: {each}" for each in trace.left_out),
        f"repairs, hours: median {repair.median_hours:.1f}, mean {repair.mean_hours:.1f}, {tail} ({seen})",
        f"so that {pool.target_share:.0%} of failures find a spare: {sizes},",
        "each if every repair took as long as that; in the long run the mean decides, however repairs are spread",
        f"advised: {pool.advised} spares, {pool.advised_share:.1%} of the nodes",
        "",
        f"{'':>6}{'a failure finds one, if repairs take':^44}{'GPU-hours a day, by the mean':^44}".rstrip(),
        f"{'spares':>6}{median:>14}{mean:>14}{p90:>16}{'idle':>14}{'saved':>14}{'net':>14}",
    ]
    named = (
        (pool.by_median, "by the median"),
        (pool.by_mean, "by the mean"),
        (pool.by_p90, "by the 90th percentile"),
        (pool.advised, "advised"),
        (pool.best_by_price.spares, "best by price"),
    )
    marks: dict[int, list[str]] = {0: []}
    for size, mark in named:
        marks.setdefault(size, []).append(mark)
    for size in sorted(size for size in marks if size < len(pool.rows)):
        row = pool.row(size)
        lines.append(
            f"{size:>6}{row.ready_share_by_median:>14.1%}{row.ready_share:>14.1%}{row.ready_share_by_p90:>16.1%}"
            f"{row.idle_gpu_hours_a_day:>14,.0f}{row.saved_gpu_hours_a_day:>14,.0f}"
            f"{row.net_gpu_hours_a_day:>14,.0f}  {', '.join(marks[size])}".rstrip()
        )
    if price is not None:
        idle = Money(pool.row(pool.advised).idle_gpu_hours_a_day * price.per_gpu_hour, price)
        lines.append(f"The advised spares idle for {idle} a day.")
    lines.append(
        "Saved: a job that finds no spare waits for the median repair; the long tail is not counted for spares."
    )
    return "\n".join(lines) + "\n"
