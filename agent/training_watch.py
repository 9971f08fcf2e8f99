"""What is seen of training while the command runs, and told as it is seen: marks, checkpoints, standstill."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional, Protocol

from agent import wire
from agent.checkpoints import FORMATS, CheckpointScan, Found, Seen
from agent.hang import LOOK_SECONDS, HangWatch
from agent.loop import Loop
from agent.progress import Progress, ProgressFile, step_pattern
from agent.run import Run
from agent.settings import Settings


class Tell(Protocol):
    """Report to the desk, as of a run; None = the newest one."""

    def __call__(
        self, type_: str, run: Optional[Run], found: Dict[str, Any], at: Optional[float] = None
    ) -> None: ...


class TrainingWatch:
    """Belongs to the loop's thread.

    Attributes:
        pattern: How a line tells a step where the environment says so, else None.
        checkpoint_step: The highest step of which a committed checkpoint was seen.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        loop: Loop,
        say: Callable[[str], None],
        present_run: Callable[[], Optional[Run]],
        is_first_worker: Callable[[], bool],
        tell: Tell,
    ) -> None:
        """``present_run`` is called from any thread; only the first worker tells of checkpoints."""
        self._settings = settings
        self._loop = loop
        self._say = say
        self._present_run = present_run
        self._is_first_worker = is_first_worker
        self._tell = tell
        self._seen_checkpoints = Seen()
        self._scan: Optional[CheckpointScan] = None
        self._hang = HangWatch(settings.hang_min_seconds)
        self.checkpoint_step: Optional[int] = None
        self.pattern = None
        if settings.step_pattern is not None:
            try:
                self.pattern = step_pattern(settings.step_pattern)
            except ValueError as error:
                say("INCIDENTDESK_STEP_PATTERN: %s; taking the default" % error)

    def start(self) -> None:
        if self._settings.progress_file is not None:
            ProgressFile(self._settings.progress_file, self._present_progress).start()
        if self._settings.checkpoint_dir is not None and self._is_first_worker():
            form = FORMATS.get(self._settings.checkpoint_format)
            if form is None:
                self._say(
                    "INCIDENTDESK_CHECKPOINT_FORMAT=%r is not known (%s): checkpoints are read from log lines only"
                    % (self._settings.checkpoint_format, ", ".join(sorted(FORMATS)))
                )
            else:
                self._scan = CheckpointScan(self._settings.checkpoint_dir, form, self._on_scanned)
                self._scan.start()
        self._loop.later(LOOK_SECONDS, self._look_for_hang)

    def take_mark(self, run: Run, mark: str, found: Dict[str, Any], at: float) -> None:
        self._tell(wire.MARK, run, dict(found, mark=mark), at)

    def take_logged_checkpoint(self, run: Run, found: Dict[str, Any], at: float) -> None:
        if found["state"] == "committed":
            self.checkpoint_step = max(found["step"], self.checkpoint_step or 0)
        if not found["path"]:
            if self._scan is not None:
                self._scan.look_now()  # the line does not say where: the directory does
        elif self._is_first_worker() and self._seen_checkpoints.is_new(found["step"], found["state"]):
            self._tell(wire.CHECKPOINT, run, found, at)

    def _present_progress(self) -> Optional[Progress]:
        """Called from the thread that reads the progress file."""
        run = self._present_run()
        return run.progress if run is not None and not run.has_ended else None

    def _on_scanned(self, found: Found) -> None:
        """Called from the scan's thread."""
        self._loop.post(self._take_scanned, found, time.time())

    def _take_scanned(self, found: Found, at: float) -> None:
        if found.is_committed:
            self.checkpoint_step = max(found.step, self.checkpoint_step or 0)
        message = found.as_message()
        if self._is_first_worker() and self._seen_checkpoints.is_new(found.step, message["state"]):
            self._tell(wire.CHECKPOINT, None, message, at)

    def _look_for_hang(self) -> None:
        self._loop.later(LOOK_SECONDS, self._look_for_hang)
        run = self._present_run()
        if run is None or run.has_ended or run.progress is None or run.process is None:
            return
        found = self._hang.look(run.progress, run.process.started_at, time.time())
        if found is not None:
            self._tell(wire.HANG, run, found)
