"""End what a supervisor left behind: a plain script that waits for its supervisor's death.

    python -I -S keeper.py MARK

Standard input is a pipe that the supervisor never writes to: its end means that the supervisor is gone, by
whatever signal. The kernel has then told the supervised processes themselves (launch.py); this gets what
these started in turn. Everything that carries INCIDENTDESK_STACK=MARK in its environment belongs to it.
"""

import contextlib
import os
import signal
import sys
import time

GRACE_SECONDS = 6.0  # PostgreSQL's fast shutdown and a worker's task come to an end by themselves
INSIST_SECONDS = 10.0
POLL_SECONDS = 0.1


def marked(mark: str) -> list[int]:
    """List the ids of the processes with the mark in their environment (Linux; elsewhere none)."""
    wanted = b"INCIDENTDESK_STACK=" + mark.encode()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open("/proc/" + name + "/environ", "rb") as stream:
                if wanted in stream.read().split(b"\0"):
                    found.append(int(name))
    return found


def sweep(mark: str, grace_seconds: float) -> set[int]:
    """Wait `grace_seconds` for the marked processes to end, then kill them; the ids that were killed."""
    killed: set[int] = set()
    begun = time.monotonic()
    while left := marked(mark):
        waited = time.monotonic() - begun
        if waited > grace_seconds + INSIST_SECONDS:
            break
        if waited >= grace_seconds:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        time.sleep(POLL_SECONDS)
    return killed


def main(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        with contextlib.suppress(InterruptedError):
            if not os.read(0, 1):
                break
    sweep(mark, GRACE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
