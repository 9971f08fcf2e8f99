"""One start of the command: its process, its output, its progress, and how it ended."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Pattern, Tuple

from agent.output import Matcher, RunOutput, Terminal
from agent.process import Process, ProcessTable, exit_status
from agent.progress import OnCheckpoint, OnMark, Progress


class Run:
    """Belongs to the loop's thread; single attributes may be read by any.

    Attributes:
        sequence: Order that started it; names the attempt in its messages.
        ended_by_order: Its end is ours, so it is nobody's failure and leaves no code of its own.
    """

    def __init__(self, number: int, sequence: int) -> None:
        self.number = number
        self.sequence = sequence
        self.process: Optional[Process] = None
        self.output: Optional[RunOutput] = None
        self.progress: Optional[Progress] = None
        self.exit_code: Optional[int] = None
        self.signal_number: Optional[int] = None
        self.has_ended = False
        self.ended_by_order = False

    @property
    def code(self) -> int:
        """The exit code as a shell would give it."""
        if self.signal_number is not None:
            return 128 + self.signal_number
        return self.exit_code or 0

    @property
    def pid(self) -> Optional[int]:
        return self.process.pid if self.process is not None else None

    @property
    def step(self) -> Optional[int]:
        return self.progress.step if self.progress is not None else None

    def start(
        self,
        argv: List[str],
        env: Dict[str, str],
        table: ProcessTable,
        terminals: Tuple[Terminal, Terminal],
        matcher: Matcher,
        *,
        before: Optional[Run],
        pattern: Optional[Pattern[bytes]],
        on_mark: OnMark,
        on_checkpoint: OnCheckpoint,
        on_exit: Callable[[], None],
    ) -> Optional[str]:
        """Start the command. Returns why that failed, with the exit code set as a shell would, else None.

        Args:
            on_mark, on_checkpoint: Called from the matcher's thread.
            on_exit: Called in the loop when the command, not necessarily its children, has ended.
        """
        self.progress = Progress(on_mark, on_checkpoint, pattern)
        output = RunOutput(
            self.number, terminals, matcher, self.progress.feed, before.output if before is not None else None
        )

        def ended(process: Process) -> None:
            self.exit_code = process.exit_code
            self.signal_number = process.signal_number
            self.has_ended = True
            on_exit()

        try:
            self.process = table.spawn(
                argv, env=env, stdout=output.stdout_fd, stderr=output.stderr_fd, on_exit=ended
            )
        except OSError as error:
            output.discard()
            self.exit_code, sentence = exit_status(error)
            self.has_ended = True
            return "%s: %s" % (argv[0], sentence)
        output.begin()
        self.output = output
        return None

    def process_state(self, is_stopping: bool) -> Dict[str, Any]:
        """wire.ProcessState of this run."""
        found: Dict[str, Any] = {}
        if self.has_ended:
            found["state"] = "exited"
            if self.exit_code is not None:
                found["exit_code"] = self.exit_code
            if self.signal_number is not None:
                found["signal"] = self.signal_number
        elif self.process is None:
            found["state"] = "starting"
        else:
            found["state"] = "stopping" if is_stopping else "running"
        if self.process is not None:
            found["pid"] = self.process.pid
            found["started_at"] = self.process.started_at
        return found

    def end_report(self) -> Dict[str, Any]:
        """Data of its Error or Finish."""
        found: Dict[str, Any] = {"pid": self.pid, "step": self.step}
        if self.code == 0:
            found["exit_code"] = 0
            return found
        if self.signal_number is not None:
            found["signal"] = self.signal_number
        else:
            found["exit_code"] = self.exit_code
        found["log_tail"] = self.output.tail.lines() if self.output is not None else []
        return found
