"""`manage.py replay`: make stored decisions again, and show those that come out otherwise."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive

from apps.access.clock import database_now
from apps.incidents.policy import current_policy
from apps.incidents.redact import for_terminal
from apps.incidents.services.replaying import Difference, decisions_of, replay_all

_AGE = re.compile(r"^(?P<n>\d+)\s*(?P<unit>[smhd])$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Command(BaseCommand):
    help = (
        "Feed stored states and signals through the policy and compare with what was decided. "
        "Exit code 0: no difference; 1: some; 2: it could not be asked."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--subject", help='namespace/name of a job, or "job 12"')
        parser.add_argument("--since", help="a time (2026-01-31T12:00Z) or an age (90m, 2h, 7d)")
        parser.add_argument(
            "--policy",
            choices=["present", "stored"],
            default="present",
            help="present: what today's policy would do; stored: the one in force then, so a difference is a fault",
        )
        parser.add_argument("--full", action="store_true", help="every place at which a decision differs")

    def handle(
        self, *args: Any, subject: str | None, since: str | None, policy: str, full: bool, **options: Any
    ) -> None:
        if subject is not None and not (subject and decisions_of(subject=subject).exists()):
            raise CommandError(f"no decision of {subject!r} is stored", returncode=2)
        chosen = decisions_of(subject=subject or "", since=None if since is None else _moment(since))
        count, found = replay_all(chosen, current_policy() if policy == "present" else None)
        self.stdout.write(
            f"{count} decisions replayed under the {policy} policy, {len(found) or 'no'} "
            f"difference{'' if len(found) == 1 else 's'}"
        )
        for line in _table(found, full=full):
            self.stdout.write(line)
        if found:
            raise SystemExit(1)


def _moment(text: str) -> datetime:
    if age := _AGE.match(text):
        try:
            return database_now() - timedelta(**{_UNITS[age["unit"]]: int(age["n"])})
        except (OverflowError, ValueError) as error:  # ValueError: more digits than a number may have
            raise CommandError(
                f"--since {text[:30]} is before all time: leave it out for every decision", returncode=2
            ) from error
    try:
        moment = parse_datetime(text)
    except ValueError as error:
        raise CommandError(f"--since {text}: {error}", returncode=2) from error
    if moment is None or is_naive(moment):
        raise CommandError(
            f"--since {text} is neither a time with its zone (2026-01-31T12:00Z) nor an age (90m, 2h, 7d)",
            returncode=2,
        )
    return moment


def _table(found: list[Difference], *, full: bool) -> list[str]:
    """What was decided beside what comes out, a decision a row."""
    if not found:
        return []
    rows = [("subject", "decision", "made at", "was", "comes out", "first difference")]
    rows += [
        (
            for_terminal(each.subject),
            str(each.n),
            f"{each.at:%Y-%m-%d %H:%M:%S}Z" if each.at else "",
            for_terminal(each.was),
            for_terminal(each.comes_out),
            for_terminal(each.places[0]),
        )
        for each in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [""]
    for row, difference in zip(rows, [None, *found], strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row[:5], widths, strict=True)]
        lines.append("  ".join([*cells, row[5]]).rstrip())
        if full and difference is not None:
            lines += [f"    {for_terminal(place)}" for place in difference.places[1:]]
    return lines
