"""Where things lie: the checkout, `.desk/`, locks, and directories for unix sockets."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

from incidentdesk.frontdoor.errors import FrontDoorError

CHECKOUT = Path(__file__).resolve().parents[2]
# sun_path holds 108 bytes with its end on Linux, 104 on macOS; the longest name we put there is 16 long.
LONGEST_SOCKET_DIRECTORY = 80
PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")
ENVIRONMENT_NOTE = "environment.json"  # beside the lock of a desk: the variables of its processes
ELSEWHERE = ("run.elsewhere", "data.elsewhere")  # files that name a directory of ours outside of the state


def make_private(directory: Path) -> Path:
    """Make a directory that only its owner may enter, with its parents."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


def short_name(path: Path) -> str:
    """Give a short name for a path, the same one every time."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]


def socket_directory(home: Path) -> Path:
    """Give a private directory for the unix sockets of what lives in `home`; the same one every time.

    It is `home/run`, or, where that path is too long for a socket or would need quoting in a URL, one under
    the temporary directory, named by a hash of `home`.
    """
    home = home.absolute()
    wanted = home / "run"
    if len(str(wanted)) <= LONGEST_SOCKET_DIRECTORY and PLAIN_PATH.fullmatch(str(wanted)):
        return make_private(wanted)
    digest = short_name(home)
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 - owner and kind are checked below
        short = Path(parent) / f"incidentdesk-{os.getuid()}-{digest}"
        if len(str(short)) <= LONGEST_SOCKET_DIRECTORY and PLAIN_PATH.fullmatch(str(short)):
            with contextlib.suppress(FileExistsError):
                short.mkdir(mode=0o700)
            found = short.lstat()
            # Others may write to the temporary directory: take over nobody else's, and no link.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise FrontDoorError(f"{short} belongs to somebody else: remove it, or set TMPDIR.")
            home.mkdir(parents=True, exist_ok=True)
            (home / "run.elsewhere").write_text(f"{short}\n")  # `./desk clean` removes it by this
            return make_private(short)
    raise FrontDoorError(
        f"No directory short enough for a unix socket: set TMPDIR to a short path (not {wanted})."
    )


def remove_state(root: Path) -> None:
    """Remove a state directory and what belongs to it in other places; nothing may run out of it any more."""
    root = root.absolute()
    named = [path for name in ELSEWHERE for path in root.glob(f"*/{name}")]
    for path in named:
        for line in path.read_text().splitlines():
            if Path(line).name.startswith("incidentdesk-"):
                shutil.rmtree(line, ignore_errors=True)
    shutil.rmtree(root, ignore_errors=True)


def take_lock(path: Path) -> IO[str] | None:
    """Take a lock file for as long as the returned stream is open; None when another process holds it.

    The holder's process id is in the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = path.open("a+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.close()
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    stream.seek(0)
    stream.truncate()
    stream.write(f"{os.getpid()}\n")
    stream.flush()
    return stream


def lock_holder(path: Path) -> str:
    """Give the process id written in a lock file, or `unknown`."""
    try:
        return path.read_text().strip() or "unknown"
    except OSError:
        return "unknown"
