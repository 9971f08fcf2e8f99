"""Prices as text for a terminal: what `manage.py economics` prints."""

from __future__ import annotations

from collections.abc import Mapping

from apps.incidents.fault_traces import NamedTrace, exposures_of, failures_of
from recovery.backtest import FaultTrace
from recovery.checkpointing import MOST_INTERVAL_OVER_MTBF, CheckpointPlan
from recovery.figures import Figure
from recovery.prices import GpuPrice, Money
from recovery.reliability import Mtbf, by_class, by_node, estimate, with_prior, worst_share
from recovery.spares import RepairTimes, SparePool, repair_times, size_pool

HOUR_SECONDS = 3600.0
GIVEN = "as given"  # source of a figure that was typed
WORST_NODES = 40
MOST_NODES = 10


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
        is_advised = "  advised" if form is plan.advised else ""
        lines.append(
            f"{form.name:<28}{form.interval_seconds:>14,.1f}    {duration(form.interval_seconds):<12}"
            f"{form.waste_share:>8.2%}{form.interval_seconds / plan.mtbf_seconds.value:>8.3f}{is_advised}"
        )
    lines.append(f"(all {plan.basis}; above a T/M of {MOST_INTERVAL_OVER_MTBF:g} no form holds)")
    if plan.interval_steps is not None:
        lines.append(f"Save every {plan.interval_steps:,} steps.")
    load = plan.load
    if load is not None:
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


def mtbf_text(trace: NamedTrace, *, confidence: float, job_sizes: tuple[int, ...]) -> str:
    """What a fault trace says about the time between failures, by node and class, and for jobs."""
    failures, exposures = failures_of(trace.trace), exposures_of(trace.trace)
    all_ = estimate(failures, exposures, confidence=confidence)
    blended = with_prior(failures, exposures, confidence=confidence)
    nodes = len(trace.trace.nodes)
    hit = {failure.node for failure in failures}
    prior = (
        f"prior of {blended.prior_node_days:g} node-days, as strong as {blended.prior_failures:g} failures"
    )
    lines = [
        f"{trace.name}: {all_.failures} failures in {all_.exposure_node_days:,.0f} node-days",
        f"({nodes} nodes, from the first failure to the end, down time not taken off)",
        f"node MTBF {_interval(all_)} (measured, {confidence:.0%})",
        f"with the prior {_interval(blended)} ({prior}, weighs {blended.prior_share:.1%})",
    ]
    if all_.node_days is not None:
        lines.append(f"whole system: one failure in {duration(all_.node_days * 86_400 / nodes)}")
    lines.append(f"gaps: {all_.gaps.sentence}{_gap_figures(all_)}")
    lines.append(
        f"{len(hit)} nodes hit; the worst {WORST_NODES} of them had "
        f"{worst_share(failures, WORST_NODES):.1%} of the failures"
    )
    lines += ["", "class                       failures   node MTBF, days"]
    lines += [
        _row(name or "(none)", found)
        for name, found in by_class(failures, exposures, confidence=confidence).items()
    ]
    nodes_by_rate = sorted(
        by_node(failures, exposures, confidence=confidence).items(),
        key=lambda each: (each[1].node_days or 0, each[0]),
    )
    lines += ["", f"worst nodes, with the prior failures   node MTBF, days  (first {MOST_NODES})"]
    lines += [_row(name, found) for name, found in nodes_by_rate[:MOST_NODES]]
    lines += ["", "job, nodes        time between failures"]
    for size in job_sizes:
        figure = blended.job_seconds(size)
        lines.append(f"{size:<18}{duration(figure.value)} ({figure.basis})")
    return "\n".join(lines) + "\n"


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


def _row(name: str, found: Mtbf) -> str:
    return f"{name:<28}{found.failures:>8}   {_interval(found)}"


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
    lines = [
        f"{trace.name}: {pool.failures_a_day:.2f} failures a day on {pool.nodes} nodes ({pool.basis})",
        f"repairs, hours: median {repair.median_hours:.1f}, mean {repair.mean_hours:.1f}, {tail} ({seen})",
        f"so that {pool.target_share:.0%} of failures find a spare: {sizes}",
        f"advised: {pool.advised} spares, {pool.advised_share:.1%} of the nodes",
        "",
        f"{'spares':>6}{'failure finds one':>20}{'idle GPU-hours a day':>23}{'saved GPU-hours a day':>24}{'net':>12}",
    ]
    marks: Mapping[int, str] = {
        0: "",
        pool.by_median: "by the median",
        pool.by_mean: "by the mean",
        pool.by_p90: "by the 90th percentile",
        pool.advised: "advised",
        pool.best_by_price.spares: "best by price",
    }
    for size in sorted(size for size in marks if size < len(pool.rows)):
        row = pool.row(size)
        lines.append(
            f"{size:>6}{row.ready_share:>20.1%}{row.idle_gpu_hours_a_day:>23,.0f}{row.saved_gpu_hours_a_day:>24,.0f}"
            f"{row.net_gpu_hours_a_day:>12,.0f}  {marks[size]}".rstrip()
        )
    if price is not None:
        idle = Money(pool.row(pool.advised).idle_gpu_hours_a_day * price.per_gpu_hour, price)
        lines.append(f"The advised spares idle for {idle} a day.")
    lines.append(
        "Saved: a job that finds no spare waits for the median repair; the long tail is not counted for spares."
    )
    return "\n".join(lines) + "\n"
