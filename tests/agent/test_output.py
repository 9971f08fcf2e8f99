"""Output passes through unharmed, and looking at it is in nobody's way."""

import fcntl
import hashlib
import os
import sys
import termios
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

from agent import wire
from agent.output import SAMPLE_BURST_BYTES, TAIL_REPORT_BYTES, Matcher, Tail
from tests.agent.conftest import AgentProcess, until
from tests.agent.fake_desk import FakeDesk

Start = Callable[..., AgentProcess]

SIZE = 20 * 1000 * 1000


def test_20_megabytes_of_anything_on_both_streams(start: Start, tmp_path: Path) -> None:
    source = tmp_path / "bytes"
    source.write_bytes(os.urandom(SIZE))
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        agent = start("-c", f"cat {source} & cat {source} >&2; wait", stdout=out_file, stderr=err_file)
        assert agent.wait() == 0
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert hashlib.sha256(out.read_bytes()).hexdigest() == digest
    note, _newline, rest = err.read_bytes().partition(b"\n")
    assert note.startswith(b"deskagent: no desk is configured")
    assert hashlib.sha256(rest).hexdigest() == digest


def test_last_bytes_without_a_newline_arrive(start: Start) -> None:
    _code, out, _err = start("--", "printf", "one\\ntwo\\001").finish()
    assert out == b"one\ntwo\x01"


def test_streams_that_go_to_one_place_keep_their_order(start: Start, tmp_path: Path) -> None:
    script = "import os\nfor n in range(2000): os.write(1 + n % 2, b'%d\\n' % n)"
    with (tmp_path / "both").open("wb") as both:
        assert start("--", sys.executable, "-c", script, stdout=both, stderr=both).wait() == 0
    lines = [
        line for line in (tmp_path / "both").read_bytes().split(b"\n") if not line.startswith(b"deskagent")
    ]
    assert lines == [b"%d" % n for n in range(2000)] + [b""]


def test_reader_that_is_gone_ends_the_command_as_without_an_agent(start: Start) -> None:
    read_fd, write_fd = os.pipe()
    agent = start("--", "yes", stdout=write_fd)
    os.close(write_fd)
    os.read(read_fd, 10)
    os.close(read_fd)
    assert agent.wait() == 141  # SIGPIPE


def test_blocked_stdout_blocks_neither_polls_nor_stops(desk: FakeDesk, start: Start) -> None:
    desk.limits = {"poll_seconds": 0.1}
    read_fd, write_fd = os.pipe()
    start("--", "yes", desk=desk, stdout=write_fd)
    desk.run_command()
    until(lambda: _waiting_bytes(read_fd) >= 60_000, "a full pipe")
    seen = len(desk.polls)
    desk.wait_for(lambda: len(desk.polls) > seen + 5)
    desk.order(wire.TROUBLESHOOT, stop=True, checks=["quick"], grace_seconds=5)
    desk.wait_for_message(wire.ACK, wire.TROUBLESHOOT)
    desk.order(wire.COMMAND, attempt=2, resume=None)
    desk.wait_for_message(wire.ACK, wire.COMMAND, count=2)
    os.close(read_fd)
    os.close(write_fd)


def test_exit_does_not_lose_what_a_slow_reader_has_not_taken(start: Start) -> None:
    read_fd, write_fd = os.pipe()
    agent = start("-c", "head -c 150000 /dev/zero; exit 4", stdout=write_fd)
    os.close(write_fd)
    until(lambda: _waiting_bytes(read_fd) >= 60_000, "a full pipe")
    taken = 0
    while chunk := os.read(read_fd, 4096):
        taken += len(chunk)
    os.close(read_fd)
    assert taken == 150_000
    assert agent.wait() == 4


def test_sigterm_does_not_wait_for_a_stuck_reader(start: Start) -> None:
    read_fd, write_fd = os.pipe()
    agent = start("-c", "head -c 150000 /dev/zero; exit 4", stdout=write_fd)
    until(lambda: _waiting_bytes(read_fd) >= 60_000, "a full pipe")
    agent.terminate()
    assert agent.wait() in (4, 143)
    os.close(read_fd)
    os.close(write_fd)


def test_flood_is_sampled_counted_and_its_end_is_kept(desk: FakeDesk, start: Start, tmp_path: Path) -> None:
    source, sent = tmp_path / "flood", 30 * 1000 * 1000
    source.write_bytes(b"x" * 99 + b"\n" + b"y" * (sent - 100 - 1) + b"\n")
    out = tmp_path / "out"
    with out.open("wb") as file:
        start("-c", f"cat {source}; echo the last words; exit 3", desk=desk, stdout=file)
        desk.run_command()
        error = desk.wait_for_message(wire.ERROR)
    assert error["data"]["log_tail"][-1] == "the last words"
    assert all(len(line) <= wire.MAX_LINE_BYTES for line in error["data"]["log_tail"])
    desk.wait_for(lambda: desk.polls[-1]["skipped_bytes"] > 0)
    assert out.stat().st_size == sent + len("the last words\n")
    assert desk.polls[-1]["skipped_bytes"] <= sent + 100


def test_offer_never_waits_and_counts_what_it_skips() -> None:
    matcher, seen, hold = Matcher(), [], threading.Event()

    def sink(line: bytes, _at: float) -> None:
        hold.wait(20)
        seen.append(line)

    chunk = b"a" * 99_999 + b"\n"
    for _ in range(100):  # 10 MB, while the sink takes nothing
        matcher.offer(sink, (1, 1), chunk, 0.0)
    skipped = matcher.skipped_bytes
    assert 10_000_000 - SAMPLE_BURST_BYTES - 1_000_000 <= skipped < 10_000_000
    hold.set()
    taken = (10_000_000 - skipped) // len(chunk)
    until(lambda: len(seen) == taken)
    assert {len(line) for line in seen} == {wire.MAX_LINE_BYTES}


def test_line_torn_by_a_gap_is_not_taken_for_a_line() -> None:
    matcher, seen = Matcher(), []

    def sink(line: bytes, _at: float) -> None:
        seen.append(line)

    matcher.offer(sink, (1, 1), b"step 1/9\nstep 1", 0.0)
    matcher.offer(sink, (1, 1), b"x" * (SAMPLE_BURST_BYTES + 1), 0.0)
    matcher.offer(sink, (1, 1), b"2/9\nstep 3/9\nstep 4/9\rst", 0.0)
    matcher.offer(sink, (1, 1), b"ep 5/9", 0.0)
    matcher.offer(sink, (1, 1), b"", 0.0)
    until(lambda: b"step 5/9" in seen)
    assert seen == [b"step 1/9", b"step 3/9", b"step 4/9", b"step 5/9"]


def test_tail_is_bounded_and_clean() -> None:
    tail = Tail()
    tail.add(1, b"early\n")
    tail.add(2, b"half a ")
    tail.add(1, b"out\x00\xff\r\n")
    tail.add(2, b"line\nopen end")
    assert tail.lines() == ["early", "out �", "half a line", "open end"]
    assert tail.lines(2) == ["half a line", "open end"]
    tail.add(1, (b"\xff" * 5000 + b"\n") * 200)
    assert sum(len(line.encode()) for line in tail.lines()) <= TAIL_REPORT_BYTES


def _waiting_bytes(fd: int) -> int:
    count = array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]
