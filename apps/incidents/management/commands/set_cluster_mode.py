"""`manage.py set_cluster_mode --slug SLUG --mode MODE --reason WHY`: arm a cluster, or let the desk only watch."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.access.entry import whoever_types
from apps.access.models import Cluster
from apps.incidents.services.arming import set_cluster_mode
from recovery.decide import Mode
from recovery.errors import DeskError


class Command(BaseCommand):
    help = "Set the mode of a cluster: observe (only watch), approve (wait for a yes) or auto. Audited."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--slug", required=True, help="short name of the cluster")
        parser.add_argument("--mode", required=True, choices=[str(mode) for mode in Mode])
        parser.add_argument("--reason", required=True, help="why; the audit keeps it")

    def handle(self, *args: Any, slug: str, mode: str, reason: str, **options: Any) -> None:
        cluster = Cluster.objects.filter(slug=slug).first()
        if cluster is None:
            known = ", ".join(Cluster.objects.order_by("slug").values_list("slug", flat=True)) or "none"
            raise CommandError(f"no cluster {slug!r} is registered (registered: {known})")
        try:
            set_cluster_mode(
                cluster_id=cluster.pk,
                mode=Mode(mode),
                actor_kind="command",
                actor=whoever_types(),
                reason=reason,
            )
        except DeskError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Cluster {slug} is in mode {mode}.")
