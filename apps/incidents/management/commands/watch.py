"""`manage.py watch --cluster SLUG`: watch a cluster until SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps import wiring
from apps.access.models import Cluster
from apps.incidents.watch_process import WatchProcess, WrongCluster
from recovery.errors import ClusterError


class Command(BaseCommand):
    help = "Watch a cluster: nodes, jobs and pods become rows, their ends become signals. Run two for one cluster."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--cluster", required=True, help="slug of the registered cluster")

    def handle(self, *args: Any, cluster: str, **options: Any) -> None:
        row = Cluster.objects.filter(slug=cluster).first()
        if row is None:
            known = ", ".join(Cluster.objects.values_list("slug", flat=True)) or "none"
            raise CommandError(f"no cluster {cluster!r} is registered (registered: {known})")
        os.environ.setdefault("INCIDENTDESK_PROCESS", "watch")
        stop = threading.Event()

        def end(number: int, frame: FrameType | None) -> None:
            stop.set()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        try:
            WatchProcess(cluster=row, adapter=wiring.cluster(), stop=stop).run()
        except (WrongCluster, ClusterError) as error:
            raise CommandError(str(error)) from error
