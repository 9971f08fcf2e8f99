"""Lay synthetic jobs over a fault trace and compare policies; the core replays, this draws, counts and prints."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from apps.incidents.fault_traces import NamedTrace
from recovery.backtest import (
    FaultTrace,
    History,
    JobModel,
    Placement,
    ReplacePolicy,
    Replay,
    compare,
    read_history,
    replay,
    spread,
)
from recovery.checkpointing import daly_seconds
from recovery.errors import BadInput
from recovery.guards import DEFAULT_LIMITS, Dimension, Measure
from recovery.reliability import DAY_SECONDS, PRIOR_NODE_DAYS

DEFAULT_POLICIES = "wait,swap,history,blacklist:7,blacklist:30,spares:2,spares:5"
FULL_POLICIES = "swap,history,blacklist:1,blacklist:3,blacklist:7,blacklist:14,blacklist:30,guarded:30"
BASELINE = "swap"
WORDS = {
    "wait": "wait in place: the job waits until its own nodes are back",
    "swap": "swap: a node outside of the job that is not down takes over at once",
    "history": "swap with probation and lemon score: the same, the best record first, nobody kept away",
    "blacklist:D": "swap, and who failed is kept away for D days after its newest fault",
    "guarded:D": "the same, but no more nodes at a time than the guard of a new cluster lets be isolated",
    "spares:K": "swap from K % of the nodes; all others outside of the job are busy",
}

STANDING_GUARD = next(
    limit
    for limit in DEFAULT_LIMITS
    if limit.dimension is Dimension.CLUSTER and limit.measure is Measure.STANDING
)

#: Replays done, of how many, and which one comes now.
Tell = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class JobAssumptions:
    """What a fault trace does not say about jobs; all assumed."""

    gpus_per_node: int = 8
    checkpoint_seconds: float = 60.0
    restart_seconds: float = 600.0

    def job(self, nodes: int) -> JobModel:
        """A job of this size that saves as often as Daly's form says for the prior MTBF.

        Not for the MTBF of the trace: at its begin nobody knew that.
        """
        mtbf = PRIOR_NODE_DAYS * DAY_SECONDS / nodes
        interval = daly_seconds(self.checkpoint_seconds, mtbf)
        return JobModel(nodes, self.gpus_per_node, interval, self.checkpoint_seconds, self.restart_seconds)


@dataclass(frozen=True, slots=True)
class Table:
    """Policies replayed for one job: ``replays`` by the policy's name, in the order of the placements."""

    job: JobModel
    replays: Mapping[str, tuple[Replay, ...]]


@dataclass(frozen=True, slots=True)
class Backtest:
    """Everything that was replayed: ``sizes`` on the cluster as it was, ``full`` on one that is nearly full."""

    trace: NamedTrace
    assumptions: JobAssumptions
    seed: int
    placements: int
    sizes: tuple[Table, ...]
    full: tuple[Table, ...]


def parse_policies(text: str) -> tuple[ReplacePolicy, ...]:
    """Policies by name: wait, swap, history, blacklist:D and guarded:D (days), spares:K (percent).

    Raises:
        BadInput: for a name or number that is none.
    """
    return tuple(_policy(word.strip()) for word in text.split(",") if word.strip())


def _policy(word: str) -> ReplacePolicy:
    name, _, number = word.partition(":")
    match name, number:
        case "wait", "":
            return ReplacePolicy(word, is_swapped=False)
        case "swap", "":
            return ReplacePolicy(word)
        case "history", "":
            return ReplacePolicy(word, is_history_used=True)
        case "blacklist", _ if (days := _positive(number)) is not None:
            return ReplacePolicy(word, blacklist_days=days)
        case "guarded", _ if (days := _positive(number)) is not None:
            return ReplacePolicy(word, blacklist_days=days, guard=STANDING_GUARD)
        case "spares", _ if (percent := _positive(number)) is not None and percent <= 100:
            return ReplacePolicy(word, spare_share=percent / 100)
    raise BadInput(
        f"{word!r} is no policy: give wait, swap, history, blacklist:DAYS, guarded:DAYS or spares:PERCENT",
        field="policies",
    )


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def draw_placements(trace: FaultTrace, count: int, rng: random.Random) -> tuple[Placement, ...]:
    """Random placements: an order of all nodes, and a draw for each choice that a replay can have to make."""
    most = 2 * len(trace.faults) + 1
    return tuple(
        Placement(tuple(rng.sample(trace.nodes, len(trace.nodes))), tuple(rng.random() for _ in range(most)))
        for _ in range(count)
    )


def run(
    trace: NamedTrace,
    *,
    sizes: Sequence[int],
    full_shares: Sequence[float],
    policies: str,
    placements: int,
    seed: int,
    assumptions: JobAssumptions,
    tell: Tell,
    full_policies: str = FULL_POLICIES,
) -> Backtest:
    """Replay everything. The same seed gives the same placements to every policy and size.

    Raises:
        BadInput: for sizes that do not fit, unknown policies, or no placement.
    """
    if placements < 1:
        raise BadInput(f"{placements} placements: give at least one", field="placements")
    nodes = len(trace.trace.nodes)
    for share in full_shares:
        if not 0 < share < 1:
            raise BadInput(f"a job of {share:g} of the cluster: give shares between 0 and 1", field="full")
    full_sizes = [round(share * nodes) for share in full_shares]
    for size in (*sizes, *full_sizes):
        if not 0 < size <= nodes:
            raise BadInput(
                f"a job of {size} nodes does not fit on {nodes}: give 1 to {nodes}", field="job-sizes"
            )
    rng = random.Random(seed)
    drawn = draw_placements(trace.trace, placements, rng)
    histories: dict[str, History] = {}
    mine, theirs = parse_policies(policies), parse_policies(full_policies)
    if not mine:
        raise BadInput("no policy was given: give at least one", field="policies")
    total = len(sizes) * len(mine) + len(full_sizes) * len(theirs)
    done = 0

    def table(size: int, chosen: Sequence[ReplacePolicy]) -> Table:
        nonlocal done
        job = assumptions.job(size)
        found = {}
        for policy in chosen:
            tell(done, total, f"{size} nodes, {policy.name}")
            done += 1
            if policy.name not in histories:
                histories[policy.name] = read_history(trace.trace, policy)
            found[policy.name] = tuple(replay(histories[policy.name], placement, job) for placement in drawn)
        return Table(job, found)

    return Backtest(
        trace=trace,
        assumptions=assumptions,
        seed=seed,
        placements=placements,
        sizes=tuple(table(size, mine) for size in sizes),
        full=tuple(table(size, theirs) for size in full_sizes),
    )


def render(result: Backtest) -> str:
    """For a terminal."""
    trace = result.trace.trace
    days = (trace.end - trace.begin).total_seconds() / DAY_SECONDS
    assumed = result.assumptions
    lines = [
        f"Replayed on a fault trace: {result.trace.name}, {len(trace.nodes)} nodes, {result.trace.quiet_nodes} of them",
        f"without a fault, {len(trace.faults)} faults in {days:.0f} days.",
        *(f"Left out: {each}." for each in result.trace.left_out),
        f"Jobs are synthetic: {result.placements} random placements, seed {result.seed}. Assumed: a node has",
        f"{assumed.gpus_per_node} GPUs, a save takes {assumed.checkpoint_seconds:g} s, a restart takes",
        f"{assumed.restart_seconds:g} s; saves by Daly's form for a node MTBF of {PRIOR_NODE_DAYS:g} days.",
        "Figures are means over placements, in brackets the 10th and 90th percentile.",
        "",
    ]
    for table in result.sizes:
        lines += [*_size_lines(table, days), ""]
    if result.full:
        lines += [
            "A nearly full cluster: does it pay to keep away who failed?",
            "Beside swap, in GPU-hours, negative = less lost.",
            "job: the job alone. with withheld: also the healthy nodes that were kept away, had somebody used them.",
            "",
        ]
        for table in result.full:
            lines += [*_full_lines(table, len(trace.nodes)), ""]
    lines += [f"{name:<12} {words}" for name, words in WORDS.items()]
    return "\n".join(lines) + "\n"


def _size_lines(table: Table, days: float) -> list[str]:
    job = table.job
    gpu_hours = job.nodes * job.gpus_per_node * days * 24
    lines = [
        f"{job.nodes} nodes",
        _row(
            "policy",
            "interruptions",
            "waited, h",
            "GPU-hours lost",
            "share",
            "blocked",
            "avoided",
            "idle spares",
        )
        + "  beside swap, for the job",
        _row("", "", "", "", "", "node-days", "node-days", "GPU-hours"),
    ]
    for name, replays in table.replays.items():
        interruptions = spread([float(each.interruptions) for each in replays])
        lost = spread([each.lost_gpu_hours for each in replays])
        waited = spread([each.waiting_seconds / 3600 for each in replays])
        idle = spread([each.idle_spare_node_days * 24 * each.gpus_per_node for each in replays])
        beside = _beside(name, replays, table)
        row = _row(
            name,
            f"{interruptions.mean:.1f} ({interruptions.p10:.0f} to {interruptions.p90:.0f})",
            f"{waited.mean:,.0f}",
            f"{lost.mean:,.0f} ({lost.p10:,.0f} to {lost.p90:,.0f})",
            f"{lost.mean / gpu_hours:.1%}",
            f"{replays[0].blocked_node_days:,.0f}",
            f"{replays[0].avoided_node_days:,.0f}",
            f"{idle.mean:,.0f}",
        )
        lines.append(f"{row}  {beside}".rstrip())
    return lines


def _beside(name: str, replays: tuple[Replay, ...], table: Table) -> str:
    """Spares are for a cluster without a free node: beside them stands waiting, and idle ones count."""
    waiting, swapping = table.replays.get("wait"), table.replays.get(BASELINE)
    if name.startswith("spares:"):
        return (
            f"{compare(replays, waiting).net_verdict} (beside wait, idle spares counted)" if waiting else ""
        )
    return compare(replays, swapping).job_verdict if swapping is not None and name != BASELINE else ""


def _row(name: str, *cells: str) -> str:
    widths = (20, 11, 38, 8, 11, 11, 13)
    return f"{name:<14}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _full_row(name: str, *cells: str) -> str:
    widths = (14, 11, 11, 14)
    return f"{name:<14}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _full_lines(table: Table, nodes: int) -> list[str]:
    job = table.job
    baseline = table.replays[BASELINE]
    lines = [
        f"{job.nodes} of {nodes} nodes ({job.nodes / nodes:.0%})",
        _full_row("policy", "interruptions", "waited, h", "blocked", "job") + f"{'with withheld':>31}",
        _full_row("", "", "", "node-days", "GPU-hours") + f"{'GPU-hours':>31}",
    ]
    for name, replays in table.replays.items():
        interruptions = spread([float(each.interruptions) for each in replays]).mean
        waited = spread([each.waiting_seconds / 3600 for each in replays]).mean
        cells = [f"{interruptions:.1f}", f"{waited:,.0f}", f"{replays[0].blocked_node_days:,.0f}"]
        if name == BASELINE:
            lines.append(_full_row(name, *cells, "").rstrip())
            continue
        found = compare(replays, baseline)
        lines.append(
            _full_row(name, *cells, f"{found.job_gpu_hours.mean:+,.0f}")
            + f"  {found.job_verdict:<14}{found.net_gpu_hours.mean:>+15,.0f}  {found.net_verdict}"
        )
    return lines


def as_plain(result: Backtest) -> dict[str, Any]:
    """As JSON: every figure's spread, and each policy beside swap."""
    trace = result.trace.trace
    return {
        "kind": "replayed on a fault trace",
        "trace": result.trace.name,
        "nodes": len(trace.nodes),
        "faults": len(trace.faults),
        "days": (trace.end - trace.begin).total_seconds() / DAY_SECONDS,
        "seed": result.seed,
        "placements": result.placements,
        "assumed": asdict(result.assumptions) | {"prior_node_days": PRIOR_NODE_DAYS},
        "sizes": [_plain_table(table) for table in result.sizes],
        "nearly_full": [_plain_table(table) for table in result.full],
    }


def _plain_table(table: Table) -> dict[str, Any]:
    baseline = table.replays.get(BASELINE)
    policies = {}
    for name, replays in table.replays.items():
        plain: dict[str, Any] = {
            "interruptions": asdict(spread([float(each.interruptions) for each in replays])),
            "lost_gpu_hours": asdict(spread([each.lost_gpu_hours for each in replays])),
            "computed_again_hours": asdict(spread([each.again_seconds / 3600 for each in replays])),
            "restart_hours": asdict(spread([each.restart_seconds / 3600 for each in replays])),
            "waiting_hours": asdict(spread([each.waiting_seconds / 3600 for each in replays])),
            "blocked_node_days": replays[0].blocked_node_days,
            "avoided_node_days": replays[0].avoided_node_days,
            "idle_spare_node_days": asdict(spread([each.idle_spare_node_days for each in replays])),
        }
        if baseline is not None and name != BASELINE:
            found = compare(replays, baseline)
            plain["beside_swap"] = asdict(found) | {
                "job_verdict": found.job_verdict,
                "net_verdict": found.net_verdict,
            }
        policies[name] = plain
    return {
        "job_nodes": table.job.nodes,
        "interval_seconds": table.job.interval_seconds,
        "policies": policies,
    }
