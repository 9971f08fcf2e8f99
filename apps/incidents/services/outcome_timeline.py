"""Decision -> lines of the incident's timeline, and the same lines for a log collector."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import transaction

from apps.incidents.models import Incident, TimelineEvent
from apps.jobs.models import Job, Worker
from apps.nodes.models import Machine
from recovery import decide as core
from recovery.serialize import to_plain
from recovery.signals import Signal as CoreSignal
from recovery.signals import WorkerKey

_timeline_log = logging.getLogger("incidentdesk.timeline")


def store_timeline(
    incident: Incident, decision: core.Decision, inbox: tuple[CoreSignal, ...], now: datetime
) -> list[TimelineEvent]:
    """Write the decision's lines; the incident has numbered them already, up to its newest."""
    received = {signal.id: signal.received_at for signal in inbox}
    first = incident.timeline_n - len(decision.timeline) + 1
    return TimelineEvent.objects.bulk_create(
        TimelineEvent(
            tenant_id=incident.tenant_id,
            incident=incident,
            n=n,
            kind=entry.kind,
            at=entry.at,
            received_at=received.get(entry.signal or 0, now),
            text=entry.text,
            actor_kind=entry.actor_kind,
            actor=entry.actor[:200],
            role=entry.worker.role if entry.worker else "",
            index=entry.worker.index if entry.worker else None,
            attempt=entry.attempt,
            body=to_plain(entry.data),
            decision_n=decision.n,
            signal_id=entry.signal,
        )
        for n, entry in enumerate(decision.timeline, start=first)
    )


def log_after_commit(
    incident: Incident, job: Job | None, workers: Mapping[WorkerKey, Worker], events: Sequence[TimelineEvent]
) -> None:
    """Write the timeline's new lines where ``INCIDENTDESK_TIMELINE_LOG`` says, once they are committed."""
    if settings.TIMELINE_LOG:
        lines = _log_lines(incident, job, workers, events)
        transaction.on_commit(lambda: _write_lines(lines))


def _log_lines(
    incident: Incident, job: Job | None, workers: Mapping[WorkerKey, Worker], events: Sequence[TimelineEvent]
) -> list[str]:
    """Each event as one JSON line that any log collector reads, with its worker's pod and machine."""
    lives = []
    for event in events:
        worker = workers.get(WorkerKey(event.role, event.index)) if event.index is not None else None
        lives.append(worker.incarnation if worker is not None else None)
    machines: dict[int | None, list[dict[str, str]]] = dict(
        Machine.objects.filter(pk__in={life.machine_id for life in lives if life is not None}).values_list(
            "pk", "addresses"
        )
    )
    return [
        json.dumps(
            {
                "time": event.at.isoformat(),
                "incident": str(incident),
                "job": str(job) if job else "",
                "pod": life.pod_name if life else "",
                "pod_ip": life.ip if life else "",
                "node": life.node_name if life else "",
                "node_ip": _internal_ip(machines.get(life.machine_id, []) if life else []),
                "phase": job.phase if job else "",
                "event": event.kind,
                "message": event.text,
            }
        )
        for event, life in zip(events, lives, strict=True)
    ]


def _internal_ip(addresses: list[dict[str, str]]) -> str:
    return next((each.get("address", "") for each in addresses if each.get("type") == "InternalIP"), "")


def _write_lines(lines: list[str]) -> None:
    if settings.TIMELINE_LOG == "-":
        for line in lines:
            _timeline_log.info(line)
        return
    with Path(settings.TIMELINE_LOG).open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
