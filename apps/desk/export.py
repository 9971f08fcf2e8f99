"""Downloads: incidents as CSV, a timeline as Markdown, CSV or JSON. Times are UTC, in ISO 8601."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, HttpResponse, HttpResponseBase, StreamingHttpResponse

from apps.desk.words import failures_used
from apps.incidents.models import Incident, TimelineEvent

CHUNK = 1000
_INCIDENT_COLUMNS = (
    "incident", "title", "severity", "state", "waiting_for", "resolution", "cluster", "namespace", "job", "node",
    "attempt", "failures_used", "max_retry", "opened_at", "state_since_at", "resolved_at", "acknowledged_by",
    "acknowledged_at", "reopened_count", "reopened_at",
)  # fmt: skip
_TIMELINE_COLUMNS = ("n", "at", "received_at", "kind", "actor_kind", "actor", "worker", "attempt", "text")


class _Line:
    """A file for csv.writer that gives each line back instead of keeping it."""

    def write(self, line: str) -> str:
        return line


def incidents_csv(incidents: QuerySet[Incident]) -> HttpResponseBase:
    """All incidents of a filtered queryset, newest first, in chunks that never hold them all."""

    def lines() -> Iterator[str]:
        writer = csv.writer(_Line())
        yield writer.writerow(_INCIDENT_COLUMNS)
        last: int | None = None
        while True:  # keyset, so that a client that reads slowly holds no cursor open
            part = (
                incidents.order_by("-id") if last is None else incidents.filter(id__lt=last).order_by("-id")
            )
            rows = list(part[:CHUNK])
            for row in rows:
                yield writer.writerow(_safe(_incident_row(row)))
            if len(rows) < CHUNK:
                return
            last = rows[-1].pk

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="incidents.csv"'
    return response


def timeline(incident: Incident, form: str) -> HttpResponseBase:
    """The whole timeline, oldest first. ``form`` is md, csv or json; anything else is a 404."""
    events = TimelineEvent.objects.filter(incident=incident).order_by("at", "n")
    name = f"{incident}-timeline.{form}"
    if form == "csv":
        body, kind = _timeline_csv(events.iterator(chunk_size=CHUNK)), "text/csv"
    elif form == "json":
        body, kind = _timeline_json(incident, events.iterator(chunk_size=CHUNK)), "application/json"
    elif form == "md":
        body, kind = _timeline_markdown(incident, events.iterator(chunk_size=CHUNK)), "text/markdown"
    else:
        raise Http404("A timeline leaves as md, csv or json.")
    response = HttpResponse(body, content_type=f"{kind}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _incident_row(row: Incident) -> list[Any]:
    job = row.job
    return [
        str(row), row.title, row.severity, row.state, row.waiting_for, row.resolution,
        row.cluster.slug if row.cluster else "", job.namespace if job else "", job.name if job else "",
        row.machine.name if row.machine else "", row.attempt,
        "" if (used := failures_used(row)) is None else used, job.max_retry if job else "",
        _utc(row.opened_at), _utc(row.state_since_at), _utc(row.resolved_at),
        row.acknowledger, _utc(row.acknowledged_at), row.reopened_count, _utc(row.reopened_at),
    ]  # fmt: skip


def _worker(event: TimelineEvent) -> str:
    return f"{event.role} {event.index}" if event.index is not None else ""


def _timeline_csv(events: Iterable[TimelineEvent]) -> str:
    writer = csv.writer(_Line())
    rows = (
        [
            event.n, _utc(event.at), _utc(event.received_at), event.kind, event.actor_kind, event.actor, _worker(event),
            "" if event.attempt is None else event.attempt, event.text,
        ]
        for event in events
    )  # fmt: skip
    lines = [writer.writerow(_TIMELINE_COLUMNS), *(writer.writerow(_safe(row)) for row in rows)]
    return "".join(lines)


def _timeline_json(incident: Incident, events: Iterable[TimelineEvent]) -> str:
    return json.dumps(
        {
            "incident": str(incident),
            "title": incident.title,
            "state": incident.state,
            "severity": incident.severity,
            "job": str(incident.job) if incident.job else None,
            "opened_at": _utc(incident.opened_at),
            "reopened_at": _utc(incident.reopened_at) or None,
            "resolved_at": _utc(incident.resolved_at) or None,
            "events": [
                {
                    "n": event.n,
                    "at": _utc(event.at),
                    "received_at": _utc(event.received_at),
                    "kind": event.kind,
                    "actor_kind": event.actor_kind,
                    "actor": event.actor,
                    "worker": _worker(event) or None,
                    "attempt": event.attempt,
                    "text": event.text,
                    "body": event.body,
                }
                for event in events
            ],
        },
        indent=2,
        ensure_ascii=False,
    )


def _timeline_markdown(incident: Incident, events: Iterable[TimelineEvent]) -> str:
    lines = [
        f"# {incident}: {_inline(incident.title)}",
        "",
        f"- Severity: {incident.severity}",
        f"- State: {incident.state}" + (f" ({incident.resolution})" if incident.resolution else ""),
        f"- Job: {_inline(str(incident.job))}, attempt {incident.attempt}" if incident.job else "- Job: none",
        f"- Opened: {_utc(incident.opened_at)}",
        *([f"- Reopened: {_utc(incident.reopened_at)}"] if incident.reopened_at else []),
        f"- Resolved: {_utc(incident.resolved_at) or 'not yet'}",
        "",
        "| Time (UTC) | Who | What |",
        "|---|---|---|",
    ]
    lines += [
        f"| {_utc(event.at)} | {_inline(event.actor or event.actor_kind)} | {_inline(event.text)} |"
        for event in events
    ]
    return "\n".join(lines) + "\n"


def _inline(text: str) -> str:
    """Text inside one Markdown table cell: no line ends, no bars, no HTML."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _utc(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _safe(row: list[Any]) -> list[Any]:
    """Texts that a spreadsheet would run as a formula get an apostrophe before them."""
    return [
        f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
        for cell in row
    ]
