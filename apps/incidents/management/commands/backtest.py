"""`manage.py backtest TRACE`: what policies for failed nodes would have cost, replayed on a fault trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.access.printable import printable, printable_lines
from apps.incidents import backtesting
from apps.incidents.fault_traces import read_trace
from recovery.errors import BadInput


class Command(BaseCommand):
    help = "Replay policies for failed nodes on a fault trace, with synthetic jobs. Needs no database."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace", type=Path, help="CSV or JSON file, or its directory")
        parser.add_argument(
            "--job-sizes", default="64,128,256", help="nodes of each job (default 64,128,256)"
        )
        parser.add_argument("--placements", type=int, default=60, help="random placements (default 60)")
        parser.add_argument("--seed", type=int, default=1, help="seed of placements and choices (default 1)")
        parser.add_argument(
            "--policies", default=backtesting.DEFAULT_POLICIES, help=f"default {backtesting.DEFAULT_POLICIES}"
        )
        parser.add_argument(
            "--full", default="0.8,0.9,0.95",
            help="shares of the cluster that one job takes, for the question whether a blacklist pays; "
            "empty for none (default 0.8,0.9,0.95)",
        )  # fmt: skip
        parser.add_argument("--nodes", type=int, default=400, help="nodes of the cluster (default 400)")
        parser.add_argument("--days", type=float, default=240.0, help="length of the trace (default 240)")
        parser.add_argument("--system", help="which one, where a file has several")
        parser.add_argument("--gpus-per-node", type=int, default=8, help="assumed (default 8)")
        parser.add_argument("--checkpoint-seconds", type=float, default=60.0, help="assumed (default 60)")
        parser.add_argument("--restart-seconds", type=float, default=600.0, help="assumed (default 600)")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")

    def handle(self, *args: Any, **options: Any) -> None:
        def tell(what: str) -> None:
            self.stderr.write(f"replaying {what}", ending="\n")

        try:
            trace = read_trace(
                options["trace"], nodes=options["nodes"], days=options["days"], system=options["system"]
            )
            result = backtesting.run(
                trace,
                sizes=_numbers(options["job_sizes"], int, "job-sizes"),
                full_shares=_numbers(options["full"], float, "full"),
                policies=options["policies"],
                placements=options["placements"],
                seed=options["seed"],
                assumptions=backtesting.JobAssumptions(
                    options["gpus_per_node"], options["checkpoint_seconds"], options["restart_seconds"]
                ),
                tell=tell,
            )
        except BadInput as error:
            raise CommandError(printable(str(error))) from error
        self.stdout.write(printable_lines(backtesting.render(result)), ending="")
        if options["json"] is not None:
            try:
                options["json"].write_text(json.dumps(backtesting.as_plain(result), indent=1) + "\n")
            except OSError as error:
                raise CommandError(f"the figures could not be written: {error}") from error


def _numbers[Number: (int, float)](text: str, kind: type[Number], field: str) -> list[Number]:
    try:
        return [kind(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise BadInput(
            f"{text!r} is no list of numbers: give them with commas between", field=field
        ) from error
