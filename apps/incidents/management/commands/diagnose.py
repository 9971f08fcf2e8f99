"""`manage.py diagnose FILE.jsonl`: a verdict a line, from the signals alone. Needs no database."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.incidents.diagnosing import NotUnderstood, WrongCase, case_of, explanation, prediction, verdict_on
from apps.incidents.rules import current_rules, rules_with
from recovery.rules.loading import RuleFileError


class Command(BaseCommand):
    help = "Judge recorded failures: JSON lines with id and signals in, a line each with the verdict out."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="JSON lines; - reads standard input")
        parser.add_argument("--rules", type=Path, help="a rule file over the built-in rules")
        parser.add_argument("--explain", action="store_true", help="tell the reasons to standard error")

    def handle(self, *args: Any, file: str, rules: Path | None, explain: bool, **options: Any) -> None:
        try:
            in_force = rules_with(rules) if rules else current_rules()
        except RuleFileError as error:
            raise CommandError(str(error)) from error
        cases, wrong, not_understood = 0, 0, NotUnderstood()
        try:
            source = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115
        except OSError as error:
            raise CommandError(f"{file} cannot be read: {error}") from error
        if file == "-" and sys.stdin.isatty():
            self.stderr.write("Reading cases from this terminal, one a line; end them with Ctrl-D.")
        with source:
            for n, raw in enumerate(source, 1):
                line = raw.decode("utf-8", "replace").strip()
                if not line:
                    continue
                try:
                    case_id, signals = case_of(line)
                except WrongCase as error:
                    wrong += 1
                    self.stderr.write(f"{file}, line {n}: {error}; the line is left out")
                    continue
                cases += 1
                for sentence in not_understood.of(signals):
                    self.stderr.write(f"{file}, line {n}: {sentence}")
                verdict = verdict_on(signals, in_force)
                self.stdout.write(json.dumps(prediction(case_id, verdict)))
                if explain:
                    self.stderr.write(explanation(case_id, verdict))
        if not_understood.more:
            self.stderr.write(f"{file}: {not_understood.more} more like these were not understood")
        if not cases and not wrong:
            self.stderr.write(f"{file} holds no case: nothing was judged")
        if wrong:
            raise CommandError(f"{wrong} of the lines of {file} were no cases; see above")
