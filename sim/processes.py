"""Reads the process table of Linux (/proc): parents, descendants, command lines."""

# os, because /proc is walked often, and its names are no paths of ours.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """One process. ``started_ticks`` (clock ticks since boot) tells a reused pid from the old one."""

    pid: int
    parent: int
    state: str  # one letter: R, S, D, T, Z …
    started_ticks: int

    @property
    def argv(self) -> list[str]:
        """Command line; empty for a zombie or a process that is gone."""
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                raw = file.read()
        except OSError:
            return []
        return [part.decode(errors="replace") for part in raw.split(b"\0")[:-1]]


def look_up(pid: int) -> Process | None:
    """The process with this pid, zombies included; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: fields are counted from the last one.
    fields = raw[raw.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        started_ticks=int(fields[19]),
    )


def descendants(ancestor: int) -> list[Process]:
    """Every living descendant of ``ancestor``, parents before children; zombies are left out."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := look_up(int(name))) is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    frontier = [ancestor]
    while frontier:
        for process in sorted(children.get(frontier.pop(0), []), key=lambda p: p.pid):
            # A zombie has no children of its own: they went to the reaper.
            if process.state != "Z":
                found.append(process)
                frontier.append(process.pid)
    return found


def is_running(process: Process) -> bool:
    """Whether this very process (not a successor under its pid) still runs; a zombie does not."""
    now = look_up(process.pid)
    return now is not None and now.state != "Z" and now.started_ticks == process.started_ticks


def kill_marked(entry: str) -> None:
    """SIGKILL every process that has ``entry`` ("NAME=value") in its first environment, until none is left."""
    wanted = entry.encode()
    while True:
        found = False
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted not in file.read().split(b"\0"):
                        continue
                os.kill(int(name), signal.SIGKILL)
                found = True
            except OSError:
                continue  # gone, or another user's
        if not found:
            return
        time.sleep(0.01)
