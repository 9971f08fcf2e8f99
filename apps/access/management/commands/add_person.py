"""`manage.py add_person NAME --role ROLE`: a login for one more person."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.access import entry
from apps.access.models import Role, Tenant
from recovery.errors import DeskError


class Command(BaseCommand):
    help = "Make a person with roles and print the password, this once. Audited."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument(
            "--role",
            required=True,
            action="append",
            dest="roles",
            choices=[str(role) for role in Role],
            help="may be given several times; a role does not contain another",
        )
        parser.add_argument(
            "--tenant", help="short name of the tenant; without it the roles hold in every tenant"
        )

    def handle(self, *args: Any, username: str, roles: list[str], tenant: str | None, **options: Any) -> None:
        # An empty name is that of no tenant: taken for "every tenant" it would be a variable that was not set.
        owner = None if tenant is None else Tenant.objects.filter(slug=tenant).first()
        if tenant is not None and owner is None:
            known = ", ".join(Tenant.objects.order_by("slug").values_list("slug", flat=True))
            raise CommandError(f"there is no tenant {tenant!r} (there are: {known})")
        try:
            password = entry.add_person(
                username=username,
                roles=[Role(role) for role in dict.fromkeys(roles)],
                tenant_id=owner.pk if owner else None,
                actor_kind="command",
                actor=entry.whoever_types(),
            )
        except DeskError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{username} / {password}   ({', '.join(roles)}; the password is shown this once)")
