"""Whole agents against a desk: orders, protection, waits, cut-offs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from tests.agent.conftest import SECRET, AgentProcess, children_of, is_alive, until
from tests.agent.fake_desk import FakeDesk

Start = Callable[..., AgentProcess]

SLEEP = ("--", "sleep", "1000")


def ctl(agent: AgentProcess, *words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "agent", "ctl", *words],
        env={**os.environ, "INCIDENTDESK_STATE_DIR": str(agent.state_dir)},
        capture_output=True,
    )


def ctl_status(agent: AgentProcess) -> dict[str, Any]:
    return json.loads(ctl(agent, "status").stdout)


def test_enrols_checks_runs_reports_an_end_and_starts_again_in_place(desk: FakeDesk, start: Start) -> None:
    agent = start(*SLEEP, desk=desk)
    first = desk.run_command()

    assert desk.enrolments[0]["pod_uid"] == "uid-1"
    assert desk.bearers[0] == f"Bearer {SECRET}"
    assert first["sequence"] == 2
    assert first["data"]["pids"]["agent"] == agent.pid
    checked = desk.of(wire.ACK, wire.BOOTCHECK)[0]
    assert {item["check"] for item in checked["data"]["checks"]} == {"gpu", "runtime", "rdma", "io", "disk"}
    assert checked["data"]["environment"]["python"]
    started = desk.wait_for_message(wire.MARK, mark=wire.MARK_STARTED)
    assert started["data"]["pids"] == first["data"]["pids"]

    os.kill(first["data"]["pids"]["command"], signal.SIGKILL)
    error = desk.wait_for_message(wire.ERROR)
    assert (error["phase"], error["sequence"], error["data"]["signal"]) == (wire.COMMAND, 2, 9)

    stop = desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"], grace_seconds=5)
    stopped = desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    assert stopped["sequence"] == stop
    assert stopped["data"]["stopped"]["killed"] == 0
    assert stopped["data"]["checks"]

    desk.order(wire.COMMAND, attempt=2, resume={"step": 30, "path": "/ckpt/step-30"})
    second = desk.wait_for_message(wire.ACK, wire.COMMAND, count=2)
    assert second["sequence"] == 4
    assert second["data"]["pids"]["agent"] == agent.pid
    assert second["data"]["pids"]["command"] != first["data"]["pids"]["command"]
    numbers = [message["n"] for message in desk.messages]
    assert numbers == list(range(1, len(numbers) + 1))


def test_order_reaches_the_command_as_variables(desk: FakeDesk, start: Start) -> None:
    start("-c", "echo attempt $INCIDENTDESK_ATTEMPT from $INCIDENTDESK_RESUME_STEP $INCIDENTDESK_ENROL_SECRET; exit 5",
          desk=desk)  # fmt: skip
    desk.wait_for(lambda: desk.polls)
    desk.order(wire.COMMAND, attempt=3, resume={"step": 30, "path": "/ckpt"})
    error = desk.wait_for_message(wire.ERROR)
    assert error["data"]["log_tail"] == ["attempt 3 from 30"]
    assert error["data"]["exit_code"] == 5


def test_progress_marks_and_checkpoints_carry_the_attempt(
    desk: FakeDesk, start: Start, tmp_path: Path
) -> None:
    lines = [
        "[2026-11-29 14:02:31,123] [rank 0] rendezvous complete: world 3, 0.21 s",
        "[2026-11-29 14:02:31,423] [rank 0] restored step 3300 from /checkpoints/step-00003300 in 0.05 s",
        *(f"[…] [rank 0] step {3300 + n}/5000 | loss 2.3112 | 0.200 s/step" for n in range(1, 11)),
        "[…] [rank 0] saving checkpoint step 3310",
        "[…] [rank 0] committed checkpoint step 3310 to /checkpoints/step-00003310, 3 shards, 12288 bytes",
    ]
    log = tmp_path / "log"
    log.write_text("\n".join(lines) + "\n")
    start("-c", f"cat {log}; sleep 1000", desk=desk)
    desk.run_command()
    desk.wait_for_message(wire.CHECKPOINT)
    marks = {item["data"]["mark"]: item for item in desk.of(wire.MARK)}
    assert list(marks) == ["started", "rebuilt", "restored", "first_step", "steady"]
    assert {item["sequence"] for item in marks.values()} == {2}
    assert marks["restored"]["data"] == {
        "mark": "restored", "step": 3300, "checkpoint": "/checkpoints/step-00003300", "seconds": 0.05
    }  # fmt: skip
    assert marks["first_step"]["data"]["step"] == 3301
    assert marks["steady"]["data"]["step_seconds"] == 0.2
    checkpoint = desk.of(wire.CHECKPOINT)[0]["data"]
    assert (checkpoint["step"], checkpoint["state"], checkpoint["bytes"]) == (3310, "committed", 12288)
    desk.wait_for(lambda: desk.polls[-1]["step"] == 3310 and desk.polls[-1]["checkpoint_step"] == 3310)


def test_stop_order_ends_every_descendant(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    """A double fork into sessions of their own, that ignores SIGTERM, with the launcher already dead."""
    script = tmp_path / "launcher.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "for rank in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"        open({str(tmp_path)!r} + '/rank%d.tmp' % rank, 'w').write(str(os.getpid()))\n"
        f"        os.rename({str(tmp_path)!r} + '/rank%d.tmp' % rank, {str(tmp_path)!r} + '/rank%d' % rank)\n"
        "        time.sleep(1000)\n"
        "time.sleep(1000)\n"
    )
    agent = start("--", sys.executable, str(script), desk=desk)
    ack = desk.run_command()
    until(lambda: len(list(tmp_path.glob("rank[0-9]"))) == 3, "three ranks")
    ranks = [int(path.read_text()) for path in tmp_path.glob("rank[0-9]")]
    assert all(is_alive(rank) for rank in ranks)
    helpers = set(children_of(agent.pid)) - {ack["data"]["pids"]["command"]}
    assert helpers, "the mount probe stays"
    os.kill(ack["data"]["pids"]["command"], signal.SIGKILL)
    desk.wait_for_message(wire.ERROR)
    assert all(is_alive(rank) for rank in ranks)

    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"], grace_seconds=0.2)
    stopped = desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)["data"]["stopped"]
    assert not any(is_alive(rank) for rank in ranks)
    assert stopped["killed"] == 3
    assert set(ranks) <= set(stopped["pids"])
    assert set(children_of(agent.pid)) == helpers - set(ranks), "checks are none of the training's processes"
    assert agent.process.poll() is None


def test_stop_gives_the_grace_that_the_order_names(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    out = tmp_path / "saved"
    start("-c", f"trap 'echo saved > {out}; exit 0' TERM; while :; do sleep 0.05; done", desk=desk)
    desk.run_command()
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"], grace_seconds=15)
    stopped = desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    assert stopped["data"]["stopped"]["killed"] == 0
    assert out.read_text() == "saved\n"
    assert desk.of(wire.FINISH) == desk.of(wire.ERROR) == [], "an end that was ordered is nobody's failure"


def test_new_order_preempts_the_running_one(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    start("-c", f"trap '' TERM; echo > {ready}; while :; do sleep 0.05; done", desk=desk)
    desk.run_command()
    until(ready.exists)
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"], grace_seconds=1000)
    desk.wait_for(lambda: desk.polls[-1]["inner_phase"] == "Troubleshooting")
    last = desk.order(wire.COMMAND, attempt=2, resume=None, grace_seconds=0)
    ack = desk.wait_for_message(wire.ACK, wire.COMMAND, count=2)
    assert ack["sequence"] == last
    assert desk.of(wire.ACK, wire.TROUBLESHOOT) == []


def test_lower_sequence_is_ignored(desk: FakeDesk, start: Start) -> None:
    desk.enrol_answers.append(desk.enrolled(sequence=1))
    start(*SLEEP, desk=desk)
    desk.wait_for(lambda: desk.polls)
    assert desk.polls[0]["cursor"] == 1
    desk.order(wire.COMMAND, attempt=1, resume=None)  # sequence 1: for those before us
    desk.order(wire.BOOTCHECK, environment=True, checks=["quick"])
    desk.wait_for_message(wire.ACK, wire.BOOTCHECK)
    assert desk.of(wire.ACK, wire.COMMAND) == []


def test_unprotected_enrolment_runs_at_once_and_leaves_with_the_command(desk: FakeDesk, start: Start) -> None:
    desk.enrol_answers.append(desk.enrolled(status=wire.UNPROTECTED, reason="observe", protected=False))
    agent = start("-c", "exit 7", desk=desk, INCIDENTDESK_FLUSH_SECONDS="20")  # the machine may be busy
    assert agent.wait() == 7
    error = desk.wait_for_message(wire.ERROR)
    assert error["data"]["exit_code"] == 7


def test_refused_runs_and_says_so(desk: FakeDesk, start: Start) -> None:
    desk.enrol_answers.append({"status": wire.REFUSED, "reason": "another pod's token"})
    agent = start("-c", "echo ran; exit 4", desk=desk)
    code, out, err = agent.finish()
    assert (code, out) == (4, b"ran\n")
    assert b"another pod's token" in err


def test_again_is_asked_again_with_the_same_nonce(desk: FakeDesk, start: Start) -> None:
    desk.enrol_answers += [{"status": wire.AGAIN, "retry_after_seconds": 0.05}] * 3
    start(*SLEEP, desk=desk)
    desk.wait_for(lambda: desk.polls)
    assert len(desk.enrolments) == 4
    assert len({item["nonce"] for item in desk.enrolments}) == 1


def test_projected_token_is_read_anew_for_each_try(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    desk.enrol_answers.append({"status": wire.AGAIN, "retry_after_seconds": 0.3})
    start(*SLEEP, INCIDENTDESK_URL=desk.url, INCIDENTDESK_TOKEN_FILE=str(token))
    desk.wait_for(lambda: desk.enrolments)
    token.write_text("second\n")
    desk.wait_for(lambda: len(desk.enrolments) == 2)
    assert desk.bearers[:2] == ["Bearer first", "Bearer second"]


def test_no_contact_starts_the_command_and_enrols_later_for_reporting(
    desk: FakeDesk, start: Start, tmp_path: Path
) -> None:
    go, ready = tmp_path / "go", tmp_path / "ready"
    os.mkfifo(go)
    desk.cut()
    agent = start(
        "-c", f"echo > {ready}; read line < {go}; exit 6", desk=desk, INCIDENTDESK_NO_CONTACT_SECONDS="0.3"
    )
    until(ready.exists, "the command")
    desk.restore()
    desk.wait_for(lambda: desk.polls)
    desk.order(wire.BOOTCHECK, environment=True, checks=["quick"])
    desk.wait_for(lambda: desk.polls[-1]["cursor"] == 1)
    go.write_text("\n")
    assert agent.wait() == 6, "transparent although the desk protects it by now"
    assert desk.of(wire.ACK) == []
    assert desk.wait_for_message(wire.ERROR)["data"]["exit_code"] == 6


def test_enrolled_agent_waits_at_the_barrier_while_it_has_contact(desk: FakeDesk, start: Start) -> None:
    start(*SLEEP, desk=desk, INCIDENTDESK_NO_CONTACT_SECONDS="0.5")
    desk.tell(limits={"poll_seconds": 0.1})
    desk.wait_for(lambda: len(desk.polls) > 12)
    assert desk.polls[-1]["process"]["state"] == "none"
    desk.tell(directive={"directive": wire.RUN_UNPROTECTED})
    desk.wait_for(lambda: desk.polls[-1]["process"]["state"] == "running")


def test_protection_switched_off_at_the_barrier_starts_the_command(desk: FakeDesk, start: Start) -> None:
    agent = start("-c", "exit 9", desk=desk)
    desk.wait_for(lambda: desk.polls)
    desk.tell(protected=False)
    assert agent.wait() == 9


def test_protection_switched_off_while_waiting_leaves_with_the_code(desk: FakeDesk, start: Start) -> None:
    agent = start("-c", "exit 9", desk=desk)
    desk.run_command()
    desk.wait_for(lambda: desk.polls[-1]["inner_phase"] == "Failed")
    desk.tell(protected=False)
    assert agent.wait() == 9


def test_order_wait_ends_with_the_commands_code(desk: FakeDesk, start: Start) -> None:
    desk.limits = {"poll_seconds": 0.2, "order_wait_seconds": 0.3}
    agent = start("-c", "exit 9", desk=desk)
    desk.run_command()
    desk.wait_for_message(wire.ERROR)
    assert agent.wait() == 9


def test_order_wait_without_a_code_of_its_own_ends_with_ours(
    desk: FakeDesk, start: Start, tmp_path: Path
) -> None:
    desk.limits = {"poll_seconds": 0.2, "order_wait_seconds": 0.3}
    message = tmp_path / "termination-log"
    message.write_text("")
    agent = start(*SLEEP, desk=desk, INCIDENTDESK_TERMINATION_LOG=str(message))
    desk.run_command()
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"], grace_seconds=5)
    assert agent.wait() == wire.EXIT_ORDER_WAIT
    assert "no order came" in message.read_text()


def test_extend_wait_keeps_the_agent(desk: FakeDesk, start: Start) -> None:
    desk.limits = {"poll_seconds": 0.05, "order_wait_seconds": 1.0}
    desk.directive = {"directive": wire.EXTEND_WAIT, "extend_seconds": 1000.0}
    agent = start("-c", "exit 9", desk=desk)
    desk.run_command()
    desk.wait_for_message(wire.ERROR)
    seen = len(desk.polls)
    desk.wait_for(lambda: len(desk.polls) > seen + 30)
    assert agent.process.poll() is None
    desk.order(wire.TROUBLESHOOT, exit=True, code=wire.EXIT_ORDERED, reason="container restart")
    assert agent.wait() == wire.EXIT_ORDERED


def test_extension_counts_for_a_wait_that_begins_later(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    desk.limits = {"poll_seconds": 0.1, "order_wait_seconds": 10.0}
    agent = start("-c", f"read line < {go}; exit 9", desk=desk)
    desk.run_command()
    desk.tell(
        limits={"poll_seconds": 1000.0, "order_wait_seconds": 10.0},
        directive={"directive": wire.EXTEND_WAIT, "extend_seconds": 900.0},
    )
    desk.wait_for(lambda: desk.polls[-1]["wait_seconds"] > 100, "a poll that nothing will answer")
    go.write_text("\n")
    desk.wait_for_message(wire.ERROR)
    status = until(lambda: (found := ctl_status(agent))["waits_for"] == "order" and found)
    assert status["waits_seconds"] > 100
    desk.tell(directive={})
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"])
    desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    status = until(lambda: (found := ctl_status(agent))["waits_for"] == "order" and found)
    assert status["waits_seconds"] <= 10.0, "an order ends what was told before it"


def test_extension_told_with_an_order_is_for_the_wait_after_it(desk: FakeDesk, start: Start) -> None:
    desk.limits = {"poll_seconds": 1000.0, "order_wait_seconds": 10.0}
    agent = start(*SLEEP, desk=desk)
    desk.run_command()
    desk.wait_for(lambda: desk.polls[-1]["wait_seconds"] > 100, "a poll that the order will answer")
    desk.directive = {"directive": wire.EXTEND_WAIT, "extend_seconds": 900.0}
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"])
    desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    status = until(lambda: (found := ctl_status(agent))["waits_for"] == "order" and found)
    assert status["waits_seconds"] > 100


def test_exit_order_stops_acknowledges_and_leaves(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.write_text("written by the command")
    agent = start(*SLEEP, desk=desk, INCIDENTDESK_TERMINATION_LOG=str(message))
    ack = desk.run_command()
    desk.order(wire.TROUBLESHOOT, exit=True, code=wire.EXIT_ORDERED, reason="restart the container")
    code, _out, err = agent.finish()
    assert code == wire.EXIT_ORDERED
    assert b"restart the container" in err
    assert desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)["data"]["exit"] == wire.EXIT_ORDERED
    assert not is_alive(ack["data"]["pids"]["command"])
    assert message.read_text() == "written by the command"


def test_finished_worker_keeps_its_container_until_told(desk: FakeDesk, start: Start) -> None:
    agent = start("-c", "echo done", desk=desk)
    desk.run_command()
    finish = desk.wait_for_message(wire.FINISH)
    assert finish["data"]["exit_code"] == 0
    desk.wait_for(lambda: desk.polls[-1]["inner_phase"] == "Succeeded")
    assert agent.process.poll() is None
    desk.order(wire.COMMAND, attempt=2, resume=None)  # a restart takes it along
    desk.wait_for_message(wire.FINISH, count=2)
    desk.order(wire.TROUBLESHOOT, finish=True)
    assert agent.wait() == 0


def test_finish_wait_ends_by_itself(desk: FakeDesk, start: Start) -> None:
    desk.limits = {"poll_seconds": 0.2, "finish_wait_seconds": 0.2}
    agent = start("-c", "true", desk=desk)
    desk.run_command()
    assert agent.wait() == 0


@pytest.mark.parametrize("moment", ["barrier", "running", "waiting", "finished", "stopped"])
def test_sigterm_wins(desk: FakeDesk, start: Start, moment: str) -> None:
    command = {"waiting": ("-c", "exit 9"), "finished": ("-c", "true")}.get(moment, SLEEP)
    agent = start(*command, desk=desk)
    desk.wait_for(lambda: desk.polls)
    if moment != "barrier":
        desk.run_command()
    if moment == "stopped":
        desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"])
        desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    if moment in ("waiting", "finished"):
        desk.wait_for(lambda: desk.polls[-1]["inner_phase"] in ("Failed", "Succeeded"))
    agent.terminate()
    assert agent.wait() == {"waiting": 9, "finished": 0}.get(moment, 143)
    assert desk.of(wire.ERROR) == ([] if moment != "waiting" else desk.of(wire.ERROR, exit_code=9))


def test_sigterm_leaves_the_command_its_time(start: Start, tmp_path: Path) -> None:
    go, ready = tmp_path / "go", tmp_path / "ready"
    os.mkfifo(go)
    agent = start(
        "-c",
        f"trap 'read line < {go}; echo saved; exit 11' TERM; echo > {ready}; while :; do sleep 0.05; done",
    )
    until(ready.exists)
    agent.terminate()
    with go.open("w") as file:  # opens when the handler reads: the command is still alive
        file.write("\n")
    code, out, _err = agent.finish()
    assert (code, out) == (11, b"saved\n")


def test_fenced_agent_obeys_nothing_more_and_leaves_the_process_alone(
    desk: FakeDesk, start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    agent = start("-c", f"read line < {go}; exit 3", desk=desk)
    ack = desk.run_command()
    desk.tell(statuses={"poll": [409], "report": [], "enrol": []}, directive={"directive": "wake"})
    desk.wait_for(lambda: not desk.statuses["poll"])
    desk.wait_for(lambda: desk.open_polls == 0)
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"])
    assert is_alive(ack["data"]["pids"]["command"])
    go.write_text("\n")
    assert agent.wait() == 3
    assert desk.open_polls == 0
    assert desk.of(wire.ACK, wire.TROUBLESHOOT) == []


def test_lost_token_enrols_again_with_the_same_nonce_and_keeps_its_cursor(
    desk: FakeDesk, start: Start
) -> None:
    start(*SLEEP, desk=desk)
    desk.run_command()
    desk.tell(statuses={"poll": [401], "report": [], "enrol": []}, directive={"directive": "wake"})
    desk.wait_for(lambda: len(desk.enrolments) == 2)
    seen = len(desk.polls)
    desk.wait_for(lambda: len(desk.polls) > seen)
    assert desk.enrolments[0]["nonce"] == desk.enrolments[1]["nonce"]
    assert desk.polls[-1]["cursor"] == 2
    assert len(desk.of(wire.ACK, wire.COMMAND)) == 1


def test_cut_off_agent_sends_later_in_order_without_loss_or_double(
    desk: FakeDesk, start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    steps = "".join(f"echo step {n}/99; " for n in range(1, 12))
    agent = start(
        "-c", f"read line < {go}; {steps} exit 8", desk=desk, INCIDENTDESK_ORDER_WAIT_SECONDS="1000"
    )
    desk.run_command()
    desk.wait_for_message(wire.MARK, mark=wire.MARK_STARTED)
    seen = len(desk.polls)
    desk.wait_for(lambda: any(poll["unsent"] == 0 for poll in desk.polls[seen:]))
    before = len(desk.messages)
    desk.cut()
    go.write_text("\n")

    until(lambda: ctl_status(agent)["inner_phase"] == "Failed", "the end of the command")
    assert ctl_status(agent)["unsent"] == 3
    desk.tell(swallow_report_answers=1)  # the desk commits, its answer is lost: the agent must repeat
    seen = len(desk.polls)
    desk.restore()
    desk.wait_for_message(wire.ERROR)
    desk.wait_for(lambda: any(poll["unsent"] == 0 for poll in desk.polls[seen:]))
    kinds = [item["data"].get("mark", item["type"]) for item in desk.messages[before:]]
    assert kinds == ["first_step", "steady", wire.ERROR]
    numbers = [item["n"] for item in desk.messages]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [item["n"] for item in desk.repeats] == numbers[before:]


def test_report_of_an_end_does_not_wait_for_the_open_poll(desk: FakeDesk, start: Start) -> None:
    desk.limits = {"poll_seconds": 100.0}
    start("-c", "exit 2", desk=desk)
    desk.run_command()
    desk.wait_for_message(wire.ERROR)
    assert desk.open_polls == 1


def test_message_that_the_desk_cannot_take_does_not_stop_the_others(desk: FakeDesk, start: Start) -> None:
    desk.statuses["report"] = [400]
    start(*SLEEP, desk=desk)
    desk.wait_for(lambda: desk.polls)
    desk.order(wire.BOOTCHECK, environment=True, checks=["quick"])
    desk.wait_for(lambda: not desk.statuses["report"])
    desk.order(wire.COMMAND, attempt=1, resume=None)
    desk.wait_for_message(wire.ACK, wire.COMMAND)


def test_overloaded_desk_is_asked_later(desk: FakeDesk, start: Start) -> None:
    desk.statuses["report"] = [503, 429]
    start("-c", "exit 2", desk=desk)
    desk.run_command()
    desk.wait_for_message(wire.ERROR)
    assert desk.repeats == []


def test_wrong_command_is_an_error_of_that_attempt(desk: FakeDesk, start: Start) -> None:
    desk.limits = {"poll_seconds": 0.2, "order_wait_seconds": 0.2}
    agent = start("--", "/no/such/program", desk=desk)
    desk.wait_for(lambda: desk.polls)
    desk.order(wire.COMMAND, attempt=1, resume=None)
    error = desk.wait_for_message(wire.ERROR)
    assert (error["data"]["exit_code"], error["sequence"]) == (127, 1)
    assert agent.wait() == 127


def test_check_made_to_fail_is_reported(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    fail = tmp_path / "fail"
    start(*SLEEP, desk=desk, INCIDENTDESK_CHECK_FAIL=f"@{fail}")
    desk.run_command()
    fail.write_text("gpu:fell off the bus")
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"])
    boot = {item["check"]: item["result"] for item in desk.of(wire.ACK, wire.BOOTCHECK)[0]["data"]["checks"]}
    ack = desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    results = {item["check"]: item for item in ack["data"]["checks"]}
    assert boot["gpu"] == "could_not_run"
    assert (results["gpu"]["result"], results["gpu"]["detail"]) == ("fail", "fell off the bus")
    assert results["io"]["result"] == "pass"


def test_standstill_is_told_once_and_nothing_is_stopped(desk: FakeDesk, start: Start) -> None:
    lines = "".join(f"echo 'step {n}/99 | 0.01 s/step'; " for n in range(1, 5))
    start("-c", f"{lines} sleep 1000", desk=desk, INCIDENTDESK_HANG_MIN_SECONDS="0.5")
    ack = desk.run_command()
    hang = desk.wait_for_message(wire.HANG)
    assert (hang["data"]["step"], hang["data"]["confirmed"]) == (4, False)
    assert is_alive(ack["data"]["pids"]["command"])


def test_ctl_asks_the_desk_to_stop_and_runs_checks(desk: FakeDesk, start: Start) -> None:
    agent = start(*SLEEP, desk=desk)
    desk.run_command()

    checked = ctl(agent, "check")
    assert checked.returncode == 0
    assert {item["check"] for item in json.loads(checked.stdout)} >= {"gpu", "io"}
    asked = ctl(agent, "stop", "--at-safe-point", "wrong", "data")
    assert asked.returncode == 0, asked.stderr
    quit_ = desk.wait_for_message(wire.QUIT)
    assert quit_["data"] == {"reason": "wrong data", "at_safe_point": True}
    status = ctl_status(agent)
    assert (status["job"], status["inner_phase"], status["protected"]) == ("team-a/llama", "RunCommand", True)
    agent.terminate()
    agent.wait()
    assert ctl(agent, "status").returncode == 1


def test_whole_way_of_one_failure_with_python_3_8(desk: FakeDesk, start: Start, python_3_8: str) -> None:
    agent = start(*SLEEP, desk=desk, python=python_3_8)
    first = desk.run_command()
    os.kill(first["data"]["pids"]["command"], signal.SIGKILL)
    desk.wait_for_message(wire.ERROR)
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"])
    desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    desk.order(wire.COMMAND, attempt=2, resume=None)
    desk.wait_for_message(wire.ACK, wire.COMMAND, count=2)
    desk.order(wire.TROUBLESHOOT, exit=True, code=wire.EXIT_ORDERED, reason="over")
    assert agent.wait() == wire.EXIT_ORDERED
