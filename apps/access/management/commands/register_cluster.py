"""`manage.py register_cluster --slug SLUG`: make the cluster of INCIDENTDESK_KUBECONFIG known."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps import wiring
from apps.access import entry
from recovery.errors import DeskError


class Command(BaseCommand):
    help = "Make the cluster of INCIDENTDESK_KUBECONFIG known; a new one starts in mode observe."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--slug", required=True, help="short name of the cluster, in addresses and pages")
        parser.add_argument("--name", help="name for people; the slug without it")

    def handle(self, *args: Any, slug: str, name: str | None = None, **options: Any) -> None:
        try:
            cluster = entry.register_cluster(
                slug=slug,
                name=name or slug,
                system_uid=wiring.cluster().identity(),
                actor_kind="command",
                actor="register_cluster",
            )
        except DeskError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Cluster {cluster.slug} is in mode {cluster.mode}.")
