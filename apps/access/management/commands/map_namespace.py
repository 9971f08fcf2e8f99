"""`manage.py map_namespace --cluster SLUG --pattern PATTERN --tenant SLUG`: whose the jobs of a namespace are."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.access import services
from apps.access.models import Cluster, Tenant


class Command(BaseCommand):
    help = "Give the namespaces that match a pattern (* is any run of characters) to a tenant. Audited."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--cluster", required=True, help="short name of the cluster")
        parser.add_argument(
            "--pattern", required=True, help="namespace, or a pattern; the most exact one wins"
        )
        parser.add_argument("--tenant", required=True, help="short name of the tenant; a new one is made")

    def handle(self, *args: Any, cluster: str, pattern: str, tenant: str, **options: Any) -> None:
        row = Cluster.objects.filter(slug=cluster).first()
        if row is None:
            raise CommandError(f"no cluster {cluster!r} is registered")
        owner, _ = Tenant.objects.get_or_create(slug=tenant, defaults={"name": tenant})
        services.map_namespace(
            cluster_id=row.pk,
            pattern=pattern,
            tenant_id=owner.pk,
            actor_kind="command",
            actor=getpass.getuser(),
        )
        self.stdout.write(f"New jobs in {cluster}/{pattern} belong to {tenant}.")
