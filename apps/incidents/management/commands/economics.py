"""`manage.py economics checkpoint | mtbf | spares`: prices from given figures, a trace, or what the desk has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.access.printable import printable, printable_lines
from apps.incidents import economics
from apps.incidents.fault_traces import MOST_DAYS, NamedTrace, read_trace
from apps.incidents.gpu_prices import read_prices
from apps.incidents.interruptions import WINDOW_DAYS, exposure_of_nodes, interruptions
from apps.nodes.models import Machine
from recovery.checkpointing import Store, plan_checkpoints
from recovery.errors import BadInput
from recovery.figures import Basis, Figure, assumed, measured, positive
from recovery.prices import GpuPrice
from recovery.reliability import with_prior

#: The command is run now and then, by a person: it reads more than a page does.
MOST_ATTEMPTS_OF_CLUSTER = 20_000
LENGTH = {
    "mtbf": f"length of the trace, where it does not tell; of a cluster the last so many (default {WINDOW_DAYS:g})",
    "spares": "length of the trace, where it does not tell",
}


class Command(BaseCommand):
    help = (
        "How often to save, how often nodes fail, how many spares to keep. "
        "Only mtbf --cluster needs the desk's database."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        kinds = parser.add_subparsers(dest="what", required=True, metavar="checkpoint | mtbf | spares")
        save = kinds.add_parser("checkpoint", help="interval between checkpoints, its waste and its writes")
        save.add_argument(
            "--checkpoint-seconds", type=float, required=True, help="C: training stands still for a save"
        )
        rate = save.add_mutually_exclusive_group(required=True)
        rate.add_argument("--mtbf-seconds", type=float, help="M: between failures of this job")
        rate.add_argument(
            "--nodes", type=int, help="nodes of the job: M from the prior of a cluster without history"
        )
        save.add_argument("--restart-seconds", type=float, default=0.0, help="R: a restart (default 0)")
        save.add_argument("--step-seconds", type=float, help="time of a step, to say the interval in steps")
        save.add_argument("--present-interval-seconds", type=float, help="as it is set now, to compare")
        save.add_argument("--checkpoint-bytes", type=float, help="size of all shards")
        save.add_argument("--store-bytes-per-second", type=float, help="what the store can write")
        save.add_argument("--store-bytes", type=float, help="its room")
        save.add_argument("--kept", type=int, default=1, help="checkpoints that stay (default 1)")
        save.add_argument("--drives", type=int, help="drives over which a save is spread")
        save.add_argument("--drive-bytes", type=float, help="size of each")
        save.add_argument("--drive-endurance-bytes", type=float, help="rated writes of each (TBW)")
        save.add_argument("--write-amplification", type=float, default=1.0, help="of the flash (default 1)")
        for name, sentence in (("mtbf", "time between failures"), ("spares", "size of the spare pool")):
            of_desk = ", or as the desk saw it" if name == "mtbf" else ""
            traced = kinds.add_parser(name, help=f"{sentence}, from a fault trace{of_desk}")
            if name == "mtbf":
                source = traced.add_mutually_exclusive_group(required=True)
                source.add_argument("trace", type=Path, nargs="?", help="CSV or JSON file, or its directory")
                source.add_argument("--cluster", help="slug of a cluster: what the desk has seen there")
            else:
                traced.add_argument("trace", type=Path, help="CSV or JSON file, or its directory")
            traced.add_argument(
                "--nodes", type=int, help="nodes of the cluster, where the trace does not tell"
            )
            traced.add_argument("--days", type=float, help=LENGTH[name])
            traced.add_argument("--system", help="which one, where a file has several")
            if name == "mtbf":
                traced.add_argument("--confidence", type=float, default=0.95, help="two-sided (default 0.95)")
                traced.add_argument("--job-sizes", type=int, nargs="*", help="nodes of jobs")
            else:
                traced.add_argument("--gpu-type", help="show money at its price in INCIDENTDESK_GPU_PRICES")
                traced.add_argument("--gpus-per-node", type=int, default=8, help="default 8")
                traced.add_argument(
                    "--job-nodes", type=int, default=128, help="job that would wait (default 128)"
                )
                traced.add_argument(
                    "--target",
                    type=float,
                    default=0.95,
                    help="share of failures that find a spare (default 0.95)",
                )

    def handle(self, *args: Any, what: str, **options: Any) -> None:
        try:
            text = getattr(self, f"_{what}")(options)
        except OverflowError as error:
            raise CommandError("one of these figures is too large, or too near 0, to compute with") from error
        except BadInput as error:
            raise CommandError(printable(str(error))) from error
        self.stdout.write(printable_lines(text), ending="")

    def _checkpoint(self, options: dict[str, Any]) -> str:
        def given(name: str) -> Figure | None:
            return None if options[name] is None else measured(options[name], economics.GIVEN)

        mtbf = given("mtbf_seconds") or with_prior((), ()).job_seconds(options["nodes"])
        restart = options["restart_seconds"]
        store = Store(
            write_bytes_per_second=options["store_bytes_per_second"],
            capacity_bytes=options["store_bytes"],
            kept=options["kept"],
            drives=options["drives"],
            drive_bytes=options["drive_bytes"],
            endurance_bytes=options["drive_endurance_bytes"],
            write_amplification=options["write_amplification"],
        )
        plan = plan_checkpoints(
            measured(options["checkpoint_seconds"], economics.GIVEN),
            mtbf,
            Figure(restart, Basis.MEASURED, economics.GIVEN) if restart else assumed(0.0, "left out"),
            step_seconds=given("step_seconds"),
            present_interval_seconds=given("present_interval_seconds"),
            checkpoint_bytes=given("checkpoint_bytes"),
            store=store,
        )
        return economics.checkpoint_text(plan)

    def _mtbf(self, options: dict[str, Any]) -> str:
        if options["cluster"] is not None:
            return self._cluster(options)
        return economics.mtbf_text(
            _trace(options), confidence=options["confidence"], job_sizes=options["job_sizes"]
        )

    def _cluster(self, options: dict[str, Any]) -> str:
        for name in ("nodes", "system"):
            if options[name] is not None:
                raise BadInput(f"--{name} is about a trace: leave it out beside --cluster", field=name)
        days = WINDOW_DAYS if options["days"] is None else options["days"]
        positive("days", days, "how far to look back", f"leave it out for {WINDOW_DAYS:g}")
        if days > MOST_DAYS:
            raise BadInput(f"{days:,.0f} days: give at most {MOST_DAYS:,.0f}", field="days")
        try:
            cluster = Cluster.objects.filter(slug=options["cluster"]).first()
            if cluster is None:
                known = ", ".join(Cluster.objects.order_by("slug").values_list("slug", flat=True)) or "none"
                raise BadInput(
                    f"there is no cluster {options['cluster']!r} (there are: {known})", field="cluster"
                )
            found = interruptions(
                cluster_id=cluster.pk, now=database_now(), days=days, most=MOST_ATTEMPTS_OF_CLUSTER
            )
            of_nodes = exposure_of_nodes(cluster_id=cluster.pk, found=found)
            nodes = Machine.objects.filter(cluster=cluster, gone_at__isnull=True).count()
        except OperationalError as error:
            raise CommandError(
                "the desk's database cannot be reached, which --cluster needs: set DATABASE_URL, or use ./desk manage"
            ) from error
        return economics.cluster_text(
            cluster.slug,
            found,
            of_nodes,
            nodes=max(1, nodes),
            confidence=options["confidence"],
            job_sizes=options["job_sizes"],
        )

    def _spares(self, options: dict[str, Any]) -> str:
        trace = _trace(options)
        pool = economics.pool_of(
            trace.trace,
            gpus_per_node=options["gpus_per_node"],
            job_nodes=options["job_nodes"],
            target_share=options["target"],
        )
        return economics.spares_text(trace, pool, self._price(options["gpu_type"]))

    def _price(self, gpu_type: str | None) -> GpuPrice | None:
        if gpu_type is None:
            return None
        prices = read_prices(settings.GPU_PRICES)
        if gpu_type not in prices:
            known = ", ".join(sorted(prices)) or "none"
            raise BadInput(f"no price is given for {gpu_type} (given: {known}): see INCIDENTDESK_GPU_PRICES")
        return prices[gpu_type]


def _trace(options: dict[str, Any]) -> NamedTrace:
    return read_trace(
        options["trace"], nodes=options["nodes"], days=options["days"], system=options["system"]
    )
