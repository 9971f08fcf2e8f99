"""`manage.py backtest TRACE`: what policies for failed nodes would have cost, replayed on a fault trace."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper

from apps.access.printable import printable, printable_lines
from apps.incidents import backtesting
from apps.incidents.fault_traces import read_trace
from recovery.errors import BadInput

#: In a log that nobody watches.
SECONDS_BETWEEN_LINES = 10.0


class ProgressLine:
    """How far it is: one line that is written over and over on a terminal, else a line now and then."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._told_at: float | None = None

    def tell(self, done: int, total: int, what: str) -> None:
        """Say that ``done`` of ``total`` are over and what comes now."""
        line = f"replaying {done + 1} of {total}: {what}"
        if self._is_terminal:
            self._stream.write(f"\r{line}\x1b[K", ending="")
            self._stream.flush()
            return
        now = time.monotonic()
        if self._told_at is None or now - self._told_at >= SECONDS_BETWEEN_LINES:
            self._told_at = now
            self._stream.write(line)

    def clear(self) -> None:
        """Leave the terminal's line empty."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K", ending="")
            self._stream.flush()


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
        parser.add_argument("--nodes", type=int, help="nodes of the cluster, where the trace does not tell")
        parser.add_argument("--days", type=float, help="length of the trace, where it does not tell")
        parser.add_argument("--system", help="which one, where a file has several")
        parser.add_argument("--gpus-per-node", type=int, default=8, help="assumed (default 8)")
        parser.add_argument("--checkpoint-seconds", type=float, default=60.0, help="assumed (default 60)")
        parser.add_argument("--restart-seconds", type=float, default=600.0, help="assumed (default 600)")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")

    def handle(self, *args: Any, **options: Any) -> None:
        progress = ProgressLine(self.stderr)
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
                tell=progress.tell,
            )
        except BadInput as error:
            raise CommandError(printable(str(error))) from error
        finally:
            progress.clear()
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
