"""The first import of a cluster of full size."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

import incidentdesk.celery  # noqa: F401 - the app that wakes workers
from adapters.kubernetes import client
from adapters.kubernetes.cluster import KubernetesCluster
from apps.incidents.watch_process import WatchProcess
from apps.jobs.models import Job, Pod, Worker
from apps.nodes.models import Machine, WatchState
from tests.factories import make_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_url"),
]

CHECKOUT = Path(__file__).resolve().parents[2]
NODES, PODS = 10_000, 100_000
DEADLINE_SECONDS = 600


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    command = [sys.executable, "-m", "sim", "serve", "--dir", str(tmp_path), "--large", "--seed", "7"]
    command += ["--nodes", str(NODES), "--pods", str(PODS), "--changes", "50"]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("sim: ready"):
                break
        yield tmp_path / "kubeconfig"
        process.terminate()


def test_first_import_is_complete_and_keeps_the_lease(large: Path) -> None:
    adapter = KubernetesCluster(client.connect(kubeconfig=str(large), timeout_seconds=30))
    cluster = make_cluster(system_uid=adapter.identity())
    stop, failures = threading.Event(), []

    def run() -> None:
        try:
            WatchProcess(cluster=cluster, adapter=adapter, stop=stop).run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    begun, cpu = time.monotonic(), time.process_time()
    thread.start()
    try:
        while not WatchState.objects.filter(resource="pods", state="watching").exists():
            assert not failures
            assert time.monotonic() - begun < DEADLINE_SECONDS
            threading.Event().wait(0.5)
        seconds, cpu_seconds = time.monotonic() - begun, time.process_time() - cpu
        epoch = WatchState.objects.get(resource="leader").epoch
    finally:
        stop.set()
        thread.join(60)
    rows = {model.__name__: model.objects.count() for model in (Machine, Job, Worker, Pod)}
    print(f"first import: {seconds:.1f} s, {cpu_seconds:.1f} CPU s of the watch, {rows}")
    assert rows["Machine"] == NODES
    assert rows["Pod"] > 0.5 * PODS
    assert epoch == 1, "no write was longer than the lease"
