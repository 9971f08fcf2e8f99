"""Start a command that cannot outlive its parent, and as somebody else where that is needed.

A plain script, because this has to happen between fork and exec, and a `preexec_fn` in a process with
threads may deadlock:

    python -I -S launch.py PARENT_PID SIGNAL AS COMMAND [ARGUMENT...]

SIGNAL is sent to the command by the kernel when the thread that started it is gone (Linux only). AS is
`same`, `namespace` (root only: a user namespace in which root is uid 1000, for PostgreSQL refuses to run
as root; files stay owned by root and no account is needed) or the name of an account (root only).
"""

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
NOT_STARTED = 125  # what env(1) answers when it fails itself

# Looked up now: whom we become may not be allowed to read this Python's files.
prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


def enter_namespace() -> None:
    """Make root look like uid and gid 1000 to this process. OSError where the kernel forbids it."""
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER)
    # A process may map its own gid only after it gave up setgroups (user_namespaces(7)).
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", "1000 %d 1" % uid),
        ("gid_map", "1000 %d 1" % gid),
    ):
        with open("/proc/self/" + name, "w") as stream:
            stream.write(line)


def become(account: str) -> None:
    entry = pwd.getpwnam(account)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def die_with(parent: int, number: int) -> None:
    """Ask the kernel for `number` when the parent dies. Comes last: a change of credentials clears it."""
    if prctl is None:
        return
    prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(NOT_STARTED)


def main(arguments: "list[str]") -> None:
    parent, number, who, command = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3:]
    try:
        if who == "namespace":
            enter_namespace()
        elif who != "same":
            become(who)
        die_with(parent, number)
        os.execvp(command[0], command)
    except (OSError, KeyError) as error:
        sys.stderr.write("cannot start %s as %s: %s\n" % (command[0], who, error))
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main(sys.argv[1:])
