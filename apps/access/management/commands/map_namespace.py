"""`manage.py map_namespace --cluster SLUG --pattern PATTERN --tenant SLUG`: whose the jobs of a namespace are."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from apps.access import services
from apps.access.entry import whoever_types
from apps.access.models import Cluster, Tenant
from recovery.errors import BadInput


class Command(BaseCommand):
    help = "Give the namespaces that match a pattern (* is any run of characters) to a tenant. Audited."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--cluster", required=True, help="short name of the cluster")
        parser.add_argument(
            "--pattern", required=True, help="namespace, or a pattern; the most exact one wins"
        )
        parser.add_argument("--tenant", required=True, help="short name of the tenant")
        parser.add_argument(
            "--create", action="store_true", help="make the tenant, where there is none of that name"
        )

    def handle(
        self, *args: Any, cluster: str, pattern: str, tenant: str, create: bool = False, **options: Any
    ) -> None:
        row = Cluster.objects.filter(slug=cluster).first()
        if row is None:
            known = ", ".join(Cluster.objects.order_by("slug").values_list("slug", flat=True)) or "none"
            raise CommandError(f"no cluster {cluster!r} is registered (registered: {known})")
        owner = Tenant.objects.filter(slug=tenant).first()
        if owner is None and not create:
            known = ", ".join(Tenant.objects.order_by("slug").values_list("slug", flat=True))
            raise CommandError(f"there is no tenant {tenant!r} (there are: {known}); --create makes it")
        try:
            with transaction.atomic():  # no tenant stays of a pattern that is refused
                services.map_namespace(
                    cluster_id=row.pk,
                    pattern=pattern,
                    tenant_id=(owner or _made(tenant)).pk,
                    actor_kind="command",
                    actor=whoever_types(),
                )
        except BadInput as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"New jobs in {cluster}/{pattern} belong to {tenant}.")


def _made(slug: str) -> Tenant:
    tenant = Tenant(slug=slug, name=slug)
    try:
        tenant.full_clean()
    except ValidationError as error:
        raise CommandError(f"{slug!r} is no short name of a tenant: {' '.join(error.messages)}") from error
    tenant.save()
    return tenant
