"""The barrier: how long agents wait for each other at the start of an attempt. Source: docs/adr/0006."""

from __future__ import annotations

from datetime import timedelta

from recovery import phase_events as ev
from recovery import wording
from recovery.draft import Draft
from recovery.draft_job import move
from recovery.phases import Phase

_BARRED = frozenset({Phase.PENDING, Phase.BOOT_CHECKING, Phase.RESTARTING})


def look_at_barrier(draft: Draft) -> None:
    """Agents wait for each other only so long, once every pod runs: training must not wait for us."""
    job = draft.job
    since = draft.before.world_running_at
    if not job.protected or job.phase not in _BARRED or since is None or not job.present or job.is_held:
        return
    attempt = draft.attempt
    if attempt is not None and attempt.ended_at is not None and since <= attempt.started_at:
        return  # that was the attempt's own world: the watch has not seen it whole again since
    order = draft.before.order
    if job.phase is not Phase.PENDING and order is not None:
        since = max(since, order.written_at)
    if draft.orders:
        since = max(since, draft.now)
    due = since + timedelta(seconds=draft.policy.enrol_barrier_seconds)
    if draft.now < due:
        draft.look_at(due)
        return
    missing = [w.key for w in job.present if not w.enrolled] or [
        w.key
        for w in job.present
        if w.must_exit or w.restarted or (w.inner_phase is Phase.BOOT_CHECKING and not w.handled)
    ]
    result = move(draft, ev.BarrierExpired())
    draft.note(
        "barrier_expired",
        f"{wording.workers(missing)} not heard of in {draft.policy.enrol_barrier_seconds:.0f} s: "
        f"{result.reason}",
        actor_kind="desk",
    )
