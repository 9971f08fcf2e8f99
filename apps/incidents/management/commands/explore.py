"""`manage.py explore`: walk every state of the tables of the core, and judge what must always hold."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from recovery.explore import report
from recovery.explore.catalog import FIRST_PROOF_STATES, SMALL, TITLES, full, models
from recovery.explore.engine import Model, Walk, walk
from recovery.explore.mutants import MUTANTS, Mutant


class Command(BaseCommand):
    help = (
        "Walk every state that the phase machine of a job, and the life cycles beside it, can reach. Says states, "
        "transitions, depth and seconds; a property that does not hold ends with a shortest trace. Needs no database."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--workers", type=int, help="workers of the job, in processes and channels (default 3)"
        )
        parser.add_argument("--max-retry", type=int, help="the user's limit, in the same models (default 2)")
        parser.add_argument("--model", choices=[*TITLES, "all"], default="all")
        parser.add_argument(
            "--small",
            action="store_true",
            help="the settings of a test run, in place of --workers and --max-retry",
        )
        parser.add_argument(
            "--unreduced", action="store_true", help="tell workers apart that differ by name only"
        )
        parser.add_argument(
            "--mutant",
            choices=sorted(MUTANTS),
            metavar="NAME",
            help="walk with this fault, which must be found",
        )
        parser.add_argument("--mutants", action="store_true", help="list the faults and end")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["mutants"]:
            self.stdout.write(report.mutants())
            return
        workers, max_retry = _size(options)
        mutant = MUTANTS[options["mutant"]] if options["mutant"] else None
        names = list(TITLES) if options["model"] == "all" else [options["model"]]
        if mutant is not None:
            self._find(mutant, [name for name in names if name in mutant.models], options)
            return
        broken = 0
        for name in names:
            size = SMALL[name] if options["small"] else full(name, workers=workers, max_retry=max_retry)
            for model in models(name, size):
                broken += self._walk(model, options).violation is not None
        if broken:
            raise CommandError(f"{broken} of these walks ended at a property that does not hold")
        self.stdout.write("every property holds in every state that was met")

    def _find(self, mutant: Mutant, names: list[str], options: dict[str, Any]) -> None:
        if not names:
            raise CommandError(f"{mutant.name} is a fault of {', '.join(mutant.models)}")
        self.stdout.write(f"{mutant.name}: {mutant.sentence}")
        found = {
            walked.violation.name
            for name in names
            for model in models(name, SMALL[name], mutant)
            if (walked := self._walk(model, options)).violation is not None
        }
        if mutant.broken not in found:
            raise CommandError(f"{mutant.name} was not found: the explorer is blind there")
        self.stdout.write(f"found, as {', '.join(sorted(found))}")

    def _walk(self, model: Model[Any], options: dict[str, Any]) -> Walk:
        self.stdout.write(f"\n{model.name}: {TITLES[model.name]}")
        for bound in model.bounds:
            self.stdout.write(f"  {bound}")
        started = time.process_time()
        walked = walk(
            model, reduced=not options["unreduced"], on_layer=self._tell if options["verbosity"] > 1 else None
        )
        self.stdout.write(f"  {report.met(walked, time.process_time() - started)}")
        if options["mutant"] is None and (beside := report.beside_first_proof(walked)):
            self.stdout.write(f"  {beside}")
        if walked.violation is None:
            self.stdout.write(f"  {len(model.properties)} properties hold")
        else:
            self.stdout.write("\n" + report.trace(walked.violation))
        return walked

    def _tell(self, depth: int, states: int) -> None:
        self.stdout.write(f"  … depth {depth}, {states:,} states")


def _size(options: dict[str, Any]) -> tuple[int, int]:
    """Workers and max retry. CommandError where they are given and would say nothing, or are too many."""
    given = [f"--{name.replace('_', '-')}" for name in ("workers", "max_retry") if options[name] is not None]
    if given:
        has_own_settings = "--small" if options["small"] else "--mutant" if options["mutant"] else ""
        if has_own_settings:
            raise CommandError(
                f"{has_own_settings} walks settings of its own: leave {' and '.join(given)} out, "
                f"or {has_own_settings}"
            )
        if options["model"] not in {"all", *FIRST_PROOF_STATES}:
            raise CommandError(
                f"the model {options['model']} has one size whatever the job's: leave {' and '.join(given)} out"
            )
    workers = 3 if options["workers"] is None else options["workers"]
    max_retry = 2 if options["max_retry"] is None else options["max_retry"]
    if not 1 <= workers <= 5 or not 0 <= max_retry <= 5:
        raise CommandError("give 1 to 5 workers and a max retry of 0 to 5: more would not end")
    return workers, max_retry
