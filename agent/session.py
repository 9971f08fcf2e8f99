"""The session: what the agent does, and when. One state machine, all of it in the loop's thread.

Inner phases (as the desk shows them): Pending (waits at the barrier), BootChecking, RunCommand,
Troubleshooting (stopped by order, waits for the next), Succeeded (keeps the container for the
others), Failed (the command ended in error, waits for an order).

Without protection the agent is transparent: it starts the command at once and leaves with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

from agent import wire
from agent.channel import Channel
from agent.checkpoints import FORMATS, CheckpointScan, Found, Seen
from agent.checks import MOUNT_PROBE_ARGV, KernelLog, QuickSet
from agent.environment import report as environment_report
from agent.hang import LOOK_SECONDS as HANG_LOOK_SECONDS
from agent.hang import HangWatch
from agent.loop import Loop, Timer
from agent.outbox import Outbox
from agent.output import Matcher, Notes, Terminal
from agent.process import ProcessTable, Stopped
from agent.progress import Progress, ProgressFile, step_pattern
from agent.run import Run
from agent.runner import Runner
from agent.settings import Settings

# Defaults of waiting times (seconds) until the desk or the environment tells others; DOMAIN 3, DESIGN 3.
ORDER_WAIT_SECONDS = 20.0
NO_CONTACT_SECONDS = 60.0
FINISH_WAIT_SECONDS = 300.0
STOP_GRACE_SECONDS = 5.0

TAIL_SECONDS = 0.1  # an end is reported after so long at most, even if its last lines are stuck
FLUSH_SECONDS = 0.5  # the exit is delayed by reports for so long at most
DRAIN_STOPPED_SECONDS = 2.0  # output after a stop: somebody waits for us, so not for a stuck reader
NOTES_SECONDS = 0.1
PAUSED_SECONDS = 2.0  # a wait that ran out so much too late is granted so much again

FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

PENDING = "Pending"
BOOT_CHECKING = "BootChecking"
RUN_COMMAND = "RunCommand"
TROUBLESHOOTING = "Troubleshooting"
SUCCEEDED = "Succeeded"
FAILED = "Failed"


class Session:
    """Everything between the command, the desk and the kubelet."""

    def __init__(
        self,
        *,
        argv: List[str],
        settings: Settings,
        loop: Loop,
        table: ProcessTable,
        terminals: Tuple[Terminal, Terminal],
        notes: Notes,
        outbox: Outbox,
    ) -> None:
        self._argv = argv
        self._settings = settings
        self._loop = loop
        self._table = table
        self._terminals = terminals
        self._notes = notes
        self._outbox = outbox
        self._matcher = Matcher()
        self._runner = Runner(loop, table, settings.command_env({}))
        self._quick = QuickSet(
            self._runner,
            self._runner.keep(MOUNT_PROBE_ARGV),
            settings.command_env({}),
            KernelLog(),
            settings.checkpoint_dir,
        )
        self._channel: Optional[Channel] = None
        self._limits: Dict[str, float] = {}
        self._pattern = None
        if settings.step_pattern is not None:
            try:
                self._pattern = step_pattern(settings.step_pattern)
            except ValueError as error:
                notes.say("INCIDENTDESK_STEP_PATTERN: %s; taking the default" % error)

        self.inner = PENDING
        self.job = ""
        self.worker: Optional[wire.WorkerName] = None
        self.protected = False
        self.is_transparent_by_start = False  # until the next start of the agent, whatever the desk says
        self._is_enrolled = False
        self._is_fenced = False
        self._is_terminating = False
        self._is_leaving = False
        self.sequence = 0  # of the order carried out last
        self._order: Optional[wire.Message] = None  # the order that is being carried out
        self._run: Optional[Run] = None
        self._run_count = 0
        self._waits_for: Optional[str] = None
        self._wait_until = 0.0
        self._extended_until = 0.0
        self._wait_timer: Optional[Timer] = None
        self._began = time.monotonic()
        self._seen_checkpoints = Seen()
        self._scan: Optional[CheckpointScan] = None
        self._hang = HangWatch(settings.hang_min_seconds)
        self._checkpoint_step: Optional[int] = None
        self._environment: Optional[Dict[str, Any]] = None
        self._on_environment: List[Callable[[], None]] = []
        self.exit_code = 0

    # Start

    def begin(self, channel: Optional[Channel], why_not: Optional[str]) -> None:
        """Start with the desk, or, where there is none, the command at once.

        Args:
            channel: None where no desk is configured, with the reason in ``why_not``.
        """
        for number in FORWARDED_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.on_signal(number, self._forward)
        self._loop.on_signal(signal.SIGTERM, lambda _number: self._terminate())
        self._start_watching()
        if channel is None:
            if why_not is not None:
                self._notes.say("%s; running unprotected" % why_not)
            self._run_transparently()
            return
        self._channel = channel
        self._look_at_environment()
        channel.start()
        self._loop.later(self._no_contact_seconds(), self._look_for_contact)

    def _start_watching(self) -> None:
        if self._settings.progress_file is not None:
            ProgressFile(self._settings.progress_file, self._present_progress).start()
        if self._settings.checkpoint_dir is not None and self._is_first_worker():
            form = FORMATS.get(self._settings.checkpoint_format)
            if form is None:
                self._notes.say(
                    "INCIDENTDESK_CHECKPOINT_FORMAT=%r is not known (%s): checkpoints are read from log lines only"
                    % (self._settings.checkpoint_format, ", ".join(sorted(FORMATS)))
                )
            else:
                self._scan = CheckpointScan(self._settings.checkpoint_dir, form, self._on_scanned)
                self._scan.start()
        self._loop.later(HANG_LOOK_SECONDS, self._look_for_hang)

    def _is_first_worker(self) -> bool:
        """Only worker 0 reports checkpoints: they lie in one place and would be told once by each."""
        index = self.worker["index"] if self.worker is not None else self._settings.index
        return index in (None, 0)

    def _look_at_environment(self) -> None:
        def look() -> None:
            found = environment_report(self._runner, self._settings.command_env({}))
            self._loop.post(done, found)

        def done(found: Dict[str, Any]) -> None:
            self._environment = found
            waiting, self._on_environment = self._on_environment, []
            for call in waiting:
                call()

        threading.Thread(target=look, name="environment", daemon=True).start()

    # What the desk says

    def on_enrolled(self, answer: wire.EnrolResponse) -> None:
        """An enrolment was answered with anything but "again"."""
        status = answer.get("status")
        self._limits.update(cast("Dict[str, float]", answer.get("limits") or {}))
        if answer.get("token"):
            self._is_enrolled = True
            self.job = answer.get("job", "")
            self.worker = answer.get("worker")
            namespace, _slash, name = self.job.rpartition("/")
            self._outbox.name(
                job=name, namespace=namespace or self._settings.namespace, pod=self._settings.pod_name
            )
            if self.sequence == 0:
                self.sequence = int(answer.get("sequence", 0))
        if status == wire.ENROLLED:
            self._set_protected(bool(answer.get("protected")))
            return
        if not self.is_transparent_by_start:
            self._notes.say(
                "%s: %s; running unprotected" % (status, answer.get("reason") or "no reason told")
            )
        self._run_transparently()

    def on_poll(self, answer: wire.PollResponse) -> None:
        """A poll was answered: limits, protection, directive and orders, in this order."""
        self._limits.update(cast("Dict[str, float]", answer.get("limits") or {}))
        if self._is_fenced or self._is_leaving:
            return
        directive = answer.get("directive")
        if directive == wire.EXTEND_WAIT:  # kept also for a wait that has not begun yet
            self._extended_until = time.monotonic() + float(answer.get("extend_seconds") or 0.0)
            self._wait_until = max(self._wait_until, self._extended_until)
        if directive == wire.RUN_UNPROTECTED and not self.is_transparent_by_start:
            self._notes.say("told to run unprotected until the next start")
            self._run_transparently(restart=True)
        if "protected" in answer:
            self._set_protected(bool(answer["protected"]))
        newest: Optional[wire.Message] = None
        for order in answer.get("orders") or []:
            if order.get("sequence", 0) > self.sequence and (
                newest is None or order["sequence"] > newest["sequence"]
            ):
                newest = order
        if newest is not None and not self._is_transparent and not self._is_leaving:
            self._obey(newest)
            if directive == wire.EXTEND_WAIT:  # told with the order, so it is for the wait after it
                self._extended_until = time.monotonic() + float(answer.get("extend_seconds") or 0.0)

    def on_fenced(self) -> None:
        """A newer incarnation of this worker exists: obey nothing, leave the process alone."""
        self._is_fenced = True
        self._notes.say("a newer start of this worker exists; taking no more orders")
        self._order = None
        if not self._is_running and not self._table.is_stopping:
            self._leave_waiting()

    def poll_state(self) -> Dict[str, Any]:
        """What each poll tells; called from the poll thread, reads single attributes only."""
        run = self._run
        progress = run.progress if run is not None else None
        return {
            "inner_phase": self.inner,
            "sequence": self.sequence,
            "process": run.process_state(self._table.is_stopping) if run is not None else {"state": "none"},
            "step": progress.step if progress is not None else None,
            "step_at": progress.step_at if progress is not None else None,
            "step_seconds": progress.step_seconds if progress is not None else None,
            "checkpoint_step": self._checkpoint_step,
            "skipped_bytes": self._matcher.skipped_bytes,
        }

    @property
    def _is_transparent(self) -> bool:
        return self.is_transparent_by_start or not self.protected or self._is_fenced

    @property
    def _is_running(self) -> bool:
        return self._run is not None and not self._run.has_ended

    def _set_protected(self, protected: bool) -> None:
        was = self.protected
        self.protected = protected
        if protected or self.is_transparent_by_start or self._is_leaving:
            return
        if self._run is None:
            self._start_command(self.sequence, {})
        elif was and self._waits_for is not None:
            self._leave_waiting()

    def _run_transparently(self, restart: bool = False) -> None:
        """Start the command if none was started; the agent leaves with it, until the agent's next start.

        Args:
            restart: All workers are told so: one that was stopped or ended in error starts again too.
                Otherwise it leaves, because one rank alone is never restarted.
        """
        self.is_transparent_by_start = True
        if self._is_leaving or self._is_running:
            return
        if self._run is None or (restart and self.inner in (FAILED, TROUBLESHOOTING)):
            self._order = None
            self._stop_waiting()
            self._table.stop(0.0, lambda _stopped: self._start_command(self.sequence, {}))
        elif self._waits_for is not None:
            self._leave_waiting()

    def _look_for_contact(self) -> None:
        """No contact for too long and nothing was ever started: training does not wait for the desk."""
        if self._run is not None or self._is_leaving:
            return
        last = self._channel.last_contact if self._channel is not None else None
        left = (last if last is not None else self._began) + self._no_contact_seconds() - time.monotonic()
        if left > 0:
            self._loop.later(left, self._look_for_contact)
            return
        self._notes.say("no contact to the desk for %g s; running unprotected" % self._no_contact_seconds())
        self._run_transparently()

    # Orders

    def _obey(self, order: wire.Message) -> None:
        """Carry out an order; whatever an older one still waits for is no longer waited for."""
        self.sequence = order["sequence"]
        self._order = order
        self._stop_waiting()
        self._extended_until = 0.0
        content = order.get("data") or {}
        phase = order.get("phase")
        if phase == wire.BOOTCHECK:
            self._obey_bootcheck(order)
        elif phase == wire.COMMAND:
            self._obey_command(order, content)
        elif phase == wire.TROUBLESHOOT and content.get("finish"):
            self._obey_finish()
        elif phase == wire.TROUBLESHOOT and content.get("exit"):
            self._obey_exit(order, content)
        elif phase == wire.TROUBLESHOOT:
            self._obey_troubleshoot(order, content)
        else:
            self._notes.say("order %d has a phase that this agent does not know: %r" % (self.sequence, phase))
            self._order = None
            if self._run is not None and not self._is_running:
                self._wait("order", self._limit("order_wait_seconds", ORDER_WAIT_SECONDS))

    def _obey_bootcheck(self, order: wire.Message) -> None:
        if not self._is_running:
            self.inner = BOOT_CHECKING
        results: List[List[wire.CheckResult]] = []

        def done() -> None:
            if self._order is order and results and self._environment is not None:
                self._ack(order, {"environment": self._environment, "checks": results[0]})
                if self._run is not None and not self._is_running:
                    self._wait("order", self._limit("order_wait_seconds", ORDER_WAIT_SECONDS))

        def checked(found: List[wire.CheckResult]) -> None:
            results.append(found)
            done()

        self._check(checked)
        if self._environment is None:
            self._on_environment.append(done)

    def _obey_command(self, order: wire.Message, content: Dict[str, Any]) -> None:
        def stopped(found: Stopped) -> None:
            if self._order is not order:
                return
            if found.left:
                self._notes.say("processes %s cannot be stopped; starting nothing beside them" % found.left)
                self._order = None
                self._wait("order", self._limit("order_wait_seconds", ORDER_WAIT_SECONDS))
                return
            self._start_command(order["sequence"], content)

        self._mark_stop()
        self._table.stop(self._grace(content), stopped)

    def _obey_troubleshoot(self, order: wire.Message, content: Dict[str, Any]) -> None:
        answer: Dict[str, Any] = {"step": self._run.step if self._run is not None else None}
        missing = {"checks"}

        def done(part: str, found: Any) -> None:
            answer[part] = found
            missing.discard(part)
            if missing or self._order is not order:
                return
            self._ack(order, answer)
            if not self._is_running:
                self._wait("order", self._limit("order_wait_seconds", ORDER_WAIT_SECONDS))

        self._check(lambda found: done("checks", found))
        if content.get("stop"):
            self.inner = TROUBLESHOOTING
            missing.add("stopped")
            self._mark_stop()
            self._table.stop(self._grace(content), lambda stopped: done("stopped", _stop_report(stopped)))

    def _obey_exit(self, order: wire.Message, content: Dict[str, Any]) -> None:
        self.inner = TROUBLESHOOTING
        code = content.get("code")
        if not isinstance(code, int) or not 0 < code < 256:
            code = wire.EXIT_ORDERED
        reason = str(content.get("reason") or "no reason told")

        def stopped(found: Stopped) -> None:
            if self._order is order:
                self._ack(order, {"checks": [], "stopped": _stop_report(found), "exit": code})
                self._leave(code, "ended by order %d: %s" % (order["sequence"], reason))

        self._mark_stop()
        self._table.stop(self._grace(content), stopped)

    def _obey_finish(self) -> None:
        if self._is_running:
            self._notes.say("told to finish while the command runs; going on")
            return
        self._leave(0)

    def _mark_stop(self) -> None:
        """From here on the command's end is ours: collect what ended by itself just before."""
        self._table.reap()
        if self._run is not None and not self._run.has_ended:
            self._run.ended_by_order = True

    def _ack(self, order: wire.Message, content: Dict[str, Any]) -> None:
        self._order = None
        self._outbox.put(wire.ACK, order["phase"], order["sequence"], content)

    def _check(self, done: Callable[[List[wire.CheckResult]], None], keep: bool = False) -> None:
        def work() -> None:
            self._loop.post(done, self._quick.results(keep))

        threading.Thread(target=work, name="quick", daemon=True).start()

    # The command

    def _start_command(self, sequence: int, content: Dict[str, Any]) -> None:
        if self._is_leaving or self._is_terminating or self._is_running:
            return
        self._stop_waiting()
        before = self._run
        self._run_count += 1
        run = self._run = Run(self._run_count, sequence)
        self.inner = RUN_COMMAND
        problem = run.start(
            self._argv,
            self._settings.command_env(_order_env(content)),
            self._table,
            self._terminals,
            self._matcher,
            before=before,
            pattern=self._pattern,
            on_mark=lambda mark, found, at: self._loop.post(self._on_mark, run, mark, found, at),
            on_checkpoint=lambda found, at: self._loop.post(self._on_logged_checkpoint, run, found, at),
            on_exit=lambda: self._on_command_exit(run),
        )
        if problem is not None or run.process is None:
            self._order = None
            self._notes.say(str(problem))
            self._report_end(run)
            return
        pids = {"agent": os.getpid(), "command": run.process.pid}
        if self._order is not None:
            self._ack(self._order, {"pids": pids, "started_at": run.process.started_at})
        self._tell(wire.MARK, run, {"mark": wire.MARK_STARTED, "pids": pids}, run.process.started_at)

    def _on_command_exit(self, run: Run) -> None:
        if run is not self._run or run.ended_by_order or self._is_leaving:
            return
        if self._is_terminating:
            self._leave(run.code)
            return
        once = _Once(lambda: self._report_end(run))
        if run.output is not None:
            # first the marks that its last lines hold, then its end
            run.output.when_seen(lambda: self._loop.post(once.call))
        self._loop.later(TAIL_SECONDS, once.call)

    def _report_end(self, run: Run) -> None:
        """Tell that the command ended by itself, then wait or leave."""
        if self._is_leaving:
            return
        found = run.end_report()
        if run.code != 0:
            errors, kills = self._quick.kernel_lines()
            if errors or kills:
                found["kernel_log"] = errors + kills
        self._tell(wire.FINISH if run.code == 0 else wire.ERROR, run, found)
        if self._is_terminating or self._is_transparent:
            self._leave(run.code)
        elif run is not self._run or self._order is not None or self._table.is_stopping:
            return  # an order came meanwhile and has taken over
        elif run.code == 0:
            self.inner = SUCCEEDED
            self._wait("finish", self._limit("finish_wait_seconds", FINISH_WAIT_SECONDS))
        else:
            self.inner = FAILED
            self._wait("order", self._limit("order_wait_seconds", ORDER_WAIT_SECONDS))

    def _tell(self, type_: str, run: Run, found: Dict[str, Any], at: Optional[float] = None) -> None:
        if self._channel is not None:
            self._outbox.put(type_, wire.COMMAND, run.sequence, found, at)

    # Progress

    def _present_progress(self) -> Optional[Progress]:
        run = self._run
        return run.progress if run is not None and not run.has_ended else None

    def _on_mark(self, run: Run, mark: str, found: Dict[str, Any], at: float) -> None:
        self._tell(wire.MARK, run, dict(found, mark=mark), at)

    def _on_logged_checkpoint(self, run: Run, found: Dict[str, Any], at: float) -> None:
        if found["state"] == "committed":
            self._checkpoint_step = max(found["step"], self._checkpoint_step or 0)
        if not found["path"]:
            if self._scan is not None:
                self._scan.look_now()  # the line does not say where: the directory does
        elif self._is_first_worker() and self._seen_checkpoints.is_new(found["step"], found["state"]):
            self._tell(wire.CHECKPOINT, run, found, at)

    def _on_scanned(self, found: Found) -> None:
        """Called from the scan's thread."""
        self._loop.post(self._take_scanned, found, time.time())

    def _take_scanned(self, found: Found, at: float) -> None:
        if found.is_committed:
            self._checkpoint_step = max(found.step, self._checkpoint_step or 0)
        message = found.as_message()
        if self._is_first_worker() and self._seen_checkpoints.is_new(found.step, message["state"]):
            if self._channel is not None:
                self._outbox.put(wire.CHECKPOINT, wire.COMMAND, self._run_sequence(), message, at)

    def _run_sequence(self) -> int:
        return self._run.sequence if self._run is not None else self.sequence

    def _look_for_hang(self) -> None:
        self._loop.later(HANG_LOOK_SECONDS, self._look_for_hang)
        run = self._run
        if run is None or run.has_ended or run.progress is None or run.process is None:
            return
        found = self._hang.look(run.progress, run.process.started_at, time.time())
        if found is not None:
            self._tell(wire.HANG, run, found)

    # Signals from outside

    def _forward(self, number: int) -> None:
        """Pass a signal on to the command; with none running it ends a wait."""
        run = self._run
        if run is not None and not run.has_ended and run.process is not None:
            try:
                os.kill(run.process.pid, number)
            except ProcessLookupError:
                pass
        elif number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            self._terminate(number)

    def _terminate(self, number: int = signal.SIGTERM) -> None:
        """The kubelet's SIGTERM wins over every order and wait.

        The command gets it and keeps all the time that the kubelet grants: the kubelet, not the
        agent, kills at the end of the grace period. A stop that already runs goes on as ordered.
        """
        if self._is_leaving:
            # Somebody waits for us now: a reader who takes no output is not waited for any longer.
            self._loop.later(DRAIN_STOPPED_SECONDS, self._flush, 0.0)
            return
        self._is_terminating = True
        self._order = None
        self._stop_waiting()
        run = self._run
        if run is not None and not run.has_ended:
            run.ended_by_order = False
            if not self._table.is_stopping:
                self._table.send(number)
        elif run is None or run.ended_by_order:
            self._leave(128 + number)
        else:
            self._leave(run.code)

    # Waiting and leaving

    def _wait(self, what: str, seconds: float) -> None:
        if self._is_transparent:
            self._leave_waiting()
            return
        self._waits_for = what
        self._wait_until = max(time.monotonic() + seconds, self._extended_until)
        self._wait_timer = self._loop.later(seconds, self._look_at_wait)

    def _stop_waiting(self) -> None:
        self._waits_for = None
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None

    def _look_at_wait(self) -> None:
        if self._waits_for is None:
            return
        left = self._wait_until - time.monotonic()
        if left > 0:
            self._wait_timer = self._loop.later(left, self._look_at_wait)
            return
        if left < -PAUSED_SECONDS:
            # The agent itself stood still (stopped, or its machine asleep): what came meanwhile is unread.
            self._wait_until = time.monotonic() + PAUSED_SECONDS
            self._wait_timer = self._loop.later(PAUSED_SECONDS, self._look_at_wait)
            return
        if self._waits_for == "order":
            self._notes.say("no order came in time")
        self._leave_waiting()

    def _leave_waiting(self) -> None:
        """Leave with the command's own code, or with one of ours where it has none."""
        run = self._run
        if run is None or run.ended_by_order:
            why = "a newer start of this worker exists" if self._is_fenced else "no order came"
            self._leave(wire.EXIT_ORDER_WAIT, why + "; the command left no code of its own")
        else:
            self._leave(run.code)

    def _leave(self, code: int, reason: Optional[str] = None) -> None:
        """End what is left, pass on the last output, send what may be sent quickly, exit.

        Args:
            reason: Where the code is the agent's own: for the termination message.
        """
        if self._is_leaving:
            return
        self._is_leaving = True
        self._stop_waiting()
        self._order = None
        self.exit_code = code
        if reason is not None:
            self._notes.say("exit %d: %s" % (code, reason))
            self._settings.write_termination_message("deskagent: exit %d: %s\n" % (code, reason))
        is_waited_for = self._is_terminating or reason is not None
        self._table.stop(0.0, lambda _stopped: self._drain(is_waited_for))

    def _drain(self, is_waited_for: bool) -> None:
        seconds = self._settings.flush_seconds
        flush_until = time.monotonic() + (FLUSH_SECONDS if seconds is None else seconds)
        once = _Once(lambda: self._flush(flush_until))
        if self._run is not None and self._run.output is not None:
            self._run.output.when_empty(lambda: self._loop.post(once.call))
        else:
            once.call()
        if is_waited_for:
            self._loop.later(DRAIN_STOPPED_SECONDS, once.call)

    def _flush(self, until: float) -> None:
        def finish() -> None:
            self._notes.flush(NOTES_SECONDS)
            self._loop.post(self._loop.stop)

        def work() -> None:
            if self._channel is not None and self._channel.can_send:
                self._outbox.wait_until_empty(max(0.0, until - time.monotonic()))
            finish()

        threading.Thread(target=work, name="flush", daemon=True).start()

    # For the control socket

    def status(self) -> Dict[str, Any]:
        """The present state, for people inside the container."""
        found = self.poll_state()
        channel = self._channel
        last = channel.last_contact if channel is not None else None
        found.update(
            job=self.job or None,
            worker=dict(self.worker) if self.worker is not None else None,
            protected=not self._is_transparent,
            enrolled=self._is_enrolled,
            agent_pid=os.getpid(),
            runs=self._run_count,
            waits_for=self._waits_for,
            waits_seconds=(
                round(self._wait_until - time.monotonic(), 3) if self._waits_for is not None else None
            ),
            unsent=self._outbox.unsent,
            dropped=self._outbox.dropped,
            seconds_since_contact=round(time.monotonic() - last, 3) if last is not None else None,
            python=sys.version.split()[0],
        )
        return found

    def quit(self, reason: str, at_safe_point: bool) -> Optional[str]:
        """Ask the desk to stop the job. Returns why that is impossible, else None."""
        if self._channel is None or not self._is_enrolled:
            return "this agent is not enrolled with a desk; send SIGTERM to stop the container"
        self._outbox.put(
            wire.QUIT,
            wire.COMMAND,
            self._run_sequence(),
            {"reason": reason, "at_safe_point": at_safe_point},
        )
        return None

    def check(self, done: Callable[[List[wire.CheckResult]], None]) -> None:
        """Run the quick set now, for a person: what is news for the desk stays news."""
        self._check(done, keep=True)

    # Limits

    def _limit(self, name: str, default: float) -> float:
        told = self._limits.get(name)
        if told is not None:
            return float(told)
        own = getattr(self._settings, name, None)
        return float(own) if own is not None else default

    def _no_contact_seconds(self) -> float:
        own = self._settings.no_contact_seconds
        return own if own is not None else float(self._limits.get("no_contact_seconds", NO_CONTACT_SECONDS))

    def _grace(self, content: Dict[str, Any]) -> float:
        told = content.get("grace_seconds")
        if isinstance(told, (int, float)) and told >= 0:
            return float(told)
        return self._limit("stop_grace_seconds", STOP_GRACE_SECONDS)


class _Once:
    """Runs a call at its first invitation only."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Optional[Callable[[], None]] = call

    def call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


def _stop_report(stopped: Stopped) -> Dict[str, Any]:
    found: Dict[str, Any] = {
        "seconds": round(stopped.seconds, 4),
        "killed": stopped.killed,
        "pids": stopped.pids[:200],
    }
    if stopped.left:
        found["left"] = stopped.left[:200]
    return found


def _order_env(content: Dict[str, Any]) -> Dict[str, str]:
    """What a command order tells, as variables that the command may read."""
    found: Dict[str, str] = {}
    if content.get("attempt") is not None:
        found["INCIDENTDESK_ATTEMPT"] = str(content["attempt"])
    resume = content.get("resume") or {}
    if resume.get("step") is not None:
        found["INCIDENTDESK_RESUME_STEP"] = str(resume["step"])
    if resume.get("path"):
        found["INCIDENTDESK_RESUME_PATH"] = str(resume["path"])
    return found
