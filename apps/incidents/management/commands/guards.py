"""`manage.py guards`: the limits of a fleet with what is used of them, and how to set one."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.access.printable import printable
from apps.access.services import audit
from apps.incidents.guard_models import GuardLimit
from apps.incidents.services import guarding
from recovery.errors import BadInput
from recovery.guards import Dimension, Limit, Measure, limit_words
from recovery.lifecycle import ActionKind


class Command(BaseCommand):
    help = "Show the guards of each cluster, or set one: --set NAME with what it counts and its limit."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--cluster", default="", help="slug of one cluster; needed to set a guard")
        parser.add_argument("--all", action="store_true", help="groups that use nothing as well")
        parser.add_argument("--set", dest="name", default="", help="name of the guard, new or known")
        parser.add_argument("--by", choices=[str(each) for each in Dimension], help="what is grouped")
        parser.add_argument("--actions", nargs="+", choices=[str(kind) for kind in ActionKind])
        parser.add_argument("--number", type=int, help="at most so many in a group")
        parser.add_argument(
            "--share", type=float, help="at most this share of a group's machines, 0.1 = 10 %%"
        )
        parser.add_argument("--at-least", type=int, help="a share of a small group is at least so many")
        parser.add_argument("--window", type=float, help="seconds; without it, what stands now is limited")
        parser.add_argument("--off", action="store_true", help="switch it off; it stays known")

    def handle(self, *args: Any, cluster: str, name: str, **options: Any) -> None:
        chosen = Cluster.objects.filter(slug=cluster) if cluster else Cluster.objects.order_by("slug")
        if cluster and not chosen.exists():
            known = ", ".join(Cluster.objects.order_by("slug").values_list("slug", flat=True)) or "none"
            raise CommandError(f"there is no cluster {cluster!r} (there are: {known})", returncode=2)
        if name:
            if not cluster:
                raise CommandError("say of which cluster: --cluster", returncode=2)
            self._set(chosen.get(), name, options)
        for each in chosen:
            if not each.is_retired:
                self._show(each, shows_all=options["all"])

    def _set(self, cluster: Cluster, name: str, options: dict[str, Any]) -> None:
        now = database_now()
        guarding.ensure_default_limits(cluster, now)
        row = GuardLimit.objects.filter(cluster=cluster, name=name).first()
        try:
            limit = _merged(name, row.as_limit() if row else None, options)
            guarding.set_limit(
                cluster=cluster, limit=limit, by=getpass.getuser(), now=now, is_enabled=not options["off"]
            )
        except BadInput as error:
            raise CommandError(f"refused: {error}") from error
        audit(
            at=now, tenant_id=None, actor_kind="person", actor=getpass.getuser(), verb="set",
            target_kind="guard", target=f"{cluster} {name}",
            reason="switched off" if options["off"] else limit_words(limit),
        )  # fmt: skip

    def _show(self, cluster: Cluster, *, shows_all: bool) -> None:
        now = database_now()
        guarding.ensure_default_limits(cluster, now)
        self.stdout.write(f"cluster {cluster}, mode {cluster.mode}")
        for row in GuardLimit.objects.filter(cluster=cluster).prefetch_related("counters"):
            limit = row.as_limit()
            state = "" if row.is_enabled else "  (off)"
            group = str(limit.dimension).replace("_", " ")
            self.stdout.write(f"  {printable(row.name)}: {limit_words(limit)} by {group}{state}")
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
    if known is None and not (options["by"] and options["actions"]):
        raise BadInput(f"{name} is a new guard: say --by and --actions", field="dimension")
    window = options["window"] if options["window"] is not None else known.window_seconds if known else 0.0
    says_limit = options["number"] is not None or options["share"] is not None
    return Limit(
        name=name,
        dimension=Dimension(options["by"])
        if options["by"]
        else known.dimension
        if known
        else Dimension.CLUSTER,
        measure=Measure.WINDOW if window else Measure.STANDING,
        actions=tuple(ActionKind(kind) for kind in options["actions"])
        if options["actions"]
        else known.actions
        if known
        else (),
        number=options["number"] if says_limit or known is None else known.number,
        share=options["share"] if says_limit or known is None else known.share,
        at_least=options["at_least"]
        if options["at_least"] is not None
        else known.at_least
        if known is not None and not says_limit
        else 0,
        window_seconds=window,
    )
