"""Arguments and exit codes of ``deskagent``."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from agent import wire
from agent.settings import Settings, state_dir

AGENT_VERSION = "0.1.0"

USAGE = """\
usage: deskagent [--] COMMAND [ARGUMENT ...]     run a command under the agent
       deskagent -c "COMMAND LINE"               the same, through sh
       deskagent ctl status                      what this container's agent does
       deskagent ctl stop [--at-safe-point] [REASON]
                                                 ask the desk to stop the job
       deskagent ctl check                       run the quick checks now
       deskagent --version | --help

The exit code is the command's own (128 + number after a signal). Codes of the agent itself:
78 ended by order, 79 no order in time, 80 job stopped, 81 boot check failed, 82 wrong usage.
"""

# Words that mean something else, or nothing, after exec: builtins and reserved words of sh.
_NOT_EXECUTABLE = frozenset(
    "! . : [[ { } alias bg break builtin case cd command continue declare do done elif else esac eval exec exit "
    "export false fc fg fi for function getopts hash if in jobs let local popd pushd pwd read readonly return "
    "select set shift shopt source suspend test then time times trap true type typeset ulimit umask unalias "
    "unset until wait while [ echo printf kill".split()
)


class UsageError(Exception):
    """The arguments do not fit."""


def parse(argv: List[str]) -> Tuple[str, List[str]]:
    """What to do (``run``, ``ctl``, ``help``, ``version``) and with what.

    Raises:
        UsageError: With a sentence for the user.
    """
    if not argv:
        raise UsageError("no command given")
    first, rest = argv[0], argv[1:]
    if first in ("-h", "--help"):
        return "help", []
    if first == "--version":
        return "version", []
    if first == "ctl":
        return "ctl", rest
    if first == "-c":
        if len(rest) != 1 or not rest[0].strip():
            raise UsageError("-c takes one command line, in quotes")
        return "run", shell_command(rest[0])
    if first == "--":
        if not rest:
            raise UsageError("no command after --")
        return "run", rest
    if first.startswith("-"):
        raise UsageError("unknown option %s" % first)
    return "run", argv


def shell_command(line: str) -> List[str]:
    """``sh -c`` of a command line; a simple command replaces the shell, so that none idles above it."""
    return ["/bin/sh", "-c", "exec " + line if is_simple(line) else line]


def is_simple(line: str) -> bool:
    """Whether ``exec`` before the line changes nothing: one program, no list, pipe, group or builtin."""
    outside = _without_quoted(line.strip())
    if outside is None:
        return False
    without_duplication = re.sub(r"[<>]&", "", outside)  # 2>&1 is no list
    if re.search(r"[;&|()`\n#{}]|<<", without_duplication):
        return False
    words = outside.split()
    return (
        bool(words)
        and "=" not in words[0]
        and words[0][0] not in "<>0123456789!"
        and (words[0] not in _NOT_EXECUTABLE and not re.match(r"[\"'$\\]", line.strip()))
    )


def _without_quoted(line: str) -> Optional[str]:
    """The line with everything quoted taken out; None when a quote stays open."""
    kept: List[str] = []
    quote = ""
    place = 0
    while place < len(line):
        char = line[place]
        if char == "\\" and quote != "'":
            place += 2
            continue
        if quote:
            if char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        else:
            kept.append(char)
        place += 1
    return None if quote else "".join(kept)


def main(argv: List[str]) -> int:
    """Run ``deskagent``; returns the exit code. For a command the caller must leave by ``os._exit``."""
    try:
        action, rest = parse(argv)
    except UsageError as error:
        sys.stderr.write("deskagent: %s\n%s" % (error, USAGE))
        return wire.EXIT_USAGE
    if action == "help":
        sys.stdout.write(USAGE)
        return 0
    if action == "version":
        sys.stdout.write("deskagent %s, wire version %d\n" % (AGENT_VERSION, wire.VERSION))
        return 0
    if action == "ctl":
        return control(rest)
    return run(rest)


def control(rest: List[str]) -> int:
    """``deskagent ctl``: 0 done, 1 not done, 82 wrong usage."""
    from agent import ctl

    if not rest or rest[0] not in ctl.COMMANDS:
        sys.stderr.write("deskagent: ctl takes one of: %s\n" % ", ".join(ctl.COMMANDS))
        return wire.EXIT_USAGE
    request: Dict[str, Any] = {"command": rest[0]}
    words = rest[1:]
    if rest[0] == "stop":
        request["at_safe_point"] = "--at-safe-point" in words
        request["reason"] = " ".join(word for word in words if word != "--at-safe-point")
    directory = state_dir(dict(os.environ))
    try:
        answer = ctl.ask(directory, request)
    except (OSError, ValueError) as error:
        sys.stderr.write("deskagent: no agent answers in %s: %s\n" % (directory, error))
        return 1
    sys.stdout.write(json.dumps(answer.get("status") or answer.get("checks") or answer, indent=2) + "\n")
    return 0 if answer.get("ok") else 1


def run(argv: List[str]) -> int:
    """Run a command under the agent."""
    # As PID 1 a signal without a handler is ignored: a stop in the first moments must count too.
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))

    from agent import ctl
    from agent.channel import Channel, encode
    from agent.loop import Loop
    from agent.outbox import Outbox
    from agent.output import Notes, Terminal
    from agent.process import ProcessTable
    from agent.session import Session

    _fill_closed_streams()
    terminals = (Terminal(1), Terminal(2))
    notes = Notes(terminals[1])
    settings = Settings(dict(os.environ), notes.say)
    loop = Loop()
    table = ProcessTable(loop)
    problem = table.become_subreaper()
    if problem is not None:
        notes.say(problem)
    outbox = Outbox(encode)
    session = Session(
        argv=argv,
        settings=settings,
        loop=loop,
        table=table,
        terminals=terminals,
        notes=notes,
        outbox=outbox,
    )
    channel: Optional[Channel] = None
    why_not = why_no_channel(settings)
    if settings.url is not None and why_not is None:
        nonce = os.urandom(16).hex()

        def request() -> wire.EnrolRequest:
            return {
                "version": wire.VERSION,
                "nonce": nonce,
                "pod_uid": settings.pod_uid,
                "pod_name": settings.pod_name,
                "namespace": settings.namespace,
                "container": settings.container,
                "node_name": settings.node_name,
                "ip": settings.pod_ip,
                "agent_version": AGENT_VERSION,
                "pid": os.getpid(),
                "sent_at": time.time(),
                "command": argv,
            }

        try:
            channel = Channel(
                url=settings.url,
                ca_file=settings.ca_file,
                credential=lambda: _credential(settings),
                request=request,
                outbox=outbox,
                post=loop.post,
                listener=session,
                say=notes.say,
            )
        except ValueError as error:
            why_not = str(error)
    server = ctl.Server(
        settings.state_dir,
        ctl.Controlled(
            status=session.status,
            quit_=session.quit,
            check=session.check,
            wait_until_sent=outbox.wait_until_empty,
        ),
        loop.post,
    )
    unable = server.start() if channel is not None or settings.env.get("INCIDENTDESK_STATE_DIR") else None
    if unable is not None:
        notes.say(unable)
    loop.post(session.begin, channel, why_not)
    loop.run()
    if unable is None:
        server.remove()
    return session.exit_code


def _fill_closed_streams() -> None:
    """Give a closed standard stream to /dev/null, so that no pipe of ours gets its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            os.set_inheritable(fd, True)


def why_no_channel(settings: Settings) -> Optional[str]:
    """Why there is no desk to speak to, else None."""
    if settings.url is None:
        return "no desk is configured (INCIDENTDESK_URL)"
    if settings.secret is None and not os.path.exists(settings.token_file):
        return "no credential for the desk (%s)" % settings.token_file
    return None


def _credential(settings: Settings) -> str:
    """The enrolment's bearer: the secret, or the projected token, read anew because it rotates."""
    if settings.secret is not None:
        return settings.secret
    with open(settings.token_file, encoding="utf-8") as file:
        token = file.read().strip()
    if not token:
        raise OSError("%s is empty" % settings.token_file)
    return token
