"""The trainer as what it is: processes, one a rank."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim import trainer
from tests.sim.conftest import until

CHECKOUT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class World:
    """Starts ranks that share a checkpoint directory; kills what is left at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self.started: list[subprocess.Popen[bytes]] = []
        self.port = free_port()

    def start(self, rank: int, world: int = 3, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"{len(self.started)}.log"
        environment = {
            "PATH": os.environ["PATH"],
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "TRAINER_CHECKPOINT_DIR": str(self.checkpoints),
            "TRAINER_COLLECTIVE_TIMEOUT_SECONDS": "60",
            **env,
        }
        command = [sys.executable, "-m", "sim.trainer", "--step-seconds", "0.01", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment, cwd=CHECKOUT, stdout=output, stderr=output)
        process.log = log  # type: ignore[attr-defined]
        self.started.append(process)
        return process

    def start_all(self, *arguments: str, world: int = 3, **env: str) -> list[subprocess.Popen[bytes]]:
        return [self.start(rank, world, *arguments, **env) for rank in range(world)]


def text_of(process: subprocess.Popen[bytes]) -> str:
    return str(process.log.read_text())  # type: ignore[attr-defined]


def losses(process: subprocess.Popen[bytes]) -> dict[int, str]:
    return {
        int(step): loss for step, loss in re.findall(r"step (\d+)/\d+ \| loss ([\d.]+)", text_of(process))
    }


def ends(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.wait(timeout=30) for process in processes]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for process in world.started:
        process.kill()
        process.wait()


def test_ranks_step_together_and_commit_whole_checkpoints(world: World) -> None:
    ranks = world.start_all("--steps", "12", "--checkpoint-every", "5")

    assert ends(ranks) == [0, 0, 0]
    assert losses(ranks[0]) == losses(ranks[1]) == losses(ranks[2])
    assert sorted(losses(ranks[0])) == list(range(1, 13))
    names = sorted(path.name for path in world.checkpoints.iterdir())
    assert names == ["step-00000005", "step-00000010", "step-00000012"]
    manifest, shards = trainer.read_checkpoint(str(world.checkpoints / "step-00000010"))
    assert (manifest["step"], manifest["world_size"], len(shards)) == (10, 3, 3)
    assert manifest["data_cursor"] == [10 * trainer.BATCH_SAMPLES] * 3
    log = text_of(ranks[0])
    assert re.search(
        r"^\[[\d-]+ [\d:,]+\] \[rank 0\] rendezvous complete: world 3, [\d.]+ s$", log, re.MULTILINE
    )
    assert "starting from step 0, no committed checkpoint" in log
    path = world.checkpoints / "step-00000010"
    assert f"committed checkpoint step 10 to {path}, 3 shards, 12288 bytes" in log


def test_survivors_of_a_killed_peer_block_until_the_collective_times_out(world: World) -> None:
    ranks = world.start_all("--steps", "100000", TRAINER_COLLECTIVE_TIMEOUT_SECONDS="1.5")
    until(lambda: 5 in losses(ranks[1]), "step 5")

    ranks[1].kill()

    assert ends(ranks) == [1, -signal.SIGKILL, 1]
    for rank in (0, 2):
        found = re.search(
            rf"^\[rank{rank}\]: Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, "
            r"OpType=ALLREDUCE, Timeout\(ms\)=1500\) ran for (\d+) milliseconds before timing out\.$",
            text_of(ranks[rank]),
            re.MULTILINE,
        )
        assert found is not None
        assert int(found.group(1)) >= 1500


@pytest.mark.parametrize("dead", [0, 2])
def test_with_reset_survivors_fail_at_once(world: World, dead: int) -> None:
    ranks = world.start_all("--steps", "100000", TRAINER_RESET="1")  # the time-out is 60 s
    until(lambda: 5 in losses(ranks[dead]), "step 5")

    ranks[dead].kill()

    codes = ends(ranks)
    assert [code for rank, code in enumerate(codes) if rank != dead] == [1, 1]
    assert any("Connection closed by peer" in text_of(rank) for rank in ranks)


def test_restart_resumes_from_the_newest_committed_checkpoint(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "whole")
    other.directory.mkdir()
    whole = other.start_all("--steps", "14", "--checkpoint-every", "4")
    assert ends(whole) == [0, 0, 0]
    ranks = world.start_all("--steps", "9", "--checkpoint-every", "4")
    assert ends(ranks) == [0, 0, 0]  # commits 4, 8 and, as its last step, 9
    (world.checkpoints / "step-00000009" / trainer.MARKER).unlink()
    uncommitted = sorted((world.checkpoints / "step-00000009").iterdir())

    again = world.start_all("--steps", "14", "--checkpoint-every", "100")

    assert ends(again) == [0, 0, 0]
    assert f"restored step 8 from {world.checkpoints / 'step-00000008'} in " in text_of(again[2])
    assert losses(again[0]) == {step: loss for step, loss in losses(whole[0]).items() if step > 8}
    assert sorted((world.checkpoints / "step-00000009").iterdir()) == uncommitted


def test_damaged_checkpoint_is_passed_over(world: World) -> None:
    assert ends(world.start_all("--steps", "8", "--checkpoint-every", "4", world=2)) == [0, 0]
    shard = world.checkpoints / "step-00000008" / trainer.shard_name(1, 2)
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")

    again = world.start_all("--steps", "9", world=2)

    assert ends(again) == [0, 0]
    assert "restored step 4 from" in text_of(again[0])
    assert "shard-00001-of-00002.bin does not match its manifest" in text_of(again[0])


def test_checkpoint_of_another_world_size_is_resharded(world: World) -> None:
    assert ends(world.start_all("--steps", "5", world=3)) == [0, 0, 0]

    smaller = world.start_all("--steps", "7", world=2)

    assert ends(smaller) == [0, 0]
    assert "restored step 5 from" in text_of(smaller[1])
    manifest = json.loads((world.checkpoints / "step-00000007" / trainer.MANIFEST).read_text())
    assert manifest["world_size"] == 2


def test_only_the_latest_start_of_a_rank_joins_the_world(world: World) -> None:
    other_size = world.start(1, 2, "--steps", "400")
    first = world.start(1, 3, "--steps", "400")
    until(lambda: "joining" in text_of(first), "the earlier start waits")
    leader = world.start(0, 3, "--steps", "400")
    second = world.start(1, 3, "--steps", "400")
    until(lambda: "joining" in text_of(second), "the latest start joins before the world is whole")
    last = world.start(2, 3, "--steps", "400")

    until(lambda: 3 in losses(leader), "steps")
    assert until(lambda: losses(second) and losses(last), "steps of the latest starts")
    assert losses(first) == losses(other_size) == {}


def test_a_rank_that_comes_late_never_enters_a_formed_world(world: World) -> None:
    ranks = world.start_all("--steps", "100", world=2)
    until(lambda: 2 in losses(ranks[0]), "steps")

    late = world.start(1, 2, "--steps", "100")
    until(lambda: "joining" in text_of(late), "the late one asks")

    assert ends(ranks) == [0, 0]
    assert "rendezvous complete" not in text_of(late)
    assert late.poll() is None


def test_bug_at_a_step_fails_in_each_start_with_a_traceback(world: World) -> None:
    ranks = world.start_all("--steps", "9", "--fail-at-step", "3", "--fail-code", "7", world=1)

    assert ends(ranks) == [7]
    assert "Traceback (most recent call last)" in text_of(ranks[0])
    assert "FloatingPointError: loss is nan at step 3" in text_of(ranks[0])


def test_fault_file_ends_the_rank_once_with_the_code_in_it(world: World, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    (rank,) = world.start_all("--steps", "100000", world=1, SIM_FAULT_FILE=str(fault))
    until(lambda: losses(rank), "steps")

    fault.write_text("43")

    assert rank.wait(timeout=20) == 43
    assert not fault.exists()


def test_hosts_file_names_are_followed_until_they_appear(world: World, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    env = {"SIM_HOSTS_FILE": str(hosts), "MASTER_ADDR": "job-0.job", "POD_IP": "127.0.0.1"}
    ranks = world.start_all("--steps", "3", world=2, **env)
    hosts.write_text("127.0.0.9 job-1 job-1.job\n127.0.0.1 job-0 job-0.job\n")

    assert ends(ranks) == [0, 0]


def test_sigterm_ends_a_rank_that_waits_in_a_collective(world: World) -> None:
    ranks = world.start_all("--steps", "100000", world=2)
    until(lambda: losses(ranks[1]), "steps")
    ranks[0].send_signal(signal.SIGSTOP)  # rank 1 waits for it from now on

    ranks[1].terminate()

    assert ranks[1].wait(timeout=10) == -signal.SIGTERM
