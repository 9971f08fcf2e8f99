"""`manage.py create_token --tenant SLUG --name NAME --scope SCOPE`: a program's token for the REST API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.access import clock, services
from apps.access.entry import whoever_types
from apps.access.models import Cluster, Tenant
from recovery.errors import BadInput

MOST_DAYS = 3650


class Command(BaseCommand):
    help = "Make a token for a program and print it, this once. Audited."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True, help="short name of the tenant that it speaks for")
        parser.add_argument("--name", required=True, help="which program it is for")
        parser.add_argument(
            "--scope",
            required=True,
            action="append",
            dest="scopes",
            help=f"may be given several times: {', '.join(sorted(services.SCOPES))}",
        )
        parser.add_argument("--cluster", help="short name of a cluster: good for that one only")
        parser.add_argument("--days", type=int, default=365, help="how long it is good for (default 365)")

    def handle(
        self,
        *args: Any,
        tenant: str,
        name: str,
        scopes: list[str],
        cluster: str | None,
        days: int,
        **options: Any,
    ) -> None:
        owner = Tenant.objects.filter(slug=tenant).first()
        if owner is None:
            known = ", ".join(Tenant.objects.order_by("slug").values_list("slug", flat=True))
            raise CommandError(f"there is no tenant {tenant!r} (there are: {known})")
        # As with a tenant of a person: an empty name does not mean every cluster.
        place = None if cluster is None else Cluster.objects.filter(slug=cluster).first()
        if cluster is not None and place is None:
            raise CommandError(f"no cluster {cluster!r} is registered")
        if not 1 <= days <= MOST_DAYS:
            raise CommandError(f"--days must be 1 to {MOST_DAYS}, ten years")
        try:
            _, plain = services.create_token(
                tenant_id=owner.pk,
                name=name,
                scopes=scopes,
                actor_kind="command",
                actor=whoever_types(),
                expires_at=clock.database_now() + timedelta(days=days),
                cluster_id=place.pk if place else None,
            )
        except BadInput as error:
            raise CommandError(str(error)) from error
        self.stdout.write(plain)
