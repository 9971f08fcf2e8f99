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
from typing import Any, Callable, Dict, List, Optional, Tuple

from agent import wire
from agent.channel import Channel
from agent.checks import MOUNT_PROBE_ARGV, KernelLog, QuickSet
from agent.departure import Departure
from agent.environment import EnvironmentLook
from agent.limits import Limits
from agent.loop import Loop, Once
from agent.outbox import Outbox
from agent.output import Matcher, Notes, Terminal
from agent.process import ProcessTable, Stopped
from agent.run import Run
from agent.runner import Runner
from agent.settings import Settings
from agent.training_watch import TrainingWatch
from agent.waiting import Waiting

TAIL_SECONDS = 0.1  # an end is reported after so long at most, even if its last lines are stuck

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
        self._environment = EnvironmentLook(self._runner, settings.command_env({}), loop)
        self._limits = Limits(settings)
        self._waiting = Waiting(loop, self._on_wait_over)
        self._training = TrainingWatch(
            settings=settings,
            loop=loop,
            say=notes.say,
            present_run=lambda: self._run,
            is_first_worker=self._is_first_worker,
            tell=self._tell,
        )
        self._departure = Departure(
            loop=loop,
            notes=notes,
            outbox=outbox,
            can_send=lambda: self._channel is not None and self._channel.can_send,
            flush_seconds=settings.flush_seconds,
        )

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
        self._began = time.monotonic()
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
        self._training.start()
        if channel is None:
            if why_not is not None:
                self._notes.say("%s; running unprotected" % why_not)
            self._run_transparently()
            return
        self._channel = channel
        self._environment.start()
        channel.start()
        self._loop.later(self._limits.no_contact_seconds, self._look_for_contact)

    def _is_first_worker(self) -> bool:
        """Only worker 0 reports checkpoints: they lie in one place and would be told once by each."""
        index = self.worker["index"] if self.worker is not None else self._settings.index
        return index in (None, 0)

    # What the desk says

    def on_enrolled(self, answer: wire.EnrolResponse) -> None:
        """An enrolment was answered with anything but "again"."""
        status = answer.get("status")
        self._limits.take(answer.get("limits"))
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
        self._limits.take(answer.get("limits"))
        if self._is_fenced or self._is_leaving:
            return
        directive = answer.get("directive")
        if directive == wire.EXTEND_WAIT:  # kept also for a wait that has not begun yet
            self._waiting.extend(float(answer.get("extend_seconds") or 0.0))
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
                self._waiting.extend_next(float(answer.get("extend_seconds") or 0.0))

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
            "checkpoint_step": self._training.checkpoint_step,
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
        elif was and self._waiting.what is not None:
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
            self._waiting.stop()
            self._table.stop(0.0, lambda _stopped: self._start_command(self.sequence, {}))
        elif self._waiting.what is not None:
            self._leave_waiting()

    def _look_for_contact(self) -> None:
        """No contact for too long and nothing was ever started: training does not wait for the desk."""
        if self._run is not None or self._is_leaving:
            return
        last = self._channel.last_contact if self._channel is not None else None
        left = (
            (last if last is not None else self._began) + self._limits.no_contact_seconds - time.monotonic()
        )
        if left > 0:
            self._loop.later(left, self._look_for_contact)
            return
        self._notes.say(
            "no contact to the desk for %g s; running unprotected" % self._limits.no_contact_seconds
        )
        self._run_transparently()

    # Orders

    def _obey(self, order: wire.Message) -> None:
        """Carry out an order; whatever an older one still waits for is no longer waited for."""
        self.sequence = order["sequence"]
        self._order = order
        self._waiting.stop()
        self._waiting.forget_extension()
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
                self._wait_for_order()

    def _obey_bootcheck(self, order: wire.Message) -> None:
        if not self._is_running:
            self.inner = BOOT_CHECKING
        results: List[List[wire.CheckResult]] = []

        def done() -> None:
            if self._order is order and results and self._environment.found is not None:
                self._ack(order, {"environment": self._environment.found, "checks": results[0]})
                if self._run is not None and not self._is_running:
                    self._wait_for_order()

        def checked(found: List[wire.CheckResult]) -> None:
            results.append(found)
            done()

        self._check(checked)
        self._environment.when_found(done)

    def _obey_command(self, order: wire.Message, content: Dict[str, Any]) -> None:
        def stopped(found: Stopped) -> None:
            if self._order is not order:
                return
            if found.left:
                self._notes.say("processes %s cannot be stopped; starting nothing beside them" % found.left)
                self._order = None
                self._wait_for_order()
                return
            self._start_command(order["sequence"], content)

        self._mark_stop()
        self._table.stop(self._limits.stop_grace_seconds(content), stopped)

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
                self._wait_for_order()

        self._check(lambda found: done("checks", found))
        if content.get("stop"):
            self.inner = TROUBLESHOOTING
            missing.add("stopped")
            self._mark_stop()
            self._table.stop(
                self._limits.stop_grace_seconds(content),
                lambda stopped: done("stopped", stopped.report()),
            )

    def _obey_exit(self, order: wire.Message, content: Dict[str, Any]) -> None:
        self.inner = TROUBLESHOOTING
        code = content.get("code")
        if not isinstance(code, int) or not 0 < code < 256:
            code = wire.EXIT_ORDERED
        reason = str(content.get("reason") or "no reason told")

        def stopped(found: Stopped) -> None:
            if self._order is order:
                self._ack(order, {"checks": [], "stopped": found.report(), "exit": code})
                self._leave(code, "ended by order %d: %s" % (order["sequence"], reason))

        self._mark_stop()
        self._table.stop(self._limits.stop_grace_seconds(content), stopped)

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
        self._waiting.stop()
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
            pattern=self._training.pattern,
            on_mark=lambda mark, found, at: self._loop.post(self._training.take_mark, run, mark, found, at),
            on_checkpoint=lambda found, at: self._loop.post(
                self._training.take_logged_checkpoint, run, found, at
            ),
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
        once = Once(lambda: self._report_end(run))
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
            self._wait_for("finish", self._limits.finish_wait_seconds)
        else:
            self.inner = FAILED
            self._wait_for_order()

    def _tell(
        self, type_: str, run: Optional[Run], found: Dict[str, Any], at: Optional[float] = None
    ) -> None:
        if self._channel is not None:
            sequence = run.sequence if run is not None else self._run_sequence()
            self._outbox.put(type_, wire.COMMAND, sequence, found, at)

    def _run_sequence(self) -> int:
        return self._run.sequence if self._run is not None else self.sequence

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
            self._departure.hurry()
            return
        self._is_terminating = True
        self._order = None
        self._waiting.stop()
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

    def _wait_for_order(self) -> None:
        self._wait_for("order", self._limits.order_wait_seconds)

    def _wait_for(self, what: str, seconds: float) -> None:
        if self._is_transparent:
            self._leave_waiting()
        else:
            self._waiting.begin(what, seconds)

    def _on_wait_over(self, what: str) -> None:
        if what == "order":
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
        self._waiting.stop()
        self._order = None
        self.exit_code = code
        if reason is not None:
            self._notes.say("exit %d: %s" % (code, reason))
            self._settings.write_termination_message("deskagent: exit %d: %s\n" % (code, reason))
        is_waited_for = self._is_terminating or reason is not None
        self._table.stop(0.0, lambda _stopped: self._depart(is_waited_for))

    def _depart(self, is_waited_for: bool) -> None:
        self._departure.begin(self._run.output if self._run is not None else None, is_waited_for)

    # For the control socket

    def status(self) -> Dict[str, Any]:
        """The present state, for people inside the container."""
        found = self.poll_state()
        channel = self._channel
        last = channel.last_contact if channel is not None else None
        left = self._waiting.seconds_left
        found.update(
            job=self.job or None,
            worker=dict(self.worker) if self.worker is not None else None,
            protected=not self._is_transparent,
            enrolled=self._is_enrolled,
            agent_pid=os.getpid(),
            runs=self._run_count,
            waits_for=self._waiting.what,
            waits_seconds=round(left, 3) if left is not None else None,
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
