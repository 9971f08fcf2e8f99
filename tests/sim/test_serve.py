"""The simulated cluster as a program: its command line, its start, its end."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.conftest import processes_below, until

CHECKOUT = Path(__file__).resolve().parents[2]


class Program:
    """`python -m sim` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.served: list[subprocess.Popen[str]] = []

    def serve(self, *arguments: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "sim",
            "serve",
            "--dir",
            str(self.directory),
            "--timings",
            "short",
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.served.append(process)
        return process

    def serve_ready(self, *arguments: str) -> subprocess.Popen[str]:
        process = self.serve(*arguments)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"sim: ready on http://127\.0\.0\.1:\d+\n", line), line
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command, *rest = arguments
        return subprocess.run(
            [sys.executable, "-m", "sim", command, "--dir", str(self.directory), *rest],
            cwd=CHECKOUT,
            text=True,
            capture_output=True,
            timeout=60,
        )

    def answer(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def ranks(self) -> list[int]:
        return [pid for pod in self.answer("processes")["items"] for pid in pod["rank_pids"]]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path / "sim")
    yield program
    for process in program.served:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
    until(lambda: processes_below(program.directory) == [], "no process left")


def test_directory_tells_how_to_reach_the_cluster(program: Program) -> None:
    process = program.serve_ready("--nodes", "3", "--desk-url", "http://127.0.0.1:8000")

    endpoint = json.loads((program.directory / "endpoint.json").read_text())
    assert endpoint["pid"] == process.pid
    assert endpoint["desk_url"] == "http://127.0.0.1:8000"
    assert endpoint["url"].startswith("http://127.0.0.1:")
    assert (program.directory / "endpoint.json").stat().st_mode & 0o077 == 0
    kubeconfig = json.loads((program.directory / "kubeconfig").read_text())
    assert kubeconfig["users"][0]["user"]["token"] == endpoint["admin_token"]


def test_job_is_submitted_broken_and_audited_by_command_line(program: Program) -> None:
    program.serve_ready()
    job = program.answer(
        "submit",
        "--job",
        "research/llama",
        "--workers",
        "2",
        "--step-seconds",
        "0.02",
        "--protect",
        "--gpus",
        "1",
    )
    assert (job["namespace"], job["name"]) == ("research", "llama")
    ranks = until(lambda: (found := program.ranks()) and len(found) == 2 and found, "two ranks")

    told = program.answer("fault", "kill-process", "--job", "research/llama", "--index", "1")

    assert told["done"] is True
    assert told["pid"] in ranks
    records = [json.loads(line) for line in program.run("audit").stdout.splitlines()]
    (created,) = [r for r in records if (r["verb"], r["kind"], r["name"]) == ("create", "Job", "llama")]
    assert created["actor"] == "kubernetes-admin"
    later = program.run("audit", "--since", str(created["n"])).stdout.splitlines()
    assert json.loads(later[0])["n"] == created["n"] + 1


def test_refusals_are_one_sentence_and_exit_1(program: Program) -> None:
    nobody = program.run("processes")
    assert nobody.returncode == 1
    assert nobody.stderr.startswith("sim: no simulated cluster runs in ")
    program.serve_ready()

    assert (
        program.run("submit", "--job", "no-slash").stderr
        == "sim: --job must be NAMESPACE/NAME, not 'no-slash'\n"
    )
    done = program.run("fault", "kill-process", "--job", "research/none", "--index", "0")
    assert (done.returncode, done.stderr) == (1, "sim: no-such-job: no job research/none\n")
    done = program.run("submit", "--job", "research/llama", "--workers", "0")
    assert (done.returncode, done.stderr) == (1, "sim: bad-parameter: workers must be at least 1\n")
    listed = program.run("fault").stdout.splitlines()
    assert [line.split()[0] for line in listed][:3] == ["kill-process", "pod-deleted", "desk-cut-off"]


def test_second_cluster_in_the_same_directory_is_refused(program: Program) -> None:
    program.serve_ready()

    _, stderr = program.serve().communicate(timeout=30)

    assert stderr == f"sim: another simulated cluster runs in {program.directory}\n"
    assert program.answer("processes") == {"items": []}  # the first one is untouched


def with_stubborn_processes(program: Program) -> list[int]:
    """A job whose ranks run, and a pod whose processes ignore SIGTERM and sit in sessions of their own."""
    program.answer(
        "submit", "--job", "research/llama", "--workers", "2", "--step-seconds", "0.02", "--gpus", "1"
    )
    endpoint = json.loads((program.directory / "endpoint.json").read_text())
    forever = "while true; do sleep 0.1; done"
    script = f"trap '' TERM; setsid sh -c \"trap '' TERM; {forever}\" & {forever}"
    pod = {
        "metadata": {"name": "stubborn"},
        "spec": {"containers": [{"name": "main", "image": "x:1", "command": ["sh", "-c", script]}]},
    }
    request = urllib.request.Request(
        f"{endpoint['url']}/api/v1/namespaces/default/pods",
        data=json.dumps(pod).encode(),
        headers={"Authorization": f"Bearer {endpoint['admin_token']}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()

    def trees() -> list[int]:
        pods = program.answer("processes")["items"]
        return [process["pid"] for pod in pods for process in pod["tree"]] if len(pods) == 3 else []

    return until(lambda: (found := trees()) and len(found) >= 5 and found, "five processes")


def test_sigterm_ends_everything_and_exits_0(program: Program) -> None:
    process = program.serve_ready()
    with_stubborn_processes(program)

    process.terminate()

    assert process.wait(timeout=30) == 0
    assert processes_below(program.directory) == []
    assert not (program.directory / "endpoint.json").exists()
    assert not (program.directory / "pods").exists()


def test_sigkill_leaves_no_process_behind(program: Program) -> None:
    process = program.serve_ready()
    with_stubborn_processes(program)

    os.kill(process.pid, signal.SIGKILL)

    process.wait(timeout=30)
    until(lambda: processes_below(program.directory) == [], "end of every process")


def test_new_start_is_a_new_cluster_that_sees_nothing_of_the_old(program: Program) -> None:
    def identity() -> str:
        endpoint = json.loads((program.directory / "endpoint.json").read_text())
        request = urllib.request.Request(
            f"{endpoint['url']}/api/v1/namespaces/kube-system",
            headers={"Authorization": f"Bearer {endpoint['admin_token']}"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return str(json.load(response)["metadata"]["uid"])

    first = program.serve_ready()
    before = identity()
    program.answer(
        "submit", "--job", "research/llama", "--workers", "1", "--step-seconds", "0.01", "--gpus", "1"
    )
    checkpoints = program.directory / "hostpaths" / "checkpoints" / "research" / "llama"
    until(lambda: list(checkpoints.glob("step-*/commit_success")), "a checkpoint")
    first.kill()
    first.wait(timeout=30)

    program.serve_ready()

    assert identity() != before
    assert not checkpoints.exists()


def test_large_cluster_is_served_and_breaks_nothing(program: Program) -> None:
    process = program.serve_ready(
        "--large", "--nodes", "20", "--pods", "200", "--changes", "50", "--seed", "7"
    )

    done = program.run("fault", "kill-process", "--job", "research/llama", "--index", "0")

    assert (done.returncode, done.stderr) == (
        1,
        "sim: not-found: a large cluster runs no processes: there is nothing to break\n",
    )
    process.terminate()
    assert process.wait(timeout=30) == 0
