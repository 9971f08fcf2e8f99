"""The whole watch over HTTP: what is written into a served store becomes rows and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import Settings

import incidentdesk.celery  # noqa: F401 - the app that wakes workers
from adapters.kubernetes import client
from adapters.kubernetes.cluster import KubernetesCluster
from apps import wiring
from apps.access.models import Cluster
from apps.incidents.models import Signal
from apps.incidents.watch_process import WatchProcess, WrongCluster
from apps.jobs.models import Job, Pod
from apps.nodes.models import Machine, WatchState
from recovery.signals import SignalKind
from tests.factories import make_cluster
from tests.sim.apiserver import Api, serve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

CHECKOUT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 30
WORKERS = 2


@pytest.fixture
def api() -> Iterator[Api]:
    with serve(bookmark_seconds=0.2) as served:
        served.store.create("Namespace", {"metadata": {"name": "train"}}, actor="user")
        yield served


@pytest.fixture
def cluster(api: Api) -> Cluster:
    uid = api.store.get("Namespace", None, "kube-system")["metadata"]["uid"]
    return make_cluster(system_uid=uid)


class Processes:
    """Watch processes in threads, each with connections of its own, as two deployments would have."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = str(kubeconfig)
        self.running: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self.failures: list[BaseException] = []

    def start(self, cluster: Cluster, name: str = "one") -> None:
        stop = threading.Event()
        adapter = KubernetesCluster(client.connect(kubeconfig=self.kubeconfig, timeout_seconds=5))
        process = WatchProcess(cluster=cluster, adapter=adapter, stop=stop, owner=name)

        def run() -> None:
            try:
                process.run()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.failures.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=run, name=name)
        self.running[name] = (thread, stop)
        thread.start()

    def stop(self, name: str = "one") -> None:
        thread, stop = self.running.pop(name)
        stop.set()
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def processes(api: Api, tmp_path: Path) -> Iterator[Processes]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.server.kubeconfig())
    held = Processes(kubeconfig)
    yield held
    for name in list(held.running):
        held.stop(name)


def eventually(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        threading.Event().wait(0.05)
    return found


def told(kind: SignalKind) -> list[Signal]:
    return list(Signal.objects.filter(kind=kind).order_by("id"))


def is_watching() -> bool:
    return WatchState.objects.filter(resource="pods", state="watching").exists()


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def submit(api: Api, name: str = "llm", **metadata: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "train", "image": "incidentdesk/trainer"}]}
    job = {
        "metadata": {
            "name": name,
            "namespace": "train",
            "annotations": {"incidentdesk.io/protect": "true"},
            **metadata,
        },
        "spec": {
            "completions": WORKERS,
            "parallelism": WORKERS,
            "completionMode": "Indexed",
            "template": {"spec": pod},
        },
    }
    return api.store.create("Job", job, actor="user")


def place(api: Api, job: dict[str, Any], index: int, suffix: str = "a") -> str:
    """A pod of the job runs, as controller, scheduler and kubelet would have it."""
    name = f"{job['metadata']['name']}-{index}-{suffix}"
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    pod = {
        "metadata": {
            "name": name,
            "namespace": "train",
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            "labels": {"batch.kubernetes.io/job-name": job["metadata"]["name"]},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "train", "image": "incidentdesk/trainer"}], "nodeName": "node-a"},
    }
    api.store.create("Pod", pod, actor="job-controller")
    show(api, name, "Running", {"running": {"startedAt": stamp()}})
    return name


def show(api: Api, name: str, phase: str, state: dict[str, Any], restarts: int = 0) -> None:
    status = {
        "phase": phase,
        "containerStatuses": [{"name": "train", "restartCount": restarts, "state": state}],
    }
    api.store.mutate(
        "Pod", "train", name, lambda pod: pod | {"status": status}, actor="kubelet", subresource="status"
    )


def kill(api: Api, name: str, code: int = 137) -> None:
    show(api, name, "Failed", {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": stamp()}})


def test_job_and_pods_become_rows_and_an_end_one_signal(
    api: Api, cluster: Cluster, processes: Processes
) -> None:
    api.store.create("Node", {"metadata": {"name": "node-a"}}, actor="kubelet")
    processes.start(cluster)
    job = submit(api)
    names = [place(api, job, index) for index in range(WORKERS)]
    eventually(lambda: told(SignalKind.WORLD_RUNNING))
    kill(api, names[1])
    (end,) = eventually(lambda: told(SignalKind.INCARNATION_ENDED))
    assert (end.index, end.body["exit_code"], end.body["cause"]) == (1, 137, "crashed")
    api.store.delete("Pod", "train", names[1], actor="job-controller", grace_period_seconds=0)
    eventually(lambda: Pod.objects.filter(name=names[1], gone_at__isnull=False).exists())
    assert len(told(SignalKind.INCARNATION_ENDED)) == 1
    assert len(told(SignalKind.JOB_KNOWN)) == 1
    assert Machine.objects.get().name == "node-a"
    assert Job.objects.get().is_protected


def test_end_during_a_gap_is_found_by_the_comparison(
    api: Api, cluster: Cluster, processes: Processes
) -> None:
    """R4: a gap of the watch skips nothing."""
    processes.start(cluster)
    job = submit(api)
    names = [place(api, job, index) for index in range(WORKERS)]
    eventually(lambda: told(SignalKind.WORLD_RUNNING))
    with api.store.lock:
        api.store.close_watches()
        api.store.delete("Pod", "train", names[0], actor="somebody", grace_period_seconds=0)
        api.store.compact()
    (end,) = eventually(lambda: told(SignalKind.INCARNATION_ENDED))
    assert (end.index, end.body["reason"]) == (0, "Vanished")
    eventually(lambda: WatchState.objects.filter(resource="pods", detail__contains="1 gone").exists())


def test_what_happened_while_no_process_ran_is_found_by_the_next(
    api: Api, cluster: Cluster, processes: Processes
) -> None:
    processes.start(cluster)
    job = submit(api)
    names = [place(api, job, index) for index in range(WORKERS)]
    eventually(lambda: told(SignalKind.WORLD_RUNNING))
    processes.stop()
    kill(api, names[0])
    api.store.delete("Pod", "train", names[1], actor="somebody", grace_period_seconds=0)
    processes.start(cluster, "next")
    eventually(lambda: len(told(SignalKind.INCARNATION_ENDED)) == WORKERS)
    assert {(end.index, end.body["cause"]) for end in told(SignalKind.INCARNATION_ENDED)} == {
        (0, "crashed"),
        (1, "deleted"),
    }
    assert len(told(SignalKind.JOB_KNOWN)) == 1


def test_suspend_is_never_read_as_a_failure_of_its_pods(
    api: Api, cluster: Cluster, processes: Processes
) -> None:
    processes.start(cluster)
    job = submit(api)
    names = [place(api, job, index) for index in range(WORKERS)]
    eventually(lambda: told(SignalKind.WORLD_RUNNING))

    def suspend(present: dict[str, Any]) -> dict[str, Any]:
        present["spec"]["suspend"] = True
        return present

    with api.store.lock:
        api.store.mutate("Job", "train", "llm", suspend, actor="kubectl")
        for name in names:
            api.store.delete("Pod", "train", name, actor="job-controller", grace_period_seconds=0)
    eventually(lambda: len(told(SignalKind.INCARNATION_ENDED)) == WORKERS)
    assert {end.body["cause"] for end in told(SignalKind.INCARNATION_ENDED)} == {"stopped_by_user"}
    (suspended,) = told(SignalKind.JOB_SUSPENDED)
    assert suspended.pk < told(SignalKind.INCARNATION_ENDED)[0].pk


def test_pods_of_a_job_that_becomes_protected_later_are_fetched(
    api: Api, cluster: Cluster, processes: Processes
) -> None:
    processes.start(cluster)
    eventually(is_watching)
    pod = {"restartPolicy": "Never", "containers": [{"name": "train", "image": "x"}]}
    job = api.store.create(
        "Job",
        {"metadata": {"name": "plain", "namespace": "train"}, "spec": {"template": {"spec": pod}}},
        actor="user",
    )
    place(api, job, 0)
    submit(api, "marker")
    eventually(lambda: Job.objects.filter(name="marker").exists())
    assert not Job.objects.filter(name="plain").exists()

    def protect(present: dict[str, Any]) -> dict[str, Any]:
        present["metadata"].setdefault("annotations", {})["incidentdesk.io/protect"] = "true"
        return present

    api.store.mutate("Namespace", None, "train", protect, actor="user")
    eventually(lambda: Pod.objects.filter(job__name="plain", phase="Running").exists())
    assert Job.objects.get(name="plain").is_opted_in


def test_arming_the_cluster_is_told_to_its_jobs(api: Api, cluster: Cluster, processes: Processes) -> None:
    Cluster.objects.update(mode="observe")
    cluster.refresh_from_db()
    processes.start(cluster)
    submit(api)
    eventually(lambda: Job.objects.filter(is_protected=False).exists())
    Cluster.objects.update(mode="auto")
    (told_so,) = eventually(lambda: told(SignalKind.PROTECTION))
    assert told_so.body["protected"] is True


def test_second_process_takes_over_and_the_first_writes_nothing_more(
    api: Api, cluster: Cluster, processes: Processes
) -> None:
    """R36: the host of the watch is lost and nothing happens twice."""
    processes.start(cluster)
    eventually(is_watching)
    processes.start(cluster, "two")
    leader = WatchState.objects.get(resource="leader")
    assert leader.leader == "one"
    processes.stop("one")
    eventually(lambda: WatchState.objects.filter(resource="leader", leader="two").exists())
    assert WatchState.objects.get(resource="leader").epoch == leader.epoch + 1
    submit(api)
    eventually(lambda: told(SignalKind.JOB_KNOWN))


def test_stopped_leader_writes_nothing_after_it_wakes_and_steps_down(
    api: Api, cluster: Cluster, processes: Processes, tmp_path: Path
) -> None:
    parts = urlsplit(os.environ["DATABASE_URL"])
    url = urlunsplit(parts._replace(path=f"/{connection.settings_dict['NAME']}"))
    command = [sys.executable, "manage.py", "watch", "--cluster", cluster.slug]
    environment = {**os.environ, "DATABASE_URL": url, "INCIDENTDESK_KUBECONFIG": processes.kubeconfig}
    log = tmp_path / "watch.log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output) as process,
    ):
        try:
            eventually(is_watching)
            process.send_signal(signal.SIGSTOP)
            submit(api)  # it lies in the stopped process's sockets when it wakes
            processes.start(cluster, "two")
            eventually(lambda: WatchState.objects.filter(resource="leader", leader="two").exists())
            eventually(lambda: told(SignalKind.JOB_KNOWN))
            process.send_signal(signal.SIGCONT)
            # One that slept in a transaction finds it ended by the server; either way it leads no more.
            eventually(lambda: {"watch.lead_lost", "watch.trouble"} & set(log.read_text().split()))
            submit(api, "later")
            eventually(lambda: len(told(SignalKind.JOB_KNOWN)) == 2)
            assert WatchState.objects.get(resource="leader").leader == "two"
            assert set(WatchState.objects.values_list("epoch", flat=True)) == {2}
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            assert process.wait(DEADLINE_SECONDS) == 0, log.read_text()


def test_freshness_and_token_keys_are_written(api: Api, cluster: Cluster, processes: Processes) -> None:
    processes.start(cluster)
    eventually(lambda: Cluster.objects.filter(token_keys_read_at__isnull=False).exists())
    cluster.refresh_from_db()
    assert cluster.token_issuer == api.server.url
    assert cluster.token_keys["keys"]
    eventually(lambda: WatchState.objects.filter(state="watching").count() == 5)
    before = WatchState.objects.get(resource="nodes").last_heard_at
    eventually(lambda: WatchState.objects.get(resource="nodes").last_heard_at != before)


def test_another_cluster_behind_the_kubeconfig_stops_the_process(
    api: Api, cluster: Cluster, processes: Processes
) -> None:
    Cluster.objects.update(system_uid="the-one-we-know")
    cluster.refresh_from_db()
    processes.start(cluster)
    (failure,) = eventually(lambda: processes.failures)
    assert isinstance(failure, WrongCluster)
    state = WatchState.objects.get(resource="leader")
    assert state.state == "broken"
    assert "the-one-we-know" in state.detail


def test_command_names_the_clusters_that_there_are(cluster: Cluster, settings: Settings) -> None:
    with pytest.raises(CommandError, match=cluster.slug):
        call_command("watch", cluster="none")
    settings.KUBECONFIG = "/no/such/file"
    wiring.cluster.cache_clear()
    with pytest.raises(CommandError, match="INCIDENTDESK_KUBECONFIG"):
        call_command("watch", cluster=cluster.slug)
