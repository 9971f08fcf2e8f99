"""What a checkpoint directory says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent import wire
from agent.checkpoints import FORMATS, Seen, scan
from tests.agent.conftest import AgentProcess
from tests.agent.fake_desk import FakeDesk


def make(directory: Path, step: int, shards: int, world: int, marker: bool) -> Path:
    path = directory / f"step-{step:08d}"
    path.mkdir()
    for rank in range(shards):
        (path / f"shard-{rank:05d}-of-{world:05d}.bin").write_bytes(b"x" * 100)
    if shards == world:
        (path / "manifest.json").write_bytes(b"{}")
    if marker:
        (path / "commit_success").touch()
    return path


def test_marker_makes_it_committed_and_the_newest_committed_is_always_there(tmp_path: Path) -> None:
    make(tmp_path, 100, 3, 3, marker=True)
    make(tmp_path, 200, 3, 3, marker=True)
    for step in (300, 400, 500):
        make(tmp_path, step, 1, 3, marker=False)
    make(tmp_path, 600, 3, 3, marker=False)
    (tmp_path / "notes.txt").touch()
    found = scan(str(tmp_path), FORMATS["sharded-manifest"])
    assert [(item.step, item.is_committed) for item in found] == [
        (600, False), (500, False), (400, False), (200, True)
    ]  # fmt: skip
    assert (found[0].shards, found[0].shards_expected, found[0].size_bytes) == (3, 3, 302)
    assert (found[1].shards, found[1].shards_expected) == (1, 3)


@pytest.mark.parametrize(
    ("name", "tracker", "directories"),
    [
        ("megatron", "latest_checkpointed_iteration.txt", ["iter_0000100", "iter_0000200", "iter_0000300"]),
        ("deepspeed", "latest", ["global_step100", "global_step200", "global_step300"]),
    ],
)
def test_tracker_file_names_the_newest_whole_one(
    tmp_path: Path, name: str, tracker: str, directories: list[str]
) -> None:
    for directory in directories:
        (tmp_path / directory).mkdir()
    (tmp_path / tracker).write_text("200" if name == "megatron" else "global_step200")
    found = scan(str(tmp_path), FORMATS[name])
    assert [(item.step, item.is_committed) for item in found] == [(300, False), (200, True), (100, True)]


def test_state_is_news_once() -> None:
    seen = Seen()
    assert seen.is_new(100, "written")
    assert not seen.is_new(100, "written")
    assert seen.is_new(100, "committed")
    assert not seen.is_new(100, "written")
    assert not seen.is_new(100, "committed")


def test_worker_0_reports_what_lies_there_and_what_comes(
    desk: FakeDesk, start: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    make(directory, 100, 2, 2, marker=True)
    start("--", "sleep", "1000", desk=desk, INCIDENTDESK_CHECKPOINT_DIR=str(directory))
    desk.wait_for_message(wire.CHECKPOINT, step=100, state="committed")
    path = make(directory, 200, 2, 2, marker=False)
    desk.wait_for_message(wire.CHECKPOINT, step=200, state="written")
    (path / "commit_success").touch()
    desk.wait_for_message(wire.CHECKPOINT, step=200, state="committed")
    assert len(desk.of(wire.CHECKPOINT)) == 3


def test_other_workers_report_none(
    desk: FakeDesk, start: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    desk.enrol_answers.append(desk.enrolled(worker={"role": "worker", "index": 1}))
    make(tmp_path, 100, 2, 2, marker=True)
    start("-c", "echo 'committed checkpoint step 100 to /c'; sleep 1000", desk=desk, JOB_COMPLETION_INDEX="1",
          INCIDENTDESK_CHECKPOINT_DIR=str(tmp_path))  # fmt: skip
    desk.run_command()
    desk.wait_for(lambda: desk.polls[-1]["checkpoint_step"] == 100)
    seen = len(desk.polls)
    desk.wait_for(lambda: any(poll["unsent"] == 0 for poll in desk.polls[seen:]))
    assert desk.of(wire.CHECKPOINT) == []
