"""`manage.py first_person`: a login for whoever sets the desk up."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.access import entry
from recovery.errors import BadInput


class Command(BaseCommand):
    help = "Make a person with every role when there is nobody yet, and print the password, this once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--username", default="admin")

    def handle(self, *args: Any, username: str = "admin", **options: Any) -> None:
        try:
            password = entry.make_first_person(username=username, actor_kind="command", actor="first_person")
        except BadInput as error:
            raise CommandError(str(error)) from error
        if password is not None:
            self.stdout.write(f"{username} / {password}   (every role; the password is shown this once)")
