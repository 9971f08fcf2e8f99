"""Training progress of one run, read from log lines or from a progress file.

The default patterns know the forms that common trainers print. A step counts when it is higher than
the last one, so that several ranks which print the same step, or an evaluation that counts from one,
change nothing.
"""

from __future__ import annotations

import collections
import json
import os
import re
import threading
import time
from typing import Any, Callable, Deque, Dict, Optional, Pattern, Tuple

from agent import wire

STEADY_STEPS = 10  # wire.MARK_STEADY
STEP_TIMES_KEPT = 20
MAX_STEP = 2**53  # more is no step, and would not survive every reader of JSON
MAX_STEP_SECONDS = 1e7
MAX_PATH = 1000
PROGRESS_FILE_SECONDS = 0.5
PROGRESS_FILE_BYTES = 4096

_NUMBER = rb"(\d+(?:\.\d+)?)"

# One cheap look decides whether a line can say anything at all.
_WORTH = re.compile(rb"step|iter|rendezvous|checkpoint|process group|it/s|evaluati|validati", re.IGNORECASE)

_REBUILT = re.compile(
    rb"rendezvous complete(?:.*?,\s*" + _NUMBER + rb"\s*s\b)?|process group initiali[sz]ed", re.IGNORECASE
)
_RESTORED = re.compile(
    rb"(?:restored|resum(?:ed|ing)|loaded checkpoint)\b.{0,80}?\b(?:step|iteration)[ =:]+(\d+)"
    rb"(?:\s+from\s+(\S+))?(?:\s+in\s+" + _NUMBER + rb"\s*s\b)?",
    re.IGNORECASE,
)
_FRESH = re.compile(rb"start(?:ed|ing) (?:from|at) (?:step|iteration)[ =:]+(\d+)", re.IGNORECASE)
_SAVING = re.compile(rb"\bsaving checkpoint\b(?:.{0,80}?\b(?:step|iteration)[ =:]+(\d+))?", re.IGNORECASE)
_SAVED = re.compile(
    rb"\b(committed|saved|wrote) checkpoint\b.{0,80}?\b(?:step|iteration)[ =:]+(\d+)(?:\s+to\s+([^\s,]+))?"
    rb"(?:,\s*(\d+) shards)?(?:,\s*(\d+) bytes)?",
    re.IGNORECASE,
)
_EVALUATING = re.compile(rb"\b(?:evaluat|validat)(?:ing|ion)\b", re.IGNORECASE)
# A number after "step" is a step where something says so: "step 3301/5000", "iteration 100/ 500",
# "step 12 |", "Step 12, loss", "step 12 loss: 2.3"; and where it is assigned: "global_step=12".
_STEP = re.compile(
    rb"\b(?:global[_ ])?(?:step|iter(?:ation)?)s?(?:\s*[=:]\s*|\s+)(?P<step>\d+)"
    rb"(?=\s*(?:/\s*\d+|[|,;:]|$)|\s+-\s|\s+\w+\s*[=:]|\s+loss)",
    re.IGNORECASE,
)
_STEP_ASSIGNED = re.compile(rb"\b(?:global[_ ])?(?:step|iteration)\s*[=:]\s*(?P<step>\d+)\b", re.IGNORECASE)
_SECONDS = re.compile(
    _NUMBER + rb"\s*(?:s|sec|seconds)\s*/\s*(?:step|it|iter)\b"
    rb"|step[_ ]time(?:\s*\(s\))?\s*[=:]\s*" + _NUMBER + rb"|time per iteration \(ms\)\s*:\s*" + _NUMBER,
    re.IGNORECASE,
)

OnMark = Callable[[str, Dict[str, Any], float], None]
OnCheckpoint = Callable[[Dict[str, Any], float], None]


def step_pattern(text: str) -> Pattern[bytes]:
    """A user's pattern: a regular expression with a group ``step`` and perhaps ``step_seconds``.

    Raises:
        ValueError: It is no regular expression, or has no group ``step``.
    """
    try:
        pattern = re.compile(text.encode())
    except re.error as error:
        raise ValueError("not a regular expression: %s" % error) from error
    if "step" not in pattern.groupindex:
        raise ValueError("it has no group named step, like (?P<step>\\d+)")
    return pattern


class Progress:
    """What one run of the command said about itself.

    ``feed`` belongs to one thread; the attributes may be read by any.

    Attributes:
        step, step_at, step_seconds: Newest step, when it was seen (Unix seconds), its duration.
        saving_since: When the checkpoint that is being written now was begun, else None.
        evaluating_since: When the evaluation that runs since the newest step was begun, else None.
    """

    def __init__(
        self, on_mark: OnMark, on_checkpoint: OnCheckpoint, pattern: Optional[Pattern[bytes]] = None
    ) -> None:
        self._on_mark = on_mark
        self._on_checkpoint = on_checkpoint
        self._pattern = pattern
        self._marked: Dict[str, bool] = {}
        self._first_step: Optional[int] = None
        self._times: Deque[Tuple[int, float]] = collections.deque(maxlen=STEP_TIMES_KEPT)
        self.began_at = time.time()
        self.step: Optional[int] = None
        self.step_at: Optional[float] = None
        self.step_seconds: Optional[float] = None
        self.checkpoint_step: Optional[int] = None
        self.saving_since: Optional[float] = None
        self.evaluating_since: Optional[float] = None
        self.lines = 0

    def feed(self, line: bytes, at: float) -> None:
        """Look at one line of output, seen at Unix time ``at``."""
        self.lines += 1
        if self._pattern is not None:
            match = self._pattern.search(line)
            if match is not None:
                groups = match.groupdict()
                self._take_step_text(groups["step"], groups.get("step_seconds"), at)
                return
        if _WORTH.search(line) is None:
            return
        if self.evaluating_since is None and _EVALUATING.search(line) is not None:
            self.evaluating_since = at  # a higher step on the same line ends it at once
        if self._feed_checkpoint(line, at) or self._feed_start(line, at) or self._pattern is not None:
            return
        match = _STEP.search(line) or _STEP_ASSIGNED.search(line)
        if match is not None:
            self.take_step(int(match.group("step")), _step_seconds(line), at)

    def take_step(self, step: int, step_seconds: Optional[float], at: float) -> None:
        """Note that ``step`` is done. A step that is not higher than the last one changes nothing."""
        if step > MAX_STEP or (self.step is not None and step <= self.step):
            return
        if step_seconds is not None and not 0.0 <= step_seconds <= MAX_STEP_SECONDS:
            step_seconds = None
        self._times.append((step, at))
        self.step_seconds = step_seconds if step_seconds is not None else self._measured()
        self.step, self.step_at, self.evaluating_since = step, at, None
        if self._first_step is None:
            self._first_step = step
            self._mark(wire.MARK_FIRST_STEP, {"step": step}, at)
        if step - self._first_step >= STEADY_STEPS - 1 and self.step_seconds is not None:
            self._mark(wire.MARK_STEADY, {"step": step, "step_seconds": round(self.step_seconds, 6)}, at)

    def _take_step_text(self, step: Optional[bytes], seconds: Optional[bytes], at: float) -> None:
        try:
            number = int(float(step or b""))
            duration = float(seconds) if seconds else None
        except (ValueError, OverflowError):
            return  # the user's group matched something that is no number
        self.take_step(number, duration, at)

    def _feed_checkpoint(self, line: bytes, at: float) -> bool:
        match = _SAVED.search(line)
        if match is not None:
            began, self.saving_since = self.saving_since, None
            step = int(match.group(2))
            if step > MAX_STEP:
                return True
            self.checkpoint_step = max(step, self.checkpoint_step or 0)
            is_committed = match.group(1).lower() == b"committed"
            shards = int(match.group(4)) if match.group(4) else None
            found: Dict[str, Any] = {
                "step": step,
                "path": _text(match.group(3)),
                # "saved" says that a trainer wrote it; only "committed", or the marker, that it is whole
                "state": "committed" if is_committed else "written",
                "bytes": int(match.group(5)) if match.group(5) else None,
                "shards": shards,
                "shards_expected": shards if is_committed else None,
            }
            if began is not None:
                found["seconds"] = round(max(0.0, at - began), 3)
            self._on_checkpoint(found, at)
            return True
        if _SAVING.search(line) is not None:
            self.saving_since = at
            return True
        return False

    def _feed_start(self, line: bytes, at: float) -> bool:
        match = _RESTORED.search(line)
        if match is not None:
            data: Dict[str, Any] = {"step": int(match.group(1))}
            if match.group(2):
                data["checkpoint"] = _text(match.group(2))
            if match.group(3):
                data["seconds"] = float(match.group(3))
            self._mark(wire.MARK_RESTORED, data, at)
            return True
        match = _FRESH.search(line)
        if match is not None:
            self._mark(wire.MARK_RESTORED, {"step": int(match.group(1)), "seconds": 0.0, "fresh": True}, at)
            return True
        match = _REBUILT.search(line)
        if match is not None:
            self._mark(wire.MARK_REBUILT, {"seconds": float(match.group(1))} if match.group(1) else {}, at)
            return True
        return False

    def _mark(self, mark: str, data: Dict[str, Any], at: float) -> None:
        if mark not in self._marked:
            self._marked[mark] = True
            self._on_mark(mark, data, at)

    def _measured(self) -> Optional[float]:
        """Seconds a step over the last steps; None while fewer than two were seen."""
        if len(self._times) < 2:
            return None
        (first_step, first_at), (last_step, last_at) = self._times[0], self._times[-1]
        return max(0.0, last_at - first_at) / (last_step - first_step)


class ProgressFile(threading.Thread):
    """Reads a file that the training writes: a step number, or ``{"step": n, "step_seconds": s}``.

    In a thread of its own, because the file may lie on a mount that hangs.
    """

    def __init__(self, path: str, progress: Callable[[], Optional[Progress]]) -> None:
        super().__init__(name="progress-file", daemon=True)
        self._path = path
        self._progress = progress

    def run(self) -> None:
        seen: Any = None
        seen_for: Optional[Progress] = None
        while True:
            progress = self._progress()
            try:
                state = os.stat(self._path)
                stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
                if progress is not seen_for and progress is not None:
                    seen_for = progress
                    # what lay there before this run began is the progress of the run before
                    seen = stamp if state.st_mtime < progress.began_at else None
                if progress is not None and stamp != seen:
                    self._read(progress, time.time())
                    seen = stamp
            except OSError:
                pass  # not written yet
            time.sleep(PROGRESS_FILE_SECONDS)

    def _read(self, progress: Progress, at: float) -> None:
        with open(self._path, "rb") as file:
            text = file.read(PROGRESS_FILE_BYTES)
        try:
            found = json.loads(text)
            if isinstance(found, dict):
                seconds = found.get("step_seconds")
                progress.take_step(int(found["step"]), float(seconds) if seconds is not None else None, at)
            else:
                progress.take_step(int(found), None, at)
        except (ValueError, TypeError, KeyError, OverflowError):
            pass  # half written: the next look finds it whole


def _step_seconds(line: bytes) -> Optional[float]:
    match = _SECONDS.search(line)
    if match is None:
        return None
    if match.group(3):
        return float(match.group(3)) / 1000.0
    return float(match.group(1) or match.group(2))


def _text(found: Optional[bytes]) -> Optional[str]:
    """A path out of a log line; what no database takes is replaced."""
    if found is None:
        return None
    return "".join(char if char.isprintable() else "?" for char in found.decode("utf-8", "replace"))[
        :MAX_PATH
    ]
