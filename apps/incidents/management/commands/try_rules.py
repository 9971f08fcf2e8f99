"""`manage.py try_rules [--rules FILE] < LOG`: which rules hit a log, and the verdict. Needs no database."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.incidents.redact import for_terminal
from apps.incidents.rules import read_rule_file
from apps.incidents.told_signals import problems_of
from apps.incidents.trying_rules import as_text, try_rules
from recovery.rules.loading import RuleFileError

MAX_BYTES = 64_000_000


class Command(BaseCommand):
    help = "Try the rules on a log from standard input: which hit which line, and what the verdict would be."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--rules", type=Path, help="a rule file over the rules in force")
        parser.add_argument(
            "--signals",
            default="{}",
            help='other signals as JSON, e.g. \'{"exit_code": 1, "checks": {"gpu": "pass"}}\'',
        )
        parser.add_argument("--json", action="store_true", help="the answer as JSON")

    def handle(self, *args: Any, rules: Path | None, signals: str, **options: Any) -> None:
        try:
            beside = json.loads(signals)
        except (ValueError, RecursionError) as error:
            raise CommandError(f"--signals is not JSON: {error}") from error
        if not isinstance(beside, dict):
            raise CommandError("--signals is a JSON object")
        if wrong := problems_of(beside):
            told = "\n".join(
                f"  {for_terminal(path)}: {for_terminal(sentence)}" for path, sentence in wrong.items()
            )
            raise CommandError(f"--signals cannot be judged as it is:\n{told}")
        if sys.stdin.isatty():
            self.stderr.write(
                "Reading a log from this terminal: paste it, and end it with Ctrl-D on a line of its own."
            )
        log = sys.stdin.buffer.read(MAX_BYTES).decode("utf-8", "replace")
        try:
            content = read_rule_file(rules) if rules else ""
            tried = try_rules(log.splitlines(), beside, content, rules_name=str(rules))
        except RuleFileError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(tried, indent=2) if options["json"] else as_text(tried))
