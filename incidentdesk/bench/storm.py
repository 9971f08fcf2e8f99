"""`./desk bench storm`: a thousand jobs die in one second; three ways to bring them back, side by side."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from incidentdesk.bench.storm_checks import STORE, Passed, passed, use_of_budgets
from incidentdesk.bench.storm_play import (
    COLLAPSING,
    GIVE_UP_SECONDS,
    IDEAL,
    PRIORITIES,
    TENANT_WEIGHTS,
    Job,
    Play,
    bound_seconds,
    least_share_of_fair,
    play_at_once,
    play_backoff,
    play_queue,
    storm,
    storm_policy,
)
from recovery.admission import AdmissionPolicy, Why

JOBS = 1000
BAR_OF_BOUND = 1.10
BAR_OF_FAIR = 0.5
SEEDS = 5  # storms that are played with the queue, from the asked seed on
# Times have microseconds, so what a bucket holds is known as well as this share of it.
_ROUNDING = 1e-6


def measure(*, jobs: int = JOBS, seed: int = 1, say: Callable[[str], None] = print) -> int:
    """Print the tables; 1 when a bar was missed in one of the storms. The same seed gives the same figures."""
    dead = storm(jobs, seed)
    policy = storm_policy()
    queue = play_queue(dead, policy)
    rows = [("admission queue", queue)]
    for name, store in (("collapses", COLLAPSING), ("never slows", IDEAL)):
        backoff = play_backoff(dead, policy, store=store, seed=seed)
        rows.append((f"backoff, full jitter; store {name}", backoff))
        rows.append((f"all at once; store {name}", play_at_once(dead, policy, store=store)))
    for line in report(dead, queue, rows, seed):
        say(line)
    say("")
    storms = {seed: (dead, queue)}
    for other in range(seed + 1, seed + SEEDS):
        others_dead = storm(jobs, other)
        storms[other] = others_dead, play_queue(others_dead, policy, predicts=False)
    for line in by_seed(storms):
        say(line)
    is_missed = False
    for number, (those, play) in storms.items():
        for bar in missed(those, play):
            say(f"MISSED, seed {number}: {bar}")
            is_missed = True
    return int(is_missed)


def missed(jobs: Sequence[Job], queue: Play) -> list[str]:
    """Bars that the queue missed, in words."""
    policy = storm_policy()
    of_bound = queue.all_restored / bound_seconds(jobs, policy)
    fair = least_share_of_fair(queue.starts, TENANT_WEIGHTS)
    found = [
        f"the budget {name} was exceeded: {used:.3f} of what it allows"
        for name, used in use_of_budgets(queue, policy).items()
        if used > 1 + _ROUNDING
    ]
    if of_bound > BAR_OF_BOUND:
        found.append(f"all restored after {of_bound:.3f} of the bound, bar {BAR_OF_BOUND}")
    if fair < BAR_OF_FAIR:
        found.append(f"a tenant read {fair:.3f} of its fair share in a minute, bar {BAR_OF_FAIR}")
    broken = [each for each in passed(queue.starts, policy) if not (each.is_harmless or each.is_excused)]
    if broken:
        first = broken[0]
        did = "could have begun" if first.could_begin else f"was put off {first.put_off_seconds:.0f} s by it"
        found.append(
            f"{len(broken)} times a lower priority went first: at {first.at:.0f} s {first.job} began, and "
            f"{first.other}, of a higher one in its tenant, {did}"
        )
    return found


def by_seed(storms: Mapping[int, tuple[Sequence[Job], Play]]) -> Iterator[str]:
    """What each storm showed of each promise, a line a storm."""
    policy = storm_policy()
    yield (
        f"{'seed':<6}{'of bound':>10}{'fair share':>12}{'budgets':>9}{'passed':>9}{'harmless':>10}{'by length':>11}"
        f"{'by fair share':>15}{'put off at most':>17}{'broken':>8}"
    )
    for seed, (jobs, play) in storms.items():
        pairs = passed(play.starts, policy)
        kinds = Counter(_kind(each) for each in pairs)
        put_off = max((each.put_off_seconds for each in pairs if not each.is_longest), default=0.0)
        yield (
            f"{seed:<6}{play.all_restored / bound_seconds(jobs, policy):>10.3f}"
            f"{least_share_of_fair(play.starts, TENANT_WEIGHTS):>12.3f}"
            f"{max(use_of_budgets(play, policy).values()):>9.3f}{len(pairs):>9}{kinds['harmless']:>10}"
            f"{kinds['length']:>11}{kinds['fair share']:>15}{put_off:>15.0f} s{kinds['broken']:>8}"
        )
    yield f"bars: of bound {BAR_OF_BOUND}, fair share {BAR_OF_FAIR}, budgets 1 (the most used of all), broken 0"
    yield "passed: pairs of one tenant in which the lower priority began first while the higher one waited, past its"
    yield "jitter; harmless: the higher one did not fit, and has room no later for it; by length, by fair share: the"
    yield "two exceptions (docs/design/guards.md), the second with the most that it put a higher one off"


def _kind(each: Passed) -> str:
    if each.is_harmless:
        return "harmless"
    if each.is_longest:
        return "length"
    return "fair share" if each.is_excused else "broken"


def report(jobs: Sequence[Job], queue: Play, rows: Sequence[tuple[str, Play]], seed: int) -> Iterator[str]:
    """The table and what goes with it, line by line."""
    policy = storm_policy()
    bound = bound_seconds(jobs, policy)
    sizes = [job.restart.bytes for job in jobs]
    longest = max(job.restart.bytes / job.restart.bytes_per_second for job in jobs)
    yield (
        f"{len(jobs)} jobs of {len(TENANT_WEIGHTS)} tenants die in the same second; checkpoints "
        f"{min(sizes) / 1e9:.0f} GB to {max(sizes) / 1e12:.1f} TB, {sum(sizes) / 1e12:.0f} TB over one store of "
        f"{policy.store_bytes_per_second / 1e9:.0f} GB/s; seed {seed}"
    )
    yield f"bound {bound:.0f} s: all bytes / bandwidth, or the longest alone at its own cap ({longest:.0f} s)"
    yield ""
    yield (
        f"{'':<42}{'all restored':>14}{'of bound':>10}{'lost':>6}{'half restored':>15}{'peak load':>11}"
        f"{'overloaded':>12}{'read in vain':>14}"
    )
    for name, play in rows:
        yield _row(name, play, bound)
    yield ""
    yield f"{'most asked of what is allowed':<42}" + "".join(f"{name:>18}" for name in _budgets(policy))
    for name, play in rows:
        used = use_of_budgets(play, policy)
        yield f"{name:<42}" + "".join(f"{used[budget]:>18.2f}" for budget in _budgets(policy))
    yield ""
    yield (
        f"lost = not restored within {GIVE_UP_SECONDS / 3600:.0f} h. The store that collapses serves "
        f"limit / (1 + kappa * (load / limit - 1)), kappa {COLLAPSING.kappa} assumed"
    )
    yield (
        f"(Gunther's universal scalability law), and a restore not done in {COLLAPSING.timeout_seconds:.0f} s begins "
        "anew (collective time-out); the one that never slows has kappa 0 and no time-out"
    )
    yield ""
    waits = {
        priority: statistics.median(s.begins for s in queue.starts if s.job.restart.priority == priority)
        for priority in PRIORITIES
    }
    yield "median wait by priority, highest first: " + ", ".join(
        f"{priority}: {waits[priority]:.0f} s" for priority in sorted(PRIORITIES, reverse=True)
    )
    reasons = Counter(start.why for start in queue.starts)
    yield "began by rule: " + ", ".join(f"{why} {reasons[why]}" for why in Why if reasons[why])
    fair = least_share_of_fair(queue.starts, TENANT_WEIGHTS)
    yield f"worst share of bytes in any 60 s of waiting: {fair:.2f} of the tenant's fair share, bar {BAR_OF_FAIR}"
    errors = [
        start.begins - queue.predicted[start.job.restart.job]
        for start in queue.starts
        if start.job.restart.job in queue.predicted
    ]
    sizes_of_error = sorted(abs(error) for error in errors)
    yield (
        f"predicted start, told as the storm began, against the actual one: median error "
        f"{statistics.median(sizes_of_error):.0f} s, nine in ten within "
        f"{sizes_of_error[math.ceil(0.9 * len(sizes_of_error)) - 1]:.0f} s, mean {statistics.fmean(errors):+.0f} s "
        "(restores read at 95 to 100 % of the cap that was predicted with)"
    )


def _budgets(policy: AdmissionPolicy) -> list[str]:
    return [STORE, *(str(name) for name in policy.buckets)]


def _row(name: str, play: Play, bound: float) -> str:
    done = "never" if play.lost else f"{play.all_restored:.0f} s"
    of_bound = "-" if play.lost else f"{play.all_restored / bound:.2f}"
    ends = sorted([*(start.ends for start in play.starts), *([math.inf] * play.lost)])
    half = ends[(len(ends) - 1) // 2]
    half_done = "never" if math.isinf(half) else f"{half:.0f} s"
    return (
        f"{name:<42}{done:>14}{of_bound:>10}{play.lost:>6}{half_done:>15}{play.peak_load:>11.2f}"
        f"{play.overloaded_seconds:>10.0f} s{play.wasted_bytes / 1e12:>11.0f} TB"
    )
