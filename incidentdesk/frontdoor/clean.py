"""End what runs out of this checkout, then remove `.desk/` and `.venv/`.

A plain script for any Python from 3.8 on: it removes the environment that the rest runs in.
"""

import fcntl
import os
import shutil
import signal
import sys
import time

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STATE = os.path.join(CHECKOUT, ".desk")
PATIENCE_SECONDS = 30.0
LOCK_NAMES = ("lock", "desk.lock", "slot.lock", "install.lock")
ELSEWHERE = ("run.elsewhere", "data.elsewhere")  # files that name a directory of ours outside of the checkout


def find(names):
    """List the files under .desk/ with one of these names; database directories are not searched."""
    found = []
    for folder, folders, files in os.walk(STATE):
        folders[:] = [
            name for name in folders if name not in ("data", "uv-cache", "pycache", "python", "static")
        ]
        found += [os.path.join(folder, name) for name in files if name in names]
    return found


def holder(path):
    """Give the id of the process that holds a lock file now, or None."""
    with open(path, "r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = stream.read().strip()
            return int(text) if text.isdigit() else None
    return None


def is_zombie(pid):
    """Whether the process has ended, and only its parent has not looked yet."""
    try:
        with open("/proc/%d/stat" % pid) as stream:
            return stream.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def end(pid):
    """Ask a process to end, insist after a while; whether it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.time() + PATIENCE_SECONDS
        try:
            os.kill(pid, number)
            while time.time() < deadline:
                os.kill(pid, 0)
                if is_zombie(pid):
                    return True
                time.sleep(0.05)
        except ProcessLookupError:
            return True
    return False


def main():
    if not os.path.isdir(STATE) and not os.path.isdir(os.path.join(CHECKOUT, ".venv")):
        print("Nothing to remove.")
        return 0
    for pid in sorted({pid for pid in map(holder, find(LOCK_NAMES)) if pid}):
        print("Ending process %d, which runs out of this checkout ..." % pid, flush=True)
        if not end(pid):
            print("Process %d does not end: nothing was removed." % pid, file=sys.stderr)
            return 1
    deadline = time.time() + PATIENCE_SECONDS
    while any(map(holder, find(LOCK_NAMES))) and time.time() < deadline:
        time.sleep(0.05)  # what it started ends after it
    directories = [STATE, os.path.join(CHECKOUT, ".venv")]
    for path in find(ELSEWHERE):
        with open(path) as stream:
            directories += [
                line for line in stream.read().splitlines() if "incidentdesk-" in os.path.basename(line)
            ]
    for directory in directories:
        if os.path.isdir(directory):
            print("Removing %s" % directory, flush=True)
            shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
