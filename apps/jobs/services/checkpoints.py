"""Checkpoints as they are told: written, then committed. Source: DOMAIN section 11."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from apps.jobs.models import Attempt, Checkpoint, Job
from recovery.errors import BadInput

_ORDER = {"written": 0, "committed": 1, "verified": 2}
_MOST = 2**62


def check(content: Mapping[str, Any]) -> None:
    """Raise BadInput unless ``content`` tells a checkpoint: step, path and a state that may be told.

    *verified* comes from a restore drill of the desk and is nobody's to tell.
    """
    _number(content, "step", needed=True)
    path = content.get("path")
    if not isinstance(path, str) or not 0 < len(path) <= 1000:
        raise BadInput("A path of 1 to 1,000 characters.", field="path")
    if content.get("state") not in ("written", "committed"):
        raise BadInput("written or committed.", field="state")
    for name in ("bytes", "shards", "shards_expected"):
        _number(content, name, needed=False)


def record_checkpoint(
    *, job: Job, content: Mapping[str, Any], at: datetime, sequence: int | None = None
) -> Checkpoint:
    """Store what was told of a checkpoint. The furthest state stays: committed never goes back to written.

    Part of the caller's transaction. Safe when all ranks tell the same at the same time.
    """
    check(content)
    state = content["state"]
    attempt = (
        Attempt.objects.filter(job=job, sequence=sequence).values_list("n", flat=True).first()
        if sequence
        else None
    )
    known = {
        name: content[name]
        for name in ("bytes", "shards", "shards_expected")
        if content.get(name) is not None
    }
    seconds = content.get("seconds")
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 1e9:
        known["seconds"] = seconds
    Checkpoint.objects.bulk_create(
        [
            Checkpoint(
                tenant_id=job.tenant_id,
                job=job,
                step=content["step"],
                path=content["path"],
                state="written",
                attempt=job.attempt if attempt is None else attempt,
                written_at=at,
            )
        ],
        ignore_conflicts=True,
    )
    row = Checkpoint.objects.select_for_update(no_key=True).get(
        job=job, path=content["path"], step=content["step"]
    )
    if _ORDER[state] > _ORDER[row.state]:
        row.state = state
    if state == "committed" and row.committed_at is None:
        row.committed_at = at
    for name, value in known.items():
        setattr(row, name, value)
    row.save(update_fields=["state", "committed_at", *known])
    return row


def _number(content: Mapping[str, Any], field: str, *, needed: bool) -> None:
    value = content.get(field)
    if value is None and not needed:
        return
    most = 2**31 - 1 if field.startswith("shards") else _MOST
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise BadInput(f"A whole number from 0 to {most}.", field=field)
