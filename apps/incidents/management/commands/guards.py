"""`manage.py guards`: the limits of a fleet with what is used of them, and how to set one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from apps.access.clock import database_now
from apps.access.entry import whoever_types
from apps.access.models import Cluster
from apps.access.printable import printable
from apps.access.services import audit
from apps.incidents.guard_models import GuardLimit
from apps.incidents.services import guarding
from apps.incidents.services.arming import mending_command
from recovery.errors import BadInput
from recovery.guards import Dimension, Limit, Measure, limit_words
from recovery.lifecycle import ActionKind

#: What says something of one guard, so that it means nothing without --set.
_OF_ONE = {
    "by": "--by",
    "actions": "--actions",
    "number": "--number",
    "share": "--share",
    "at_least": "--at-least",
    "window": "--window",
    "off": "--off",
}


class Command(BaseCommand):
    help = (
        "Show the guards of each cluster, or set one: --set NAME with what it counts and its limit. Exit code 1: the "
        "limit is refused; 2: it was not said what to do."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--cluster", help="slug of one cluster; needed to set a guard")
        parser.add_argument("--all", action="store_true", help="groups that use nothing as well")
        parser.add_argument(
            "--set", dest="name", metavar="NAME", help="name of the guard, new or known; on, unless --off"
        )
        parser.add_argument("--by", choices=[str(each) for each in Dimension], help="what is grouped")
        parser.add_argument("--actions", nargs="+", choices=[str(kind) for kind in ActionKind])
        parser.add_argument("--number", type=int, help="at most so many in a group")
        parser.add_argument(
            "--share", type=float, help="at most this share of a group's machines, 0.1 = 10 %%"
        )
        parser.add_argument("--at-least", type=int, help="a share of a small group is at least so many")
        parser.add_argument(
            "--window", type=float, help="seconds; a new guard without it limits what stands now"
        )
        parser.add_argument("--off", action="store_true", help="switch it off; it stays known")

    def handle(self, *args: Any, cluster: str | None, name: str | None, **options: Any) -> None:
        chosen = Cluster.objects.order_by("slug")
        if cluster is not None:
            known = [row.slug for row in chosen if not row.is_retired]
            chosen = chosen.filter(slug=cluster)
            if cluster not in known:
                is_gone = " any more" if chosen.exists() else ""
                raise CommandError(
                    f"there is no cluster {cluster!r}{is_gone} (there are: {', '.join(known) or 'none'})",
                    returncode=2,
                )
        said = [
            flag
            for option, flag in _OF_ONE.items()
            if options[option] is not None and options[option] is not False
        ]
        if name is not None:
            if cluster is None:
                raise CommandError("say of which cluster: --cluster", returncode=2)
            self._set(chosen.get(), name, said, options)
        elif said:
            raise CommandError(f"{', '.join(said)} of which guard? Name it by --set", returncode=2)
        for each in chosen:
            if not each.is_retired:
                self._show(each, shows_all=options["all"])

    def _set(self, cluster: Cluster, name: str, said: list[str], options: dict[str, Any]) -> None:
        now = database_now()
        guarding.ensure_default_limits(cluster, now)
        row = GuardLimit.objects.filter(cluster=cluster, name=name).first()
        if row is not None and row.is_enabled and not said:
            raise CommandError(f"nothing to change of {name}: say its limit, or --off", returncode=2)
        try:
            limit = _merged(name, row.as_limit() if row else None, options)
            with transaction.atomic():
                guarding.set_limit(
                    cluster=cluster, limit=limit, by=whoever_types(), now=now, is_enabled=not options["off"]
                )
                audit(
                    at=now, tenant_id=None, actor_kind="person", actor=whoever_types(), verb="set",
                    target_kind="guard", target=f"{cluster} {name}",
                    reason="switched off" if options["off"] else limit_words(limit),
                )  # fmt: skip
        except BadInput as error:
            raise CommandError(f"refused: {printable(str(error))}") from error

    def _show(self, cluster: Cluster, *, shows_all: bool) -> None:
        now = database_now()
        guarding.ensure_default_limits(cluster, now)
        unreachable = guarding.unreachable_limits(cluster)
        self.stdout.write(f"cluster {cluster}, mode {cluster.mode}")
        for row in GuardLimit.objects.filter(cluster=cluster).prefetch_related("counters"):
            limit = row.as_limit()
            state = "" if row.is_enabled else "  (off)"
            group = str(limit.dimension).replace("_", " ")
            self.stdout.write(f"  {printable(row.name)}: {limit_words(limit)} by {group}{state}")
            if found := unreachable.get(row.name):
                self.stdout.write(f"    CANNOT WORK: {printable(found.why)}")
                self.stdout.write(f"    mend it, for example: {mending_command(cluster, row.name, found)}")
            for counter in sorted(row.counters.all(), key=lambda each: each.group):
                used = guarding.used_now(counter, limit, now)
                if used or counter.refusals or counter.drifts or shows_all:
                    whose = printable(counter.group)
                    self.stdout.write(
                        f"    {whose}: {used} of {counter.cap} ({counter.members} machines), refused "
                        f"{counter.refusals}{f', drifted: {counter.drift}' if counter.drifts else ''}"
                    )


def _merged(name: str, known: Limit | None, options: dict[str, Any]) -> Limit:
    """What was known, with what was said. Raises BadInput where a new guard lacks something."""
    if known is None:
        if options["off"]:
            raise BadInput(f"there is no guard {name} to switch off", field="name")
        if not (options["by"] and options["actions"]):
            raise BadInput(f"{name} is a new guard: say --by and --actions", field="dimension")
    window = options["window"] if options["window"] is not None else known.window_seconds if known else 0.0
    limit = Limit(
        name=name,
        dimension=Dimension(options["by"]) if options["by"] or known is None else known.dimension,
        measure=Measure.WINDOW if window else Measure.STANDING,
        actions=tuple(dict.fromkeys(ActionKind(kind) for kind in options["actions"]))
        if options["actions"] or known is None
        else known.actions,
        window_seconds=window,
    )
    if known is None or options["number"] is not None or options["share"] is not None:
        at_least = options["at_least"] or 0
        return replace(limit, number=options["number"], share=options["share"], at_least=at_least)
    at_least = known.at_least if options["at_least"] is None else options["at_least"]
    return replace(limit, number=known.number, share=known.share, at_least=at_least)
