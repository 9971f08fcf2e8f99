"""The inbox: signals are rows before anybody is told that they were accepted (DESIGN rule 1)."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.incidents.models import InboxEntry, Signal, Subject
from apps.jobs.models import Job
from apps.nodes.models import Machine
from recovery.errors import Conflict
from recovery.signals import SignalKind, Source, SubjectKind, WorkerKey

#: Daily life that moves nothing: it waits for the next decision, for each decision stores the whole state
#: (88 kB compressed at 1,000 workers, and checkpoints may come every few seconds). At the latest after
#: UNHURRIED_SECONDS it is decided all the same, and at once while a stop waits for the safe point.
UNHURRIED_KINDS = frozenset({SignalKind.CHECKPOINT})
UNHURRIED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class NewSignal:
    """A report to be recorded. ``body`` is plain JSON; times are aware, ``seen_at`` is offset-corrected.

    Without ``subject_ids`` the signal is unplaced: about something that is not known yet.
    """

    tenant_id: int
    cluster_id: int | None
    source: Source
    source_key: str
    kind: SignalKind
    body: dict[str, Any]
    seen_at: datetime
    subject_ids: tuple[int, ...] = ()
    source_at: datetime | None = None
    uncertainty_seconds: float = 0.0
    worker: WorkerKey | None = None
    incarnation_id: int | None = None
    sequence: int | None = None
    phase: str = ""
    told_key: str = ""
    """The key in the sender's own words; empty where the sender gave none, or sees ``source_key`` nowhere."""
    uid: uuid.UUID = field(default_factory=uuid.uuid4)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of one new signal; ``is_new`` false means that it was known already."""

    source_key: str
    signal_id: int
    is_new: bool


def _told_otherwise(reused: Sequence[NewSignal]) -> str:
    """The refusal of reports that were told before with other contents, in words that their senders know."""
    keys = sorted({signal.told_key for signal in reused if signal.told_key})
    if not keys:
        return "This was told before with other contents; the first stays, and nothing was stored."
    more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return (
        f"The key {', '.join(keys[:5])}{more} was used before with another body: use a new key for a new report. "
        "Nothing was stored."
    )


def record_signals(*, signals: Sequence[NewSignal], now: datetime) -> list[Recorded]:
    """Record reports and put them into their subjects' inboxes, in the caller's transaction.

    A known (source, source key) with the same body changes nothing. The caller wakes the subjects
    after its commit.

    Args:
        signals: In the order of the answer; a key may come twice.
        now: The database's time, read in this transaction.
    Raises:
        Conflict: A known key came with another body; the text names its senders' keys. Nothing is recorded.
    """
    if not signals:
        return []
    first_by_key: dict[tuple[str, str], NewSignal] = {}
    digests: dict[tuple[str, str], str] = {}
    reused: list[NewSignal] = []
    for signal in signals:
        key = (str(signal.source), signal.source_key)
        digest = _digest(signal)
        if digests.setdefault(key, digest) != digest:
            reused.append(signal)
        first_by_key.setdefault(key, signal)
    with transaction.atomic():
        Signal.objects.bulk_create(
            [_row(signal, digests[key], now) for key, signal in first_by_key.items()],
            ignore_conflicts=True,
            batch_size=500,
        )
        stored = {
            (source, key): (row_id, uid, digest)
            for source in {source for source, _ in first_by_key}
            for row_id, uid, key, digest in Signal.objects.filter(
                source=source, source_key__in=[key for s, key in first_by_key if s == source]
            ).values_list("id", "uid", "source_key", "body_sha256")
        }
        reused.extend(first for key, first in first_by_key.items() if stored[key][2] != digests[key])
        if reused:
            raise Conflict(_told_otherwise(reused))
        new = {key for key, signal in first_by_key.items() if stored[key][1] == signal.uid}
        InboxEntry.objects.bulk_create(
            [
                InboxEntry(signal_id=stored[key][0], subject_id=subject_id)
                for key, signal in first_by_key.items()
                if key in new
                for subject_id in signal.subject_ids
            ],
            ignore_conflicts=True,
            batch_size=1000,
        )
    answers = []
    for signal in signals:
        key = (str(signal.source), signal.source_key)
        answers.append(Recorded(signal.source_key, stored[key][0], is_new=key in new))
        new.discard(key)  # a key that came twice is new once
    return answers


def subject_for_job(job: Job) -> Subject:
    """The subject of a job, made if there is none yet. May be called twice, also at the same time."""
    subject, _ = Subject.objects.get_or_create(
        kind=SubjectKind.JOB,
        key=str(job.pk),
        defaults={"tenant_id": job.tenant_id, "cluster_id": job.cluster_id, "job": job},
    )
    return subject


def subject_for_machine(machine: Machine, *, tenant_id: int) -> Subject:
    """The subject of a machine, made if there is none yet; ``tenant_id`` is who administers machines."""
    subject, _ = Subject.objects.get_or_create(
        kind=SubjectKind.NODE,
        key=str(machine.pk),
        defaults={"tenant_id": tenant_id, "cluster_id": machine.cluster_id, "machine": machine},
    )
    return subject


def _row(signal: NewSignal, digest: str, now: datetime) -> Signal:
    return Signal(
        uid=signal.uid,
        tenant_id=signal.tenant_id,
        cluster_id=signal.cluster_id,
        source=signal.source,
        source_key=signal.source_key,
        kind=signal.kind,
        body=signal.body,
        body_sha256=digest,
        seen_at=signal.seen_at,
        source_at=signal.source_at,
        uncertainty_seconds=signal.uncertainty_seconds,
        received_at=now,
        role=signal.worker.role if signal.worker else "",
        index=signal.worker.index if signal.worker else None,
        incarnation_id=signal.incarnation_id,
        sequence=signal.sequence,
        phase=signal.phase,
        is_unplaced=not signal.subject_ids,
    )


def _digest(signal: NewSignal) -> str:
    """A hash of what the source said. Times of receipt and our own corrections are left out."""
    said = [signal.kind, signal.body, signal.sequence, signal.phase]
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
