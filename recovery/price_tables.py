"""Worked examples of prices as Markdown tables, computed by the functions that decide. They stand in the documents."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from recovery.checkpointing import (
    DALY,
    SAVE_INCLUSIVE,
    YOUNG,
    CheckpointPlan,
    plan_checkpoints,
    waste_share,
)
from recovery.figures import assumed, estimated, measured
from recovery.prices import (
    ElasticLoss,
    ElasticOption,
    SlowNode,
    SlowOption,
    confirmation_share,
    price_elastic,
    price_slow_node,
)
from recovery.reliability import with_prior

_WHEN = datetime(2026, 1, 1, tzinfo=UTC)
_THREE_HOURS = 10_800.0


def checkpoint_intervals() -> str:
    """Intervals and waste for some saves and lifetimes."""
    prior = with_prior((), ())
    cases = [
        ("5 min a save, a failure a week", plan_checkpoints(measured(300), measured(604_800), measured(0))),
        ("40 s, a failure in 3.09 h", plan_checkpoints(measured(40), measured(11_124), measured(0))),
        *(
            (
                f"60 s, {nodes} nodes of a new cluster, 10 min a restart",
                plan_checkpoints(measured(60), prior.job_seconds(nodes), measured(600)),
            )
            for nodes in (64, 256, 1024)
        ),
    ]
    lines = [
        "| job | M | Young | Daly, higher order | save-inclusive | waste at Daly's | waste at three hours |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_interval_row(name, plan) for name, plan in cases]
    return "\n".join(lines) + "\n"


def _interval_row(name: str, plan: CheckpointPlan) -> str:
    c, m, r = plan.checkpoint_seconds.value, plan.mtbf_seconds.value, plan.restart_seconds.value
    forms = " | ".join(f"{plan.form(form).interval_seconds:,.0f} s" for form in (YOUNG, DALY, SAVE_INCLUSIVE))
    late = waste_share(_THREE_HOURS, c, m, r)
    return f"| {name} | {m / 3600:,.2f} h | {forms} | {plan.advised.waste_share:.2%} | {late:.1%} |"


def slow_node_moments() -> str:
    """When a slow node goes: 512 GPUs, a checkpoint each hour, a restart of two minutes."""
    lines = [
        "| slowdown | since the last checkpoint | to the next | GPU-hours: evict now | at the safe point | taken |",
        "|---|---|---|---|---|---|",
    ]
    for slowdown, since in ((0.05, 600), (0.2, 600), (0.2, 300), (0.5, 300), (0.5, 1500), (0.9, 1500)):
        slow = SlowNode(
            gpus=512,
            slowdown_share=measured(slowdown),
            since_checkpoint_seconds=measured(since),
            to_checkpoint_seconds=estimated((3600 - since) / (1 - slowdown)),
            restart_seconds=measured(120),
            seen=3,
            looked=3,
        )
        choice = price_slow_node(slow, _WHEN)
        now, later = choice.price(SlowOption.EVICT_NOW), choice.price(SlowOption.EVICT_AT_CHECKPOINT)
        lines.append(
            f"| {slowdown:.0%} | {since} s | {slow.to_checkpoint_seconds.value:,.0f} s | {now.gpu_hours:.1f} "
            f"| {later.gpu_hours:.1f} | {choice.chosen} |"
        )
    return "\n".join(lines) + "\n"


def hang_chances() -> str:
    """How sure one must be of a hang before acting is cheaper than waiting for confirmation."""
    lines = [
        "| progress at stake plus restart | left until confirmation | act from a chance of |",
        "|---|---|---|",
    ]
    for at_stake in (60, 600, 3600):
        for left in (60, 600):
            share = confirmation_share(wait_seconds=left, act_seconds=at_stake)
            lines.append(f"| {at_stake:,} s | {left} s | {share:.0%} |")
    return "\n".join(lines) + "\n"


def elastic_choices() -> str:
    """Three slices of 16 devices, one lost: how the choice turns with the time of the replacement."""
    base = ElasticLoss(
        replicas=3,
        gpus_per_replica=16,
        lost=1,
        replacement_seconds=measured(50),
        since_checkpoint_seconds=measured(14.08),
        restore_seconds=measured(5.39 + 12.7),
        full_restart_seconds=assumed(300),
        can_reshard=True,
        batch_per_replica=32,
    )
    cases = [
        ("replacement in 20 s", replace(base, replacement_seconds=measured(20))),
        ("replacement in 50 s, as in that run", base),
        ("the same, checkpoint cannot be resharded", replace(base, can_reshard=False)),
        ("replacement in 400 s, beyond the timeout", replace(base, replacement_seconds=estimated(400))),
        ("retries used up", replace(base, tries=10)),
        ("the head is lost", replace(base, is_head_lost=True)),
    ]
    lines = [
        "| case | pause and resume | replica resize | full restart | taken | batch |",
        "|---|---|---|---|---|---|",
    ]
    for name, loss in cases:
        choice = price_elastic(loss, _WHEN)
        cells = []
        for option in (
            ElasticOption.PAUSE_AND_RESUME,
            ElasticOption.REPLICA_RESIZE,
            ElasticOption.FULL_RESTART,
        ):
            price = choice.price(option)
            refused = " (not to be had)" if price.refused_because else ""
            cells.append(f"{price.gpu_seconds:,.0f}{refused}")
        batch = f"{choice.batch_before} → {choice.batch_after}"
        lines.append(f"| {name} | {' | '.join(cells)} | {choice.chosen} | {batch} |")
    return "\n".join(lines) + "\n"
