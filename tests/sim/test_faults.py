"""Faults against real training jobs: each is done when its effect was seen."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sim import faults, training_jobs
from sim.cluster import Cluster
from sim.processes import look_up
from sim.roles import assign, is_trainer
from tests.sim.conftest import Bench, is_gone, until


class Training(Bench):
    """A bench with a training job `lab/train` of three workers."""

    def submit(self, **parameters: Any) -> None:
        given = {
            "namespace": "lab",
            "name": "train",
            "agent": False,
            "gpus": 1,
            "step_seconds": 0.02,
            **parameters,
        }
        job = training_jobs.TrainingJob.parse(
            {"checkpoint_every": 5, "collective_timeout_seconds": 1.0, **given}
        )
        training_jobs.submit(self.store, job, desk_url=self.cluster.network.desk_url)

    def inject(self, fault: str, **parameters: Any) -> dict[str, Any]:
        where = {} if fault in ("restore", "node-silent") else {"namespace": "lab", "job": "train"}
        return faults.inject(self.cluster, {"fault": fault, **where, **parameters})

    def steps(self, index: int) -> list[int]:
        """Steps in the log of the newest pod of an index."""
        workers = [w for w in self.cluster.pod_workers() if w.index == index]
        path = workers[-1].log_path("train") if workers else None
        return [int(step) for step in re.findall(r"\] step (\d+)/", path.read_text())] if path else []

    def logs(self, index: int) -> str:
        paths = [w.log_path("train") for w in self.cluster.pod_workers() if w.index == index]
        return "".join(path.read_text() for path in paths if path)


@pytest.fixture
def training(make_cluster: Callable[..., Cluster]) -> Training:
    return Training(make_cluster())


def restarted(training: Training) -> None:
    """All three ranks step again from a committed checkpoint."""
    for index in range(3):
        until(lambda i=index: "restored step" in training.logs(i), f"restore of rank {index}")  # type: ignore[misc]
        until(lambda i=index: training.steps(i), f"a step of rank {index}")  # type: ignore[misc]


def test_killed_rank_takes_the_world_down_and_it_resumes_from_the_last_commit(training: Training) -> None:
    training.submit()
    until(lambda: len(training.steps(1)) >= 7, "seven steps")
    uid = training.pods("train")[1]["metadata"]["uid"]

    told = training.inject("kill-process", index=1)

    assert is_gone(told["pid"])
    assert (told["done"], told["signal"], told["pod_uid"]) == (True, "SIGKILL", uid)
    until(
        lambda: training.logs(0).count("Watchdog caught collective operation timeout") == 1,
        "rank 0's time-out",
    )
    restarted(training)
    restored = re.search(r"restored step (\d+) from", training.logs(0))
    assert restored is not None
    assert int(restored.group(1)) % 5 == 0
    assert training.job("train")["status"]["failed"] == 3


def test_suspended_training_resumes_from_its_last_commit(training: Training) -> None:
    training.submit()
    until(lambda: len(training.steps(0)) >= 6, "six steps")
    for is_suspended in (True, False):
        training.store.mutate(
            "Job",
            "lab",
            "train",
            lambda j, s=is_suspended: {**j, "spec": {**j["spec"], "suspend": s}},
            actor="test",
        )
        if is_suspended:
            until(lambda: training.cluster.pod_workers() == [], "end of every pod")

    restarted(training)
    assert "failed" not in training.job("train")["status"]


def test_stopped_rank_is_still_there_until_it_is_continued(training: Training) -> None:
    training.submit(collective_timeout_seconds=60.0)
    until(lambda: training.steps(2), "steps")

    told = training.inject("kill-process", index=2, signal="STOP")

    assert look_up(told["pid"]).state == "T"  # type: ignore[union-attr]
    before = training.steps(0)[-1]
    training.inject("kill-process", index=2, signal="SIGCONT")
    until(lambda: training.steps(0)[-1] > before + 1, "further steps")


def test_oom_kill_is_told_as_such(training: Training) -> None:
    training.submit()
    until(lambda: training.steps(0), "steps")

    told = training.inject("kill-process", index=0, oom=True)

    def ended() -> dict[str, Any]:
        pod = training.pod(told["pod"]) or {"status": {}}
        statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
        return dict(statuses[0]["state"].get("terminated") or {})

    until(ended, "the container's end")
    assert (ended()["reason"], ended()["exitCode"]) == ("OOMKilled", 137)


def test_deleted_pod_is_gone_with_its_processes_when_told(training: Training) -> None:
    training.submit()
    until(lambda: len(training.steps(2)) >= 6, "six steps")

    told = training.inject("pod-deleted", index=2)

    assert training.pod(told["pod"]) is None
    assert told["pod_uid"] not in {worker.uid for worker in training.cluster.pod_workers()}
    restarted(training)


def test_exit_with_ends_the_rank_with_that_code(training: Training) -> None:
    training.submit()
    until(lambda: training.steps(1), "steps")

    told = training.inject("exit-with", index=1, code=43)

    def code() -> int | None:
        pod = training.pod(told["pod"])
        state = pod["status"]["containerStatuses"][0]["state"] if pod else {}
        return state["terminated"]["exitCode"] if "terminated" in state else None

    until(lambda: code() is not None, "the container's end")
    assert code() == 43


AGENT = """
import subprocess, sys
raise SystemExit(subprocess.run(["sh", "-c", sys.argv[2]]).returncode % 256)
"""


def test_agent_and_rank_are_told_apart(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    training = Training(make_cluster(agent=agent))
    training.submit(agent=True, steps=100_000)
    until(lambda: training.steps(0), "steps")
    (worker,) = [w for w in training.cluster.pod_workers() if w.index == 1]
    roles = assign(worker.processes()[0].tree, training.cluster.agent)
    assert roles.agent is not None
    assert [str(agent.resolve()) in roles.agent.argv, is_trainer(roles.ranks[0].argv)] == [True, True]

    killed = training.inject("kill-process", index=1)
    assert killed["pid"] == roles.ranks[0].pid
    told = training.inject("kill-agent", index=0)

    until(lambda: training.phase(told["pod"]) in ("Failed", None), "the pod's end")
    ended = training.container(told["pod"])["state"]["terminated"]
    assert (ended["exitCode"], ended["signal"]) == (137, 9)
    assert is_gone(told["pid"])


@pytest.mark.parametrize(
    ("given", "code", "status"),
    [
        ({"fault": "meteor"}, "unknown-fault", 404),
        ({"fault": "kill-process", "namespace": "lab", "job": "train"}, "bad-parameter", 400),
        ({"fault": "kill-process", "namespace": "lab", "job": "train", "index": "1"}, "bad-parameter", 400),
        ({"fault": "kill-process", "namespace": "lab", "job": "train", "index": True}, "bad-parameter", 400),
        (
            {"fault": "kill-process", "namespace": "lab", "job": "train", "index": 0, "colour": 1},
            "bad-parameter",
            400,
        ),
        ({"fault": "kill-process", "namespace": "lab", "job": "none", "index": 0}, "no-such-job", 404),
        ({"fault": "kill-process", "namespace": "lab", "job": "idle", "index": 0}, "no-such-pod", 409),
        (
            {"fault": "kill-process", "namespace": "lab", "job": "idle", "index": 0, "signal": "SIGNOPE"},
            "bad-parameter",
            400,
        ),
        ({"fault": "desk-cut-off", "namespace": "lab", "job": "idle"}, "no-desk", 409),
        ({"fault": "node-silent", "node": "nowhere"}, "no-such-node", 404),
        ({"fault": "restore", "job": "idle"}, "bad-parameter", 400),
        ({"fault": "restore", "index": 1}, "bad-parameter", 400),
    ],
)
def test_fault_that_hits_nothing_is_refused(
    bench: Bench, given: dict[str, Any], code: str, status: int
) -> None:
    bench.run_job("idle", "exit 0", suspend=True, completions=1, completionMode="Indexed")

    with pytest.raises(faults.FaultRefused) as refusal:
        faults.inject(bench.cluster, given)

    assert (refusal.value.code, refusal.value.status) == (code, status)


def test_every_fault_is_described() -> None:
    for fault in faults.FAULTS.values():
        told = fault.as_json()
        assert told["sentence"].endswith(".")
        assert all(parameter["sentence"].endswith(".") for parameter in told["parameters"])


class Desk:
    """Answers every line with the same line; counts connections."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection, suppress(ConnectionResetError):
            while data := connection.recv(4096):
                connection.sendall(data)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.socket.close()


def dial(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(b"ping\n")
    return connection


def reaches(url: str) -> bool:
    try:
        with dial(url) as connection:
            return connection.recv(16) == b"ping\n"
    except OSError:
        return False


def desk_url_of(bench: Bench, index: int) -> str:
    (worker,) = [w for w in bench.cluster.pod_workers() if w.index == index]
    found = until(lambda: list(worker.directory.glob("volumes/desk-config/url")), "the mounted configuration")
    return found[0].read_text()


def test_cut_off_pods_lose_the_desk_and_get_it_back(make_cluster: Callable[..., Cluster], desk: Desk) -> None:
    training = Training(make_cluster(desk_url=desk.url))
    training.submit(steps=100_000)
    until(lambda: training.steps(0), "steps")
    urls = [desk_url_of(training, index) for index in range(3)]
    assert len(set(urls)) == 3
    assert desk.url not in urls
    assert all(reaches(url) for url in urls)
    held = dial(urls[1])
    assert held.recv(16) == b"ping\n"

    told = training.inject("desk-cut-off", index=1)

    assert len(told["pods"]) == 1
    with pytest.raises(ConnectionResetError):
        held.recv(16)
    assert [reaches(url) for url in urls] == [True, False, True]

    training.inject("desk-cut-off")
    assert [reaches(url) for url in urls] == [False, False, False]

    training.inject("restore", namespace="lab", job="train", index=2)
    assert [reaches(url) for url in urls] == [False, False, True]

    training.inject("restore", namespace="lab", job="train")
    assert [reaches(url) for url in urls] == [True, True, True]
    held.close()


def test_cut_off_can_be_set_before_the_pods_exist(make_cluster: Callable[..., Cluster], desk: Desk) -> None:
    training = Training(make_cluster(desk_url=desk.url))

    training.inject("desk-cut-off", indices=[2])
    training.submit(steps=100_000)

    until(lambda: training.steps(0), "steps")
    assert [reaches(desk_url_of(training, index)) for index in range(3)] == [True, True, False]
