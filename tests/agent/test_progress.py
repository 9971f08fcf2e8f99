"""Reading progress out of log lines and progress files."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent.progress import Progress, ProgressFile, step_pattern
from tests.agent.conftest import until


class Seen:
    def __init__(self, pattern: str | None = None) -> None:
        self.marks: list[tuple[str, dict[str, Any], float]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.progress = Progress(
            lambda mark, data, at: self.marks.append((mark, data, at)),
            lambda data, at: self.checkpoints.append(data),
            step_pattern(pattern) if pattern else None,
        )

    def feed(self, *lines: str, every: float = 1.0) -> "Seen":
        for number, line in enumerate(lines):
            self.progress.feed(line.encode(), 100.0 + number * every)
        return self


@pytest.mark.parametrize(
    ("line", "step", "seconds"),
    [
        ("[2026-11-29 14:02:31,123] [rank 0] step 3301/5000 | loss 2.3112 | 0.200 s/step", 3301, 0.2),
        (" iteration      100/     500 | elapsed time per iteration (ms): 250.5 | lm loss: 6.1", 100, 0.2505),
        ("INFO global_step=12 loss=2.3", 12, None),
        (
            "{'global_step': 12, 'loss': 2.3}",
            None,
            None,
        ),  # not one of the forms: a pattern or a file is for this
        ("Step 12, loss 3.4, step_time: 0.31", 12, 0.31),
        ("step: 12", 12, None),
        ("step 12", 12, None),
        ("train step 12 loss: 2.3", 12, None),
        ("next step 2 is to read the manual", None, None),
        ("loading step functions", None, None),
        ("evaluating 12/100", None, None),
    ],
)
def test_forms_of_a_step(line: str, step: int | None, seconds: float | None) -> None:
    seen = Seen().feed(line)
    assert seen.progress.step == step
    if seconds is not None:
        assert seen.progress.step_seconds == pytest.approx(seconds)


def test_steady_after_ten_steps_with_a_measured_step_time() -> None:
    seen = Seen().feed(*(f"step {n}/99" for n in range(41, 50)), every=0.5)
    assert [mark for mark, _data, _at in seen.marks] == ["first_step"]
    seen = Seen().feed(*(f"step {n}/99" for n in range(41, 51)), every=0.5)
    mark, data, at = seen.marks[-1]
    assert (mark, data["step"], at) == ("steady", 50, 104.5)
    assert data["step_seconds"] == pytest.approx(0.5)


def test_ranks_that_print_the_same_step_and_evaluation_that_counts_anew_change_nothing() -> None:
    seen = Seen().feed("step 7/9", "step 7/9", "step 1/3", "step 8/9")
    assert [item for item in seen.marks if item[0] == "first_step"] == [("first_step", {"step": 7}, 100.0)]
    assert (seen.progress.step, seen.progress.step_at) == (8, 103.0)


def test_start_lines() -> None:
    seen = Seen().feed(
        "[rank 0] rendezvous complete: world 3, 0.21 s",
        "[rank 0] starting from step 0, no committed checkpoint",
        "[rank 1] rendezvous complete: world 3, 0.25 s",
    )
    assert seen.marks == [
        ("rebuilt", {"seconds": 0.21}, 100.0),
        ("restored", {"step": 0, "seconds": 0.0, "fresh": True}, 101.0),
    ]
    assert seen.progress.step is None, "the step that it starts from is none that it did"


def test_checkpoint_lines_are_no_steps() -> None:
    seen = Seen().feed("[rank 0] saving checkpoint step 3400")
    assert (seen.progress.step, seen.progress.saving_since) == (None, 100.0)
    seen.feed("[rank 0] committed checkpoint step 3400 to /c/step-00003400, 3 shards, 12288 bytes")
    assert (seen.progress.step, seen.progress.saving_since, seen.progress.checkpoint_step) == (
        None,
        None,
        3400,
    )
    assert seen.checkpoints == [
        {
            "step": 3400, "path": "/c/step-00003400", "state": "committed",
            "bytes": 12288, "shards": 3, "shards_expected": 3, "seconds": 0.0,
        }
    ]  # fmt: skip


def test_numbers_that_no_reader_takes_are_none() -> None:
    seen = Seen().feed("step 99999999999999999999/9", f"step 4/9 | {'9' * 400} s/step")
    assert (seen.progress.step, seen.progress.step_seconds) == (4, None)
    seen.feed("committed checkpoint step 99999999999999999999 to /c")
    assert seen.checkpoints == []


def test_saved_is_written_only() -> None:
    seen = Seen().feed("saved checkpoint for iteration 500 to /c/iter_0000500")
    assert [item["state"] for item in seen.checkpoints] == ["written"]


def test_pattern_of_the_user_replaces_the_default_steps() -> None:
    seen = Seen(r"done=(?P<step>\d+) in (?P<step_seconds>[\d.]+)").feed("step 5/9", "done=17 in 0.4")
    assert (seen.progress.step, seen.progress.step_seconds) == (17, 0.4)
    assert seen.feed("rendezvous complete: world 2, 0.1 s").marks[-1][0] == "rebuilt"


@pytest.mark.parametrize("text", ["(", r"step (\d+)"])
def test_pattern_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|group named step"):
        step_pattern(text)


def test_progress_file_counts_only_what_this_run_wrote(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text("99")
    old = path.stat().st_mtime - 60
    os.utime(path, (old, old))
    seen = Seen()
    ProgressFile(str(path), lambda: seen.progress).start()
    fresh = tmp_path / "fresh"
    fresh.write_text('{"step": 12, "step_seconds": 0.5}')
    fresh.rename(path)
    until(lambda: seen.progress.step is not None)
    assert (seen.progress.step, seen.progress.step_seconds) == (12, 0.5)
    path.write_text("13")
    until(lambda: seen.progress.step == 13)
