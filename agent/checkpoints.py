"""Checkpoints as they lie in the checkpoint directory: written, then committed by their format's marker.

Only names and sizes are read, never contents, and nothing is changed. The scan runs in a thread of
its own, because the directory may lie on a mount that hangs.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Pattern, Tuple

SCAN_SECONDS = 1.0
NEWEST_LOOKED_AT = 3

_SHARD = re.compile(r"(?:^|[^0-9])(\d+)-of-(\d+)")


class Format(NamedTuple):
    """How one kind of checkpoint says that it is whole.

    Attributes:
        directory: Name of a checkpoint's directory; its first group is the step.
        marker: File inside that directory, written last; None where there is none.
        tracker: File beside the directories that names the newest whole one; None where there is none.
    """

    directory: Pattern[str]
    marker: Optional[str]
    tracker: Optional[str]


# Names as the writers of these formats choose them; "sharded-manifest" is the documented one of ours.
FORMATS: Dict[str, Format] = {
    "sharded-manifest": Format(re.compile(r"^step-(\d+)$"), "commit_success", None),
    "dcp": Format(re.compile(r"^(?:global_?)?(?:step|iter|checkpoint)[-_]?(\d+)$"), ".metadata", None),
    "megatron": Format(re.compile(r"^iter_(\d+)$"), None, "latest_checkpointed_iteration.txt"),
    "deepspeed": Format(re.compile(r"^global_step(\d+)$"), None, "latest"),
}


class Found(NamedTuple):
    """One checkpoint directory; ``shards_expected`` is None where names do not say it."""

    step: int
    path: str
    is_committed: bool
    size_bytes: int
    shards: int
    shards_expected: Optional[int]

    def as_message(self) -> Dict[str, Any]:
        return {
            "step": self.step,
            "path": self.path,
            "state": "committed" if self.is_committed else "written",
            "bytes": self.size_bytes,
            "shards": self.shards,
            "shards_expected": self.shards_expected,
        }


def scan(directory: str, form: Format) -> List[Found]:
    """The newest checkpoints, highest step first, and always the newest committed one.

    Raises:
        OSError: The directory cannot be read.
    """
    steps: List[Tuple[int, str]] = []
    for name in os.listdir(directory):
        match = form.directory.match(name)
        if match is not None:
            steps.append((int(match.group(1)), name))
    steps.sort(reverse=True)
    newest_whole = _tracked_step(directory, form)
    found: List[Found] = []
    for step, name in steps:
        if len(found) >= NEWEST_LOOKED_AT and any(item.is_committed for item in found):
            break
        try:
            item = _look_at(os.path.join(directory, name), step, form, newest_whole)
        except OSError:
            continue  # pruned by the trainer while we looked
        if len(found) < NEWEST_LOOKED_AT or item.is_committed:
            found.append(item)
    return found


def _look_at(path: str, step: int, form: Format, newest_whole: Optional[int]) -> Found:
    size = shards = 0
    expected: Optional[int] = None
    names = os.listdir(path)
    for name in names:
        if name.endswith(".tmp"):
            continue
        try:
            size += os.stat(os.path.join(path, name)).st_size
        except FileNotFoundError:
            continue
        match = _SHARD.search(name)
        if match is not None:
            shards += 1
            expected = int(match.group(2))
    if form.marker is not None:
        is_committed = form.marker in names
    else:
        is_committed = newest_whole is not None and step <= newest_whole
    return Found(step, path, is_committed, size, shards, expected)


def _tracked_step(directory: str, form: Format) -> Optional[int]:
    if form.tracker is None:
        return None
    try:
        with open(os.path.join(directory, form.tracker), encoding="utf-8", errors="replace") as file:
            match = re.search(r"(\d+)", file.read(256))
    except OSError:
        return None
    return int(match.group(1)) if match is not None else None


class Seen:
    """Which states of which checkpoints were reported already, by log line or by scan."""

    def __init__(self) -> None:
        self._states: Dict[int, str] = {}
        self._lock = threading.Lock()

    def is_new(self, step: int, state: str) -> bool:
        """Whether this is news; a committed checkpoint is never "written" again. Notes it."""
        with self._lock:
            known = self._states.get(step)
            if known in (state, "committed"):
                return False
            self._states[step] = state
            return True


class CheckpointScan(threading.Thread):
    """Looks at the directory each second and tells what is new, the present state first."""

    def __init__(self, directory: str, form: Format, on_found: Callable[[Found], None]) -> None:
        super().__init__(name="checkpoints", daemon=True)
        self._directory = directory
        self._form = form
        self._on_found = on_found
        self._wake = threading.Event()
        self.error: Optional[str] = None

    def look_now(self) -> None:
        self._wake.set()

    def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                found = scan(self._directory, self._form)
                self.error = None
            except OSError as error:
                found = []
                self.error = str(error)
            for item in reversed(found):
                is_whole = item.shards_expected is None or item.shards >= item.shards_expected
                if item.is_committed or (is_whole and item.shards > 0):
                    self._on_found(item)
            self._wake.wait(SCAN_SECONDS)
